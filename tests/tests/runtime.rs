//! The middleware under the real `lambda_runtime`, in a process of its own, against a Lambda Runtime API that the test
//! plays.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Stdio;
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
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longer than anything here takes, so that a test that hangs fails.
const TOO_LONG: Duration = Duration::from_mins(1);

/// The Lambda service, as far as a function sees it: <https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>.
struct Lambda {
    address: SocketAddr,
    events: mpsc::UnboundedSender<Event>,
    outcomes: mpsc::UnboundedReceiver<(String, Outcome)>,
    _server: JoinSet<()>,
}

struct Event {
    id: String,
    payload: Value,
    deadline: SystemTime,
}

/// What the function reported for an invocation.
#[derive(Debug)]
enum Outcome {
    Answer(Value),
    Error { kind: String, message: String },
}

impl Outcome {
    fn answer(self) -> Value {
        match self {
            Self::Answer(answer) => answer,
            error @ Self::Error { .. } => panic!("{error:?}"),
        }
    }

    fn error(self) -> (String, String) {
        match self {
            Self::Error { kind, message } => (kind, message),
            Self::Answer(answer) => panic!("answered with {answer}"),
        }
    }
}

impl Lambda {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (events, queue) = mpsc::unbounded_channel();
        let (reports, outcomes) = mpsc::unbounded_channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (queue, reports) = (Arc::clone(&queue), reports.clone());
                let service = service_fn(move |request| serve(request, Arc::clone(&queue), reports.clone()));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, events, outcomes, _server: server }
    }

    /// An environment of the function, which takes one invocation at a time and ends with the test.
    fn environment(&self) -> Child {
        self.command("run").spawn().unwrap()
    }

    /// The same for several invocations at a time.
    fn concurrent_environment(&self) -> Child {
        self.command("run_concurrent").env("AWS_LAMBDA_MAX_CONCURRENCY", "4").spawn().unwrap()
    }

    fn command(&self, mode: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_function"));
        command
            .arg(mode)
            .env("AWS_LAMBDA_RUNTIME_API", self.address.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "function")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
            .env("AWS_LAMBDA_LOG_STREAM_NAME", "stream")
            .kill_on_drop(true);
        command
    }

    fn send(&self, id: &str, payload: Value) {
        self.send_with(id, payload, Duration::from_mins(1));
    }

    fn send_with(&self, id: &str, payload: Value, time_left: Duration) {
        let deadline = SystemTimeSource::new().now() + time_left;
        assert!(self.events.send(Event { id: id.to_owned(), payload, deadline }).is_ok());
    }

    /// The next invocation to end, and how.
    async fn next_outcome(&mut self) -> (String, Outcome) {
        timeout(TOO_LONG, self.outcomes.recv()).await.expect("an invocation ends").expect("the service runs")
    }

    async fn invoke(&mut self, id: &str, payload: Value) -> Outcome {
        self.send(id, payload);
        let (of, outcome) = self.next_outcome().await;
        assert_eq!(of, id);
        outcome
    }
}

async fn serve(
    request: Request<Incoming>,
    queue: Arc<Mutex<mpsc::UnboundedReceiver<Event>>>,
    reports: mpsc::UnboundedSender<(String, Outcome)>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().strip_prefix("/2018-06-01/runtime/invocation/").unwrap_or_default().to_owned();
    if path == "next" {
        // Lambda too lets the function wait here until there is something to do.
        let Some(Event { id, payload, deadline }) = queue.lock().await.recv().await else {
            return Ok(answer(StatusCode::GONE, String::new()));
        };
        let deadline = deadline.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let mut response = answer(StatusCode::OK, payload.to_string());
        let headers = response.headers_mut();
        headers.insert("Lambda-Runtime-Aws-Request-Id", id.parse().unwrap());
        headers.insert("Lambda-Runtime-Deadline-Ms", deadline.to_string().parse().unwrap());
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
    // The test may be over.
    let _ = reports.send((id.to_owned(), outcome));
    Ok(answer(StatusCode::ACCEPTED, "{}".to_owned()))
}

fn answer(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}

/// Where handlers wait until the test lets them go.
struct Gate(TcpListener);

impl Gate {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn wait_here(&self, key: &str) -> Value {
        json!({ "key": key, "do": "wait", "at": self.0.local_addr().unwrap().to_string() })
    }

    /// The next handler to come; it goes on when this is dropped.
    async fn arrival(&self) -> TcpStream {
        timeout(TOO_LONG, self.0.accept()).await.expect("a handler comes").unwrap().0
    }
}

fn returning(key: &str) -> Value {
    json!({ "key": key, "do": "return" })
}

#[tokio::test]
async fn under_run_each_invocation_gets_the_lock_with_a_larger_fence() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.environment();
    let mut fences = Vec::new();
    for id in ["first", "second", "third"] {
        fences.push(lambda.invoke(id, returning("job")).await.answer()["fence"].as_u64().unwrap());
    }
    assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{fences:?}");
}

