//! `Asking`: the loop of an acquire, without its requests and its sleeps. An event goes in, and the next step comes out.

use std::time::Duration;

use super::acquire::Acquire;
use super::attempt::Turn;
use super::held::Lock;
use super::wait::{self, Memory, Step as InTurn, Turns, Waiting};
use crate::clock::{Lease, Moment, Offset, millis, since_epoch};
use crate::error::{Cause, Error, ErrorKind};
use crate::holder::Holder;
use crate::limits::{DAY, TIME_TO_ANSWER};
use crate::queue::Queue;
use crate::random;
use crate::row::{Acquisition, Answer, Claim, Claimed, Grant, Joined, Rank, Write};

/// How often an attempt is adapted to rows that others change meanwhile.
const ADAPTATIONS: u32 = 4;
/// How long a waiter waits for its place, and for a reservation.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The next step of an acquire.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value of it, on the stack")]
pub(crate) enum Step {
    /// To send the [request](Asking::request), for so long. It begins an attempt, or adapts it.
    Send {
        limit: Duration,
        is_new: bool,
    },
    /// To withdraw what attempts may have taken, for so long and then in the background.
    Withdraw(Acquisition, Duration),
    /// A pause begins.
    Pause,
    Sleep(Duration),
    /// To take places in the queues of these keys.
    Join(Vec<usize>, Places),
    /// To reserve these keys.
    Reserve(Vec<usize>, Places),
    /// The pause has ended.
    Resume,
    End(Granted),
}

/// For how long a waiter asks for places or for a reservation, and until when they are meant to last, in milliseconds since
/// the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) limit: Duration,
    pub(crate) until: u64,
}

/// An event, which the caller reports to the acquire.
#[derive(Debug)]
pub(crate) enum Event {
    Began,
    Answered(Answered),
    /// The answers, with when they came.
    Joined(Vec<(usize, Result<Option<Joined>, Error>, Moment)>),
    Reserved(Result<bool, Error>),
    /// The caller has done the step.
    Done,
    /// The step took too long.
    TookTooLong,
}

/// The answer to an attempt.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Result<Answer, Error>,
    /// An attempt of the SDK was not answered: it may still arrive.
    pub(crate) is_unanswered: bool,
    /// This host's clock is off by more than the clock skew.
    pub(crate) wrong_clock: Option<Offset>,
}

/// The result of an acquire that was not refused.
#[derive(Clone, Debug)]
pub(crate) enum Ended<T = Lock> {
    Acquired(T),
    /// The work was done before: this record has its result.
    Completed(Box<Holder>),
    /// The wait goes on elsewhere.
    Waiting(Turn),
}

type Granted = Result<Ended<(Acquisition, Grant)>, Error>;

/// The attempts of one acquire.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is known apart from the others")]
pub(crate) struct Asking<'a> {
    acquire: &'a Acquire,
    started: Moment,
    acquisition: Acquisition,
    /// An attempt may have taken the key, or may still take it.
    may_have_key: bool,
    is_unanswered: bool,
    /// The attempts, by their first number. A later one may find that an earlier one was applied and its answer lost: then
    /// the lease of that earlier one counts.
    sent: Vec<(u64, Moment, Lease)>,
    delays: Waiting,
    /// The places of this waiter, if waiters take turns.
    turns: Option<Turns>,
    /// The present attempt is the last one of the wait.
    is_last: bool,
    /// The ranks of the present attempt, in the order of the keys.
    ranks: Vec<Rank>,
    now: Moment,
    lease: Lease,
    number: u64,
    adaptations: u32,
    /// The caller waits elsewhere.
    is_once: bool,
    /// Why the last attempt was refused.
    refusal: Option<Error>,
    phase: Phase,
}

/// The subject of the next event.
#[derive(Clone, Debug)]
enum Phase {
    Asked,
    Withdrawing(AfterWithdrawal),
    Pausing,
    ToJoin(Vec<usize>),
    Joining { sent: Moment },
    Reserving { time: Duration, sent: Moment },
    Sleeping,
    Resuming,
}

#[derive(Clone, Debug)]
enum AfterWithdrawal {
    /// The attempt was in vain. `asks_at_once`: it does not say who holds the key.
    Anew {
        asks_at_once: bool,
    },
    End(Box<Granted>),
}

