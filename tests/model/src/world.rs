//! The world: clients, their clocks, the network, and what must hold.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::model::{Acquiring, EPOCH, Freeing, Held, Reply, Request, Step, Withdrawal};
use lambda_lock::{Acquire, Backoff, Locks, Wait};
use serde_json::Value;
use stateright::{Model, Property};

use crate::expression::Condition;
use crate::table::{Parsed, Table};

/// How long a tick is, and by how much clocks differ.
const TICK: Duration = Duration::from_secs(1);
const KEY: &str = "key";

/// What is acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A key.
    Key,
    /// A key, by one identity.
    KeyOfIdentity,
    /// Two keys.
    Keys,
    /// So many permits of a key.
    Permits(u32),
    /// The same, by one identity.
    PermitsOfIdentity(u32),
}

/// What a check visits at most.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many clients there are.
    pub clients: usize,
    /// The true time at the end.
    pub ticks: u32,
    /// How many attempts of an acquire are unanswered.
    pub unanswered: u32,
    /// How many clients die.
    pub deaths: u32,
    /// How many states are visited.
    pub states: usize,
}

/// A deliberate mistake, which a check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// An attempt does not read the numbers that a place has accepted.
    NumbersIgnored,
    /// An attempt does not read the numbers that were given up.
    WithdrawalIgnored,
    /// A release leaves no number.
    ReleaseWithoutNumber,
    /// A takeover does not read which acquisition it saw.
    TakeoverUnread,
    /// An attempt takes what is held.
    EndIgnored,
}

pub(crate) struct World {
    subject: Subject,
    bounds: Bounds,
    mistake: Option<Mistake>,
    acquires: Vec<&'static Acquire>,
}

/// A state. Two are the same if they print the same.
#[derive(Clone)]
pub(crate) struct State {
    ticks: u32,
    table: Table,
    clients: Vec<Client>,
    /// What is under way, whose sender no longer waits for it.
    late: Vec<Arc<Message>>,
    unanswered: u32,
    deaths: u32,
    /// The largest number of each key so far, in the order of the keys.
    numbers: Vec<u64>,
    broken: BTreeSet<&'static str>,
    seen: BTreeSet<&'static str>,
}

#[derive(Clone, Debug)]
struct Client {
    owner: String,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    Ready(Acquiring),
    Asking(Acquiring, Arc<Message>),
    Withdrawing(Option<Acquiring>, Withdrawal),
    Holding(Held),
    Releasing(Freeing, Arc<Message>, u32),
    /// It has ended: nothing of it may hold anything.
    Done,
    /// It has ended, and what it has sent may still arrive.
    Left,
    Dead,
}

#[derive(Debug)]
struct Message {
    requests: Vec<Parsed>,
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Tick,
    /// A client goes on: asks, withdraws, or releases.
    GoOn(usize),
    /// Its request arrives, and its answer too.
    Answered(usize),
    /// Its request arrives, and its answer is lost.
    AnswerLost(usize),
    /// Its request is late.
    Late(usize),
    /// Its request arrives, and another copy of it is late.
    Twice(usize),
    /// A late request arrives.
    Arrives(usize),
    Dies(usize),
}

const PROPERTIES: [&str; 5] = [
    "as many valid holders as there may be",
    "numbers only grow",
    "what has ended holds nothing",
    "rows do not grow",
    "a free place is refused once more at most",
];
const EVENTS: [&str; 6] =
    ["acquired", "acquired after a lost answer", "taken over", "withdrawn", "arrived late", "a number was too small"];

pub(crate) fn is_event(name: &str) -> bool {
    EVENTS.contains(&name)
}

impl World {
    pub(crate) fn new(subject: Subject, bounds: Bounds, mistake: Option<Mistake>) -> Self {
        static ENGINE: OnceLock<DynamoDb> = OnceLock::new();
        let client = ENGINE.get_or_init(|| DynamoDb::new().expect("an engine")).client();
        let locks = Locks::builder(client, "locks").clock_skew(TICK).build().expect("valid settings");
        let acquires = (0..bounds.clients).map(|number| acquire(&locks, subject, number)).collect();
        Self { subject, bounds, mistake, acquires }
    }

    /// The clock of a client is ahead by 0 or by the skew.
    fn clock(&self, state: &State, client: usize) -> Duration {
        EPOCH + TICK * (state.ticks + u32::try_from(client % 2).unwrap_or_default())
    }

