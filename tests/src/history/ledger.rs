use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{Answer, DynamoDb, Intercept};
use lambda_lock::{Error, ErrorKind, Lock};
use serde_json::Value;

use super::book::{Book, Observe, Observer, Page, described};
use super::stage::{LATENCY, Waiting};
use super::{Counts, Outcome};
use crate::request::{LEASE_END, Purpose, Request, Write};

/// Records everything, and reports violations of the guarantees.
#[derive(Debug)]
pub(super) struct Ledger {
    book: Book<Kept>,
    clock_skew: Duration,
}

type State = Page<Kept>;

#[derive(Default)]
pub(crate) struct Kept {
    counts: Counts,
    /// By key.
    rows: HashMap<String, Row>,
    /// The locks that their holders have not released.
    holding: Vec<Holding>,
    /// By key and fence: the operation that got the fence.
    applied: HashMap<(String, u64), String>,
    /// Nonces of acquisitions whose release was applied.
    released: HashSet<String>,
    /// By key: the nonce of the last applied release.
    last_released: HashMap<String, String>,
    /// By nonce: the end of the lease with its margin, counted from when its request was applied.
    ends: HashMap<String, SystemTime>,
    crashes: Vec<Crash>,
    /// By key and in order: the times and nonces of acquires.
    taken: Vec<(String, SystemTime, String)>,
    /// By nonce: the end of the minimum hold after an early release, and its operation.
    holds: HashMap<String, (SystemTime, String)>,
}

/// The state of a row after the applied requests.
#[derive(Default)]
struct Row {
    owner: String,
    fence: u64,
    /// The nonce of an acquire that withdrew.
    withdrawn: String,
    /// The sequence number of the owner's last request.
    sequence: u64,
    /// The end of the lease, as stored.
    end: u64,
}

struct Holding {
    key: String,
    operation: String,
    valid: Valid,
}

enum Valid {
    Ask(Weak<Lock>),
    Until(SystemTime),
}

struct Crash {
    key: String,
    owner: String,
    at: SystemTime,
    /// The longest delay of the waiter that comes for the key.
    cap: Duration,
}

impl Ledger {
    pub(super) fn new(engine: DynamoDb, clock_skew: Duration) -> Self {
        Self { book: Book::new(engine), clock_skew }
    }

    pub(super) fn observer(self: &Arc<Self>) -> impl Intercept + use<> {
        Observer(Arc::clone(self))
    }

    pub(super) fn swept(&self, rows: usize) {
        self.book.swept(rows, |kept| &mut kept.counts.swept);
    }

    /// The checks at the end of a history.
    pub(super) fn outcome(&self) -> Outcome {
        let Page { mut journal, kept: state } = self.take();
        for Crash { key, owner, at, cap } in &state.crashes {
            let next = state.taken.iter().find(|(taken, when, by)| taken == key && when >= at && by != owner);
            // A late release may have kept the key for its minimum hold.
            let hold = state.holds.get(owner).filter(|_| state.released.contains(owner));
            let ends = state.ends[owner].max(hold.map_or(*at, |(hold, _)| *hold + 2 * self.clock_skew));
            // The end of the lease includes the skew once. The clock of the next holder may be behind by it once more.
            let latest = ends.max(*at) + self.clock_skew + *cap + 2 * LATENCY;
            if next.is_none_or(|(_, when, _)| *when > latest) {
                let what = format!("(c) {key}, whose holder crashed, was not taken again in time");
                journal.broke(self.engine.now(), what);
            }
        }
        journal.outcome(state.counts)
    }
}

impl Deref for Ledger {
    type Target = Book<Kept>;

    fn deref(&self) -> &Book<Kept> {
        &self.book
    }
}

