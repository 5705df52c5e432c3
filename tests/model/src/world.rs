//! The world in which every protocol runs: three clients with wrong clocks, a network that loses, delays and repeats
//! requests, crashes, and TTL. A protocol fills in its requests, the table's answers, and the decisions of a client.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};

use stateright::{Model, Property};

use crate::{Bounds, Breach, Event};

/// The number of clients.
pub(crate) const CLIENTS: usize = 3;
/// The largest difference between two clocks, in ticks. A lease in the row ends this much later than for its holder.
pub(crate) const SKEW: u8 = 1;
/// What a state consists of.
pub(crate) trait Value: Clone + Debug + PartialEq + Hash + Send + Sync + 'static {}
impl<T: Clone + Debug + PartialEq + Hash + Send + Sync + 'static> Value for T {}

/// One protocol: the requests, the table, and the client.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// The rows, and what the proof remembers of them.
    type Table: Value + Default;
    type Request: Value + Copy;
    type Answer;
    type Client: Value + Copy + Default;

    /// The role of a client. Clients with the same role and the same clock are interchangeable at the beginning.
    fn role(&self, _client: usize) -> u8 {
        0
    }

    /// The decisions that a client can make at this time of its clock.
    fn decisions(&self, id: usize, client: &Self::Client, clock: u8, decisions: &mut Vec<Decision<Self>>);

    /// Applies a request to the table, if the request's condition holds, and returns the answer.
    fn apply(&self, table: &mut Self::Table, request: &Self::Request, log: &mut Log) -> Self::Answer;

    /// The client gets an answer. Returns the next request of the same operation, if there is one.
    fn answered(
        &self,
        id: usize,
        client: &mut Self::Client,
        request: &Self::Request,
        answer: &Self::Answer,
        clock: u8,
        log: &mut Log,
    ) -> Option<Self::Request>;

    /// The client no longer waits for the answer.
    fn unanswered(&self, client: &mut Self::Client, request: &Self::Request);

    /// A request was sent more than once, so a copy of it may arrive late. The client knows.
    fn sent_again(&self, client: &mut Self::Client, request: &Self::Request);

    /// The rows that TTL may delete at this time.
    fn expired(&self, table: &Self::Table, now: u8) -> Vec<usize>;

    fn delete(&self, table: &mut Self::Table, row: usize);

    /// What is wrong with a state as a whole.
    fn inspect(&self, state: &StateOf<Self>, log: &mut Log);
}

pub(crate) type StateOf<P> = State<<P as Protocol>::Table, <P as Protocol>::Client, <P as Protocol>::Request>;

/// What a client can do next.
pub(crate) struct Decision<P: Protocol + ?Sized> {
    pub(crate) client: P::Client,
    /// The request to send, or `None` to only change the client.
    pub(crate) request: Option<P::Request>,
    pub(crate) is_renewal: bool,
}

/// What the proof sees in one step. It is no part of what the clients or the table know.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) true_time: u8,
    breaches: u32,
    events: u32,
}

impl Log {
    pub(crate) fn broke(&mut self, breach: Breach) {
        self.breaches |= 1 << breach as u32;
    }

