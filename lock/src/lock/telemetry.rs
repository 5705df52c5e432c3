//! Spans, events and metrics of a lock, from the first attempt to the release.
//!
//! Each acquire has one span `lock`, at level info, in which the work also runs. The other spans are only exported: no event
//! is in them, so they are not a part of the log. The key of the span `lock` is the row's key, with the prefix of the `Locks`,
//! so it is hashed if the row's key is. No payload, result or data is recorded. Events repeat the key, for filters that leave
//! out the span. Keys and owners are [printable].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Span;
use tracing::field::{Empty, display};

use crate::clock::{Clock, Moment, millis};
use crate::error::{Error, ErrorKind};
use crate::holder::Holder;
use crate::metrics;
use crate::text::printable;

/// An acquire in progress. An acquire that is dropped before its end was cancelled.
#[derive(Debug)]
pub(super) struct AcquireSpan {
    span: Span,
    /// The key for people.
    key: String,
    clock: Clock,
    started: Moment,
    /// Whether the acquire retries when it is refused.
    waits: bool,
    attempts: u32,
    waited: Duration,
    sleeping_since: Option<Moment>,
    /// The span of the wait, which is within `span`.
    wait: Option<Span>,
    has_joined: bool,
    has_ended: bool,
}

impl AcquireSpan {
    /// `key` names the rows' keys for people.
    pub(super) fn start(key: String, clock: &Clock, now: Moment, waits: bool) -> Self {
        let span = tracing::info_span!(
            "lock",
            key,
            owner = Empty,
            fence = Empty,
            outcome = Empty,
            attempts = Empty,
            ahead = Empty,
            waited_ms = Empty,
            held_ms = Empty
        );
        Self {
            span,
            key,
            clock: clock.clone(),
            started: now,
            waits,
            attempts: 0,
            waited: Duration::ZERO,
            sleeping_since: None,
            wait: None,
            has_joined: false,
            has_ended: false,
        }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// Returns the span of the hold that follows.
    pub(super) fn hold(&self) -> HoldSpan {
        HoldSpan::new(self.span.clone(), self.key.clone())
    }

    /// An attempt starts.
    pub(super) fn attempt(&mut self) {
        self.wake();
        self.attempts += 1;
        if self.attempts > 1 {
            metrics::count(metrics::RETRY_ATTEMPTS);
        }
    }

    /// The acquire sleeps until its next attempt.
    pub(super) fn sleep(&mut self) {
        self.sleeping_since = Some(self.clock.now());
        self.wait.get_or_insert_with(|| tracing::info_span!(parent: &self.span, "wait"));
    }

    /// The acquire took a place in the queue, with so many waiters ahead. The span keeps its first place, because logs show
    /// every value that a span was given.
    pub(super) fn joined(&mut self, key: &str, ahead: u64) {
        metrics::measure(metrics::WAITERS_AHEAD, ahead);
        if !self.has_joined {
            self.has_joined = true;
            self.span.record("ahead", ahead);
        }
        tracing::debug!(key, ahead, "took a place in the queue");
    }

    /// The acquire succeeded. `taken_from` has the last holders, if they did not release the key. A last holder is
    /// [current](Holder::is_current) if it is an earlier acquire of the same identity.
    pub(super) fn acquired(mut self, owner: &str, fence: u64, taken_from: &[Holder]) {
        self.span.record("owner", &*printable(owner)).record("fence", fence);
        self.end();
        metrics::count(metrics::ACQUIRED);
        metrics::time(metrics::ACQUIRE_TIME, self.clock.now().since(self.started));
        let (_in, key) = (self.span.enter(), &self.key);
        tracing::debug!(key, fence, "acquired");
        for holder in taken_from {
            if holder.is_current() {
                tracing::debug!(key, fence, from = %holder, "taken from an earlier acquire of the same identity");
            } else {
                metrics::count(metrics::TAKEN_OVER);
                tracing::warn!(key, fence, from = %holder, "taken over: the last holder did not release the key");
            }
        }
    }

    /// The work was done before, so the caller gets its result.
    pub(super) fn completed(mut self) {
        self.span.record("outcome", "replayed");
        self.end();
    }

    /// The acquire goes on later, perhaps in another process. It counts when it ends.
    pub(super) fn postponed(mut self, delay: Duration) {
        self.span.record("outcome", "waiting");
        self.end();
        let _in = self.span.enter();
        tracing::debug!(delay_ms = millis(delay), "waits for its turn");
    }

    /// The acquire failed. If `is_counted_later`, the caller counts a refusal because the key is held.
    pub(super) fn refused(mut self, error: &Error, is_counted_later: bool) {
        let reason = error.kind().as_str();
        self.span.record("outcome", reason);
        self.end();
        if self.waits && error.is_retryable() {
            metrics::count_by(metrics::RETRIES_EXHAUSTED, metrics::REASON, reason);
        }
        let _in = self.span.enter();
        if is_counted_later && error.is_held() {
            return log_refusal(error);
        }
        record_refusal(error);
    }

    fn wake(&mut self) {
        if let Some(since) = self.sleeping_since.take() {
            self.waited += self.clock.now().since(since);
        }
    }

    fn end(&mut self) {
        self.wake();
        self.wait = None;
        self.has_ended = true;
        self.span.record("attempts", self.attempts).record("waited_ms", millis(self.waited));
        if !self.waited.is_zero() {
            metrics::time(metrics::WAIT_TIME, self.waited);
        }
    }
}

impl Drop for AcquireSpan {
    fn drop(&mut self) {
        if !self.has_ended {
            self.span.record("outcome", "cancelled");
            self.end();
            metrics::count_by(metrics::REFUSED, metrics::REASON, "cancelled");
            let _in = self.span.enter();
            tracing::debug!("acquire cancelled");
        }
    }
}

/// Records a call that a rate let pass after this time, if there is a rate.
pub(super) fn record_call(waits: Option<Duration>) {
    let Some(waits) = waits else { return };
    metrics::count(metrics::ACQUIRED);
    if !waits.is_zero() {
        metrics::time(metrics::WAIT_TIME, waits);
    }
}

/// Records a refused acquire, or one that failed before a request was sent.
pub(crate) fn record_refusal(error: &Error) {
    // The caller logs work in progress: the consumer of a queue also names the message.
    if error.kind() != ErrorKind::InProgress {
        log_refusal(error);
    }
    count_refusal(error);
}

pub(crate) fn count_refusal(error: &Error) {
    let reason = match error.kind() {
        ErrorKind::InProgress => return metrics::count(metrics::IN_PROGRESS_REFUSALS),
        // Nobody holds a rate, so an alarm on held keys leaves its refusals out.
        ErrorKind::Held if error.holder().is_some_and(Holder::is_rate) => metrics::USED_UP,
        kind => kind.as_str(),
    };
    metrics::count_by(metrics::REFUSED, metrics::REASON, reason);
}

pub(crate) fn log_refusal(error: &Error) {
    tracing::info!(key = &*printable(error.key()), reason = error.kind().as_str(), ?error, "not acquired");
}

/// The outcome of a lock that stays held after its process.
const KEPT: &str = "kept";

/// A lock that is held, until its release is answered.
#[derive(Debug)]
pub(super) struct HoldSpan {
    span: Span,
    /// The key for people.
    key: String,
    facts: Mutex<Facts>,
}

/// The facts about a hold that are told at its end or once.
#[derive(Debug)]
struct Facts {
    /// The lease was over when the hold ended. This is reported after the release, which may name the next holder.
    has_overrun: bool,
    is_lost: bool,
    /// The work failed or was not run, so that the release does not count as work that is done.
    has_failed: bool,
    /// The last outcome of the hold. Recorded once, at the end, because logs show every value that a span was given.
    outcome: &'static str,
}

impl HoldSpan {
    /// `key` names the rows' keys for people.
    pub(super) fn new(span: Span, key: String) -> Self {
        let facts = Facts { has_overrun: false, is_lost: false, has_failed: false, outcome: "left" };
        Self { span, key, facts: Mutex::new(facts) }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn is_lost(&self) -> bool {
        self.facts().is_lost
    }

    /// The holder no longer relies on the lock, after it held it for this long.
    pub(super) fn ended(&self, held: Duration, has_overrun: bool) {
        self.span.record("held_ms", millis(held));
        let is_kept = {
            let mut facts = self.facts();
            facts.has_overrun = has_overrun;
            facts.outcome == KEPT
        };
        // A lock that is kept counts once, at its release.
        if !is_kept {
            metrics::time(metrics::HOLD_TIME, held);
        }
    }

    /// The lock stays held after this process.
    pub(super) fn kept(&self) {
        self.end_with(KEPT);
        let _in = self.span.enter();
        tracing::debug!(key = self.key, "kept");
    }

    /// The lock was lost. Only the first call is recorded.
    pub(super) fn lost(&self, to: Option<&Holder>) {
        if !std::mem::replace(&mut self.facts().is_lost, true) {
            metrics::count(metrics::LOST);
            let _in = self.span.enter();
            let by = to.and_then(Holder::operator).map(printable);
            let (key, by, to) = (&self.key, by.as_deref(), to.filter(|_| by.is_none()).map(display));
            tracing::warn!(key, by, to, "lost: the lease ended, the lock was freed, or another holder has it");
        }
    }

    /// The work failed. Only the first call is counted.
    pub(super) fn work_failed(&self) {
        if !std::mem::replace(&mut self.facts().has_failed, true) {
            metrics::count(metrics::WORK_FAILED);
        }
    }

    /// The work was not run, and comes again. So the release counts neither as done work nor as failed work.
    #[cfg(feature = "lambda")]
    pub(super) fn not_run(&self) {
        self.facts().has_failed = true;
    }

    /// The work was committed, although its answer was lost, so that it seemed to fail.
    pub(super) fn committed(&self) {
        self.facts().has_failed = false;
    }

    /// The lock was released or completed, by a request that was sent and answered at these times.
    pub(super) fn released(&self, outcome: &'static str, request: Option<(Moment, Moment)>) {
        self.end_with(outcome);
        if !self.facts().has_failed {
            metrics::count(metrics::RELEASED);
        }
        if let Some((sent, answered)) = request {
            metrics::time(metrics::RELEASE_TIME, answered.since(sent));
        }
    }

    pub(super) fn release_failed(&self, error: &Error) {
        if error.is_lost() {
            self.lost(error.holder());
        }
        self.end_with("release_failed");
        metrics::count_by(metrics::RELEASE_FAILED, metrics::REASON, error.kind().as_str());
    }

    fn end_with(&self, outcome: &'static str) {
        self.facts().outcome = outcome;
        self.report_overrun();
    }

    fn report_overrun(&self) {
        let has_overrun = self.facts().has_overrun;
        if has_overrun {
            self.lost(None);
        }
    }

    /// The facts are plain values, so a panic cannot leave them half-written.
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HoldSpan {
    fn drop(&mut self) {
        self.report_overrun();
        let Facts { is_lost, outcome, .. } = *self.facts();
        // A lost lock stays lost, even if its release succeeds.
        self.span.record("outcome", if is_lost { "lost" } else { outcome });
    }
}
