//! A consumer of queues: makes each payment once, by its own id, however often and in however many messages it comes. The
//! payment is a row here, and so it is committed together with the record that it was made.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use lambda_lock::{Idempotency, Locks, Message, OnMissingKey, Run, SqsConsumer, WithRun};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower::{Layer, Service, service_fn};

use crate::failure::Failure;

/// The body of a message.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Payment {
    /// Which payment it is. Another message with the same id is the same payment.
    pub id: String,
    /// Who is paid.
    pub account: String,
    /// How much, in the smallest unit of the currency.
    pub amount: u64,
    /// How long the bank takes, in milliseconds. There is none here: this stands for it.
    #[serde(default)]
    pub paying_ms: u64,
    /// At how many deliveries of the message the bank is out of reach before it is there.
    #[serde(default)]
    pub failing_deliveries: u64,
    /// Whether the handler panics before it makes the payment. It has no such bug: this stands for one.
    #[serde(default)]
    pub panics: bool,
}

/// Where the payments are kept: rows in the lock table, under the function's own prefix.
#[derive(Clone, Debug)]
pub struct Payments {
    client: Client,
    table: String,
    prefix: String,
}

impl Payments {
    /// Payments in `table`, in rows whose `id` begins with `prefix`.
    pub fn new(client: Client, table: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { client, table: table.into(), prefix: prefix.into() }
    }

    /// Makes the payment, counts it, and completes the run with it, in one transaction: whatever gets lost or crashes,
    /// it is not made twice.
    async fn make(&self, payment: &Payment, run: &Run) -> Result<(), Failure> {
        let row = Update::builder()
            .table_name(&self.table)
            .key("id", AttributeValue::S(format!("{}payment#{}", self.prefix, payment.id)))
            .update_expression("SET account = :account, amount = :amount ADD times :one")
            .expression_attribute_values(":account", AttributeValue::S(payment.account.clone()))
            .expression_attribute_values(":amount", AttributeValue::N(payment.amount.to_string()))
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .build()
            .map_err(not_made)?;
        self.client
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().update(row).build())
            .transact_items(run.complete_in(&()).map_err(not_made)?)
            .send()
            .await
            .map_err(not_made)?;
        Ok(())
    }
}

/// The longest that SQS keeps a message, be it in the queue or among its dead letters.
const LONGEST_RETENTION: Duration = Duration::from_hours(14 * 24);

/// The function: the handler of one payment under its consumer.
#[must_use]
pub fn payment_queue(
    locks: Locks,
    payments: Payments,
    queues: aws_sdk_sqs::Client,
) -> impl Service<
    LambdaEvent<SqsEvent>,
    Response = SqsBatchResponse,
    Error = Infallible,
    Future: Future<Output = Result<SqsBatchResponse, Infallible>> + Send,
> + Clone
+ Send {
    let payments = Arc::new(payments);
    let once =
        Idempotency::new(locks, OnMissingKey::Reject, |message: &Message<Payment>| Some(message.body.id.clone()))
            .prefix("idempotency")
            .window(LONGEST_RETENTION)
            // An id that comes with another amount is a mistake for people to look into, among the dead letters.
            .validate(|message| json!([message.body.account, message.body.amount]));
    SqsConsumer::new(once)
        .hide_while_in_progress(queues)
        .layer(service_fn(move |message| pay(Arc::clone(&payments), message)))
}

async fn pay(payments: Arc<Payments>, message: WithRun<Message<Payment>>) -> Result<(), Failure> {
    let WithRun { input: Message { body: payment, record, .. }, run, .. } = message;
    let deliveries = record.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok());
    if deliveries.unwrap_or(1) <= payment.failing_deliveries {
        return Err(not_made("the bank is out of reach"));
    }
    tokio::time::sleep(Duration::from_millis(payment.paying_ms)).await;
    assert!(!payment.panics, "a bug in the payment");
    payments.make(&payment, &run).await?;
    tracing::info!(payment = payment.id, "paid");
    Ok(())
}

fn not_made(error: impl Into<Error>) -> Failure {
    Failure::new("PaymentNotMade", error)
}
