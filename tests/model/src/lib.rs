//! A bounded exhaustive model of the protocols of `lambda-lock`, for the checker `stateright`.
//!
//! The histories in `tests/src` run the code that ships, in random situations. This model runs no code of the product. It
//! states the protocols again, as small functions, and the checker tries every situation within the bounds. `row.rs` has
//! the conditions and updates of a lock and a record, with the names of the product's attributes, constants and functions,
//! so that a reader can lay both side by side. `lock.rs` has the decisions of a client. `several.rs` and `semaphore.rs`
//! have both for several keys and for a semaphore.
//!
//! # The world
//!
//! - Three clients make one acquisition each. An acquisition has a nonce of its own.
//! - Time passes in ticks. The clock of a client is ahead of the true time by 0 or 1 tick, and the skew is 1 tick. A lease
//!   takes 2 ticks, a renewal 1 or 2.
//! - A client begins one operation in a tick, because a round trip takes longer than the resolution of the times in a row
//!   (1 ms). Between operations, a client waits as long as it likes. A crash needs no action of its own: from any
//!   state, a client may do nothing more, and its last request may be lost or late.
//! - The network loses a request before it arrives, loses the answer, delays a request, or applies it twice, the second
//!   time after anything else. The SDK may send an unanswered request again. A slow answer has the effect of a lost one
//!   that is sent again.
//! - TTL deletes a row at any time from its `expiration` on, by a clock that is ahead by the skew.
//!
//! # The bounds
//!
//! [`Bounds`] limits the ticks, the faults of the network in a run, the renewals, the attempts after an unanswered one, and
//! how late a request can arrive. At most one request whose sender no longer waits is under way at any time.
//! [`Subject::bounds`] has the bounds of the tests. A protocol has several, because many faults in a few ticks and a few
//! faults in many ticks together cost less than many of both. `LOCK_MODEL=2` adds a tick and a fault to each:
//!
//! ```sh
//! LOCK_MODEL=2 cargo test --workspace --test model -- --nocapture
//! ```
//!
//! # The properties
//!
//! [`Breach`] has a variant for each property, which holds in every state that the checker reaches. Four limits of the
//! product are not breaches:
//!
//! - A row has one nonce of a withdrawal. A second withdrawal replaces the first, and the late attempt of the first client
//!   can then take the key until its lease ends.
//! - A withdrawal leaves the TTL of a completed row, which is the end of a window. The row can be deleted before the late
//!   attempt arrives, with the same effect.
//! - After TTL has deleted a row, a repeated release no longer recognises itself.
//! - A permit that others replace after its lease leaves nothing in the row. A late duplicate of its acquire can take a permit
//!   that is free, until the lease of the duplicate ends.
//!
//! # The mutations
//!
//! [`Subject::mutations`] has the mutations of the histories that the model can express, and the property that each breaks.
//! [`NOT_EXPRESSED`] has the others, and why.

mod lock;
mod row;
mod semaphore;
mod several;
pub mod walk;
mod world;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering;

use stateright::{Checker, HasDiscoveries, Model, Property};

use lock::Lock;
use row::{Conditions, Record};
use semaphore::{PERMITS, Semaphore};
use several::Several;
use world::{Protocol, SKEW, StateOf, World};

pub use world::Fate;

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A lock.
    Lock,
    /// A record of idempotency.
    Record,
    /// A record of idempotency that rejects unfinished runs.
    RejectingRecord,
    /// Several keys, all or none.
    Several,
    /// The same with reservations.
    SeveralInTurn,
    /// A semaphore with two permits.
    Semaphore,
    /// The same with places in its queue.
    SemaphoreInTurn,
}

/// The bounds of a check.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The true time at the end. The first request is sent at 0.
    pub ticks: u8,
    /// How late a request can arrive, in ticks.
    pub lateness: u8,
    /// The attempts of an acquire from the first unanswered one on.
    pub attempts: u8,
    /// The requests that are slow, lost or late, that arrive twice, or whose answer is lost.
    pub faults: u8,
    /// The renewals of all clients together.
    pub renewals: u8,
}

impl Bounds {
    /// Returns bounds with two attempts.
    #[must_use]
    pub const fn new(ticks: u8, lateness: u8, faults: u8, renewals: u8) -> Self {
        Self { ticks, lateness, attempts: 2, faults, renewals }
    }