impl Ledger {
    /// Takes note of an acquire that was applied.
    fn acquired(&self, state: &mut State, update: &Write, answer: &Value) {
        let Write { key, owner, .. } = update;
        let now = self.engine.now();
        let holder = update.text("holder").unwrap().to_owned();
        let fence = update.fence_written(answer);
        let before = state.rows.get(key).map_or(0, |row| row.fence);
        if fence <= before {
            self.broke(state, format!("(b) {key}: fence {fence} after {before}"));
        }
        if state.released.contains(owner) {
            self.broke(state, format!("(e) {key} was taken again by {holder}, which had released it"));
        }
        let last = state.rows.get(key).map(|row| &row.owner).filter(|owner| state.released.contains(*owner));
        if last.and_then(|owner| state.holds.get(owner)).is_some_and(|(until, _)| now < *until) {
            self.broke(state, format!("{key} was taken before its minimum hold was over"));
        }
        let withdrawn = state.rows.get(key).map(|row| row.withdrawn.clone()).unwrap_or_default();
        if withdrawn == *owner {
            self.broke(state, format!("(h) {key} was taken by {holder}, which had withdrawn"));
        }
        let end = update.number(LEASE_END).unwrap();
        state.rows.insert(key.clone(), Row { owner: owner.clone(), fence, withdrawn, sequence: 0, end });
        state.applied.insert((key.clone(), fence), holder);
        state.taken.push((key.clone(), now, owner.clone()));
    }
}

impl Observe for Ledger {
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        let request = Request::parse(operation, request);
        let Some(update) = request.update() else { return };
        let ledger = self;
        let mut state = ledger.state();
        state.counts.requests += 1;
        let Write { purpose, key, owner, .. } = update.clone();
        let now = ledger.engine.now();
        let short = owner.get(..6).unwrap_or("a waiter");
        if answer.status != 200 {
            let in_the_way = &answer.body["Item"];
            ledger.log(
                &mut state,
                &format!(
                    "  {purpose:?} of {key} by {short} refused: {} until {}",
                    in_the_way["holder"]["S"], in_the_way[LEASE_END]["N"]
                ),
            );
            return;
        }
        let end = update.number(LEASE_END);
        ledger.log(&mut state, &format!("  {purpose:?} of {key} by {short} applied: ends {end:?}"));
        if let (Some(end), Some(sent)) = (end, update.sent()) {
            state.ends.insert(owner.clone(), now + Duration::from_millis(end.saturating_sub(sent)));
        }
        match purpose {
            Purpose::Acquire => ledger.acquired(&mut state, update, &answer.body),
            Purpose::Join => state.counts.joined += 1,
            Purpose::Withdraw => {
                state.counts.withdrawn += 1;
                let row = state.rows.entry(key).or_default();
                if update.sets("released").is_some() {
                    row.owner.clone_from(&owner);
                    state.released.insert(owner);
                } else {
                    row.withdrawn = owner;
                }
            }
            Purpose::Resume => {
                let row = state.rows.entry(key.clone()).or_default();
                row.sequence = update.number("sequence").unwrap();
                if row.owner != owner {
                    ledger.broke(&mut state, format!("(e) {key}: a resumption changed another holder's row"));
                }
            }
            // A mutation leaves the number of the row.
            Purpose::KeepByTicket => {
                state.rows.entry(key).or_default().sequence = update.compared("sequence").unwrap();
            }
            Purpose::RenewByTicket => {
                let end = end.unwrap();
                let row = state.rows.entry(key.clone()).or_default();
                let before = std::mem::replace(&mut row.end, end);
                row.sequence = update.compared("sequence").unwrap();
                if row.owner != owner || state.released.contains(&owner) {
                    ledger.broke(&mut state, format!("(e) {key}: a ticket changed a row that is not its own"));
                } else if end < before {
                    ledger.broke(&mut state, format!("(g) {key}: a ticket shortened the lease"));
                }
            }
            Purpose::Renew | Purpose::Release => {
                let is_renewal = purpose == Purpose::Renew;
                if is_renewal && state.released.contains(&owner) {
                    ledger.broke(&mut state, format!("(e) {key}: a renewal took it again after its release"));
                }
                if state.rows.get(&key).is_some_and(|row| row.owner != owner) {
                    ledger.broke(&mut state, format!("(e) {key}: a {purpose:?} changed another holder's row"));
                }
                let sequence = update.number("sequence").unwrap();
                let row = state.rows.entry(key.clone()).or_default();
                let before = std::mem::replace(&mut row.sequence, sequence);
                row.end = end.unwrap();
                if before >= sequence {
                    ledger.broke(&mut state, format!("(g) {key}: a {purpose:?} was applied after a later request"));
                }
                if !is_renewal {
                    state.released.insert(owner.clone());
                    state.last_released.insert(key, owner);
                }
            }
            Purpose::Reserve | Purpose::ForceRelease | Purpose::Tidy | Purpose::Complete | Purpose::Own => {
                unreachable!("no lock of a history has such a request")
            }
        }
    }
}

