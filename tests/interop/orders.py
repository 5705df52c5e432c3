"""Runs an idempotent function of Powertools for AWS Lambda (Python) on each event, and prints a line of JSON for each.

    orders.py [--prefix P] [--event-key PATH] [--validate PATH] [--remaining-ms N] [--sort-key NAME] EVENT...

The paths are JMESPath. The table is LOCK_TABLE_NAME; endpoint, region and credentials are in the variables of the AWS
SDKs. `orders.mjs` does the same with Powertools for TypeScript. The event says what the function does:
`{"result": …}` returns that, `{"fail": true}` raises, `{"crash": true}` ends the process and leaves the record.
"""

import argparse
import json
import os
import traceback
from types import SimpleNamespace

import boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function

parser = argparse.ArgumentParser()
parser.add_argument("--prefix", default="orders")
parser.add_argument("--event-key", default="id")
parser.add_argument("--validate", default="")
parser.add_argument("--remaining-ms", type=int, help="what the Lambda context says; without it, there is none")
parser.add_argument("--sort-key", help="the composite layout, with the sort key of this name")
parser.add_argument("events", nargs="+", type=json.loads)
options = parser.parse_args()

context = SimpleNamespace(get_remaining_time_in_millis=lambda: options.remaining_ms)
client = boto3.client("dynamodb", region_name=os.environ["AWS_REGION"])
layout = {"sort_key_attr": options.sort_key, "static_pk_value": "idempotency#orders"} if options.sort_key else {}
store = DynamoDBPersistenceLayer(table_name=os.environ["LOCK_TABLE_NAME"], boto3_client=client, **layout)
config = IdempotencyConfig(options.event_key, options.validate, lambda_context=context)
outcome = {}


class OrderFailed(Exception):
    pass


@idempotent_function(data_keyword_argument="order", persistence_store=store, config=config, key_prefix=options.prefix)
def place(order):
    outcome["ran"] = True
    if order.get("crash"):
        print(json.dumps(outcome), flush=True)
        os._exit(0)
    if order.get("fail"):
        raise OrderFailed("as the event says")
    return order.get("result")


for event in options.events:
    outcome["ran"] = False
    try:
        answer = {"result": place(order=event)}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": type(error).__name__}
    print(json.dumps(outcome | answer), flush=True)
