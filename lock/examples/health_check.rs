//! A health check at start-up, of the table, its keys, its TTL, the clock and the permissions.
//!
//! The example needs no AWS: its engine is in the process. For your own table use `Locks::from_env()`, or the program:
//! `lambda-lock check`.
//!
//! ```sh
//! cargo run --package lambda-lock --example health_check --features embedded
//! ```

use std::process::ExitCode;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::operate::Verdict;
use lambda_lock::{Error, Locks};

/// Returns whether locks work, and prints what does not. Call it in a service before the first piece of work, as the
/// last step of a deployment, or in a function's initialisation.
async fn is_ready(locks: &Locks) -> bool {
    let report = locks.check().await;
    for finding in report.findings().iter().filter(|finding| finding.verdict() != Verdict::Passed) {
        eprintln!("{finding}");
    }
    report.is_healthy()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    let locks = Locks::builder(DynamoDb::new()?.client(), "locks").build()?;
    println!("without a table: {}", if is_ready(&locks).await { "ready" } else { "not ready" });

    locks.create_table().await?;
    println!("with a table:\n{}", locks.check().await);
    Ok(if is_ready(&locks).await { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