    /// How long a row stays after its lease. An update that arrives late sets the TTL to an earlier time, so a row stays for
    /// twice the lateness and the skew. The product's 15 minutes are 5 minutes for each of these.
    const fn retention(self) -> u8 {
        2 * self.lateness + SKEW + 1
    }
}

macro_rules! breaches {
    ($($breach:ident = $name:literal,)*) => {
        /// A property that does not hold.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Breach { $(#[doc = concat!("Broken: ", $name, ".")] $breach),* }

        impl Breach {
            fn properties<P: Protocol>() -> Vec<Property<World<P>>> {
                vec![$(Property::always($name, |_: &World<P>, state: &StateOf<P>| {
                    state.breaches & (1 << Self::$breach as u32) == 0
                })),*]
            }

            /// Returns the property.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$breach => $name),* }
            }
        }
    };
}

breaches! {
    Exclusion = "at most one client considers itself valid by its own clock, or N of a semaphore",
    FenceStoodStill = "the fences of successive acquisitions grow",
    RefusedByItself = "no acquire is refused by itself",
    TakenAfterItsEnd = "an acquisition that was released or withdrawn does not take the key again",
    HeldByNobody = "a key is held by a client that has it or may have it, and for no longer than the lease that it asked for",
    OutOfOrder = "the requests of an owner are applied in their order",
    ForeignRow = "no request of an owner changes the row of another",
    ReleaseNotDone = "a reported release has happened",
    ReleaseNotRecognised = "a repeated release recognises itself",
    RunAgain = "work with an outcome does not run again in its window",
    UnfinishedRunAgain = "a run that did not finish is not repeated in its window, if unfinished runs are rejected",
    OutcomeChanged = "no request changes an outcome",
    ReplayedUnfinished = "only an outcome is replayed",
    WrongCount = "a semaphore's counter is the number of its permits",
    Half = "a client that considers itself valid has all its keys",
    FreeButRefused = "what is free is refused for no longer than the courtesy to those ahead, or the reservation",
    HalfReserved = "of two sets with the same keys, each has reserved all of them or none",
    WrittenTwice = "the write in a transaction with the completion happens once in a window",
}

macro_rules! events {
    ($($event:ident),*) => {
        /// What a check reached.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names say it")]
        pub enum Event { $($event),* }

        impl Event {
            pub(crate) const ALL: &[Self] = &[$(Self::$event),*];
        }
    };
}

events! {
    Acquired, OwnRowRecognised, Refused, TakenOver, Renewed, Released, Lost, GrantedTooLate, Withdrawn, Completed, Replayed,
    ArrivedLate, DeletedByTtl, Joined, Served, Left, Reserved
}

macro_rules! mutations {
    ($($mutation:ident = $name:literal,)*) => {
        /// A deliberate mistake in a condition, in an update, or in the reading of an answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation { $(#[doc = concat!("\"", $name, "\"")] $mutation),* }

        impl Mutation {
            /// Returns the mistake, in the words of the histories.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$mutation => $name),* }
            }
        }
    };
}

