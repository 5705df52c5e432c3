//! An acquire under way: its requests, its sleeps, and what its telemetry says.

use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tracing::{Instrument as _, Span};

use super::acquire::{Acquire, AroundPause};
use super::asking::{Answered, Asking, Ended, Step};
use super::attempt::{Attempt, Turn};
use super::held::Lock;
use super::locks::Locks;
use super::telemetry::{self, AcquireSpan};
use super::wait::{Pause, Paused, Places};
use crate::client::SdkAttempts;
use crate::clock::Moment;
use crate::error::{Cause, Error};
use crate::limits::DAY;
use crate::row::{Acquisition, Grant, Withdrawing};

impl Acquire {
    /// Makes one attempt, and tells the telemetry.
    pub(super) async fn attempt_once(mut self, turn: Option<Turn>) -> Result<Attempt, Error> {
        self.wait.get_or_insert_with(|| DAY.into());
        let settings = &self.locks.0;
        let checked = self.check();
        if !settings.enabled {
            return checked.and_then(|()| self.unlocked()).map(Attempt::Acquired);
        }
        let is_own = |turn: &Turn| turn.check(&settings.table, self.target.keys());
        let checked = checked.and_then(|()| turn.as_ref().map_or(Ok(()), is_own));
        checked.inspect_err(telemetry::record_refusal)?;
        match self.ask(|now| Asking::once(&self, turn.as_ref(), now), true).await? {
            Ended::Acquired(lock) => Ok(Attempt::Acquired(lock)),
            Ended::Waiting(turn) => Ok(Attempt::Waiting(turn)),
            Ended::Completed(_) => unreachable!("only a record is completed"),
        }
    }

    /// Acquires the lock. Borrows the options, so that a caller can fall back to [`unlocked`](Self::unlocked).
    pub(crate) async fn send(&self) -> Result<Lock, Error> {
        match self.begin().await? {
            Ended::Acquired(lock) => Ok(lock),
            Ended::Completed(_) => unreachable!("only a record is completed"),
            Ended::Waiting(_) => unreachable!("only `attempt_once` waits elsewhere"),
        }
    }

    /// Acquires the target. A record may show that its work was done before.
    pub(crate) async fn begin(&self) -> Result<Ended, Error> {
        let settings = &self.locks.0;
        let checked = self.check();
        if !settings.enabled {
            return checked.and_then(|()| self.unlocked()).map(Ended::Acquired);
        }
        // Validate first: the span must not carry an oversized key.
        checked.inspect_err(telemetry::record_refusal)?;
        self.ask(|now| Asking::start(self, now), self.waits()).await
    }

    /// Makes attempts until one succeeds or the wait ends, and tells the telemetry.
    async fn ask<'a>(
        &'a self,
        start: impl FnOnce(Moment) -> Result<Asking<'a>, Error>,
        waits: bool,
    ) -> Result<Ended, Error> {
        let clock = &self.locks.0.clock;
        let now = clock.now();
        let mut telemetry = AcquireSpan::start(self.name(), clock, now, waits);
        let span = telemetry.span().clone();
        let ended = match start(now) {
            Ok(asking) => Running { acquire: self, asking }.run(&mut telemetry).instrument(span).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(Ended::Acquired((acquisition, mut grant))) => {
                let taken_from = std::mem::take(&mut grant.taken_from);
                let lock = Lock::new(self.locks.clone(), acquisition, grant, telemetry.hold(), self.min_hold);
                telemetry.acquired(lock.owner(), lock.fence(), &taken_from);
                Ok(Ended::Acquired(lock))
            }
            Ok(Ended::Completed(record)) => {
                telemetry.completed();
                Ok(Ended::Completed(record))
            }
            Ok(Ended::Waiting(turn)) => {
                telemetry.postponed(turn.delay());
                Ok(Ended::Waiting(turn))
            }
            Err(error) => {
                telemetry.refused(&error, self.is_counted_later);
                Err(error)
            }
        }
    }
}

/// An acquire under way: sends what its loop says, and sleeps when it says so.
struct Running<'a> {
    acquire: &'a Acquire,
    asking: Asking<'a>,
}

