//! Invocations as Lambda makes them, and what tests observe of them.

use std::fmt::Debug;
use std::future::{Ready, ready};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, SystemTime};

use lambda_http::request::LambdaRequest;
use lambda_http::{Adapter, IntoResponse, Request};
use lambda_lock::HandlerError;
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_runtime::{Config, Context, Diagnostic, LambdaEvent};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower::{Service, ServiceExt};

use crate::late::update_mut;

/// The name of the function.
pub const FUNCTION: &str = "orders";

/// Returns an invocation of the function on this host, 30 seconds before its deadline.
pub fn invocation<P>(host: &Host, payload: P) -> LambdaEvent<P> {
    invocation_with(host, payload, Duration::from_secs(30))
}

/// Returns an invocation of the function on this host, this long before its deadline.
pub fn invocation_with<P>(host: &Host, payload: P, time_left: Duration) -> LambdaEvent<P> {
    let mut event = invocation_without_deadline(FUNCTION, payload);
    event.context.deadline = millis(host.now() + time_left);
    event
}

/// Returns an invocation of this function without a deadline.
pub fn invocation_without_deadline<P>(function: &str, payload: P) -> LambdaEvent<P> {
    let mut context = Context::default();
    "request-1".clone_into(&mut context.request_id);
    let (function_name, log_stream) = (function.to_owned(), "stream-1".to_owned());
    context.env_config = Arc::new(Config { function_name, log_stream, ..Config::default() });
    LambdaEvent::new(payload, context)
}

/// Counts how many handlers run at the same time.
#[derive(Clone, Debug)]
pub struct AtOnce {
    expected: u32,
    running: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    is_full: watch::Sender<bool>,
}

impl AtOnce {
    /// Expects that so many run at the same time.
    #[must_use]
    pub fn expecting(expected: u32) -> Self {
        Self { expected, running: Arc::default(), most: Arc::default(), is_full: watch::Sender::new(false) }
    }

    /// Runs as one of the handlers, until as many as expected run, and then a while for more of them.
    pub async fn run(self) {
        let now = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        if now >= self.expected {
            self.is_full.send_replace(true);
        }
        let mut full = self.is_full.subscribe();
        let _otherwise_too_few = timeout(Duration::from_secs(10), full.wait_for(|is_full| *is_full)).await.is_ok();
        sleep(Duration::from_millis(50)).await;
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Asserts that as many as expected have run at the same time, and not more.
    #[track_caller]
    pub fn assert(&self) {
        assert_eq!(self.most.load(Ordering::Relaxed), self.expected);
    }
}

/// Returns an invocation by this tenant.
pub fn by_tenant<P>(tenant: &str, mut event: LambdaEvent<P>) -> LambdaEvent<P> {
    event.context.tenant_id = Some(tenant.to_owned());
    event
}

/// Sends an event of a function URL or of an HTTP API through `lambda_http`, and returns what Lambda gets.
pub async fn over_http<S, R>(host: &Host, function: S, event: &Value) -> Value
where
    S: Service<Request, Response = R, Error: Debug, Future: Send + 'static>,
    R: IntoResponse,
{
    let request: LambdaRequest = serde_json::from_str(&event.to_string()).unwrap();
    let answer = Adapter::from(function).oneshot(invocation(host, request)).await.unwrap();
    serde_json::to_value(answer).unwrap()
}

/// Returns the milliseconds since the epoch, as in rows.
#[must_use]
pub fn millis(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

/// Returns what Lambda receives: the error's type and message.
pub fn reported<E: Into<Diagnostic>>(error: HandlerError<E>) -> (String, String) {
    let Diagnostic { error_type, error_message } = error.into();
    (error_type, error_message)
}

/// A counter that its clones share.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU32>);

impl Counter {
    /// Adds one, and returns the new count.
    #[expect(clippy::must_use_candidate, reason = "callers may ignore the count")]
    pub fn count(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the count.
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A service that is ready for one call at a time, or never if its answer is an error.
#[derive(Debug)]
pub struct OneByOne<P, T, E> {
    answer: fn() -> Result<T, E>,
    is_ready: bool,
    request: PhantomData<fn(P)>,
}

impl<P, T, E> OneByOne<P, T, E> {
    /// Creates a service with this answer.
    pub fn answering(answer: fn() -> Result<T, E>) -> Self {
        Self { answer, is_ready: false, request: PhantomData }
    }
}

impl<P, T, E> Clone for OneByOne<P, T, E> {
    /// A clone needs its own readiness.
    fn clone(&self) -> Self {
        Self::answering(self.answer)
    }
}

impl<P, T, E> Service<P> for OneByOne<P, T, E> {
    type Response = T;
    type Error = E;
    type Future = Ready<Result<T, E>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), E>> {
        let answer = (self.answer)();
        self.is_ready = answer.is_ok();
        Poll::Ready(answer.map(drop))
    }

    fn call(&mut self, _: P) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "it was not asked whether it is ready");
        ready((self.answer)())
    }
}

/// How many times the SDK sends a request that is not answered.
pub const TRIES: u64 = 3;

/// Returns all tries of a request, if this is the first one: that many writes of a host, counted from 1.
#[must_use]
pub const fn all_tries_from(first: u32) -> RangeInclusive<u32> {
    first..=first + 2
}

/// Turns the answers to these requests of an operation, counted from 1, into server errors after they were applied. The
/// SDK then retries the request, as after a lost answer.
#[derive(Debug)]
pub struct LoseAnswers {
    operation: &'static str,
    which: RangeInclusive<u32>,
    seen: Counter,
}

impl LoseAnswers {
    /// Loses the answers to these requests of this operation.
    #[must_use]
    pub fn to(operation: &'static str, which: RangeInclusive<u32>) -> Self {
        Self { operation, which, seen: Counter::default() }
    }
}

impl Intercept for LoseAnswers {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == self.operation && self.which.contains(&self.seen.count()) {
            answer.status = 500;
            answer.body = json!({ "__type": "InternalServerError" });
        }
    }
}

