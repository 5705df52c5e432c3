//! The names, units and labels of the metrics. They are recorded with the feature `metrics`.
//!
//! Metrics go through the facade of the crate [`metrics`](https://docs.rs/metrics), so any of its exporters works:
//! install one. Without an exporter, or without the feature, nothing is recorded. `describe` gives the exporter units and
//! descriptions; [`LocksBuilder::build`](crate::LocksBuilder::build) calls it. A key is never a label, because there may be
//! as many keys as events.
//!
//! An acquire counts once, when it ends: as acquired, as refused, as an in-progress refusal, or as a replay. Replays from
//! the cache count, and so do inputs that are rejected before a request is sent.
//!
//! ```
//! // The name that a dashboard or an alarm uses.
//! assert_eq!(lambda_lock::metrics::LOST, "lambda_lock_lost");
//! ```

#[cfg(feature = "metrics")]
use metrics::Unit;

/// Counter: locks and records acquired, and calls that a [rate](crate::Rate) let pass.
pub const ACQUIRED: &str = "lambda_lock_acquired";
/// Counter: leases that ended without a release, when the next acquire of the key finds them: the last holder crashed or
/// timed out, or kept its record on purpose. Each permit of a semaphore counts. An acquisition whose answer was lost finds no
/// such lease, and neither does an acquisition of several keys.
pub const TAKEN_OVER: &str = "lambda_lock_taken_over";
/// Counter: acquires that ended without the lock, by [`REASON`]. Replays and in-progress refusals have their own counters.
pub const REFUSED: &str = "lambda_lock_refused";
/// Counter: locks released, also by their identity, and records completed, unless their work failed or was not run. Work that
/// should happen has happened if this counts.
pub const RELEASED: &str = "lambda_lock_released";
/// Counter: work under a lock or a record that failed. Its handler returned an error, panicked, or was cancelled at the end
/// of its lease; an HTTP handler answered with a status from 500; a result could not be stored; a lock was dropped without
/// a release; or your code called [`clear_min_hold`](crate::Lock::clear_min_hold). It does not count as
/// [`RELEASED`]. [`Acquire::run`](crate::Acquire::run) and your own releases cannot tell an error from a result: call
/// `clear_min_hold` there. A lock that is [kept](crate::Lock::keep) counts when its identity releases it. A run that has
/// committed its result in a transaction and fails after that counts as both.
pub const WORK_FAILED: &str = "lambda_lock_work_failed";
/// Counter: releases and completions that failed, by [`REASON`].
pub const RELEASE_FAILED: &str = "lambda_lock_release_failed";
/// Counter: locks lost before their release, because the lease ended or another holder took the key.
pub const LOST: &str = "lambda_lock_lost";
/// Counter: attempts of waiting acquires, without the first attempt of each.
pub const RETRY_ATTEMPTS: &str = "lambda_lock_retry_attempts";
/// Counter: waits that ended without the lock, by [`REASON`].
pub const RETRIES_EXHAUSTED: &str = "lambda_lock_retries_exhausted";
/// Counter: duplicates that got the result, or the error, of the first run.
pub const REPLAYS: &str = "lambda_lock_replays";
/// Counter: duplicates refused while the first run was in progress.
pub const IN_PROGRESS_REFUSALS: &str = "lambda_lock_in_progress_refusals";
/// Counter: messages of SQS batches and records of stream and Kafka batches, by [`OUTCOME`].
pub const BATCH_ITEMS: &str = "lambda_lock_batch_items";
/// Counter: HTTP requests that were answered with a problem instead of a response of the handler, by [`PROBLEM`].
pub const HTTP_PROBLEMS: &str = "lambda_lock_http_problems";

/// Histogram, milliseconds: duration of successful acquires, including their waits.
pub const ACQUIRE_TIME: &str = "lambda_lock_acquire_time";
/// Histogram, milliseconds: how long acquires waited, with or without success. Only acquires that waited are recorded.
pub const WAIT_TIME: &str = "lambda_lock_wait_time";
/// Histogram, milliseconds: duration of releases and completions.
pub const RELEASE_TIME: &str = "lambda_lock_release_time";
/// Histogram, milliseconds: how long locks were held. A lock that is [kept](crate::Lock::keep) counts once, from its
/// first acquire to the release by the lock that has taken it over.
pub const HOLD_TIME: &str = "lambda_lock_hold_time";

