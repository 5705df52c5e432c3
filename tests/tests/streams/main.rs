//! `StreamConsumer`: each record of a batch runs once, and those of a key run in order.

mod answer;
mod images;
mod key;
mod parse;
mod rate;
mod windowed;

use std::fmt::Debug;
use std::time::Duration;

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::streams::KinesisEventResponse;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock::{Idempotency, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::invocation;
use lambda_lock_tests::till::{Declined, Payment, Till};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::json;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

const STREAM: &str = "arn:aws:kinesis:eu-west-1:123456789012:stream/payments";

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_mins(1);

type Consumer<B = Payment, T = ()> = StreamConsumer<KinesisRecord<B>, Declined, T>;

/// A record with this sequence number and this partition key.
fn record(number: &str, key: &str, then: &str) -> KinesisEventRecord {
    record_with_data(number, key, json!({ "id": format!("payment {number}"), "then": then }).to_string())
}

fn record_with_data(number: &str, key: &str, data: impl Into<Vec<u8>>) -> KinesisEventRecord {
    let mut record = KinesisEventRecord::default();
    record.event_id = Some(format!("shardId-000000000006:{number}"));
    record.event_source_arn = Some(STREAM.to_owned());
    record.kinesis.sequence_number = number.into();
    record.kinesis.partition_key = key.into();
    record.kinesis.data.0 = data.into();
    record
}

/// Records with the numbers from 1, whose partition keys are the first letters.
fn records<const N: usize>(records: [(&str, &str); N]) -> Vec<KinesisEventRecord> {
    records.into_iter().zip(1..).map(|((key, then), number)| record(&number.to_string(), key, then)).collect()
}

fn batch(records: impl IntoIterator<Item = KinesisEventRecord>) -> KinesisEvent {
    let mut event = KinesisEvent::default();
    event.records = records.into_iter().collect();
    event
}

/// The key of the row of a record.
fn row_of(number: &str) -> String {
    format!("orders#{STREAM}#shardId-000000000006:{number}")
}

/// The number that the answer names, from which Lambda delivers again. The consumer answers even if all failed.
async fn again_from<S, H, B, T>(
    consumer: &StreamConsumer<KinesisRecord<B>, Declined, T, H>,
    handler: S,
    event: LambdaEvent<KinesisEvent>,
) -> Option<String>
where
    StreamConsumer<KinesisRecord<B>, Declined, T, H>: Layer<S>,
    <StreamConsumer<KinesisRecord<B>, Declined, T, H> as Layer<S>>::Service:
        Service<LambdaEvent<KinesisEvent>, Response = KinesisEventResponse, Error = Diagnostic>,
{
    let service = consumer.clone().fail_if_all_failed(false).layer(handler);
    let answer = timeout(TOO_LONG, service.oneshot(event)).await.expect("there is an answer").unwrap();
    let mut numbers: Vec<_> =
        answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier.unwrap()).collect();
    assert!(numbers.len() <= 1, "{numbers:?}");
    numbers.pop()
}

/// Delivers a batch 30 seconds before the deadline, and returns the number from which Lambda delivers again.
async fn deliver(
    consumer: &Consumer,
    till: &Till,
    host: &Host,
    records: impl IntoIterator<Item = KinesisEventRecord>,
) -> Option<String> {
    deliver_in(consumer, till, invocation(host, batch(records))).await
}

async fn deliver_in(consumer: &Consumer, till: &Till, event: LambdaEvent<KinesisEvent>) -> Option<String> {
    let till = till.clone();
    again_from(consumer, service_fn(move |record| till.clone().pay(record)), event).await
}

/// A table, and a consumer by event id on its own host.
async fn environment() -> (World, Host, Consumer, Till) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer = StreamConsumer::by_event_id(world.locks(&host).build().unwrap());
    (world, host, consumer, Till::default())
}

/// Keys each payment by the id in its data.
fn by_payment(locks: &Locks) -> Idempotency<KinesisRecord<Payment>, (), Declined> {
    let key = |record: &KinesisRecord<Payment>| Some(record.body.id.clone());
    Idempotency::new(locks.clone(), OnMissingKey::Reject, key)
}

fn assert_debug_hides(value: &impl Debug, secret: &str) {
    assert!(!format!("{value:?}").contains(secret), "{value:?}");
}
