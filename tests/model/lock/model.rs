//! The protocol without a network and without clocks of its own, which the model drives.

use std::fmt;
use std::time::Duration;

use crate::clock::Lease;
use crate::error::{Cause, Error};
use crate::holder::Holder;
use crate::lock::asking::{Answered, Asking, Ended, Step as Next};
use crate::lock::wait::{Pause, Paused};
use crate::lock::{Acquire, Continuation, Locks};
pub use crate::row::exchange::{Clocks, Item, Reply, Request};
use crate::row::exchange::{answer, requests};
use crate::row::{
    Acquisition, Coalescing, Completing, Freeing, Operation as _, Outcome, RecordClaim, Release, Released, Releasing,
    Renewed, Renewing, Target, Withdrawing,
};

/// The acquire of a record of idempotency. With `reject_unfinished`, a run that did not finish is refused for so long.
pub fn record(locks: &Locks, key: &str, reject_unfinished: Option<Duration>) -> Acquire {
    locks.acquire_target(Target::Record(key.to_owned(), RecordClaim { validation: None, reject_unfinished }))
}

/// The acquire of several keys.
pub fn keys(locks: &Locks, keys: &[&str]) -> Acquire {
    locks.acquire_target(Target::several(keys.iter().map(|key| (*key).to_owned()).collect()))
}

/// A takeover with these settings, from the acquisition with this fence if there is one.
pub fn takeover(mut acquire: Acquire, fence: Option<u64>) -> Acquire {
    (acquire.takes_over, acquire.earlier_fence) = (true, fence);
    acquire
}

/// An acquire under way.
#[derive(Clone)]
pub struct Acquiring {
    asking: Asking<'static>,
    acquire: &'static Acquire,
    at: At,
}

/// The step of an acquire that is under way.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Start,
    Asked,
    Withdrawing,
    Asleep,
    End,
}

/// Two acquires print the same if they go on in the same way.
impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asking.live(self.at == At::Asked).fmt(f)
    }
}

/// The next step of an acquire.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these requests together.
    Send(Vec<Request>),
    /// Withdraws, and goes on.
    Withdraw(Operation),
    /// Sleeps.
    Sleep,
    /// Has the lock.
    Held(Held),
    /// The work was done before.
    Completed,
    /// Ends without the lock: because this holder has refused the last attempt, or for another reason. Unanswered attempts are
    /// withdrawn in the background.
    Refused(Option<Operation>, Option<Box<Holder>>),
}

impl Acquiring {
    /// Starts an acquire, which the model keeps for its whole life.
    ///
    /// # Errors
    ///
    /// Fails as the acquire does.
    pub fn start(acquire: &'static Acquire, now: Clocks) -> Result<Self, Error> {
        Ok(Self { asking: Asking::start(acquire, now.moment())?, acquire, at: At::Start })
    }

    /// Begins, or goes on after a sleep or a withdrawal.
    pub fn go_on(&mut self, now: Clocks) -> Step {
        let moment = now.moment();
        let next = match self.at {
            At::Start => self.asking.ask(moment),
            At::Withdrawing => self.asking.withdrawn(moment),
            At::Asleep => self.asking.paused(Paused::Done, moment),
            At::Asked | At::End => unreachable!("the acquire waits for an answer, or has ended"),
        };
        self.step(next, now)
    }

    /// Takes note of the answer to the requests that were sent last, if there was one.
    pub fn answered(&mut self, reply: Option<Reply>, now: Clocks) -> Step {
        let acquisition = self.asking.acquisition();
        let unanswered = || acquisition.error(Cause::Unavailable, &self.acquire.locks.0.table);
        let is_unanswered = reply.is_none();
        let answer = reply.map(|reply| answer(&self.asking.request(), reply)).ok_or_else(unanswered);
        let next = self.asking.answered(Answered { answer, is_unanswered, wrong_clock: None }, now.moment());
        self.step(next, now)
    }

