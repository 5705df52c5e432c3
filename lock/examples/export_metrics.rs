//! Metrics need only an exporter.
//!
//! This exporter writes Amazon's embedded metric format, which a Lambda function writes to its log. It needs no agent
//! and no request. A function flushes it after each invocation, as `lambda-example/src/telemetry.rs` does. Any other
//! exporter of the crate `metrics` works too.
//!
//! The example needs no AWS: its engine is in the process.
//!
//! ```sh
//! cargo run --package lambda-lock --example export_metrics --features metrics,embedded
//! ```

use std::error::Error;
use std::time::Duration;

use lambda_lock::Locks;
use lambda_lock::embedded::DynamoDb;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Install the exporter before you build the locks, so that it learns the units.
    let exporter = metrics_cloudwatch_embedded::Builder::new()
        .cloudwatch_namespace("Reports")
        .with_dimension("FunctionName", "nightly-report")
        .init()?;

    let locks = Locks::builder(DynamoDb::new()?.client(), "locks").build()?;
    locks.create_table().await?;
    let lock = locks.acquire("nightly-report").await?;
    let refused = locks.acquire("nightly-report").wait(Duration::from_millis(400)).await;
    println!("{}", refused.map_or_else(|error| error.to_string(), |lock| format!("{lock:?}")));
    lock.release().await?;

    exporter.flush(std::io::stdout())?;
    Ok(())
}
