//! A Lambda function in which one invocation at a time works on a report, although a schedule, an event bus and a
//! person may all start it.
//!
//! Use it as the `main.rs` of a function for the runtime `provided.al2023`. It needs the variable `LOCK_TABLE_NAME`,
//! and the IAM action `dynamodb:UpdateItem` on that table. On your machine it runs with any DynamoDB that has the
//! table:
//!
//! ```sh
//! export LOCK_TABLE_NAME=locks RUST_LOG=info
//! cargo lambda watch --package lambda-lock --features lambda --example singleton_function &
//! cargo lambda invoke --data-ascii '{"report": "sales"}'
//! ```

use std::time::Duration;

use lambda_lock::{LockLayer, Locks, WithLock};
use lambda_runtime::tower::Layer;
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

#[derive(Deserialize)]
struct Request {
    report: String,
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
enum Outcome {
    Written { fence: u64 },
    Skipped { reason: String },
}

/// Takes the event with the lock. A handler of a plain `LambdaEvent<Request>` works too.
async fn write_report(WithLock { input, lock, .. }: WithLock<LambdaEvent<Request>>) -> Result<Outcome, Error> {
    // The store of reports refuses a smaller fence than the last one: see the example `fencing`.
    tracing::info!(report = input.payload.report, fence = lock.fence(), left = ?lock.remaining(), "writing");
    Ok(Outcome::Written { fence: lock.fence() })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().json().with_env_filter(EnvFilter::from_default_env()).without_time().init();
    let layer = LockLayer::new(Locks::from_env().await?)
        // Different reports can run at the same time. The default key is the function's name.
        .key_from(|event: &LambdaEvent<Request>| format!("report#{}", event.payload.report))
        // A schedule that fires twice, seconds apart, writes even a very short report once.
        .min_hold(Duration::from_secs(30))
        // An answer instead of an error, after which Lambda would retry. Lambda's retry of a holder that has crashed still
        // gets the error, until the key is free.
        .on_held(|held| Outcome::Skipped { reason: held.to_string() });
    Runtime::new(layer.layer(service_fn(write_report))).run().await
}
