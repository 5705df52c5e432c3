//! The time to process a batch in which each message runs once, in multiples of a request's latency, beside Powertools for
//! AWS Lambda (TypeScript).
//!
//! In real time, on the DynamoDB that `LOCK_TEST_ENDPOINT` names; the sides take turns. `tests/src/powertools.rs` says what it
//! needs. On DynamoDB Local, with Node 20 or later:
//!
//! ```sh
//! python3 -m venv target/powertools
//! target/powertools/bin/pip install --requirement tests/interop/requirements.txt
//! npm ci --prefix tests/interop
//! LOCK_TEST_ENDPOINT=http://127.0.0.1:8000 LOCK_TEST_PYTHON=$PWD/target/powertools/bin/python \
//!     LOCK_TEST_NODE_MODULES=$PWD/tests/interop cargo bench --bench batch
//! ```

use std::convert::Infallible;
use std::env;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage as SqsRecord};
use aws_sdk_dynamodb::config::{self, Credentials, Region};
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::Host;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Locks, SqsConsumer};
use lambda_lock_tests::invocation::{Counter, invocation};
use lambda_lock_tests::powertools::{Language, Powertools};
use lambda_lock_tests::{World, median};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceExt, service_fn};

const MESSAGES: usize = 10;
/// The latency that the detour adds to a request.
const LATENCY: Duration = Duration::from_millis(5);
const DELIVERIES: [&str; 2] = ["delivered first", "delivered again"];

fn main() {
    // `cargo test` runs benchmarks with `--test`: then one round is enough.
    let is_test = env::args().any(|argument| argument == "--test");
    let (warm_up, rounds) = if is_test { (0, 1) } else { (10, 100) };
    match Powertools::find() {
        Ok(powertools) => {
            // On a separate thread, so that the work does not delay it.
            let network = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(in_turns(&powertools, &network, warm_up, rounds));
        }
        Err(missing) => println!("{missing}"),
    }
}

/// Both sides, on a DynamoDB with an additional latency of `LATENCY`.
async fn in_turns(powertools: &Powertools, network: &Runtime, warm_up: usize, rounds: usize) {
    let world = World::new().await;
    let detour = Detour::start(powertools.endpoint(), network).await;
    let consumer = Consumer::new(detour.host(), &world.table);
    let (host, client) = (consumer.host.clone(), consumer.host.client());
    let worker = Worker::start(powertools, &world, &detour);
    let mut sides =
        [("SqsConsumer", Side::Ours(consumer)), ("Powertools for TypeScript", Side::Theirs(Box::new(worker)))];
    let mut bare = Vec::new();
    // By side and delivery.
    let mut times = [(); 2].map(|()| [(); 2].map(|()| Vec::new()));
    let mut requests = [[0; 2]; 2];
    for round in 0..warm_up + rounds {
        let start = host.now();
        let read = client.get_item().table_name(&world.table).key("id", AttributeValue::S("none".to_owned()));
        read.send().await.unwrap();
        bare.push(host.now().duration_since(start).unwrap().as_secs_f64());
        // The side that goes first alternates too.
        for index in [round % 2, (round + 1) % 2] {
            let (name, side) = &mut sides[index];
            let batch = batch();
            for (delivery, expected) in [MESSAGES, 0].into_iter().enumerate() {
                let before = detour.requests();
                let (took, ran) = side.work_on(&batch).await;
                assert_eq!(ran, expected, "{name}");
                times[index][delivery].push(took);
                requests[index][delivery] = detour.requests() - before;
            }
        }
    }

    let multiple = |seconds: f64| seconds / LATENCY.as_secs_f64();
    let bare = median(bare.split_off(warm_up));
    println!("\nbatch of {MESSAGES} messages, with {LATENCY:?} added to each request, in turns, medians of {rounds}");
    println!("one GetItem takes {:.2} ms, {:.2} times the latency\n", bare * 1e3, multiple(bare));
    println!("{:<26}{:^44}{:^44}", "", DELIVERIES[0], DELIVERIES[1]);
    let columns = ["ms", "x latency", "x ours", "requests"].map(|title| format!("{title:>11}")).concat();
    println!("{:<26}{columns}{columns}", "");
    let times = times.map(|side| side.map(|mut times| times.split_off(warm_up)));
    for ((name, _), (side, requests)) in sides.iter().zip(times.iter().zip(requests)) {
        print!("{name:<26}");
        for ((took, ours), requests) in side.iter().zip(&times[0]).zip(requests) {
            let ratio = median(took.iter().zip(ours).map(|(took, ours)| took / ours).collect());
            let took = median(took.clone());
            print!("{:>11.2}{:>11.2}{ratio:>11.2}{requests:>11}", took * 1e3, multiple(took));
        }
        println!();
    }
}

