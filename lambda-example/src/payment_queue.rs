//! A consumer of queues. It makes each payment once, by the payment's id, no matter how often and in how many messages
//! the payment arrives. The payment is a row of the table, so one transaction commits it together with the record of
//! the run.

use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Idempotency, Locks, Run, SqsConsumer, WithRun, request_token};
use lambda_runtime::{Diagnostic, Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower::{Layer, Service, service_fn};

use crate::failure::Failure;
use crate::settings::Simulation;

/// The body of a message.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Payment {
    /// The payment's id. Another message with the same id is the same payment.
    pub id: String,
    /// The account that receives the payment.
    pub account: String,
    /// The amount, in the smallest unit of the currency.
    pub amount: u64,
    /// The time that the bank takes, in milliseconds, as a simulation.
    #[serde(default)]
    pub paying_ms: u64,
    /// The number of deliveries of the message at which the bank is unreachable, before it is reachable, as a simulation.
    #[serde(default)]
    pub failing_deliveries: u64,
    /// Whether the handler panics before it makes the payment, as a simulation of a bug.
    #[serde(default)]
    pub panics: bool,
}

/// The store of payments: rows of the data table, under the function's own prefix.
#[derive(Clone, Debug)]
pub struct Payments {
    client: Client,
    table: String,
    prefix: String,
}

impl Payments {
    /// Creates a store in `table`, in rows whose `id` begins with `prefix`.
    pub fn new(client: Client, table: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { client, table: table.into(), prefix: prefix.into() }
    }

    /// Makes the payment, counts it and completes the run, in one transaction. So a lost answer or a crash cannot make
    /// it twice.
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
            .client_request_token(request_token())
            .send()
            .await
            .map_err(not_made)?;
        Ok(())
    }
}

/// A redrive gives a message a new id. So the key is the payment's, and the window covers a redrive from the dead-letter queue
/// of the FIFO queue: the queue, the dead-letter queue and the queue again keep a message for up to 14 days each.
const WINDOW: Duration = Duration::from_hours(43 * 24);
/// `maxReceiveCount` of the queue in the template.
const DELIVERIES: u32 = 5;

/// Returns the function: the consumer, with the handler of one payment.
#[must_use]
pub fn payment_queue(
    locks: Locks,
    payments: Payments,
    queues: aws_sdk_sqs::Client,
    simulation: Simulation,
) -> impl Service<
    LambdaEvent<SqsEvent>,
    Response = SqsBatchResponse,
    Error = Diagnostic,
    Future: Future<Output = Result<SqsBatchResponse, Diagnostic>> + Send,
> + Clone
+ Send {
    let payments = Arc::new(payments);
    let once =
        Idempotency::new(locks, OnMissingKey::Reject, |message: &SqsMessage<Payment>| Some(message.body.id.clone()))
            // A payment is the same in both queues. Without a prefix, each queue would have records of its own.
            .prefix("idempotency")
            .window(WINDOW)
            // The same id with another amount is a mistake. It becomes a dead letter, for a person to look into.
            .validate(|message| json!([message.body.account, message.body.amount]));
    SqsConsumer::new(once)
        .hide_while_in_progress(queues)
        .max_receive_count(DELIVERIES)
        .layer(service_fn(move |message| pay(Arc::clone(&payments), simulation, message)))
}

async fn pay(
    payments: Arc<Payments>,
    simulation: Simulation,
    message: WithRun<SqsMessage<Payment>>,
) -> Result<(), Failure> {
    let WithRun { input: SqsMessage { body: payment, record, .. }, run, .. } = message;
    let deliveries = record.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok());
    if simulation.fails(deliveries.unwrap_or(1) <= payment.failing_deliveries) {
        return Err(not_made("the bank is unreachable"));
    }
    simulation.work(payment.paying_ms).await;
    assert!(!simulation.fails(payment.panics), "a bug in the payment");
    payments.make(&payment, &run).await?;
    tracing::info!(payment = payment.id, "paid");
    Ok(())
}

fn not_made(error: impl Into<Error>) -> Failure {
    Failure::new("PaymentNotMade", error)
}
