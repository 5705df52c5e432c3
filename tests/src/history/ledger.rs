mod operation;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::Answer;
use serde_json::Value;

use super::Counts;
use super::book::{Book, Judged, Observe, Page, Valid};
use super::holders::{Holders, Holding};
use super::identities::{Identities, short};
use super::liveness::refused_while_free;
use super::stage::LATENCY;
use crate::guarantee::{CRASHES, FENCES, ORDER, OWNERS, SERVED, WITHDRAWN};
use crate::request::{LAST_SEQUENCE, LEASE_END, Purpose, Request, Write};

pub(super) use operation::Operation;

/// Records everything, and reports violations of the guarantees.
pub(super) type Ledger = Book<Kept>;

type State = Page<Kept>;

#[derive(Default)]
pub(crate) struct Kept {
    /// By key.
    rows: HashMap<String, Row>,
    holders: Holders,
    /// By key and fence: the operation that got the fence.
    applied: HashMap<(String, u64), String>,
    /// Nonces of acquisitions whose release was applied.
    released: HashSet<String>,
    /// Nonces of acquisitions that their holders have released, so that they send no more attempts.
    done: HashSet<String>,
    /// By key: the nonce of the last applied release, if that was its holder's.
    last_released: HashMap<String, String>,
    /// By nonce: the end of the lease with its margin, counted from when its request was applied.
    ends: HashMap<String, SystemTime>,
    crashes: Vec<Crash>,
    /// In order.
    taken: Vec<Taken>,
    /// By key: the largest fence that a receiver has seen.
    written: HashMap<String, u64>,
    /// By nonce.
    holds: HashMap<String, Hold>,
    identities: Identities,
}

/// A minimum hold.
struct Hold {
    /// Its end after an early release.
    until: SystemTime,
    operation: String,
}

/// An acquire that was applied.
struct Taken {
    key: String,
    at: SystemTime,
    owner: String,
    fence: u64,
}

/// The state of a row after the applied requests.
#[derive(Default)]
struct Row {
    owner: String,
    fence: u64,
    /// The numbers up to this one were given up.
    withdrawn: u64,
    /// The sequence number of the owner's last request.
    sequence: u64,
    /// The end of the lease, as stored.
    end: u64,
}

struct Crash {
    key: String,
    owner: String,
    at: SystemTime,
    /// The longest delay of the waiter that comes for the key.
    cap: Duration,
}

impl Ledger {
    /// Checks at the end of a history that each key whose holder crashed was taken again in time.
    pub(super) fn check_crashes(&self) {
        let Page { journal, kept: state, .. } = &mut *self.state();
        for Crash { key, owner, at, cap } in &state.crashes {
            let next = state.taken.iter().find(|next| next.key == *key && next.at >= *at && next.owner != *owner);
            // A late release may have kept the key for its minimum hold.
            let hold = state.holds.get(owner).filter(|_| state.released.contains(owner));
            let ends = state.ends[owner].max(hold.map_or(*at, |hold| hold.until + 2 * self.clock_skew));
            // The end of the lease includes the skew once. The clock of the next holder may be behind by it once more.
            let latest = ends.max(*at) + self.clock_skew + *cap + 2 * LATENCY + self.slack;
            if next.is_none_or(|next| next.at > latest) {
                let what = format!("{CRASHES}: {key}, whose holder crashed, was not taken again in time");
                journal.broke(self.engine.now(), what);
            }
        }
    }

    /// Takes note of an acquire that was applied.
    fn acquired(&self, state: &mut State, update: &Write, answer: &Value) {
        let Write { key, owner, .. } = update;
        let now = self.engine.now();
        let holder = update.text("holder").unwrap().to_owned();
        let fence = update.fence_written(answer);
        let (before, withdrawn) = state.rows.get(key).map_or((0, 0), |row| (row.fence, row.withdrawn));
        // A release leaves its number, too.
        if fence <= before {
            self.broke(state, format!("{FENCES}: {key}: fence {fence} after {before}"));
        }
        if fence <= withdrawn {
            self.broke(state, format!("{WITHDRAWN}: {key} was taken by {holder}, which had withdrawn"));
        }
        let last = state.rows.get(key).map(|row| &row.owner).filter(|owner| state.released.contains(*owner));
        if last.and_then(|owner| state.holds.get(owner)).is_some_and(|hold| now < hold.until) {
            self.broke(state, format!("{key} was taken before its minimum hold was over"));
        }
        if state.done.contains(owner) {
            self.broke(state, format!("{OWNERS}: {key} was taken again by {holder}, which had released it"));
        }
        // What asks again is held again.
        state.released.remove(owner);
        let end = update.number(LEASE_END).unwrap();
        state.rows.insert(key.clone(), Row { owner: owner.clone(), fence, withdrawn, sequence: 0, end });
        state.applied.insert((key.clone(), fence), holder);
        state.taken.push(Taken { key: key.clone(), at: now, owner: owner.clone(), fence });
    }
}

