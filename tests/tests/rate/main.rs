//! Rates: at most N calls in a period.

mod bounds;
mod calls;
mod hot;
mod late;
mod layer;
mod pause;
mod rows;
mod weight;

use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Error, Locks, Rate};
use lambda_lock_tests::ms;

const KEY: &str = "bank-api";
const SECOND: Duration = Duration::from_secs(1);

/// Ten calls a second, on this host.
fn ten_a_second(host: &Host) -> Rate {
    Locks::builder(host.client(), "locks").build().unwrap().rate(KEY, 10, SECOND)
}

#[track_caller]
fn assert_refused(passed: Result<(), Error>) {
    let error = passed.unwrap_err();
    assert!(error.is_held(), "{error}");
}
