mod operation;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::Answer;
use serde_json::Value;

use super::Counts;
use super::book::{Book, Observe, Page};
use super::holders::Holders;
use super::identities::short;
use super::liveness::refused_while_free;
use super::rows::Rows;
use super::stage::LATENCY;
use crate::guarantee::{CRASHES, ORDER, OWNERS, SERVED};
use crate::request::{LAST_SEQUENCE, LEASE_END, Purpose, Request, Write};

pub(super) use operation::{Inside, Operation, cancelled, postponed};

/// Records everything, and reports violations of the guarantees.
pub(super) type Ledger = Book<Kept>;

type State = Page<Kept>;

#[derive(Default)]
pub(crate) struct Kept {
    rows: Rows,
    holders: Holders,
    /// By key: the sequence number of the owner's last request.
    sequences: HashMap<String, u64>,
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
            let hold = state.holds.get(owner).filter(|_| state.rows.was_released(key, owner));
            let ends = state.ends[owner].max(hold.map_or(*at, |hold| hold.until + 2 * self.clock_skew));
            // The end of the lease includes the skew once. The clock of the next holder may be behind by it once more.
            let latest = ends.max(*at) + self.clock_skew + *cap + 2 * LATENCY + self.slack;
            if next.is_none_or(|next| next.at > latest) {
                let what = format!("{CRASHES}: {key}, whose holder crashed, was not taken again in time");
                journal.broke(self.engine.now(), what);
            }
        }
    }

    /// Looks at an acquire that is applied now.
    fn acquired(&self, state: &mut State, update: &Write, answer: &Value) {
        let Write { key, owner, .. } = update;
        let now = self.engine.now();
        let last = state.rows.last_owner(key).filter(|owner| state.rows.was_released(key, owner));
        if last.and_then(|owner| state.holds.get(owner)).is_some_and(|hold| now < hold.until) {
            self.broke(state, format!("{key} was taken before its minimum hold was over"));
        }
        if state.done.contains(owner) {
            let holder = update.text("holder").unwrap();
            self.broke(state, format!("{OWNERS}: {key} was taken again by {holder}, which had released it"));
        }
        state.sequences.insert(key.clone(), 0);
        let fence = update.fence_written(answer);
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
        ledger.judge(&mut state, &key, update, update.sent(), update.attempt());
        if purpose == Purpose::Acquire {
            ledger.acquired(&mut state, update, &answer.body);
        }
        let Kept { rows, holders, .. } = &mut state.kept;
        for what in rows.applied(holders, update, &answer.body) {
            ledger.broke(&mut state, what);
        }
        match purpose {
            Purpose::Join => state.counts.joined += 1,
            Purpose::Withdraw => state.counts.withdrawn += 1,
            Purpose::Renew | Purpose::Release => {
                let sequence = update.number("sequence").unwrap();
                if state.sequences.insert(key.clone(), sequence).is_some_and(|before| before >= sequence) {
                    ledger
                        .broke(&mut state, format!("{ORDER}: {key}: a {purpose:?} was applied after a later request"));
                }
                if purpose == Purpose::Renew {
                    return;
                }
                // The release of a withdrawal is not the last request of its owner.
                if sequence < LAST_SEQUENCE {
                    state.done.insert(owner.clone());
                    state.last_released.insert(key, owner);
                } else {
                    state.last_released.remove(&key);
                }
            }
            // The owner finds it lost.
            Purpose::Free => {
                state.holds.remove(&owner);
                state.last_released.remove(&key);
                state.rows.release(&key, &owner);
            }
            Purpose::Acquire | Purpose::Look => {}
            Purpose::PutBack | Purpose::Reserve | Purpose::Complete | Purpose::Ask | Purpose::Call | Purpose::Own => {
                unreachable!("no lock of a history has such a request")
            }
        }
    }
}