/// Histogram, count: how many waiters were ahead of an acquire that took a place in the queue.
pub const WAITERS_AHEAD: &str = "lambda_lock_waiters_ahead";

/// Label: the cause, such as `held`, `throttled` or `access_denied`. The values are the names of
/// [`ErrorKind`](crate::ErrorKind), and `cancelled` for an acquire that was dropped, `used_up` for a call that comes too early
/// for its [rate](crate::Rate), and `left_to_holder` for an invocation that left its work to the holder
/// ([`LockLayer::coalesce`](crate::LockLayer::coalesce)). The last two are normal operation.
pub const REASON: &str = "reason";
/// Label: the last part of a problem's type, such as `key-malformed`. The guide [HTTP in
/// detail](crate::docs::reference::http#the-statuses) has them.
pub const PROBLEM: &str = "problem";
/// Label: the outcome of a message or a record. `done` by this invocation, `duplicate` of a done one, `in_progress`
/// elsewhere, `failed`, `dead_lettered`, `unreadable`, `not_started` for lack of time or after a failure in its lane, or
/// `timed_out` when it was cancelled near the end of its lease.
pub const OUTCOME: &str = "outcome";

/// Gives the installed exporter the units and descriptions. Feature `metrics`.
///
/// ```
/// lambda_lock::metrics::describe();
/// ```
///
/// Call it only if the exporter is installed after [`Locks`](crate::Locks) was built.
#[cfg(feature = "metrics")]
pub fn describe() {
    for (name, description) in [
        (ACQUIRED, "Locks and records acquired"),
        (TAKEN_OVER, "Acquired after a lease that ended without a release"),
        (REFUSED, "Acquires that ended without the lock"),
        (RELEASED, "Locks released and records completed, unless their work failed"),
        (WORK_FAILED, "Work under a lock or a record that failed"),
        (RELEASE_FAILED, "Releases and completions that failed"),
        (LOST, "Locks lost before their release"),
        (RETRY_ATTEMPTS, "Retries of waiting acquires"),
        (RETRIES_EXHAUSTED, "Waits that ended without the lock"),
        (REPLAYS, "Duplicates that got the first run's result"),
        (IN_PROGRESS_REFUSALS, "Duplicates refused while the first run was in progress"),
        (BATCH_ITEMS, "Messages of SQS batches and records of stream and Kafka batches"),
        (HTTP_PROBLEMS, "HTTP requests answered with a problem"),
    ] {
        metrics::describe_counter!(name, Unit::Count, description);
    }
    for (name, description) in [
        (ACQUIRE_TIME, "Duration of successful acquires, including waits"),
        (WAIT_TIME, "Duration of waits"),
        (RELEASE_TIME, "Duration of releases and completions"),
        (HOLD_TIME, "How long locks were held"),
    ] {
        metrics::describe_histogram!(name, Unit::Milliseconds, description);
    }
    metrics::describe_histogram!(WAITERS_AHEAD, Unit::Count, "Waiters ahead of one that took a place in the queue");
}

/// A [`REASON`], and an [`OUTCOME`]: the rate is used up.
pub(crate) const USED_UP: &str = "used_up";

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

    #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
    pub(crate) fn measure(name: &'static str, count: u64) {
        metrics::histogram!(name).record(count as f64);
    }
}

#[cfg(not(feature = "metrics"))]
mod record {
    use std::time::Duration;

    pub(crate) fn count(_: &'static str) {}

    pub(crate) fn count_by(_: &'static str, _: &'static str, _: &'static str) {}

    pub(crate) fn time(_: &'static str, _: Duration) {}

    pub(crate) fn measure(_: &'static str, _: u64) {}
}

pub(crate) use record::{count, count_by, measure, time};
