//! `Asking`: the attempts of an acquire, without their requests and sleeps. What has happened goes in, and the next step comes out.

use std::time::Duration;

use super::acquire::Acquire;
use super::attempt::Turn;
use super::held::Lock;
use super::wait::{Next, Pause, Paused, Turns, Waiting};
use crate::clock::{Lease, Moment, Offset};
use crate::error::{Cause, Error, ErrorKind};
use crate::holder::Holder;
use crate::limits::TIME_TO_ANSWER;
use crate::row::{Acquisition, Answer, Claim, Claimed, Grant, Rank, Write};

/// How often an attempt is adapted to rows that others change meanwhile.
const ADAPTATIONS: u32 = 4;

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
    Pause(Pause),
    End(Granted),
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
pub(crate) struct Asking<'a> {
    acquire: &'a Acquire,
    acquisition: Acquisition,
    /// An attempt may have taken the key, or may still take it.
    may_have_key: bool,
    is_unanswered: bool,
    /// The attempts, by their first number. A later one may find that an earlier one was applied and its answer lost: then
    /// the lease of that earlier one counts.
    sent: Vec<(u64, Moment, Lease)>,
    waiting: Waiting,
    now: Moment,
    lease: Lease,
    number: u64,
    adaptations: u32,
    after_withdrawal: Option<AfterWithdrawal>,
}

#[derive(Clone, Debug)]
enum AfterWithdrawal {
    /// The attempt was in vain, and does not say who holds the key: the next one follows at once, if there is a next one.
    Ask,
    /// The attempt was in vain.
    Refuse,
    End(Box<Granted>),
}

impl<'a> Asking<'a> {
    pub(crate) fn start(acquire: &'a Acquire, now: Moment) -> Result<Self, Error> {
        let limit = acquire.time_left(now).map(|left| left.saturating_sub(TIME_TO_ANSWER));
        Self::with(acquire, Waiting::start(acquire.wait, acquire.turns(), limit, now), now)
    }

    /// Makes one attempt, and continues after the attempts of other processes, if there were any.
    pub(super) fn once(acquire: &'a Acquire, turn: Option<&Turn>, now: Moment) -> Result<Self, Error> {
        let memories = turn.into_iter().flat_map(Turn::memories);
        let turns = acquire.turns().map(|_| Turns::elsewhere(&acquire.target, memories, now));
        let before = turn.map(|turn| (Duration::from_millis(turn.began), turn.attempts));
        Self::with(acquire, Waiting::elsewhere(acquire.wait, turns, before, now), now)
    }

    fn with(acquire: &'a Acquire, waiting: Waiting, now: Moment) -> Result<Self, Error> {
        Ok(Self {
            acquire,
            acquisition: acquire.acquisition()?,
            may_have_key: false,
            is_unanswered: false,
            sent: Vec::new(),
            waiting,
            now,
            lease: acquire.lease_from(now)?,
            number: 0,
            adaptations: 0,
            after_withdrawal: None,
        })
    }

