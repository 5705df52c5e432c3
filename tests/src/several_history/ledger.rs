use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::Answer;
use lambda_lock::{Error, ErrorKind, Lock, Locks};
use serde_json::{Value, json};

use super::Counts;
use crate::guarantee::{ALL_OR_NONE, FENCES, FREED, ITSELF, OWNERS, READABLE, REPEATED, SERVED, WITHDRAWN};
use crate::history::actor::{Report, Sent};
use crate::history::book::{Book, Judged, Observe, Page, Valid, described, may_have_ended};
use crate::history::holders::{Holders, Holding};
use crate::history::identities::{Before, Identities, short};
use crate::history::liveness::refused_while_free;
use crate::history::stage::Waiting;
use crate::history::twist::REPEATED_FOR;
use crate::request::{LEASE_END, Purpose, Request, Write};

/// Records everything, and reports violations of the guarantees.
pub(super) type Ledger = Book<Kept>;

type State = Page<Kept>;

pub(crate) struct Kept {
    /// In this history, DynamoDB recognises transactions by their tokens.
    has_tokens: bool,
    /// The chance that a request conflicts with a transaction, or that a transaction is throttled.
    conflicts: f64,
    random: Rng,
    /// By key.
    rows: HashMap<String, Row>,
    /// The keys of each operation that is under way.
    wanted: HashMap<String, Vec<String>>,
    holders: Holders,
    /// By key and fence: the operation that got the fence.
    applied: HashMap<(String, u64), String>,
    /// Keys and nonces whose release was applied.
    released: HashSet<(String, String)>,
    /// The tokens of applied transactions.
    tokens: HashSet<String>,
    identities: Identities,
}

#[derive(Default)]
struct Row {
    owner: String,
    fence: u64,
    /// The numbers up to this one were given up.
    withdrawn: u64,
}

impl Kept {
    pub(super) fn draw(mut random: Rng) -> Self {
        Self {
            has_tokens: random.bool(),
            conflicts: [0.0, 0.1][random.usize(0..2)],
            random,
            rows: HashMap::new(),
            wanted: HashMap::new(),
            holders: Holders::default(),
            applied: HashMap::new(),
            released: HashSet::new(),
            tokens: HashSet::new(),
            identities: Identities::default(),
        }
    }
}

impl Ledger {
    /// One update was applied, alone or as a part of a transaction.
    fn applied(&self, state: &mut State, update: &Write, answer: &Answer) {
        let Write { purpose, key, owner, .. } = update.clone();
        let short = short(&owner);
        let end = update.number(LEASE_END);
        self.log(state, &format!("  {purpose:?} of {key} by {short} applied: ends {end:?}"));
        let was_released = state.released.contains(&(key.clone(), owner.clone()));
        let effect = state.identities.applied(&key, update, update.sent(), update.attempt());
        state.counts.taken_over += usize::from(effect.has_taken_over);
        state.counts.freed_for_identity += usize::from(effect.is_for_identity);
        state.counts.freed_by_force += usize::from(effect.is_by_force);
        if let Some(what) = effect.breaks {
            self.broke(state, what);
        }
        match purpose {
            Purpose::Acquire => {
                let holder = update.text("holder").unwrap().to_owned();
                let fence = update.fence_written(&answer.body);
                // What asks again is held again.
                state.released.remove(&(key.clone(), owner.clone()));
                let row = state.rows.entry(key.clone()).or_default();
                let (before, withdrawn) = (row.fence, fence <= row.withdrawn);
                (row.owner, row.fence) = (owner, fence);
                if fence <= before {
                    self.broke(state, format!("{FENCES}: {key}: fence {fence} after {before}"));
                }
                if withdrawn {
                    self.broke(state, format!("{WITHDRAWN}: {key} was taken by {holder}, which had withdrawn"));
                }
                state.applied.insert((key, fence), holder);
            }
            Purpose::Join => state.counts.joined += 1,
            Purpose::Reserve => state.counts.reserved += 1,
            Purpose::Withdraw => {
                state.counts.withdrawn += 1;
                let row = state.rows.entry(key.clone()).or_default();
                if let Some(fence) = update.attempt() {
                    (row.owner, row.fence) = (owner.clone(), fence);
                    state.released.insert((key, owner));
                } else {
                    row.withdrawn = update.gives_up().unwrap();
                }
            }
            Purpose::Renew | Purpose::Release => {
                let is_renewal = purpose == Purpose::Renew;
                if is_renewal && was_released {
                    self.broke(state, format!("{OWNERS}: {key}: a renewal took it again after its release"));
                }
                if state.rows.get(&key).is_some_and(|row| row.owner != owner) {
                    self.broke(state, format!("{OWNERS}: {key}: a {purpose:?} changed another holder's row"));
                }
                if !is_renewal {
                    let row = state.rows.entry(key.clone()).or_default();
                    // A mutation writes a text.
                    row.fence = update.attempt().unwrap_or(row.fence);
                    state.released.insert((key, owner));
                }
            }
            // What others have freed is lost for its holder.
            Purpose::Free => state.rows.entry(key).or_default().fence = update.attempt().unwrap(),
            Purpose::Look => {}
            _ => unreachable!("nothing completes several locks"),
        }
    }

