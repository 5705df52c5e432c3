//! The ledger of a history of semaphores.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::Answer;
use lambda_lock::{Error, ErrorKind, Holder, Lock, Locks};
use serde_json::Value;

use super::Counts;
use crate::guarantee::{FENCES, FREED, ITSELF, ORDER, OWNERS, READABLE, SERVED, WITHDRAWN};
use crate::history::actor::{Report, Sent};
use crate::history::book::{Book, Judged, Observe, Page, Valid, described, may_have_ended};
use crate::history::holders::{Holders, Holding};
use crate::history::identities::{Before, Identities, short, start_of};
use crate::history::stage::Waiting;
use crate::request::expression::Condition;
use crate::request::{LAST_SEQUENCE, Purpose, Request, Write, identity_of, permit_of};

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
    /// By key and fence: the operation that got the fence.
    applied: HashMap<(String, u64), String>,
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
    identities: Identities,
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
                    state.identities.replaced(&place_of(&key, name));
                }
                state.replaced.extend(replaced);
                state.applied.insert((key, fence), holder.clone());
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

/// The name of what belongs to this owner: its identity, or itself.
fn name_of(owner: &str) -> &str {
    identity_of(owner).unwrap_or(owner)
}

impl Ledger {
    /// Takes note of a request for the permit of its owner that was applied.
    fn applied_for(&self, state: &mut State, update: &Write, answer: &Value) {
        let Write { purpose, key, owner, .. } = update;
        let (sent, name) = (update.number_of_permit("since"), name_of(owner));
        let fence = (*purpose == Purpose::Acquire).then(|| update.fence_written(answer));
        let effect = state.identities.applied(&place_of(key, name), update, sent, fence);
        state.counts.taken_over += usize::from(effect.has_taken_over);
        state.counts.freed_for_identity += usize::from(effect.is_for_identity);
        state.counts.freed_by_force += usize::from(effect.is_by_force);
        if let Some(what) = effect.breaks {
            self.broke(state, what);
        }
        let Some(fence) = fence else { return };
        if effect.has_taken_over && !update.is_takeover() {
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

impl Judged for Kept {
    fn identities(&mut self) -> &mut Identities {
        &mut self.identities
    }

    fn place(key: &str, owner: &str) -> String {
        place_of(key, name_of(owner))
    }
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
            self.identities.repeated(&place_of(key, name_of(owner)), owner, first, fence);
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

/// One operation of one worker, which reports to the ledger.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) key: String,
    /// How many permits this caller allows.
    pub(super) permits: u32,
    identity: Option<Identity>,
    ledger: Arc<Ledger>,
}

/// The identity of an operation.
#[derive(Debug)]
struct Identity {
    name: String,
    place: String,
    /// What it had when the operation began.
    before: Before,
}

impl Operation {
    pub(super) fn new(name: &str, (key, permits): (String, u32), identity: Option<&str>, ledger: Arc<Ledger>) -> Self {
        // The mutation that forgets the skew reads the skew here.
        let name = format!("{name}, skew {}", ledger.clock_skew.as_millis());
        let identity = identity.map(|identity| {
            let place = place_of(&key, &start_of(identity));
            let before = ledger.state().identities.before(&place);
            Identity { name: identity.to_owned(), place, before }
        });
        Self { name, key, permits, identity, ledger }
    }

    /// Returns `true` if this owner has lost its permit to a later acquire of its identity, or because others have freed it.
    fn is_superseded(&self, state: &State, owner: &str) -> bool {
        state.identities.is_superseded(&place_of(&self.key, name_of(owner)), owner)
    }

    fn check_holders(&self, state: &mut State) {
        let has_lost = |_: &str, owner: &str| self.is_superseded(state, owner);
        let violation = state.holders.violation(slice::from_ref(&self.key), self.ledger.engine.now(), has_lost);
        if let Some(what) = violation {
            self.ledger.broke(state, what);
        }
    }

    /// A takeover finds what its identity has had since before, until the end of its lease.
    fn refused_takeover(&self, state: &mut State) {
        let Some(Identity { name, place, before }) = &self.identity else { return };
        let latest = self.ledger.engine.now() + self.ledger.longest_skew;
        if let Some(what) = state.identities.refused(place, name, before, latest) {
            self.ledger.broke(state, what);
        }
    }

    /// No permit is lost before the end of its lease, unless its identity has taken it, or others have freed it.
    fn lost(&self, state: &mut State, owner: &str, end: SystemTime, error: &Error) {
        self.check(state, error);
        if error.is_lost() {
            state.counts.lost += 1;
            if self.is_superseded(state, owner) {
                state.counts.superseded += 1;
            } else if self.is_before(end) {
                self.ledger.broke(state, format!("{OWNERS}: {} lost a valid permit: {error}", self.name));
            }
        }
    }

    /// Returns `true` if this time by the clock of a host has not come by any host's clock. A host with a longer skew reads an
    /// earlier end in the row.
    fn is_before(&self, end: SystemTime) -> bool {
        self.ledger.engine.now() + self.ledger.longest_skew < end
    }

    /// The count in the row agrees with its permits.
    fn check(&self, state: &mut State, error: &Error) {
        if error.kind() == ErrorKind::MalformedRow {
            self.ledger.broke(state, format!("{READABLE}: {}: {error}", self.name));
        }
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
        self.identity.as_ref().map(|identity| identity.name.as_str())
    }

    fn acquired(&self, permit: &Arc<Lock>, _: Duration) {
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
        state.identities.acquired(&place_of(&self.key, name_of(permit.owner())), permit.owner());
        let (keys, owner, operation) = (vec![self.key.clone()], permit.owner().to_owned(), self.name.clone());
        // One that took a permit over has its age.
        let fence = state.first_fences.get(&(self.key.clone(), fence)).copied().unwrap_or(fence);
        let (permits, valid) = (Some(self.permits), Valid::Ask(Arc::downgrade(permit)));
        state.holders.enter(Holding { operation, keys, owner, permits, fence, valid });
        self.check_holders(&mut state);
    }

    fn refused(&self, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} refused: {error}", self.name));
        self.check(&mut state, error);
        // Only a takeover is lost before there is a permit.
        if error.is_lost() {
            state.counts.takeovers_refused += 1;
            return self.refused_takeover(&mut state);
        }
        let Some(holder) = error.holder() else { return };
        state.counts.held += 1;
        let now = self.ledger.engine.now();
        let useful = holder.permits().iter().filter(|permit| !may_have_ended(permit, now, self.ledger.longest_skew));
        let fences = useful.filter_map(Holder::fence);
        let own = fences.filter(|fence| state.applied.get(&(self.key.clone(), *fence)) == Some(&self.name)).count();
        if own > 0 {
            self.ledger.broke(&mut state, format!("{ITSELF}: {} was refused by its own lost write", self.name));
        }
        if holder.permits().len() < self.permits as usize {
            self.ledger.broke(&mut state, format!("{ITSELF}: {} was refused although there was room", self.name));
        }
    }

    fn renewed(&self, permit: &Arc<Lock>, Sent { end, .. }: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed {}: {}", self.name, self.key, described(&answer)));
        match answer {
            Ok(()) => {
                state.counts.renewed += 1;
                self.check_holders(&mut state);
            }
            Err(error) => self.lost(&mut state, permit.owner(), end, &error),
        }
    }

    fn released(&self, permit: &Arc<Lock>, Sent { end, .. }: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} released {}: {}", self.name, self.key, described(&answer)));
        self.leave(&mut state);
        let applied = state.was_released(permit.owner());
        match answer {
            // A release whose first attempt was not answered finds nothing of its permit. Others may have freed it.
            Ok(()) if !applied && !self.is_superseded(&state, permit.owner()) => {
                self.ledger.broke(&mut state, format!("{} reported a release that did not happen", self.name));
            }
            Ok(()) => {}
            Err(error) => {
                let is_superseded = self.is_superseded(&state, permit.owner());
                if error.is_lost() && applied && !is_superseded && self.is_before(end) {
                    self.ledger.broke(&mut state, format!("{ITSELF}: {} did not recognise its own release", self.name));
                }
                self.lost(&mut state, permit.owner(), end, &error);
            }
        }
    }

    async fn stop(&self, locks: &Locks) {
        let Identity { name, place, .. } = self.identity.as_ref().unwrap();
        let before = self.ledger.state().identities.stops(place, name);
        let answer = locks.release_identity(&self.key, name).await;
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} was stopped: {answer:?}", self.name));
        let is_freed = match answer {
            Ok(is_freed) => is_freed,
            Err(error) => return self.check(&mut state, &error),
        };
        let latest = self.ledger.engine.now() + self.ledger.longest_skew;
        if let Some(what) = state.identities.stopped(place, name, &before, is_freed, latest) {
            self.ledger.broke(&mut state, what);
        }
    }

    fn ended(&self, how: &str) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
    }

    fn left(&self, how: &str, _: Waiting) -> bool {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
        let owner = state.in_row.get(&self.name).filter(|owner| !state.replaced.contains(*owner));
        let held = owner.is_some();
        state.counts.crashed += usize::from(held);
        held
    }

    fn broke(&self, what: &str, how: &dyn Debug) {
        let mut state = self.ledger.state();
        self.ledger.broke(&mut state, format!("{what}: {} {}: {how:?}", self.name, self.key));
    }
}
