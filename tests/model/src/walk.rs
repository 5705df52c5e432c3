//! Walks through the model, step by step, for the comparison with the code that ships (`tests/tests/model_paths`).
//!
//! A [`Situation`] shows what the model expects without its own types: the rows with the names of the product's
//! attributes, and how each client stands. The checker does not use this file.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use stateright::Model;

use crate::lock::{End, LEASE, Lock, Phase};
use crate::row::{Conditions, FENCES_IN_A_TICK, Kind, Record, Request, clock_as_fence};
use crate::semaphore::{self, PERMITS, Permit, Semaphore};
use crate::several::Several;
use crate::world::{Action, CLIENTS, Decision, Fate, Protocol, SKEW, StateOf, World};
use crate::{Bounds, Mutation, Subject};

/// How many clients a walk has.
pub const WALKERS: usize = CLIENTS;

/// How long a row stays after its lease, in ticks of 5 minutes: the product's minimum with a skew of 5 minutes.
const RETENTION: u8 = 5;

/// How long the row of a semaphore stays after a request, in ticks. All leases of the model are as long as the longest.
pub const KEPT: u8 = LEASE + SKEW + RETENTION;

/// For how long an outcome is kept, or an unfinished run refused, in ticks.
pub const WINDOW: u8 = 5;

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A fixed text.
    Text(&'static str),
    /// The nonce of this client's acquisition.
    Owner(usize),
    /// A time, in ticks.
    Tick(u8),
    /// A number.
    Count(u64),
    /// The clock of this tick, in the unit of fences, and so many more.
    Fence {
        /// When the row was new.
        tick: u16,
        /// How many acquisitions there were.
        more: u16,
    },
    /// A permit that is held.
    Permit {
        /// The end of its lease, in ticks.
        lease_end: u8,
        /// The number of the last request.
        sequence: u8,
    },
}

/// A row, by the names of its attributes.
pub type Row = BTreeMap<String, Value>;

/// What a client decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// Makes an attempt to acquire.
    Ask,
    /// Ends the acquire, and withdraws the attempts that may still take the key.
    StopAsking,
    /// Renews the lease by so many ticks.
    Renew(u8),
    /// Releases, the first time or again.
    Release,
    /// Takes a place in the queue.
    Join,
    /// Completes the record.
    Complete,
    /// Completes the record in a transaction with a write of its own.
    Transact,
    /// Leaves the record as it is.
    Abandon,
}

/// How a client stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// Between attempts, or in one.
    Asking {
        /// Its attempts so far, from the first that was not answered.
        attempts: u8,
        /// One of them may still take the key.
        is_doubtful: bool,
        /// It makes no more attempts.
        is_over: bool,
    },
    /// It holds what it asked for, until this tick by its own clock.
    Held {
        /// The end of the lease.
        deadline: u8,
    },
    /// A release was started, or is what is left to do.
    Releasing,
    /// A completion was started.
    Completing,
    /// A withdrawal was started.
    Withdrawing,
    /// It crashed, or its last request was not answered.
    Unknown,
    /// It has nothing, and none of its attempts can take it.
    WithoutKey,
    /// It was told that its release or completion was applied.
    Released,
    /// It was told that it has lost the key.
    Lost,
}

/// A step of a walk.
#[derive(Clone, Copy, PartialEq)]
pub enum Step {
    /// A tick passes.
    Tick,
    /// A client begins an operation, and its request has this fate.
    Begin {
        /// The client.
        client: usize,
        /// What it decides.
        operation: Operation,
        /// What happens to the request.
        fate: Fate,
        /// The number of the decision in the model.
        number: usize,
    },
    /// A request that is under way has this fate.
    Deliver {
        /// Its client.
        client: usize,
        /// What happens to it.
        fate: Fate,
    },
    /// The request that is kept arrives late.
    ArriveLate,
    /// TTL deletes the row with this number.
    Delete(usize),
}

