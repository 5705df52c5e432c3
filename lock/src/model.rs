//! The protocol without a network and without clocks of its own: what the model in the tests drives. It is no part of the API,
//! and changes without notice.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use tokio::time::Instant;

use crate::clock::{Moment, monotonic};
use crate::error::{Cause, Error};
use crate::lock::asking::{Asking, Ended, Event, Step as Next};
use crate::lock::{Acquire, Locks};
use crate::row::{Acquisition, Answer, Release, Releasing, Withdrawing, Write};

/// A row, as DynamoDB has it.
pub type Item = HashMap<String, AttributeValue>;

/// A request to update one row, or one of a transaction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The key of the row.
    pub key: String,
    /// The texts, with their placeholders.
    pub update: Option<String>,
    /// The same.
    pub condition: Option<String>,
    /// What the placeholders for names stand for.
    pub names: HashMap<String, String>,
    /// What the placeholders for values stand for.
    pub values: HashMap<String, AttributeValue>,
}

/// What the table answers to the requests of a transaction, or to one.
#[derive(Clone, Debug)]
pub enum Reply {
    /// All were applied, to a row as it was before if there is one request.
    Applied(Option<Item>),
    /// None was applied: for each whose condition was not met, the row if there is one.
    Refused(Vec<Option<Option<Item>>>),
}

impl Reply {
    fn into_answer(self, keys: &[String]) -> Answer {
        match self {
            Self::Applied(before) => Answer::Applied(before.unwrap_or_default()),
            Self::Refused(rows) => Answer::refused_by(keys.iter().cloned().zip(rows)),
        }
    }
}

/// Returns the moment at which the wall clock of a host shows this time since the Unix epoch.
fn moment(wall: Duration) -> Moment {
    static START: OnceLock<Instant> = OnceLock::new();
    Moment { wall, monotonic: *START.get_or_init(monotonic) + wall.saturating_sub(EPOCH) }
}

/// The earliest time of a model.
pub const EPOCH: Duration = Duration::from_hours(500_000);

fn requests(write: &Write<'_>) -> Vec<Request> {
    let rendered = write.rendered().map(|(key, (update, condition, names, values))| Request {
        key: key.to_owned(),
        update,
        condition,
        names: names.unwrap_or_default(),
        values: values.unwrap_or_default(),
    });
    rendered.collect()
}

/// An acquire under way.
#[derive(Clone, Debug)]
pub struct Acquiring {
    asking: Asking<'static>,
    keeps: bool,
}

/// What an acquire does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these requests together.
    Send(Vec<Request>),
    /// Withdraws, and goes on.
    Withdraw(Withdrawal),
    /// Sleeps.
    Sleep(Duration),
    /// Has what it asked for.
    Held(Held),
    /// The work was done before.
    Completed,
    /// Ends without it. What was not answered is withdrawn in the background.
    Refused(Error, Option<Withdrawal>),
}

impl Acquiring {
    /// Starts an acquire, which the model keeps for its whole life.
    ///
    /// # Errors
    ///
    /// Fails as the acquire does.
    pub fn start(acquire: &'static Acquire, now: Duration) -> Result<Self, Error> {
        Ok(Self { asking: Asking::start(acquire, moment(now))?, keeps: acquire.takes_over })
    }

    /// Begins, or goes on after a sleep or a withdrawal.
    pub fn go_on(&mut self, now: Duration) -> Step {
        self.on(Event::Done, now)
    }

    /// Takes note of the answer to the requests that were sent last, if there was one.
    pub fn answered(&mut self, reply: Option<Reply>, now: Duration) -> Step {
        let acquisition = self.asking.acquisition();
        let unanswered = || acquisition.error(Cause::Unavailable, &self.asking.locks().0.table);
        let is_unanswered = reply.is_none();
        let answer = reply.map(|reply| reply.into_answer(acquisition.kind().all_keys())).ok_or_else(unanswered);
        self.on(Event::Answered { answer, is_unanswered }, now)
    }

