//! The protocol without a network and without clocks of its own: what the model in the tests drives. It is no part of the API,
//! and changes without notice.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{Lease, Moment};
use crate::error::{Cause, Error};
use crate::holder::Holder;
use crate::lock::asking::{Answered, Asking, Ended, Event, Step as Next};
use crate::lock::{Acquire, Continuation, Locks};
use crate::row::{
    Acquisition, Outcome, RecordClaim, Release, Released, Renewed, SCRIPT, Script, Table, Target, answer, requests,
};
pub use crate::row::{Clocks, Item, Reply, Request};

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
}

/// Two print the same if they go on in the same way.
impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asking.live().fmt(f)
    }
}

/// Whether another has what an acquire asked for.
pub type IsHeld = bool;

/// What an acquire does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these requests together.
    Send(Vec<Request>),
    /// Withdraws, and goes on.
    Withdraw(Operation),
    /// Sleeps.
    Sleep,
    /// Has what it asked for.
    Held(Held),
    /// The work was done before.
    Completed,
    /// Ends without it, because another has it or for another reason. What was not answered is withdrawn in the background.
    Refused(Option<Operation>, IsHeld),
}

impl Acquiring {
    /// Starts an acquire, which the model keeps for its whole life.
    ///
    /// # Errors
    ///
    /// Fails as the acquire does.
    pub fn start(acquire: &'static Acquire, now: Clocks) -> Result<Self, Error> {
        Ok(Self { asking: Asking::start(acquire, now.moment())?, acquire })
    }

    /// Begins, or goes on after a sleep or a withdrawal.
    pub fn go_on(&mut self, now: Clocks) -> Step {
        self.on(Event::Done, now)
    }

    /// Takes note of the answer to the requests that were sent last, if there was one.
    pub fn answered(&mut self, reply: Option<Reply>, now: Clocks) -> Step {
        let acquisition = self.asking.acquisition();
        let unanswered = || acquisition.error(Cause::Unavailable, &self.acquire.locks.0.table);
        let is_unanswered = reply.is_none();
        let answer = reply.map(|reply| answer(&self.asking.request(), reply)).ok_or_else(unanswered);
        self.on(Event::Answered(Answered { answer, is_unanswered, wrong_clock: None }), now)
    }

    fn on(&mut self, event: Event, now: Clocks) -> Step {
        let moment = now.moment();
        let mut next = self.asking.on(event, moment);
        let withdrawal = |acquisition| Operation::new(What::Withdraw(acquisition, self.acquire.takes_over), now);
        loop {
            next = match next {
                Next::Send { .. } => return Step::Send(requests(&self.asking.request())),
                Next::Sleep(_) => return Step::Sleep,
                Next::Withdraw(acquisition, _) => return Step::Withdraw(withdrawal(acquisition)),
                Next::End(Ok(Ended::Acquired((acquisition, grant)))) => {
                    let (hold, skew) = (self.acquire.min_hold, self.acquire.locks.0.table.clock_skew);
                    return Step::Held(Held {
                        acquisition,
                        fence: grant.fences.first().copied().unwrap_or_default(),
                        lease: grant.lease,
                        continuation: Continuation::new(grant.sent, hold, skew),
                    });
                }
                Next::End(Ok(Ended::Completed(_))) => return Step::Completed,
                Next::End(Err(error)) => {
                    return Step::Refused(self.asking.unsettled().cloned().map(withdrawal), error.is_held());
                }
                // No other waiters.
                Next::Pause | Next::Resume | Next::Join(..) | Next::Reserve(..) | Next::End(Ok(Ended::Waiting(_))) => {
                    self.asking.on(Event::Done, moment)
                }
            };
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

    /// Returns the number of the acquisition in its place.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.acquisition.numbers.own
    }

    /// Begins a release.
    #[must_use]
    pub fn release(mut self, now: Clocks) -> Operation {
        self.continuation.next_sequence();
        self.continuation.release_number(&self.acquisition, now.moment());
        Operation::new(What::Release(self), now)
    }

    /// Begins a renewal.
    #[must_use]
    pub fn renew(mut self, lease: Duration, now: Clocks) -> Operation {
        self.continuation.next_sequence();
        Operation::new(What::Renew(self, lease), now)
    }

    /// Begins a completion.
    #[must_use]
    pub fn complete(mut self, window: Duration, now: Clocks) -> Operation {
        self.continuation.release_number(&self.acquisition, now.moment());
        Operation::new(What::Complete(self, window), now)
    }
}

/// What is done with one place or several beside acquiring them.
#[derive(Clone, Debug)]
pub struct Operation {
    what: What,
    started: Clocks,
    /// The answers so far, and when they came.
    answers: Vec<(Reply, Clocks)>,
}

#[derive(Clone, Debug)]
enum What {
    Withdraw(Acquisition, bool),
    Release(Held),
    Renew(Held, Duration),
    Complete(Held, Duration),
    Free(String, Box<Holder>),
    Ask(String, Box<Holder>),
}

/// What an operation does next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value of it, on the stack")]
pub enum Progress {
    /// Sends these requests together.
    Sends(Vec<Request>),
    /// It is done, if nothing went wrong.
    Ended(Result<Done, Error>),
}

/// What an operation has done.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value of it, on the stack")]
pub enum Done {
    /// Nothing is held any more.
    Freed,
    /// The same, and somebody was skipped meanwhile.
    Asked,
    /// The work was left to the holder with this number.
    Left(u64),
    /// There is no such holder any more.
    Gone,
    /// The lock is held.
    Held(Held),
}

impl Operation {
    fn new(what: What, started: Clocks) -> Self {
        Self { what, started, answers: Vec::new() }
    }