/// Removes the rows from refusals, as an emulator does that does not know `ReturnValuesOnConditionCheckFailure`.
#[derive(Debug)]
pub struct HideRows;

impl Intercept for HideRows {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if answer.status == 200 {
            return;
        }
        hide_row(&mut answer.body);
        for reason in answer.body.get_mut("CancellationReasons").and_then(Value::as_array_mut).into_iter().flatten() {
            hide_row(reason);
        }
    }
}

fn hide_row(refusal: &mut Value) {
    if let Some(refusal) = refusal.as_object_mut() {
        refusal.remove("Item");
    }
}

/// Why DynamoDB does not apply a write, although another attempt can succeed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// A transaction on the row is in progress.
    Conflict,
    /// A write of another region to the row is in progress.
    OtherRegion,
    /// Requests are throttled.
    Throttling,
}

impl Cause {
    /// All causes for an update.
    pub const ALL: [Self; 3] = [Self::Conflict, Self::OtherRegion, Self::Throttling];

    /// All causes for an operation. A table that more than one region writes has no transactions.
    pub fn of(operation: &str) -> impl Iterator<Item = Self> {
        let is_update = operation == "UpdateItem";
        Self::ALL.into_iter().filter(move |cause| is_update || *cause != Self::OtherRegion)
    }
}

/// Answers these writes of a host, counted from 1, as DynamoDB does for this cause. The table does not apply them.
#[derive(Debug)]
pub struct Prevents {
    cause: Cause,
    which: RangeInclusive<u32>,
    sent: Counter,
    answered: Counter,
}

impl Prevents {
    /// Answers these updates and transactions so.
    #[must_use]
    pub fn writes(cause: Cause, which: RangeInclusive<u32>) -> Self {
        Self { cause, which, sent: Counter::default(), answered: Counter::default() }
    }
}

impl Intercept for Prevents {
    fn request(&self, operation: &str, request: &mut Value) {
        if !is_write(operation) || !self.which.contains(&self.sent.count()) {
            return;
        }
        update_mut(request)["TableName"] = "no-such-table".into();
    }

    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        if !is_write(operation) || !self.which.contains(&self.answered.count()) {
            return;
        }
        let items = request["TransactItems"].as_array().map_or(0, Vec::len);
        let (alone, reason) = match self.cause {
            Cause::Conflict => ("TransactionConflictException", "TransactionConflict"),
            Cause::OtherRegion => ("ReplicatedWriteConflictException", "None"),
            Cause::Throttling => ("ThrottlingException", "ThrottlingError"),
        };
        let exception = if items == 0 { alone } else { "TransactionCanceledException" };
        let code = |item| if item + 1 == items { reason } else { "None" };
        let reasons: Vec<_> = (0..items).map(|item| json!({ "Code": code(item) })).collect();
        answer.status = 400;
        answer.body = json!({
            "__type": format!("com.amazonaws.dynamodb.v20120810#{exception}"),
            "message": "simulated",
            "CancellationReasons": reasons,
        });
    }
}

pub(crate) fn is_write(operation: &str) -> bool {
    ["UpdateItem", "TransactWriteItems"].contains(&operation)
}

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts to keep the log of all tests in this process: all levels of the crate.
pub fn keep_log() {
    keep("lambda_lock=trace");
}

/// Starts to keep the warnings of all tests in this process, of all crates.
pub fn keep_warnings() {
    keep("warn");
}

/// `tracing` has one subscriber for all threads: the first filter wins.
fn keep(filter: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Log).init();
    });
}

/// Returns the lines that contain `name`, which must be unique to the test.
#[must_use]
pub fn logged(name: &str) -> Vec<String> {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    log.lines().filter(|line| line.contains(name)).map(str::to_owned).collect()
}
