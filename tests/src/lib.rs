//! Code that the tests share: a DynamoDB to run on, and the histories.
#![allow(clippy::missing_panics_doc, reason = "a test panics when it cannot continue")]

pub mod clock_history;
pub mod coalesce_history;
mod consumer;
mod guarantee;
pub mod history;
pub mod idempotency_history;
pub mod invocation;
mod late;
pub mod linear_history;
pub mod long_run;
pub mod loopback;
pub mod powertools;
pub mod queue_history;
pub mod rate_history;
pub mod request;
pub mod rows;
pub mod runtime_api;
pub mod semaphore_history;
pub mod several_history;
pub mod shared_history;
pub mod stream_history;
pub mod till;
mod world;

use std::env;
use std::fmt::Debug;
use std::future::pending;
use std::iter;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use lambda_lock::{Error, Idempotency};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

pub use late::{Late, Refuse, Repeats, StepsClock, Undated};
pub use world::{Row, World, engine_with_latency};

/// The number in this environment variable.
#[must_use]
pub fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is `{value}`, not a number")))
}

/// So many milliseconds.
#[must_use]
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Asserts that the text of an error has all these parts.
#[track_caller]
pub fn assert_contains(error: &Error, parts: &[&str]) {
    for part in parts {
        assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
    }
}

/// Begins a run, calls `begun` in it, and drops the run.
pub async fn drop_midway<I, T, E>(work: &Idempotency<I, T, E>, input: &I, begun: impl FnOnce())
where
    T: Serialize + DeserializeOwned + Debug,
    E: Debug,
{
    let has_begun = Notify::new();
    let run = work.run(input, async |_| {
        begun();
        has_begun.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = has_begun.notified() => {}
    }
}

/// Returns the results of `run` for these seeds, in any order. All cores share the seeds.
pub fn on_all_cores<T: Send>(
    seeds: impl IntoIterator<Item = u64, IntoIter: Send>,
    run: impl Fn(u64) -> T + Sync,
) -> Vec<T> {
    let seeds = Mutex::new(seeds.into_iter());
    let share = || iter::from_fn(|| seeds.lock().unwrap().next()).map(&run).collect::<Vec<_>>();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(share)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Returns the median of these values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Compiles and runs the README's snippets.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// Compiles and runs the snippets of SECURITY.md.
#[cfg(doctest)]
#[doc = include_str!("../../SECURITY.md")]
pub struct Security;
