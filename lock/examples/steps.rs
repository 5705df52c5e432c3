//! A lock that outlives its process: the first step of a pipeline takes it, the last one frees it, and only the id of the run
//! connects them.
//!
//! The example needs no AWS: its engine is in the process. The steps are functions here, each with a client of its own.
//!
//! ```sh
//! cargo run --package lambda-lock --example steps --features embedded
//! ```

use std::error::Error;
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Acquire, Locks};

/// Long enough for the slowest step. After a crash of the pipeline, the key is free when it ends.
const LEASE: Duration = Duration::from_mins(30);

/// A process: it has its own client, and nothing else from the steps before.
fn process(engine: &DynamoDb) -> Result<Locks, lambda_lock::Error> {
    Locks::builder(engine.client(), "locks").build()
}

fn deploy_by(locks: &Locks, run: &str) -> Acquire {
    locks.acquire("deploy").identity(run).holder(run).lease(LEASE)
}

/// Takes the lock, and returns its fence. If this step is repeated in the same run, it takes its own lock over instead of
/// waiting for it.
async fn first_step(locks: Locks, run: &str) -> Result<u64, lambda_lock::Error> {
    let lock = deploy_by(&locks, run).await?;
    let fence = lock.fence();
    println!("the first step of {run} has fence {fence}, and ends");
    lock.keep();
    Ok(fence)
}

/// Does a part of the work, unless the run has lost the lock. The work is cancelled if the lease ends.
async fn middle_step(locks: Locks, run: &str, fence: u64) -> Result<(), lambda_lock::Error> {
    let lock = deploy_by(&locks, run).take_over_from(fence).await?;
    println!("a step in between works with fence {}", lock.fence());
    let migrated = lock.while_held(migrate()).await;
    lock.keep();
    migrated
}

async fn migrate() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Frees the key.
async fn last_step(locks: Locks, run: &str) -> Result<(), lambda_lock::Error> {
    if locks.release_identity("deploy", run).await? {
        println!("the last step of {run} frees the key");
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = DynamoDb::new()?;
    process(&engine)?.create_table().await?;

    let fence = first_step(process(&engine)?, "run 7").await?;
    match first_step(process(&engine)?, "run 8").await {
        Err(refusal) => println!("run 8 has to wait: {refusal}"),
        Ok(_) => return Err("two runs deploy at once".into()),
    }
    middle_step(process(&engine)?, "run 7", fence).await?;
    println!("the service repeats this step");
    middle_step(process(&engine)?, "run 7", fence).await?;
    last_step(process(&engine)?, "run 7").await?;
    match middle_step(process(&engine)?, "run 7", fence).await {
        Err(lost) => println!("a late copy does not work: {lost}"),
        Ok(()) => return Err("a step took a free key".into()),
    }

    first_step(process(&engine)?, "run 8").await?;
    Ok(last_step(process(&engine)?, "run 8").await?)
}