    /// A free key refuses nobody for long.
    fn refused(&self, state: &mut State, request: &Request, answer: &Answer) {
        for (number, write) in request.writes.iter().enumerate() {
            let row = if request.is_transaction {
                &answer.body["CancellationReasons"][number]["Item"]
            } else {
                &answer.body["Item"]
            };
            let why = (write.purpose == Purpose::Acquire).then(|| refused_while_free(write, row)).flatten();
            if let Some(why) = why {
                self.broke(state, format!("{SERVED}: {} was refused: {why}", write.key));
            }
        }
    }

    /// All keys or none: a transaction that takes keys takes all keys of its operation.
    fn all_or_none(&self, state: &mut State, request: &Request) {
        let taken: Vec<_> = request.writes.iter().filter(|write| write.purpose == Purpose::Acquire).collect();
        let Some(holder) = taken.first().and_then(|first| first.text("holder")) else { return };
        let mut keys: Vec<_> = taken.iter().map(|write| write.key.clone()).collect();
        keys.sort_unstable();
        if state.wanted.get(holder).is_some_and(|wanted| *wanted != keys) {
            self.broke(state, format!("{ALL_OR_NONE}: {holder} took {keys:?} only"));
        }
    }
}

/// The table of a request that conflicts with a transaction: it is not applied.
const CONFLICT: &str = "conflict";

impl Observe for Kept {
    type Counts = Counts;

    fn request(ledger: &Ledger, request: &mut Value) {
        let mut state = ledger.state();
        if !state.has_tokens {
            request.as_object_mut().unwrap().remove("ClientRequestToken");
        }
        if state.random.f64() < state.conflicts {
            match request.pointer_mut("/TransactItems/0/Update") {
                Some(update) => update["TableName"] = CONFLICT.into(),
                None => request["TableName"] = CONFLICT.into(),
            }
        }
    }

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut Answer) {
        let mut state = ledger.state();
        state.counts.requests += 1;
        let token = request["ClientRequestToken"].as_str();
        let request = Request::parse(operation, request);
        if request.writes.iter().any(|write| write.table() == CONFLICT) {
            state.counts.conflicts += 1;
            answer.status = 400;
            let reason = if state.random.bool() { "TransactionConflict" } else { "ThrottlingError" };
            let code = |number| if number == 0 { reason } else { "None" };
            let reasons: Vec<_> = (0..request.writes.len()).map(|number| json!({ "Code": code(number) })).collect();
            let exception =
                if request.is_transaction { "TransactionCanceledException" } else { "TransactionConflictException" };
            answer.body = json!({
                "__type": format!("com.amazonaws.dynamodb.v20120810#{exception}"),
                "Message": "simulated",
                "CancellationReasons": reasons,
            });
        }
        if answer.status != 200 {
            let purposes: Vec<_> = request.writes.iter().map(|write| write.purpose).collect();
            ledger.log(&mut state, &format!("  {purposes:?} refused"));
            return ledger.refused(&mut state, &request, answer);
        }
        if let Some(token) = token
            && !state.tokens.insert(token.to_owned())
        {
            state.counts.recognised += 1;
            return ledger.log(&mut state, "  a repetition was recognised");
        }
        for update in &request.writes {
            ledger.applied(&mut state, update, answer);
        }
        ledger.all_or_none(&mut state, &request);
    }
}

