//! The settings that all consumers of batches have.

use std::time::{Duration, SystemTime};

use super::source::Source;
use crate::clock::{Deadline, since_epoch};
use crate::idempotency::{Idempotency, Invocation, OnUnstorableResult};
use crate::limits::time_to_ask;

pub(in crate::lambda) struct Settings<C: Source, T, E> {
    pub(in crate::lambda) source: C,
    pub(in crate::lambda) idempotency: Idempotency<C::Item, T, E>,
    /// How many lanes run concurrently.
    pub(in crate::lambda) concurrency: usize,
    pub(in crate::lambda) min_remaining_time: Duration,
    /// Whether no more items start after one that is not done.
    pub(in crate::lambda) stop_at_first_failure: bool,
}

/// The time limits of a batch.
#[derive(Clone, Copy)]
pub(super) struct BatchTime {
    pub(super) lease_end: Deadline,
    /// The remaining lease without which no item starts.
    pub(super) min_remaining: Duration,
    /// When the answer is due.
    pub(super) answer: Deadline,
}

impl<C: Source, T, E> Settings<C, T, E> {
    pub(in crate::lambda) fn new(source: C, idempotency: Idempotency<C::Item, T, E>) -> Self {
        let idempotency = idempotency
            .default_window(C::WINDOW)
            // Nobody reads the result of an item, so one that cannot be stored must not make it run again.
            .on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
        Self {
            source,
            idempotency,
            concurrency: 10,
            min_remaining_time: Duration::from_secs(1),
            stop_at_first_failure: false,
        }
    }

    /// Shortens the leases of a batch so that they end in time for its answer.
    pub(super) fn limit(&self, invocation: &mut Invocation) -> Option<BatchTime> {
        let now = self.idempotency.locks().0.clock.now();
        let left = since_epoch(invocation.deadline?).saturating_sub(now.wall);
        let lease = left.saturating_sub((left / 4).min(Duration::from_secs(1)));
        let lease_end = now.deadline_after(lease);
        invocation.deadline = Some(SystemTime::UNIX_EPOCH + lease_end.wall());
        let min_remaining = self.min_remaining_time.min(lease * 9 / 10);
        Some(BatchTime { lease_end, min_remaining, answer: now.deadline_after(time_to_ask(left)) })
    }
}

// By hand, because a derive would require the types of results and errors to be `Clone`.
impl<C: Source, T, E> Clone for Settings<C, T, E> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), idempotency: self.idempotency.clone(), ..*self }
    }
}
