//! Metrics: installing an exporter is all there is to it.
//!
//! Here it is that of Amazon's embedded metric format, which a Lambda function writes to its log: no agent, no
//! request. A function flushes it after each invocation, as `lambda-example/src/telemetry.rs` does; any other exporter of the
//! crate `metrics` works as well.
//!
//! Runs by itself, on an engine in its process:
//!
//! ```sh
//! cargo run --package lambda-lock --example export_metrics --features metrics,embedded
//! ```

use std::error::Error;
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Backoff, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Before the locks are built, so that it learns the units.
    let exporter = metrics_cloudwatch_embedded::Builder::new()
        .cloudwatch_namespace("Reports")
        .with_dimension("FunctionName", "nightly-report")
        .init()?;

    let locks = Locks::builder(DynamoDb::new()?.client(), "locks").build()?;
    locks.create_table().await?;
    let lock = locks.acquire("nightly-report").await?;
    let in_vain = locks.acquire("nightly-report").wait(Backoff::default().up_to(Duration::from_millis(400))).await;
    println!("{}", in_vain.map_or_else(|error| error.to_string(), |lock| format!("{lock:?}")));
    lock.release().await?;

    exporter.flush(std::io::stdout())?;
    Ok(())
}
