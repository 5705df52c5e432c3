//! Rows of any content through every operation, and texts of any content through everything that reads them.
//!
//! | variable | |
//! | --- | --- |
//! | `LOCK_FUZZ_SECONDS` | for how long each search tries cases, instead of a small number of them |
//! | `LOCK_FUZZ_SEED` | where the cases begin: without it, each run tries the same |
//!
//! A failed case is minimised and printed. Its seed is added to a file in `seeds/`, which is tried first from then on. Rows
//! that are worth keeping are in `rows.jsonl`, as a failed case prints them. They stay the same when a strategy changes.

mod claims;
mod evaluator;
mod fresh;
mod owned;
mod records;
mod requests;
mod rows;
mod search;
mod stage;
mod templates;
mod texts;

use std::time::{Duration, SystemTime};

use lambda_lock::Error;
use lambda_lock_tests::World;
use tokio::runtime::Builder;

/// The key of the row.
const KEY: &str = "job";
/// A key without a row.
const OTHER: &str = "other job";
const IDENTITY: &str = "workflow";
/// The default.
const LEASE: Duration = Duration::from_secs(30);
/// The default.
const CLOCK_SKEW: Duration = Duration::from_secs(1);

const SINCE_EPOCH: Duration = Duration::from_hours(500_000);

/// Runs this with an empty table. It is always the same time, and waits take no real time.
fn in_virtual_time<T>(test: impl AsyncFnOnce(World) -> T) -> T {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::starting_at(SystemTime::UNIX_EPOCH + SINCE_EPOCH).await;
        Box::pin(test(world)).await
    })
}

/// Asserts that an error says what failed, on which of these keys, in one line of limited length.
fn assert_readable(error: &Error, keys: &[&str]) {
    assert!(keys.contains(&error.key()), "{error:?} is about {:?}", error.key());
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(keys.iter().any(|key| text.contains(&format!("`{key}`"))), "no key: {text}");
        assert_one_line(&text);
    }
}

/// Asserts that this is one line of limited length.
fn assert_one_line(text: &str) {
    assert!(!text.contains(char::is_control), "more than one line: {text:?}");
    assert!(text.len() < 2500, "{} bytes: {text}", text.len());
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap()
}
