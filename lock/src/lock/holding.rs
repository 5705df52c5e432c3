//! `Holding`: the state of a lock, which outlives the `Lock` while its release is sent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::types::ConditionCheck;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tracing::{Instrument, Span};

use super::locks::Locks;
use super::register::Held;
use super::telemetry::HoldSpan;
use crate::clock::{Lease, Moment};
use crate::error::{Cause, Error};
use crate::holder::Data;
use crate::queue::HoldTime;
use crate::row::{Acquisition, Hold, Release, Released, Releasing, Table};

/// The state of a lock. The [`Lock`](super::held::Lock) shares it with the register of all locks, and with a release in the
/// background.
pub(super) struct Holding {
    pub(super) locks: Locks,
    pub(super) acquisition: Acquisition,
    /// In the order of the keys. Without a fence, the lock is not enforced.
    pub(super) fences: Vec<u64>,
    pub(super) telemetry: HoldSpan,
    /// When the request that took the key was sent.
    pub(super) sent: Moment,
    /// When the hold began, if it was taken over from an earlier acquire of the same identity.
    pub(super) held_since: Option<Duration>,
    /// How long the holds before this one took.
    pub(super) hold_time: Option<HoldTime>,
    /// How much longer that request took than other requests.
    pub(super) excess: Duration,
    pub(super) state: Mutex<State>,
    /// Notified of every change of the state.
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) lease: Lease,
    /// The data that the next renewal or release writes.
    pub(super) new_data: Option<Data>,
    pub(super) phase: Phase,
    /// The process is about to end, so the lock ends before its lease does.
    pub(super) is_stopped: bool,
    /// How many pieces of work watch this lock. The task of that work releases it.
    pub(super) watched: usize,
    pub(super) continuation: Continuation,
}

/// The minimum hold and the numbers of the requests after an acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continuation {
    /// Until when `min_hold` keeps the key after an early release.
    pub(crate) hold_until: Option<Duration>,
    /// How many requests were sent after the acquire.
    pub(crate) sequence: u64,
    /// The number of the release, once it is known.
    pub(crate) release: Option<u64>,
}

impl Continuation {
    pub(crate) fn new(sent: Moment, min_hold: Duration, clock_skew: Duration) -> Self {
        // The skew is added because the clocks of other hosts can be ahead.
        let hold_until = sent.wall.saturating_add(min_hold).saturating_add(clock_skew);
        Self { hold_until: (!min_hold.is_zero()).then_some(hold_until), sequence: 0, release: None }
    }

    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Returns the number of the release or the completion. It stays the same, so that a repetition recognises itself.
    pub(crate) fn release_number(&mut self, acquisition: &Acquisition, now: Moment) -> u64 {
        *self.release.get_or_insert_with(|| acquisition.release_number(now))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    Held,
    /// A release was started. The lock is no longer valid, even if the release was not answered.
    Releasing,
    /// No request is left to send.
    Released,
    /// The row refused this owner, so no request is left to send either.
    Lost,
    /// The same, but a release frees other keys that this owner still has.
    LostInPart,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Held, Self::Releasing, Self::Released, Self::Lost, Self::LostInPart];
}

impl Holding {
    pub(super) fn is_enforced(&self) -> bool {
        !self.fences.is_empty()
    }

    /// Returns the check "still held" of each key.
    pub(super) fn condition_checks(&self) -> Result<Vec<ConditionCheck>, Error> {
        self.locks.0.table.condition_checks(&self.acquisition, self.is_enforced(), self.now())
    }

    pub(super) fn remaining(&self) -> Duration {
        let state = self.state();
        match state.phase {
            Phase::Held if !state.is_stopped => state.lease.deadline.remaining(self.now()),
            _ => Duration::ZERO,
        }
    }

    /// Whether the lease ended before a release.
    pub(super) fn has_expired(&self) -> bool {
        let State { phase, lease, .. } = *self.state();
        phase == Phase::Held && lease.deadline.has_passed(self.now())
    }

    /// Whether work under this lock must stop.
    pub(super) fn is_overrun(&self) -> bool {
        self.remaining().is_zero() && !self.was_released()
    }

    /// Whether the work itself released the lock, so that it goes on.
    pub(super) fn was_released(&self) -> bool {
        let State { phase, is_stopped, .. } = *self.state();
        !is_stopped && matches!(phase, Phase::Releasing | Phase::Released)
    }

    pub(super) fn clear_min_hold(&self) {
        self.state().continuation.hold_until = None;
    }

    /// The work was not done, so the next attempt need not wait.
    pub(super) fn work_failed(&self) {
        self.clear_min_hold();
        if self.is_enforced() {
            self.telemetry.work_failed();
        }
    }

    pub(super) async fn release(&self) -> Result<Released, Error> {
        self.end(false).await
    }

    /// Releases the lock. The answer says whether work was left to this holder.
    pub(super) async fn release_coalescing(&self) -> Result<Released, Error> {
        self.end(true).await
    }

    async fn end(&self, coalesces: bool) -> Result<Released, Error> {
        const NOTHING_LEFT: Released = Released::Freed { is_asked: false };
        let from = [Phase::Held, Phase::LostInPart, Phase::Releasing];
        let of_request = |state: &mut State| (state.new_data.clone(), state.continuation.next_sequence());
        let (data, sequence) = match self.enter_with(&from, Phase::Releasing, of_request) {
            Err(Phase::Released) => return Ok(NOTHING_LEFT),
            Err(_) => return Err(self.error(Cause::Lost(None))),
            Ok(taken) => taken,
        };
        let checked = data.as_ref().map_or(Ok(()), |data| self.acquisition.target().check_data(data));
        if !self.is_enforced() {
            checked?;
            self.enter(Phase::Released);
            return Ok(NOTHING_LEFT);
        }
        checked.inspect_err(|error| self.telemetry.release_failed(error))?;
        let table = &self.locks.0.table;
        let answer = self.send_release(table, sequence, data.as_ref(), coalesces).instrument(self.span().clone()).await;
        match &answer {
            Ok(_) => self.enter(Phase::Released),
            Err(error) if error.is_lost() => self.enter(Phase::Lost),
            Err(_) => {}
        }
        answer
    }

