//! A Lambda function of which one invocation at a time works on a report: a schedule, an event bus and a person may all
//! start it, and it still does not run twice at once.
//!
//! As the `main.rs` of a function, for the runtime `provided.al2023`: with the variable `LOCK_TABLE_NAME`, and the IAM
//! action `dynamodb:UpdateItem` on that table. On this machine, against any DynamoDB that has the table:
//!
//! ```sh
//! export LOCK_TABLE_NAME=locks RUST_LOG=info
//! cargo lambda watch --package lambda-lock --features lambda --example singleton_function &
//! cargo lambda invoke --data-ascii '{"report": "sales"}'
//! ```

use std::time::Duration;

use lambda_lock::{LockLayer, LockedEvent, Locks};
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

/// Takes the event with the lock. One that takes a plain `LambdaEvent<Request>` works as well.
async fn write_report(event: LockedEvent<Request>) -> Result<Outcome, Error> {
    let LockedEvent { payload, lock, .. } = event;
    // Where it is written, a smaller fence than the last one is refused: see the example `fencing`.
    tracing::info!(report = payload.report, fence = lock.fence(), left = ?lock.remaining(), "writing");
    Ok(Outcome::Written { fence: lock.fence() })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().json().with_env_filter(EnvFilter::from_default_env()).without_time().init();
    let layer = LockLayer::new(Locks::from_env().await?)
        // Different reports at the same time. Without a key of its own, the function's name is the key.
        .key_from(|event: &LambdaEvent<Request>| format!("report#{}", event.payload.report))
        // A schedule that fires twice, seconds apart, writes a report once that takes no longer than a moment.
        .hold_at_least(Duration::from_secs(30))
        // In place of an error, after which Lambda would try again.
        .on_held(|held| Outcome::Skipped { reason: held.to_string() });
    Runtime::new(layer.layer(service_fn(write_report))).run().await
}
