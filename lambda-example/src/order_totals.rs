//! A consumer of the data table's stream. It counts each order of `order-api` once, no matter how often Lambda delivers the
//! record of the order. The count is a row of the table, so one transaction commits it together with the record of the
//! run.

use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::dynamodb::Event;
use aws_lambda_events::streams::DynamoDbEventResponse;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use lambda_lock::streams::{DynamoDbRecord, StreamConsumer};
use lambda_lock::{Locks, Run, WithRun, request_token};
use lambda_runtime::{Diagnostic, Error, LambdaEvent};
use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tower::{Layer, Service, service_fn};

use crate::failure::Failure;
use crate::order_api::Order;

/// The number and the quantity of the orders of each item: rows of the data table, under the function's own prefix.
#[derive(Clone, Debug)]
pub struct Totals {
    client: Client,
    table: String,
    prefix: String,
}

impl Totals {
    /// Creates a store in `table`, in rows whose `id` begins with `prefix`.
    pub fn new(client: Client, table: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { client, table: table.into(), prefix: prefix.into() }
    }

    /// Returns the key of an item's total. A long item is hashed, because it would block the shard: DynamoDB rejects a key of
    /// more than 2048 bytes. Hashes have a prefix of their own, so no item has the key of another one.
    fn key(&self, item: &str) -> String {
        if item.len() <= LONGEST_ITEM {
            return format!("{}total#{item}", self.prefix);
        }
        let hash: Vec<_> = Sha256::digest(item).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}hashed-total#{}", self.prefix, hash.concat())
    }

    /// Counts the order and completes the run, in one transaction. So a lost answer or a crash cannot count it twice.
    async fn add(&self, order: &Order, run: &Run) -> Result<(), Failure> {
        let row = Update::builder()
            .table_name(&self.table)
            .key("id", AttributeValue::S(self.key(&order.item)))
            .update_expression("ADD orders :one, quantity :quantity")
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .expression_attribute_values(":quantity", AttributeValue::N(order.quantity.to_string()))
            .build()
            .map_err(not_counted)?;
        let transaction = self
            .client
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().update(row).build())
            .transact_items(run.complete_in(&()).map_err(not_counted)?);
        let mut tries = 1;
        loop {
            match transaction.clone().client_request_token(request_token()).send().await {
                Err(error) if tries < MAX_TRIES && error.as_service_error().is_some_and(is_conflict) => {
                    tries += 1;
                    sleep(PAUSE).await;
                }
                done => return done.map(drop).map_err(not_counted),
            }
        }
    }
}

/// The largest item that is a part of a key as it is, in bytes. The prefix needs some of DynamoDB's 2048.
const LONGEST_ITEM: usize = 1024;

/// Invocations for different shards can update the total of an item at once. The SDK does not retry the conflict.
const MAX_TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

fn is_conflict(error: &TransactWriteItemsError) -> bool {
    let TransactWriteItemsError::TransactionCanceledException(cancelled) = error else { return false };
    cancelled.cancellation_reasons().iter().any(|reason| reason.code() == Some("TransactionConflict"))
}

/// How long a crash delays the next delivery, without the clock skew. An order takes milliseconds, or a second more
/// after a silent connection.
const LEASE: Duration = Duration::from_secs(2);

/// Returns the function: the consumer, with the handler of one order.
#[must_use]
pub fn order_totals(
    locks: Locks,
    totals: Totals,
) -> impl Service<
    LambdaEvent<Event>,
    Response = DynamoDbEventResponse,
    Error = Diagnostic,
    Future: Future<Output = Result<DynamoDbEventResponse, Diagnostic>> + Send,
> + Clone
+ Send {
    let totals = Arc::new(totals);
    StreamConsumer::by_event_id(locks)
        // Two transactions at once on the total of an item conflict. This prevents conflicts within a batch.
        .concurrency(1)
        .lease(LEASE)
        .layer(service_fn(move |record| count(Arc::clone(&totals), record)))
}

async fn count(totals: Arc<Totals>, record: WithRun<DynamoDbRecord<Order>>) -> Result<(), Failure> {
    let WithRun { input: record, run, .. } = record;
    // The mapping filters, so only its mistakes come here.
    let Some(order) = record.new_image.filter(|_| record.record.event_name == "INSERT") else {
        return Ok(());
    };
    totals.add(&order, &run).await?;
    tracing::info!(order = order.id, "counted");
    Ok(())
}

fn not_counted(error: impl Into<Error>) -> Failure {
    Failure::new("OrderNotCounted", error)
}
