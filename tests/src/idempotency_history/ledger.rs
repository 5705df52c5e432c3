mod call;

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::Answer as WireAnswer;
use serde_json::Value;

use super::{Counts, Terms, Then};
use crate::guarantee::{FENCES, ONCE, REPLIES};
use crate::history::book::{Book, Observe, Page};
use crate::history::stage::{CAP, LATENCY};
use crate::request::{LEASE_END, Purpose, Request, Write};

pub(crate) use call::{Call, Execution};

/// Records everything, and reports violations of the guarantees.
pub(crate) type Ledger = Book<Kept>;

type State = Page<Kept>;

#[derive(Default)]
pub(crate) struct Kept {
    /// By key.
    terms: HashMap<String, Terms>,
    /// By number, from 1.
    runs: Vec<Ran>,
    /// By key: the count of the work, and the expected count.
    counters: HashMap<String, (u64, u64)>,
    /// Committed transactions: DynamoDB answers a duplicate like the first, and applies nothing.
    transactions: HashSet<String>,
    /// By nonce.
    records: HashMap<String, Record>,
    /// By owner: when its withdrawal made the row.
    withdrawn: HashMap<String, SystemTime>,
    /// By key: the nonce of the last acquire.
    rows: HashMap<String, String>,
    /// By key: the last fence.
    fences: HashMap<String, u64>,
    /// By key and in order: the times and nonces of new runs.
    news: Vec<(String, SystemTime, String)>,
    crashes: Vec<Crash>,
}

/// One run of the work.
struct Ran {
    key: String,
    owner: String,
    /// When its lease ends.
    until: SystemTime,
    ended: Option<SystemTime>,
    how: How,
    /// When its window begins, if its outcome is stored.
    outcome: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// In progress, cancelled, panicked or crashed.
    Unfinished,
    Answered,
    /// With another result than its transaction.
    AnsweredOtherwise,
    Failed(Then),
}

/// The state of one acquisition after the applied requests. It is a ghost if it was applied twice: a duplicate arrived
/// after the row was deleted.
struct Record {
    /// When the request was sent, by its sender's clock.
    sent: SystemTime,
    /// When the lease with its margin ends.
    ends: SystemTime,
    is_ghost: bool,
    released: Option<SystemTime>,
    completed: Option<SystemTime>,
    /// Whether a transaction completed it.
    is_committed: bool,
}

struct Crash {
    key: String,
    owner: String,
    at: SystemTime,
}

impl Kept {
    pub(crate) fn of(terms: HashMap<String, Terms>) -> Self {
        Self { terms, ..Self::default() }
    }
}

impl Ledger {
    /// Each window with a result has one business write.
    pub(crate) fn count_business(&self, key: &str, writes: u64) {
        let mut state = self.state();
        let mut ends = SystemTime::UNIX_EPOCH;
        let (mut windows, mut is_counted) = (0, false);
        let completed = |run: &&Ran| run.key == key && state.records[&run.owner].completed.is_some();
        let mut completed: Vec<_> = state.runs.iter().filter(completed).collect();
        // A completion that arrives after the window of another run begins its own, although its outcome is older.
        let stored = |run: &Ran| state.records[&run.owner].completed;
        completed.sort_by_key(|run| stored(run));
        for run in completed {
            if let Some(end) = self.window_end(&state, run).filter(|_| stored(run) >= Some(ends)) {
                ends = end;
                is_counted = false;
            }
            let has_business_write = !state.terms[key].transactional || state.records[&run.owner].is_committed;
            if !is_counted && run.how != How::Failed(Then::Store) && has_business_write {
                windows += 1;
                is_counted = true;
            }
        }
        self.log(&mut state, &format!("{key}: {writes} business writes, {windows} windows with a result"));
        if writes != windows {
            self.broke(&mut state, format!("(iv) {key}: {writes} business writes for {windows} windows with a result"));
        }
    }