    fn on(&mut self, event: Event, now: Duration) -> Step {
        let now = moment(now);
        let mut next = self.asking.on(event, now);
        loop {
            next = match next {
                Next::Send { .. } => return Step::Send(requests(&self.asking.request(None))),
                Next::Sleep(delay) => return Step::Sleep(delay),
                Next::Withdraw(acquisition, _) => return Step::Withdraw(self.withdrawal(acquisition, now)),
                Next::End(Ended::Acquired(acquisition, grant, _)) => {
                    return Step::Held(Held {
                        release: acquisition.release_number(now),
                        locks: self.asking.locks().clone(),
                        acquisition,
                        until: grant.lease.deadline.wall(),
                        fence: grant.fences.first().copied().unwrap_or_default(),
                        sequence: 0,
                    });
                }
                Next::End(Ended::Completed(_)) => return Step::Completed,
                Next::End(Ended::Refused(error)) => {
                    let unsettled = self.asking.unsettled().cloned();
                    return Step::Refused(error, unsettled.map(|acquisition| self.withdrawal(acquisition, now)));
                }
                // No other waiters.
                Next::Pause | Next::Resume | Next::Join(..) | Next::Reserve(..) | Next::End(Ended::Waiting(_)) => {
                    self.asking.on(Event::Done, now)
                }
            };
        }
    }

    fn withdrawal(&self, acquisition: Acquisition, now: Moment) -> Withdrawal {
        let withdrawing = Withdrawing::start(acquisition, self.keeps, now);
        Withdrawal { locks: self.asking.locks().clone(), withdrawing }
    }

    /// Returns the owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.asking.acquisition().owner
    }
}

/// A withdrawal under way.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    locks: Locks,
    withdrawing: Withdrawing,
}

impl Withdrawal {
    /// Returns the next request, or nothing after the last one.
    #[must_use]
    pub fn requests(&self, now: Duration) -> Vec<Request> {
        self.withdrawing.request(&self.locks.0.table, moment(now)).iter().flat_map(requests).collect()
    }

    /// Takes note of the answer.
    ///
    /// # Errors
    ///
    /// Fails if a row cannot be read.
    pub fn answered(&mut self, reply: Reply, now: Duration) -> Result<(), Error> {
        let keys: Vec<_> = self.requests(now).into_iter().map(|request| request.key).collect();
        self.withdrawing.on(&self.locks.0.table, reply.into_answer(&keys), moment(now))
    }

    /// Returns `true` if all was withdrawn.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.withdrawing.ended(&self.locks.0.table).is_ok()
    }
}

/// A lock that is held.
#[derive(Clone, Debug)]
pub struct Held {
    locks: Locks,
    acquisition: Acquisition,
    until: Duration,
    fence: u64,
    sequence: u64,
    release: u64,
}

impl Held {
    /// Returns `true` while the holder considers it valid.
    #[must_use]
    pub fn is_valid(&self, now: Duration) -> bool {
        now < self.until
    }

    /// Returns the fence.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Begins a release.
    #[must_use]
    pub fn release(&mut self, now: Duration) -> Freeing {
        self.sequence += 1;
        let release = Release {
            number: self.release,
            sequence: self.sequence,
            now: moment(now),
            hold_until: None,
            hold: None,
            data: None,
        };
        Freeing { held: self.clone(), releasing: Releasing::all(&self.acquisition, release) }
    }
}

/// A release under way.
#[derive(Clone, Debug)]
pub struct Freeing {
    held: Held,
    releasing: Releasing<'static>,
}

impl Freeing {
    /// Returns the next requests, or nothing after the last ones.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.releasing.request(&self.held.locks.0.table).iter().flat_map(requests).collect()
    }

    /// Takes note of the answer.
    pub fn answered(&mut self, reply: Reply) {
        let keys: Vec<_> = self.requests().into_iter().map(|request| request.key).collect();
        self.releasing.on(&self.held.locks.0.table, reply.into_answer(&keys));
    }

    /// Returns what the release has found.
    ///
    /// # Errors
    ///
    /// Fails as the release does.
    pub fn ended(self) -> Result<(), Error> {
        let table = &self.held.locks.0.table;
        let release = self.releasing.release();
        self.held.acquisition.released(table, self.releasing.ended()?, &release).map(drop)
    }
}