impl Judged for Kept {
    fn identities(&mut self) -> &mut Identities {
        &mut self.identities
    }
}

/// One operation of one worker, which reports to the ledger.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) keys: Vec<String>,
    /// The identity, and what each of the keys had when the operation began.
    identity: Option<(String, Vec<Before>)>,
    ledger: Arc<Ledger>,
}

impl Operation {
    pub(super) fn new(name: &str, mut keys: Vec<String>, identity: Option<&str>, ledger: Arc<Ledger>) -> Self {
        // The mutation that forgets the skew reads the skew here.
        let name = format!("{name}, skew {}", ledger.clock_skew.as_millis());
        keys.sort_unstable();
        let mut state = ledger.state();
        state.wanted.insert(name.clone(), keys.clone());
        let before = || keys.iter().map(|key| state.identities.before(key)).collect();
        let identity = identity.map(|identity| (identity.to_owned(), before()));
        drop(state);
        Self { name, keys, identity, ledger }
    }

    fn check_holders(&self, state: &mut State) {
        let has_lost = |key: &str, owner: &str| state.identities.is_superseded(key, owner);
        if let Some(what) = state.holders.violation(&self.keys, self.ledger.engine.now(), has_lost) {
            self.ledger.broke(state, what);
        }
    }

    /// A takeover finds what its identity has had since before, until the end of its lease.
    fn refused_takeover(&self, state: &mut State) {
        let Some((identity, before)) = &self.identity else { return };
        let latest = self.ledger.engine.now() + self.ledger.longest_skew;
        let mut each = self.keys.iter().zip(before);
        if each.all(|(key, before)| state.identities.has_held(key, identity, before, latest)) {
            self.ledger.broke(state, format!("{FREED}: {} did not find the locks of its identity", self.name));
        }
    }

    fn lost(&self, state: &mut State, held: &Lock) {
        state.counts.lost += 1;
        let is_superseded = self.keys.iter().any(|key| state.identities.is_superseded(key, held.owner()));
        state.counts.superseded += usize::from(is_superseded);
    }

    /// A request of a holder is repeated while other requests prevent it, so that only a lost answer makes it fail, or a
    /// partition and other transactions that prevent it for as long.
    fn unanswered(&self, state: &mut State, sent: Sent, error: &Error) {
        let is_prevented = matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Conflict);
        let was_repeated = is_prevented && sent.at + REPEATED_FOR <= self.ledger.engine.now();
        if error.kind() != ErrorKind::Unavailable && !was_repeated {
            self.ledger.broke(state, format!("{REPEATED}: {} gave up {:?}: {error}", self.name, self.keys));
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
        &self.keys[0]
    }

    fn identity(&self) -> Option<&str> {
        self.identity.as_ref().map(|(identity, _)| identity.as_str())
    }

    fn acquired(&self, held: &Arc<Lock>, _: Duration) {
        let mut state = self.ledger.state();
        match held.keys() {
            [_] => state.counts.locks += 1,
            _ => state.counts.sets += 1,
        }
        self.ledger.log(&mut state, &format!("{} acquired {:?}", self.name, self.keys));
        for key in &self.keys {
            let by = state.applied.get(&(key.clone(), held.fence_of(key).unwrap()));
            if by != Some(&self.name) {
                let by = format!("{by:?}");
                self.ledger.broke(&mut state, format!("{} was given {key}, which the table gave {by}", self.name));
            }
        }
        let (operation, keys, owner) = (self.name.clone(), self.keys.clone(), held.owner().to_owned());
        let valid = Valid::Ask(Arc::downgrade(held));
        state.holders.enter(Holding { operation, keys, owner, permits: None, fence: held.fence(), valid });
        self.check_holders(&mut state);
    }

