use std::fmt::Debug;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use lambda_lock::{Error, ErrorKind, Lock, Locks};

use super::super::actor::{Report, Sent};
use super::super::book::{described, may_have_ended};
use super::super::identities::Before;
use super::super::stage::Waiting;
use super::{Crash, Hold, Holding, Ledger, State, Valid};
use crate::guarantee::{FENCES, ITSELF, READABLE};

/// One operation of one worker, which reports to the ledger.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) name: String,
    pub(crate) key: String,
    /// The identity, and what the key had when the operation began.
    identity: Option<(String, Before)>,
    ledger: Arc<Ledger>,
}

impl Operation {
    pub(crate) fn new(name: &str, key: String, identity: Option<&str>, ledger: Arc<Ledger>) -> Self {
        // The mutation that forgets the skew reads the skew here.
        let name = format!("{name}, skew {}", ledger.clock_skew.as_millis());
        let identity = identity.map(|identity| (identity.to_owned(), ledger.state().identities.before(&key)));
        Self { name, key, identity, ledger }
    }

    /// Begins the body of a `run`. It ends when the returned value is dropped, which a cancellation does too.
    pub(crate) fn entered(&self, lock: &Lock, min_hold: Duration) -> Inside<'_> {
        let until = self.ledger.engine.now() + lock.remaining();
        self.enter(lock, min_hold, Valid::Until(until));
        Inside { operation: self, done: false }
    }

    fn enter(&self, lock: &Lock, min_hold: Duration, valid: Valid<Lock>) {
        let (ledger, fence) = (&self.ledger, lock.fence());
        let mut state = ledger.state();
        state.counts.acquired += 1;
        ledger.log(&mut state, &format!("{} acquired {} with fence {fence}", self.name, self.key));
        match state.applied.get(&(self.key.clone(), fence)) {
            Some(operation) if *operation == self.name => {}
            other => {
                let other = format!("{other:?}");
                ledger.broke(&mut state, format!("{} was given a lock that the table gave {other}", self.name));
            }
        }
        // An operator may have freed it before its client got the answer.
        if !min_hold.is_zero() && !state.released.contains(lock.owner()) {
            // The holder's clock may be ahead by half the skew.
            let until = lock.acquired_at() + min_hold - ledger.clock_skew / 2;
            let hold = Hold { until, operation: self.name.clone() };
            state.holds.insert(lock.owner().to_owned(), hold);
        }
        self.hold(&mut state, lock, valid);
    }

    fn hold(&self, state: &mut State, lock: &Lock, valid: Valid<Lock>) {
        let (keys, owner, operation) = (vec![self.key.clone()], lock.owner().to_owned(), self.name.clone());
        state.holders.enter(Holding { operation, keys, owner, permits: None, fence: lock.fence(), valid });
        self.check_holders(state);
    }

    fn check_holders(&self, state: &mut State) {
        let has_lost = |key: &str, owner: &str| state.identities.is_superseded(key, owner);
        let violation = state.holders.violation(slice::from_ref(&self.key), self.ledger.engine.now(), has_lost);
        if let Some(what) = violation {
            self.ledger.broke(state, what);
        }
    }

    /// The wait goes on in another process.
    pub(crate) fn postponed(&self, delay: Duration) {
        let mut state = self.ledger.state();
        state.counts.postponed += 1;
        self.ledger.log(&mut state, &format!("{} keeps its turn for {delay:?}", self.name));
    }

    pub(crate) fn cancelled(&self) {
        self.ledger.state().counts.lost += 1;
        self.ended("was cancelled at the end of its lease");
    }

    pub(crate) fn completed(&self) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} completed", self.name));
        self.leave(&mut state);
    }

    fn leave(&self, state: &mut State) {
        state.holders.leave(&self.name);
    }
}

impl Report for Operation {
    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn identity(&self) -> Option<&str> {
        self.identity.as_ref().map(|(identity, _)| identity.as_str())
    }

    fn acquired(&self, lock: &Arc<Lock>, min_hold: Duration) {
        self.enter(lock, min_hold, Valid::Ask(Arc::downgrade(lock)));
    }