    fn permits(&self) -> usize {
        match self.subject {
            Subject::Permits(permits) | Subject::PermitsOfIdentity(permits) => permits as usize,
            _ => 1,
        }
    }

    fn message(&self, what: &'static str, requests: &[Request]) -> Arc<Message> {
        let mut requests: Vec<_> = requests.iter().map(Parsed::of).collect();
        for request in &mut requests {
            if let Some(mistake) = self.mistake {
                mistake.make(what, request);
            }
        }
        let text = format!("{what} {requests:?}");
        Arc::new(Message { requests, text })
    }

    /// Sends what a client sends next, and takes note of how it goes on.
    fn step(&self, state: &mut State, index: usize, acquiring: Acquiring, step: Step) {
        let now = self.clock(state, index);
        let phase = match step {
            Step::Send(requests) => {
                state.clients[index].owner = acquiring.owner().to_owned();
                Phase::Asking(acquiring, self.message("acquire", &requests))
            }
            Step::Withdraw(withdrawal) => Phase::Withdrawing(Some(acquiring), withdrawal),
            Step::Sleep(_) => Phase::Ready(acquiring),
            Step::Held(held) => {
                state.seen.insert("acquired");
                if held.is_valid(now) { Phase::Holding(held) } else { Phase::Left }
            }
            Step::Completed | Step::Refused(_, None) => Phase::Done,
            Step::Refused(_, Some(withdrawal)) => Phase::Withdrawing(None, withdrawal),
        };
        state.clients[index].phase = phase;
    }

    /// Applies a request to the table, and looks at what it has changed.
    fn apply(&self, state: &mut State, message: &Message, is_late: bool) -> Reply {
        let reply = state.table.apply(&message.requests);
        if is_late && matches!(reply, Reply::Applied(_)) {
            state.seen.insert("arrived late");
        }
        for (index, row) in state.table.rows().enumerate() {
            let number = |name: &str| row[name]["N"].as_str().and_then(|digits| digits.parse::<u64>().ok());
            let largest =
                if self.permits_of(row) { number("withdrawn") } else { number("fence").max(number("withdrawn")) };
            let before = &mut state.numbers[index];
            if largest.unwrap_or_default() < *before {
                state.broken.insert(PROPERTIES[1]);
            }
            *before = largest.unwrap_or_default().max(*before);
            let permits =
                row.as_object().map_or(0, |row| row.keys().filter(|name| name.starts_with("permit:")).count());
            if permits > self.permits() || row.as_object().map_or(0, serde_json::Map::len) > 20 + 2 * self.permits() {
                state.broken.insert(PROPERTIES[3]);
            }
        }
        reply
    }

    fn permits_of(&self, row: &Value) -> bool {
        row["status"]["S"] == "SEMAPHORE"
    }

    fn answered(&self, state: &mut State, index: usize, reply: Option<Reply>) {
        let now = self.clock(state, index);
        let before = state.clients[index].phase.clone();
        match before {
            Phase::Asking(mut acquiring, _) => {
                let step = acquiring.answered(reply, now);
                self.step(state, index, acquiring, step);
            }
            Phase::Releasing(mut freeing, message, tries) => {
                let Some(reply) = reply else {
                    // The SDK sends it again.
                    let phase = if tries < 2 { Phase::Releasing(freeing, message, tries + 1) } else { Phase::Left };
                    state.clients[index].phase = phase;
                    return;
                };
                freeing.answered(reply);
                let requests = freeing.requests();
                state.clients[index].phase = if requests.is_empty() {
                    if freeing.ended().is_ok() { Phase::Done } else { Phase::Left }
                } else {
                    Phase::Releasing(freeing, self.message("release", &requests), tries)
                };
            }
            _ => {}
        }
    }

    fn check(&self, state: &mut State) {
        // Only the last acquire of an identity counts.
        let is_superseded = |state: &State, index: usize| {
            let identity = matches!(self.subject, Subject::KeyOfIdentity | Subject::PermitsOfIdentity(_));
            identity && !state.table.rows().any(|row| row.to_string().contains(nonce_of(&state.clients[index].owner)))
        };
        let valid = (0..state.clients.len()).filter(|index| match &state.clients[*index].phase {
            Phase::Holding(held) => held.is_valid(self.clock(state, *index)) && !is_superseded(state, *index),
            _ => false,
        });
        if valid.count() > self.permits() {
            state.broken.insert(PROPERTIES[0]);
        }
        let now = u64::try_from((EPOCH + TICK * (state.ticks + 1)).as_millis()).unwrap_or_default();
        for client in state.clients.iter().filter(|client| matches!(client.phase, Phase::Done)) {
            if state.table.rows().any(|row| holds(row, &client.owner, now)) {
                state.broken.insert(PROPERTIES[2]);
            }
        }
    }
}

