"""Processes batches of SQS messages, each message once, with Powertools for AWS Lambda (Python): `BatchProcessor` with an
idempotent function. `batch.mjs` does the same with Powertools for TypeScript.

Each line of the input is an event as Lambda sends it, `{"Records": [...]}`. Each line of the output has the time and the
number of messages that ran: `{"ms": 12.5, "ran": 10}`. The environment variables are those of `orders.py`.
"""

import json
import os
import sys
import time
from types import SimpleNamespace

import boto3
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function

context = SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)
client = boto3.client("dynamodb", region_name=os.environ["AWS_REGION"])
store = DynamoDBPersistenceLayer(table_name=os.environ["LOCK_TABLE_NAME"], boto3_client=client)
config = IdempotencyConfig(event_key_jmespath="messageId", lambda_context=context)
processor = BatchProcessor(event_type=EventType.SQS)
ran = 0


@idempotent_function(data_keyword_argument="record", persistence_store=store, config=config, key_prefix="batch")
def handle(record):
    global ran
    ran += 1


for line in sys.stdin:
    event = json.loads(line)
    ran = 0
    start = time.perf_counter()
    answer = process_partial_response(event=event, record_handler=handle, processor=processor, context=context)
    took = time.perf_counter() - start
    assert answer == {"batchItemFailures": []}, answer
    print(json.dumps({"ms": took * 1000, "ran": ran}), flush=True)
