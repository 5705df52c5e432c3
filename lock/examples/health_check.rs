//! A health check at start-up: is the table there, are its keys and its TTL right, is the clock, may we write?
//!
//! Runs by itself, on an engine in its process; on a table of yours with `Locks::from_env()`, as the program does it:
//! `lambda-lock check`.
//!
//! ```sh
//! cargo run --package lambda-lock --example health_check --features embedded
//! ```

use std::process::ExitCode;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Error, Locks, Verdict};

/// What a service does before it takes its first piece of work, a deployment as its last step, a function perhaps while it
/// is initialised: `false`, and why, if locks do not work.
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
    println!("with one:\n{}", locks.check().await);
    Ok(if is_ready(&locks).await { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
