//! A function for the tests of the runtime: `LockLayer` under the real `lambda_runtime`. It is a process because the
//! runtime reads its settings from the environment. It has its own table, in which another holder has the key `taken`.
//!
//! `function run` takes one invocation at a time, `function run_concurrent` several. The payload says what to do:
//! `{"key": "…", "do": "return" | "fail" | "panic" | "hang" | "wait" | "block" | "spawn", "at": "address to wait at"}`.
//! `function run_concurrent_once` has `IdempotencyLayer` instead, and `function run_concurrent_batch` takes batches of
//! payments. The payload of `function run_typed` is a number.
//!
//! The others have the table that the environment names. `function run_until_shutdown` releases its locks at SIGTERM, as the
//! functions of the example do. `function run_concurrent_with_table` takes several invocations at a time. `function
//! run_concurrent_leader` has one lock for the whole process, and answers with its fence. All log to standard error, filtered
//! by `RUST_LOG`.

use std::env;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use lambda_example::release_at_shutdown;
use lambda_example::telemetry::log_panics;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Idempotency, IdempotencyLayer, Lock, LockLayer, Locks, SqsConsumer, WithLock};
use lambda_lock_tests::World;
use lambda_lock_tests::loopback::TABLE;
use lambda_lock_tests::till::{Payment, Till};
use lambda_runtime::layers::TracingLayer;
use lambda_runtime::{Diagnostic, Error, LambdaEvent, Runtime};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::{Layer, service_fn};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().json().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    log_panics();
    let mode = env::args().nth(1).unwrap_or_default();
    match mode.as_str() {
        "run_until_shutdown" | "run_concurrent_with_table" | "run_concurrent_leader" => run_with_table(&mode).await,
        _ => run_in_a_world(&mode).await,
    }
}

async fn run_with_table(mode: &str) -> Result<(), Error> {
    let locks = match mode {
        "run_concurrent_with_table" => patient_locks().await?,
        _ => Locks::from_env().await?,
    };
    if mode == "run_concurrent_leader" {
        let (publish, leads) = watch::channel(None);
        tokio::spawn(lead(locks, publish));
        let handler = move |event| answer_as_leader(leads.clone(), event);
        return Runtime::new(service_fn(handler)).run_concurrent().await;
    }
    let layer = LockLayer::new(locks.clone()).key_from(|event: &LambdaEvent<Value>| text(event, "key"));
    let runtime = Runtime::new(layer.layer(service_fn(handler)));
    locks.warm_up().await;
    if mode == "run_concurrent_with_table" {
        return runtime.run_concurrent().await;
    }
    release_at_shutdown(&locks).await;
    runtime.register_snapstart_resource(Arc::new(locks)).run().await
}

/// Locks that do not give up on a table that is slower than DynamoDB.
async fn patient_locks() -> Result<Locks, Error> {
    let locks = Locks::from_env().await?;
    let patience = Duration::from_mins(1);
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(patience)
        .read_timeout(patience)
        .operation_attempt_timeout(patience)
        .build();
    let client = Client::from_conf(locks.client().config().to_builder().timeout_config(timeouts).build());
    Ok(Locks::builder(client, TABLE).build()?)
}

async fn run_in_a_world(mode: &str) -> Result<(), Error> {
    let world = World::new().await;
    let elsewhere = world.default_locks();
    let _taken = elsewhere.acquire("taken").holder("another environment").lease(Duration::from_hours(1)).await?;
    let layer = LockLayer::new(world.default_locks()).key_from(|event: &LambdaEvent<Value>| text(event, "key"));
    // The span adds the request id to every line.
    let runtime = Runtime::new(layer.layer(service_fn(handler))).layer(TracingLayer::new());
    match mode {
        "run" => runtime.run().await,
        "run_concurrent" => runtime.run_concurrent().await,
        "run_concurrent_once" => {
            let key = |event: &LambdaEvent<Value>| Some(text(event, "key"));
            let once = Idempotency::new(world.default_locks(), OnMissingKey::Reject, key);
            let layer = IdempotencyLayer::new(once.wait(Duration::from_mins(1)));
            let handler = async |event: LambdaEvent<Value>| meet(&event).await;
            Runtime::new(layer.layer(service_fn(handler))).run_concurrent().await
        }
        "run_concurrent_batch" => {
            let key = |message: &SqsMessage<Payment>| Some(message.body.id.clone());
            let once = Idempotency::new(world.default_locks(), OnMissingKey::Reject, key);
            let till = Till::default();
            let handler = move |message: SqsMessage<Payment>| till.clone().pay(message);
            Runtime::new(SqsConsumer::new(once).layer(service_fn(handler))).run_concurrent().await
        }
        "run_typed" => {
            let typed = async |event: LambdaEvent<u32>| Ok::<_, OutOfPaper>(event.payload);
            Runtime::new(LockLayer::new(world.default_locks()).layer(service_fn(typed))).run().await
        }
        other => Err(format!("run, run_concurrent or run_typed, not {other:?}").into()),
    }
}