mutations! {
    ForeignNonce = "no nonce check on refusal",
    ReleaseWithoutOwner = "release without the owner check",
    ReleaseForgets = "release sets the end to zero and drops the owner",
    FenceRestarts = "fence restarts at 1 after deletion",
    AcquireIgnoresEnd = "acquire ignores the lease's end",
    NoSkew = "clock skew not added",
    RenewUnconditional = "renew without condition",
    RefusedReleaseSucceeds = "a refused release counts as success",
    FenceStandsStill = "fence does not grow",
    TtlTooEarly = "TTL earlier than the lease's end",
    LateRenewal = "a late renewal moves the end back",
    LateRelease = "a late release replaces a later one",
    WithdrawalIgnored = "acquire ignores a withdrawal",
    AcquireIgnoresWindow = "acquire ignores the window",
    CompleteWithoutOwner = "complete without the owner check",
    ReleaseWithoutStatus = "release without the status check",
    ReplayInProgress = "replay while in progress",
    UnfinishedReleased = "unfinished records released under Reject",
    TransactionUnconditional = "completion not conditional in the transaction",
    TransactionWithoutCompletion = "completion left out of the transaction",
    WindowCutShort = "the window is cut short",
    LeaseTooLong = "the lease is too long",
    HalfTaken = "half of the keys are taken",
    FenceRepeats = "a fence repeats",
    CancelledAcquireSucceeds = "a cancelled acquire counts as applied",
    LastLeaseIgnored = "the lease of the last key is ignored",
    HalfReleased = "half of the keys are released",
    CancelledReleaseSucceeds = "a cancelled release counts as applied",
    RenewWithoutOwner = "renew without the owner check",
    OneMore = "N + 1 permits",
    ReplacedUnchecked = "a permit is replaced without checking whose it is",
    AnotherReleased = "another's permit is released",
    CountedTwice = "a release lowers the count twice",
    TombstoneIgnored = "acquire ignores a release",
    NoTombstone = "a release leaves no trace",
    TtlTooEarlyForPermits = "TTL earlier than the leases' end",
    OneMoreInTurn = "the next in line takes one more permit",
    CourtesyWithoutEnd = "a courtesy without an end",
    HalfReserved = "half of the keys are reserved",
    ReservationEntitles = "a reservation entitles",
    ReservationWithoutEnd = "a reservation without an end",
}

/// The mutations of the histories that the model does not express, and why.
pub const NOT_EXPRESSED: &[(&str, &str)] = &[
    (
        "the next in line takes a held key",
        "the queue of a lock adds conditions to `FREE`, and a client may wait at any time anyway",
    ),
    (
        "complete without the status check",
        "a run of the model has one outcome: it never completes after a transaction that seemed to fail",
    ),
    ("the cache serves an expired result", "the model has no cache: a client keeps no outcome"),
    ("a ticket works twice", TICKETS),
    ("a resumption does not use up the ticket", TICKETS),
    ("a resumption does not read whose row it is", TICKETS),
    ("a resumed lock counts its lease from the resumption", TICKETS),
    ("a late renewal by a ticket shortens the lease", TICKETS),
    ("a renewal by a ticket leaves the number of the row", TICKETS),
    ("a renewal by a ticket leaves the number of the permit", TICKETS),
    ("a resumed permit counts its lease from the resumption", TICKETS),
    ("a renewal by a ticket that keeps the end leaves the number of the row", TICKETS),
    ("a renewal by a ticket that keeps the end leaves the number of the permit", TICKETS),
    ("a release ends the minimum hold early", HOLDS),
    ("a permit is replaced although it was released since it was seen", HOLDS),
    ("a takeover takes back what has ended", IDENTITIES),
    ("an identity takes another's lock", IDENTITIES),
    ("an identity takes another's keys", IDENTITIES),
    ("a takeover leaves the owner of the earlier holder", IDENTITIES),
    ("acquire ignores that it was freed", IDENTITIES),
    ("a release for an identity does not read whose key it is", IDENTITIES),
    ("a takeover leaves the nonce of the earlier holder", IDENTITIES),
    ("a release for an identity does not read whose permit it is", IDENTITIES),
    ("a release for an identity frees another's permit", IDENTITIES),
    ("tombstones of a crowded row stay", "the model has a few permits, and keeps all tombstones"),
    (
        "a throttled transaction of a holder is not repeated",
        "the model has no throttling: a client sends a request again as often as it wants",
    ),
];

const HOLDS: &str = "the model has no minimum holds: a release frees the key";

const IDENTITIES: &str = "the model has no identities: each acquisition is a client of its own";

const TICKETS: &str = "the model has no tickets: each lock stays with the client that acquired it";

impl Subject {
    /// All subjects.
    pub const ALL: [Self; 7] = [
        Self::Lock,
        Self::Record,
        Self::RejectingRecord,
        Self::Several,
        Self::SeveralInTurn,
        Self::Semaphore,
        Self::SemaphoreInTurn,
    ];

