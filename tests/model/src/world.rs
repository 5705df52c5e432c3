//! The world: clients, their clocks, the network, and what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::model::{self, Acquiring, Clocks, Done, Held, Operation, Reply, Request, Step};
use lambda_lock::{Acquire, Backoff, Error, Locks, Wait};
use serde_json::{Value, json};
use stateright::{Model, Property};

use crate::mistake::Mistake;
use crate::printed::Printed;
use crate::table::{Parsed, Table, to_item};

/// How long a tick is, and by how much clocks differ.
const TICK: Duration = Duration::from_secs(1);
/// The earliest time, since the Unix epoch.
const EPOCH: Duration = Duration::from_hours(500_000);
/// How many ticks a result is replayed, and for how many an unfinished run is refused if that is asked for.
const WINDOW: u32 = 3;
/// When the run of another library ends, in ticks.
const FOREIGN_END: u32 = 3;
const KEYS: [&str; 2] = ["a", "b"];

/// What is acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A key.
    Key,
    /// A key, by one identity.
    KeyOfIdentity,
    /// Two keys by every other client, and one of them by the others.
    Keys,
    /// A record of idempotency.
    Record,
    /// The same. A run that did not finish is refused.
    UnfinishedRecord,
    /// So many permits of a key, for every other client and for the others.
    Permits(u32, u32),
    /// The same, by one identity.
    PermitsOfIdentity(u32, u32),
    /// A key. A client that is refused leaves its work to the holder, which runs once more.
    Coalesced,
}

/// What the table has before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// A row that was released long ago, so that TTL deletes it soon.
    Old,
    /// A run of another library, whose row has neither owner nor fence.
    Foreign,
    /// The same, with an end in whole seconds only.
    ForeignInSeconds,
}

