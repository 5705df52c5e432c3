//! An HTTP API behind a function URL. `POST /orders` places an order once for each `Idempotency-Key`, no matter how
//! often the client sends the request.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::lambda_function_urls::{LambdaFunctionUrlRequest, LambdaFunctionUrlResponse};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError as Refused;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use lambda_lock::{HandlerError, Idempotency, IdempotentLayer, Locks, OnMissingKey, RecordFormat, Run, WithRun};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::failure::{self, Failure};

/// The maximum size of a request body, in bytes. The order's row and its record each hold the order, and a DynamoDB row
/// is at most 400 KB.
const LARGEST_ORDER: usize = 256 * 1024;

/// The body of a request.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NewOrder {
    /// The ordered item.
    pub item: String,
    /// The number of items.
    pub quantity: NonZeroU32,
    /// The time to check the stock, in milliseconds. The example only waits that long.
    #[serde(default)]
    pub checking_ms: u64,
}

/// The body of a response, and the content of an order's row.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Order {
    /// Unique to the order.
    pub id: String,
    /// The ordered item.
    pub item: String,
    /// The number of items.
    pub quantity: NonZeroU32,
}

/// The store of orders: rows in the lock table, under the function's own prefix.
#[derive(Clone, Debug)]
pub struct Orders {
    client: Client,
    table: String,
    prefix: String,
}

impl Orders {
    /// Creates a store in `table`, in rows whose `id` begins with `prefix`.
    pub fn new(client: Client, table: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { client, table: table.into(), prefix: prefix.into() }
    }

    /// Writes the order and completes the run in one transaction. So every order has a stored answer, and every stored
    /// answer has an order.
    async fn write(&self, placed: &Placed, run: &Run) -> Result<(), Failure> {
        let Order { id, item, quantity } = &placed.order;
        let row = Put::builder()
            .table_name(&self.table)
            .item("id", AttributeValue::S(format!("{}order#{id}", self.prefix)))
            .item("item", AttributeValue::S(item.clone()))
            .item("quantity", AttributeValue::N(quantity.to_string()))
            .build()
            .map_err(not_placed)?;
        self.client
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().put(row).build())
            .transact_items(run.complete_in(placed).map_err(not_placed)?)
            .send()
            .await
            .map_err(|error| {
                let is_temporary = is_temporary(&error);
                not_placed(error).temporary_if(is_temporary)
            })?;
        Ok(())
    }
}

fn not_placed(error: impl Into<Error>) -> Failure {
    Failure::new("OrderNotPlaced", error)
}

/// Returns whether a later transaction can succeed, or another run of the same order has begun.
fn is_temporary(error: &SdkError<Refused>) -> bool {
    let refusal = match error {
        SdkError::ServiceError(refusal) => refusal,
        SdkError::ConstructionFailure(_) => return false,
        // The transaction may have been committed.
        _ => return true,
    };
    match refusal.err() {
        Refused::TransactionCanceledException(cancelled) => {
            cancelled.cancellation_reasons().iter().filter_map(|reason| reason.code()).any(|code| {
                ["ConditionalCheckFailed", "ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"]
                    .contains(&code)
            })
        }
        Refused::ProvisionedThroughputExceededException(_)
        | Refused::RequestLimitExceeded(_)
        | Refused::ThrottlingException(_)
        | Refused::TransactionInProgressException(_) => true,
        _ => refusal.raw().status().is_server_error(),
    }
}

/// A request to place an order.
#[derive(Debug)]
struct Request {
    key: Option<String>,
    order: NewOrder,
}

/// The result that is stored and replayed.
#[derive(Debug, Deserialize, Serialize)]
struct Placed {
    order: Order,
    #[serde(skip)]
    is_replay: bool,
}

/// Returns the function: HTTP on the outside, the idempotent handler on the inside.
///
/// All callers share one space of keys. For a public API, make the caller part of the key.
#[must_use]
pub fn order_api(
    locks: Locks,
    orders: Orders,
) -> impl Service<
    LambdaEvent<LambdaFunctionUrlRequest>,
    Response = LambdaFunctionUrlResponse,
    Error = Infallible,
    Future: Future<Output = Result<LambdaFunctionUrlResponse, Infallible>> + Send,
> + Clone
+ Send {
    let orders = Arc::new(orders);
    let once = Idempotency::new(locks, OnMissingKey::Reject, |event: &LambdaEvent<Request>| event.payload.key.clone())
        .prefix("idempotency")
        // A client's key may have any length.
        .format(RecordFormat::Hashed)
        .window(Duration::from_hours(24))
        .validate(|event| json!([event.payload.order.item, event.payload.order.quantity]))
        .on_replay(|placed: &mut Placed, _| placed.is_replay = true);
    let place = IdempotentLayer::new(once).layer(service_fn(move |event| place(Arc::clone(&orders), event)));
    service_fn(move |event| respond(place.clone(), event))
}