/// One operation of one worker, which reports to the ledger.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) key: String,
    ledger: Arc<Ledger>,
}

impl Operation {
    pub(super) fn new(name: &str, key: String, ledger: Arc<Ledger>) -> Self {
        // The mutation that forgets the skew reads the skew here.
        let name = format!("{name}, skew {}", ledger.clock_skew.as_millis());
        Self { name, key, ledger }
    }

    /// Another host that gets the ticket of this operation's lock.
    pub(super) fn heir(&self, number: u8) -> Self {
        Self { name: format!("{}, heir {number}", self.name), key: self.key.clone(), ledger: Arc::clone(&self.ledger) }
    }

    /// Records an acquired lock, whose validity others can query.
    pub(super) fn acquired(&self, lock: &Arc<Lock>, hold_at_least: Duration) {
        self.enter(lock, hold_at_least, Valid::Ask(Arc::downgrade(lock)));
    }

    /// Records a lock that was resumed with the ticket of another operation.
    pub(super) fn resumed(&self, lock: &Arc<Lock>, from: &Self) {
        let mut state = self.ledger.state();
        state.counts.resumed += 1;
        self.ledger.log(&mut state, &format!("{} resumed {} with fence {}", self.name, self.key, lock.fence()));
        if state.applied.get(&(self.key.clone(), lock.fence())) != Some(&from.name) {
            self.ledger.broke(&mut state, format!("{} resumed a lock that {} did not have", self.name, from.name));
        }
        self.alone(&mut state, lock.is_valid());
        let valid = Valid::Ask(Arc::downgrade(lock));
        state.holding.push(Holding { key: self.key.clone(), operation: self.name.clone(), valid });
    }

