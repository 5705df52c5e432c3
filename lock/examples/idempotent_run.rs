//! Work that is done once for each key, outside of Lambda: in a service, a job, or a container.
//!
//! The example needs no AWS: its engine is in the process.
//!
//! ```sh
//! cargo run --package lambda-lock --example idempotent_run --features idempotency,embedded
//! ```

use std::error::Error;
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{ErrorKind, HandlerError, Idempotency, Locks, Wait};
use serde::{Deserialize, Serialize};

#[derive(Clone)]
struct Order {
    id: &'static str,
    amount: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Receipt {
    number: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = Locks::builder(DynamoDb::new()?.client(), "records").build()?;
    locks.create_table().await?;

    let orders = Idempotency::new(locks, OnMissingKey::Reject, |order: &Order| Some(order.id))
        .prefix("orders") // two operations that share a prefix share their records
        .validate(|order| order.amount)
        .window(Duration::from_hours(24))
        .lease(Duration::from_secs(10)) // the longest time to charge an order
        .wait(Wait::in_turn()) // a duplicate waits for the result of a charge in progress
        .on_replay(|receipt, _| println!("  replayed: {receipt:?}"));
    let order = Order { id: "o-17", amount: 200 };

    println!("twice at once:");
    let (one, other) = tokio::join!(
        orders.run(&order, async |_| charge(&order).await),
        orders.run(&order, async |_| charge(&order).await),
    );
    println!("  both have number {} and {}", one?.number, other?.number);

    println!("once later:");
    orders.run(&order, async |_| charge(&order).await).await?;

    println!("the same id with a different amount:");
    let changed = Order { amount: 300, ..order };
    match orders.run(&changed, async |_| charge(&changed).await).await {
        Err(HandlerError::Lock(error)) if error.kind() == ErrorKind::Mismatch => println!("  refused: {error}"),
        other => println!("  {other:?}"),
    }
    Ok(())
}

async fn charge(order: &Order) -> Result<Receipt, std::io::Error> {
    println!("  charging {} for {}", order.amount, order.id);
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(Receipt { number: 1 })
}
