//! The time that a fault costs a caller.
//!
//! Measures the SDK's default HTTP client with the settings of `client_config`, over a socket. The server drops, refuses or
//! never answers one request of each operation. A ratio compares with the SDK's own settings.
//!
//! Exits with 1 if a target is missed. `--test` makes few runs and checks no target. A name, such as `throttled` or
//! `Renew`, selects the rows to measure.

use std::collections::HashMap;
use std::convert::Infallible;
use std::env;
use std::fmt::{self, Debug};
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lambda_lock::embedded::{Answer, DynamoDb, Intercept};
use lambda_lock::{Idempotency, Locks, OnMissingKey, client_config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::time::sleep;

const TABLE: &str = "locks";
/// The latency of each request, there and back.
const LATENCY: Duration = Duration::from_millis(5);

/// The fate of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The request is applied, and the connection breaks before the answer.
    AnswerLost,
    /// The connection breaks, and the request is not applied.
    Reset,
    ServerError,
    Throttle,
    /// The request is applied, and the answer never comes.
    Silence,
}

impl Fault {
    const ALL: [Self; 5] = [Self::AnswerLost, Self::Reset, Self::ServerError, Self::Throttle, Self::Silence];

    /// The limit for 95 of 100 runs.
    fn target(self) -> Duration {
        match self {
            Self::AnswerLost | Self::Reset | Self::ServerError => Duration::from_millis(100),
            Self::Throttle => Duration::from_millis(150),
            Self::Silence => Duration::from_millis(1200),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AnswerLost => "answer lost",
            Self::Reset => "connection reset",
            Self::ServerError => "status 500",
            Self::Throttle => "throttled",
            Self::Silence => "never answered",
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Acquire,
    Renew,
    Release,
    Complete,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Acquire, Self::Renew, Self::Release, Self::Complete];
}

fn main() -> ExitCode {
    let trial = env::args().any(|argument| argument == "--test");
    let runs = if trial { 2 } else { 100 };
    let wanted = env::args().skip(1).find(|argument| !argument.starts_with("--")).unwrap_or_default();
    let server = Server::start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    println!(
        "\n{:<12}{:<20}{:>10}{:>10}{:>10}{:>10}{:>22}",
        "operation", "fault", "median", "95 %", "longest", "target", "SDK's default, ratio"
    );
    let mut missed = 0;
    for operation in Operation::ALL {
        for fault in Fault::ALL {
            if !format!("{operation:?} {fault}").contains(&wanted) {
                continue;
            }
            let mut ours = runtime.block_on(measure(&server, true, operation, fault, runs));
            ours.sort_unstable();
            // With its default settings, the SDK waits forever.
            let ratio = (fault != Fault::Silence).then(|| {
                let mut theirs = runtime.block_on(measure(&server, false, operation, fault, runs / 2));
                theirs.sort_unstable();
                median(&theirs).as_secs_f64() / median(&ours).as_secs_f64()
            });
            let (within, target) = (ours[runs * 95 / 100 - 1], fault.target());
            missed += u32::from(within > target);
            println!(
                "{:<12}{fault:<20}{:>10}{:>10}{:>10}{:>10}{:>22}{}",
                format!("{operation:?}"),
                in_ms(median(&ours)),
                in_ms(within),
                in_ms(ours[runs - 1]),
                in_ms(target),
                ratio.map_or_else(|| "waits forever".to_owned(), |ratio| format!("{ratio:.1}")),
                if within > target { "  missed" } else { "" }
            );
        }
    }
    if missed > 0 && !trial { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn median(times: &[Duration]) -> Duration {
    times[times.len() / 2]
}

fn in_ms(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

/// Returns the times of an operation with this fault, without the requests before and after it.
async fn measure(server: &Server, ours: bool, operation: Operation, fault: Fault, runs: usize) -> Vec<Duration> {
    let run = async |number: usize| {
        let locks = Locks::builder(server.client(ours).await, TABLE).holder("the benchmark").build().unwrap();
        let key = format!("{operation:?} {fault} {ours} {number}");
        time(server, &locks, operation, fault, key).await
    };
    if fault == Fault::Silence {
        // These runs only wait, so several run at once. Not all: the SDK limits the retries of a process.
        return stream::iter(0..runs).map(run).buffered(5).collect().await;
    }
    let mut times = Vec::new();
    for number in 0..runs {
        times.push(run(number).await);
    }
    times
}

async fn time(server: &Server, locks: &Locks, operation: Operation, fault: Fault, key: String) -> Duration {
    // Opens the connection, as in a warm environment.
    locks.warm_up().await;
    match operation {
        Operation::Acquire => {
            server.fail(&key, fault);
            let start = clock();
            let lock = locks.acquire(key).await.unwrap();
            let took = start.elapsed();
            lock.release().await.unwrap();
            took
        }
        Operation::Renew => {
            let lock = locks.acquire(&key).await.unwrap();
            server.fail(&key, fault);
            let start = clock();
            lock.renew(Duration::from_secs(30)).await.unwrap();
            let took = start.elapsed();
            lock.release().await.unwrap();
            took
        }
        Operation::Release => {
            let lock = locks.acquire(&key).await.unwrap();
            server.fail(&key, fault);
            let start = clock();
            lock.release().await.unwrap();
            start.elapsed()
        }
        Operation::Complete => {
            let once = Idempotency::<String, Duration, Infallible>::new(locks.clone(), OnMissingKey::Reject, |key| {
                Some(key.clone())
            });
            let mut start = None;
            let work = async |_: &_| {
                server.fail(&key, fault);
                start = Some(clock());
                Ok(Duration::ZERO)
            };
            once.run(&key, work).await.unwrap();
            start.unwrap().elapsed()
        }
    }
}

/// Returns the real time, which this benchmark measures.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn clock() -> Instant {
    Instant::now()
}

/// The embedded engine behind a socket, on a separate thread.
struct Server {
    address: SocketAddr,
    faults: Faults,
}

/// The fate of the next update, by key.
type Faults = Arc<Mutex<HashMap<String, Fault>>>;

impl Server {
    fn start() -> Self {
        let faults = Faults::default();
        let (sender, address) = mpsc::channel();
        thread::spawn({
            let faults = Arc::clone(&faults);
            move || {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let engine = Arc::new(Carrier::new().await);
                    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                    sender.send(listener.local_addr().unwrap()).unwrap();
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        let (engine, faults) = (Arc::clone(&engine), Arc::clone(&faults));
                        let answer =
                            service_fn(move |request| answer(Arc::clone(&engine), Arc::clone(&faults), request));
                        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
                    }
                });
            }
        });
        Self { address: address.recv().unwrap(), faults }
    }

