//! The ledger of a history of shared keys.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::SystemTime;

use lambda_lock::embedded::Answer;
use lambda_lock::{Error, ErrorKind, Holder, Lock};
use serde_json::Value;

use super::{Counts, PERMITS};
use crate::guarantee::{FENCES, FREED, KINDS, OWNERS, READABLE, SERVED};
use crate::history::book::{Book, Observe, Page, Valid, described};
use crate::history::holders::{Holders, Holding};
use crate::history::liveness::refused_while_free;
use crate::history::operator::Judge;
use crate::request::{Purpose, Request, Write};
use crate::semaphore_history::refused_with_room;

/// What a key is for an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Lock,
    Set,
    Permit,
    Record,
}

/// Records everything, and reports violations of the guarantees.
pub(super) type Ledger = Book<Kept>;

type State = Page<Kept>;

#[derive(Default)]
pub(crate) struct Kept {
    /// By key.
    rows: HashMap<String, Row>,
    /// By key: whether the last deleted row was a semaphore, and the last fence of the key.
    before: HashMap<String, (bool, u64)>,
    holders: Holders,
    /// Keys and nonces whose release was applied.
    released: HashSet<(String, String)>,
    /// By key and nonce: the fence of the last acquisition.
    fences: HashMap<(String, String), u64>,
    /// Keys, nonces and fences that an operator has seen, and may free by force.
    seen: HashSet<(String, String, u64)>,
    /// Keys, nonces and numbers of the attempts that were applied, and the first fence that each of them got.
    arrived: HashMap<(String, String, Option<u64>), u64>,
    /// Keys and nonces that an operator has freed. They may still consider themselves valid.
    freed: HashSet<(String, String)>,
    /// The tokens of applied transactions.
    tokens: HashSet<String>,
}

#[derive(Clone, Default)]
struct Row {
    is_semaphore: bool,
    owner: String,
}

impl Ledger {
    /// Records that TTL has deleted rows, and has left these.
    pub(super) fn swept_but(&self, rows: usize, left: &HashSet<&str>) {
        self.swept(rows, |counts| &mut counts.swept);
        let mut state = self.state();
        let Kept { rows, before, .. } = &mut state.kept;
        rows.retain(|key, row| {
            if !left.contains(key.as_str()) {
                before.entry(key.clone()).or_default().0 = row.is_semaphore;
            }
            left.contains(key.as_str())
        });
    }

    /// One update was applied, alone or as a part of a transaction.
    fn applied(&self, state: &mut State, write: &Write, answer: &Answer) {
        let Write { purpose, key, owner, .. } = write.clone();
        let short = owner.get(..6).unwrap_or_default();
        self.log(state, &format!("  {purpose:?} of {key} by {short} applied"));
        if let Some(status) = write.text("status") {
            let is_semaphore = status == "SEMAPHORE";
            let had = answer.body["Attributes"]["status"]["S"].as_str().map(|had| had == "SEMAPHORE");
            let had = had.or(state.rows.get(&key).map(|row| row.is_semaphore));
            if had.is_some_and(|had| had != is_semaphore) {
                self.broke(state, format!("{KINDS}: {key}: a {purpose:?} changed the kind of its row"));
            }
            if had.is_none() && state.before.get(&key).is_some_and(|(before, _)| *before != is_semaphore) {
                state.counts.changed_kind += 1;
            }
            state.rows.entry(key.clone()).or_default().is_semaphore = is_semaphore;
        }
        let is_of_key = !write.is_of_permit() && !state.rows.get(&key).is_some_and(|row| row.is_semaphore);
        match purpose {
            Purpose::Acquire => {
                let fence = write.fence_written(&answer.body);
                let before = std::mem::replace(&mut state.before.entry(key.clone()).or_default().1, fence);
                if fence <= before {
                    self.broke(state, format!("{FENCES}: {key}: fence {fence} after {before}"));
                }
                // What asks again is held again.
                let of_owner = (key.clone(), owner.clone());
                // A repeated request takes a permit for nobody. An operator who has seen what it took first may free it.
                let attempt = (key.clone(), owner.clone(), write.attempt());
                let first = *state.arrived.entry(attempt).or_insert(fence);
                if first == fence || !write.is_of_permit() {
                    state.released.remove(&of_owner);
                    state.freed.remove(&of_owner);
                } else if state.seen.contains(&(key.clone(), owner.clone(), first)) {
                    state.seen.insert((key.clone(), owner.clone(), fence));
                }
                state.fences.insert(of_owner, fence);
                state.rows.entry(key).or_default().owner = owner;
            }
            Purpose::Renew | Purpose::Release | Purpose::Complete
                if state.freed.contains(&(key.clone(), owner.clone())) =>
            {
                self.broke(state, format!("{FREED}: {key}: a {purpose:?} changed what an operator has freed"));
            }
            Purpose::Free => {
                let permits: Vec<_> = write.frees().map(|freeing| freeing.owner).collect();
                for owner in if write.is_of_permit() { permits } else { vec![owner] } {
                    self.freed(state, &key, owner, write.attempt());
                }
            }
            Purpose::Renew | Purpose::Release | Purpose::Complete if is_of_key => {
                if state.rows.get(&key).is_some_and(|row| row.owner != owner) {
                    self.broke(state, format!("{OWNERS}: {key}: a {purpose:?} changed another holder's row"));
                }
                if purpose != Purpose::Renew {
                    state.released.insert((key, owner));
                }
            }
            Purpose::Withdraw if is_of_key && write.sets("released").is_some() => {
                state.rows.entry(key.clone()).or_default().owner.clone_from(&owner);
                state.released.insert((key, owner));
            }
            Purpose::Release => {
                state.released.insert((key, owner));
            }
            _ => {}
        }
    }
}

