//! The Lambda service as a function sees it: a Runtime API for a function in another process.
//! <https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>

use std::convert::Infallible;
use std::ffi::OsStr;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::invocation::millis;

/// Longer than anything here takes, so that a test that hangs fails.
pub const TOO_LONG: Duration = Duration::from_mins(1);

/// The service. It ends when it is dropped.
#[derive(Debug)]
pub struct Lambda {
    address: SocketAddr,
    events: mpsc::UnboundedSender<Event>,
    asked: mpsc::UnboundedReceiver<()>,
    outcomes: mpsc::UnboundedReceiver<(String, Outcome)>,
    restore: Arc<Notify>,
    _server: JoinSet<()>,
}

#[derive(Debug)]
struct Event {
    id: String,
    payload: Value,
    deadline: SystemTime,
}

/// The function's report for an invocation.
#[derive(Debug)]
pub enum Outcome {
    /// Its answer.
    Answer(Value),
    /// Its error.
    Error {
        /// The `errorType`.
        kind: String,
        /// The `errorMessage`.
        message: String,
    },
}

impl Outcome {
    /// The answer. Panics if it is an error.
    #[expect(clippy::must_use_candidate, reason = "callers may only check that it is an answer")]
    pub fn answer(self) -> Value {
        match self {
            Self::Answer(answer) => answer,
            error @ Self::Error { .. } => panic!("{error:?}"),
        }
    }

    /// The error's type and message. Panics if it is an answer.
    #[must_use]
    pub fn error(self) -> (String, String) {
        match self {
            Self::Error { kind, message } => (kind, message),
            Self::Answer(answer) => panic!("answered with {answer}"),
        }
    }
}

/// The ends of the channels that connections use.
#[derive(Clone, Debug)]
struct Ends {
    queue: Arc<Mutex<mpsc::UnboundedReceiver<Event>>>,
    asks: mpsc::UnboundedSender<()>,
    reports: mpsc::UnboundedSender<(String, Outcome)>,
    restore: Arc<Notify>,
    has_extensions: bool,
}

impl Lambda {
    /// Starts the service on a free port.
    pub async fn start() -> Self {
        Self::start_with(true).await
    }

    /// Starts an emulation of the service that has no extensions.
    pub async fn without_extensions() -> Self {
        Self::start_with(false).await
    }

    async fn start_with(has_extensions: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (events, queue) = mpsc::unbounded_channel();
        let (asks, asked) = mpsc::unbounded_channel();
        let (reports, outcomes) = mpsc::unbounded_channel();
        let restore = Arc::new(Notify::new());
        let queue = Arc::new(Mutex::new(queue));
        let ends = Ends { queue, asks, reports, restore: Arc::clone(&restore), has_extensions };
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let ends = ends.clone();
                let service = service_fn(move |request| serve(request, ends.clone()));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, events, asked, outcomes, restore, _server: server }
    }

    /// Returns a command that runs this function with the variables of the runtime. Its process is killed on drop.
    pub fn environment(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("AWS_LAMBDA_RUNTIME_API", self.address.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "function")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
            .env("AWS_LAMBDA_LOG_STREAM_NAME", "stream")
            .kill_on_drop(true);
        command
    }

    /// Sends an invocation, a minute before its deadline.
    pub fn send(&self, id: &str, payload: Value) {
        self.send_with(id, payload, Duration::from_mins(1));
    }

    /// Sends an invocation, this long before its deadline.
    pub fn send_with(&self, id: &str, payload: Value, time_left: Duration) {
        let deadline = SystemTimeSource::new().now() + time_left;
        assert!(self.events.send(Event { id: id.to_owned(), payload, deadline }).is_ok());
    }

    /// Restores a function with `SnapStart` from its snapshot. It has [asked](Self::asked) for that.
    pub fn restore(&self) {
        self.restore.notify_one();
    }

    /// Waits until the function asks for an invocation, or to be restored. The first time, its init phase has ended.
    pub async fn asked(&mut self) {
        timeout(TOO_LONG, self.asked.recv()).await.expect("the function asks").expect("the service runs");
    }

    /// Waits for the next invocation to end, and returns its id and outcome.
    pub async fn next_outcome(&mut self) -> (String, Outcome) {
        timeout(TOO_LONG, self.outcomes.recv()).await.expect("an invocation ends").expect("the service runs")
    }

    /// Sends an invocation, and waits for its outcome.
    pub async fn invoke(&mut self, id: &str, payload: Value) -> Outcome {
        self.send(id, payload);
        let (of, outcome) = self.next_outcome().await;
        assert_eq!(of, id);
        outcome
    }
}

async fn serve(request: Request<Incoming>, ends: Ends) -> Result<Response<Full<Bytes>>, Infallible> {
    if let Some(path) = request.uri().path().strip_prefix("/2020-01-01/extension/") {
        return Ok(match path {
            "register" if ends.has_extensions => {
                let function = json!({ "functionName": "function", "functionVersion": "1", "handler": "bootstrap" });
                let mut response = answer(StatusCode::OK, function.to_string());
                response.headers_mut().insert("Lambda-Extension-Identifier", "an-extension".parse().unwrap());
                response
            }
            // No event comes for the extension.
            "event/next" if ends.has_extensions => pending().await,
            _ => answer(StatusCode::NOT_FOUND, String::new()),
        });
    }
    if request.uri().path() == "/2018-06-01/runtime/restore/next" {
        let _ = ends.asks.send(());
        ends.restore.notified().await;
        return Ok(answer(StatusCode::OK, String::new()));
    }
    let path = request.uri().path().strip_prefix("/2018-06-01/runtime/invocation/").unwrap_or_default().to_owned();
    if path == "next" {
        // The test may have ended, here and below.
        let _ = ends.asks.send(());
        // Lambda too keeps the function waiting here for an invocation.
        let Some(Event { id, payload, deadline }) = ends.queue.lock().await.recv().await else {
            return Ok(answer(StatusCode::GONE, String::new()));
        };
        let mut response = answer(StatusCode::OK, payload.to_string());
        let headers = response.headers_mut();
        headers.insert("Lambda-Runtime-Aws-Request-Id", id.parse().unwrap());
        headers.insert("Lambda-Runtime-Deadline-Ms", millis(deadline).to_string().parse().unwrap());
        let arn = "arn:aws:lambda:us-east-1:123456789012:function:function";
        headers.insert("Lambda-Runtime-Invoked-Function-Arn", arn.parse().unwrap());
        return Ok(response);
    }
    let body: Value = serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let (id, outcome) = match path.split_once('/') {
        Some((id, "response")) => (id, Outcome::Answer(body)),
        Some((id, "error")) => {
            let text = |field: &str| body[field].as_str().unwrap().to_owned();
            (id, Outcome::Error { kind: text("errorType"), message: text("errorMessage") })
        }
        _ => return Ok(answer(StatusCode::NOT_FOUND, String::new())),
    };
    let _ = ends.reports.send((id.to_owned(), outcome));
    Ok(answer(StatusCode::ACCEPTED, "{}".to_owned()))
}

fn answer(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}