/// What happens at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// What the table has before.
    pub before: Before,
    /// How many clients there are.
    pub clients: usize,
    /// How many times each of them asks.
    pub attempts: u32,
    /// The true time at the end.
    pub ticks: u32,
    /// How long a lease is, in ticks. A renewal is for one more.
    pub lease: u32,
    /// How many requests are not answered.
    pub unanswered: u32,
    /// How many clients die.
    pub deaths: u32,
    /// How many times a clock steps.
    pub steps: u32,
    /// How many times an operator frees what it sees.
    pub frees: u32,
    /// How many times TTL deletes a row.
    pub deletions: u32,
    /// How many times a lock is renewed.
    pub renewals: u32,
    /// How many locks are kept for a later step. If there are any, every other client has an identity, and those have not.
    pub keeps: u32,
    /// A released lock stays held for a minimum time.
    pub holds: bool,
    /// How many states are visited.
    pub states: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            before: Before::Nothing,
            clients: 2,
            attempts: 1,
            ticks: 1,
            lease: 1,
            unanswered: 0,
            deaths: 0,
            steps: 0,
            frees: 0,
            deletions: 0,
            renewals: 0,
            keeps: 0,
            holds: false,
            states: 2_000_000,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State {
    ticks: u32,
    /// What may still happen.
    left: Bounds,
    table: Table,
    /// Also operators, and withdrawals in the background.
    clients: Vec<Arc<Printed<Client>>>,
    /// What is under way, whose sender no longer waits for it.
    late: Vec<Sent>,
    /// The last fence of each key.
    fences: BTreeMap<String, u64>,
    /// Until when nobody may begin what was done, or what another library runs, in ticks.
    taken_until: u32,
    /// When the key was released last.
    released: u32,
    /// The numbers of the holders that have ended without a further run.
    done: BTreeSet<u64>,
    broken: Option<&'static str>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
pub(crate) struct Client {
    /// Empty if it acquires nothing.
    owner: String,
    phase: Phase,
    /// It takes over what its identity has.
    takes_over: bool,
    /// Its clock is ahead of the true time by the skew.
    is_ahead: bool,
    /// A later acquire of its identity has what it had.
    is_lost: bool,
    /// An operator has freed what it had.
    is_freed: bool,
    /// Some of its requests may still be applied when it has ended.
    is_unsure: bool,
    /// Others were skipped during its run, so it runs once more.
    runs_again: bool,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a world has two or three")]
enum Phase {
    Ready(Acquiring),
    Asking(Acquiring, Sent),
    /// With an acquire that goes on after it.
    Operating(Operation, Sent, Option<Acquiring>),
    Holding(Held),
    /// It has left its lock to a later acquire of its identity.
    Kept(Held),
    /// It has ended: nothing of it may hold anything.
    Ended,
    /// The same. It was skipped, because the holder with this number runs once more.
    LeftTo(u64),
    /// It has ended, and does not know what it has left.
    Left,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct Sent {
    message: Arc<Printed<Message>>,
    /// The clients that have acquired since it was sent, as bits.
    before: u8,
}

#[derive(Debug)]
pub(crate) struct Message {
    what: &'static str,
    from: usize,
    at: u32,
    requests: Vec<Parsed>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Tick,
    Does(usize, What),
    /// A request arrives, and its answer too.
    Answered(usize),
    /// A request is late.
    Late(usize),
    /// A request arrives, its answer is lost, and another copy of it is late, which may never arrive.
    Twice(usize),
    /// A request and its answer arrive, and another copy of it is late.
    Repeated(usize),
    /// A withdrawal takes too long, and goes on in the background.
    Leaves(usize),
    /// A late request arrives.
    Arrives(usize),
    Dies(usize),
    /// The clock of a client steps.
    Steps(usize),
    /// An operator frees what it sees.
    Frees(String),
    /// TTL deletes a row.
    Deletes(String),
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// Asks, or releases what it has.
    GoOn,
    Renew,
    Complete,
    Keep,
}

const HOLDERS: &str = "no more valid holders than there may be";
const PLACE: &str = "a valid holder's place is its own";
const NUMBERS: &str = "numbers only grow";
const ENDED: &str = "what has ended holds nothing";
const LATE: &str = "a late request undoes no later one";
const COUNT: &str = "a semaphore counts its permits";
const GROWTH: &str = "no row grows";
const FREE: &str = "a free place is refused once more at most";
const TAKEOVER: &str = "a takeover takes what its identity holds";
const AGAIN: &str = "one effect for each key";
const SKIPPED: &str = "after a client that was skipped, a run begins";

pub(crate) struct World {
    subject: Subject,
    bounds: Bounds,
    mistake: Option<Mistake>,
    locks: Locks,
    /// The acquire of the further run of each client.
    again: Vec<Acquiring>,
    /// By client and fence.
    takeovers: Mutex<BTreeMap<(usize, Option<u64>), Acquiring>>,
    initial: State,
    reached: Mutex<BTreeSet<&'static str>>,
}

impl World {
    pub(crate) fn new(subject: Subject, bounds: Bounds, mistake: Option<Mistake>) -> Self {
        static ENGINE: OnceLock<DynamoDb> = OnceLock::new();
        let client = ENGINE.get_or_init(|| DynamoDb::new().expect("an engine")).client();
        let locks = Locks::builder(client, "locks").clock_skew(TICK).build().expect("valid settings");
        let mut initial = State {
            ticks: 0,
            left: bounds,
            table: Table::default(),
            clients: Vec::new(),
            late: Vec::new(),
            fences: BTreeMap::new(),
            taken_until: 0,
            released: 0,
            done: BTreeSet::new(),
            broken: None,
        };
        if let Some(row) = bounds.before.row() {
            initial.table.insert(KEYS[1], row);
            initial.taken_until = if bounds.before == Before::Old { 0 } else { FOREIGN_END };
        }
        let mut again = Vec::new();
        for index in 0..bounds.clients {
            let is_ahead = index % 2 == 1;
            let acquire = Box::leak(Box::new(acquire(&locks, subject, bounds, index)));
            let acquiring = Acquiring::start(acquire, clocks(0, is_ahead)).expect("a valid acquire");
            again.push(Acquiring::start(acquire, clocks(0, is_ahead)).expect("a valid acquire"));
            initial.add(acquiring.owner().to_owned(), Phase::Ready(acquiring), is_ahead);
        }
        Self { subject, bounds, mistake, locks, again, takeovers: Mutex::default(), initial, reached: Mutex::default() }
    }

    pub(crate) fn reached(&self) -> Vec<&'static str> {
        self.reached.lock().expect("no search has failed").iter().copied().collect()
    }

    fn reach(&self, event: &'static str) {
        self.reached.lock().expect("no search has failed").insert(event);
    }

    fn permits_of(&self, index: usize) -> usize {
        match self.subject {
            Subject::Permits(even, odd) | Subject::PermitsOfIdentity(even, odd) => {
                (if index.is_multiple_of(2) { even } else { odd }) as usize
            }
            _ => 1,
        }
    }

    fn permits(&self) -> usize {
        self.permits_of(0).max(self.permits_of(1))
    }

    fn has_identity(&self) -> bool {
        matches!(self.subject, Subject::KeyOfIdentity | Subject::PermitsOfIdentity(..))
    }

    fn has_permits(&self) -> bool {
        matches!(self.subject, Subject::Permits(..) | Subject::PermitsOfIdentity(..))
    }

    fn send(&self, state: &State, from: usize, what: &'static str, requests: &[Request]) -> Sent {
        let requests = match self.mistake {
            Some(mistake) => mistake.plant(what, requests, state.now(from).wall),
            None => requests.iter().map(Parsed::of).collect(),
        };
        Sent { message: Arc::new(Printed::new(Message { what, from, at: state.ticks, requests })), before: 0 }
    }

    /// A process begins to take over what the identity has.
    fn take_over(&self, state: &mut State, fence: Option<u64>) {
        let (index, is_ahead) = (state.clients.len(), fence.is_none());
        let start = || {
            let acquire = acquire(&self.locks, self.subject, self.bounds, index).identity("execution");
            let acquire = Box::leak(Box::new(model::takeover(acquire, fence)));
            Acquiring::start(acquire, clocks(0, is_ahead)).expect("a valid takeover")
        };
        let mut takeovers = self.takeovers.lock().expect("no search has failed");
        let acquiring = takeovers.entry((index, fence)).or_insert_with(start).clone();
        state.add(acquiring.owner().to_owned(), Phase::Ready(acquiring), is_ahead);
        state.change(index, |client| client.takes_over = true);
    }

    /// Does the next step of an acquire.
    fn step(&self, state: &mut State, index: usize, acquiring: Acquiring, step: Step) {
        let owner = acquiring.owner().to_owned();
        // A takeover leaves what its identity has.
        let leaves = state.clients[index].is_unsure || state.clients[index].takes_over;
        let ended = if leaves { Phase::Left } else { Phase::Ended };
        let phase = match step {
            Step::Send(requests) => {
                let sent = self.send(state, index, "acquire", &requests);
                Phase::Asking(acquiring, sent)
            }
            Step::Withdraw(withdrawal) => return self.operate(state, index, withdrawal, Some(acquiring)),
            Step::Sleep => Phase::Ready(acquiring),
            Step::Held(held) => {
                self.reach("acquired");
                if state.clients[index].runs_again {
                    self.reach("runs once more");
                    state.change(index, |client| client.runs_again = false);
                }
                if held.is_valid(state.now(index)) { Phase::Holding(held) } else { Phase::Left }
            }
            Step::Completed => {
                self.reach("replayed");
                ended
            }
            Step::Refused(None, true) if self.subject == Subject::Coalesced => {
                if state.clients[index].runs_again {
                    self.reach("another one has begun since");
                    state.check_begun();
                }
                let row = state.table.row(KEYS[1]).map(to_item);
                match row.and_then(|row| Operation::ask(KEYS[1], row, &acquiring, state.now(index))) {
                    Some(ask) => return self.operate(state, index, ask, None),
                    None => Phase::Left,
                }
            }
            Step::Refused(None, _) => ended,
            Step::Refused(Some(withdrawal), _) => return self.operate(state, index, withdrawal, None),
        };
        state.change(index, |client| {
            client.owner = owner;
            client.phase = phase;
        });
    }

    /// Sends the requests of an operation.
    fn operate(&self, state: &mut State, index: usize, operation: Operation, then: Option<Acquiring>) {
        let requests = operation.requests(&self.locks, state.now(index));
        let sent = self.send(state, index, operation.name(), &requests);
        state.change(index, |client| client.phase = Phase::Operating(operation, sent, then));
    }

    /// Takes note of the end of an operation.
    fn operated(
        &self,
        state: &mut State,
        index: usize,
        what: &'static str,
        ended: Result<Done, Error>,
        then: Option<Acquiring>,
    ) {
        if ended.is_ok() {
            self.reach(what);
        }
        let number = state.clients[index].releases();
        let phase = match (ended, then) {
            (ended, Some(mut acquiring)) => {
                state.change(index, |client| client.is_unsure |= ended.is_err());
                let step = acquiring.go_on(state.now(index));
                return self.step(state, index, acquiring, step);
            }
            (Ok(Done::Freed), None) if what == "withdraw" && state.clients[index].takes_over => Phase::Left,
            (Ok(Done::Freed), None) => {
                state.done.extend(number);
                Phase::Ended
            }
            (Ok(Done::Asked), None) if self.subject == Subject::Coalesced => {
                let acquiring = self.again[index].clone();
                let owner = acquiring.owner().to_owned();
                state.change(index, |client| (client.owner, client.runs_again) = (owner, true));
                Phase::Ready(acquiring)
            }
            (Ok(Done::Left(number)), None) => {
                self.reach("left to the holder");
                Phase::LeftTo(number)
            }
            (Ok(Done::Held(held)), None) if held.is_valid(state.now(index)) => Phase::Holding(held),
            _ => Phase::Left,
        };
        state.change(index, |client| client.phase = phase);
    }

    /// A request of a client arrives, or not, and so does its answer.
    fn deliver(&self, state: &mut State, action: &Action, index: usize) -> Option<()> {
        let (Phase::Asking(_, sent) | Phase::Operating(_, sent, _)) = state.clients[index].phase.clone() else {
            return None;
        };
        let reply = (!matches!(action, Action::Late(_))).then(|| self.apply(state, &sent));
        if !matches!(action, Action::Answered(_)) {
            state.add_late(sent);
            state.left.unanswered -= 1;
        }
        let reply = reply.filter(|_| matches!(action, Action::Answered(_) | Action::Repeated(_)));
        let is_refused = matches!(reply, Some(Reply::Refused(_)));
        let now = state.now(index);
        match (state.clients[index].phase.clone(), reply) {
            (Phase::Asking(mut acquiring, _), reply) => {
                let step = acquiring.answered(reply, now);
                match step {
                    Step::Held(_) if is_refused => self.reach("acquired after a lost answer"),
                    Step::Send(_) if is_refused => self.reach("asked again at once"),
                    _ => {}
                }
                self.step(state, index, acquiring, step);
            }
            (Phase::Operating(mut operation, _, then), Some(reply)) => {
                match operation.answered(reply, &self.locks, now).transpose() {
                    Some(ended) => self.operated(state, index, operation.name(), ended, then),
                    None => self.operate(state, index, operation, then),
                }
            }
            // The SDK sends it again.
            _ => {}
        }
        Some(())
    }

    /// Applies a request to the table, and looks at what it has changed.
    fn apply(&self, state: &mut State, sent: &Sent) -> Reply {
        let Message { what, from, at, requests } = &**sent.message;
        let before = state.table.clone();
        let reply = state.table.apply(requests);
        let is_acquire = *what == "acquire";
        let now = millis(clocks(state.ticks, false));
        if matches!(reply, Reply::Refused(_)) {
            let mut rows = before.rows().map(|(_, row)| permits_until(row, now));
            if is_acquire && self.has_permits() && rows.any(|permits| permits > self.permits_of(*from)) {
                self.reach("refused by more permits than there should be");
            }
            return reply;
        }
        if is_acquire && requests.len() > 1 {
            self.reach("several keys acquired");
        }
        for request in requests {
            let (old, new) = (before.row(&request.key).unwrap_or(&Value::Null), state.table.row(&request.key).unwrap());
            let has_shrunk = |name: &str| number(&new[name]) < number(&old[name]);
            let is_new_fence = number(&new["fence"]) > state.fences.get(&request.key).copied();
            if has_shrunk("fence") || has_shrunk("withdrawn") || (is_acquire && !is_new_fence) {
                state.broken = Some(NUMBERS);
            }
            if is_acquire {
                state.fences.insert(request.key.clone(), number(&new["fence"]).unwrap_or_default());
            }
            let (permits, all) = (permits(new).count(), new.as_object().map_or(0, serde_json::Map::len));
            if permits > self.permits() || all > 20 + 2 * self.permits() {
                state.broken = Some(GROWTH);
            }
            if is_acquire && old["status"]["S"] == "INPROGRESS" && old["owner"].is_null() {
                self.reach("taken from another library");
            }
            let is_kept = number(&new["in_progress_expiration"]) > Some(now);
            if *what == "release" && is_kept {
                self.reach("released, and held for a minimum time");
            }
            if self.has_permits() && number(&new["permits"]) != Some(permits as u64) {
                state.broken = Some(COUNT);
            }
            if is_acquire && permits_until(new, now) > self.permits_of(*from) {
                state.broken = Some(HOLDERS);
            }
            if permits + 1 < self::permits(old).count() || (is_acquire && permits < self::permits(old).count()) {
                self.reach("several permits freed at once");
            }
            let is_over = new["status"]["S"] != "COMPLETED" && new["fence"] == new["released"];
            // The end in the row has the skew. A client whose lease has ended when its acquire arrives runs nothing.
            let begins = || {
                number(&new["in_progress_expiration"])
                    > Some(millis(clocks(state.ticks + 1, state.clients[*from].is_ahead)))
            };
            match *what {
                "complete" => state.taken_until = at + WINDOW,
                "acquire" if state.ticks + 1 < state.taken_until => state.broken = Some(AGAIN),
                "acquire" if self.subject == Subject::UnfinishedRecord && begins() => state.taken_until = at + WINDOW,
                _ if is_over => state.taken_until = 0,
                _ => {}
            }
        }
        if is_acquire {
            self.acquired(state, sent, &before);
        }
        if *what == "release" {
            state.released = *at;
        }
        if *what == "free" {
            for index in 0..state.clients.len() {
                let client = &state.clients[index];
                let had_place = client.has_place(&before) && !client.has_place(&state.table);
                // One that still asks begins anew.
                if had_place && !client.asks() {
                    self.reach("freed by an operator");
                    state.change(index, |client| client.is_freed = true);
                }
            }
        }
        reply
    }

    /// Looks at what an acquire has taken from others.
    fn acquired(&self, state: &mut State, sent: &Sent, before: &Table) {
        let from = sent.message.from;
        let is_dead = matches!(state.clients[from].phase, Phase::Dead);
        // The number of the release was larger, whichever clocks made the two.
        if is_dead && !self.has_permits() && sent.message.at + 1 < state.released {
            state.broken = Some(LATE);
        }
        let Some(identity) = identity_of(&state.clients[from].owner).map(str::to_owned) else { return };
        let is_of_identity = |owner: &str| identity_of(owner) == Some(&*identity);
        let now = millis(clocks(sent.message.at, false));
        if state.clients[from].takes_over && !before.rows().any(|(_, row)| is_held_by(row, &identity, now)) {
            state.broken = Some(TAKEOVER);
        }
        for index in (0..state.clients.len()).filter(|index| *index != from) {
            let client = &state.clients[index];
            if !is_of_identity(&client.owner) || !client.has_place(before) || client.has_place(&state.table) {
                continue;
            }
            if sent.before & 1 << index != 0 && client.is_valid(state.ticks) {
                state.broken = Some(LATE);
            }
            self.reach("taken over");
            state.change(index, |client| client.is_lost = true);
        }
        state.late.iter_mut().filter(|late| late.message.from != from).for_each(|late| late.before |= 1 << from);
        for index in (0..state.clients.len()).filter(|index| *index != from) {
            if matches!(state.clients[index].phase, Phase::Asking(..)) {
                state.change(index, |client| {
                    if let Phase::Asking(_, sent) = &mut client.phase {
                        sent.before |= 1 << from;
                    }
                });
            }
        }
        state.late.sort_by_key(|sent| (sent.message.print(), sent.before));
    }

    fn check(&self, state: &mut State) {
        let mut holders = 0;
        for (index, client) in state.clients.iter().enumerate().filter(|(_, client)| !client.owner.is_empty()) {
            if let Some(held) = client.valid(state.ticks) {
                holders += 1;
                let places: Vec<_> = state.table.rows().filter_map(|(_, row)| number_of(row, &client.owner)).collect();
                if places != vec![held.number(); self.keys_of(index).len()] {
                    state.broken = Some(PLACE);
                }
            }
            let has_ended = match client.phase {
                Phase::Ended | Phase::LeftTo(_) => true,
                _ => client.is_freed,
            };
            // What a later acquire of its identity has taken does not come back. The row of a semaphore keeps nothing of a
            // permit that is gone: a late attempt of a client that is gone, too, takes one until its lease ends.
            let is_gone = client.is_lost && matches!(client.phase, Phase::Kept(_));
            if is_gone && !self.has_permits() && client.has_place(&state.table) {
                state.broken = Some(LATE);
            }
            // Nobody has acquired the key since.
            if matches!(client.phase, Phase::LeftTo(number)
                if state.done.contains(&number) && state.fences.get(KEYS[1]) == Some(&number))
            {
                state.broken = Some(SKIPPED);
            }
            if has_ended && client.has_place(&state.table) {
                state.broken = Some(ENDED);
            }
        }
        if holders > self.permits() {
            state.broken = Some(HOLDERS);
        }
    }

    fn keys_of(&self, index: usize) -> &'static [&'static str] {
        if self.subject == Subject::Keys && index.is_multiple_of(2) { &KEYS } else { &KEYS[1..] }
    }

    /// A client that nobody disturbs gets a free place with its second request at the latest.
    fn check_free(&self, state: &mut State, index: usize) {
        let now = state.now(index);
        let keys = self.keys_of(index);
        let is_free = |key: &&str| match state.table.row(key) {
            Some(row) => self.is_free(row, state, index),
            None => !state.clients[index].takes_over,
        };
        if !keys.iter().all(is_free) {
            return;
        }
        let Phase::Ready(mut acquiring) = state.clients[index].phase.clone() else { return };
        let (mut table, mut step) = (state.table.clone(), acquiring.go_on(now));
        for _ in 0..2 {
            let Step::Send(requests) = step else { break };
            let sent = self.send(state, index, "acquire", &requests);
            step = acquiring.answered(Some(table.apply(&sent.message.requests)), now);
        }
        if matches!(step, Step::Held(_)) {
            self.reach("found a free place");
        } else {
            state.broken = Some(FREE);
        }
    }

    /// Whether the place of this row is free for a client.
    fn is_free(&self, row: &Value, state: &State, index: usize) -> bool {
        let (client, now) = (&state.clients[index], millis(state.now(index)));
        if number_of(row, &client.owner).is_some() {
            return false;
        }
        if client.takes_over {
            return identity_of(&client.owner).is_some_and(|identity| is_held_by(row, identity, now));
        }
        if row["status"]["S"] == "SEMAPHORE" {
            return permits_until(row, now) < if self.has_identity() { 1 } else { self.permits_of(index) };
        }
        let expiration = number(&row["expiration"]).unwrap_or_default() * 1000;
        let end = match number(&row["in_progress_expiration"]) {
            Some(end) if row["status"]["S"] == "INPROGRESS" => end,
            _ => expiration,
        };
        let is_unfinished = self.subject == Subject::UnfinishedRecord && row["released"] != row["fence"];
        end <= now && !is_unfinished
    }
}

impl Before {
    fn row(self) -> Option<Value> {
        let at = |tick| millis(clocks(tick, false)).to_string();
        let seconds = |tick| (millis(clocks(tick, false)) / 1000).to_string();
        let row = |rest: Value| {
            let mut row = json!({ "id": { "S": KEYS[1] }, "status": { "S": "INPROGRESS" } });
            row.as_object_mut()?.append(&mut rest.as_object()?.clone());
            Some(row)
        };
        match self {
            Self::Nothing => None,
            Self::Old => row(json!({
                "expiration": { "N": seconds(1) }, "in_progress_expiration": { "N": "1" }, "acquired_at": { "N": "1" },
                "owner": { "S": "old" }, "fence": { "N": "7" }, "released": { "N": "7" },
            })),
            Self::Foreign => row(json!({
                "expiration": { "N": seconds(100) }, "in_progress_expiration": { "N": at(FOREIGN_END) },
            })),
            Self::ForeignInSeconds => row(json!({ "expiration": { "N": seconds(FOREIGN_END) } })),
        }
    }
}

impl State {
    pub(crate) fn broken(&self) -> Option<&'static str> {
        self.broken
    }

    fn now(&self, index: usize) -> Clocks {
        clocks(self.ticks, self.clients[index].is_ahead)
    }

    fn add(&mut self, owner: String, phase: Phase, is_ahead: bool) -> usize {
        let client = Client {
            owner,
            phase,
            takes_over: false,
            is_ahead,
            is_lost: false,
            is_freed: false,
            is_unsure: false,
            runs_again: false,
        };
        self.clients.push(Arc::new(Printed::new(client)));
        self.clients.len() - 1
    }

    fn change(&mut self, index: usize, change: impl FnOnce(&mut Client)) {
        let mut client = (**self.clients[index]).clone();
        change(&mut client);
        self.clients[index] = Arc::new(Printed::new(client));
    }

    /// A further run is left to another client only if that one has begun, or has died and is retried.
    fn check_begun(&mut self) {
        let Some(row) = self.table.row(KEYS[1]) else { return };
        let has_begun = self.clients.iter().any(|client| match client.phase {
            Phase::LeftTo(_) => false,
            // It has run and released the key meanwhile.
            Phase::Ended => row["owner"]["S"] == client.owner.as_str() && row["released"] == row["fence"],
            _ => number_of(row, &client.owner).is_some(),
        });
        if !has_begun {
            self.broken = Some(SKIPPED);
        }
    }

    fn add_late(&mut self, sent: Sent) {
        self.late.push(sent);
        self.late.sort_by_key(|sent| (sent.message.print(), sent.before));
    }
}