impl Ledger {
    /// An operator has freed what this owner has, and left this fence.
    fn freed(&self, state: &mut State, key: &str, owner: String, left: Option<u64>) {
        state.counts.freed_by_force += 1;
        let of_owner = (key.to_owned(), owner.clone());
        let fence = state.fences.get(&of_owner).copied().unwrap_or_default();
        if !state.seen.contains(&(key.to_owned(), owner, fence)) {
            self.broke(state, format!("{FREED}: {key} was freed, and no operator has seen this acquisition"));
        }
        state.fences.insert(of_owner.clone(), left.unwrap_or(fence));
        state.freed.insert(of_owner);
    }
}

impl Observe for Kept {
    type Counts = Counts;

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut Answer) {
        let token = request["ClientRequestToken"].as_str().map(str::to_owned);
        let request = Request::parse(operation, request);
        let mut state = ledger.state();
        state.counts.requests += 1;
        if answer.status == 200 {
            if token.is_some_and(|token| !state.tokens.insert(token)) {
                return ledger.log(&mut state, "  a repetition was recognised");
            }
            for write in &request.writes {
                ledger.applied(&mut state, write, answer);
            }
            return;
        }
        for (number, write) in request.writes.iter().enumerate() {
            let in_transaction = &answer.body["CancellationReasons"][number]["Item"];
            let row = if request.is_transaction { in_transaction } else { &answer.body["Item"] };
            let (purpose, key, status) = (write.purpose, &write.key, row["status"]["S"].as_str());
            ledger.log(&mut state, &format!("  {purpose:?} of {key} refused by a row that is {status:?}"));
            if purpose != Purpose::Acquire {
                continue;
            }
            let is_permit = write.is_of_permit();
            let why = match status {
                Some("SEMAPHORE") if is_permit => refused_with_room(write, row),
                Some("INPROGRESS") if !is_permit => refused_while_free(write, row),
                _ => None,
            };
            if let Some(why) = why {
                ledger.broke(&mut state, format!("{SERVED}: {key} was refused: {why}"));
            }
        }
    }
}

impl Judge for Ledger {
    fn sees(&self, key: &str, seen: &Holder) {
        let (owner, fence) = (seen.owner().unwrap_or_default().to_owned(), seen.fence().unwrap_or_default());
        self.state().seen.insert((key.to_owned(), owner, fence));
    }

    fn forced(&self, key: &str, seen: &Holder, answer: &Result<bool, Error>) {
        let mut state = self.state();
        self.log(&mut state, &format!("an operator freed {key} by force: {answer:?}"));
        let Ok(is_freed) = answer else { return };
        let of_owner = (key.to_owned(), seen.owner().unwrap_or_default().to_owned());
        let is_as_seen = state.fences.get(&of_owner).copied() == seen.fence();
        let is_of_owner = state.rows.get(key).is_some_and(|row| !row.is_semaphore && row.owner == of_owner.1);
        if is_as_seen && is_of_owner && !state.released.contains(&of_owner) && !state.freed.contains(&of_owner) {
            self.broke(
                &mut state,
                format!("{FREED}: {key}: a release by force answered {is_freed}, and did not free it"),
            );
        }
    }
}

/// One operation of one worker, which reports to the ledger.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) keys: Vec<String>,
    ledger: Arc<Ledger>,
}

impl Operation {
    pub(super) fn new(name: String, kind: Kind, keys: Vec<String>, ledger: Arc<Ledger>) -> Self {
        Self { name, kind, keys, ledger }
    }

