//! `SqsConsumer`: each message of a batch runs once.

mod back_off;
mod concurrency;
mod dead_letter;
mod fifo;
mod handler;
mod hide;
mod key;
mod log;
mod outcomes;
mod panics;
mod queues;
mod rate;
mod twins;

use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage as SqsRecord};
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Idempotency, Lock, Locks, SqsConsumer};
use lambda_lock_tests::invocation::invocation;
use lambda_lock_tests::till::{Declined, Payment, Till};
use lambda_lock_tests::{World, ms};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::json;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:payments";
const FIFO_QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:payments.fifo";

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_mins(1);

/// When every clock shows that the lease of a crashed invocation has ended.
const AFTER_THE_LEASE: Duration = Duration::from_secs(32);

type Consumer<T = ()> = SqsConsumer<Payment, Declined, T>;

/// A message of a standard queue.
fn message(id: &str, then: &str) -> SqsRecord {
    message_with_body(id, &json!({ "id": format!("payment {id}"), "then": then }).to_string())
}

fn message_with_body(id: &str, body: &str) -> SqsRecord {
    let mut message = SqsRecord::default();
    message.message_id = Some(id.to_owned());
    message.receipt_handle = Some(format!("receipt of {id}"));
    message.body = Some(body.to_owned());
    message.event_source_arn = Some(QUEUE.to_owned());
    message
}

fn with_attributes<const N: usize>(mut message: SqsRecord, attributes: [(&str, &str); N]) -> SqsRecord {
    message.attributes.extend(attributes.map(|(name, value)| (name.to_owned(), value.to_owned())));
    message
}

/// A message of a FIFO queue.
fn ordered(id: &str, group: &str, then: &str) -> SqsRecord {
    let mut message = with_attributes(message(id, then), [("MessageGroupId", group)]);
    message.event_source_arn = Some(FIFO_QUEUE.to_owned());
    message
}

fn batch(messages: impl IntoIterator<Item = SqsRecord>) -> SqsEvent {
    let mut event = SqsEvent::default();
    event.records = messages.into_iter().collect();
    event
}

/// The ids of the messages that go back. The consumer answers even if they are all.
async fn failures<S, H, B, T>(
    consumer: &SqsConsumer<B, Declined, T, H>,
    handler: S,
    event: LambdaEvent<SqsEvent>,
) -> Vec<String>
where
    SqsConsumer<B, Declined, T, H>: Layer<S>,
    <SqsConsumer<B, Declined, T, H> as Layer<S>>::Service:
        Service<LambdaEvent<SqsEvent>, Response = SqsBatchResponse, Error = Diagnostic>,
{
    let service = consumer.clone().fail_if_all_failed(false).layer(handler);
    let answer = timeout(TOO_LONG, service.oneshot(event)).await.expect("there is an answer").unwrap();
    answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect()
}

/// Delivers a batch 30 seconds before the deadline, and returns the ids of the messages that go back.
async fn deliver(
    consumer: &Consumer,
    till: &Till,
    host: &Host,
    messages: impl IntoIterator<Item = SqsRecord>,
) -> Vec<String> {
    deliver_in(consumer, till, invocation(host, batch(messages))).await
}

async fn deliver_in(consumer: &Consumer, till: &Till, event: LambdaEvent<SqsEvent>) -> Vec<String> {
    let till = till.clone();
    failures(consumer, service_fn(move |message| till.clone().pay(message)), event).await
}

/// A table, and a consumer by message id on its own host.
async fn environment() -> (World, Host, Consumer, Till) {
    environment_in(World::new().await)
}

fn environment_in(world: World) -> (World, Host, Consumer, Till) {
    let host = world.host().build();
    let consumer = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    (world, host, consumer, Till::default())
}

/// Keys each payment by the id in its body.
fn by_payment(locks: &Locks) -> Idempotency<SqsMessage<Payment>, (), Declined> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |message: &SqsMessage<Payment>| Some(message.body.id.clone()))
}

/// The key of the row of a message with this key from the standard queue.
fn row_of(key: &str) -> String {
    format!("orders#{QUEUE}#{key}")
}

/// Makes a message of the standard queue in progress in another environment.
async fn work_elsewhere(world: &World, key: &str, lease: Duration) -> Lock {
    world.default_locks().acquire(row_of(key)).lease(lease).await.unwrap()
}
