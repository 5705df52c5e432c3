//! Telemetry: the metrics, spans and events of known histories.
//!
//! The tests run in paused time on the embedded engine. Each runs on one thread, with its own recorder and subscriber.

mod acquire;
mod alarms;
mod batches;
mod identities;
mod lost;
mod names;
mod queue;
mod recorder;
mod records;
mod release;
mod requests;
mod several;
mod spans;
mod sums;
mod traces;

use std::fmt::Debug;
use std::future::pending;
use std::time::{Duration, SystemTime};

use aws_lambda_events::sqs::{SqsEvent, SqsMessage as SqsRecord};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use lambda_lock::embedded::{DynamoDb, Faults, Host, HostBuilder};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Backoff, Error, HandlerError, Idempotency, Jitter, Locks, LocksBuilder, SqsConsumer, Wait};
use lambda_lock_tests::invocation::invocation_with;
use lambda_lock_tests::ms;
use lambda_runtime::Diagnostic;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use crate::recorder::Metrics;
use crate::traces::Traces;

const TABLE: &str = "locks";

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Attempts after 100 ms, 300 ms, 700 ms, and so on.
fn without_jitter() -> Wait {
    Wait::backoff(Backoff::new().jitter(Jitter::None))
}

/// A table, and its metrics and traces.
struct Stage {
    engine: DynamoDb,
    metrics: Metrics,
    traces: Traces,
}

impl Stage {
    async fn set() -> Self {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + s(1_800_000_000)).unwrap();
        Locks::builder(engine.client(), TABLE).build().unwrap().create_table().await.unwrap();
        Self { engine, metrics: Metrics::begin(), traces: Traces::begin() }
    }

    fn locks(&self) -> Locks {
        locks_on(self.engine.host()).1
    }

    fn on_network(&self, faults: Faults) -> Locks {
        locks_on(self.engine.host().faults(faults)).1
    }
}

fn locks_on(host: HostBuilder) -> (Host, Locks) {
    let host = host.build();
    let locks = locks_of(&host).build().unwrap();
    (host, locks)
}

/// Locks without the SDK's retries, whose pauses are random.
fn locks_of(host: &Host) -> LocksBuilder {
    Locks::builder(without_retries(host), TABLE)
}

fn without_retries(host: &Host) -> Client {
    Client::from_conf(host.client().config().to_builder().retry_config(RetryConfig::disabled()).build())
}

/// A network on which each request and each answer takes this long.
fn slow(each_way: Duration) -> Faults {
    Faults::seeded(1).latency(each_way..each_way)
}

/// Waits until background tasks have ended.
async fn settle() {
    sleep(Duration::from_mins(1)).await;
}

fn orders(locks: &Locks) -> Idempotency<String, String, String> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &String| {
        Some(order.clone()).filter(|id| id != "none")
    })
}

async fn done(orders: &Idempotency<String, String, String>, id: &str) -> Result<String, HandlerError<String>> {
    orders
        .run(&id.to_owned(), async |_| {
            sleep(ms(250)).await;
            Ok("done".to_owned())
        })
        .await
}

fn lock_error<T: Debug>(result: Result<T, HandlerError<String>>) -> Error {
    match result {
        Err(HandlerError::Lock(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Releases the key by force.
async fn take_away(locks: &Locks, key: &str) {
    // Rows have times in milliseconds: a lock is not released by force in the millisecond of its acquire.
    sleep(ms(1)).await;
    let holder = locks.get(key).await.unwrap().unwrap();
    assert!(locks.force_release(key, &holder).await.unwrap());
}

type Consumer = SqsConsumer<String, Failure>;

/// The handler's error.
#[derive(Debug)]
struct Failure;

impl From<Failure> for Diagnostic {
    fn from(_: Failure) -> Self {
        Self { error_type: "Failure".to_owned(), error_message: "it failed".to_owned() }
    }
}

fn message(id: &str, body: &str) -> SqsRecord {
    let mut message = SqsRecord::default();
    message.message_id = Some(id.to_owned());
    message.body = Some(body.to_owned());
    message
}

/// Delivers a batch with this much time left, and returns how many messages go back. The bodies say what the handler
/// does.
async fn deliver(consumer: &Consumer, host: &Host, messages: &[(&str, &str)], left: Duration) -> usize {
    let mut batch = SqsEvent::default();
    batch.records = messages.iter().map(|(id, body)| message(id, body)).collect();
    let handler = service_fn({
        let host = host.clone();
        move |message: SqsMessage<String>| {
            let host = host.clone();
            async move {
                match message.body.as_str() {
                    "fail" => Err(Failure),
                    "panic" => panic!("in the handler"),
                    "endless" => pending().await,
                    "slow" => {
                        sleep(ms(1400)).await;
                        Ok(())
                    }
                    "crash" => {
                        sleep(ms(5)).await;
                        host.crash();
                        pending().await
                    }
                    _ => Ok(()),
                }
            }
        }
    });
    let answer = consumer.layer(handler).oneshot(invocation_with(host, batch, left)).await.unwrap();
    answer.batch_item_failures.len()
}
