//! What is counted and measured: names, units, labels. Feature `metrics`.
//!
//! Through the facade of the crate [`metrics`](https://docs.rs/metrics), so that any of its exporters works: install one,
//! and nothing else. Without an exporter, or without the feature, nothing is counted. [`describe`] gives an exporter units
//! and descriptions; [`LocksBuilder::build`](crate::LocksBuilder::build) calls it. Keys are never labels: there may be as
//! many of them as there are events.
//!
//! An acquire counts once when it ends: as acquired, as refused, as a refusal in progress, or as a replay. Replays from the
//! cache, and inputs that are refused before anything is sent, count too.
//!
//! ```
//! // As a dashboard or an alarm finds it.
//! assert_eq!(lambda_lock::metrics::LOST, "lambda_lock_lost");
//! ```

// Each use names what it counts, whether or not it is counted.
#![cfg_attr(not(feature = "metrics"), allow(dead_code, unreachable_pub))]

#[cfg(feature = "metrics")]
use metrics::Unit;

/// Counter: locks and records acquired.
pub const ACQUIRED: &str = "lambda_lock_acquired";
/// Counter: of those, the ones whose last lease had ended without a release: after a crash, a timeout, or a run whose record
/// was kept on purpose. Those whose answer was lost are not among them.
pub const TAKEN_OVER: &str = "lambda_lock_taken_over";
/// Counter: acquires that ended without the lock, by [`REASON`].
pub const REFUSED: &str = "lambda_lock_refused";
/// Counter: locks released and records completed.
pub const RELEASED: &str = "lambda_lock_released";
/// Counter: releases and completions that failed, by [`REASON`].
pub const RELEASE_FAILED: &str = "lambda_lock_release_failed";
/// Counter: locks whose lease ended, or that someone else had, before they were released.
pub const LOST: &str = "lambda_lock_lost";
/// Counter: attempts of acquires that waited, not counting the first one of each.
pub const RETRY_ATTEMPTS: &str = "lambda_lock_retry_attempts";
/// Counter: acquires that waited in vain, by [`REASON`].
pub const RETRIES_EXHAUSTED: &str = "lambda_lock_retries_exhausted";
/// Counter: duplicates that got the result, or the error, of the first run.
pub const REPLAYS: &str = "lambda_lock_replays";
/// Counter: duplicates that were refused because the first run was in progress.
pub const IN_PROGRESS_REFUSALS: &str = "lambda_lock_in_progress_refusals";
/// Counter: messages of SQS batches, by [`OUTCOME`].
pub const BATCH_ITEMS: &str = "lambda_lock_batch_items";

/// Histogram, milliseconds: what an acquire that succeeded took, with its waiting.
pub const ACQUIRE_TIME: &str = "lambda_lock_acquire_time";
/// Histogram, milliseconds: how long acquires that waited did so, also in vain.
pub const WAIT_TIME: &str = "lambda_lock_wait_time";
/// Histogram, milliseconds: what a release or a completion took.
pub const RELEASE_TIME: &str = "lambda_lock_release_time";
/// Histogram, milliseconds: for how long locks were held.
pub const HOLD_TIME: &str = "lambda_lock_hold_time";

/// Label: why, such as `held`, `throttled` or `access_denied`: the predicates of [`Error`](crate::Error) without `is_`,
/// and `not_sent`, `refused`, or `cancelled` for an acquire that was dropped.
pub const REASON: &str = "reason";
/// Label: what became of a message. `done` here, `duplicate` of one that is done, `in_progress` elsewhere, `failed`,
/// `unreadable`, `not_started` for lack of time or after a failure in its group, `timed_out` when its lease ended, shortly
/// before the deadline.
pub const OUTCOME: &str = "outcome";

/// Tells the exporter that is installed the units and the descriptions. For one that is installed after the
/// [`Locks`](crate::Locks) were built; otherwise that has done it.
///
/// ```
/// lambda_lock::metrics::describe();
/// ```
#[cfg(feature = "metrics")]
pub fn describe() {
    for (name, description) in [
        (ACQUIRED, "Locks and records acquired"),
        (TAKEN_OVER, "Acquired after a lease that ended without a release"),
        (REFUSED, "Acquires that ended without the lock"),
        (RELEASED, "Locks released and records completed"),
        (RELEASE_FAILED, "Releases and completions that failed"),
        (LOST, "Locks that were lost before they were released"),
        (RETRY_ATTEMPTS, "Attempts of acquires that waited, without the first"),
        (RETRIES_EXHAUSTED, "Acquires that waited in vain"),
        (REPLAYS, "Duplicates that got the first run's result"),
        (IN_PROGRESS_REFUSALS, "Duplicates of work in progress"),
        (BATCH_ITEMS, "Messages of SQS batches"),
    ] {
        metrics::describe_counter!(name, Unit::Count, description);
    }
    for (name, description) in [
        (ACQUIRE_TIME, "What an acquire took, with its waiting"),
        (WAIT_TIME, "How long an acquire waited"),
        (RELEASE_TIME, "What a release took"),
        (HOLD_TIME, "How long a lock was held"),
    ] {
        metrics::describe_histogram!(name, Unit::Milliseconds, description);
    }
}

#[cfg(feature = "metrics")]
mod record {
    use std::time::Duration;

    pub(crate) fn count(name: &'static str) {
        metrics::counter!(name).increment(1);
    }

    pub(crate) fn count_by(name: &'static str, label: &'static str, value: &'static str) {
        metrics::counter!(name, label => value).increment(1);
    }

    pub(crate) fn time(name: &'static str, duration: Duration) {
        metrics::histogram!(name).record(duration.as_secs_f64() * 1000.0);
    }
}

#[cfg(not(feature = "metrics"))]
mod record {
    use std::time::Duration;

    pub(crate) fn count(_: &'static str) {}

    pub(crate) fn count_by(_: &'static str, _: &'static str, _: &'static str) {}

    pub(crate) fn time(_: &'static str, _: Duration) {}
}

pub(crate) use record::{count, count_by, time};