/// Returns a batch of new messages.
fn batch() -> SqsEvent {
    let mut event = SqsEvent::default();
    for number in 0..MESSAGES {
        let mut message = SqsRecord::default();
        message.message_id = Some(format!("{:032x}", fastrand::u128(..)));
        message.body = Some(number.to_string());
        event.records.push(message);
    }
    event
}

enum Side {
    Ours(Consumer),
    Theirs(Box<Worker>),
}

impl Side {
    /// Returns the time in seconds, and the number of messages that ran.
    async fn work_on(&mut self, batch: &SqsEvent) -> (f64, usize) {
        match self {
            Self::Ours(consumer) => consumer.work_on(batch).await,
            Self::Theirs(worker) => worker.work_on(batch).await,
        }
    }
}

/// Our consumer, with a handler that does nothing.
struct Consumer {
    host: Arc<Host>,
    service: BoxCloneService<LambdaEvent<SqsEvent>, SqsBatchResponse, Diagnostic>,
    ran: Counter,
}

impl Consumer {
    fn new(host: Host, table: &str) -> Self {
        let ran = Counter::default();
        let counter = ran.clone();
        let handler = service_fn(move |_: SqsMessage<u32>| {
            counter.count();
            async { Ok::<_, Infallible>(()) }
        });
        let locks = Locks::builder(host.client(), table).build().unwrap();
        let service = BoxCloneService::new(SqsConsumer::by_message_id(locks).layer(handler));
        Self { host: Arc::new(host), service, ran }
    }

    async fn work_on(&mut self, batch: &SqsEvent) -> (f64, usize) {
        let event = invocation(&self.host, batch.clone());
        let (start, before) = (self.host.now(), self.ran.get());
        let response = self.service.ready().await.unwrap().call(event).await.unwrap();
        let took = self.host.now().duration_since(start).unwrap();
        assert!(response.batch_item_failures.is_empty());
        (took.as_secs_f64(), (self.ran.get() - before) as usize)
    }
}

/// Powertools: `tests/interop/batch.mjs`, which measures its own time.
struct Worker {
    _process: Child,
    batches: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(powertools: &Powertools, world: &World, detour: &Detour) -> Self {
        let mut script = powertools.script(Language::TypeScript, "batch", world);
        script.env("AWS_ENDPOINT_URL", &detour.endpoint).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = script.spawn().unwrap();
        let (batches, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { _process: process, batches, answers: BufReader::new(answers).lines() }
    }

    async fn work_on(&mut self, batch: &SqsEvent) -> (f64, usize) {
        let line = serde_json::to_string(batch).unwrap() + "\n";
        self.batches.write_all(line.as_bytes()).await.unwrap();
        let answer = self.answers.next_line().await.unwrap().expect("the script still runs");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        (answer["ms"].as_f64().unwrap() / 1e3, answer["ran"].as_u64().unwrap().try_into().unwrap())
    }
}

/// A proxy for a DynamoDB that adds `LATENCY` to each request.
struct Detour {
    endpoint: String,
    requests: Arc<AtomicU64>,
}

impl Detour {
    async fn start(endpoint: &str, network: &Runtime) -> Self {
        let to = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let requests = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&requests);
        let (started, address) = tokio::sync::oneshot::channel();
        network.spawn(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            started.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (from, _) = listener.accept().await.unwrap();
                let to = TcpStream::connect(&to).await.unwrap();
                forward(from, to, Arc::clone(&counter));
            }
        });
        Self { endpoint: format!("http://{}", address.await.unwrap()), requests }
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn host(&self) -> Host {
        Host::over(
            config::Builder::new()
                .endpoint_url(&self.endpoint)
                .region(Region::from_static("us-east-1"))
                .credentials_provider(Credentials::new("local", "local", None, None, "tests")),
            aws_smithy_http_client::Builder::new().build_http(),
        )
        .build()
    }
}

/// Forwards the client's bytes after `LATENCY`, and the server's answers at once.
fn forward(client: TcpStream, server: TcpStream, requests: Arc<AtomicU64>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (under_way, mut arriving) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            // The client sends a request only after the previous answer, so each request starts a read.
            requests.fetch_add(u64::from(buffer[..length].starts_with(b"POST ")), Ordering::Relaxed);
            // The delay starts now, not at the first poll.
            let arrival = sleep(LATENCY);
            if under_way.send((arrival, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((arrival, bytes)) = arriving.recv().await {
            arrival.await;
            if to_server.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
}
