//! The world: clients, their clocks, and the network.

mod actions;
mod rows;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::model::{self, Acquiring, Clocks, Done, Held, Operation, Reply, Request, Step};
use lambda_lock::{Acquire, Backoff, Error, Locks, Wait};
use serde_json::{Value, json};

use crate::mistake::Mistake;
use crate::printed::Printed;
use crate::table::{Parsed, Table};
use rows::{millis, number_of};

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
            Step::Refused(None, Some(holder)) if self.subject == Subject::Coalesced => {
                match Operation::ask(KEYS[1], &holder, state.now(index)) {
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
                if state.clients[index].runs_again {
                    self.reach("another one has begun since");
                    state.check_begun();
                }
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

    fn keys_of(&self, index: usize) -> &'static [&'static str] {
        if self.subject == Subject::Keys && index.is_multiple_of(2) { &KEYS } else { &KEYS[1..] }
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