impl<'a> Asking<'a> {
    pub(crate) fn start(acquire: &'a Acquire, now: Moment) -> Result<Self, Error> {
        let limit = acquire.time_left(now).map(|left| left.saturating_sub(TIME_TO_ANSWER));
        Ok(Self {
            acquire,
            started: now,
            acquisition: acquire.acquisition()?,
            may_have_key: false,
            is_unanswered: false,
            sent: Vec::new(),
            delays: Waiting::start(acquire.wait, limit),
            turns: acquire.turns(),
            is_last: false,
            ranks: Vec::new(),
            now,
            lease: acquire.lease_from(now)?,
            number: 0,
            adaptations: 0,
            is_once: false,
            refusal: None,
            phase: Phase::Resuming,
        })
    }

    /// Makes one attempt, and continues after those of other processes, if there were any.
    pub(super) fn once(mut self, turn: Option<&Turn>) -> Self {
        let now = self.now;
        self.is_once = true;
        // The wait outlasts the deadline of this process.
        self.delays = Waiting::start(self.acquire.wait, None);
        if let Some(turn) = turn {
            self.started = now.earlier(Duration::from_millis(turn.began).min(now.wall));
            self.delays.go_on(turn.attempts);
            self.is_last = self.delays.is_last(now.since(self.started));
        }
        if let Some(turns) = &mut self.turns {
            let memories = turn.into_iter().flat_map(Turn::memories);
            *turns = Turns::elsewhere(&self.acquire.target, memories, now);
        }
        self
    }

    /// Takes note of what has happened, and returns the next step.
    pub(crate) fn on(&mut self, event: Event, now: Moment) -> Step {
        match (std::mem::replace(&mut self.phase, Phase::Resuming), event) {
            (Phase::Asked, Event::Answered(answered)) => self.answered(answered, now),
            (Phase::Withdrawing(AfterWithdrawal::End(ended)), _) => Step::End(*ended),
            (Phase::Withdrawing(AfterWithdrawal::Anew { asks_at_once }), _) => self.anew(asks_at_once, now),
            (Phase::Pausing, Event::Done) => self.plan(now),
            (Phase::ToJoin(keys), _) => self.join(keys, now),
            (Phase::Joining { sent }, Event::Joined(joins)) => self.joined(joins, sent, now),
            (Phase::Reserving { time, sent }, Event::Reserved(answer)) => self.reserved(&answer, time, sent, now),
            (Phase::Sleeping, _) => {
                self.phase = Phase::Resuming;
                Step::Resume
            }
            (Phase::Pausing | Phase::Resuming, Event::TookTooLong) => self.refuse(now),
            // The wall clock may have passed the deadline while the timer slept.
            (Phase::Resuming, Event::Done) if self.acquire.lease_from(now).is_err() => self.refuse(now),
            _ => self.ask(now),
        }
    }