    fn refused(&self, error: &Error) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} refused: {error}", self.name));
        if error.kind() == ErrorKind::MalformedRow {
            self.ledger.broke(&mut state, format!("{READABLE}: {}: {error}", self.name));
        }
        // Only a takeover is lost before there are locks.
        if error.is_lost() {
            state.counts.takeovers_refused += 1;
            return self.refused_takeover(&mut state);
        }
        let holders: Vec<_> =
            error.holders().filter_map(|(key, holder)| Some((key.to_owned(), holder, holder.fence()?))).collect();
        state.counts.held += usize::from(!holders.is_empty());
        state.counts.held_in_part += usize::from(holders.len() > 1);
        for (key, holder, fence) in holders {
            if !self.keys.contains(&key) {
                self.ledger.broke(&mut state, format!("{} was refused by {key}", self.name));
            }
            let is_useless = may_have_ended(holder, self.ledger.engine.now(), self.ledger.longest_skew);
            if !is_useless && state.applied.get(&(key, fence)) == Some(&self.name) {
                self.ledger.broke(&mut state, format!("{ITSELF}: {} was refused by its own lost write", self.name));
            }
        }
    }

    fn renewed(&self, held: &Arc<Lock>, sent: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} renewed {:?}: {}", self.name, self.keys, described(&answer)));
        match answer {
            Ok(()) => {
                state.counts.renewed += 1;
                self.check_holders(&mut state);
            }
            Err(error) if error.is_lost() => self.lost(&mut state, held),
            Err(error) => self.unanswered(&mut state, sent, &error),
        }
    }

    fn released(&self, held: &Arc<Lock>, sent: Sent, answer: Result<(), Error>) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} released {:?}: {}", self.name, self.keys, described(&answer)));
        match answer {
            Ok(()) => {
                let owner = held.owner().to_owned();
                if !self.keys.iter().all(|key| state.released.contains(&(key.clone(), owner.clone()))) {
                    self.ledger.broke(&mut state, format!("{} reported a release that did not happen", self.name));
                }
            }
            Err(error) if error.is_lost() => self.lost(&mut state, held),
            Err(error) => self.unanswered(&mut state, sent, &error),
        }
        self.leave(&mut state);
    }

    async fn stop(&self, locks: &Locks) {
        let (identity, _) = self.identity.as_ref().unwrap();
        let stops = |key: &String| self.ledger.state().identities.stops(key, identity);
        let before: Vec<_> = self.keys.iter().map(stops).collect();
        let answer = locks.release_identity_all(&self.keys, identity).await;
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} was stopped: {answer:?}", self.name));
        let Ok(is_freed) = answer else { return };
        let latest = self.ledger.engine.now() + self.ledger.longest_skew;
        // One of the keys was freed, and the identity holds none of them any more.
        let broken = |is_freed| {
            let each = self.keys.iter().zip(&before);
            let stopped = each.map(|(key, before)| state.identities.stopped(key, identity, before, is_freed, latest));
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
    }

    fn left(&self, how: &str, _: Waiting) -> bool {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        self.leave(&mut state);
        let held = self.keys.iter().all(|key| {
            state.rows.get(key).is_some_and(|row| {
                state.applied.get(&(key.clone(), row.fence)) == Some(&self.name)
                    && !state.released.contains(&(key.clone(), row.owner.clone()))
            })
        });
        state.counts.crashed += usize::from(held);
        held
    }

    fn broke(&self, what: &str, how: &dyn Debug) {
        let mut state = self.ledger.state();
        self.ledger.broke(&mut state, format!("{what}: {} {:?}: {how:?}", self.name, self.keys));
    }
}
