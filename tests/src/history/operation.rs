//! The operations of workers on keys and permits, which report to their ledger, and the checks that all such ledgers share: the
//! table gave what was acquired, an identity keeps what it has, and a release that was reported has happened.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lambda_lock::{Error, ErrorKind, Holder, Lock, Locks};

use super::actor::{Report, Sent};
use super::book::{Book, Observe, Page, Valid, described, may_have_ended};
use super::holders::{Holders, Holding};
use super::identities::{Before, name_of, start_of};
use super::operator::Judge;
use super::stage::Waiting;
use crate::guarantee::{FREED, ITSELF, READABLE};
use crate::request::Write;

/// What a ledger keeps of keys or permits, and what differs from one kind of them to the next.
pub(crate) trait Judged: Observe {
    fn holders(&mut self) -> &mut Holders;

    fn common(counts: &mut Self::Counts) -> Common<'_>;

    /// The place in the row of this key that an identity, or an owner without one, has.
    fn place(key: &str, _name: &str) -> String {
        key.to_owned()
    }

    /// Takes note of an acquired lock. Returns the fence by which its holder takes its place among others.
    fn acquired(operation: &Operation<Self>, state: &mut Page<Self>, lock: &Lock, min_hold: Duration) -> u64;

    /// Judges a refusal because others hold the keys.
    fn held(operation: &Operation<Self>, state: &mut Page<Self>, error: &Error);

    /// Writes to a receiver that keeps the largest fence, if there is one.
    fn writes(_: &Operation<Self>, _: &mut Page<Self>, _: &Lock) {}

    /// Whether a release of this owner was applied, or others have freed what it had.
    fn was_released(operation: &Operation<Self>, state: &Page<Self>, owner: &str) -> bool;

    /// Whether the row still shows that this owner has released it.
    fn shows_release(_: &Operation<Self>, _: &Page<Self>, _owner: &str, _: Sent) -> bool {
        false
    }

    /// Judges a renewal or a release that failed.
    fn failed(_: &Operation<Self>, _: &mut Page<Self>, _owner: &str, _: Sent, _: &Error) {}

    /// The work was not done, or its outcome is unknown.
    fn ended(_: &Operation<Self>, _: &mut Page<Self>) {}

    /// Whether an operation that is gone without a release still has what it acquired, until its successor comes.
    fn left(operation: &Operation<Self>, state: &mut Page<Self>, successor: Waiting) -> bool;
}

/// What all such ledgers count.
pub(crate) struct Common<'a> {
    pub(crate) renewed: &'a mut usize,
    pub(crate) lost: &'a mut usize,
    pub(crate) crashed: &'a mut usize,
    pub(crate) taken_over: &'a mut usize,
    pub(crate) takeovers_refused: &'a mut usize,
    pub(crate) freed_for_identity: &'a mut usize,
    pub(crate) freed_by_force: &'a mut usize,
}

/// Borrows what all such ledgers count.
macro_rules! common {
    ($counts:expr, $($count:ident)+) => {{
        let Counts { $($count,)+ .. } = $counts;
        $crate::history::operation::Common { $($count,)+ }
    }};
    ($counts:expr) => {
        common!($counts, renewed lost crashed taken_over takeovers_refused freed_for_identity freed_by_force)
    };
}
pub(crate) use common;

impl<K: Judged> Book<K> {
    /// Judges a request that was applied to a place. Returns `true` if it has taken over what its identity had.
    pub(crate) fn judge(
        &self,
        page: &mut Page<K>,
        place: &str,
        write: &Write,
        sent: Option<u64>,
        fence: Option<u64>,
    ) -> bool {
        let effect = page.holders().identities.applied(place, write, sent, fence);
        let common = K::common(&mut page.counts);
        *common.taken_over += usize::from(effect.has_taken_over);
        *common.freed_for_identity += usize::from(effect.is_for_identity);
        *common.freed_by_force += usize::from(effect.is_by_force);
        if let Some(what) = effect.breaks {
            self.broke(page, what);
        }
        effect.has_taken_over
    }
}

impl<K: Judged> Judge for Book<K> {
    fn sees(&self, key: &str, seen: &Holder) {
        let place = K::place(key, name_of(seen.owner().unwrap_or_default()));
        self.state().holders().identities.sees(&place, seen);
    }

    fn forced(&self, key: &str, seen: &Holder, answer: &Result<bool, Error>) {
        let (mut page, place) = (self.state(), K::place(key, name_of(seen.owner().unwrap_or_default())));
        self.log(&mut page, &format!("an operator freed {key} by force: {answer:?}"));
        if let Some(what) = page.holders().identities.forced(&place, seen, answer) {
            self.broke(&mut page, what);
        }
    }
}

