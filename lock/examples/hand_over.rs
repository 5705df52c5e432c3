//! A lock that outlives its process: the first step of a pipeline takes it, the last one frees it, and only a ticket
//! connects them.
//!
//! The example needs no AWS: its engine is in the process. The steps are functions here, each with a client of its own.
//!
//! ```sh
//! cargo run --package lambda-lock --example hand_over --features serde,embedded
//! ```

use std::error::Error;
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Locks, Ticket};

/// Long enough for the slowest step. After a crash of the pipeline, the key is free when it ends.
const LEASE: Duration = Duration::from_mins(30);

/// A process: it has its own client, and nothing else from the steps before.
fn process(engine: &DynamoDb) -> Result<Locks, lambda_lock::Error> {
    Locks::builder(engine.client(), "locks").build()
}

/// Takes the lock, and returns what the next step needs. If this step is repeated in the same run, it takes its own lock
/// over instead of waiting for it.
async fn first_step(locks: Locks, run: &str) -> Result<String, Box<dyn Error>> {
    let lock = locks.acquire("deploy").identity(run).lease(LEASE).await?;
    println!("the first step of {run} has fence {}, and ends", lock.fence());
    Ok(serde_json::to_string(&lock.into_ticket()?)?)
}

/// Does a part of the work. Its first request makes sure that the lock is still held. The step can be repeated.
async fn middle_step(locks: Locks, json: &str) -> Result<(), Box<dyn Error>> {
    let ticket: Ticket = serde_json::from_str(json)?;
    locks.renew_ticket(&ticket, LEASE).await?;
    println!("a step in between works with fence {}", ticket.fence());
    Ok(())
}

/// Does work that must stop when the lease ends. It needs the lock itself, which uses up the ticket. So it returns a new
/// one.
async fn guarded_step(locks: Locks, json: &str) -> Result<String, Box<dyn Error>> {
    let lock = locks.resume(&serde_json::from_str(json)?).await?;
    lock.while_held(migrate()).await?;
    println!("another step has migrated the data, with {} s left", lock.remaining().as_secs());
    Ok(serde_json::to_string(&lock.into_ticket()?)?)
}

async fn migrate() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Frees the key. This step can be repeated, too.
async fn last_step(locks: Locks, json: &str) -> Result<(), Box<dyn Error>> {
    let ticket: Ticket = serde_json::from_str(json)?;
    locks.release_ticket(&ticket).await?;
    println!("the last step frees the key");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = DynamoDb::new()?;
    process(&engine)?.create_table().await?;

    let ticket = first_step(process(&engine)?, "run 7").await?;
    match first_step(process(&engine)?, "run 8").await {
        Err(refusal) => println!("run 8 has to wait: {refusal}"),
        Ok(_) => return Err("two runs deploy at once".into()),
    }
    middle_step(process(&engine)?, &ticket).await?;
    let next = guarded_step(process(&engine)?, &ticket).await?;
    match middle_step(process(&engine)?, &ticket).await {
        Err(refusal) => println!("the old ticket is refused: {refusal}"),
        Ok(()) => return Err("a ticket worked twice".into()),
    }
    last_step(process(&engine)?, &next).await?;

    let next = first_step(process(&engine)?, "run 8").await?;
    last_step(process(&engine)?, &next).await
}