    /// Returns the bounds of a level, from 1. Each level adds a tick and a fault to each bound.
    #[must_use]
    pub fn bounds(self, level: u8) -> Vec<Bounds> {
        let bounds: &[Bounds] = match self {
            Self::Lock => &[Bounds::new(4, 1, 2, 0), Bounds::new(5, 1, 1, 2), Bounds::new(7, 1, 1, 0)],
            Self::RejectingRecord => &[Bounds::new(4, 1, 1, 0), Bounds::new(8, 1, 0, 0)],
            Self::SeveralInTurn | Self::SemaphoreInTurn => &[Bounds::new(4, 1, 1, 0), Bounds::new(6, 1, 0, 0)],
            Self::Record | Self::Several | Self::Semaphore => &[Bounds::new(4, 1, 1, 1), Bounds::new(8, 1, 0, 0)],
        };
        let more = level.saturating_sub(1);
        bounds
            .iter()
            .map(|bounds| Bounds { ticks: bounds.ticks + more, faults: bounds.faults + more, ..*bounds })
            .collect()
    }

    /// Returns the mutations, with the property that each breaks.
    #[must_use]
    pub fn mutations(self) -> &'static [(Mutation, Breach)] {
        match self {
            Self::Lock => &[
                (Mutation::ForeignNonce, Breach::RefusedByItself),
                (Mutation::ReleaseWithoutOwner, Breach::ForeignRow),
                (Mutation::ReleaseForgets, Breach::TakenAfterItsEnd),
                (Mutation::FenceRestarts, Breach::FenceStoodStill),
                (Mutation::AcquireIgnoresEnd, Breach::Exclusion),
                (Mutation::NoSkew, Breach::Exclusion),
                (Mutation::RenewUnconditional, Breach::ForeignRow),
                (Mutation::RefusedReleaseSucceeds, Breach::ReleaseNotDone),
                (Mutation::FenceStandsStill, Breach::FenceStoodStill),
                (Mutation::TtlTooEarly, Breach::Exclusion),
                (Mutation::LateRenewal, Breach::Exclusion),
                (Mutation::LateRelease, Breach::OutOfOrder),
                (Mutation::WithdrawalIgnored, Breach::TakenAfterItsEnd),
            ],
            Self::Record => &[
                (Mutation::AcquireIgnoresEnd, Breach::Exclusion),
                (Mutation::AcquireIgnoresWindow, Breach::RunAgain),
                (Mutation::CompleteWithoutOwner, Breach::ForeignRow),
                (Mutation::ReleaseWithoutOwner, Breach::ForeignRow),
                (Mutation::ReleaseWithoutStatus, Breach::OutcomeChanged),
                (Mutation::ReplayInProgress, Breach::ReplayedUnfinished),
                (Mutation::TransactionUnconditional, Breach::WrittenTwice),
                (Mutation::TransactionWithoutCompletion, Breach::RunAgain),
                (Mutation::WindowCutShort, Breach::RunAgain),
                (Mutation::ForeignNonce, Breach::RefusedByItself),
                (Mutation::LeaseTooLong, Breach::HeldByNobody),
            ],
            Self::Several => &[
                (Mutation::HalfTaken, Breach::Half),
                (Mutation::FenceRepeats, Breach::FenceStoodStill),
                (Mutation::CancelledAcquireSucceeds, Breach::Half),
                (Mutation::ForeignNonce, Breach::RefusedByItself),
                (Mutation::LastLeaseIgnored, Breach::Exclusion),
                (Mutation::NoSkew, Breach::Exclusion),
                (Mutation::WithdrawalIgnored, Breach::TakenAfterItsEnd),
                (Mutation::HalfReleased, Breach::ReleaseNotDone),
                (Mutation::CancelledReleaseSucceeds, Breach::ReleaseNotDone),
                (Mutation::ReleaseWithoutOwner, Breach::ForeignRow),
                (Mutation::RenewWithoutOwner, Breach::ForeignRow),
            ],
            Self::Semaphore => &[
                (Mutation::OneMore, Breach::Exclusion),
                (Mutation::ReplacedUnchecked, Breach::Exclusion),
                (Mutation::AnotherReleased, Breach::ForeignRow),
                (Mutation::FenceRepeats, Breach::FenceStoodStill),
                (Mutation::NoSkew, Breach::Exclusion),
                (Mutation::ForeignNonce, Breach::RefusedByItself),
                (Mutation::CountedTwice, Breach::WrongCount),
                (Mutation::TombstoneIgnored, Breach::TakenAfterItsEnd),
                (Mutation::NoTombstone, Breach::TakenAfterItsEnd),
                (Mutation::LateRenewal, Breach::OutOfOrder),
                (Mutation::RefusedReleaseSucceeds, Breach::ReleaseNotDone),
                (Mutation::TtlTooEarlyForPermits, Breach::Exclusion),
            ],
            Self::SeveralInTurn => &[
                (Mutation::HalfReserved, Breach::HalfReserved),
                (Mutation::ReservationEntitles, Breach::Exclusion),
                (Mutation::ReservationWithoutEnd, Breach::FreeButRefused),
            ],
            Self::SemaphoreInTurn => {
                &[(Mutation::OneMoreInTurn, Breach::Exclusion), (Mutation::CourtesyWithoutEnd, Breach::FreeButRefused)]
            }
            Self::RejectingRecord => &[(Mutation::UnfinishedReleased, Breach::UnfinishedRunAgain)],
        }
    }

    /// Checks every state within the bounds. With a mutation, ends when the property is broken that the mutation breaks.
    #[must_use]
    pub fn check(self, bounds: Bounds, mutation: Option<(Mutation, Breach)>) -> Report {
        let breaks = mutation.map(|(_, breaks)| breaks);
        let conditions = |record| Conditions {
            record,
            retention: bounds.retention(),
            mutation: mutation.map(|(mutation, _)| mutation),
        };
        let record = |reject_unfinished| Some(Record { window: 4, reject_unfinished });
        match self {
            Self::Lock => check(Lock { conditions: conditions(None), bounds }, bounds, breaks),
            Self::Record => check(Lock { conditions: conditions(record(None)), bounds }, bounds, breaks),
            Self::Semaphore | Self::SemaphoreInTurn => {
                let (mutation, retention) = (mutation.map(|(mutation, _)| mutation), bounds.retention());
                let in_turn = self == Self::SemaphoreInTurn;
                let semaphore = Semaphore { bounds, permits: PERMITS, retention, mutation, in_turn, is_walked: false };
                check(semaphore, bounds, breaks)
            }
            Self::Several | Self::SeveralInTurn => {
                let in_turn = self == Self::SeveralInTurn;
                check(Several { conditions: conditions(None), bounds, in_turn }, bounds, breaks)
            }
            Self::RejectingRecord => check(Lock { conditions: conditions(record(Some(5))), bounds }, bounds, breaks),
        }
    }
}