    /// Checks at the end of a history that each count is right, and that each key whose run crashed was taken again in time.
    pub(crate) fn check_ends(&self) {
        let Page { journal, kept: state, .. } = &mut *self.state();
        for (key, (count, expected)) in &state.counters {
            if count != expected {
                let what = format!("(ii) {key} counts {count} and was counted up {expected} times");
                journal.broke(self.engine.now(), what);
            }
        }
        for Crash { key, owner, at } in &state.crashes {
            let next = state.news.iter().find(|(taken, when, by)| {
                taken == key && when >= at && (by != owner || state.records[owner].completed.is_some())
            });
            // The end of the lease includes the skew once. The clock of the next holder may be behind by it once more.
            let latest = state.records[owner].ends.max(*at) + self.clock_skew + CAP + 2 * LATENCY + self.slack;
            if next.is_none_or(|(_, when, _)| *when > latest) {
                let what = format!("(vi) {key}, whose run crashed, was not taken again in time");
                journal.broke(self.engine.now(), what);
            }
        }
    }

    /// Whether a run of this key finished.
    pub(crate) fn is_done(&self, key: &str) -> bool {
        self.state().runs.iter().any(|run| run.key == key && run.how == How::Answered)
    }

    /// Whether a result of this key was stored by this time, in a window that has not ended.
    pub(crate) fn was_completed(&self, key: &str, by: SystemTime) -> bool {
        let (state, now) = (self.state(), self.engine.now());
        state.runs.iter().filter(|run| run.key == key && run.how != How::Failed(Then::Store)).any(|run| {
            let is_stored = state.records[&run.owner].completed.is_some_and(|completed| completed <= by);
            is_stored && self.window_end(&state, run).is_some_and(|end| now < end)
        })
    }

    /// The earliest end of the window of a run, if its outcome was stored.
    fn window_end(&self, state: &State, run: &Ran) -> Option<SystemTime> {
        let outcome = run.outcome.filter(|_| state.records[&run.owner].completed.is_some())?;
        Some(outcome + state.terms[&run.key].window - self.clock_skew)
    }

    /// Why another run of this key must not begin now, if it must not.
    fn obstacle(&self, state: &State, earlier: &Ran, now: SystemTime) -> Option<String> {
        let terms = state.terms[&earlier.key];
        let record = &state.records[&earlier.owner];
        let released = record.released.is_some();
        if earlier.ended.is_none() {
            return Some("(ii) began beside".to_owned());
        }
        if let Some(end) = self.window_end(state, earlier) {
            return (now < end).then(|| format!("{ONCE}: began within the window of"));
        }
        if terms.reject_unfinished && !(matches!(earlier.how, How::Failed(_)) && released) {
            let end = record.sent + terms.window - self.clock_skew;
            return (now < end).then(|| "(iii) began despite the unfinished".to_owned());
        }
        (now < earlier.until && !released).then(|| "(ii) began within the lease of".to_owned())
    }
}

impl Observe for Kept {
    type Counts = Counts;

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut WireAnswer) {
        let token = request["ClientRequestToken"].as_str();
        let request = Request::parse(operation, request);
        let Some(write) = request.writes.first() else { return };
        let mut state = ledger.state();
        state.counts.requests += 1;
        let Write { purpose, key, owner, .. } = write.clone();
        let what = format!("{purpose:?} of {key} by {}", owner.get(..6).unwrap_or_default());
        if answer.status != 200 {
            state.counts.transactions_cancelled += usize::from(request.is_transaction);
            let row = &answer.body["Item"];
            let why = [&row["status"]["S"], &row[LEASE_END]["N"], &row["expiration"]["N"]];
            return ledger.log(&mut state, &format!("  {what} refused: {why:?}"));
        }
        if token.is_some_and(|token| !state.transactions.insert(token.to_owned())) {
            return ledger.log(&mut state, &format!("  {what} answered as before"));
        }
        ledger.log(&mut state, &format!("  {what} applied"));
        match purpose {
            Purpose::Acquire => ledger.taken(&mut state, write, write.fence_written(&answer.body)),
            Purpose::Release => ledger.released(&mut state, &key, &owner),
            Purpose::Complete => ledger.completed(&mut state, key, owner, request.is_transaction),
            // The histories of locks check the purpose of a withdrawal. A new row looks as if its owner had released it.
            Purpose::Withdraw => {
                if write.sets("released").is_some() {
                    state.withdrawn.insert(owner, ledger.engine.now());
                }
            }
            // A mutation omits the completion.
            Purpose::Own => {}
            _ => unreachable!("nothing renews a record, hands it over or queues for it"),
        }
    }
}

