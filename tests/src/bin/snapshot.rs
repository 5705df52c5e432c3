//! A process that is copied after its init phase, as environments are with Lambda's `SnapStart`, for
//! `tests/snap_start.rs`. Its settings are in its environment.
//!
//! It prints a line when it is ready for the snapshot, and goes on when it reads one. Each of several copies then prints what
//! it drew as JSON, and ends.

use std::convert::Infallible;
use std::env;
use std::fs;
use std::io;
use std::process::exit;
use std::thread;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::Client;
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use fork::{Fork, fork, waitpid};
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Backoff, Idempotency, Jitter, Locks, Wait, client_config};
use lambda_runtime::SnapStartResource;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// The number of copies.
const COPIES: usize = 5;

/// How long the client waits for an answer: longer than a warm-up, so that no repetition hides a connection of the snapshot.
const TIMEOUT: Duration = Duration::from_mins(1);

fn main() {
    let init = runtime();
    let locks = init.block_on(async {
        let timeouts = TimeoutConfig::builder().read_timeout(TIMEOUT).operation_attempt_timeout(TIMEOUT).build();
        let config = aws_config::defaults(BehaviorVersion::latest()).timeout_config(timeouts).load().await;
        let client = Client::from_conf(client_config(&config).build());
        let locks = Locks::builder(client, env::var("LOCK_TABLE_NAME").unwrap()).build().unwrap();
        locks.warm_up().await;
        locks.acquire("init").await.unwrap().release().await.unwrap();
        locks.before_snapshot().await.unwrap();
        locks
    });
    println!("ready");
    io::stdin().read_line(&mut String::new()).unwrap();
    // A copy has only the thread that copies.
    assert_eq!(fs::read_dir("/proc/self/task").unwrap().count(), 1, "threads");
    for _ in 0..COPIES {
        match fork().unwrap() {
            Fork::Child => {
                println!("{}", runtime().block_on(restored(&locks)));
                // Without destructors: the runtime of the init phase belongs to the process that was copied.
                exit(0);
            }
            Fork::Parent(copy) => assert_eq!(waitpid(copy).unwrap(), 0, "a copy failed"),
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns what a copy draws, and how long its warm-up and its first acquire take.
async fn restored(locks: &Locks) -> Value {
    let clock = SystemTimeSource::new();
    let copied = fastrand::u64(..);
    let began = clock.now();
    locks.after_restore().await.unwrap();
    let lock = locks.acquire("job").await.unwrap();
    let acquired = clock.now();
    let owner = lock.owner().to_owned();
    lock.release().await.unwrap();
    // An input without a key runs without protection.
    let unprotected: Idempotency<(), String, Infallible> =
        Idempotency::new(locks.clone(), OnMissingKey::RunUnprotected, |()| None::<Value>);
    let key = unprotected.run(&(), async |run| Ok(run.lock().key().to_owned())).await.unwrap();
    json!({
        "copied": copied,
        "drawn": {
            "owner": owner,
            "token": lambda_lock::request_token(),
            "key of an unprotected run": key,
            "delays of a wait": thread::spawn(delays).join().unwrap().as_nanos(),
            "delay of the SDK": fastrand::u64(..),
        },
        "restore": acquired.duration_since(began).unwrap().as_millis(),
    })
}

/// Returns how long five delays of a wait take, in virtual time.
fn delays() -> Duration {
    // A thread that builds hosts is a simulation, whose delays do not come from the operating system.
    let (_engine, host, locks) = thread::spawn(|| runtime().block_on(held())).join().unwrap();
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
        let started = host.now();
        let backoff = Wait::backoff(Backoff::new().jitter(Jitter::Full)).max_attempts(6).up_to(Duration::from_hours(1));
        assert!(locks.acquire("job").wait(backoff).await.unwrap_err().is_held());
        host.now().duration_since(started).unwrap()
    })
}

/// Returns a host with the locks of an engine in which the key `job` is held.
async fn held() -> (DynamoDb, Host, Locks) {
    let engine = DynamoDb::new().unwrap();
    let host = engine.host().build();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    locks.acquire("job").lease(Duration::from_hours(24)).await.unwrap().keep();
    (engine, host, locks)
}
