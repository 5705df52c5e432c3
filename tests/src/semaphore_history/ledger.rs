//! The ledger of a history of semaphores.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::Answer;
use lambda_lock::{Error, Lock};
use serde_json::Value;

use super::Counts;
use crate::guarantee::{FENCES, FREED, ITSELF, ORDER, OWNERS, SERVED, WITHDRAWN};
use crate::history::actor::{Report as _, Sent};
use crate::history::book::{Book, Observe, Page};
use crate::history::holders::Holders;
use crate::history::identities::{name_of, short};
use crate::history::operation::{self, Common, Judged, common};
use crate::history::stage::Waiting;
use crate::request::expression::Condition;
use crate::request::{LAST_SEQUENCE, Purpose, Request, Write, permit_of};

/// For how long a free permit is left to others at most, in milliseconds.
const LONGEST_COURTESY: u64 = 2500;

/// Records everything, and reports violations of the guarantees.
pub(super) type Ledger = Book<Kept>;

type State = Page<Kept>;

#[derive(Default)]
pub(crate) struct Kept {
    /// By key: the last fence.
    fences: HashMap<String, u64>,
    holders: Holders,
    /// Owners whose release was applied.
    released: HashSet<String>,
    /// Owners that send no more attempts: their permits were released by their holders.
    done: HashSet<String>,
    /// Owners, the numbers of their attempts that have arrived, and the first fence that each of them got.
    arrived: HashMap<(String, u64), Option<u64>>,
    /// By key: the numbers up to this one were given up.
    withdrawn: HashMap<String, u64>,
    /// By operation: the owner that has a permit in a row.
    in_row: HashMap<String, String>,
    /// By owner: the sequence number of its last request.
    sequences: HashMap<String, u64>,
    /// Permits that were replaced.
    replaced: HashSet<String>,
    /// By key and fence: the fence with which the identity got the permit that this acquire took over.
    first_fences: HashMap<(String, u64), u64>,
    /// By key, and identity or owner: the fence with which it got its permit.
    permits: HashMap<(String, String), u64>,
}

impl Observe for Kept {
    type Counts = Counts;

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut Answer) {
        let request = Request::parse(operation, request);
        let Some(update) = request.update() else { return };
        let mut state = ledger.state();
        state.counts.requests += 1;
        let Write { purpose, key, owner, .. } = update.clone();
        let applied = answer.status == 200;
        let how = if applied { "applied" } else { "refused" };
        let short = short(&owner);
        ledger.log(&mut state, &format!("  {purpose:?} of {key} by {short} {how}"));
        let is_first = purpose == Purpose::Acquire && state.arrives(update);
        if !applied {
            if let Some(why) = refused_with_room(update, &answer.body["Item"]) {
                ledger.broke(&mut state, format!("{SERVED}: {key} was refused: {why}"));
            }
            return;
        }
        for freeing in update.frees() {
            ledger.applied_for(&mut state, &freeing, &answer.body);
            state.release(freeing.owner);
        }
        if !owner.is_empty() && purpose != Purpose::Free {
            ledger.applied_for(&mut state, update, &answer.body);
        }
        match purpose {
            Purpose::Acquire => {
                let holder = update.of_permit("by").and_then(|by| by["S"].as_str()).unwrap().to_owned();
                let fence = update.fence_written(&answer.body);
                let before = state.fences.insert(key.clone(), fence).unwrap_or_default();
                if fence <= before {
                    ledger.broke(&mut state, format!("{FENCES}: {key}: fence {fence} after {before}"));
                }
                if update.attempt() <= state.withdrawn.get(&key).copied() {
                    ledger.broke(&mut state, format!("{WITHDRAWN}: {key} was taken by {holder}, which had withdrawn"));
                }
                // A request that the network repeats although it was answered may take a permit for nobody.
                if is_first && state.done.contains(&owner) {
                    ledger.broke(
                        &mut state,
                        format!("{OWNERS}: {key} was taken again by {holder}, which had released it"),
                    );
                }
                state.takes(update, fence);
                state.released.remove(&owner);
                state.sequences.remove(&owner);
                let replaced: Vec<_> = update.other_permits().collect();
                state.counts.replaced += replaced.len();
                for name in &replaced {
                    state.holders.identities.replaced(&place_of(&key, name));
                }
                state.replaced.extend(replaced);
                state.holders.applied(key, fence, holder.clone());
                state.in_row.insert(holder, owner);
            }
            Purpose::Renew | Purpose::Release => {
                let is_renewal = purpose == Purpose::Renew;
                if state.released.contains(&owner) && is_renewal {
                    ledger.broke(&mut state, format!("{OWNERS}: {key}: a renewal took it again after its release"));
                }
                // A release sets none, because it removes the permit, and a mutation compares none.
                let sequence = update.number("sequence").or_else(|| update.compared("sequence")).unwrap();
                if state.sequences.insert(owner.clone(), sequence).is_some_and(|before| before >= sequence) {
                    ledger
                        .broke(&mut state, format!("{ORDER}: {key}: a {purpose:?} was applied after a later request"));
                }
                if !is_renewal {
                    // The release of a withdrawal is not the last request of its owner.
                    if sequence < LAST_SEQUENCE {
                        state.done.insert(owner.clone());
                    }
                    state.give_up(key, update.gives_up());
                    state.release(owner);
                }
            }
            Purpose::Withdraw => {
                state.counts.withdrawn += 1;
                state.give_up(key, update.gives_up());
            }
            Purpose::Free => state.give_up(key, update.gives_up()),
            Purpose::Look => {}
            Purpose::Join => state.counts.joined += 1,
            Purpose::PutBack | Purpose::Reserve | Purpose::Complete | Purpose::Ask | Purpose::Call | Purpose::Own => {
                unreachable!("no semaphore of a history has such a request")
            }
        }
    }
}

