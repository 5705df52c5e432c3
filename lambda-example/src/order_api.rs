//! An HTTP API behind a function URL and API Gateway. `POST /orders` places an order once for each `Idempotency-Key` of a
//! caller, no matter how often the client sends the request.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError as Refused;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use lambda_http::{Body, Request, RequestExt, Response};
use lambda_lock::http::{Caller, HttpIdempotencyBody, HttpIdempotencyLayer, HttpRun};
use lambda_lock::metrics::PROBLEM;
use lambda_lock::{Locks, request_token};
use lambda_runtime::Error;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::failure::{self, Failure};
use crate::settings::Simulation;

/// The maximum size of a request body, in bytes. The JSON of the longest item takes at most 2,400 of them.
const LARGEST_ORDER: usize = 4096;

/// The longest item, in characters. Consumers of orders make keys from it.
const LONGEST_ITEM: usize = 200;

/// The lease of a request, a second shorter than the function's timeout. So a slow request is answered before Lambda ends
/// it.
const LEASE: Duration = Duration::from_secs(9);

/// The body of a request.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NewOrder {
    /// The ordered item.
    pub item: String,
    /// The number of items.
    pub quantity: NonZeroU32,
    /// The time to check the stock, in milliseconds, as a simulation.
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

/// The store of orders: rows of the data table, under the function's own prefix.
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

    /// Writes the order and completes the run with its answer in one transaction. So every order has a stored answer, and
    /// every stored answer has an order.
    async fn write(&self, order: &Order, answer: &Response<Body>, run: &HttpRun) -> Result<(), Failure> {
        let Order { id, item, quantity } = order;
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
            .transact_items(run.complete_in(answer).map_err(not_placed)?)
            .client_request_token(request_token())
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

/// The counter of requests that fail a check, by the status of the answer. The layer counts those that it refuses itself.
const REFUSED: &str = "order_api_refused";

/// The largest key of a client, in characters. API Gateway allows 10,240 bytes for all headers of a request.
const LONGEST_KEY: usize = 4096;

type Answer = Response<HttpIdempotencyBody<Body>>;

/// Returns the function: checks of the request on the outside, the idempotent handler on the inside. A request that fails a
/// check does not use its key.
#[must_use]
pub fn order_api(
    locks: Locks,
    orders: Orders,
    caller: Caller,
    simulation: Simulation,
) -> impl Service<Request, Response = Answer, Error = Infallible, Future: Future<Output = Result<Answer, Infallible>> + Send>
+ Clone
+ Send
+ 'static {
    metrics::describe_counter!(REFUSED, metrics::Unit::Count, "Requests that failed a check");
    let orders = Arc::new(orders);
    let once = HttpIdempotencyLayer::new(locks, caller).prefix("idempotency").max_key_length(LONGEST_KEY).lease(LEASE);
    let place = once.layer(service_fn(move |request| place(Arc::clone(&orders), simulation, request)));
    service_fn(move |request| respond(place.clone(), request))
}

async fn respond(
    place: impl Service<Request, Response = Answer, Error = Failure>,
    mut request: Request,
) -> Result<Answer, Infallible> {
    Ok(match check(&request) {
        Ok(order) => {
            request.extensions_mut().insert(order);
            place.oneshot(request).await.unwrap_or_else(|failure| failed(&failure))
        }
        Err((status, detail)) => {
            metrics::counter!(REFUSED, PROBLEM => status.as_str().to_owned()).increment(1);
            tracing::debug!(status = status.as_u16(), detail, "the request was refused");
            let refused = refusal(status, &detail);
            if status == StatusCode::METHOD_NOT_ALLOWED { with(refused, ALLOW, "POST") } else { refused }
        }
    })
}

async fn place(orders: Arc<Orders>, simulation: Simulation, request: Request) -> Result<Response<Body>, Failure> {
    let (Some(order), Some(run)) = (request.extensions().get::<NewOrder>(), request.extensions().get::<HttpRun>())
    else {
        return Err(not_placed("the request has no order or no run"));
    };
    simulation.work(order.checking_ms).await;
    // The owner is random and unique to the run.
    let id = run.lock().owner().to_owned();
    let order = Order { id, item: order.item.clone(), quantity: order.quantity };
    let answer = Response::builder()
        .status(StatusCode::CREATED)
        .header(CONTENT_TYPE, "application/json")
        .body(json!(order).to_string().into())
        .map_err(not_placed)?;
    orders.write(&order, &answer, run).await?;
    tracing::info!(order = order.id, "placed");
    Ok(answer)
}

/// Returns the order, or the status and the detail of the refusal.
fn check(request: &Request) -> Result<NewOrder, (StatusCode, String)> {
    if request.raw_http_path() != "/orders" {
        return Err((StatusCode::NOT_FOUND, "the only path is /orders".to_owned()));
    }
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "the only method is POST".to_owned()));
    }
    // Lambda encodes every body whose Content-Type is not text.
    if !is_json(request) || matches!(request.body(), Body::Binary(_)) {
        let message = "Content-Type must be application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned()));
    }
    if request.body().len() > LARGEST_ORDER {
        let message = format!("the order has more than {LARGEST_ORDER} bytes");
        return Err((StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let order: NewOrder = serde_json::from_slice(request.body()).map_err(|_| {
        let message = r#"the body must be {"item": "…", "quantity": …}, with a quantity of at least 1"#;
        (StatusCode::BAD_REQUEST, message.to_owned())
    })?;
    match order.item.chars().count() {
        1..=LONGEST_ITEM => Ok(order),
        characters => {
            let message = format!("the item has {characters} characters: send one with 1 to {LONGEST_ITEM}");
            Err((StatusCode::BAD_REQUEST, message))
        }
    }
}

fn is_json(request: &Request) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// Returns the answer to a failed order. The log has the details that the client must not see.
fn failed(failure: &Failure) -> Answer {
    tracing::error!(error = failure::line(failure), "the order failed");
    if failure.is_temporary() {
        let refused = refusal(StatusCode::SERVICE_UNAVAILABLE, "try again with the same key");
        with(refused, RETRY_AFTER, "1")
    } else {
        refusal(StatusCode::INTERNAL_SERVER_ERROR, "the order failed")
    }
}

/// Returns a problem of the form that the layer's answers have.
fn refusal(status: StatusCode, detail: &str) -> Answer {
    let problem = json!({
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    let mut answer = Response::new(HttpIdempotencyBody::from(Body::from(problem.to_string())));
    *answer.status_mut() = status;
    with(answer, CONTENT_TYPE, "application/problem+json")
}

fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}
