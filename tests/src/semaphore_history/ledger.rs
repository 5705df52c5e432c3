//! The ledger of a history of semaphores.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{Error, ErrorKind, Holder, Lock};
use serde_json::Value;

use super::{Counts, MOST_TOMBSTONES, Outcome};
use crate::history::book::{Book, Observe, Observer, Page, Valid, described};
use crate::history::stage::Stage;
use crate::request::expression::Condition;
use crate::request::{Purpose, Request, Write, permit_of};

/// For how long a free permit is left to others at most, in milliseconds.
const LONGEST_COURTESY: u64 = 2500;

/// For how long, and among how many later releases, the row refuses an owner that has released its permit.
const REMEMBERED: Duration = Duration::from_secs(55);
const REMEMBERED_RELEASES: usize = 16;

/// Records everything, and reports violations of the guarantees.
#[derive(Debug)]
pub(super) struct Ledger {
    book: Book<Kept>,
    clock_skew: Duration,
    /// That of the deployment with the longest one.
    longest_skew: Duration,
}

type State = Page<Kept>;

#[derive(Default)]
pub(crate) struct Kept {
    counts: Counts,
    /// By key: the last fence.
    fences: HashMap<String, u64>,
    /// The permits that their holders have not released, and least holds.
    holding: Vec<Holding>,
    /// By key and fence: the operation that got the fence.
    applied: HashMap<(String, u64), String>,
    /// By owner: when its release or withdrawal was applied.
    released: HashMap<String, SystemTime>,
    /// By key: when releases and withdrawals were applied.
    releases: HashMap<String, Vec<SystemTime>>,
    /// By operation: the owner that has a permit in a row.
    in_row: HashMap<String, String>,
    /// By owner: the sequence number of its last request.
    sequences: HashMap<String, u64>,
    /// Permits that were replaced.
    replaced: HashSet<String>,
}

struct Holding {
    key: String,
    operation: String,
    fence: u64,
    /// How many permits its caller allows.
    permits: u32,
    valid: Valid<Lock>,
}

impl Holding {
    fn is_valid(&self, now: SystemTime) -> bool {
        self.valid.is_valid(now, Lock::is_valid)
    }
}

impl Ledger {
    pub(super) fn new(stage: &Stage) -> Self {
        let (book, longest_skew) = (Book::new(stage.engine.clone()), stage.longest_skew());
        Self { book, clock_skew: stage.clock_skew, longest_skew }
    }

    pub(super) fn observer(self: &Arc<Self>) -> impl Intercept + use<> {
        Observer(Arc::clone(self))
    }

    pub(super) fn swept(&self, rows: usize) {
        self.book.swept(rows, |kept| &mut kept.counts.swept);
    }

    /// Records that a row with many permits has lost one of them.
    pub(super) fn crowd_lost(&self, error: &Error) {
        self.broke(&mut self.state(), format!("the crowded row has lost a permit: {error}"));
    }

    /// Records how many tombstones a row has after many releases.
    pub(super) fn crowded(&self, tombstones: usize) {
        let mut state = self.state();
        self.log(&mut state, &format!("the crowded row has {tombstones} tombstones"));
        if tombstones > MOST_TOMBSTONES {
            self.broke(&mut state, format!("(t) a row keeps {tombstones} tombstones"));
        }
    }

    pub(super) fn outcome(&self) -> Outcome<Counts> {
        let Page { journal, kept } = self.take();
        journal.outcome(kept.counts)
    }
}

impl Deref for Ledger {
    type Target = Book<Kept>;

