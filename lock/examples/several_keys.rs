//! Several keys, all or none: a transfer holds both accounts, and two transfers cannot wait for each other forever.
//!
//! The example needs no AWS: its engine is in the process. For your own table, replace the first lines of `main` with
//! `Locks::from_env()`.
//!
//! ```sh
//! cargo run --package lambda-lock --example several_keys --features embedded
//! ```

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Error, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let engine = DynamoDb::new()?;
    let locks = Locks::builder(engine.client(), "locks").holder("a transfer").build()?;
    locks.create_table().await?;

    // The order of the keys does not matter. Each key has a fence.
    let accounts = locks.acquire_all(["account#2", "account#1"]).await?;
    for key in accounts.keys() {
        println!("holds `{key}` with fence {}", accounts.fence_of(key).unwrap_or_default());
    }

    // A refusal names every key in the way. `account#3` stays free.
    match locks.acquire_all(["account#1", "account#3"]).await {
        Err(error) if error.is_held() => println!("refused: {error}"),
        other => return other.map(drop),
    }
    let other = locks.acquire("account#3").await?;

    // One transaction frees both keys.
    accounts.release().await?;
    other.release().await
}
