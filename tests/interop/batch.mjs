// Processes batches of SQS messages, each message once, with Powertools for AWS Lambda (TypeScript): `BatchProcessor` with
// `makeIdempotent`.
//
// Each line of the input is an event as Lambda sends it, `{"Records": [...]}`. Each line of the output has the time and the
// number of messages that ran: `{"ms": 12.5, "ran": 10}`. The environment variables are those of `orders.py`.
import assert from 'node:assert';
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';

import { BatchProcessor, EventType, processPartialResponse } from '@aws-lambda-powertools/batch';
import { IdempotencyConfig, makeIdempotent } from '@aws-lambda-powertools/idempotency';
import { DynamoDBPersistenceLayer } from '@aws-lambda-powertools/idempotency/dynamodb';

const context = { getRemainingTimeInMillis: () => 30_000 };
const config = new IdempotencyConfig({ eventKeyJmesPath: 'messageId', lambdaContext: context });
const persistenceStore = new DynamoDBPersistenceLayer({ tableName: process.env.LOCK_TABLE_NAME });
const processor = new BatchProcessor(EventType.SQS);
let ran;

const handle = makeIdempotent(
  async (_record) => {
    ran += 1;
  },
  { persistenceStore, config, keyPrefix: 'batch' }
);

for await (const line of createInterface({ input: process.stdin })) {
  const event = JSON.parse(line);
  ran = 0;
  const start = performance.now();
  const answer = await processPartialResponse(event, handle, processor, { context });
  const ms = performance.now() - start;
  assert.deepStrictEqual(answer, { batchItemFailures: [] });
  writeSync(1, `${JSON.stringify({ ms, ran })}\n`);
}
