//! The network between a host and its DynamoDB: faults, observers and crashes.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::DateTime;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use aws_smithy_types::date_time::Format;
use aws_smithy_types::retry::ErrorKind;
use serde_json::Value;
use tokio::time::timeout;

use super::dynamodb::DynamoDb;
use super::faults::{Delivery, Fate, Faults};
use super::partitions;
use super::time::HostClock;
use crate::clock::monotonic;

/// An observer of a host's traffic, which may change requests and answers.
///
/// ```
/// use lambda_lock::embedded::{Answer, Intercept};
/// use serde_json::Value;
///
/// /// Refuses every write.
/// #[derive(Debug)]
/// struct ReadOnly;
///
/// impl Intercept for ReadOnly {
///     fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
///         if operation == "UpdateItem" {
///             answer.status = 400;
///             answer.body = serde_json::json!({ "__type": "AccessDeniedException" });
///         }
///     }
/// }
/// ```
///
/// It is called when a request arrives, which is the order in which requests are applied. It also sees requests whose
/// answer is lost.
pub trait Intercept: fmt::Debug + Send + Sync {
    /// Called before the request is applied. `operation` is a name such as `UpdateItem`, `request` the JSON body.
    fn request(&self, operation: &str, request: &mut Value) {
        let _ = (operation, request);
    }

    /// Called after the request was applied. `request` is the body that was applied.
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        let _ = (operation, request, answer);
    }
}

/// An answer from DynamoDB.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The JSON body.
    pub body: Value,
    /// The header `Date`. Without it, a client cannot tell whether its clock is right.
    pub date: Option<String>,
}

/// A host's connections to its DynamoDB.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) backend: Backend,
    pub(super) clock: Arc<HostClock>,
    pub(super) faults: Option<Mutex<Faults>>,
    pub(super) intercepts: Vec<Box<dyn Intercept>>,
    pub(super) requests: AtomicU64,
    pub(super) crashed: AtomicBool,
}

#[derive(Debug)]
pub(super) enum Backend {
    Embedded(DynamoDb),
    Http(SharedHttpClient),
}

impl Network {
    fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::Relaxed)
    }
}

/// The network as the SDK's HTTP client.
#[derive(Debug)]
pub(super) struct NetworkClient(pub(super) Arc<Network>);

impl HttpClient for NetworkClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        let wire = match &self.0.backend {
            Backend::Embedded(_) => None,
            Backend::Http(client) => Some(client.http_connector(settings, components)),
        };
        let read_timeout = settings.read_timeout().unwrap_or(Duration::MAX);
        SharedHttpConnector::new(Connection { network: Arc::clone(&self.0), wire, read_timeout })
    }
}

#[derive(Clone, Debug)]
struct Connection {
    network: Arc<Network>,
    /// The connector to a backend outside this process.
    wire: Option<SharedHttpConnector>,
    read_timeout: Duration,
}

impl HttpConnector for Connection {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let answer = timeout(self.read_timeout, self.clone().send(request));
        HttpConnectorFuture::new(async {
            answer.await.unwrap_or_else(|elapsed| Err(ConnectorError::timeout(elapsed.into())))
        })
    }
}

impl Connection {
    async fn send(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let network = &self.network;
        if network.has_crashed() {
            return std::future::pending().await;
        }
        network.requests.fetch_add(1, Ordering::Relaxed);
        let Some(faults) = &network.faults else {
            return self.deliver(request).await;
        };
        let Fate { there, mut back, delivery, repeat } = faults.lock().unwrap_or_else(PoisonError::into_inner).draw();
        if let Some(later) = repeat {
            self.deliver_later(&request, there + later);
        }
        let answer = match delivery {
            Delivery::Lost => Err(broken("the request was lost")),
            Delivery::Late(later) => {
                self.deliver_later(&request, there + later);
                Err(broken("the request was lost"))
            }
            Delivery::Throttled { by_account: true } => refusal(400, "RequestLimitExceeded"),
            Delivery::Throttled { by_account: false } => throttled(&request),
            Delivery::ServerError { applied: false } => refusal(500, "InternalServerError"),
            Delivery::Conflict if is_write(&request) => refusal(400, "ReplicatedWriteConflictException"),
            // A separate task, because a request on its way arrives even if its sender stops waiting.
            Delivery::Answered
            | Delivery::AnswerLost
            | Delivery::ServerError { applied: true }
            | Delivery::Conflict => {
                let arrival = tokio::spawn({
                    let connection = self.clone();
                    async move {
                        let sent = monotonic();
                        tokio::time::sleep(there).await;
                        // Timers round up to whole milliseconds. The way back makes up for it.
                        let late = monotonic().saturating_duration_since(sent).saturating_sub(there);
                        (connection.deliver(request).await, late)
                    }
                });
                let (answer, late) = arrival.await.map_err(|error| ConnectorError::other(error.into(), None))?;
                back = back.saturating_sub(late);
                match (delivery, answer) {
                    // The error of hyper when the connection closes before the answer.
                    (Delivery::AnswerLost, _) => {
                        Err(ConnectorError::other("the answer was lost".into(), Some(ErrorKind::TransientError)))
                    }
                    (Delivery::ServerError { .. }, _) => refusal(500, "InternalServerError"),
                    (_, answer) => answer,
                }
            }
        };
        tokio::time::sleep(back).await;
        if network.has_crashed() {
            return std::future::pending().await;
        }
        answer
    }