impl Client {
    /// The lock that it holds and considers valid.
    fn valid(&self, ticks: u32) -> Option<&Held> {
        let held = match &self.phase {
            Phase::Holding(held) | Phase::Kept(held) => Some(held),
            Phase::Operating(operation, ..) => operation.held(),
            _ => None,
        };
        held.filter(|held| !self.is_lost && !self.is_freed && held.is_valid(clocks(ticks, self.is_ahead)))
    }

    /// The number of the lock that it releases.
    fn releases(&self) -> Option<u64> {
        match &self.phase {
            Phase::Operating(operation, ..) => operation.released().map(Held::number),
            _ => None,
        }
    }

    fn is_valid(&self, ticks: u32) -> bool {
        self.valid(ticks).is_some()
    }

    fn asks(&self) -> bool {
        matches!(self.phase, Phase::Ready(_) | Phase::Asking(..) | Phase::Operating(_, _, Some(_)))
    }

    fn has_place(&self, table: &Table) -> bool {
        !self.owner.is_empty() && table.rows().any(|(_, row)| number_of(row, &self.owner).is_some())
    }
}

fn clocks(ticks: u32, is_ahead: bool) -> Clocks {
    Clocks { wall: EPOCH + TICK * (ticks + u32::from(is_ahead)), monotonic: TICK * ticks }
}