    fn fail(&self, key: &str, fault: Fault) {
        self.faults.lock().unwrap().insert(key.to_owned(), fault);
    }

    /// Returns the SDK's default client, with our configuration or with the SDK's.
    async fn client(&self, ours: bool) -> Client {
        let config = aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(format!("http://{}", self.address))
            .region(Region::from_static("us-east-1"))
            .credentials_provider(Credentials::new("local", "local", None, None, "benchmark"))
            .load()
            .await;
        if ours { Client::from_conf(client_config(&config).build()) } else { Client::new(&config) }
    }
}

/// Answers one request. An error breaks the connection.
async fn answer(engine: Arc<Carrier>, faults: Faults, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let broken = || io::Error::other("a fault of the benchmark");
    let body = request.into_body().collect().await.map_err(|_| broken())?.to_bytes();
    let update: Value = serde_json::from_slice(&body)?;
    let fault = update["Key"]["id"]["S"].as_str().and_then(|key| faults.lock().unwrap().remove(key));
    let of_json =
        |status, body: String| Response::builder().status(status).body(Full::from(body)).map_err(|_| broken());
    sleep(LATENCY / 2).await;
    let answer = match fault {
        Some(Fault::Reset) => return Err(broken()),
        Some(Fault::ServerError) => of_json(500, json!({ "__type": "InternalServerError" }).to_string()),
        Some(Fault::Throttle) => of_json(400, json!({ "__type": "ThrottlingException" }).to_string()),
        Some(Fault::AnswerLost) => {
            engine.update(update).await;
            return Err(broken());
        }
        Some(Fault::Silence) => {
            engine.update(update).await;
            std::future::pending().await
        }
        None => {
            let (status, body) = engine.update(update).await;
            of_json(status, body.to_string())
        }
    };
    sleep(LATENCY / 2).await;
    answer
}

/// Passes updates from the socket to the embedded engine.
#[derive(Debug)]
struct Carrier {
    engine: Client,
    load: Load,
    alone: tokio::sync::Mutex<()>,
}

/// The update, then its answer.
#[derive(Clone, Debug, Default)]
struct Load(Arc<Mutex<(Value, u16)>>);

impl Intercept for Load {
    fn request(&self, _: &str, request: &mut Value) {
        *request = self.0.lock().unwrap().0.take();
    }

    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        *self.0.lock().unwrap() = (answer.body.clone(), answer.status);
    }
}

impl Carrier {
    async fn new() -> Self {
        let (engine, load) = (DynamoDb::new().unwrap(), Load::default());
        Locks::builder(engine.client(), TABLE).build().unwrap().create_table().await.unwrap();
        let engine = engine.host().intercept(load.clone()).build().client();
        Self { engine, load, alone: tokio::sync::Mutex::default() }
    }

    async fn update(&self, update: Value) -> (u16, Value) {
        let _alone = self.alone.lock().await;
        self.load.0.lock().unwrap().0 = update;
        // The hand-written request, which `Load` replaces with the update.
        let request = self.engine.update_item().table_name(TABLE);
        let _answer = request.key("id", AttributeValue::S("replaced".to_owned())).send().await;
        let (body, status) = self.load.0.lock().unwrap().clone();
        (status, body)
    }
}
