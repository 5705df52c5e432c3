use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::{RetryConfig, RetryPartition, TokenBucket};
use aws_sdk_dynamodb::config::{self, BehaviorVersion, Region};
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
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
use aws_smithy_types::timeout::TimeoutConfig;
use serde_json::Value;

use tokio::time::timeout;

use super::engine::{DynamoDb, TrueTime};
use super::faults::{Fate, Faults, Outcome};
use crate::client;

/// Sees, and may change, what a host says to DynamoDB and what it hears. Called when a request arrives, so in the order
/// in which requests are applied, also for those whose answer is lost.
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
pub trait Intercept: fmt::Debug + Send + Sync {
    /// Before the request is applied: `operation` is like `UpdateItem`, `request` its JSON body.
    fn request(&self, operation: &str, request: &mut Value) {
        let _ = (operation, request);
    }

    /// After the request was applied, with the request as it was applied.
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        let _ = (operation, request, answer);
    }
}

/// What DynamoDB answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The JSON body.
    pub body: Value,
}

/// A machine with a DynamoDB client, a clock and a network of its own. Cheap to clone.
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::embedded::DynamoDb;
/// # fn main() -> Result<(), lambda_lock::Error> {
/// let engine = DynamoDb::new()?;
/// let host = engine.host().clock_behind(Duration::from_secs(1)).build();
/// let client = host.client();
/// host.advance_clock(Duration::from_secs(60));
/// assert_eq!(host.requests(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Host {
    machine: Arc<Machine>,
    client: Client,
}

impl Host {
    /// A host that speaks to a real DynamoDB or another emulator: `config` says where it is and who the caller is,
    /// `http_client` carries the requests. Clock, faults and observers work as with an [`DynamoDb`].
    pub fn over(config: config::Builder, http_client: impl HttpClient + 'static) -> HostBuilder {
        let backend = Backend::Http(SharedHttpClient::new(http_client));
        HostBuilder { config, ..HostBuilder::new(backend, TrueTime::starting_at(SystemTimeSource::new().now())) }
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The time by this host's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.machine.clock.now()
    }

    /// Sets the clock forward: the wall clock alone, as after a sandbox was frozen.
    pub fn advance_clock(&self, by: Duration) {
        self.machine.clock.ahead.fetch_add(micros(by), Ordering::Relaxed);
    }

    /// How many requests were sent, each try of the SDK counted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.machine.requests.load(Ordering::Relaxed)
    }

    /// From now on the host sends nothing and hears nothing. What is on its way still arrives. A request that waits for an
    /// answer ends with a timeout of the client.
    pub fn crash(&self) {
        self.machine.crashed.store(true, Ordering::Relaxed);
    }
}

/// The settings of a [`Host`].
#[derive(Debug)]
#[must_use = "there is no host until it is built"]
pub struct HostBuilder {
    backend: Backend,
    config: config::Builder,
    clock: HostClock,
    faults: Option<Faults>,
    intercepts: Vec<Box<dyn Intercept>>,
}

impl HostBuilder {
    pub(super) fn for_engine(engine: DynamoDb) -> Self {
        let time = engine.time();
        Self::new(Backend::DynamoDb(engine), time)
    }

    fn new(backend: Backend, time: TrueTime) -> Self {
        Self {
            backend,
            config: config::Builder::new()
                .region(Region::from_static("us-east-1"))
                .endpoint_url("http://embedded.invalid")
                .allow_no_auth(),
            clock: HostClock { time, ahead: AtomicI64::new(0), drift: 0.0, most: Duration::MAX },
            faults: None,
            intercepts: Vec::new(),
        }
    }

    /// The clock is ahead by this much.
    pub fn clock_ahead(self, by: Duration) -> Self {
        self.clock.ahead.fetch_add(micros(by), Ordering::Relaxed);
        self
    }

    /// The clock is behind by this much.
    pub fn clock_behind(self, by: Duration) -> Self {
        self.clock.ahead.fetch_sub(micros(by), Ordering::Relaxed);
        self
    }

    /// The clock gains `rate` seconds a second, or loses them if negative, and is never wrong by more than `most`.
    pub fn clock_drift(mut self, rate: f64, most: Duration) -> Self {
        self.clock.drift = rate;
        self.clock.most = most;
        self
    }

    /// What the network does; nothing bad by default, and without delay.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Adds an observer. Requests pass the observers in the order they were added; answers too.
    pub fn intercept(mut self, intercept: impl Intercept + 'static) -> Self {
        self.intercepts.push(Box::new(intercept));
        self
    }

    /// Builds the host and its client.
    pub fn build(self) -> Host {
        let machine = Arc::new(Machine {
            backend: self.backend,
            clock: self.clock,
            faults: self.faults.map(Mutex::new),
            intercepts: self.intercepts,
            requests: AtomicU64::new(0),
            crashed: AtomicBool::new(false),
        });
        // Retries are limited by a bucket of tokens that clients share by default; hosts do not.
        let tokens = RetryPartition::custom("host").token_bucket(TokenBucket::default()).build();
        let config = self
            .config
            .behavior_version(BehaviorVersion::latest())
            .retry_config(client::retry_config(RetryConfig::standard()))
            .timeout_config(client::timeout_config(TimeoutConfig::builder().build()))
            .retry_partition(tokens)
            .time_source(MachineClock(Arc::clone(&machine)))
            .http_client(MachineNetwork(Arc::clone(&machine)))
            .build();
        Host { machine, client: Client::from_conf(config) }
    }
}