/// One operation of one worker, which reports to the ledger.
pub(crate) struct Operation<K: Judged> {
    pub(crate) name: String,
    /// In order.
    pub(crate) keys: Vec<String>,
    /// How many permits this caller allows, if it acquires one.
    pub(crate) permits: Option<u32>,
    /// The identity, and what it had of each key when the operation began.
    identity: Option<(String, Vec<Before>)>,
    pub(crate) ledger: Arc<Book<K>>,
}

impl<K: Judged> Operation<K> {
    pub(crate) fn new(
        name: &str,
        mut keys: Vec<String>,
        permits: Option<u32>,
        identity: Option<&str>,
        ledger: &Arc<Book<K>>,
    ) -> Self {
        // The mutation that forgets the skew reads the skew here.
        let name = format!("{name}, skew {}", ledger.clock_skew.as_millis());
        keys.sort_unstable();
        let identity = identity.map(|identity| {
            let mut state = ledger.state();
            let mut before = |key: &String| state.holders().identities.before(&place_of::<K>(key, identity));
            (identity.to_owned(), keys.iter().map(&mut before).collect())
        });
        Self { name, keys, permits, identity, ledger: Arc::clone(ledger) }
    }

    /// Returns `true` if this owner has lost one of the keys to a later acquire of its identity, or because others have freed it.
    pub(crate) fn is_superseded(&self, holders: &Holders, owner: &str) -> bool {
        let is_superseded = |key: &String| holders.identities.is_superseded(&K::place(key, name_of(owner)), owner);
        self.keys.iter().any(is_superseded)
    }

    /// No operation is refused by its own lost write.
    pub(crate) fn check_refusal(&self, state: &mut Page<K>, key: &str, holder: &Holder) {
        let is_useless = may_have_ended(holder, self.ledger.engine.now(), self.ledger.longest_skew);
        let is_own = holder.fence().is_some_and(|fence| state.holders().is_of(key, fence, &self.name));
        if is_own && !is_useless {
            self.ledger.broke(state, format!("{ITSELF}: {} was refused by its own lost write", self.name));
        }
    }

    /// Begins to hold what was acquired.
    pub(crate) fn enter(&self, lock: &Lock, min_hold: Duration, valid: Valid<Lock>) {
        let (ledger, mut state) = (&self.ledger, self.ledger.state());
        ledger.log(&mut state, &format!("{} acquired {:?} with fence {}", self.name, self.keys, lock.fence()));
        for key in &self.keys {
            if !state.holders().is_of(key, lock.fence_of(key).unwrap(), &self.name) {
                ledger.broke(&mut state, format!("{} was given {key}, which the table gave to another", self.name));
            }
        }
        let fence = K::acquired(self, &mut state, lock, min_hold);
        self.hold(&mut state, lock, fence, valid);
    }

    fn hold(&self, state: &mut Page<K>, lock: &Lock, fence: u64, valid: Valid<Lock>) {
        let (operation, keys, owner) = (self.name.clone(), self.keys.clone(), lock.owner().to_owned());
        state.holders().enter(Holding { operation, keys, owner, permits: self.permits, fence, valid });
        self.check_holders(state);
    }

    fn check_holders(&self, state: &mut Page<K>) {
        let holders = state.holders();
        let has_lost = |key: &str, owner: &str| holders.identities.is_superseded(&K::place(key, name_of(owner)), owner);
        if let Some(what) = holders.violation(&self.keys, self.ledger.engine.now(), has_lost) {
            self.ledger.broke(state, what);
        }
    }

    fn leave(&self, state: &mut Page<K>) {
        state.holders().leave(&self.name);
    }

    /// A row can be read.
    fn check_readable(&self, state: &mut Page<K>, error: &Error) {
        if error.kind() == ErrorKind::MalformedRow {
            self.ledger.broke(state, format!("{READABLE}: {}: {error}", self.name));
        }
    }

    fn failed(&self, state: &mut Page<K>, lock: &Lock, sent: Sent, error: &Error) {
        self.check_readable(state, error);
        *K::common(&mut state.counts).lost += usize::from(error.is_lost());
        K::failed(self, state, lock.owner(), sent, error);
    }
}

/// The place of an identity.
fn place_of<K: Judged>(key: &str, identity: &str) -> String {
    K::place(key, &start_of(identity))
}

impl<K: Judged> Report for Operation<K> {
    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> &str {
        &self.keys[0]
    }