    /// Frees what an operator sees in this row, if anybody has it.
    #[must_use]
    pub fn free(key: &str, row: Item, now: Clocks) -> Option<Self> {
        let seen = Holder::read(row, now.moment()).ok().filter(|seen| !seen.has_released())?;
        Some(Self::new(What::Free(key.to_owned(), Box::new(seen)), now))
    }

    /// Leaves the work of this acquire, which was refused, to the holder in this row.
    #[must_use]
    pub fn ask(key: &str, row: Item, refused: &Acquiring, now: Clocks) -> Option<Self> {
        let mut seen = Holder::read(row, now.moment()).ok().filter(Holder::is_current)?;
        seen.refused = Some(refused.asking.acquisition().numbers.sent);
        Some(Self::new(What::Ask(key.to_owned(), Box::new(seen)), now))
    }

    /// Returns the name of what is done, for requests that differ.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.what {
            What::Withdraw(..) => "withdraw",
            What::Release(_) => "release",
            What::Renew(..) => "renew",
            What::Complete(..) => "complete",
            What::Free(..) => "free",
            What::Ask(..) => "ask",
        }
    }

    /// Returns the lock that stays held meanwhile.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        match &self.what {
            What::Renew(held, _) => Some(held),
            _ => None,
        }
    }

    /// Returns the lock that it releases.
    #[must_use]
    pub fn released(&self) -> Option<&Held> {
        match &self.what {
            What::Release(held) => Some(held),
            _ => None,
        }
    }

    /// Takes note of the answer to the requests that it sends now.
    pub fn answered(&mut self, reply: Reply, now: Clocks) {
        self.answers.push((reply, now));
    }

    /// Runs from the beginning, with the answers so far.
    #[must_use]
    pub fn progress(&self, locks: &Locks) -> Progress {
        let script = Script { answers: self.answers.clone().into(), now: self.started, sends: Vec::new() };
        SCRIPT.set(Some(script));
        let ended = pin!(self.run(locks)).poll(&mut Context::from_waker(Waker::noop()));
        let sends = SCRIPT.take().map(|script| script.sends);
        match ended {
            Poll::Ready(ended) => Progress::Ended(ended),
            Poll::Pending => Progress::Sends(sends.unwrap_or_default()),
        }
    }

    async fn run(&self, locks: &Locks) -> Result<Done, Error> {
        let (table, started) = (&locks.0.table, self.started.moment());
        let now = || SCRIPT.with_borrow(|script| script.as_ref().map_or(started, |script| script.now.moment()));
        match &self.what {
            What::Withdraw(acquisition, keeps) => table.withdraw(acquisition, now, *keeps).await?,
            What::Release(held) => return held.send_release(table, started).await,
            What::Renew(held, lease) => {
                let (acquisition, sequence) = (&held.acquisition, held.continuation.sequence);
                let lease =
                    table.lease(acquisition.target(), started, started.deadline_after(*lease), Some(held.lease));
                return match table.renew(acquisition, sequence, started, lease, None).await? {
                    Renewed::Extended => Ok(Done::Held(Held { lease, ..held.clone() })),
                    Renewed::Lost { error, .. } => Err(error),
                };
            }
            What::Complete(held, window) => {
                let last = held.continuation.release.unwrap_or_default();
                let end = started.wall.saturating_add(*window);
                table.complete(&held.acquisition, last, started, end, Outcome::WithoutResult).await?;
            }
            What::Free(key, seen) => drop(table.force_release(key, "operator", seen, started).await?),
            What::Ask(key, seen) => {
                let number = seen.number.unwrap_or_default();
                return Ok(if table.ask(key, seen, started).await? { Done::Left(number) } else { Done::Gone });
            }
        }
        Ok(Done::Freed)
    }
}

impl Held {
    async fn send_release(&self, table: &Table, now: Moment) -> Result<Done, Error> {
        let Continuation { hold_until, sequence, release } = self.continuation;
        let release = Release {
            number: release.unwrap_or_default(),
            sequence,
            now,
            hold_until,
            hold: None,
            data: None,
            coalesces: true,
        };
        match table.release(&self.acquisition, &release).await? {
            Released::Freed { is_asked: true } => Ok(Done::Asked),
            Released::Freed { .. } | Released::Completed(_) => Ok(Done::Freed),
            Released::NoTrace => Err(self.acquisition.error(Cause::Lost(None), table)),
        }
    }
}