    pub(super) fn acquired(&self, held: &Arc<Lock>) {
        let mut state = self.ledger.state();
        *match self.kind {
            Kind::Lock => &mut state.counts.locks,
            Kind::Set => &mut state.counts.sets,
            Kind::Permit => &mut state.counts.permits,
            Kind::Record => &mut state.counts.runs,
        } += 1;
        self.hold(&mut state, held, Valid::Ask(Arc::downgrade(held)));
    }

    /// Begins a run of idempotent work. It ends when the returned value is dropped, which a cancellation does too.
    pub(super) fn entered(&self, lock: &Lock) -> Inside<'_> {
        let mut state = self.ledger.state();
        state.counts.runs += 1;
        let until = self.ledger.engine.now() + lock.remaining();
        self.hold(&mut state, lock, Valid::Until(until));
        Inside(self)
    }

    fn hold(&self, state: &mut State, lock: &Lock, valid: Valid<Lock>) {
        self.ledger.log(state, &format!("{} has {:?} as {:?}", self.name, self.keys, self.kind));
        let (operation, keys, owner) = (self.name.clone(), self.keys.clone(), lock.owner().to_owned());
        let permits = (self.kind == Kind::Permit).then_some(PERMITS);
        state.holders.enter(Holding { operation, keys, owner, permits, fence: lock.fence(), valid });
        self.check_holders(state);
    }

    pub(super) fn renewed(&self) {
        self.check_holders(&mut self.ledger.state());
    }

    fn check_holders(&self, state: &mut State) {
        let has_lost = |key: &str, owner: &str| state.freed.contains(&(key.to_owned(), owner.to_owned()));
        if let Some(what) = state.holders.violation(&self.keys, self.ledger.engine.now(), has_lost) {
            self.ledger.broke(state, what);
        }
    }

    pub(super) fn refused(&self, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} refused: {error}", self.name));
        let is_semaphore = |key: &String| state.rows.get(key).map(|row| row.is_semaphore);
        let is_other = |key: &String| is_semaphore(key).is_some_and(|is| is != (self.kind == Kind::Permit));
        let (has_other, has_own) = (self.keys.iter().any(is_other), self.keys.iter().any(|key| !is_other(key)));
        match error.kind() {
            ErrorKind::MalformedRow => self.ledger.broke(&mut state, format!("{READABLE}: {}: {error}", self.name)),
            ErrorKind::WrongKind => {
                state.counts.wrong_kind += 1;
                if !has_other {
                    self.ledger.broke(&mut state, format!("{KINDS}: {} was refused as of another kind", self.name));
                }
            }
            _ if error.is_held() => {
                state.counts.held += 1;
                if has_other && !has_own {
                    self.ledger.broke(&mut state, format!("{KINDS}: {} waited for another kind: {error}", self.name));
                }
            }
            _ => {}
        }
    }

    pub(super) fn released(&self, held: &Lock, answer: &Result<(), Error>) {
        let mut state = self.ledger.state();
        let what = answer.as_ref().map_or_else(ToString::to_string, |()| described(&Ok(())));
        self.ledger.log(&mut state, &format!("{} released {:?}: {what}", self.name, self.keys));
        let is_released = |key: &String| {
            let of_owner = (key.clone(), held.owner().to_owned());
            // A permit whose release was not answered, and that is gone, counts as released.
            state.released.contains(&of_owner) || self.kind == Kind::Permit && state.freed.contains(&of_owner)
        };
        if answer.is_ok() && !self.keys.iter().all(is_released) {
            self.ledger.broke(&mut state, format!("{} reported a release that did not happen", self.name));
        }
        self.leave(&mut state);
    }

    /// The work has a result, of this run or of another one.
    pub(super) fn answered(&self) {
        let mut state = self.ledger.state();
        let ran = state.holders.of(&self.name).next().is_some();
        state.counts.replayed += usize::from(!ran);
        self.leave(&mut state);
    }

    pub(super) fn crashed(&self) {
        self.ledger.state().counts.crashed += 1;
        self.left("crashed");
    }

    pub(super) fn left(&self, how: &str) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
    }

    pub(super) fn broke(&self, what: &str, how: &dyn Debug) {
        let mut state = self.ledger.state();
        self.ledger.broke(&mut state, format!("{what}: {} {:?}: {how:?}", self.name, self.keys));
    }

    fn leave(&self, state: &mut State) {
        state.holders.leave(&self.name);
    }
}

/// A run of idempotent work.
pub(super) struct Inside<'a>(&'a Operation);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Its result may not be stored yet, but the work has ended.
        let mut state = self.0.ledger.state();
        for holding in state.holders.of(&self.0.name) {
            holding.valid = Valid::Until(SystemTime::UNIX_EPOCH);
        }
    }
}

impl fmt::Debug for Inside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inside")
    }
}