    fn refused(&self, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} refused: {error}", self.name));
        if error.kind() == ErrorKind::MalformedRow {
            self.ledger.broke(&mut state, format!("{READABLE}: {}: {error}", self.name));
        }
        // Only a takeover is lost before there is a lock.
        if error.is_lost() {
            state.counts.takeovers_refused += 1;
            let latest = self.ledger.engine.now() + self.ledger.longest_skew;
            let broken = self
                .identity
                .as_ref()
                .and_then(|(identity, before)| state.identities.refused(&self.key, identity, before, latest));
            return broken.into_iter().for_each(|what| self.ledger.broke(&mut state, what));
        }
        let Some((holder, fence)) = error.holder().and_then(|holder| Some((holder, holder.fence()?))) else { return };
        state.counts.held += 1;
        let is_useless = may_have_ended(holder, self.ledger.engine.now(), self.ledger.longest_skew);
        if !is_useless && state.applied.get(&(self.key.clone(), fence)) == Some(&self.name) {
            self.ledger.broke(&mut state, format!("{ITSELF}: {} was refused by its own lost write", self.name));
        }
    }

    fn writes(&self, lock: &Lock) {
        let mut state = self.ledger.state();
        let last = state.written.get(&self.key).copied().unwrap_or_default();
        if lock.fence() < last {
            state.counts.writes_rejected += 1;
            return self.ledger.log(&mut state, &format!("{} may not write any more", self.name));
        }
        let place = |fence| state.taken.iter().position(|taken| taken.key == self.key && taken.fence == fence);
        if place(lock.fence()) < place(last) {
            self.ledger.broke(&mut state, format!("{FENCES}: {}: {} wrote after a later one", self.key, self.name));
        }
        state.written.insert(self.key.clone(), lock.fence());
    }

    fn renewed(&self, lock: &Arc<Lock>, _: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed {}: {}", self.name, self.key, described(&answer)));
        match answer {
            Ok(()) => {
                state.counts.renewed += 1;
                if state.holders.of(&self.name).next().is_some() {
                    self.check_holders(&mut state);
                } else {
                    // A release beside it was answered first. A lock that is valid again counts.
                    self.hold(&mut state, lock, Valid::Ask(Arc::downgrade(lock)));
                    self.leave(&mut state);
                }
            }
            Err(error) if error.is_lost() => state.counts.lost += 1,
            Err(_) => {}
        }
    }

    fn released(&self, lock: &Arc<Lock>, _: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} released {}: {}", self.name, self.key, described(&answer)));
        match answer {
            // What others have freed is lost for its holder.
            Ok(()) if !state.done.contains(lock.owner()) => {
                self.ledger.broke(&mut state, format!("{} reported a release that did not happen", self.name));
            }
            Err(error) if error.is_lost() => {
                state.counts.lost += 1;
                // After the release of another lock, the row no longer shows it.
                if state.last_released.get(&self.key).is_some_and(|last| last == lock.owner()) {
                    self.ledger.broke(&mut state, format!("{ITSELF}: {} did not recognise its own release", self.name));
                }
            }
            _ => {}
        }
        self.leave(&mut state);
    }

    async fn stop(&self, locks: &Locks) {
        let (identity, _) = self.identity.as_ref().unwrap();
        let before = self.ledger.state().identities.stops(&self.key, identity);
        let answer = locks.release_identity(&self.key, identity).await;
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} was stopped: {answer:?}", self.name));
        let Ok(is_freed) = answer else { return };
        let latest = self.ledger.engine.now() + self.ledger.clock_skew + self.ledger.slack;
        if let Some(what) = state.identities.stopped(&self.key, identity, &before, is_freed, latest) {
            self.ledger.broke(&mut state, what);
        }
    }

    fn ended(&self, how: &str) {
        let mut state = self.ledger.state();
        state.holds.retain(|_, hold| self.name != hold.operation);
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
    }

    fn left(&self, how: &str, successor: Waiting) -> bool {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
        let row = state.rows.get(&self.key).filter(|row| {
            state.applied.get(&(self.key.clone(), row.fence)) == Some(&self.name)
                && !state.released.contains(&row.owner)
        });
        let Some(owner) = row.map(|row| row.owner.clone()) else { return false };
        state.counts.crashed += 1;
        let (at, cap) = (self.ledger.engine.now(), successor.cap());
        state.crashes.push(Crash { key: self.key.clone(), owner, at, cap });
        true
    }

    fn broke(&self, what: &str, how: &dyn Debug) {
        let mut state = self.ledger.state();
        self.ledger.broke(&mut state, format!("{what}: {} {}: {how:?}", self.name, self.key));
    }
}

/// The body of a `run`.
pub(crate) struct Inside<'a> {
    operation: &'a Operation,
    done: bool,
}

impl Inside<'_> {
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.done {
            self.operation.leave(&mut self.operation.ledger.state());
        } else {
            self.operation.ended("left its work undone");
        }
    }
}