fn nonce_of(owner: &str) -> &str {
    owner.rsplit('#').next().unwrap_or(owner)
}

/// Whether this row shows a lease of the owner that ends after this time.
fn holds(row: &Value, owner: &str, now: u64) -> bool {
    let number = |value: &Value| value["N"].as_str().and_then(|digits| digits.parse::<u64>().ok()).unwrap_or_default();
    if row["status"]["S"] == "SEMAPHORE" {
        let permits = row.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("permit:"));
        return permits.into_iter().any(|(name, permit)| {
            let is_own = name.contains(nonce_of(owner)) || permit["M"]["nonce"]["S"] == *nonce_of(owner);
            is_own && permit["M"]["released"].is_null() && number(&permit["M"]["end"]) > now
        });
    }
    let is_released = number(&row["released"]) == number(&row["fence"]);
    row["owner"]["S"] == *owner && !is_released && number(&row["in_progress_expiration"]) > now
}

fn acquire(locks: &Locks, subject: Subject, number: usize) -> &'static Acquire {
    let acquire = match subject {
        Subject::Permits(permits) | Subject::PermitsOfIdentity(permits) => locks.semaphore(KEY, permits).acquire(),
        _ => locks.acquire(KEY),
    };
    let acquire = match subject {
        Subject::KeyOfIdentity | Subject::PermitsOfIdentity(_) => acquire.owner_from("execution"),
        _ => acquire,
    };
    let wait = Wait::backoff(Backoff::new()).max_attempts(3);
    Box::leak(Box::new(acquire.holder(format!("client {number}")).lease(2 * TICK).wait(wait)))
}

