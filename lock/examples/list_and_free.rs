//! Who holds what? And freeing a key by hand, when its holder is known to be dead and nobody wants to wait for the end of
//! its lease.
//!
//! Runs by itself, on an engine in its process; for a table of yours there is the program, `lambda-lock list --held` and
//! `lambda-lock release --force`.
//!
//! ```sh
//! cargo run --package lambda-lock --example list_and_free --features embedded
//! ```

use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Error, Holder, Locks};

/// The keys that are held now. Reads the whole table, a page at a time (IAM action `dynamodb:Scan`): for one key,
/// `Locks::get` costs one read.
async fn held(locks: &Locks) -> Result<Vec<(String, Holder)>, Error> {
    let mut held = Vec::new();
    let mut list = locks.list();
    while let Some(page) = list.next_page().await? {
        for row in page {
            match row.holder {
                Ok(holder) if holder.is_current() => held.push((row.key, holder)),
                Ok(_) => {}
                Err(malformed) => eprintln!("{malformed}"),
            }
        }
    }
    Ok(held)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let engine = DynamoDb::new()?;
    let locks = Locks::builder(engine.client(), "locks").holder("the operator").build()?;
    locks.create_table().await?;

    let worker = Locks::builder(engine.client(), "locks").holder("worker 3").build()?;
    let crashed = worker.acquire("import").lease(Duration::from_hours(12)).await?;
    worker.acquire("report").await?.release().await?;

    for (key, holder) in held(&locks).await? {
        println!("{key}: {holder}");
        // It does not stop the holder's work: be sure that it is dead, or that what it writes is fenced.
        let freed = locks.force_release(&key, &holder).await?;
        println!("{}", if freed { "freed" } else { "it has changed hands since: look again" });
    }

    let lock = locks.acquire("import").await?;
    println!("acquired, with a larger fence: {}", lock.fence() > crashed.fence());
    lock.release().await?;
    match crashed.release().await {
        Err(error) if error.is_lost() => println!("had it been alive: {error}"),
        other => other?,
    }
    Ok(())
}
