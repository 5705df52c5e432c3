//! What a lock reports beside what every operation does.

use std::time::Duration;

use lambda_lock::{Error, Lock};

use super::super::actor::{Report as _, Sent};
use super::super::book::Valid;
use super::super::holders::Holders;
use super::super::operation::{self, Common, Judged, common};
use super::super::stage::Waiting;
use super::{Counts, Crash, Hold, Kept, State};
use crate::guarantee::FENCES;

pub(crate) type Operation = operation::Operation<Kept>;

impl Judged for Kept {
    fn holders(&mut self) -> &mut Holders {
        &mut self.holders
    }

    fn common(counts: &mut Counts) -> Common<'_> {
        common!(counts)
    }

    fn acquired(operation: &Operation, state: &mut State, lock: &Lock, min_hold: Duration) -> u64 {
        state.counts.acquired += 1;
        // An operator may have freed it before its client got the answer.
        if !min_hold.is_zero() && !state.rows.was_released(operation.key(), lock.owner()) {
            // The holder's clock may be ahead by half the skew.
            let until = lock.acquired_at() + min_hold - operation.ledger.clock_skew / 2;
            let hold = Hold { until, operation: operation.name.clone() };
            state.holds.insert(lock.owner().to_owned(), hold);
        }
        lock.fence()
    }

    fn held(operation: &Operation, state: &mut State, error: &Error) {
        let Some(holder) = error.holder().filter(|holder| holder.fence().is_some()) else { return };
        state.counts.held += 1;
        operation.check_refusal(state, operation.key(), holder);
    }

    fn writes(operation: &Operation, state: &mut State, lock: &Lock) {
        let (key, ledger) = (operation.key(), &operation.ledger);
        let last = state.written.get(key).copied().unwrap_or_default();
        if lock.fence() < last {
            state.counts.writes_rejected += 1;
            return ledger.log(state, &format!("{} may not write any more", operation.name));
        }
        let place = |fence| state.taken.iter().position(|taken| taken.key == *key && taken.fence == fence);
        if place(lock.fence()) < place(last) {
            ledger.broke(state, format!("{FENCES}: {key}: {} wrote after a later one", operation.name));
        }
        state.written.insert(key.to_owned(), lock.fence());
    }

    // What others have freed is lost for its holder.
    fn was_released(_: &Operation, state: &State, owner: &str) -> bool {
        state.done.contains(owner)
    }

    /// After the release of another lock, the row no longer shows it.
    fn shows_release(operation: &Operation, state: &State, owner: &str, _: Sent) -> bool {
        state.last_released.get(operation.key()).is_some_and(|last| last == owner)
    }

    fn ended(operation: &Operation, state: &mut State) {
        state.holds.retain(|_, hold| operation.name != hold.operation);
    }

    fn left(operation: &Operation, state: &mut State, successor: Waiting) -> bool {
        let key = operation.key();
        let owner = state.rows.owner_of(&state.holders, key, &operation.name).map(str::to_owned);
        let Some(owner) = owner else { return false };
        let (at, cap) = (operation.ledger.engine.now(), successor.cap());
        state.crashes.push(Crash { key: key.to_owned(), owner, at, cap });
        true
    }
}

/// The wait goes on in another process.
pub(crate) fn postponed(operation: &Operation, delay: Duration) {
    let mut state = operation.ledger.state();
    state.counts.postponed += 1;
    operation.ledger.log(&mut state, &format!("{} keeps its turn for {delay:?}", operation.name));
}

/// The body of a `run` was cancelled.
pub(crate) fn cancelled(operation: &Operation) {
    operation.ledger.state().counts.lost += 1;
    operation.ended("was cancelled at the end of its lease");
}

/// The body of a `run`. It ends when this is dropped, which a cancellation does too.
pub(crate) struct Inside<'a> {
    operation: &'a Operation,
    done: bool,
}

impl<'a> Inside<'a> {
    pub(crate) fn enter(operation: &'a Operation, lock: &Lock, min_hold: Duration) -> Self {
        let until = operation.ledger.engine.now() + lock.remaining();
        operation.enter(lock, min_hold, Valid::Until(until));
        Self { operation, done: false }
    }

    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.done {
            self.operation.ledger.state().holders.leave(&self.operation.name);
        } else {
            self.operation.ended("left its work undone");
        }
    }
}