    fn deref(&self) -> &Book<Kept> {
        &self.book
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
        let (now, applied) = (ledger.engine.now(), answer.status == 200);
        let how = if applied { "applied" } else { "refused" };
        let short = owner.get(..6).unwrap_or_default();
        ledger.log(&mut state, &format!("  {purpose:?} of {key} by {short} {how}"));
        if !applied {
            if let Some(why) = refused_with_room(update, &answer.body["Item"]) {
                ledger.broke(&mut state, format!("(l) {key} was refused: {why}"));
            }
            return;
        }
        match purpose {
            Purpose::Acquire => {
                let holder = update.permit()["by"]["S"].as_str().unwrap().to_owned();
                let fence = update.fence_written(&answer.body);
                let before = state.fences.insert(key.clone(), fence).unwrap_or_default();
                if fence <= before {
                    ledger.broke(&mut state, format!("(b) {key}: fence {fence} after {before}"));
                }
                if state.released.get(&owner).is_some_and(|at| {
                    // By the clocks of others, an earlier release may be later. Its own release is among these.
                    let may_be_later = |other: &&SystemTime| **other + ledger.clock_skew >= *at;
                    let later = state.releases[&key].iter().filter(may_be_later).count() - 1;
                    now < *at + REMEMBERED && later < REMEMBERED_RELEASES
                }) {
                    ledger.broke(&mut state, format!("(e) {key} was taken again by {holder}, which had released it"));
                }
                // After that, a duplicate takes a permit until its own lease has ended.
                state.released.remove(&owner);
                state.sequences.remove(&owner);
                let replaced: Vec<_> = update.other_permits().collect();
                state.counts.replaced += replaced.len();
                state.replaced.extend(replaced);
                state.applied.insert((key, fence), holder.clone());
                state.in_row.insert(holder, owner);
            }
            Purpose::Renew | Purpose::Release => {
                let is_renewal = purpose == Purpose::Renew;
                if state.released.contains_key(&owner) && is_renewal {
                    ledger.broke(&mut state, format!("(e) {key}: a renewal took it again after its release"));
                }
                let sequence = update.compared("sequence").unwrap();
                if state.sequences.insert(owner.clone(), sequence).is_some_and(|before| before >= sequence) {
                    ledger.broke(&mut state, format!("(g) {key}: a {purpose:?} was applied after a later request"));
                }
                if !is_renewal {
                    state.release(key, owner, now);
                }
            }
            Purpose::Withdraw => {
                state.counts.withdrawn += 1;
                state.release(key, owner, now);
            }
            Purpose::Resume => {
                let next = update.number("sequence").unwrap();
                if state.sequences.insert(owner, next).is_some_and(|before| before >= next) {
                    ledger.broke(&mut state, format!("(g) {key}: a resumption was applied after a later request"));
                }
            }
            Purpose::RenewByTicket | Purpose::KeepByTicket => {
                let sequence = update.compared("sequence").unwrap();
                if state.sequences.insert(owner, sequence).is_some_and(|before| before > sequence) {
                    ledger.broke(&mut state, format!("(g) {key}: a ticket was renewed after its use"));
                }
            }
            Purpose::Tidy => {}
            Purpose::Join => state.counts.joined += 1,
            Purpose::Reserve | Purpose::ForceRelease | Purpose::Complete | Purpose::Own => {
                unreachable!("no semaphore of a history has such a request")
            }
        }
    }
}

/// Why this refusal of an acquire is a violation: by the clock of its sender, a permit has been free for longer than it is left
/// to others.
pub(crate) fn refused_with_room(acquire: &Write, row: &Value) -> Option<String> {
    let number_of = |value: &Value| value["N"].as_str().and_then(|number| number.parse::<u64>().ok());
    let number = |name: &str| number_of(&row[name]);
    if acquire.purpose != Purpose::Acquire || row[permit_of(&acquire.owner)].is_object() {
        return None;
    }
    let room = acquire.condition.leaves().into_iter().find_map(|term| match term {
        Condition::Between(path, least, most) if path.name() == "permits" => {
            Some((least.number_in(&Value::Null)?, most.number_in(&Value::Null)?))
        }
        _ => None,
    });
    let (permits, (least, most)) = (number("permits")?, room?);
    // An attempt that replaces permits is refused if others have replaced them, and one whose place was passed asks again.
    let is_passed = acquire.number("head").is_some_and(|place| number("head").unwrap_or_default() > place);
    if least > 0 || permits > most || is_passed {
        return None;
    }
    let free_for = number_of(&acquire.permit()["since"])?.checked_sub(number("freed_at").unwrap_or_default())?;
    (free_for > LONGEST_COURTESY).then(|| format!("{permits} permits were held, and one was free for {free_for} ms"))
}