impl Mistake {
    fn make(self, what: &str, request: &mut Parsed) {
        let ignore = |condition: &mut Condition, name: &str| {
            condition.each_term(&mut |term| {
                if let Condition::Not(negated) = term
                    && let Condition::Compare(path, ..) = &**negated
                    && path.name() == name
                {
                    *term = Condition::True;
                }
            });
        };
        let is_takeover = request.update.set.iter().any(|(path, _)| path.name() == "held_since");
        match (self, what) {
            (Self::NumbersIgnored, "acquire") => ignore(&mut request.condition, "fence"),
            (Self::WithdrawalIgnored, "acquire") => ignore(&mut request.condition, "withdrawn"),
            (Self::ReleaseWithoutNumber, "release") => {
                request.update.set.retain(|(path, _)| !["fence", "released", "withdrawn"].contains(&path.name()));
                request.update.remove.push(crate::expression::Path::attribute("owner"));
            }
            (Self::TakeoverUnread, "acquire") if is_takeover => request.condition.each_term(&mut |term| {
                if matches!(term, Condition::Compare(path, crate::expression::Comparison::Equal, _)
                    if ["owner", "fence", "nonce", "no"].contains(&path.name()))
                {
                    *term = Condition::True;
                }
            }),
            (Self::EndIgnored, "acquire") => request.condition.each_term(&mut |term| {
                if matches!(term, Condition::Compare(path, crate::expression::Comparison::LessOrEqual, _)
                    if path.name() == "in_progress_expiration")
                {
                    *term = Condition::True;
                }
            }),
            _ => {}
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            ticks: 0,
            table: Table::default(),
            clients: Vec::new(),
            late: Vec::new(),
            unanswered: 0,
            deaths: 0,
            numbers: vec![0; 2],
            broken: BTreeSet::new(),
            seen: BTreeSet::new(),
        };
        for (index, acquire) in self.acquires.iter().enumerate() {
            let acquiring = Acquiring::start(acquire, self.clock(&state, index)).expect("a valid acquire");
            state.clients.push(Client { owner: acquiring.owner().to_owned(), phase: Phase::Ready(acquiring) });
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if !state.broken.is_empty() {
            return;
        }
        if state.ticks < self.bounds.ticks {
            actions.push(Action::Tick);
        }
        for (index, client) in state.clients.iter().enumerate() {
            match &client.phase {
                Phase::Ready(_) | Phase::Holding(_) | Phase::Withdrawing(..) => actions.push(Action::GoOn(index)),
                Phase::Asking(..) | Phase::Releasing(..) => {
                    actions.push(Action::Answered(index));
                    if state.unanswered < self.bounds.unanswered {
                        actions.push(Action::AnswerLost(index));
                        actions.push(Action::Late(index));
                        actions.push(Action::Twice(index));
                    }
                }
                _ => continue,
            }
            if state.deaths < self.bounds.deaths {
                actions.push(Action::Dies(index));
            }
        }
        actions.extend((0..state.late.len()).map(Action::Arrives));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.ticks += 1,
            Action::GoOn(index) => {
                let now = self.clock(&state, index);
                match state.clients[index].phase.clone() {
                    Phase::Ready(mut acquiring) => {
                        let step = acquiring.go_on(now);
                        self.step(&mut state, index, acquiring, step);
                    }
                    Phase::Holding(mut held) => {
                        let freeing = held.release(now);
                        let message = self.message("release", &freeing.requests());
                        state.clients[index].phase = Phase::Releasing(freeing, message, 0);
                    }
                    // Each of its requests is answered. That others come between them, the other clients show.
                    Phase::Withdrawing(acquiring, mut withdrawal) => {
                        let requests = withdrawal.requests(now);
                        if !requests.is_empty() {
                            let message = self.message("withdraw", &requests);
                            let reply = self.apply(&mut state, &message, false);
                            withdrawal.answered(reply, now).ok()?;
                        }
                        if withdrawal.requests(now).is_empty() {
                            state.seen.insert("withdrawn");
                            let is_done = withdrawal.is_done();
                            match acquiring {
                                Some(mut acquiring) => {
                                    let step = acquiring.go_on(now);
                                    self.step(&mut state, index, acquiring, step);
                                }
                                None => state.clients[index].phase = if is_done { Phase::Done } else { Phase::Left },
                            }
                        } else {
                            state.clients[index].phase = Phase::Withdrawing(acquiring, withdrawal);
                        }
                    }
                    _ => return None,
                }
            }
            Action::Answered(index) | Action::AnswerLost(index) | Action::Late(index) | Action::Twice(index) => {
                let message = match &state.clients[index].phase {
                    Phase::Asking(_, message) | Phase::Releasing(_, message, _) => Arc::clone(message),
                    _ => return None,
                };
                let arrives = !matches!(action, Action::Late(_));
                let reply = arrives.then(|| self.apply(&mut state, &message, false));
                let is_kept = matches!(action, Action::Late(_) | Action::Twice(_));
                if is_kept {
                    state.late.push(message);
                }
                let is_answered = matches!(action, Action::Answered(_));
                state.unanswered += u32::from(!is_answered);
                self.answered(&mut state, index, reply.filter(|_| is_answered));
            }
            Action::Arrives(index) => {
                let message = state.late.remove(index);
                let _nobody_waits = self.apply(&mut state, &message, true);
            }
            Action::Dies(index) => {
                state.deaths += 1;
                if let Phase::Asking(_, message) | Phase::Releasing(_, message, _) = &state.clients[index].phase {
                    state.late.push(Arc::clone(message));
                }
                state.clients[index].phase = Phase::Dead;
            }
        }
        self.check(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(PROPERTIES[0], |_, state: &State| !state.broken.contains(PROPERTIES[0])),
            Property::always(PROPERTIES[1], |_, state: &State| !state.broken.contains(PROPERTIES[1])),
            Property::always(PROPERTIES[2], |_, state: &State| !state.broken.contains(PROPERTIES[2])),
            Property::always(PROPERTIES[3], |_, state: &State| !state.broken.contains(PROPERTIES[3])),
            Property::sometimes(EVENTS[0], |_, state: &State| state.seen.contains(EVENTS[0])),
            Property::sometimes(EVENTS[3], |_, state: &State| state.seen.contains(EVENTS[3])),
            Property::sometimes(EVENTS[4], |_, state: &State| state.seen.contains(EVENTS[4])),
        ]
    }
}

impl State {
    /// What tells states apart.
    fn shown(&self) -> String {
        let late: BTreeSet<_> = self.late.iter().map(|message| &message.text).collect();
        format!(
            "{} {:?} {:?} {:?} {} {} {:?}",
            self.ticks, self.table, self.clients, late, self.unanswered, self.deaths, self.broken
        )
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.shown() == other.shown()
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.shown().hash(state);
    }
}
