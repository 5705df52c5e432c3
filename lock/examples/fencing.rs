//! Fencing: a holder that was paused for longer than its lease wakes up, believes that it still holds the lock, and
//! writes. Its write is refused.
//!
//! Runs by itself, on an engine in its process:
//!
//! ```sh
//! cargo run --package lambda-lock --example fencing --features embedded
//! ```

use std::error::Error;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Lock, Locks};

const TABLE: &str = "shop";

/// Inside DynamoDB: the report is written only if the lock is still held when it is. No clock of a paused process comes
/// into it, because the row then names another owner.
async fn write_in_a_transaction(client: &Client, lock: &Lock, text: &str) -> Result<(), Box<dyn Error>> {
    let report = Update::builder()
        .table_name(TABLE)
        .key("id", AttributeValue::S("report#sales".to_owned()))
        .update_expression("SET content = :text")
        .expression_attribute_values(":text", AttributeValue::S(text.to_owned()))
        .build()?;
    client
        .transact_write_items()
        .transact_items(TransactWriteItem::builder().condition_check(lock.condition_check()?).build())
        .transact_items(TransactWriteItem::builder().update(report).build())
        .send()
        .await?;
    Ok(())
}

/// Anywhere else: the receiver keeps the largest fence that it has seen and refuses a smaller one. Here the receiver is
/// a row, and the rule its condition; in SQL it is `… WHERE fence <= $1`.
async fn write_with_the_fence(client: &Client, lock: &Lock, text: &str) -> Result<(), Box<dyn Error>> {
    client
        .update_item()
        .table_name(TABLE)
        .key("id", AttributeValue::S("report#costs".to_owned()))
        .update_expression("SET content = :text, fence = :fence")
        .condition_expression("attribute_not_exists(fence) OR fence <= :fence")
        .expression_attribute_values(":text", AttributeValue::S(text.to_owned()))
        .expression_attribute_values(":fence", AttributeValue::N(lock.fence().to_string()))
        .send()
        .await?;
    Ok(())
}

fn told(written: &Result<(), Box<dyn Error>>) -> &'static str {
    if written.is_ok() { "written" } else { "refused" }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = DynamoDb::new()?.client();
    // One clock in this process, so no skew; a short lease, so that the pause below is short.
    let locks = Locks::builder(client.clone(), TABLE).key_prefix("lock#").clock_skew(Duration::ZERO).build()?;
    locks.create_table().await?;

    let paused = locks.acquire("reports").lease(Duration::from_millis(100)).await?;
    println!("one holder has fence {}, and is paused for longer than its lease", paused.fence());
    tokio::time::sleep(Duration::from_millis(150)).await;

    let next = locks.acquire("reports").await?;
    println!("another has fence {}", next.fence());
    println!("  in a transaction: {}", told(&write_in_a_transaction(&client, &next, "new").await));
    println!("  with the fence:   {}", told(&write_with_the_fence(&client, &next, "new").await));

    println!("the first one wakes up");
    println!("  in a transaction: {}", told(&write_in_a_transaction(&client, &paused, "old").await));
    println!("  with the fence:   {}", told(&write_with_the_fence(&client, &paused, "old").await));
    match paused.release().await {
        Err(error) if error.is_lost() => println!("  its release: {error}"),
        other => other?,
    }
    next.release().await?;
    Ok(())
}