impl Observe for Kept {
    type Counts = Counts;

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut Answer) {
        let request = Request::parse(operation, request);
        let Some(update) = request.update() else { return };
        let mut state = ledger.state();
        state.counts.requests += 1;
        let Write { purpose, key, owner, .. } = update.clone();
        let now = ledger.engine.now();
        let short = short(&owner);
        if answer.status != 200 {
            let in_the_way = &answer.body["Item"];
            ledger.log(
                &mut state,
                &format!(
                    "  {purpose:?} of {key} by {short} refused: {} until {}",
                    in_the_way["holder"]["S"], in_the_way[LEASE_END]["N"]
                ),
            );
            if purpose == Purpose::Acquire
                && let Some(why) = refused_while_free(update, in_the_way)
            {
                ledger.broke(&mut state, format!("{SERVED}: {key} was refused: {why}"));
            }
            return;
        }
        let end = update.number(LEASE_END);
        ledger.log(&mut state, &format!("  {purpose:?} of {key} by {short} applied: ends {end:?}"));
        if let (Some(end), Some(sent)) = (end, update.sent()) {
            state.ends.insert(owner.clone(), now + Duration::from_millis(end.saturating_sub(sent)));
        }
        let effect = state.identities.applied(&key, update, update.sent(), update.attempt());
        state.counts.taken_over += usize::from(effect.has_taken_over);
        state.counts.freed_for_identity += usize::from(effect.is_for_identity);
        state.counts.freed_by_force += usize::from(effect.is_by_force);
        if let Some(what) = effect.breaks {
            ledger.broke(&mut state, what);
        }
        match purpose {
            Purpose::Acquire => ledger.acquired(&mut state, update, &answer.body),
            Purpose::Join => state.counts.joined += 1,
            Purpose::Withdraw => {
                state.counts.withdrawn += 1;
                let row = state.rows.entry(key).or_default();
                if let Some(fence) = update.attempt() {
                    (row.owner, row.fence) = (owner.clone(), fence);
                    state.released.insert(owner);
                } else {
                    row.withdrawn = update.gives_up().unwrap();
                }
            }
            Purpose::Renew | Purpose::Release => {
                let is_renewal = purpose == Purpose::Renew;
                if is_renewal && state.released.contains(&owner) {
                    ledger.broke(&mut state, format!("{OWNERS}: {key}: a renewal took it again after its release"));
                }
                if state.rows.get(&key).is_some_and(|row| row.owner != owner) {
                    ledger.broke(&mut state, format!("{OWNERS}: {key}: a {purpose:?} changed another holder's row"));
                }
                let sequence = update.number("sequence").unwrap();
                let row = state.rows.entry(key.clone()).or_default();
                let before = std::mem::replace(&mut row.sequence, sequence);
                row.end = end.unwrap();
                row.fence = update.attempt().unwrap_or(row.fence);
                if before >= sequence {
                    ledger
                        .broke(&mut state, format!("{ORDER}: {key}: a {purpose:?} was applied after a later request"));
                }
                if !is_renewal {
                    // The release of a withdrawal is not the last request of its owner.
                    if sequence < LAST_SEQUENCE {
                        state.done.insert(owner.clone());
                        state.last_released.insert(key, owner.clone());
                    } else {
                        state.last_released.remove(&key);
                    }
                    state.released.insert(owner);
                }
            }
            // The owner finds it lost.
            Purpose::Free => {
                state.rows.entry(key.clone()).or_default().fence = update.attempt().unwrap();
                state.holds.remove(&owner);
                state.last_released.remove(&key);
                state.released.insert(owner);
            }
            Purpose::Look => {}
            Purpose::PutBack | Purpose::Reserve | Purpose::Complete | Purpose::Ask | Purpose::Call | Purpose::Own => {
                unreachable!("no lock of a history has such a request")
            }
        }
    }
}

impl Judged for Kept {
    fn identities(&mut self) -> &mut Identities {
        &mut self.identities
    }
}
