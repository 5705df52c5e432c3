//! The time that a fault costs a caller.
//!
//! Measures the SDK's default HTTP client with the settings of `client_config`, over a socket. The server drops, refuses or
//! never answers one request of each operation. A ratio compares with the SDK's own settings.
//!
//! Exits with 1 if a target is missed. `--test` makes few runs and checks no target. A name, such as `throttled` or
//! `Renew`, selects the rows to measure.

use std::convert::Infallible;
use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use futures_util::{StreamExt, stream};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Idempotency, Locks, client_config};
use lambda_lock_tests::loopback::{Fault, Loopback, TABLE};
use tokio::runtime::Builder;

const FAULTS: [Fault; 5] = [Fault::AnswerLost, Fault::Reset, Fault::ServerError, Fault::Throttle, Fault::Silence];

/// The limit for 95 of 100 runs.
fn target(fault: Fault) -> Duration {
    match fault {
        Fault::AnswerLost | Fault::Reset | Fault::ServerError => Duration::from_millis(100),
        Fault::Throttle => Duration::from_millis(150),
        Fault::Silence => Duration::from_millis(1200),
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::AnswerLost => "answer lost",
        Fault::Reset => "connection reset",
        Fault::ServerError => "status 500",
        Fault::Throttle => "throttled",
        Fault::Silence => "never answered",
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
    let server = Loopback::start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    println!(
        "\n{:<12}{:<20}{:>10}{:>10}{:>10}{:>10}{:>22}",
        "operation", "fault", "median", "95 %", "longest", "target", "SDK's default, ratio"
    );
    let mut missed = 0;
    for operation in Operation::ALL {
        for fault in FAULTS {
            if !format!("{operation:?} {}", name(fault)).contains(&wanted) {
                continue;
            }
            let ours = runtime.block_on(measure(&server, true, operation, fault, runs));
            let ratio = if fault == Fault::Silence {
                // With its default settings, the SDK waits forever.
                "waits forever".to_owned()
            } else {
                let theirs = runtime.block_on(measure(&server, false, operation, fault, runs / 2));
                format!("{:.1}", median(&theirs).as_secs_f64() / median(&ours).as_secs_f64())
            };
            let (within, target) = (ours[ours.len() * 95 / 100 - 1], target(fault));
            missed += u32::from(within > target);
            println!(
                "{:<12}{:<20}{:>10}{:>10}{:>10}{:>10}{ratio:>22}{}",
                format!("{operation:?}"),
                name(fault),
                in_ms(median(&ours)),
                in_ms(within),
                in_ms(ours[ours.len() - 1]),
                in_ms(target),
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

/// Returns the times of an operation with this fault, without the requests before and after it, the shortest first.
async fn measure(server: &Loopback, ours: bool, operation: Operation, fault: Fault, runs: usize) -> Vec<Duration> {
    let run = async |number: usize| {
        let locks = Locks::builder(client(server, ours).await, TABLE).holder("the benchmark").build().unwrap();
        let key = format!("{operation:?} {fault:?} {ours} {number}");
        time(server, &locks, operation, fault, key).await
    };
    // Runs of a silence only wait, so several run at once. Not all: the SDK limits the retries of a process.
    let at_once = if fault == Fault::Silence { 5 } else { 1 };
    let mut times: Vec<_> = stream::iter(0..runs).map(run).buffered(at_once).collect().await;
    times.sort_unstable();
    times
}

async fn time(server: &Loopback, locks: &Locks, operation: Operation, fault: Fault, key: String) -> Duration {
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

/// Returns the SDK's default client, with our configuration or with the SDK's.
async fn client(server: &Loopback, ours: bool) -> Client {
    let config = aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(server.endpoint())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "benchmark"))
        .load()
        .await;
    if ours { Client::from_conf(client_config(&config).build()) } else { Client::new(&config) }
}