impl State {
    fn release(&mut self, key: String, owner: String, now: SystemTime) {
        self.releases.entry(key).or_default().push(now);
        self.in_row.retain(|_, in_row| *in_row != owner);
        // A late duplicate of a withdrawal leaves a tombstone with the time of the first one.
        self.released.entry(owner).or_insert(now);
    }
}

/// One operation of one worker, which reports to the ledger.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) key: String,
    /// How many permits this caller allows.
    pub(super) permits: u32,
    ledger: Arc<Ledger>,
}

impl Operation {
    pub(super) fn new(name: &str, key: String, permits: u32, ledger: Arc<Ledger>) -> Self {
        // The mutation that forgets the skew reads the skew here.
        let name = format!("{name}, skew {}", ledger.clock_skew.as_millis());
        Self { name, key, permits, ledger }
    }

    /// Records an acquired permit, whose validity others can query.
    pub(super) fn acquired(&self, permit: &Arc<Lock>) {
        let (ledger, fence) = (&self.ledger, permit.fence());
        let mut state = ledger.state();
        state.counts.acquired += 1;
        ledger.log(&mut state, &format!("{} acquired {} with fence {fence}", self.name, self.key));
        match state.applied.get(&(self.key.clone(), fence)) {
            Some(operation) if *operation == self.name => {}
            other => {
                let other = format!("{other:?}");
                ledger.broke(&mut state, format!("{} was given a permit that the table gave {other}", self.name));
            }
        }
        self.hold(&mut state, fence, Valid::Ask(Arc::downgrade(permit)));
        self.check_number(&mut state);
    }

    fn hold(&self, state: &mut State, fence: u64, valid: Valid<Lock>) {
        let (key, operation) = (self.key.clone(), self.name.clone());
        state.holding.push(Holding { key, operation, fence, permits: self.permits, valid });
    }

    /// (a) Of the permits that are valid at this instant, fewer than N were acquired before each of them. N is the number of
    /// its own caller.
    fn check_number(&self, state: &mut State) {
        let now = self.ledger.engine.now();
        let of_key = state.holding.iter().filter(|holding| holding.key == self.key);
        let mut valid: Vec<_> = of_key.filter(|holding| holding.is_valid(now)).collect();
        valid.sort_by_key(|holding| holding.fence);
        let too_many = valid.iter().enumerate().find(|(before, holding)| *before >= holding.permits as usize);
        let what = too_many.map(|(before, Holding { operation, permits, .. })| {
            format!("(a) {operation} holds {} with {before} others, of {permits}", self.key)
        });
        if let Some(what) = what {
            self.ledger.broke(state, what);
        }
    }