    /// Sends the release.
    pub(super) async fn send_release(
        &self,
        table: &Table,
        sequence: u64,
        data: Option<&Data>,
        coalesces: bool,
    ) -> Result<Released, Error> {
        let now = self.now();
        let State { continuation: Continuation { hold_until, .. }, lease, .. } = *self.state();
        let since = self.held_since.unwrap_or_else(|| self.acquired() + self.excess);
        let hold = Hold { since, before: self.hold_time, is_before_known: true };
        let number = self.release_number();
        let release = Release { number, sequence, now, hold_until, hold: Some(hold), data, coalesces };
        let answer = match table.run(Releasing::all(&self.acquisition, release), || now).await {
            // Nothing replaces what is held before the lease has ended, so the release was applied.
            Ok(Released::NoTrace) if !lease.deadline.has_passed(self.now()) => Ok(Released::NoTrace),
            Ok(Released::NoTrace) => Err(self.error(Cause::Lost(None))),
            answer => answer,
        };
        match &answer {
            Ok(released) => {
                let is_completed = matches!(released, Released::Completed(_));
                let outcome = if is_completed { "completed" } else { "released" };
                if is_completed {
                    self.telemetry.committed();
                }
                self.telemetry.released(outcome, Some((now, self.now())));
            }
            Err(error) => self.telemetry.release_failed(error),
        }
        answer
    }

    /// Returns the number of the release or the completion.
    pub(super) fn release_number(&self) -> u64 {
        let now = self.now();
        self.state().continuation.release_number(&self.acquisition, now)
    }

    /// Returns the error of a release or a completion that timed out.
    pub(super) fn unanswered(&self) -> Error {
        let error = self.error(Cause::Unavailable);
        self.telemetry.release_failed(&error);
        error
    }

    pub(super) fn error(&self, cause: Cause) -> Error {
        self.acquisition.error(cause, &self.locks.0.table)
    }

    pub(super) fn span(&self) -> &Span {
        self.telemetry.span()
    }

    pub(super) fn enter(&self, phase: Phase) {
        let _always_allowed = self.enter_from(&Phase::ALL, phase);
    }

    /// Enters a phase if the present one is in `from`. Otherwise returns the present one.
    pub(super) fn enter_from(&self, from: &[Phase], phase: Phase) -> Result<(), Phase> {
        self.enter_with(from, phase, |_| ())
    }

    /// Enters a phase as [`enter_from`](Self::enter_from) does, and returns what `take` takes from the state at the same
    /// moment.
    pub(super) fn enter_with<T>(
        &self,
        from: &[Phase],
        phase: Phase,
        take: impl FnOnce(&mut State) -> T,
    ) -> Result<T, Phase> {
        let (before, lease, taken) = {
            let mut state = self.state();
            if !from.contains(&state.phase) {
                return Err(state.phase);
            }
            let taken = take(&mut state);
            (std::mem::replace(&mut state.phase, phase), state.lease, taken)
        };
        self.changed.notify_waiters();
        if before == Phase::Held && self.is_enforced() {
            let now = self.now();
            let held = self.held_since.map_or_else(|| now.since(self.sent), |since| now.wall.saturating_sub(since));
            self.telemetry.ended(held, lease.deadline.has_passed(now));
        }
        Ok(taken)
    }

    pub(super) fn now(&self) -> Moment {
        self.locks.0.clock.now()
    }

    /// Returns the end of a window that begins now. The clock may have been set back since the acquire, whose answer showed that it
    /// was right.
    pub(super) fn window_end(&self, now: Moment, window: Duration) -> Duration {
        now.wall.max(self.sent.wall.saturating_add(now.since(self.sent))).saturating_add(window)
    }

    /// Returns `acquired_at` in the whole milliseconds of the row.
    pub(super) fn acquired(&self) -> Duration {
        Duration::from_millis(self.sent.millis())
    }

    /// The state is plain values, so a panic cannot leave it half-written.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held for Holding {
    fn stop(&self) -> bool {
        let phase = {
            let mut state = self.state();
            state.is_stopped = true;
            state.phase
        };
        self.changed.notify_waiters();
        !matches!(phase, Phase::Released | Phase::Lost)
    }

    fn released(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            loop {
                let changed = self.changed.notified();
                let State { phase, watched, .. } = *self.state();
                match phase {
                    Phase::Released | Phase::Lost => return Ok(()),
                    Phase::Held | Phase::Releasing | Phase::LostInPart if watched == 0 => break,
                    _ => changed.await,
                }
            }
            self.clear_min_hold();
            self.release().await.map(drop)
        })
    }

    fn unanswered(&self) -> Error {
        self.error(Cause::Unavailable)
    }
}

/// Work that watches a lock.
pub(super) struct Watch<'a>(&'a Holding);

impl<'a> Watch<'a> {
    pub(super) fn start(hold: &'a Holding) -> Self {
        hold.state().watched += 1;
        Self(hold)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.state().watched -= 1;
        self.0.changed.notify_waiters();
    }
}
