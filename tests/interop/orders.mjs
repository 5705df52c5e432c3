// Runs an idempotent function of Powertools for AWS Lambda (TypeScript) on each event, and prints a line of JSON for
// each.
//
//     orders.mjs [--prefix P] [--event-key PATH] [--validate PATH] [--remaining-ms N] [--sort-key NAME]
//     EVENT...
//
// See `orders.py` for details.
import { writeSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { IdempotencyConfig, makeIdempotent } from '@aws-lambda-powertools/idempotency';
import { DynamoDBPersistenceLayer } from '@aws-lambda-powertools/idempotency/dynamodb';

const { values: options, positionals: events } = parseArgs({
  allowPositionals: true,
  options: {
    prefix: { type: 'string', default: 'orders' },
    'event-key': { type: 'string', default: 'id' },
    validate: { type: 'string' },
    'remaining-ms': { type: 'string' },
    'sort-key': { type: 'string' },
  },
});

const config = new IdempotencyConfig({
  eventKeyJmesPath: options['event-key'],
  payloadValidationJmesPath: options.validate,
});
if (options['remaining-ms'] !== undefined) {
  config.registerLambdaContext({ getRemainingTimeInMillis: () => Number(options['remaining-ms']) });
}
const persistenceStore = new DynamoDBPersistenceLayer({
  tableName: process.env.LOCK_TABLE_NAME,
  ...(options['sort-key'] ? { sortKeyAttr: options['sort-key'], staticPkValue: 'idempotency#orders' } : {}),
});
const print = (line) => writeSync(1, `${JSON.stringify(line)}\n`);
let ran;

const place = makeIdempotent(
  async (order) => {
    ran = true;
    if (order.crash) {
      print({ ran });
      process.exit(0);
    }
    if (order.fail) throw Object.assign(new Error('as the event says'), { name: 'OrderFailed' });
    return order.result;
  },
  { persistenceStore, config, keyPrefix: options.prefix }
);

for (const event of events) {
  ran = false;
  try {
    const result = await place(JSON.parse(event));
    print({ ran, result: result ?? null });
  } catch (error) {
    console.error(error);
    print({ ran, error: error.name });
  }
}