impl Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick => f.write_str("a tick passes"),
            Self::Begin { client, operation, fate, .. } => write!(f, "client {client}: {operation:?}, {fate:?}"),
            Self::Deliver { client, fate } => write!(f, "client {client}: its request under way is {fate:?}"),
            Self::ArriveLate => f.write_str("the late request arrives"),
            Self::Delete(row) => write!(f, "TTL deletes row {row}"),
        }
    }
}

/// A situation in the model.
pub struct Situation(Box<dyn Position>);

impl Situation {
    /// Returns the situations in which a walk begins: the clocks differ, and the number of permits. Returns none for a
    /// protocol that has no walks. With a mutation, the model makes this mistake.
    #[must_use]
    pub fn first(subject: Subject, bounds: Bounds, mutation: Option<Mutation>) -> Vec<Self> {
        let conditions = |record| Conditions { record, retention: RETENTION, mutation };
        let record = |reject_unfinished| Some(Record { window: WINDOW, reject_unfinished });
        match subject {
            Subject::Lock => begin(Lock { conditions: conditions(None), bounds }, bounds),
            Subject::Record => begin(Lock { conditions: conditions(record(None)), bounds }, bounds),
            Subject::RejectingRecord => begin(Lock { conditions: conditions(record(Some(WINDOW))), bounds }, bounds),
            Subject::Several => begin(Several { conditions: conditions(None), bounds, in_turn: false }, bounds),
            Subject::Semaphore | Subject::SemaphoreInTurn => {
                let in_turn = subject == Subject::SemaphoreInTurn;
                // Most waiters wait for a single permit.
                let semaphore =
                    |permits| Semaphore { bounds, permits, retention: RETENTION, mutation, in_turn, is_walked: true };
                (1..=PERMITS).flat_map(|permits| begin(semaphore(permits), bounds)).collect()
            }
            Subject::SeveralInTurn => Vec::new(),
        }
    }

    /// Returns by how many ticks the clock of this client is ahead.
    #[must_use]
    pub fn ahead(&self, client: usize) -> u8 {
        self.0.ahead(client)
    }

    /// Returns how many clients can hold the key at a time.
    #[must_use]
    pub fn permits(&self) -> u8 {
        self.0.permits()
    }

    /// Returns the true time, in ticks.
    #[must_use]
    pub fn time(&self) -> u8 {
        self.0.time()
    }

    /// Returns the steps that can follow.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        self.0.steps()
    }

    /// Returns the situation after this step.
    ///
    /// # Panics
    ///
    /// Panics if the step is none of [`steps`](Self::steps).
    #[must_use]
    pub fn after(&self, step: &Step) -> Self {
        Self(self.0.after(step))
    }

    /// Returns `true` if both situations show the same.
    #[must_use]
    pub fn looks_like(&self, other: &Self) -> bool {
        let is_same = |client| {
            self.standing(client) == other.standing(client) && self.is_waiting(client) == other.is_waiting(client)
        };
        self.rows() == other.rows() && (0..CLIENTS).all(is_same)
    }

    /// Returns how this client stands.
    #[must_use]
    pub fn standing(&self, client: usize) -> Standing {
        self.0.standing(client)
    }

    /// Returns `true` if a request of this client is under way.
    #[must_use]
    pub fn is_waiting(&self, client: usize) -> bool {
        self.0.is_waiting(client)
    }

    /// Returns the rows.
    #[must_use]
    pub fn rows(&self) -> Vec<Option<Row>> {
        self.0.rows()
    }
}

impl Debug for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standings = std::array::from_fn::<_, CLIENTS, _>(|client| self.standing(client));
        f.debug_struct("Situation").field("time", &self.time()).field("standings", &standings).finish_non_exhaustive()
    }
}

/// What a protocol shows.
pub(crate) trait Shown: Protocol {
    fn permits(&self) -> u8 {
        1
    }

    fn operation(&self, decision: &Decision<Self>) -> Operation;

    fn standing(&self, client: &Self::Client) -> Standing;

    fn rows(&self, table: &Self::Table) -> Vec<Option<Row>>;
}