    pub(super) fn refused(&self, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} refused: {error}", self.name));
        self.check(&mut state, error);
        let Some(holder) = error.holder() else { return };
        state.counts.held += 1;
        let fences = holder.permits().iter().filter_map(Holder::fence);
        let own = fences.filter(|fence| state.applied.get(&(self.key.clone(), *fence)) == Some(&self.name)).count();
        if own > 0 {
            self.ledger.broke(&mut state, format!("(f) {} was refused by its own lost write", self.name));
        }
        if holder.permits().len() < self.permits as usize {
            self.ledger.broke(&mut state, format!("(f) {} was refused although there was room", self.name));
        }
    }

    /// Records a renewal of a lease that ended at `end` by the clock of its host.
    pub(super) fn renewed(&self, end: SystemTime, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed {}: {}", self.name, self.key, described(&answer)));
        match answer {
            Ok(()) => {
                state.counts.renewed += 1;
                self.check_number(&mut state);
            }
            Err(error) => self.lost(&mut state, end, &error),
        }
    }

    pub(super) fn released(&self, permit: &Arc<Lock>, end: SystemTime, hold: Duration, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} released {}: {}", self.name, self.key, described(&answer)));
        self.leave(&mut state);
        let applied = state.released.contains_key(permit.owner());
        match answer {
            Ok(()) if !applied => {
                self.ledger.broke(&mut state, format!("{} reported a release that did not happen", self.name));
            }
            Ok(()) => self.keep(&mut state, permit.fence(), permit.acquired_at(), hold),
            Err(error) => {
                if error.is_lost() && applied && self.is_before(end) {
                    self.ledger.broke(&mut state, format!("(f) {} did not recognise its own release", self.name));
                }
                self.lost(&mut state, end, &error);
            }
        }
    }

    /// Records a release with a ticket.
    pub(super) fn kept(&self, fence: u64, acquired_at: SystemTime, hold: Duration) {
        self.keep(&mut self.ledger.state(), fence, acquired_at, hold);
    }

    /// A released permit counts until the end of its minimum hold.
    fn keep(&self, state: &mut State, fence: u64, acquired_at: SystemTime, hold: Duration) {
        if !hold.is_zero() {
            // The holder's clock may be ahead by half the skew.
            let until = acquired_at + hold - self.ledger.clock_skew / 2;
            self.hold(state, fence, Valid::Until(until));
        }
    }

    /// Records a permit that another host has resumed.
    pub(super) fn resumed(&self, permit: &Arc<Lock>) {
        let mut state = self.ledger.state();
        state.counts.resumed += 1;
        self.ledger.log(&mut state, &format!("{} resumed {} with fence {}", self.name, self.key, permit.fence()));
        self.hold(&mut state, permit.fence(), Valid::Ask(Arc::downgrade(permit)));
        self.check_number(&mut state);
    }

    /// Records a renewal with this ticket. From now on, the row refuses the requests of the process that made the ticket.
    pub(super) fn ticket_renewed(&self, ticket: &Value) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed its ticket", self.name));
        let (owner, sequence) = (ticket["owner"].as_str().unwrap(), ticket["sequence"].as_u64().unwrap());
        let number = state.sequences.entry(owner.to_owned()).or_default();
        *number = sequence.max(*number);
    }

    /// The ticket of a lease that ended at `end` by the clock of its host was refused.
    pub(super) fn ticket_refused(&self, end: SystemTime, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} refused the ticket: {error}", self.name));
        if matches!(error.kind(), ErrorKind::TicketUsed | ErrorKind::TicketReleased | ErrorKind::TicketUnknown) {
            self.ledger.broke(&mut state, format!("(f) {} refused a ticket that nobody has used: {error}", self.name));
        }
        self.lost(&mut state, end, error);
    }

    /// (e) No permit is lost before the end of its lease, because no operator is at work.
    fn lost(&self, state: &mut State, end: SystemTime, error: &Error) {
        self.check(state, error);
        if error.is_lost() {
            state.counts.lost += 1;
            if self.is_before(end) {
                self.ledger.broke(state, format!("(e) {} lost a valid permit: {error}", self.name));
            }
        }
    }

    /// Returns `true` if this time by the clock of a host has not come by any host's clock. A host with a longer skew reads an
    /// earlier end in the row.
    fn is_before(&self, end: SystemTime) -> bool {
        self.ledger.engine.now() + self.ledger.longest_skew < end
    }

    /// (m) The count in the row agrees with its permits.
    fn check(&self, state: &mut State, error: &Error) {
        if error.kind() == ErrorKind::MalformedRow {
            self.ledger.broke(state, format!("(m) {}: {error}", self.name));
        }
    }

    /// The permit was dropped, or its outcome is unknown.
    pub(super) fn left(&self, how: &str) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
    }

    /// The host crashed, and another one waits for a permit. Returns whether it held one.
    pub(super) fn crashed(&self) -> bool {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} crashed", self.name));
        self.leave(&mut state);
        let owner = state.in_row.get(&self.name).filter(|owner| !state.replaced.contains(*owner));
        let held = owner.is_some();
        state.counts.crashed += usize::from(held);
        held
    }

    pub(super) fn broke(&self, what: &str, how: &dyn Debug) {
        let mut state = self.ledger.state();
        self.ledger.broke(&mut state, format!("{what}: {} {}: {how:?}", self.name, self.key));
    }

    fn leave(&self, state: &mut State) {
        state.holding.retain(|holding| holding.operation != self.name);
    }
}