    fn step(&mut self, mut next: Next, now: Clocks) -> Step {
        let withdrawal =
            |acquisition| Operation(What::Withdraw(Box::new(Withdrawing::start(acquisition, self.acquire.takes_over))));
        loop {
            let (at, step) = match next {
                Next::Send { .. } => (At::Asked, Step::Send(requests(&self.asking.request()))),
                Next::Pause(Pause::Sleep(_)) => (At::Asleep, Step::Sleep),
                Next::Withdraw(acquisition, _) => (At::Withdrawing, Step::Withdraw(withdrawal(acquisition))),
                Next::End(Ok(Ended::Acquired((acquisition, grant)))) => {
                    let (min_hold, skew) = (self.acquire.min_hold, self.acquire.locks.0.table.clock_skew);
                    let held = Held {
                        acquisition,
                        fence: grant.fences.first().copied().unwrap_or_default(),
                        lease: grant.lease,
                        continuation: Continuation::new(grant.sent, min_hold, skew),
                    };
                    (At::End, Step::Held(held))
                }
                Next::End(Ok(Ended::Completed(_))) => (At::End, Step::Completed),
                Next::End(Err(error)) => {
                    let left = self.asking.unsettled().cloned().map(withdrawal);
                    (At::End, Step::Refused(left, error.holder().cloned().map(Box::new)))
                }
                Next::Pause(Pause::Begin | Pause::End) => {
                    next = self.asking.paused(Paused::Done, now.moment());
                    continue;
                }
                Next::Pause(Pause::Join(..) | Pause::Reserve(..)) | Next::End(Ok(Ended::Waiting(_))) => {
                    unreachable!("the waits of the model take no turns, and it does not wait elsewhere")
                }
            };
            self.at = at;
            return step;
        }
    }

    /// Returns the owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.asking.acquisition().owner
    }
}

/// A lock that is held.
#[derive(Clone, Debug)]
pub struct Held {
    acquisition: Acquisition,
    fence: u64,
    lease: Lease,
    continuation: Continuation,
}

impl Held {
    /// Returns `true` while the holder considers it valid.
    #[must_use]
    pub fn is_valid(&self, now: Clocks) -> bool {
        !self.lease.deadline.has_passed(now.moment())
    }

    /// Returns the fence.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns the number of the acquisition.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.acquisition.numbers.own
    }

    /// Begins a release.
    #[must_use]
    pub fn release(mut self, now: Clocks) -> Operation {
        let (now, hold_until) = (now.moment(), self.continuation.hold_until);
        let sequence = self.continuation.next_sequence();
        let number = self.continuation.release_number(&self.acquisition, now);
        let release = Release { number, sequence, now, hold_until, hold: None, data: None, coalesces: true };
        Operation(What::Release(Releasing::all(&self.acquisition, release), self))
    }

    /// Begins a renewal.
    #[must_use]
    pub fn renew(mut self, lease: Duration, locks: &Locks, now: Clocks) -> Operation {
        let (now, sequence, target) = (now.moment(), self.continuation.next_sequence(), self.acquisition.target());
        let lease = locks.0.table.lease(target, now, now.deadline_after(lease), Some(self.lease));
        let acquisition = self.acquisition.clone();
        let renewing = Renewing { acquisition, sequence, now, lease, data: None };
        Operation(What::Renew(renewing, self))
    }

    /// Begins a completion.
    #[must_use]
    pub fn complete(mut self, window: Duration, now: Clocks) -> Operation {
        let now = now.moment();
        let last = self.continuation.release_number(&self.acquisition, now);
        let end = now.wall.saturating_add(window);
        Operation(What::Complete(Completing::new(&self.acquisition, last, now, end, &Outcome::WithoutResult)))
    }
}

/// An operation on keys or permits, other than an acquire.
#[derive(Clone, Debug)]
pub struct Operation(What);

