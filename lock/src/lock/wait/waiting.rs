//! `Waiting`: one wait, from its first attempt to its last. A refusal goes in; a pause, the next attempt or the end comes out.
//!
//! An acquire that does not wait has a wait of one attempt.

use std::time::Duration;

use super::backoff::Delays;
use super::settings::Wait;
use super::turn::{Memory, elsewhere, excess};
use super::turns::{Step, Turns};
use crate::clock::{Moment, millis, since_epoch};
use crate::error::{Error, ErrorKind};
use crate::holder::Holder;
use crate::limits::DAY;
use crate::queue::Queue;
use crate::random;
use crate::row::Rank;

/// How long a waiter waits for its place, and for a reservation.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of one wait.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    started: Moment,
    budget: Duration,
    max_attempts: u32,
    attempts: u32,
    delays: Delays,
    /// The places of this waiter, if waiters take turns.
    turns: Option<Turns>,
    /// The ranks of the present attempt, in the order of the keys.
    ranks: Vec<Rank>,
    /// The present attempt is the last one.
    is_last: bool,
    /// The caller sleeps elsewhere, after one attempt.
    is_elsewhere: bool,
    /// Why the last attempt was refused.
    refusal: Option<Error>,
    phase: Phase,
}

/// The part of a pause that the caller is asked for.
#[derive(Clone, Debug)]
enum Phase {
    Begins,
    BeforeJoin(Vec<usize>),
    Joining { sent: Moment },
    Reserving { time: Duration, sent: Moment },
    Sleeps,
    Ends,
}

/// What follows a refused attempt.
#[derive(Debug)]
pub(crate) enum Next {
    Pause(Pause),
    Ask,
    /// The caller sleeps elsewhere, for so long.
    Elsewhere(Duration),
    /// The wait is over.
    Over(Error),
}

/// A part of the pause before the next attempt.
#[derive(Clone, Debug)]
pub(crate) enum Pause {
    Begin,
    Sleep(Duration),
    /// To take places in the queues of these keys.
    Join(Vec<usize>, Places),
    /// To reserve these keys.
    Reserve(Vec<usize>, Places),
    End,
}

/// For how long a waiter asks for places or for a reservation, and until when they are meant to last, in milliseconds since
/// the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) limit: Duration,
    pub(crate) until: u64,
}

/// How a part of the pause ended.
#[derive(Debug)]
pub(crate) enum Paused {
    Done,
    TookTooLong,
    /// The answers, with when they came.
    Joined(Vec<(usize, Result<Option<Holder>, Error>, Moment)>),
    Reserved(Result<bool, Error>),
}

impl Waiting {
    /// Starts a wait that ends with its budget, or after `limit` if that is earlier. No wait is one attempt.
    pub(crate) fn start(wait: Option<Wait>, turns: Option<Turns>, limit: Option<Duration>, now: Moment) -> Self {
        let wait = wait.unwrap_or(Wait { budget: Duration::ZERO, max_attempts: 1, ..Wait::in_turn() });
        Self {
            started: now,
            budget: limit.map_or(wait.budget, |limit| wait.budget.min(limit)),
            max_attempts: wait.max_attempts,
            attempts: 0,
            delays: wait.backoff.unwrap_or_default().delays(),
            turns,
            ranks: Vec::new(),
            is_last: false,
            is_elsewhere: false,
            refusal: None,
            phase: Phase::Begins,
        }
    }

    /// Starts one attempt of a wait whose caller sleeps elsewhere, and which outlasts this process. It has begun at this time,
    /// with so many attempts, if this attempt is not its first one.
    pub(crate) fn elsewhere(
        wait: Option<Wait>,
        turns: Option<Turns>,
        before: Option<(Duration, u32)>,
        now: Moment,
    ) -> Self {
        let mut this = Self { is_elsewhere: true, ..Self::start(wait, turns, None, now) };
        if let Some((began, attempts)) = before {
            this.started = now.earlier(began.min(now.wall));
            this.attempts = attempts;
            this.delays.skip(attempts);
            this.is_last = this.left(now).is_zero() || this.is_next_last();
        }
        this
    }

    /// Begins an attempt: its ranks are those of this moment.
    pub(crate) fn begin(&mut self, now: Moment) {
        let ranks = |turns: &Turns| if self.is_last { turns.last_ranks(now) } else { turns.ranks(now) };
        self.ranks = self.turns.as_ref().map(ranks).unwrap_or_default();
    }