    /// Records a renewal with this ticket. From now on, the row refuses the requests of the process that made the ticket.
    pub(super) fn ticket_renewed(&self, ticket: &Value) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed its ticket", self.name));
        if let Some(row) = state.rows.get_mut(&self.key).filter(|row| ticket["owner"] == row.owner) {
            row.sequence = row.sequence.max(ticket["sequence"].as_u64().unwrap());
        }
    }

    /// Records why a ticket was refused.
    pub(super) fn ticket_refused(&self, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} has a ticket that was refused: {error}", self.name));
        state.counts.tickets_refused += 1;
        if matches!(error.kind(), ErrorKind::TicketUnknown | ErrorKind::TicketForeign) {
            self.ledger.broke(&mut state, format!("(f) {} has a ticket that no acquisition matches", self.name));
        }
    }

    /// Begins the body of a `run`. It ends when the returned value is dropped, which a cancellation does too.
    pub(super) fn entered(&self, lock: &Lock, hold_at_least: Duration) -> Inside<'_> {
        let until = self.ledger.engine.now() + lock.remaining();
        self.enter(lock, hold_at_least, Valid::Until(until));
        Inside { operation: self, done: false }
    }

    fn enter(&self, lock: &Lock, hold_at_least: Duration, valid: Valid) {
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
        if !hold_at_least.is_zero() {
            // The holder's clock may be ahead by half the skew.
            let until = lock.acquired_at() + hold_at_least - ledger.clock_skew / 2;
            state.holds.insert(lock.owner().to_owned(), (until, self.name.clone()));
        }
        self.alone(&mut state, lock.is_valid());
        state.holding.push(Holding { key: self.key.clone(), operation: self.name.clone(), valid });
    }

    /// (a) No other holder may consider itself valid at this instant.
    fn alone(&self, state: &mut State, valid: bool) {
        let now = self.ledger.engine.now();
        let other = state.holding.iter().find(|holding| {
            holding.key == self.key
                && holding.operation != self.name
                && match &holding.valid {
                    Valid::Ask(lock) => lock.upgrade().is_some_and(|lock| lock.is_valid()),
                    Valid::Until(until) => now < *until,
                }
        });
        if let (Some(other), true) = (other, valid) {
            let what = format!("(a) {} and {} hold {} at once", self.name, other.operation, self.key);
            self.ledger.broke(state, what);
        }
    }

    pub(super) fn refused(&self, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} refused: {error}", self.name));
        let Some(fence) = error.holder().and_then(lambda_lock::Holder::fence) else { return };
        state.counts.held += 1;
        if state.applied.get(&(self.key.clone(), fence)) == Some(&self.name) {
            self.ledger.broke(&mut state, format!("(f) {} was refused by its own lost write", self.name));
        }
    }

    /// The wait goes on in another process.
    pub(super) fn postponed(&self, delay: Duration) {
        let mut state = self.ledger.state();
        state.counts.postponed += 1;
        self.ledger.log(&mut state, &format!("{} keeps its turn for {delay:?}", self.name));
    }

    pub(super) fn renewed(&self, lock: &Arc<Lock>, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed {}: {}", self.name, self.key, described(&answer)));
        match answer {
            Ok(()) => {
                state.counts.renewed += 1;
                self.alone(&mut state, lock.is_valid());
            }
            Err(error) if error.is_lost() => state.counts.lost += 1,
            Err(_) => {}
        }
    }

    pub(super) fn released(&self, lock: &Arc<Lock>, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} released {}: {}", self.name, self.key, described(&answer)));
        let applied = state.released.contains(lock.owner());
        match answer {
            Ok(()) if !applied => {
                self.ledger.broke(&mut state, format!("{} reported a release that did not happen", self.name));
            }
            Err(error) if error.is_lost() => {
                state.counts.lost += 1;
                // After the release of another lock, the row no longer shows it.
                if state.last_released.get(&self.key).is_some_and(|last| last == lock.owner()) {
                    self.ledger.broke(&mut state, format!("(f) {} did not recognise its own release", self.name));
                }
            }
            _ => {}
        }
        self.leave(&mut state);
    }

    pub(super) fn cancelled(&self) {
        self.ledger.state().counts.lost += 1;
        self.ended("was cancelled at the end of its lease");
    }

    /// The work was not done, or its outcome is unknown: clears the minimum hold.
    pub(super) fn ended(&self, how: &str) {
        let mut state = self.ledger.state();
        state.holds.retain(|_, (_, operation)| *operation != self.name);
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
    }

    pub(super) fn completed(&self) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} completed", self.name));
        self.leave(&mut state);
    }

    /// The host crashed, and another one waits for its key. Returns whether it held the key.
    pub(super) fn crashed(&self, successor: Waiting) -> bool {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} crashed", self.name));
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

    pub(super) fn broke(&self, what: &str, how: &dyn Debug) {
        let mut state = self.ledger.state();
        self.ledger.broke(&mut state, format!("{what}: {} {}: {how:?}", self.name, self.key));
    }

    fn leave(&self, state: &mut State) {
        state.holding.retain(|holding| holding.operation != self.name);
    }
}

/// The body of a `run`.
pub(super) struct Inside<'a> {
    operation: &'a Operation,
    done: bool,
}

impl Inside<'_> {
    pub(super) fn done(mut self) {
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