#[derive(Clone, Debug)]
enum What {
    Withdraw(Box<Withdrawing>),
    Release(Releasing<'static>, Held),
    Renew(Renewing<'static>, Held),
    Complete(Completing<'static>),
    Free(Freeing),
    /// To the holder with this number.
    Ask(Coalescing, u64),
}

/// The effect of an operation.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value of it, on the stack")]
pub enum Done {
    /// Nothing is held any more.
    Freed,
    /// Nothing is held any more, and the holder was asked to run once more.
    Asked,
    /// The work was left to the holder with this number.
    Left(u64),
    /// The holder to ask does not have the key any more.
    Gone,
    /// The lock is held.
    Held(Held),
}

/// Calls the same method of each operation.
macro_rules! each {
    ($what:expr, $operation:ident => $call:expr) => {
        match $what {
            What::Withdraw($operation) => $call,
            What::Release($operation, _) => $call,
            What::Renew($operation, _) => $call,
            What::Complete($operation) => $call,
            What::Free($operation) => $call,
            What::Ask($operation, _) => $call,
        }
    };
}

impl Operation {
    /// Frees the key or the permits that an operator sees in this row, if anybody has them.
    #[must_use]
    pub fn free(key: &str, row: Item, now: Clocks) -> Option<Self> {
        let seen = Holder::read(row, now.moment()).ok().filter(|seen| !seen.has_released())?;
        Some(Self(What::Free(Freeing::by_force(key, "operator", &seen, now.moment()))))
    }

    /// Leaves the work of an acquire to the holder that has refused it.
    #[must_use]
    pub fn ask(key: &str, seen: &Holder, now: Clocks) -> Option<Self> {
        Some(Self(What::Ask(Coalescing::new(key, seen, now.moment())?, seen.number?)))
    }

    /// Returns the name of the operation, for requests that differ.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.0 {
            What::Withdraw(..) => "withdraw",
            What::Release(..) => "release",
            What::Renew(..) => "renew",
            What::Complete(..) => "complete",
            What::Free(..) => "free",
            What::Ask(..) => "ask",
        }
    }

    /// Returns the lock that stays held meanwhile.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        match &self.0 {
            What::Renew(_, held) => Some(held),
            _ => None,
        }
    }

    /// Returns the lock that the operation releases.
    #[must_use]
    pub fn released(&self) -> Option<&Held> {
        match &self.0 {
            What::Release(_, held) => Some(held),
            _ => None,
        }
    }

    /// Returns the requests that the operation sends together now.
    #[must_use]
    pub fn requests(&self, locks: &Locks, now: Clocks) -> Vec<Request> {
        each!(&self.0, operation => requests(&operation.request(&locks.0.table, now.moment())))
    }

    /// Takes note of the answer to the requests that the operation sends. Returns `None` if more requests follow.
    ///
    /// # Errors
    ///
    /// Fails as the operation does.
    pub fn answered(&mut self, reply: Reply, locks: &Locks, now: Clocks) -> Result<Option<Done>, Error> {
        let (table, now) = (&locks.0.table, now.moment());
        let answer = each!(&self.0, operation => answer(&operation.request(table, now), reply));
        Ok(match &mut self.0 {
            What::Withdraw(operation) => operation.on(table, answer, now)?.map(|()| Done::Freed),
            What::Release(operation, held) => match operation.on(table, answer, now)? {
                Some(Released::Freed { is_asked: true }) => Some(Done::Asked),
                Some(Released::NoTrace) => return Err(held.acquisition.error(Cause::Lost(None), table)),
                released => released.map(|_| Done::Freed),
            },
            What::Renew(operation, held) => match operation.on(table, answer, now)? {
                Some(Renewed::Extended) => Some(Done::Held(Held { lease: operation.lease, ..held.clone() })),
                Some(Renewed::Lost { error, .. }) => return Err(error),
                None => None,
            },
            What::Complete(operation) => operation.on(table, answer, now)?.map(|_| Done::Freed),
            What::Free(operation) => operation.on(table, answer, now)?.map(|_| Done::Freed),
            What::Ask(operation, number) => {
                operation.on(table, answer, now)?.map(|is_left| if is_left { Done::Left(*number) } else { Done::Gone })
            }
        })
    }
}