    /// Returns the ranks of the present attempt, in the order of the keys.
    pub(crate) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Takes note of the index and the holder of each key that has refused an attempt of `owner`, which took `round_trip`.
    pub(crate) fn see<'a>(
        &mut self,
        refused: impl Iterator<Item = (usize, &'a Holder)>,
        owner: &str,
        clock_skew: Duration,
        now: Moment,
        round_trip: Duration,
    ) {
        if let Some(turns) = &mut self.turns {
            turns.see(refused, owner, clock_skew, now, round_trip);
        }
    }

    /// Takes note of a refusal, and returns what follows.
    pub(crate) fn refused(&mut self, error: Error, now: Moment) -> Next {
        let goes_on = self.count(now) && error.is_retryable();
        if goes_on && !self.is_elsewhere {
            self.refusal = Some(error);
            self.phase = Phase::Begins;
            return Next::Pause(Pause::Begin);
        }
        if goes_on && !self.is_last {
            self.refusal = Some(error);
            return self.plan(now);
        }
        self.is_last = true;
        // If the key was free and left to other waiters, asks once more: the last attempt leaves it to nobody.
        let is_left_to_others = self.ranks.iter().any(Rank::is_conditional)
            && error.holder().is_some()
            && self.turns.as_ref().is_some_and(Turns::is_free);
        if is_left_to_others && !self.is_elsewhere {
            self.refusal = Some(error);
            return Next::Ask;
        }
        Next::Over(error.with_attempts(self.attempts))
    }

    /// Counts an attempt that was in vain. Returns `true` if the next one follows at once.
    pub(crate) fn follows_at_once(&mut self, now: Moment) -> bool {
        let may_ask = !self.is_elsewhere && !self.is_last;
        if may_ask {
            self.is_last = !self.count(now);
        }
        may_ask
    }

    /// Takes note of how a part of the pause ended, and returns what follows.
    pub(crate) fn paused(&mut self, paused: Paused, now: Moment) -> Next {
        match (std::mem::replace(&mut self.phase, Phase::Ends), paused) {
            (_, Paused::TookTooLong) => self.refusal().map_or(Next::Ask, Next::Over),
            (Phase::Begins, _) => self.plan(now),
            (Phase::BeforeJoin(keys), _) => self.join(keys, now),
            (Phase::Joining { sent }, Paused::Joined(joins)) => self.joined(joins, sent, now),
            (Phase::Reserving { time, sent }, Paused::Reserved(answer)) => {
                if let Some(turns) = &mut self.turns {
                    turns.reserved(matches!(answer, Ok(true)), time, sent, now);
                }
                // Without the reservation, the waiter asks when the last of the keys should be free.
                self.plan(now)
            }
            (Phase::Sleeps, _) => Next::Pause(Pause::End),
            (Phase::Ends, Paused::Done) => Next::Ask,
            (phase, paused) => unreachable!("{paused:?} is no end of {phase:?}"),
        }
    }

    /// Returns why the last attempt was refused, after how many attempts.
    pub(crate) fn refusal(&self) -> Option<Error> {
        Some(self.refusal.clone()?.with_attempts(self.attempts))
    }