/// A situation of one protocol.
trait Position: Send {
    fn ahead(&self, client: usize) -> u8;
    fn permits(&self) -> u8;
    fn time(&self) -> u8;
    fn steps(&self) -> Vec<Step>;
    fn after(&self, step: &Step) -> Box<dyn Position>;
    fn standing(&self, client: usize) -> Standing;
    fn is_waiting(&self, client: usize) -> bool;
    fn rows(&self) -> Vec<Option<Row>>;
}

struct At<P: Protocol> {
    world: Arc<World<P>>,
    state: StateOf<P>,
}

fn begin<P: Shown>(protocol: P, bounds: Bounds) -> Vec<Situation> {
    let world = Arc::new(World::new(protocol, bounds));
    let at = |state| Situation(Box::new(At { world: Arc::clone(&world), state }));
    world.init_states().into_iter().map(at).collect()
}

impl<P: Shown> Position for At<P> {
    fn ahead(&self, client: usize) -> u8 {
        self.state.clock(client) - self.state.time
    }

    fn permits(&self) -> u8 {
        self.world.protocol().permits()
    }

    fn time(&self) -> u8 {
        self.state.time
    }

    fn steps(&self) -> Vec<Step> {
        let mut actions = Vec::new();
        self.world.actions(&self.state, &mut actions);
        let protocol = self.world.protocol();
        let step = |action| match action {
            Action::Tick => Step::Tick,
            Action::Decide(client, number, fate) => {
                let operation = protocol.operation(&self.world.decisions(&self.state, client)[number]);
                Step::Begin { client, operation, fate, number }
            }
            Action::Deliver(client, fate) => Step::Deliver { client, fate },
            Action::ArriveLate => Step::ArriveLate,
            Action::Delete(row) => Step::Delete(row),
        };
        actions.into_iter().map(step).collect()
    }

    fn after(&self, step: &Step) -> Box<dyn Position> {
        let action = match *step {
            Step::Tick => Action::Tick,
            Step::Begin { client, number, fate, .. } => Action::Decide(client, number, fate),
            Step::Deliver { client, fate } => Action::Deliver(client, fate),
            Step::ArriveLate => Action::ArriveLate,
            Step::Delete(row) => Action::Delete(row),
        };
        let state = self.world.next_state(&self.state, action).expect("the step is possible");
        Box::new(Self { world: Arc::clone(&self.world), state })
    }

    fn standing(&self, client: usize) -> Standing {
        self.world.protocol().standing(&self.state.clients[client])
    }

    fn is_waiting(&self, client: usize) -> bool {
        self.state.is_waiting(client)
    }

    fn rows(&self) -> Vec<Option<Row>> {
        self.world.protocol().rows(&self.state.table)
    }
}

impl Shown for Lock {
    fn operation(&self, decision: &Decision<Self>) -> Operation {
        decision.request.map_or(Operation::Abandon, operation)
    }

    fn standing(&self, client: &Self::Client) -> Standing {
        standing(client.phase, client.attempts, client.doubtful, client.deadline, self.bounds)
    }

    fn rows(&self, table: &Self::Table) -> Vec<Option<Row>> {
        vec![table.row.as_ref().map(shown)]
    }
}

impl Shown for Several {
    fn operation(&self, decision: &Decision<Self>) -> Operation {
        decision.request.map_or(Operation::Abandon, |request| operation(request.update))
    }

    fn standing(&self, client: &Self::Client) -> Standing {
        standing(client.phase, client.attempts, client.doubtful, client.deadline, self.bounds)
    }

    fn rows(&self, table: &Self::Table) -> Vec<Option<Row>> {
        table.rows.iter().map(|row| row.as_ref().map(shown)).collect()
    }
}

impl Shown for Semaphore {
    fn permits(&self) -> u8 {
        self.permits
    }