    /// Returns the present attempt.
    pub(crate) fn request(&self) -> Write<'_> {
        self.acquisition.attempt(&self.acquire.locks.0.table, &self.claim(), self.number)
    }

    /// Returns `true` if the present attempt is sent again after it was prevented.
    pub(super) fn asks_again(&self) -> bool {
        !self.waiting.is_last() && self.acquire.waits()
    }

    /// Returns what attempts may have taken, or may still take.
    pub(crate) fn unsettled(&self) -> Option<&Acquisition> {
        self.may_have_key.then_some(&self.acquisition)
    }

    /// Returns what the next steps depend on, if the wait has no budget. What an attempt has left behind does not count.
    #[cfg(feature = "model")]
    pub(crate) fn live(&self, is_asked: bool) -> impl std::fmt::Debug + '_ {
        let attempt = is_asked.then_some((self.now, self.lease, self.number, self.adaptations));
        let then = self.after_withdrawal.as_ref().map(std::mem::discriminant);
        let waiting = self.waiting.live();
        (&self.acquisition, self.may_have_key, self.is_unanswered, &self.sent, waiting, attempt, then)
    }

    pub(crate) fn acquisition(&self) -> &Acquisition {
        &self.acquisition
    }

    pub(super) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    fn claim(&self) -> Claim<'_> {
        claim(self.acquire, self.now, self.lease, self.waiting.ranks())
    }

    /// Asks again.
    pub(crate) fn ask(&mut self, now: Moment) -> Step {
        self.lease = match self.acquire.lease_from(now) {
            Ok(lease) => lease,
            // The wall clock may have passed the deadline while the timer slept.
            Err(error) => return self.finish(self.waiting.refusal().unwrap_or(error), now),
        };
        self.now = now;
        self.sent.retain(|(_, _, lease)| !lease.deadline.has_passed(now));
        self.begin()
    }

    /// Begins an attempt: the first one at the moment of the start.
    pub(crate) fn begin(&mut self) -> Step {
        let now = self.now;
        self.acquisition.lease_end = self.lease.end;
        self.adaptations = 0;
        self.waiting.begin(now);
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
        let limit = self.claim().time_limit().saturating_sub(now.since(self.now));
        Step::Send { limit, is_new }
    }

    /// Takes note of the answer to the present attempt.
    pub(crate) fn answered(&mut self, answered: Answered, now: Moment) -> Step {
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
            return self.give_up(Err(error.with_attempts(self.waiting.attempt())), now);
        }
        let claim = claim(self.acquire, self.now, self.lease, self.waiting.ranks());
        let claimed = answer.and_then(|answer| self.acquisition.answered(table, &claim, self.number, answer));
        let claimed = match claimed {
            Ok(None) if self.adaptations < ADAPTATIONS => return self.send(now),
            // The rows have changed each time.
            Ok(None) => Err(self.acquisition.error(Cause::Conflict, table)),
            Ok(Some(claimed)) => Ok(claimed),
            Err(error) => Err(error),
        };
        let round_trip = now.since(self.now);
        if let Err(error) = &claimed
            && error.holder().is_some()
        {
            let keys = self.acquire.target.keys();
            let index = |row: &str| keys.iter().position(|key| row.strip_prefix(&table.key_prefix) == Some(key));
            let refused = error.holders().filter_map(|(row, holder)| Some((index(row)?, holder)));
            self.waiting.see(refused, &self.acquisition.owner, table.clock_skew, now, round_trip);
        }
        let is_taken = matches!(claimed, Ok(Claimed::Granted(_) | Claimed::InPart));
        self.may_have_key = is_taken || self.is_unanswered;
        match claimed {
            Ok(Claimed::Granted(grant)) => self.granted(grant, round_trip, now),
            Ok(Claimed::InPart) => {
                tracing::debug!(key = self.acquire.name(), "acquired by an earlier attempt, and lost in part since");
                self.withdraw(AfterWithdrawal::Ask, now)
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
            return self.withdraw(AfterWithdrawal::Refuse, now);
        };
        let excess = if self.sent.last().is_some_and(|(last, ..)| *last == first) {
            self.waiting.excess(round_trip)
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
        self.after_withdrawal = Some(then);
        self.may_have_key = false;
        self.is_unanswered = false;
        self.sent.clear();
        Step::Withdraw(self.acquisition.clone(), self.acquire.time_to_withdraw(now))
    }

    /// Takes note of a withdrawal that was sent, now or in the background.
    pub(crate) fn withdrawn(&mut self, now: Moment) -> Step {
        match self.after_withdrawal.take() {
            Some(AfterWithdrawal::End(ended)) => return Step::End(*ended),
            Some(AfterWithdrawal::Ask) if self.acquire.waits() && self.acquire.lease_from(now).is_ok() => {
                if self.waiting.follows_at_once(now) {
                    return self.ask(now);
                }
            }
            Some(AfterWithdrawal::Ask | AfterWithdrawal::Refuse) => {}
            None => unreachable!("a withdrawal was sent that no step has named"),
        }
        self.refused(self.acquisition.error(Cause::Unavailable, &self.acquire.locks.0.table), now)
    }

    /// Ends without the lock, and makes sure that no late attempt takes it.
    fn give_up(&mut self, ended: Granted, now: Moment) -> Step {
        if self.may_have_key { self.withdraw(AfterWithdrawal::End(Box::new(ended)), now) } else { Step::End(ended) }
    }

    fn refused(&mut self, error: Error, now: Moment) -> Step {
        if error.is_retryable() {
            tracing::debug!(key = self.acquire.name(), ?error, "refused");
        }
        let next = self.waiting.refused(error, now);
        self.go_on(next, now)
    }

    /// Takes note of how a part of a pause ended.
    pub(crate) fn paused(&mut self, paused: Paused, now: Moment) -> Step {
        let next = self.waiting.paused(paused, now);
        self.go_on(next, now)
    }

    fn go_on(&mut self, next: Next, now: Moment) -> Step {
        match next {
            Next::Pause(pause) => Step::Pause(pause),
            Next::Ask => self.ask(now),
            Next::Over(error) => self.finish(error, now),
            Next::Elsewhere(delay) => {
                let (table, (started, attempts)) = (&self.acquire.locks.0.table, self.waiting.so_far());
                let keys = self.acquire.target.keys().iter().cloned().zip(self.waiting.memories());
                let turn = Turn::new(table, started.millis(), attempts, delay, keys);
                self.give_up(Ok(Ended::Waiting(turn)), now)
            }
        }
    }

    /// Withdraws now if DynamoDB answered the last attempt, and otherwise in the background.
    fn finish(&mut self, error: Error, now: Moment) -> Step {
        if error.is_answered() && error.kind() != ErrorKind::Invalid {
            return self.give_up(Err(error), now);
        }
        Step::End(Err(error))
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
