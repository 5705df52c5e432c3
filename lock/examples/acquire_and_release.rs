//! Three ways to use a lock: try to acquire it, wait for it, and run work under it.
//!
//! The example needs no AWS: its engine is in the process. For your own table, replace the first lines of `main` with
//! `Locks::from_env()`.
//!
//! ```sh
//! cargo run --package lambda-lock --example acquire_and_release --features embedded
//! ```

use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Error, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let engine = DynamoDb::new()?;
    let locks = Locks::builder(engine.client(), "locks").holder("the first process").build()?;
    let elsewhere = Locks::builder(engine.client(), "locks").holder("the second process").build()?;
    locks.create_table().await?;

    // Try: one request, whose answer is yes or no.
    let Some(lock) = locks.try_acquire("nightly-report").await? else {
        println!("another holder has the lock");
        return Ok(());
    };
    println!("acquired `{}` with fence {}, for at most {:?}", lock.key(), lock.fence(), lock.remaining());

    // A refusal names the holder, and the latest end of its lease.
    match elsewhere.acquire("nightly-report").await {
        Err(error) if error.is_held() => println!("refused: {error}"),
        other => return other.map(drop),
    }

    // Wait: the waiter gets the lock at the release below, long before the lease would have ended.
    let (waited, released) =
        tokio::join!(elsewhere.acquire("nightly-report").wait(Duration::from_secs(5)).into_future(), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            lock.set_data("page 12"); // for the next holder, written by the release
            lock.release().await
        });
    released?;
    let lock = waited?;
    println!(
        "the waiter has the lock with fence {} and the data {:?}",
        lock.fence(),
        lock.data().and_then(|d| d.as_str())
    );
    lock.release().await?;

    // Run: the lock is released when the work returns, fails or panics. The work is cancelled when the lease ends.
    let rows = locks
        .acquire("nightly-report")
        .lease(Duration::from_secs(10))
        .run(async |lock| write_report(lock.fence()).await)
        .await?;
    println!("wrote {rows} rows");
    Ok(())
}

async fn write_report(_fence: u64) -> u32 {
    tokio::time::sleep(Duration::from_millis(10)).await;
    42
}
