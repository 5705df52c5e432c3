//! Tumbling windows, which the consumer refuses.

use aws_lambda_events::dynamodb::Event as DynamoDbEvent;
use aws_lambda_events::kinesis::KinesisEvent;
use lambda_lock::streams::{DynamoDbRecord, KinesisRecord, StreamConsumer};
use lambda_lock_tests::invocation::{invocation, keep_log, logged};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};

use crate::{Declined, Payment, STREAM, deliver_in, environment, record};

/// An event as a mapping with a tumbling window sends it.
fn event_of_window<E: DeserializeOwned>(records: &Value) -> E {
    let event = json!({
        "Records": records,
        "window": { "start": "2026-11-23T07:04:00Z", "end": "2026-11-23T07:06:00Z" },
        "state": { "sum": "17" },
        "shardId": "shardId-000000000006",
        "eventSourceARN": STREAM,
        "isFinalInvokeForWindow": false,
        "isWindowTerminatedEarly": false,
    });
    serde_json::from_value(event).unwrap()
}

/// An event with one record.
fn windowed(number: &str) -> KinesisEvent {
    event_of_window(&json!([record(number, "a", "Done")]))
}

#[tokio::test]
async fn a_batch_of_a_tumbling_window_is_not_done_and_does_not_run() {
    let (_world, host, consumer, till) = environment().await;
    let failed = consumer
        .layer(service_fn(async |_: KinesisRecord<Payment>| -> Result<(), Declined> { panic!("it runs") }))
        .oneshot(invocation(&host, windowed("1")))
        .await
        .unwrap_err();
    assert!(failed.error_message.contains("TumblingWindowInSeconds"), "{failed:?}");
    let consumer = consumer.fail_if_all_failed(false);
    // The last batch of a window can be empty.
    for event in [windowed("1"), event_of_window(&json!([]))] {
        // Lambda takes an empty identifier as the failure of the whole batch.
        assert_eq!(deliver_in(&consumer, &till, invocation(&host, event)).await.as_deref(), Some(""));
    }
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_tumbling_window_of_a_dynamodb_stream_is_refused() {
    let (world, host, _, _) = environment().await;
    let consumer = StreamConsumer::by_event_id(world.locks(&host).build().unwrap()).fail_if_all_failed(false);
    let handler = service_fn(async |_: DynamoDbRecord<Value>| -> Result<(), Declined> { panic!("it runs") });
    let event: DynamoDbEvent = event_of_window(&json!([]));
    let answer = consumer.layer(handler).oneshot(invocation(&host, event)).await.unwrap();
    let expected = json!({ "batchItemFailures": [{ "itemIdentifier": "" }] });
    assert_eq!(serde_json::to_value(answer).unwrap(), expected);
}

#[tokio::test]
async fn a_consumer_logs_once_that_it_refuses_tumbling_windows() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let number = format!("windowed of {}", world.table);
    for _ in 0..2 {
        assert_eq!(deliver_in(&consumer, &till, invocation(&host, windowed(&number))).await.as_deref(), Some(""));
    }
    let lines = logged(&number);
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("ERROR") && line.contains("TumblingWindowInSeconds"), "{line}");
}
