//! Exactly once within DynamoDB: one transaction writes the order and completes the record of the run. Both exist or
//! neither does, no matter when a process crashes.
//!
//! The example needs no AWS: its engine is in the process.
//!
//! ```sh
//! cargo run --package lambda-lock --example commit_with_the_business_write --features idempotency,embedded
//! ```

use std::error::Error;
use std::io;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use lambda_lock::embedded::DynamoDb;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Idempotency, Locks, Run, request_token};

type Failure = Box<dyn Error + Send + Sync>;

/// The table of orders and records. They can also be in two tables, because a DynamoDB transaction can span tables.
const TABLE: &str = "shop";

/// Writes the order and completes the run with the result, in one transaction.
async fn place(client: &Client, id: &str, run: &Run) -> Result<u64, Failure> {
    let number = 17;
    let order = Put::builder()
        .table_name(TABLE)
        .item("id", AttributeValue::S(format!("order#{id}")))
        .item("number", AttributeValue::N(number.to_string()))
        .build()?;
    client
        .transact_write_items()
        .transact_items(TransactWriteItem::builder().put(order).build())
        .transact_items(run.complete_in(&number)?)
        .client_request_token(request_token())
        .send()
        .await?;
    Ok(number)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let client = DynamoDb::new()?.client();
    let locks = Locks::builder(client.clone(), TABLE).key_prefix("record#").build()?;
    locks.create_table().await?;
    let orders =
        Idempotency::new(locks, OnMissingKey::Reject, |id: &&str| Some(*id)).on_replay(|number: &mut u64, first| {
            println!("replayed {number}, stored by {}", first.name().unwrap_or("someone"));
        });

    // The transaction is committed, but its answer is lost. The record has the result.
    let number = orders
        .run(&"o-1", async |run| {
            place(&client, "o-1", run).await.map_err(io::Error::other)?;
            Err(io::Error::other("the connection was lost"))
        })
        .await?;
    println!("placed, with number {number}");

    // A duplicate does not run.
    let again = orders.run(&"o-1", async |run| place(&client, "o-1", run).await.map_err(io::Error::other)).await?;
    assert_eq!(number, again);

    // If nothing was committed, a failure leaves neither an order nor a result.
    let failed = orders.run(&"o-2", async |_| Err(io::Error::other("no tea left"))).await;
    println!("failed: {}", failed.map_or_else(|error| error.to_string(), |number| number.to_string()));
    let number = orders.run(&"o-2", async |run| place(&client, "o-2", run).await.map_err(io::Error::other)).await?;
    println!("tried again: placed, with number {number}");
    Ok(())
}