/// The outcome of a check.
#[derive(Debug)]
pub struct Report {
    /// The number of different states.
    pub states: usize,
    /// The properties that do not hold, each with a shortest run that breaks it.
    pub broken: Vec<Counterexample>,
    /// How many steps reached each event.
    pub events: Vec<(Event, usize)>,
}

impl Report {
    /// Returns `true` if the check found a run that breaks this property.
    #[must_use]
    pub fn breaks(&self, breach: Breach) -> bool {
        self.broken.iter().any(|broken| broken.property == breach.name())
    }
}

/// A run that breaks a property.
#[derive(Debug)]
pub struct Counterexample {
    property: &'static str,
    /// Each step with the table before it.
    steps: Vec<String>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "does not hold: {}\n  {}", self.property, self.steps.join("\n  "))
    }
}

fn check<P: Protocol>(protocol: P, bounds: Bounds, breaks: Option<Breach>) -> Report {
    let finish =
        breaks.map_or(HasDiscoveries::AnyFailures, |breach| HasDiscoveries::AllOf(BTreeSet::from([breach.name()])));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = World::new(protocol, bounds).checker().threads(threads).finish_when(finish).spawn_bfs().join();
    let broken = checker.discoveries().into_iter().map(|(property, path)| {
        let steps = path.into_vec().into_iter().map(|(state, action)| {
            let action = action.map_or_else(|| "end".to_owned(), |action| format!("{action:?}"));
            format!("{}: {action}\n      {:?}\n      {:?}", state.time, state.table, state.clients)
        });
        Counterexample { property, steps: steps.collect() }
    });
    let seen = &checker.model().seen;
    Report {
        states: checker.unique_state_count(),
        broken: broken.collect(),
        events: Event::ALL.iter().map(|event| (*event, seen[*event as usize].load(Ordering::Relaxed))).collect(),
    }
}