    fn identity(&self) -> Option<&str> {
        self.identity.as_ref().map(|(identity, _)| identity.as_str())
    }

    fn acquired(&self, lock: &Arc<Lock>, min_hold: Duration) {
        self.enter(lock, min_hold, Valid::Ask(Arc::downgrade(lock)));
    }

    fn refused(&self, error: &Error) {
        let (ledger, mut state) = (&self.ledger, self.ledger.state());
        ledger.log(&mut state, &format!("{} refused: {error}", self.name));
        self.check_readable(&mut state, error);
        // Only a takeover is lost before there is a lock.
        if !error.is_lost() {
            return K::held(self, &mut state, error);
        }
        *K::common(&mut state.counts).takeovers_refused += 1;
        // It finds what its identity has had since before, until the end of the lease.
        let Some((identity, before)) = &self.identity else { return };
        let latest = ledger.engine.now() + ledger.longest_skew;
        let mut each = self.keys.iter().zip(before);
        let identities = &state.holders().identities;
        if each.all(|(key, before)| identities.has_held(&place_of::<K>(key, identity), identity, before, latest)) {
            ledger.broke(&mut state, format!("{FREED}: {} did not find what its identity has", self.name));
        }
    }

    fn writes(&self, lock: &Lock) {
        K::writes(self, &mut self.ledger.state(), lock);
    }

    fn renewed(&self, lock: &Arc<Lock>, sent: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed {:?}: {}", self.name, self.keys, described(&answer)));
        match answer {
            Ok(()) => {
                *K::common(&mut state.counts).renewed += 1;
                if state.holders().of(&self.name).next().is_some() {
                    self.check_holders(&mut state);
                } else {
                    // A release beside it was answered first. A lock that is valid again counts.
                    self.hold(&mut state, lock, lock.fence(), Valid::Ask(Arc::downgrade(lock)));
                    self.leave(&mut state);
                }
            }
            Err(error) => self.failed(&mut state, lock, sent, &error),
        }
    }

    fn released(&self, lock: &Arc<Lock>, sent: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} released {:?}: {}", self.name, self.keys, described(&answer)));
        match answer {
            Ok(()) if K::was_released(self, &state, lock.owner()) => {}
            Ok(()) => {
                self.ledger.broke(&mut state, format!("{} reported a release that did not happen", self.name));
            }
            Err(error) => {
                if error.is_lost() && K::shows_release(self, &state, lock.owner(), sent) {
                    self.ledger.broke(&mut state, format!("{ITSELF}: {} did not recognise its own release", self.name));
                }
                self.failed(&mut state, lock, sent, &error);
            }
        }
        self.leave(&mut state);
    }

    async fn stop(&self, locks: &Locks) {
        let (identity, _) = self.identity.as_ref().unwrap();
        let places: Vec<_> = self.keys.iter().map(|key| place_of::<K>(key, identity)).collect();
        let stops = |place: &String| self.ledger.state().holders().identities.stops(place, identity);
        let before: Vec<_> = places.iter().map(stops).collect();
        let answer = match &self.keys[..] {
            [key] => locks.release_identity(key, identity).await,
            keys => locks.release_identity_all(keys, identity).await,
        };
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} was stopped: {answer:?}", self.name));
        let is_freed = match answer {
            Ok(is_freed) => is_freed,
            Err(error) => return self.check_readable(&mut state, &error),
        };
        let latest = self.ledger.engine.now() + self.ledger.longest_skew;
        // One of the keys was freed, and the identity holds none of them any more.
        let mut broken = |is_freed| {
            let (each, identities) = (places.iter().zip(&before), &state.holders().identities);
            let stopped = each.map(|(place, before)| identities.stopped(place, identity, before, is_freed, latest));
            stopped.collect::<Vec<_>>()
        };
        let (held, mut unchanged) = (broken(false), if is_freed { broken(true) } else { Vec::new() });
        if unchanged.contains(&None) {
            unchanged.clear();
        }
        for what in held.into_iter().chain(unchanged).flatten() {
            self.ledger.broke(&mut state, what);
        }
    }

    fn ended(&self, how: &str) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
        K::ended(self, &mut state);
    }

    fn left(&self, how: &str, successor: Waiting) -> bool {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
        let held = K::left(self, &mut state, successor);
        *K::common(&mut state.counts).crashed += usize::from(held);
        held
    }

    fn broke(&self, what: &str, how: &dyn Debug) {
        self.ledger.violated(format!("{what}: {} {:?}: {how:?}", self.name, self.keys));
    }
}