impl Running<'_> {
    async fn run(mut self, telemetry: &mut AcquireSpan) -> Result<Ended<(Acquisition, Grant)>, Error> {
        let clock = &self.acquire.locks.0.clock;
        let mut step = self.asking.begin();
        loop {
            step = match step {
                Step::End(ended) => return ended,
                Step::Send { limit, is_new } => {
                    if is_new {
                        telemetry.attempt();
                    }
                    let answered = self.send(limit).await;
                    self.asking.answered(answered, clock.now())
                }
                Step::Withdraw(acquisition, limit) => {
                    Withdrawal::of(self.acquire, acquisition).send(limit).await;
                    self.asking.withdrawn(clock.now())
                }
                Step::Pause(pause) => {
                    let paused = self.pause(pause, telemetry).await;
                    self.asking.paused(paused, clock.now())
                }
            };
        }
    }

    async fn send(&self, limit: Duration) -> Answered {
        let attempts = if self.asking.asks_again() { SdkAttempts::leaving_prevented() } else { SdkAttempts::default() };
        let (table, request) = (&self.acquire.locks.0.table, self.asking.request());
        let answer = timeout(limit, attempts.record(table.write_once(&request))).await;
        let unanswered = |elapsed| self.asking.acquisition().error(Cause::Unavailable, table).with_source(elapsed);
        let answer = answer.unwrap_or_else(|elapsed: Elapsed| Err(unanswered(elapsed)));
        if answer.is_ok() {
            attempts.was_answered();
        }
        let (is_unanswered, wrong_clock) = (attempts.is_unanswered(), attempts.wrong_clock(table.clock_skew));
        Answered { answer, is_unanswered, wrong_clock }
    }

    async fn pause(&self, pause: Pause, telemetry: &mut AcquireSpan) -> Paused {
        match pause {
            Pause::Begin => {
                telemetry.sleep();
                self.around_pause(AroundPause::before).await
            }
            Pause::Sleep(delay) => {
                tokio::time::sleep(delay).await;
                Paused::Done
            }
            Pause::Join(keys, places) => self.join(keys, places, telemetry).await,
            Pause::Reserve(keys, places) => self.reserve(&keys, places).await,
            Pause::End => self.around_pause(AroundPause::after).await,
        }
    }

    /// Lets the caller do what it does around each pause because of another holder.
    async fn around_pause<'b>(&'b self, call: impl FnOnce(&'b dyn AroundPause) -> BoxFuture<'b, ()>) -> Paused {
        let waiting = self.asking.waiting();
        let around = self.acquire.around_pause.as_deref().filter(|_| waiting.is_held());
        let Some(around) = around else { return Paused::Done };
        let left = waiting.left(self.acquire.locks.0.clock.now());
        if timeout(left, call(around)).await.is_ok() { Paused::Done } else { Paused::TookTooLong }
    }

    async fn join(&self, keys: Vec<usize>, Places { limit, until }: Places, telemetry: &mut AcquireSpan) -> Paused {
        let (settings, names) = (&self.acquire.locks.0, self.acquire.target.keys());
        let now = settings.clock.now();
        let join = async |index: usize| {
            let joined =
                settings.table.join(&names[index], self.asking.waiting().queue(index), until, now, limit).await;
            (index, joined, settings.clock.now())
        };
        let joins = join_all(keys.into_iter().map(join)).await;
        for (index, joined, _) in &joins {
            let key = settings.table.place().printable_key(&names[*index]);
            match joined {
                Ok(Some(row)) => {
                    telemetry.joined(&key, row.queue.tail.saturating_sub(row.queue.head).saturating_sub(1));
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(key, ?error, "no place in the queue"),
            }
        }
        Paused::Joined(joins)
    }

    async fn reserve(&self, keys: &[usize], Places { limit, until }: Places) -> Paused {
        let (settings, names) = (&self.acquire.locks.0, self.acquire.target.keys());
        let (names, now) = (keys.iter().map(|index| &names[*index]), settings.clock.now());
        let answer = settings.table.reserve(self.asking.acquisition(), names, until, now, limit).await;
        if let Err(error) = &answer {
            tracing::debug!(key = self.acquire.name(), ?error, "not reserved");
        }
        Paused::Reserved(answer)
    }
}

/// What attempts may have taken, or may still take, is withdrawn if the acquire ends or is dropped.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(acquisition) = self.asking.unsettled() {
            drop(Withdrawal::of(self.acquire, acquisition.clone()));
        }
    }
}

/// A withdrawal that is to be sent. It is sent in the background if it is dropped.
struct Withdrawal {
    locks: Locks,
    withdrawing: Withdrawing,
    is_sent: bool,
}

impl Withdrawal {
    fn of(acquire: &Acquire, acquisition: Acquisition) -> Self {
        // The keys that a takeover has taken were the identity's before, and stay so.
        let withdrawing = Withdrawing::start(acquisition, acquire.takes_over);
        Self { locks: acquire.locks.clone(), withdrawing, is_sent: false }
    }

    /// Sends it now, for at most `limit`, because Lambda freezes background requests.
    async fn send(mut self, limit: Duration) {
        let Locks(settings) = &self.locks;
        let clock = || settings.clock.now();
        let withdrawal = Box::pin(settings.table.run(self.withdrawing.clone(), clock));
        let is_sent = matches!(timeout(limit, withdrawal).await, Ok(Ok(())));
        self.is_sent = is_sent;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        if !self.is_sent {
            let (locks, withdrawing) = (self.locks.clone(), self.withdrawing.clone());
            let key = withdrawing.name(locks.0.table.place());
            self.locks.0.background.send(key, Span::none(), async move {
                let clock = || locks.0.clock.now();
                locks.0.table.in_background().run(withdrawing, clock).await
            });
        }
    }
}
