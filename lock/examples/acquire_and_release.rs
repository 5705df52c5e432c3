//! A lock by hand: tried, waited for, and held around a piece of work.
//!
//! Runs by itself, on an engine in its process; `Locks::from_env()` in place of the first lines of `main` takes a table
//! of yours:
//!
//! ```sh
//! cargo run --package lambda-lock --example acquire_and_release --features embedded
//! ```

use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Backoff, Error, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let engine = DynamoDb::new()?;
    let locks = Locks::builder(engine.client(), "locks").holder("the first process").build()?;
    let elsewhere = Locks::builder(engine.client(), "locks").holder("the second process").build()?;
    locks.create_table().await?;

    // Try: one request, and nothing but a yes or a no.
    let Some(lock) = locks.try_acquire("nightly-report").await? else {
        println!("someone else is at it");
        return Ok(());
    };
    println!("acquired `{}` with fence {}, for {:?} at the most", lock.key(), lock.fence(), lock.remaining());

    // Whoever is refused is told by whom, and until when at the latest.
    match elsewhere.acquire("nightly-report").await {
        Err(error) if error.is_held() => println!("refused: {error}"),
        other => return other.map(drop),
    }

    // Wait: the release below lets the waiter in, long before the lease would have ended.
    let (waited, released) = tokio::join!(
        elsewhere.acquire("nightly-report").wait(Backoff::default().up_to(Duration::from_secs(5))).into_future(),
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            lock.set_data("page 12"); // for the next holder, written by the release
            lock.release().await
        },
    );
    released?;
    let lock = waited?;
    println!("the waiter has it, with fence {}, and was left {:?}", lock.fence(), lock.data().and_then(|d| d.as_str()));
    lock.release().await?;

    // Run: released when the work returns, fails or panics; cancelled when the lease ends.
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
