//! A Lambda function whose retries get the first answer. An order that is sent twice is charged once.
//!
//! Use it as the `main.rs` of a function for the runtime `provided.al2023`. It needs the variable `LOCK_TABLE_NAME`,
//! and the IAM action `dynamodb:UpdateItem` on that table. On your machine it runs with any DynamoDB that has the
//! table:
//!
//! ```sh
//! export LOCK_TABLE_NAME=locks RUST_LOG=info
//! cargo lambda watch --package lambda-lock --features lambda --example idempotent_function &
//! cargo lambda invoke --data-ascii '{"id": "o-17", "item": "tea", "amount": 200}'
//! ```

use std::fmt;
use std::time::Duration;

use lambda_lock::idempotency::{OnMissingKey, StoredError};
use lambda_lock::{Idempotency, IdempotencyLayer, Locks, OnError};
use lambda_runtime::tower::Layer;
use lambda_runtime::{Diagnostic, Error, LambdaEvent, Runtime, service_fn};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing_subscriber::EnvFilter;

#[derive(Deserialize)]
struct Order {
    id: Option<String>,
    item: String,
    amount: u64,
}

/// The result that is stored, and replayed to every duplicate.
#[derive(Deserialize, Serialize)]
struct Receipt {
    number: String,
    amount: u64,
    #[serde(default)]
    replayed: bool,
}

#[derive(Debug)]
enum Failure {
    Declined,
    Unreachable,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Declined => "the card was declined",
            Self::Unreachable => "the bank did not answer",
        })
    }
}

/// The error that Lambda reports.
impl From<Failure> for Diagnostic {
    fn from(failure: Failure) -> Self {
        Self { error_type: format!("{failure:?}"), error_message: failure.to_string() }
    }
}

/// Charges the order. The handler needs no code for idempotency.
async fn charge(event: LambdaEvent<Order>) -> Result<Receipt, Failure> {
    let Order { item, amount, .. } = event.payload;
    match amount {
        0 => Err(Failure::Unreachable),
        1..1_000_000 => Ok(Receipt { number: format!("{item}-{}", event.context.request_id), amount, replayed: false }),
        _ => Err(Failure::Declined),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().json().with_env_filter(EnvFilter::from_default_env()).without_time().init();
    let orders = Idempotency::new(Locks::from_env().await?, OnMissingKey::Reject, |event: &LambdaEvent<Order>| {
        event.payload.id.clone()
    })
    // The time in which a client may send the order again.
    .window(Duration::from_hours(24))
    // The same id with a different order is a mistake of the client, not a duplicate.
    .validate(|event| json!([event.payload.item, event.payload.amount]))
    .on_error(|failure| match failure {
        // A retry would get the same answer.
        Failure::Declined => OnError::Store(StoredError::new("Declined", failure.to_string())),
        Failure::Unreachable => OnError::Release,
    })
    .on_replay(|receipt: &mut Receipt, _first| receipt.replayed = true)
    // Answers duplicates in the same environment without a request.
    .cache(256);
    Runtime::new(IdempotencyLayer::new(orders).layer(service_fn(charge))).run().await
}
