//! What a span, its events and the metrics tell of a lock, from the first attempt to acquire it to its release.
//!
//! One span `lock` for each acquire, at level info, in which the work runs too. Its key is the one in the row: hashed if
//! that is. Nothing of a payload, a result or data is told. Events name the key again, for a filter that leaves out the
//! span.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::Span;
use tracing::field::Empty;

use crate::clock::{Clock, Moment, millis};
use crate::error::Error;
use crate::holder::Holder;
use crate::lock::Lock;
use crate::metrics;

/// An acquire that is under way. Dropped without an answer, it was cancelled.
#[derive(Debug)]
pub(crate) struct Asking {
    span: Span,
    clock: Clock,
    started: Moment,
    /// Whether it tries again when it is refused.
    waits: bool,
    attempts: u32,
    waited: Duration,
    sleeping_since: Option<Moment>,
    is_answered: bool,
}

impl Asking {
    pub(crate) fn begin(key: &str, clock: &Clock, waits: bool) -> Self {
        let span = tracing::info_span!(
            "lock",
            key,
            owner = Empty,
            fence = Empty,
            outcome = Empty,
            attempts = Empty,
            waited_ms = Empty,
            held_ms = Empty
        );
        let (clock, started) = (clock.clone(), clock.now());
        Self {
            span,
            clock,
            started,
            waits,
            attempts: 0,
            waited: Duration::ZERO,
            sleeping_since: None,
            is_answered: false,
        }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn attempt(&mut self) {
        self.wake();
        self.attempts += 1;
        if self.attempts > 1 {
            metrics::count(metrics::RETRY_ATTEMPTS);
        }
    }

    /// Until the next attempt, it sleeps.
    pub(crate) fn sleeps(&mut self) {
        self.sleeping_since = Some(self.clock.now());
    }

    pub(crate) fn acquired(mut self, lock: &Lock, taken_from: Option<&Holder>) {
        self.span.record("owner", lock.owner()).record("fence", lock.fence());
        self.answer();
        metrics::count(metrics::ACQUIRED);
        metrics::time(metrics::ACQUIRE_TIME, self.clock.now().since(self.started));
        let _in = self.span.enter();
        let (key, fence) = (lock.key(), lock.fence());
        tracing::debug!(key, fence, "acquired");
        if let Some(holder) = taken_from {
            metrics::count(metrics::TAKEN_OVER);
            tracing::warn!(key, fence, from = %holder, "taken over: the last holder did not release it");
        }
    }

    pub(crate) fn refused(mut self, error: &Error) {
        let reason = error.reason();
        self.span.record("outcome", reason);
        self.answer();
        if self.waits && error.is_worth_waiting() {
            metrics::count_by(metrics::RETRIES_EXHAUSTED, metrics::REASON, reason);
        }
        let _in = self.span.enter();
        refused(error);
    }

    fn wake(&mut self) {
        if let Some(since) = self.sleeping_since.take() {
            self.waited += self.clock.now().since(since);
        }
    }

    fn answer(&mut self) {
        self.wake();
        self.is_answered = true;
        self.span.record("attempts", self.attempts).record("waited_ms", millis(self.waited));
        if !self.waited.is_zero() {
            metrics::time(metrics::WAIT_TIME, self.waited);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.is_answered {
            self.span.record("outcome", "cancelled");
            self.answer();
            metrics::count_by(metrics::REFUSED, metrics::REASON, "cancelled");
            let _in = self.span.enter();
            tracing::debug!("an acquire was cancelled");
        }
    }
}

/// Tells of an acquire that is refused, or of one that is not even sent.
pub(crate) fn refused(error: &Error) {
    let reason = error.reason();
    match reason {
        // An answer, not an error.
        "replayed" => return,
        // Whoever asked tells it: the consumer of a queue names the message.
        "in_progress" => return metrics::count(metrics::IN_PROGRESS_REFUSALS),
        _ => metrics::count_by(metrics::REFUSED, metrics::REASON, reason),
    }
    not_acquired(error);
}

pub(crate) fn not_acquired(error: &Error) {
    tracing::info!(key = error.key(), reason = error.reason(), %error, "not acquired");
}

/// A lock that is held, until its release is answered.
#[derive(Debug)]
pub(crate) struct Holding {
    span: Span,
    key: String,
    since: Moment,
    /// The lease was over when the hold ended. Told with what the release finds, which may know who has the key now.
    has_overrun: AtomicBool,
    is_lost: AtomicBool,
    /// What happened to the row last. Told at the end, and once, because logs show each value that a span was given.
    outcome: Mutex<&'static str>,
}

impl Holding {
    pub(crate) fn new(span: Span, key: &str, since: Moment) -> Self {
        Self {
            span,
            key: key.to_owned(),
            since,
            has_overrun: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            outcome: Mutex::new("left"),
        }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// It is no longer relied on from here on.
    pub(crate) fn ended(&self, now: Moment, has_overrun: bool) {
        let held = now.since(self.since);
        self.span.record("held_ms", millis(held));
        metrics::time(metrics::HOLD_TIME, held);
        self.has_overrun.store(has_overrun, Ordering::Relaxed);
    }

    /// Told once.
    pub(crate) fn lost(&self, to: Option<&Holder>) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            metrics::count(metrics::LOST);
            let _in = self.span.enter();
            let to = to.map(tracing::field::display);
            tracing::warn!(key = self.key, to, "lost: the lease ended, or someone else has the key");
        }
    }

    /// Released or completed, by a request that was sent and answered at these times.
    pub(crate) fn released(&self, outcome: &'static str, request: Option<(Moment, Moment)>) {
        self.came_to(outcome);
        metrics::count(metrics::RELEASED);
        if let Some((sent, answered)) = request {
            metrics::time(metrics::RELEASE_TIME, answered.since(sent));
        }
    }

    pub(crate) fn release_failed(&self, error: &Error) {
        if error.is_lost() {
            self.lost(error.holder());
        }
        self.came_to("release_failed");
        metrics::count_by(metrics::RELEASE_FAILED, metrics::REASON, error.reason());
    }

    fn came_to(&self, outcome: &'static str) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        if self.has_overrun.load(Ordering::Relaxed) {
            self.lost(None);
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.has_overrun.load(Ordering::Relaxed) {
            self.lost(None);
        }
        // What became of the row of a lock that is lost does not change that it is.
        let outcome = *self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        self.span.record("outcome", if self.is_lost() { "lost" } else { outcome });
    }
}
