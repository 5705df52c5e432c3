//! A Lambda function that consumes an SQS queue, standard or FIFO. It makes each payment once, no matter how often and
//! in how many messages the payment arrives. Only the messages that failed return to the queue.
//!
//! Use it as the `main.rs` of a function for the runtime `provided.al2023`. It needs the variable `LOCK_TABLE_NAME`,
//! the IAM action `dynamodb:UpdateItem` on that table and, besides the actions that every consumer needs,
//! `sqs:ChangeMessageVisibility` on the queue. Turn `ReportBatchItemFailures` on in the event source mapping, and give
//! the queue a dead-letter queue. On your machine it runs with any DynamoDB that has the table:
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
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Idempotency, Locks, SqsConsumer};
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

/// Makes a payment. An error returns this message to the queue, and no other.
async fn pay(message: SqsMessage<Payment>) -> Result<(), Error> {
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
    let payments = Idempotency::new(Locks::from_env().await?, OnMissingKey::Reject, |message: &SqsMessage<Payment>| {
        Some(message.body.id.clone())
    })
    // Also covers a redrive: the queue, its dead-letter queue and the queue again keep a message for up to 14 days each.
    .window(Duration::from_hours(43 * 24))
    // A payment that takes longer is cancelled. After a crash, duplicates wait at most this long.
    .lease(Duration::from_secs(20));
    // To use the ids of SQS: `SqsConsumer::by_message_id`, or `by_deduplication_id` for a FIFO queue.
    let consumer = SqsConsumer::new(payments)
        .concurrency(5)
        // The time that a payment takes. With less time left, a message is not started and returns to the queue.
        .min_remaining_time(Duration::from_secs(3))
        .hide_while_in_progress(aws_sdk_sqs::Client::new(&config));
    Runtime::new(consumer.layer(service_fn(pay))).run().await
}
