//! Fencing: a holder is paused for longer than its lease, resumes, and writes as if it still held the lock. Its write
//! is refused.
//!
//! The example needs no AWS: its engine is in the process.
//!
//! ```sh
//! cargo run --package lambda-lock --example fencing --features embedded
//! ```

use std::error::Error;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Lock, Locks, request_token};

const TABLE: &str = "shop";

/// Writes within DynamoDB, only if the lock is still held at the time of the write. The clock of the paused process
/// does not matter, because the row names another owner by then.
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
        .client_request_token(request_token())
        .send()
        .await?;
    Ok(())
}

/// Writes anywhere else: the receiver keeps the largest fence that it has seen, and refuses a smaller one. Here the
/// receiver is a row and the rule is its condition. In SQL the rule is `… WHERE fence <= $1`.
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

fn describe(written: &Result<(), Box<dyn Error>>) -> &'static str {
    if written.is_ok() { "written" } else { "refused" }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = DynamoDb::new()?.client();
    // There is one clock in this process, so the skew is 0. The lease below is short, so that the pause is short too.
    let locks = Locks::builder(client.clone(), TABLE).key_prefix("lock#").clock_skew(Duration::ZERO).build()?;
    locks.create_table().await?;

    let paused = locks.acquire("reports").lease(Duration::from_millis(100)).await?;
    println!("one holder has fence {} and is paused for longer than its lease", paused.fence());
    tokio::time::sleep(Duration::from_millis(150)).await;

    let next = locks.acquire("reports").await?;
    println!("another holder has fence {}", next.fence());
    println!("  in a transaction: {}", describe(&write_in_a_transaction(&client, &next, "new").await));
    println!("  with the fence:   {}", describe(&write_with_the_fence(&client, &next, "new").await));

    println!("the first holder resumes");
    println!("  in a transaction: {}", describe(&write_in_a_transaction(&client, &paused, "old").await));
    println!("  with the fence:   {}", describe(&write_with_the_fence(&client, &paused, "old").await));
    match paused.release().await {
        Err(error) if error.is_lost() => println!("  its release: {error}"),
        other => other?,
    }
    next.release().await?;
    Ok(())
}