    /// Returns `true` if another holder has refused the last attempt.
    pub(crate) fn is_held(&self) -> bool {
        self.refusal.as_ref().is_some_and(|error| error.holder().is_some())
    }

    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns what is left of the wait.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        self.budget.saturating_sub(now.since(self.started))
    }

    /// Returns the number of the present attempt.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempts.saturating_add(1)
    }

    /// Returns when the wait began, and how many attempts it has made.
    pub(crate) fn so_far(&self) -> (Moment, u32) {
        (self.started, self.attempts)
    }

    /// Returns the queue of a key, as it was seen last.
    pub(crate) fn queue(&self, index: usize) -> Queue {
        self.turns.as_ref().map(|turns| turns.queue(index)).unwrap_or_default()
    }

    /// Returns the memories that a waiter takes along to its next attempt, in the order of the keys.
    pub(crate) fn memories(&self) -> impl Iterator<Item = Memory> {
        self.turns.iter().flat_map(Turns::memories).chain(std::iter::repeat_with(Memory::default))
    }

    /// Returns by how much a request of this time took longer than the fastest one.
    pub(crate) fn excess(&self, round_trip: Duration) -> Duration {
        excess(round_trip, self.turns.as_ref().and_then(Turns::round_trip))
    }

    /// Returns what the next steps depend on, if the wait has no budget and takes no turns.
    #[cfg(feature = "model")]
    pub(crate) fn live(&self) -> impl std::fmt::Debug + '_ {
        (&self.delays, self.attempts, self.is_last)
    }

    /// Counts an attempt. Returns `false` if it was the last one.
    fn count(&mut self, now: Moment) -> bool {
        self.attempts = self.attempts.saturating_add(1);
        self.attempts < self.max_attempts && !self.left(now).is_zero()
    }

    fn is_next_last(&self) -> bool {
        self.attempt() >= self.max_attempts
    }

    /// Plans the next attempt: when this waiter's turn comes, or after the delay of the backoff. A waiter takes a place in the
    /// queue first, if it has none yet.
    fn plan(&mut self, now: Moment) -> Next {
        let (kind, holder_until) = match &self.refusal {
            Some(error) => (error.kind(), error.holder().map(|holder| since_epoch(holder.until()))),
            None => (ErrorKind::Unavailable, None),
        };
        if let Some(turns) = self.turns.as_mut().filter(|_| kind == ErrorKind::Conflict) {
            let delay = turns.conflicted(random::unit());
            return self.sleep(delay, now);
        }
        if kind == ErrorKind::Throttled {
            // The attempt counts as three, so that the requests of the holder are answered.
            self.delays.skip(2);
            // A place costs a write, of which the partition has too few.
            self.turns.take_if(|turns| !turns.has_place());
        }
        if let Some(turns) = self.turns.as_ref().filter(|_| holder_until.is_some()) {
            let left = self.left(now);
            match turns.next(now, random::unit()) {
                Step::BackOff => {}
                Step::Ask(delay) => return self.sleep(delay, now),
                Step::Join { keys, delay } => {
                    self.phase = Phase::BeforeJoin(keys);
                    return Next::Pause(Pause::Sleep(delay.min(left)));
                }
                Step::Reserve { .. } if left.is_zero() => return self.sleep(Duration::ZERO, now),
                Step::Reserve { keys, time } => {
                    let time = time.min(left);
                    self.phase = Phase::Reserving { time, sent: now };
                    return Next::Pause(Pause::Reserve(keys, Places::until(time, left, now)));
                }
            }
        }
        let delay = self.delays.next(holder_until.map(|until| until.saturating_sub(now.wall)));
        self.sleep(delay, now)
    }

    /// Sleeps until the next attempt, or lets the caller do so. The last attempt comes when the budget ends, and not after it.
    fn sleep(&mut self, delay: Duration, now: Moment) -> Next {
        let left = self.left(now);
        if self.is_elsewhere {
            let delay = match self.turns.as_ref().filter(|turns| turns.has_place() && self.is_held()) {
                Some(turns) => turns.delay_elsewhere(now),
                None => elsewhere(delay),
            };
            return Next::Elsewhere(delay.min(left));
        }
        self.is_last = delay >= left || self.is_next_last();
        self.phase = Phase::Sleeps;
        Next::Pause(Pause::Sleep(delay.min(left)))
    }

    fn join(&mut self, keys: Vec<usize>, now: Moment) -> Next {
        let left = self.left(now).min(DAY);
        if left.is_zero() {
            return self.sleep(Duration::ZERO, now);
        }
        self.phase = Phase::Joining { sent: now };
        Next::Pause(Pause::Join(keys, Places::until(left, left, now)))
    }

    /// Asks again without a place if it did not get all: at once if a row is gone. A waiter that may not join does without
    /// places.
    fn joined(
        &mut self,
        joins: Vec<(usize, Result<Option<Holder>, Error>, Moment)>,
        sent: Moment,
        now: Moment,
    ) -> Next {
        let (mut delay, mut may_not_join) = (None, false);
        let Some(turns) = self.turns.as_mut() else { return self.plan(now) };
        for (index, joined, answered) in joins {
            match joined {
                Ok(Some(holder)) => turns.joined(index, &holder, answered, answered.since(sent)),
                Ok(None) => delay = delay.max(Some(Duration::ZERO)),
                Err(error) if error.is_retryable() => {
                    delay = delay.max(Some(turns.join_failed(index, random::unit())));
                }
                Err(_) => may_not_join = true,
            }
        }
        if may_not_join {
            self.turns = None;
        }
        match delay {
            Some(delay) => self.sleep(delay, now),
            None => self.plan(now),
        }
    }
}

impl Places {
    fn until(time: Duration, left: Duration, now: Moment) -> Self {
        Self { limit: left.min(JOIN_TIMEOUT), until: millis(now.wall.saturating_add(time)) }
    }
}
