//! Lists who holds which keys, and frees a key by hand: its holder has crashed, and its lease would end too late.
//!
//! The example needs no AWS: its engine is in the process. For your own table use the program: `lambda-lock list
//! --held` and `lambda-lock release --force`.
//!
//! ```sh
//! cargo run --package lambda-lock --example list_and_free --features embedded
//! ```

use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Error, Holder, Locks};

/// Returns the keys that are held now. It reads the whole table, a page at a time (IAM action `dynamodb:Scan`). For one
/// key, `Locks::get` costs one read.
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
        // A release does not stop the holder's work. Make sure that the holder has crashed, or that its writes are
        // fenced.
        let freed = locks.force_release(&key, &holder).await?;
        println!("{}", if freed { "freed" } else { "not freed: its holder has changed since; look again" });
    }

    let lock = locks.acquire("import").await?;
    println!("acquired, with a larger fence: {}", lock.fence() > crashed.fence());
    lock.release().await?;
    match crashed.release().await {
        Err(error) if error.is_lost() => println!("a holder that is still alive gets: {error}"),
        other => other?,
    }
    Ok(())
}