    /// Returns the present attempt.
    pub(crate) fn request(&self) -> Write<'_> {
        self.acquisition.attempt(&self.acquire.locks.0.table, &self.claim(), self.number)
    }

    /// Returns `true` if the present attempt is sent again after it was prevented.
    pub(super) fn asks_again(&self) -> bool {
        !self.is_last && self.acquire.waits()
    }

    /// Returns what attempts may have taken, or may still take.
    pub(crate) fn unsettled(&self) -> Option<&Acquisition> {
        self.may_have_key.then_some(&self.acquisition)
    }

    /// Returns what the next steps depend on, if the wait has no budget. What an attempt has left behind does not count.
    #[cfg(feature = "model")]
    pub(crate) fn live(&self) -> impl std::fmt::Debug + '_ {
        let attempt = (self.now, self.lease, self.number, self.adaptations);
        let attempt = matches!(self.phase, Phase::Asked).then_some(attempt);
        let then = match &self.phase {
            Phase::Withdrawing(AfterWithdrawal::Anew { asks_at_once }) => Some(Some(*asks_at_once)),
            Phase::Withdrawing(AfterWithdrawal::End(_)) => Some(None),
            _ => None,
        };
        (
            &self.acquisition,
            self.may_have_key,
            self.is_unanswered,
            &self.sent,
            &self.delays,
            self.is_last,
            attempt,
            then,
        )
    }

    pub(crate) fn acquisition(&self) -> &Acquisition {
        &self.acquisition
    }

    /// Returns why the last attempt was refused.
    pub(super) fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// Returns the queue of a key, as it was seen last.
    pub(super) fn queue(&self, index: usize) -> Queue {
        self.turns.as_ref().map(|turns| turns.queue(index)).unwrap_or_default()
    }

    /// Returns what is left of the wait.
    pub(super) fn left(&self, now: Moment) -> Duration {
        self.delays.left(now.since(self.started))
    }

    fn claim(&self) -> Claim<'_> {
        claim(self.acquire, self.now, self.lease, &self.ranks)
    }

    /// Begins an attempt.
    fn ask(&mut self, now: Moment) -> Step {
        self.lease = match self.acquire.lease_from(now) {
            Ok(lease) => lease,
            Err(error) => return self.finish(error, now),
        };
        self.acquisition.lease_end = self.lease.end;
        self.now = now;
        self.adaptations = 0;
        self.sent.retain(|(_, _, lease)| !lease.deadline.has_passed(now));
        let ranks = |turns: &Turns| if self.is_last { turns.last_ranks(now) } else { turns.ranks(now) };
        self.ranks = self.turns.as_ref().map(ranks).unwrap_or_default();
        self.may_have_key = true;
        self.send(now)
    }

    /// Sends the attempt, with a number of its own.
    fn send(&mut self, now: Moment) -> Step {
        self.number = match self.acquisition.next_number(&self.acquire.locks.0.table, self.now) {
            Ok(number) => number,
            Err(error) => {
                // Nothing was sent with this number.
                self.may_have_key = self.is_unanswered;
                return self.finish(error, now);
            }
        };
        let is_new = self.adaptations == 0;
        if is_new {
            self.sent.push((self.number, self.now, self.lease));
        }
        self.adaptations += 1;
        self.phase = Phase::Asked;
        let limit = self.claim().time_limit().saturating_sub(now.since(self.now));
        Step::Send { limit, is_new }
    }

    fn answered(&mut self, answered: Answered, now: Moment) -> Step {
        let Answered { answer, is_unanswered, wrong_clock } = answered;
        let table = &self.acquire.locks.0.table;
        if is_unanswered {
            self.is_unanswered = true;
            self.acquisition.numbers.unanswered = self.number;
        }
        if let Some(offset) = wrong_clock {
            let before = answer.ok().and_then(Answer::into_applied);
            self.may_have_key = before.is_some() || self.is_unanswered;
            self.acquisition.mistaken(offset, before);
            let error = self.acquisition.error(Cause::ClockSkew(offset, table.clock_skew), table);
            return self.give_up(Err(error), now);
        }
        let claim = claim(self.acquire, self.now, self.lease, &self.ranks);
        let claimed = answer.and_then(|answer| self.acquisition.answered(table, &claim, self.number, answer));
        let claimed = match claimed {
            Ok(None) if self.adaptations < ADAPTATIONS => return self.send(now),
            // The rows have changed each time.
            Ok(None) => Err(self.acquisition.error(Cause::Conflict, table)),
            Ok(Some(claimed)) => Ok(claimed),
            Err(error) => Err(error),
        };
        let round_trip = now.since(self.now);
        if let (Some(turns), Err(error)) = (&mut self.turns, &claimed)
            && error.holder().is_some()
        {
            let keys = self.acquire.target.keys();
            let index = |shown: &str| keys.iter().position(|key| table.place().row_key(key) == shown);
            let refused = error.holders().filter_map(|(key, holder)| Some((index(key)?, holder)));
            turns.see(refused, &self.acquisition.owner, table.clock_skew, now, round_trip);
        }
        let is_taken = matches!(claimed, Ok(Claimed::Granted(_) | Claimed::InPart));
        self.may_have_key = is_taken || self.is_unanswered;
        match claimed {
            Ok(Claimed::Granted(grant)) => self.granted(grant, round_trip, now),
            Ok(Claimed::InPart) => {
                tracing::debug!(key = self.acquire.name(), "acquired by an earlier attempt, and lost in part since");
                self.withdraw(AfterWithdrawal::Anew { asks_at_once: true }, now)
            }
            Ok(Claimed::Completed(record)) => self.give_up(Ok(Ended::Completed(record)), now),
            Err(error) => self.refused(error, now),
        }
    }

    /// The lease of the attempt that was applied counts. If its answer was lost, a retry or a later attempt has found it. An
    /// answer after that lease is in vain, and so is one without a fence, with which a lock would count as one that is not
    /// enforced.
    fn granted(&mut self, grant: Grant, round_trip: Duration, now: Moment) -> Step {
        let own = self.acquisition.numbers.own;
        let is_valid =
            |(_, _, lease): &&(u64, Moment, Lease)| !grant.fences.is_empty() && !lease.deadline.has_passed(now);
        let attempt = self.sent.iter().rev().find(|(first, ..)| *first <= own).filter(is_valid);
        let Some((first, sent, lease)) = attempt.copied() else {
            return self.withdraw(AfterWithdrawal::Anew { asks_at_once: false }, now);
        };
        let excess = if self.sent.last().is_some_and(|(last, ..)| *last == first) {
            wait::excess(round_trip, self.turns.as_ref().and_then(Turns::round_trip))
        } else {
            tracing::debug!(key = self.acquire.name(), "acquired by an earlier attempt, whose answer was lost");
            Duration::ZERO
        };
        self.may_have_key = false;
        let grant = Grant { sent, lease, excess, ..grant };
        Step::End(Ok(Ended::Acquired((self.acquisition.clone(), grant))))
    }

    /// Withdraws all attempts so far. The numbers of later ones are larger.
    fn withdraw(&mut self, then: AfterWithdrawal, now: Moment) -> Step {
        self.phase = Phase::Withdrawing(then);
        self.may_have_key = false;
        self.is_unanswered = false;
        self.sent.clear();
        Step::Withdraw(self.acquisition.clone(), self.acquire.time_to_withdraw(now))
    }

    /// Ends without the lock, and makes sure that no late attempt takes it.
    fn give_up(&mut self, ended: Granted, now: Moment) -> Step {
        if self.may_have_key { self.withdraw(AfterWithdrawal::End(Box::new(ended)), now) } else { Step::End(ended) }
    }

    /// What the attempts have taken was in vain, and is withdrawn.
    fn anew(&mut self, asks_at_once: bool, now: Moment) -> Step {
        let may_ask = !self.is_once && !self.is_last && self.acquire.waits();
        if asks_at_once && may_ask && self.acquire.lease_from(now).is_ok() {
            self.is_last = !self.delays.count(now.since(self.started));
            return self.ask(now);
        }
        self.refused(self.acquisition.error(Cause::Unavailable, &self.acquire.locks.0.table), now)
    }

    fn refused(&mut self, error: Error, now: Moment) -> Step {
        let waited = now.since(self.started);
        if self.is_once {
            let is_over = !error.is_retryable() || self.is_last || !self.delays.count(waited);
            if is_over {
                let is_more = !error.is_retryable() || self.is_last;
                let made = self.delays.attempts().saturating_add(u32::from(is_more));
                return self.finish(error.with_attempts(made), now);
            }
            tracing::debug!(key = self.acquire.name(), ?error, "refused");
            self.refusal = Some(error);
            return self.plan(now);
        }
        if !error.is_retryable() {
            return self.finish(error, now);
        }
        tracing::debug!(key = self.acquire.name(), ?error, "refused");
        if self.delays.count(waited) {
            self.refusal = Some(error);
            self.phase = Phase::Pausing;
            return Step::Pause;
        }
        // If the key was free and left to other waiters, asks once more: the last attempt leaves it to nobody.
        self.is_last = true;
        let is_left_to_others = self.ranks.iter().any(Rank::is_conditional)
            && error.holder().is_some()
            && self.turns.as_ref().is_some_and(Turns::is_free);
        if is_left_to_others && self.acquire.lease_from(now).is_ok() {
            return self.ask(now);
        }
        let attempts = self.delays.attempts();
        self.finish(error.with_attempts(attempts), now)
    }

    /// Ends the wait with the last refusal.
    fn refuse(&mut self, now: Moment) -> Step {
        let attempts = self.delays.attempts();
        match self.refusal.take() {
            Some(error) => self.finish(error.with_attempts(attempts), now),
            None => self.finish(self.acquisition.error(Cause::Unavailable, &self.acquire.locks.0.table), now),
        }
    }

    /// Withdraws now if DynamoDB answered the last attempt, and otherwise in the background.
    fn finish(&mut self, error: Error, now: Moment) -> Step {
        if error.is_answered() && error.kind() != ErrorKind::Invalid {
            return self.give_up(Err(error), now);
        }
        Step::End(Err(error))
    }

    /// Plans the next attempt: when this waiter's turn comes, or after the delay of the backoff. A waiter takes a place in the
    /// queue first, if it has none yet.
    fn plan(&mut self, now: Moment) -> Step {
        let (kind, holder_until) = match &self.refusal {
            Some(error) => (error.kind(), error.holder().map(|holder| since_epoch(holder.until()))),
            None => (ErrorKind::Unavailable, None),
        };
        if let Some(turns) = self.turns.as_mut().filter(|_| kind == ErrorKind::Conflict) {
            let delay = turns.conflicted(random::unit());
            return self.sleep(delay, now);
        }
        if kind == ErrorKind::Throttled {
            self.delays.throttled();
            // A place costs a write, of which the partition has too few.
            self.turns.take_if(|turns| !turns.has_place());
        }
        if let Some(turns) = self.turns.as_ref().filter(|_| holder_until.is_some()) {
            let left = self.left(now);
            match turns.next(now, random::unit()) {
                InTurn::BackOff => {}
                InTurn::Ask(delay) => return self.sleep(delay, now),
                InTurn::Join { keys, delay } => {
                    self.phase = Phase::ToJoin(keys);
                    return Step::Sleep(delay.min(left));
                }
                InTurn::Reserve { .. } if left.is_zero() => return self.sleep(Duration::ZERO, now),
                InTurn::Reserve { keys, time } => {
                    let time = time.min(left);
                    self.phase = Phase::Reserving { time, sent: now };
                    let until = millis(now.wall.saturating_add(time));
                    return Step::Reserve(keys, Places { limit: left.min(JOIN_TIMEOUT), until });
                }
            }
        }
        let delay = self.delays.next(holder_until.map(|until| until.saturating_sub(now.wall)));
        self.sleep(delay, now)
    }

    fn sleep(&mut self, delay: Duration, now: Moment) -> Step {
        if self.is_once {
            return self.postpone(delay, now);
        }
        let (delay, is_last) = self.delays.limit(delay, now.since(self.started));
        self.is_last = is_last;
        self.phase = Phase::Sleeping;
        Step::Sleep(delay)
    }

    /// Leaves the sleep to the caller.
    fn postpone(&mut self, delay: Duration, now: Moment) -> Step {
        let is_held = self.refusal.as_ref().is_some_and(|error| error.holder().is_some());
        let delay = match self.turns.as_ref().filter(|turns| turns.has_place() && is_held) {
            Some(turns) => turns.delay_elsewhere(now),
            None => wait::elsewhere(delay),
        };
        let (delay, _) = self.delays.limit(delay, now.since(self.started));
        let memories = self.turns.iter().flat_map(Turns::memories).chain(std::iter::repeat_with(Memory::default));
        let keys = self.acquire.target.keys().iter().cloned().zip(memories);
        let table = &self.acquire.locks.0.table;
        let turn = Turn::new(table, self.started.millis(), self.delays.attempts(), delay, keys);
        self.give_up(Ok(Ended::Waiting(turn)), now)
    }

    fn join(&mut self, keys: Vec<usize>, now: Moment) -> Step {
        let left = self.left(now).min(DAY);
        if left.is_zero() {
            return self.sleep(Duration::ZERO, now);
        }
        self.phase = Phase::Joining { sent: now };
        let until = millis(now.wall.saturating_add(left));
        Step::Join(keys, Places { limit: left.min(JOIN_TIMEOUT), until })
    }

    /// Asks again without a place if it did not get all: at once if a row is gone. A waiter that may not join does without
    /// places.
    fn joined(
        &mut self,
        joins: Vec<(usize, Result<Option<Joined>, Error>, Moment)>,
        sent: Moment,
        now: Moment,
    ) -> Step {
        let (mut delay, mut may_not_join) = (None, false);
        let Some(turns) = self.turns.as_mut() else { return self.plan(now) };
        for (index, joined, answered) in joins {
            match joined {
                Ok(Some(Joined { place, holder })) => {
                    turns.joined(index, place, &holder, answered, answered.since(sent));
                }
                Ok(None) => delay = delay.max(Some(Duration::ZERO)),
                Err(error) => {
                    if error.is_retryable() {
                        delay = delay.max(Some(turns.join_failed(index, random::unit())));
                    }
                    may_not_join |= !error.is_retryable();
                }
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

    /// Without the reservation, the waiter asks when the last of the keys should be free.
    fn reserved(&mut self, answer: &Result<bool, Error>, time: Duration, sent: Moment, now: Moment) -> Step {
        if let Some(turns) = &mut self.turns {
            turns.reserved(matches!(answer, Ok(true)), time, sent, now);
        }
        self.plan(now)
    }
}

/// Returns the claim of an attempt at this moment, with this lease.
fn claim<'a>(acquire: &'a Acquire, now: Moment, lease: Lease, ranks: &'a [Rank]) -> Claim<'a> {
    let Acquire { data, attributes, takes_over, earlier_fence, .. } = acquire;
    let (takes_over, earlier_fence) = (*takes_over, *earlier_fence);
    Claim {
        holder: acquire.holder_name(),
        now,
        lease,
        data: data.as_ref(),
        attributes,
        ranks,
        takes_over,
        earlier_fence,
    }
}