#[derive(Debug)]
struct Machine {
    backend: Backend,
    clock: HostClock,
    faults: Option<Mutex<Faults>>,
    intercepts: Vec<Box<dyn Intercept>>,
    requests: AtomicU64,
    crashed: AtomicBool,
}

#[derive(Debug)]
enum Backend {
    DynamoDb(DynamoDb),
    Http(SharedHttpClient),
}

#[derive(Debug)]
struct HostClock {
    time: TrueTime,
    /// Microseconds.
    ahead: AtomicI64,
    drift: f64,
    most: Duration,
}

impl HostClock {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a float that is too large saturates"
    )]
    fn now(&self) -> SystemTime {
        let drifted = (self.time.elapsed().as_micros() as f64 * self.drift) as i64;
        let most = micros(self.most);
        let ahead = self.ahead.load(Ordering::Relaxed).saturating_add(drifted).clamp(-most, most);
        let by = Duration::from_micros(ahead.unsigned_abs());
        if ahead < 0 { self.time.now() - by } else { self.time.now() + by }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[derive(Debug)]
struct MachineClock(Arc<Machine>);

impl TimeSource for MachineClock {
    fn now(&self) -> SystemTime {
        self.0.clock.now()
    }
}

#[derive(Debug)]
struct MachineNetwork(Arc<Machine>);

impl HttpClient for MachineNetwork {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        let wire = match &self.0.backend {
            Backend::DynamoDb(_) => None,
            Backend::Http(client) => Some(client.http_connector(settings, components)),
        };
        let read_timeout = settings.read_timeout().unwrap_or(Duration::MAX);
        SharedHttpConnector::new(Connection { machine: Arc::clone(&self.0), wire, read_timeout })
    }
}

/// `wire` leads to a backend outside this process.
#[derive(Clone, Debug)]
struct Connection {
    machine: Arc<Machine>,
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
        let machine = &self.machine;
        if machine.crashed.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        machine.requests.fetch_add(1, Ordering::Relaxed);
        let Some(faults) = &machine.faults else {
            return self.deliver(request).await;
        };
        let Fate { there, back, outcome, repeat } = faults.lock().unwrap_or_else(PoisonError::into_inner).draw();
        if let Some(later) = repeat {
            self.deliver_later(&request, there + later);
        }
        let answer = match outcome {
            Outcome::Lost => Err(broken("the request was lost")),
            Outcome::Late(later) => {
                self.deliver_later(&request, there + later);
                Err(broken("the request was lost"))
            }
            Outcome::Throttled { by_account: true } => refusal(400, "RequestLimitExceeded"),
            Outcome::Throttled { by_account: false } => refusal(400, "ProvisionedThroughputExceededException"),
            Outcome::ServerError { applied: false } => refusal(500, "InternalServerError"),
            // A request that is under way arrives even if whoever sent it stops waiting: hence a task of its own.
            Outcome::Answered | Outcome::AnswerLost | Outcome::ServerError { applied: true } => {
                let arrival = tokio::spawn({
                    let connection = self.clone();
                    async move {
                        tokio::time::sleep(there).await;
                        connection.deliver(request).await
                    }
                });
                match (outcome, arrival.await.map_err(|error| ConnectorError::other(error.into(), None))?) {
                    // As hyper tells it when the connection closes before the answer.
                    (Outcome::AnswerLost, _) => {
                        Err(ConnectorError::other("the answer was lost".into(), Some(ErrorKind::TransientError)))
                    }
                    (Outcome::ServerError { .. }, _) => refusal(500, "InternalServerError"),
                    (_, answer) => answer,
                }
            }
        };
        tokio::time::sleep(back).await;
        if machine.crashed.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        answer
    }

    fn deliver_later(&self, request: &HttpRequest, later: Duration) {
        // A DynamoDB request is in memory, so it can be copied.
        if let Some(copy) = request.try_clone() {
            let connection = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(later).await;
                let _nobody_hears_it = connection.deliver(copy).await;
            });
        }
    }

    /// The request arrives.
    async fn deliver(&self, mut request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let target = request.headers().get("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        let intercepts = &self.machine.intercepts;
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
        let mut answer = Answer { status, body: json(&bytes)? };
        for intercept in intercepts {
            intercept.answer(&operation, &body, &mut answer);
        }
        response_of(answer.status, answer.body.to_string().into_bytes(), date)
    }

    async fn apply(&self, operation: &str, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        match (&self.machine.backend, &self.wire) {
            (Backend::DynamoDb(engine), _) => {
                let (status, body) = engine.execute(operation, request.body().bytes().unwrap_or_default());
                // As every server of HTTP says what time it is there.
                let now = DateTime::from(engine.now()).fmt(Format::HttpDate);
                response_of(status, body, now.ok())
            }
            (Backend::Http(_), Some(wire)) => wire.call(request).await,
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

/// The header that says what time it is at the server.
const DATE: &str = "date";

fn response_of(status: u16, body: Vec<u8>, date: Option<String>) -> Result<HttpResponse, ConnectorError> {
    let status = status.try_into().map_err(|_| broken("the status is not one of HTTP"))?;
    let mut response = HttpResponse::new(status, SdkBody::from(body));
    if let Some(date) = date {
        response.headers_mut().insert(DATE, date);
    }
    Ok(response)
}

fn broken(why: &'static str) -> ConnectorError {
    ConnectorError::io(why.into())
}