fn millis(now: Clocks) -> u64 {
    u64::try_from(now.wall.as_millis()).unwrap_or(u64::MAX)
}

fn number(value: &Value) -> Option<u64> {
    value["N"].as_str().and_then(|digits| digits.parse().ok())
}

fn permits(row: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let all = row.as_object().into_iter().flatten();
    all.filter_map(|(name, permit)| Some((name.strip_prefix("permit:")?, &permit["M"])))
}

/// How many permits end after this time.
fn permits_until(row: &Value, now: u64) -> usize {
    permits(row).filter(|(_, permit)| number(&permit["end"]) > Some(now)).count()
}

/// The number with which an owner has the place of this row, if it does.
fn number_of(row: &Value, owner: &str) -> Option<u64> {
    if row["status"]["S"] == "SEMAPHORE" {
        let is_own = |(name, permit): &(&str, &Value)| {
            owner.strip_prefix(name).is_some_and(|nonce| nonce == permit["nonce"]["S"].as_str().unwrap_or_default())
        };
        let (_, permit) = permits(row).find(is_own)?;
        return number(&permit["no"]);
    }
    let is_own = row["status"]["S"] == "INPROGRESS" && row["owner"]["S"] == owner && row["released"] != row["fence"];
    number(&row["fence"]).filter(|_| is_own)
}

