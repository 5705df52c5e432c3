//! A Lambda function that consumes an SQS queue, standard or FIFO: each payment is made once, however often and in
//! however many messages it comes, and exactly the messages that failed go back.
//!
//! As the `main.rs` of a function, for the runtime `provided.al2023`: with the variable `LOCK_TABLE_NAME`, the IAM actions
//! `dynamodb:UpdateItem` on that table and, beside those that every consumer needs, `sqs:ChangeMessageVisibility` on the
//! queue. Turn `ReportBatchItemFailures` on in the event source mapping, and give the queue a dead-letter queue. On this
//! machine, against any DynamoDB that has the table:
//!
//! ```sh
//! export LOCK_TABLE_NAME=locks RUST_LOG=info
//! cargo lambda watch --package lambda-lock --features sqs --example sqs_consumer &
//! cargo lambda invoke --data-ascii '{"Records": [
//!     {"messageId": "1", "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:payments",
//!      "body": "{\"id\": \"rent\", \"amount\": 700}"}]}'
//! ```

use std::time::Duration;

use aws_config::BehaviorVersion;
use lambda_lock::{Idempotency, Locks, Message, OnMissingKey, SqsConsumer};
use lambda_runtime::tower::Layer;
use lambda_runtime::{Error, Runtime, service_fn};
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// The body of a message. Another message with the same id is the same payment.
#[derive(Deserialize)]
struct Payment {
    id: String,
    amount: u64,
}

/// An error sends this message back, and no other.
async fn pay(message: Message<Payment>) -> Result<(), Error> {
    let Payment { id, amount } = &message.body;
    if *amount == 0 {
        return Err("nothing to pay".into());
    }
    tracing::info!(payment = id, amount, message_id = message.message_id(), "paid");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().json().with_env_filter(EnvFilter::from_default_env()).without_time().init();
    let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
    let payments = Idempotency::new(Locks::from_env().await?, OnMissingKey::Reject, |message: &Message<Payment>| {
        Some(message.body.id.clone())
    })
    // As long as SQS keeps a message in a queue at the most.
    .window(Duration::from_hours(14 * 24))
    // A payment that takes longer is cancelled. A crash keeps its duplicates waiting no longer than this.
    .lease(Duration::from_secs(20));
    // For the ids that SQS gives: `SqsConsumer::by_message_id`, or in a FIFO queue `by_deduplication_id`.
    let consumer = SqsConsumer::new(payments)
        .concurrency(5)
        // What a payment takes: with less time left than this, a message is not begun but goes back.
        .min_remaining_time(Duration::from_secs(3))
        .hide_while_in_progress(aws_sdk_sqs::Client::new(&config));
    Runtime::new(consumer.layer(service_fn(pay))).run().await
}