/// What belongs to this owner without a nonce, or to this identity, in the row of a key.
fn place_of(key: &str, name: &str) -> String {
    format!("{name} of {key}")
}

impl Ledger {
    /// Takes note of a request for the permit of its owner that was applied.
    fn applied_for(&self, state: &mut State, update: &Write, answer: &Value) {
        let Write { purpose, key, owner, .. } = update;
        let (sent, name) = (update.number_of_permit("since"), name_of(owner));
        let fence = (*purpose == Purpose::Acquire).then(|| update.fence_written(answer));
        let has_taken_over = self.judge(state, &place_of(key, name), update, sent, fence);
        let Some(fence) = fence else { return };
        if has_taken_over && !update.is_takeover() {
            self.broke(state, format!("{FREED}: {key}: an acquire took another permit than its identity holds"));
        }
        let of_name = || (key.clone(), name.to_owned());
        let taken_over = state.permits.get(&of_name()).copied().filter(|_| update.is_takeover());
        let first = taken_over.unwrap_or(fence);
        state.permits.insert(of_name(), first);
        state.first_fences.insert((key.clone(), fence), first);
    }
}

/// Why this refusal of an acquire is a violation: by the clock of its sender, a permit has been free for longer than it is left
/// to others.
pub(crate) fn refused_with_room(acquire: &Write, row: &Value) -> Option<String> {
    let number_of = |value: &Value| value["N"].as_str().and_then(|number| number.parse::<u64>().ok());
    let number = |name: &str| number_of(&row[name]);
    // An attempt whose number is too small is sent again with a larger one.
    let is_behind = acquire.attempt() <= number("withdrawn");
    if acquire.purpose != Purpose::Acquire || row[permit_of(&acquire.owner)].is_object() || is_behind {
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
    let free_for = acquire.number_of_permit("since")?.checked_sub(number("freed_at").unwrap_or_default())?;
    (free_for > LONGEST_COURTESY).then(|| format!("{permits} permits were held, and one was free for {free_for} ms"))
}

impl State {
    fn give_up(&mut self, key: String, number: Option<u64>) {
        let withdrawn = self.withdrawn.entry(key).or_default();
        *withdrawn = number.unwrap_or_default().max(*withdrawn);
    }

    /// Returns `true` if this attempt has not arrived before.
    fn arrives(&mut self, attempt: &Write) -> bool {
        let Some(number) = attempt.attempt() else { return false };
        match self.arrived.entry((attempt.owner.clone(), number)) {
            Entry::Vacant(entry) => entry.insert(None).is_none(),
            Entry::Occupied(_) => false,
        }
    }

    /// Takes note of the fence that an attempt got.
    fn takes(&mut self, attempt: &Write, fence: u64) {
        let Write { key, owner, .. } = attempt;
        let of_attempt = attempt.attempt().and_then(|number| self.arrived.get_mut(&(owner.clone(), number)));
        let first = of_attempt.map(|first| *first.get_or_insert(fence)).filter(|first| *first != fence);
        if let Some(first) = first {
            self.holders.identities.repeated(&place_of(key, name_of(owner)), owner, first, fence);
        }
    }

    /// Returns `true` if a release of this owner was applied. A repeated request may have taken a permit for nobody since.
    fn was_released(&self, owner: &str) -> bool {
        self.released.contains(owner) || self.done.contains(owner)
    }

    fn release(&mut self, owner: String) {
        self.in_row.retain(|_, in_row| *in_row != owner);
        self.released.insert(owner);
    }
}

pub(super) type Operation = operation::Operation<Kept>;

/// Returns `true` if this time by the clock of a host has not come by any host's clock. A host with a longer skew reads an
/// earlier end in the row.
fn is_before(end: SystemTime, ledger: &Ledger) -> bool {
    ledger.engine.now() + ledger.longest_skew < end
}

impl Judged for Kept {
    fn holders(&mut self) -> &mut Holders {
        &mut self.holders
    }

    fn common(counts: &mut Counts) -> Common<'_> {
        common!(counts)
    }

    fn place(key: &str, name: &str) -> String {
        place_of(key, name)
    }

    fn acquired(operation: &Operation, state: &mut State, permit: &Lock, _: Duration) -> u64 {
        let key = operation.key();
        state.counts.acquired += 1;
        state.holders.identities.acquired(&place_of(key, name_of(permit.owner())), permit.owner());
        // One that took a permit over has its age.
        let first = state.first_fences.get(&(key.to_owned(), permit.fence()));
        first.copied().unwrap_or_else(|| permit.fence())
    }

    fn held(operation: &Operation, state: &mut State, error: &Error) {
        let Some(holder) = error.holder() else { return };
        state.counts.held += 1;
        for permit in holder.permits() {
            operation.check_refusal(state, operation.key(), permit);
        }
        if holder.permits().len() < operation.permits.unwrap() as usize {
            let what = format!("{ITSELF}: {} was refused although there was room", operation.name);
            operation.ledger.broke(state, what);
        }
    }

    /// A release whose first attempt was not answered finds nothing of its permit. Others may have freed it.
    fn was_released(operation: &Operation, state: &State, owner: &str) -> bool {
        state.was_released(owner) || operation.is_superseded(&state.holders, owner)
    }

    fn shows_release(operation: &Operation, state: &State, owner: &str, sent: Sent) -> bool {
        let is_superseded = operation.is_superseded(&state.holders, owner);
        state.was_released(owner) && !is_superseded && is_before(sent.end, &operation.ledger)
    }

    /// No permit is lost before the end of its lease, unless its identity has taken it, or others have freed it.
    fn failed(operation: &Operation, state: &mut State, owner: &str, sent: Sent, error: &Error) {
        if !error.is_lost() {
            return;
        }
        if operation.is_superseded(&state.holders, owner) {
            state.counts.superseded += 1;
        } else if is_before(sent.end, &operation.ledger) {
            operation.ledger.broke(state, format!("{OWNERS}: {} lost a valid permit: {error}", operation.name));
        }
    }

    fn left(operation: &Operation, state: &mut State, _: Waiting) -> bool {
        state.in_row.get(&operation.name).is_some_and(|owner| !state.replaced.contains(owner))
    }
}