/// The lease of the process that leads.
const LEASE: Duration = Duration::from_secs(6);

/// The loop in the documentation of `Lock::until_lost`, with a shorter lease.
async fn lead(locks: Locks, leads: watch::Sender<Option<Arc<Lock>>>) {
    loop {
        let lock = match locks.acquire("leader").lease(LEASE).wait(Duration::MAX).await {
            Ok(lock) => Arc::new(lock),
            Err(error) => {
                eprintln!("{error}");
                tokio::time::sleep(LEASE / 3).await;
                continue;
            }
        };
        leads.send_replace(Some(Arc::clone(&lock)));
        while lock.is_valid() {
            tokio::time::sleep(LEASE / 3).await;
            if let Err(error) = lock.renew(LEASE).await {
                eprintln!("{error}");
            }
        }
        leads.send_replace(None);
    }
}

/// Answers with the fence if this process leads, and otherwise with null. With `after` in the payload, waits until it leads
/// with a larger fence than that.
async fn answer_as_leader(
    mut leads: watch::Receiver<Option<Arc<Lock>>>,
    event: LambdaEvent<Value>,
) -> Result<Value, Error> {
    let lock = match event.payload["after"].as_u64() {
        Some(after) => leads.wait_for(|lock| lock.as_ref().is_some_and(|lock| lock.fence() > after)).await?.clone(),
        None => leads.borrow().clone(),
    };
    Ok(json!(lock.filter(|lock| lock.is_valid()).map(|lock| lock.fence())))
}

fn text(event: &LambdaEvent<Value>, field: &str) -> String {
    event.payload[field].as_str().unwrap_or_default().to_owned()
}

async fn handler(WithLock { input, lock, .. }: WithLock<LambdaEvent<Value>>) -> Result<Value, OutOfPaper> {
    match input.payload["do"].as_str() {
        Some("return") => {}
        Some("wait") => drop(meet(&input).await?),
        Some("fail") => return Err(OutOfPaper),
        Some("hang") => std::future::pending().await,
        Some("block") => block_until_lost(&lock),
        Some("spawn") => {
            let place = text(&input, "at");
            tokio::spawn(work_until_lost(place.clone(), Arc::clone(&lock), async |lock| lock.until_lost().await));
            let work = work_until_lost(place, lock, async |lock| {
                tokio::task::spawn_blocking(move || block_until_lost(&lock)).await.expect("no panic");
            });
            tokio::spawn(work);
            return std::future::pending().await;
        }
        other => panic!("cannot do {other:?}"),
    }
    Ok(json!({ "fence": lock.fence(), "owner": lock.owner(), "request": input.context.request_id }))
}

/// Waits where the payload says until the test closes the connection. Returns which request this is.
async fn meet(event: &LambdaEvent<Value>) -> Result<Value, OutOfPaper> {
    let mut stream = TcpStream::connect(text(event, "at")).await.expect("the place to wait at");
    stream.read_to_end(&mut Vec::new()).await.expect("the test");
    Ok(json!({ "request": event.context.request_id }))
}

#[expect(clippy::disallowed_methods, reason = "the thread is to be blocked")]
fn block_until_lost(lock: &Lock) {
    while lock.is_valid() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Comes to this place, works until the lock is lost, and says so there.
async fn work_until_lost(place: String, lock: Arc<Lock>, work: impl AsyncFnOnce(Arc<Lock>)) {
    let mut stream = TcpStream::connect(place).await.expect("the place to come to");
    work(lock).await;
    stream.write_all(b"stopped").await.expect("the test");
}

#[derive(Debug)]
struct OutOfPaper;

impl From<OutOfPaper> for Diagnostic {
    fn from(_: OutOfPaper) -> Self {
        Self { error_type: "OutOfPaper".to_owned(), error_message: "fill the tray".to_owned() }
    }
}