#[tokio::test]
async fn an_invocation_that_finds_the_key_held_fails_as_lock_held_and_the_runtime_goes_on() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.environment();
    let (kind, message) = lambda.invoke("refused", returning("taken")).await.error();
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("another environment"), "{message}");
    lambda.invoke("next", returning("free")).await.answer();
}

#[tokio::test]
async fn a_handlers_error_reaches_lambda_as_it_is_and_the_key_is_free() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.environment();
    let error = lambda.invoke("failing", json!({ "key": "job", "do": "fail" })).await.error();
    assert_eq!(error, ("OutOfPaper".to_owned(), "fill the tray".to_owned()));
    lambda.invoke("next", returning("job")).await.answer();
}

#[tokio::test]
async fn a_panic_reaches_lambda_as_one_and_the_key_is_free() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.environment();
    let (_, message) = lambda.invoke("panicking", json!({ "key": "job", "do": "dance" })).await.error();
    assert_eq!(message, "Lambda panicked: cannot do Some(\"dance\")");
    lambda.invoke("next", returning("job")).await.answer();
}

// behaviours 3, 80
#[tokio::test]
async fn a_handler_is_cancelled_at_the_deadline_that_lambda_gave() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.environment();
    // The deadline counts from here, so the environment shall be up.
    lambda.invoke("first", returning("job")).await.answer();
    lambda.send_with("hanging", json!({ "key": "job", "do": "hang" }), Duration::from_secs(1));
    let (id, outcome) = lambda.next_outcome().await;
    assert_eq!((id.as_str(), outcome.error().0.as_str()), ("hanging", "LockLost"));
    lambda.invoke("next", returning("job")).await.answer();
}

// behaviour 81
#[tokio::test]
async fn of_four_concurrent_invocations_in_one_environment_one_runs_and_three_are_refused() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.concurrent_environment();
    let gate = Gate::new().await;
    for id in ["a", "b", "c", "d"] {
        lambda.send(id, gate.wait_here("job"));
    }
    let running = gate.arrival().await;
    let mut outcomes = HashMap::new();
    for _ in 0..3 {
        let (id, outcome) = lambda.next_outcome().await;
        let (kind, message) = outcome.error();
        assert_eq!(kind, "LockHeld");
        outcomes.insert(id, message);
    }
    drop(running);
    let (winner, outcome) = lambda.next_outcome().await;
    outcome.answer();
    assert!(!outcomes.contains_key(&winner));
    assert_eq!(outcomes.len(), 3);
    // Each was told which of its twins it was.
    let holder = format!("held by function {winner} stream until");
    assert!(outcomes.values().all(|message| message.contains(&holder)), "{outcomes:?}");
}

// behaviours 12, 81
#[tokio::test]
async fn concurrent_invocations_with_different_keys_run_at_the_same_time() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.concurrent_environment();
    let gate = Gate::new().await;
    for key in ["a", "b", "c", "d"] {
        lambda.send(key, gate.wait_here(key));
    }
    let mut running = Vec::new();
    for _ in 0..4 {
        running.push(gate.arrival().await);
    }
    for mut handler in running {
        handler.shutdown().await.unwrap();
    }
    let mut owners = Vec::new();
    for _ in 0..4 {
        owners.push(lambda.next_outcome().await.1.answer()["owner"].as_str().unwrap().to_owned());
    }
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners.len(), 4, "a nonce for each: {owners:?}");
}

#[tokio::test]
async fn after_concurrent_invocations_the_key_is_free() {
    let mut lambda = Lambda::start().await;
    let _environment = lambda.concurrent_environment();
    for id in ["a", "b", "c"] {
        lambda.invoke(id, returning("job")).await.answer();
    }
}

/// What a function that takes a number logs when it is given a secret in its place, and is ended.
async fn log_of_a_payload_that_is_no_number(filter: &str) -> String {
    let mut lambda = Lambda::start().await;
    let mut command = lambda.command("run_typed");
    let mut environment = command.env("RUST_LOG", filter).stderr(Stdio::piped()).spawn().unwrap();
    let (_, message) = lambda.invoke("1", json!("the secret")).await.error();
    assert!(message.contains("the secret"), "{message}");
    environment.kill().await.unwrap();
    String::from_utf8(environment.wait_with_output().await.unwrap().stderr).unwrap()
}

// The documentation of the layers says so.
#[tokio::test]
async fn the_runtime_logs_a_payload_that_does_not_deserialise_unless_that_line_is_filtered_out() {
    let log = log_of_a_payload_that_is_no_number("info").await;
    assert!(log.contains("the secret"), "{log}");
    let log = log_of_a_payload_that_is_no_number("info,lambda_runtime::layers::api_response=off").await;
    assert!(!log.contains("the secret"), "{log}");
}