impl Ledger {
    fn taken(&self, state: &mut State, acquire: &Write, fence: u64) {
        let Write { key, owner, .. } = acquire.clone();
        let now = self.engine.now();
        let others = state.runs.iter().filter(|run| run.key == key && run.owner != owner);
        if let Some(end) = others.filter_map(|run| self.window_end(state, run)).max().filter(|end| now < *end) {
            let early = end.duration_since(now).unwrap();
            self.broke(state, format!("(vii) {key} was taken {early:?} before the end of a window"));
        }
        let [sent, end] = [acquire.sent(), acquire.number(LEASE_END)].map(Option::unwrap).map(Duration::from_millis);
        let ends = now + end.saturating_sub(sent);
        if let Some(record) = state.records.get_mut(&owner) {
            record.is_ghost = true;
            // A later attempt has a later end. A repeated one has that of the first.
            if SystemTime::UNIX_EPOCH + sent > record.sent {
                record.ends = ends;
            }
        } else {
            let last = state.fences.insert(key.clone(), fence).filter(|last| fence <= *last);
            // A request that is late by the whole window can write a deleted row again.
            if let Some(last) = last.filter(|_| state.terms[&key].window > super::LATEST_ARRIVAL) {
                self.broke(state, format!("{FENCES}: {key}: fence {fence} after {last}"));
            }
            let record = Record {
                sent: SystemTime::UNIX_EPOCH + sent,
                ends,
                is_ghost: false,
                released: None,
                completed: None,
                is_committed: false,
            };
            state.records.insert(owner.clone(), record);
        }
        state.rows.insert(key.clone(), owner.clone());
        state.news.push((key, now, owner));
    }

    fn released(&self, state: &mut State, key: &str, owner: &str) {
        if state.rows.get(key).is_some_and(|last| last != owner) {
            self.broke(state, format!("(ii) {key}: another run's record was released"));
        }
        let run = state.runs.iter().find(|run| run.owner == owner);
        let unfinished = run.is_some_and(|run| run.how == How::Unfinished);
        // Only a mutation releases what was never acquired.
        let Some(record) = state.records.get_mut(owner) else { return };
        // A release that was not answered can be followed by another one, which moves the end.
        record.released = Some(self.engine.now());
        if record.completed.is_some() && !record.is_ghost {
            self.broke(state, format!("{REPLIES}: {key}: a completed record was released"));
        } else if unfinished && state.terms[key].reject_unfinished {
            self.broke(state, format!("(iii) {key}: a run that did not finish was released"));
        }
    }

    fn completed(&self, state: &mut State, key: String, owner: String, in_transaction: bool) {
        if state.rows.get(&key).is_some_and(|last| *last != owner) {
            self.broke(state, format!("{REPLIES}: {key}: a run that had lost its record completed it"));
        }
        let now = self.engine.now();
        let record = state.records.get_mut(&owner).unwrap();
        // The first completion begins the window.
        if record.completed.is_none() {
            record.completed = Some(now);
            record.is_committed = in_transaction;
            state.counts.completed += 1;
            state.counts.committed += usize::from(in_transaction);
        }
        state.news.push((key, now, owner));
    }
}