async fn respond(
    place: impl Service<LambdaEvent<Request>, Response = Placed, Error = HandlerError<Failure>>,
    LambdaEvent { payload, context }: LambdaEvent<LambdaFunctionUrlRequest>,
) -> Result<LambdaFunctionUrlResponse, Infallible> {
    let answer = match read(&payload) {
        Ok(request) => match place.oneshot(LambdaEvent::new(request, context)).await {
            Ok(placed) => placed.into(),
            Err(error) => refusal(&error),
        },
        Err(refused) => refused,
    };
    Ok(answer.into())
}

async fn place(
    orders: Arc<Orders>,
    WithRun { input, run, .. }: WithRun<LambdaEvent<Request>>,
) -> Result<Placed, Failure> {
    let NewOrder { item, quantity, checking_ms } = input.payload.order;
    tokio::time::sleep(Duration::from_millis(checking_ms)).await;
    // The owner is random and unique to the run.
    let order = Order { id: run.lock().owner().to_owned(), item, quantity };
    let placed = Placed { order, is_replay: false };
    orders.write(&placed, &run).await?;
    tracing::info!(order = placed.order.id, "placed");
    Ok(placed)
}

fn read(request: &LambdaFunctionUrlRequest) -> Result<Request, Answer> {
    if request.raw_path.as_deref() != Some("/orders") {
        return Err(Answer::message(StatusCode::NOT_FOUND, "the only path is /orders"));
    }
    if request.request_context.http.method.as_deref() != Some("POST") {
        return Err(Answer::message(StatusCode::METHOD_NOT_ALLOWED, "the only method is POST").with(ALLOW, "POST"));
    }
    // Lambda encodes every body whose Content-Type is not text.
    if request.is_base64_encoded {
        return Err(Answer::message(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json"));
    }
    let body = request.body.as_deref().unwrap_or_default();
    if body.len() > LARGEST_ORDER {
        let message = format!("the order has more than {LARGEST_ORDER} bytes");
        return Err(Answer::message(StatusCode::PAYLOAD_TOO_LARGE, &message));
    }
    let order = serde_json::from_str(body).map_err(|_| {
        Answer::message(
            StatusCode::BAD_REQUEST,
            r#"the body must be {"item": "…", "quantity": …}, with a quantity of at least 1"#,
        )
    })?;
    let key = request.headers.get("idempotency-key").map(HeaderValue::to_str).transpose().map_err(|_| {
        let message = "the header Idempotency-Key has a character other than visible ASCII and space";
        Answer::message(StatusCode::BAD_REQUEST, message)
    })?;
    Ok(Request { key: key.map(str::to_owned), order })
}

/// Returns the answer to an error. The log has the details that the client must not see.
fn refusal(error: &HandlerError<Failure>) -> Answer {
    match error {
        HandlerError::Lock(error) if error.is_key_missing() => Answer::message(
            StatusCode::BAD_REQUEST,
            "the header Idempotency-Key is missing or empty: send a key that is unique to the order",
        ),
        HandlerError::Lock(error) if error.is_mismatch() => {
            Answer::message(StatusCode::UNPROCESSABLE_ENTITY, "the Idempotency-Key was used for a different order")
        }
        HandlerError::Lock(error) if error.is_in_progress() => {
            Answer::message(StatusCode::CONFLICT, "another request with this key is placing the order")
                .with(RETRY_AFTER, "1")
        }
        error => {
            tracing::error!(error = failure::line(error), "the order failed");
            let is_temporary = match error {
                HandlerError::Lock(error) => {
                    error.is_unavailable() || error.is_throttled() || error.is_conflict() || error.is_lost()
                }
                HandlerError::Handler(failure) => failure.is_temporary(),
                _ => false,
            };
            if is_temporary {
                Answer::message(StatusCode::SERVICE_UNAVAILABLE, "try again with the same key").with(RETRY_AFTER, "1")
            } else {
                Answer::message(StatusCode::INTERNAL_SERVER_ERROR, "the order failed")
            }
        }
    }
}

/// An HTTP response with a JSON body.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    body: String,
    header: Option<(HeaderName, &'static str)>,
}

impl Answer {
    fn message(status: StatusCode, message: &str) -> Self {
        Self { status, body: json!({ "message": message }).to_string(), header: None }
    }

    fn with(self, name: HeaderName, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }
}

impl From<Placed> for Answer {
    fn from(Placed { order, is_replay }: Placed) -> Self {
        let placed = Self { status: StatusCode::CREATED, body: json!(order).to_string(), header: None };
        if is_replay { placed.with(HeaderName::from_static("idempotency-replayed"), "true") } else { placed }
    }
}

impl From<Answer> for LambdaFunctionUrlResponse {
    fn from(answer: Answer) -> Self {
        let mut response = Self::default();
        response.status_code = answer.status.as_u16().into();
        response.headers.extend(answer.header.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.body = Some(answer.body);
        response
    }
}