/// The start of an owner that has an identity.
fn identity_of(owner: &str) -> Option<&str> {
    owner.rsplit_once('#').map(|(identity, _)| identity)
}

/// Whether an identity holds the place of this row at this time.
fn is_held_by(row: &Value, identity: &str, now: u64) -> bool {
    let is_own = |owner: &str| identity_of(owner) == Some(identity);
    if row["status"]["S"] == "SEMAPHORE" {
        return permits(row).any(|(name, permit)| is_own(name) && number(&permit["end"]) > Some(now));
    }
    let is_held = number(&row["in_progress_expiration"]) > Some(now) && row["released"] != row["fence"];
    is_held && row["owner"]["S"].as_str().is_some_and(is_own)
}

fn acquire(locks: &Locks, subject: Subject, bounds: Bounds, index: usize) -> Acquire {
    let is_even = index.is_multiple_of(2);
    let window = TICK * WINDOW;
    let acquire = match subject {
        Subject::Permits(even, odd) | Subject::PermitsOfIdentity(even, odd) => {
            locks.semaphore(KEYS[1], if is_even { even } else { odd }).acquire()
        }
        Subject::Keys if is_even => model::keys(locks, &KEYS),
        Subject::Record => model::record(locks, KEYS[1], None),
        Subject::UnfinishedRecord => model::record(locks, KEYS[1], Some(window)),
        _ => locks.acquire(KEYS[1]),
    };
    let acquire = match subject {
        Subject::KeyOfIdentity | Subject::PermitsOfIdentity(..) => acquire.identity("execution"),
        _ if bounds.keeps > 0 && is_even => acquire.identity("execution"),
        _ => acquire,
    };
    let wait = Wait::backoff(Backoff::new().jitter(lambda_lock::Jitter::None)).max_attempts(bounds.attempts);
    let acquire = acquire.holder(format!("client {index}")).lease(TICK * bounds.lease).wait(wait);
    if bounds.holds { acquire.min_hold(TICK) } else { acquire }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let left = &state.left;
        let has_ended = |client: &Arc<Printed<Client>>| {
            matches!(client.phase, Phase::Kept(_) | Phase::Ended | Phase::LeftTo(_) | Phase::Left | Phase::Dead)
        };
        // What is late does not depend on the time.
        let depends_on_time = left.deletions + left.frees > 0 || !state.clients.iter().all(has_ended);
        if state.ticks < self.bounds.ticks && depends_on_time {
            actions.push(Action::Tick);
        }
        for (index, client) in state.clients.iter().enumerate() {
            let is_record = matches!(self.subject, Subject::Record | Subject::UnfinishedRecord);
            let mut does = |what| actions.push(Action::Does(index, what));
            match &client.phase {
                Phase::Ready(_) => does(What::GoOn),
                Phase::Holding(held) => {
                    does(What::GoOn);
                    if is_record {
                        does(What::Complete);
                    }
                    if left.renewals > 0 && held.is_valid(state.now(index)) {
                        does(What::Renew);
                    }
                    if left.keeps > 0 && identity_of(&client.owner).is_some() {
                        does(What::Keep);
                    }
                }
                Phase::Asking(..) | Phase::Operating(..) => {
                    actions.push(Action::Answered(index));
                    // Of others, nobody sees a difference between one that has died and one that does nothing more.
                    if left.deaths > 0 {
                        actions.push(Action::Dies(index));
                    }
                    if left.unanswered > 0 {
                        actions.extend([Action::Late(index), Action::Twice(index)]);
                        if self.subject == Subject::Coalesced && matches!(client.phase, Phase::Asking(..)) {
                            actions.push(Action::Repeated(index));
                        }
                        if matches!(client.phase, Phase::Operating(_, _, Some(_))) {
                            actions.push(Action::Leaves(index));
                        }
                    }
                }
                Phase::Kept(_) | Phase::Ended | Phase::LeftTo(_) | Phase::Left | Phase::Dead => continue,
            }
            if left.steps > 0 {
                actions.push(Action::Steps(index));
            }
        }
        let is_first = |index: usize| index == 0 || state.late[index] != state.late[index - 1];
        actions.extend((0..state.late.len()).filter(|index| is_first(*index)).map(Action::Arrives));
        for (key, row) in state.table.rows() {
            if left.frees > 0 {
                actions.push(Action::Frees(key.clone()));
            }
            if left.deletions > 0 && number(&row["expiration"]) <= Some(clocks(state.ticks, false).wall.as_secs()) {
                actions.push(Action::Deletes(key.clone()));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match &action {
            Action::Tick => state.ticks += 1,
            Action::Does(index, what) => {
                let (index, now) = (*index, last.now(*index));
                let renewal = TICK * (self.bounds.lease + 1);
                let operation = match (what, last.clients[index].phase.clone()) {
                    (What::GoOn, Phase::Ready(mut acquiring)) => {
                        self.check_free(&mut state, index);
                        let step = acquiring.go_on(now);
                        self.step(&mut state, index, acquiring, step);
                        None
                    }
                    (What::GoOn, Phase::Holding(held)) => Some(held.release(now)),
                    (What::Complete, Phase::Holding(held)) => Some(held.complete(TICK * WINDOW, now)),
                    (What::Renew, Phase::Holding(held)) => {
                        state.left.renewals -= 1;
                        Some(held.renew(renewal, &self.locks, now))
                    }
                    (What::Keep, Phase::Holding(held)) => {
                        state.left.keeps -= 1;
                        // Two processes do the next step. One of them knows the fence.
                        self.take_over(&mut state, None);
                        self.take_over(&mut state, Some(held.fence()));
                        state.change(index, |client| client.phase = Phase::Kept(held));
                        None
                    }
                    _ => return None,
                };
                if let Some(operation) = operation {
                    self.operate(&mut state, index, operation, None);
                }
            }
            Action::Answered(index) | Action::Late(index) | Action::Twice(index) | Action::Repeated(index) => {
                self.deliver(&mut state, &action, *index)?;
            }
            Action::Leaves(index) => {
                state.left.unanswered -= 1;
                let Phase::Operating(operation, sent, Some(mut acquiring)) = last.clients[*index].phase.clone() else {
                    return None;
                };
                state.add(String::new(), Phase::Operating(operation, sent, None), last.clients[*index].is_ahead);
                state.change(*index, |client| client.is_unsure = true);
                let step = acquiring.go_on(last.now(*index));
                self.step(&mut state, *index, acquiring, step);
            }
            Action::Arrives(index) => {
                let sent = state.late.remove(*index);
                if matches!(self.apply(&mut state, &sent), Reply::Applied { .. }) {
                    self.reach("arrived late");
                }
            }
            Action::Dies(index) => {
                state.left.deaths -= 1;
                if let Phase::Asking(_, sent) | Phase::Operating(_, sent, _) = &last.clients[*index].phase {
                    state.add_late(sent.clone());
                }
                state.change(*index, |client| client.phase = Phase::Dead);
            }
            Action::Steps(index) => {
                state.left.steps -= 1;
                self.reach("a clock stepped");
                state.change(*index, |client| client.is_ahead = !client.is_ahead);
            }
            Action::Frees(key) => {
                state.left.frees -= 1;
                let operation = Operation::free(key, to_item(last.table.row(key)?), clocks(state.ticks, false))?;
                let operator = state.add(String::new(), Phase::Left, false);
                self.operate(&mut state, operator, operation, None);
            }
            Action::Deletes(key) => {
                state.left.deletions -= 1;
                self.reach("deleted by TTL");
                state.table.remove(key);
            }
        }
        self.check(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("the protocol holds", |_, state: &State| state.broken.is_none())]
    }
}