    fn deliver_later(&self, request: &HttpRequest, later: Duration) {
        // The body of a DynamoDB request is in memory, so `try_clone` succeeds.
        if let Some(copy) = request.try_clone() {
            let connection = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(later).await;
                let _answer = connection.deliver(copy).await;
            });
        }
    }

    /// Lets the request arrive: observers see it, the backend applies it, observers see the answer.
    async fn deliver(&self, mut request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let operation = operation(&request).to_owned();
        let intercepts = &self.network.intercepts;
        if intercepts.is_empty() {
            return self.apply(&operation, request).await;
        }
        let mut body: Value = json(request.body().bytes().unwrap_or_default())?;
        for intercept in intercepts {
            intercept.request(&operation, &mut body);
        }
        let bytes = body.to_string();
        request.headers_mut().insert("content-length", bytes.len().to_string());
        *request.body_mut() = SdkBody::from(bytes);
        let response = self.apply(&operation, request).await?;
        let (status, date) = (response.status().as_u16(), response.headers().get(DATE).map(str::to_owned));
        let bytes = ByteStream::new(response.into_body()).collect().await;
        let bytes = bytes.map_err(|error| ConnectorError::io(error.into()))?.into_bytes();
        let mut answer = Answer { status, body: json(&bytes)?, date };
        for intercept in intercepts {
            intercept.answer(&operation, &body, &mut answer);
        }
        response_of(answer.status, answer.body.to_string().into_bytes(), answer.date)
    }

    async fn apply(&self, operation: &str, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        // An HTTP server sends its time with each response. Another emulator does not know that of this host.
        let date = DateTime::from(self.network.clock.right()).fmt(Format::HttpDate).ok();
        match (&self.network.backend, &self.wire) {
            (Backend::Embedded(dynamodb), _) => {
                let (status, body) = dynamodb.execute(operation, request.body().bytes().unwrap_or_default());
                response_of(status, body, date)
            }
            (Backend::Http(_), Some(wire)) => {
                let mut response = wire.call(request).await?;
                if let Some(date) = date {
                    response.headers_mut().insert(DATE, date);
                }
                Ok(response)
            }
            (Backend::Http(_), None) => Err(broken("there is no connection")),
        }
    }
}

fn json(bytes: &[u8]) -> Result<Value, ConnectorError> {
    serde_json::from_slice(bytes).map_err(|error| ConnectorError::other(error.into(), None))
}

fn refusal(status: u16, code: &str) -> Result<HttpResponse, ConnectorError> {
    let body =
        serde_json::json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "simulated" });
    response_of(status, body.to_string().into_bytes(), None)
}

fn operation(request: &HttpRequest) -> &str {
    request.headers().get("x-amz-target").and_then(|target| target.rsplit('.').next()).unwrap_or_default()
}

/// Whether it writes one row.
fn is_write(request: &HttpRequest) -> bool {
    ["DeleteItem", "PutItem", "UpdateItem"].contains(&operation(request))
}

/// Of a transaction, the table throttles the first item, which cancels the transaction.
fn throttled(request: &HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let body = json(request.body().bytes().unwrap_or_default())?;
    let items = body["TransactItems"].as_array().map_or(0, Vec::len);
    let are_throttled: Vec<_> = (0..items).map(|item| item == 0).collect();
    let body = partitions::throttled(operation(request), &are_throttled);
    response_of(400, body.to_string().into_bytes(), None)
}

/// The header with the server's time.
const DATE: &str = "date";

fn response_of(status: u16, body: Vec<u8>, date: Option<String>) -> Result<HttpResponse, ConnectorError> {
    let status = status.try_into().map_err(|_| broken("the status is not an HTTP status"))?;
    let mut response = HttpResponse::new(status, SdkBody::from(body));
    if let Some(date) = date {
        response.headers_mut().insert(DATE, date);
    }
    Ok(response)
}

fn broken(why: &'static str) -> ConnectorError {
    ConnectorError::io(why.into())
}
