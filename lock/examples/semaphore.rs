//! A semaphore: at most two calls to the bank at a time, from any number of processes.
//!
//! The example needs no AWS: its engine is in the process. For your own table, replace the first lines of `main` with
//! `Locks::from_env()`.
//!
//! ```sh
//! cargo run --package lambda-lock --example semaphore --features embedded
//! ```

use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Error, Locks, Wait};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let engine = DynamoDb::new()?;
    let locks = Locks::builder(engine.client(), "locks").build()?;
    locks.create_table().await?;
    let bank = locks.semaphore("bank-api", 2);

    let first = bank.acquire().holder("the first call").await?;
    let second = bank.acquire().holder("the second call").await?;
    println!("two permits, with fences {} and {}", first.fence(), second.fence());

    // A refusal names the holders of all permits, and the lease that ends first.
    match bank.acquire().await {
        Err(error) if error.is_held() => println!("refused: {error}"),
        other => return other.map(drop),
    }

    // A released permit goes to a caller that waits. `run` releases its permit after the work.
    first.release().await?;
    let wait = Wait::in_turn().up_to(Duration::from_secs(5));
    bank.acquire().wait(wait).run(async |permit| println!("a third call has fence {}", permit.fence())).await?;
    second.release().await
}