    pub(crate) fn saw(&mut self, event: Event) {
        self.events |= 1 << event as u32;
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State<T, C, R> {
    /// The true time, in ticks.
    pub(crate) time: u8,
    /// How far each client's clock is ahead of the true time: from 0 to [`SKEW`].
    ahead: [u8; CLIENTS],
    pub(crate) table: T,
    pub(crate) clients: [C; CLIENTS],
    /// The requests under way, with the times when they were built.
    flights: [Option<(R, u8)>; CLIENTS],
    /// The clients that have not begun an operation yet in this tick. A round trip takes longer than the resolution of the
    /// times in a row, so an operation and the next one do not have the same time.
    rested: [bool; CLIENTS],
    fresh: [bool; CLIENTS],
    /// A request whose sender no longer waits for it, and when it was built.
    late: Option<(R, u8)>,
    faults_left: u8,
    renewals_left: u8,
    pub(crate) breaches: u32,
}

impl<T, C, R> State<T, C, R> {
    pub(crate) fn clock(&self, client: usize) -> u8 {
        self.time + self.ahead[client]
    }

    /// Whether a request of this client is not answered yet.
    pub(crate) fn is_waiting(&self, client: usize) -> bool {
        self.flights[client].is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    Tick,
    /// A client makes the decision with this number, and its request has this fate.
    Decide(usize, usize, Fate),
    /// A request that is under way has this fate.
    Deliver(usize, Fate),
    ArriveLate,
    /// TTL deletes a row.
    Delete(usize),
}

/// What the network does to a request. All but the first are faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// It is applied and answered.
    Prompt,
    /// It is under way for a while.
    Slow,
    /// It is lost, and so the client gets no answer.
    Lost,
    /// It arrives late. The client gets no answer.
    Late,
    /// It is applied. The answer is lost, and the client waits no longer.
    AnswerLost,
    /// It is applied. The answer is lost, and the SDK sends the request again.
    AnswerLostAndResent,
    /// It is applied and answered, and a copy of it arrives late.
    Twice,
}

impl Fate {
    const ALL: [Self; 7] =
        [Self::Prompt, Self::Slow, Self::Lost, Self::Late, Self::AnswerLost, Self::AnswerLostAndResent, Self::Twice];

    fn is_fault(self) -> bool {
        self != Self::Prompt
    }

    fn needs_late(self) -> bool {
        matches!(self, Self::Late | Self::Twice)
    }
}

/// A protocol with its bounds, as the checker sees it.
#[derive(Debug)]
pub(crate) struct World<P> {
    protocol: P,
    bounds: Bounds,
    pub(crate) seen: [AtomicUsize; Event::ALL.len()],
}

impl<P: Protocol> World<P> {
    pub(crate) fn new(protocol: P, bounds: Bounds) -> Self {
        Self { protocol, bounds, seen: Default::default() }
    }

    pub(crate) fn protocol(&self) -> &P {
        &self.protocol
    }

    pub(crate) fn decisions(&self, state: &StateOf<P>, id: usize) -> Vec<Decision<P>> {
        let mut decisions = Vec::new();
        self.protocol.decisions(id, &state.clients[id], state.clock(id), &mut decisions);
        decisions
    }

    fn may_decide(&self, state: &StateOf<P>, id: usize) -> bool {
        let is_next = !state.fresh[id]
            || (0..id).all(|other| {
                !state.fresh[other]
                    || state.ahead[other] != state.ahead[id]
                    || self.protocol.role(other) != self.protocol.role(id)
            });
        state.rested[id] && state.flights[id].is_none() && is_next
    }

    fn deliver(&self, state: &mut StateOf<P>, id: usize, request: P::Request, built: u8, fate: Fate, log: &mut Log) {
        let protocol = &self.protocol;
        state.faults_left -= u8::from(fate.is_fault());
        state.flights[id] = None;
        if fate.needs_late() {
            state.late = Some((request, built));
        }
        if matches!(fate, Fate::Twice | Fate::AnswerLostAndResent) {
            protocol.sent_again(&mut state.clients[id], &request);
        }
        match fate {
            Fate::Prompt | Fate::Twice => {
                let answer = protocol.apply(&mut state.table, &request, log);
                let clock = state.clock(id);
                let next = protocol.answered(id, &mut state.clients[id], &request, &answer, clock, log);
                state.flights[id] = next.map(|request| (request, state.time));
            }
            Fate::Slow => state.flights[id] = Some((request, built)),
            Fate::Lost | Fate::Late => protocol.unanswered(&mut state.clients[id], &request),
            Fate::AnswerLost => {
                protocol.apply(&mut state.table, &request, log);
                protocol.unanswered(&mut state.clients[id], &request);
            }
            Fate::AnswerLostAndResent => {
                protocol.apply(&mut state.table, &request, log);
                state.flights[id] = Some((request, built));
            }
        }
    }
}

impl<P: Protocol> Model for World<P> {
    type State = StateOf<P>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        // Clocks in ascending order: another order has other names for the same clients, if they have the same role.
        let mut clocks = Vec::new();
        for number in 0..1_u8 << CLIENTS {
            let ahead = std::array::from_fn(|client| (number >> client) & SKEW);
            let is_sorted = (1..CLIENTS).all(|client| {
                self.protocol.role(client - 1) != self.protocol.role(client) || ahead[client - 1] <= ahead[client]
            });
            if is_sorted {
                clocks.push(ahead);
            }
        }
        let state = |ahead| State {
            time: 0,
            ahead,
            table: P::Table::default(),
            clients: [P::Client::default(); CLIENTS],
            flights: [None; CLIENTS],
            rested: [true; CLIENTS],
            fresh: [true; CLIENTS],
            late: None,
            faults_left: self.bounds.faults,
            renewals_left: self.bounds.renewals,
            breaches: 0,
        };
        clocks.into_iter().map(state).collect()
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        let allowed =
            |fate: Fate| (!fate.is_fault() || state.faults_left > 0) && (!fate.needs_late() || state.late.is_none());
        // Times count from the first request on.
        let has_begun = state.fresh.contains(&false);
        let mut may_tick = state.time < self.bounds.ticks && has_begun;
        for id in 0..CLIENTS {
            if let Some((_, built)) = &state.flights[id] {
                let fates = Fate::ALL.into_iter().filter(|fate| allowed(*fate) && *fate != Fate::Slow);
                actions.extend(fates.map(|fate| Action::Deliver(id, fate)));
                may_tick &= state.time < built + self.bounds.lateness;
            } else if self.may_decide(state, id) {
                for (number, decision) in self.decisions(state, id).into_iter().enumerate() {
                    if decision.is_renewal && state.renewals_left == 0 {
                        continue;
                    }
                    let fates = Fate::ALL.into_iter().filter(|fate| allowed(*fate));
                    let fates = fates.filter(|fate| decision.request.is_some() || !fate.is_fault());
                    actions.extend(fates.map(|fate| Action::Decide(id, number, fate)));
                }
            }
        }
        if state.late.is_some() {
            actions.push(Action::ArriveLate);
        }
        actions.extend(self.protocol.expired(&state.table, state.time + SKEW).into_iter().map(Action::Delete));
        if may_tick {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = last.clone();
        let mut log = Log { true_time: state.time, ..Log::default() };
        match action {
            Action::Tick => {
                state.time += 1;
                state.rested = [true; CLIENTS];
                // Too late to arrive.
                state.late = state.late.filter(|(_, built)| state.time <= built + self.bounds.lateness);
            }
            Action::Decide(id, number, fate) => {
                let decision = self.decisions(last, id).into_iter().nth(number)?;
                state.clients[id] = decision.client;
                state.rested[id] = false;
                state.fresh[id] = false;
                state.renewals_left -= u8::from(decision.is_renewal);
                if let Some(request) = decision.request {
                    self.deliver(&mut state, id, request, last.time, fate, &mut log);
                }
            }
            Action::Deliver(id, fate) => {
                let (request, built) = last.flights[id]?;
                self.deliver(&mut state, id, request, built, fate, &mut log);
            }
            Action::ArriveLate => {
                let (request, _) = state.late.take()?;
                log.saw(Event::ArrivedLate);
                self.protocol.apply(&mut state.table, &request, &mut log);
            }
            Action::Delete(row) => {
                log.saw(Event::DeletedByTtl);
                self.protocol.delete(&mut state.table, row);
            }
        }
        self.protocol.inspect(&state, &mut log);
        state.breaches = log.breaches;
        for (event, seen) in self.seen.iter().enumerate() {
            if log.events & (1 << event) != 0 {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        Breach::properties()
    }
}
