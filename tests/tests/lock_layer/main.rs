//! `LockLayer` as a tower service around a handler.

mod coalesce;
mod errors;
mod handler;
mod held;
mod key;
mod lease;
mod nightly_report;
mod release;
mod service;
mod unavailable;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::Host;
use lambda_lock::{Backoff, Lock, LockLayer, Locks, Wait};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{self, millis};
use lambda_runtime::{Diagnostic, Error, LambdaEvent};
use tower::{Layer, ServiceExt, service_fn};

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_secs(30);

/// The name of the function, which is also the default key.
const FUNCTION: &str = "report";

/// An invocation of the function on this host, 30 seconds before its deadline.
fn invocation<P>(host: &Host, payload: P) -> LambdaEvent<P> {
    invocation_with(host, payload, Duration::from_secs(30))
}

fn invocation_with<P>(host: &Host, payload: P, time_left: Duration) -> LambdaEvent<P> {
    let mut event = invocation_without_deadline(payload);
    event.context.deadline = millis(host.now() + time_left);
    event
}

fn invocation_without_deadline<P>(payload: P) -> LambdaEvent<P> {
    invocation::invocation_without_deadline(FUNCTION, payload)
}

/// The invocation with this request id.
fn with_request_id<P>(id: &str, mut event: LambdaEvent<P>) -> LambdaEvent<P> {
    id.clone_into(&mut event.context.request_id);
    event
}

/// A table, and a host of the function.
async fn environment() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

async fn hold_elsewhere(world: &World, key: &str) -> Lock {
    world.default_locks().acquire(key).holder("another environment").await.unwrap()
}

async fn is_free(world: &World, key: &str) -> bool {
    match world.default_locks().try_acquire(key).await.unwrap() {
        Some(lock) => lock.release().await.is_ok(),
        None => false,
    }
}

async fn row(world: &World, key: &str) -> HashMap<String, AttributeValue> {
    let get = world.client().get_item().table_name(&world.table).consistent_read(true);
    get.key("id", AttributeValue::S(key.to_owned())).send().await.unwrap().item.unwrap()
}

fn number(row: &HashMap<String, AttributeValue>, attribute: &str) -> u64 {
    row[attribute].as_n().unwrap().parse().unwrap()
}

fn quick_backoff() -> Wait {
    Wait::backoff(Backoff::new().base(Duration::from_millis(5)).cap(Duration::from_millis(20))).up_to(TOO_LONG)
}

async fn done<P>(_: LambdaEvent<P>) -> Result<&'static str, Error> {
    Ok("done")
}

/// The row while the handler runs.
async fn row_during(
    world: World,
    layer: LockLayer<LambdaEvent<()>, HashMap<String, AttributeValue>>,
    event: LambdaEvent<()>,
) -> HashMap<String, AttributeValue> {
    let world = Arc::new(world);
    let service = layer.layer(service_fn(move |_: LambdaEvent<()>| {
        let world = Arc::clone(&world);
        async move { Ok::<_, Error>(row(&world, FUNCTION).await) }
    }));
    service.oneshot(event).await.unwrap()
}

fn lease_millis(row: &HashMap<String, AttributeValue>) -> u64 {
    number(row, "in_progress_expiration") - number(row, "acquired_at")
}

/// The error of a handler, with its own error type.
#[derive(Debug)]
struct OutOfPaper;

impl From<OutOfPaper> for Diagnostic {
    fn from(_: OutOfPaper) -> Self {
        Self { error_type: "OutOfPaper".to_owned(), error_message: "fill the tray".to_owned() }
    }
}