    fn operation(&self, decision: &Decision<Self>) -> Operation {
        let request = decision.request.expect("each decision about a permit is a request");
        match request.kind {
            semaphore::Kind::Acquire(_) => Operation::Ask,
            semaphore::Kind::Renew => Operation::Renew(request.asked - SKEW - request.now),
            semaphore::Kind::Release => Operation::Release,
            semaphore::Kind::Join => Operation::Join,
            semaphore::Kind::ReleaseToWithdraw | semaphore::Kind::Withdraw(_) => Operation::StopAsking,
        }
    }

    fn standing(&self, client: &Self::Client) -> Standing {
        standing(client.phase, client.attempts, client.doubtful, client.deadline, self.bounds)
    }

    fn rows(&self, table: &Self::Table) -> Vec<Option<Row>> {
        vec![table.row.as_ref().map(shown_semaphore)]
    }
}

fn operation(request: Request) -> Operation {
    match request.kind {
        Kind::Acquire => Operation::Ask,
        Kind::Renew => Operation::Renew(request.asked - SKEW - request.now),
        Kind::Release => Operation::Release,
        Kind::Complete => Operation::Complete,
        Kind::Transaction => Operation::Transact,
        Kind::ReleaseToWithdraw | Kind::WithdrawNew | Kind::WithdrawLonger | Kind::Withdraw => Operation::StopAsking,
    }
}

fn standing(phase: Phase, attempts: u8, is_doubtful: bool, deadline: u8, bounds: Bounds) -> Standing {
    match phase {
        Phase::Asking => Standing::Asking { attempts, is_doubtful, is_over: attempts >= bounds.attempts },
        Phase::Held => Standing::Held { deadline },
        Phase::Ended(End::Unknown) => Standing::Unknown,
        Phase::Releasing => Standing::Releasing,
        Phase::Completing => Standing::Completing,
        Phase::Withdrawing => Standing::Withdrawing,
        Phase::Ended(End::WithoutKey) => Standing::WithoutKey,
        Phase::Ended(End::Released) => Standing::Released,
        Phase::Ended(End::Lost) => Standing::Lost,
    }
}

fn shown(row: &crate::row::Row) -> Row {
    let owner = |owner| (owner > 0).then(|| Value::Owner(usize::from(owner) - 1));
    let status = if row.completed { "COMPLETED" } else { "INPROGRESS" };
    let attributes = [
        ("status", Some(Value::Text(status))),
        ("owner", owner(row.owner)),
        ("released", owner(row.released)),
        ("withdrawn", owner(row.withdrawn)),
        ("sequence", row.sequence.map(|sequence| Value::Count(sequence.into()))),
        ("acquired_at", row.acquired_at.map(Value::Tick)),
        ("in_progress_expiration", Some(Value::Tick(row.lease_end))),
        ("expiration", Some(Value::Tick(row.expiration))),
        ("fence", row.fence.map(|fence| shown_fence(fence.saturating_sub(clock_as_fence(0))))),
    ];
    attributes.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn shown_semaphore(row: &semaphore::Row) -> Row {
    let attributes = [
        ("status", Some(Value::Text("SEMAPHORE"))),
        ("permits", Some(Value::Count(row.permits.into()))),
        ("expiration", Some(Value::Tick(row.expiration))),
        ("fence", row.fence.map(shown_fence)),
        ("freed_at", row.freed_at.map(Value::Tick)),
        ("head", (row.head.max(row.tail) > 0).then(|| Value::Count(row.head.into()))),
        ("tail", (row.tail > 0).then(|| Value::Count(row.tail.into()))),
    ];
    let attributes = attributes.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let permits = row.permit.iter().enumerate().filter_map(|(client, permit)| {
        let value = match (*permit)? {
            Permit::Held { lease_end, sequence } => Value::Permit { lease_end, sequence },
            Permit::Tombstone => Value::Text("released"),
        };
        Some((permit_of(client), value))
    });
    attributes.chain(permits).collect()
}

/// Returns the name of what a semaphore's row has of this client.
#[must_use]
pub fn permit_of(client: usize) -> String {
    format!("permit of client {client}")
}

fn shown_fence(since: u16) -> Value {
    Value::Fence { tick: since / FENCES_IN_A_TICK, more: since % FENCES_IN_A_TICK }
}
