//! The turns of a waiter, with one key or with each of several.
//!
//! A waiter for several keys takes a place with each key that refuses it, and asks when the last of them should be free. The
//! waiter is then next in line with all of them, or other waiters have passed it. But other waiters may take the key that is
//! free first, each time. So the waiter reserves its keys: until the last of them should be free, other waiters leave the keys
//! to it.
//!
//! A reservation names all keys that have refused its waiter, or none: two waiters for the same keys cannot each have a part.
//! It ends at its time, whatever becomes of its waiter.

use std::time::Duration;

use super::turn::{Action, KeyTurn, LONGEST_DELAY, Memory, after_failures};
use crate::clock::{Moment, millis};
use crate::holder::Holder;
use crate::queue::{HoldTime, Queue, Reservation};
use crate::row::{LeavesTo, Rank, Target};

/// A waiter's knowledge of its keys.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    /// In the order of the keys.
    each: Vec<KeyTurn>,
    /// The keys that have refused the last attempt.
    refusing: Vec<usize>,
    /// One holder has all keys, so they come free together.
    has_one_holder: bool,
    /// How many attempts have conflicted with transactions since the last answer that told something.
    conflicts: u32,
    reserved: Option<Reserved>,
    /// This waiter has neither reserved nor tried to since its last attempt.
    may_reserve: bool,
    /// A waiter that sleeps elsewhere does not reserve.
    reserves: bool,
}

/// The last reservation.
#[derive(Clone, Debug)]
struct Reserved {
    /// In milliseconds since the epoch.
    until: u64,
    /// When this waiter may reserve its keys again.
    again: u64,
}

/// The next step of a waiter.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Ask(Duration),
    /// To take a place with these keys.
    Join {
        keys: Vec<usize>,
        delay: Duration,
    },
    /// To reserve these keys for this time.
    Reserve {
        keys: Vec<usize>,
        time: Duration,
    },
    /// Nothing can be predicted.
    BackOff,
}

impl Turns {
    /// Creates the turns of a waiter.
    pub(crate) fn new(target: &Target) -> Self {
        Self {
            each: target.keys().iter().map(|_| KeyTurn::new(target)).collect(),
            refusing: Vec::new(),
            has_one_holder: false,
            conflicts: 0,
            reserved: None,
            may_reserve: true,
            reserves: true,
        }
    }

    /// Continues the turns of a waiter that sleeps elsewhere.
    ///
    /// It reserves nothing: its next attempt is another owner's, and comes late.
    pub(crate) fn elsewhere<'a>(target: &Target, memories: impl Iterator<Item = &'a Memory>, now: Moment) -> Self {
        let mut this = Self { reserves: false, ..Self::new(target) };
        for (turn, memory) in this.each.iter_mut().zip(memories) {
            *turn = KeyTurn::remember(target, memory, now);
        }
        this
    }

    /// Returns the memories that a waiter takes along to its next attempt, in the order of the keys.
    pub(crate) fn memories(&self) -> impl Iterator<Item = Memory> {
        self.each.iter().map(KeyTurn::memory)
    }

    /// Returns the delay before the next attempt of a waiter that sleeps elsewhere: until the last key that refused it should
    /// be its.
    pub(crate) fn delay_elsewhere(&self, now: Moment) -> Duration {
        self.refusing.iter().map(|index| self.each[*index].delay_elsewhere(now)).max().unwrap_or_default()
    }

    /// Takes note of a refused attempt of `owner` that took `round_trip`, with the index and the holder of each key that
    /// refused it.
    pub(crate) fn see<'a>(
        &mut self,
        refused: impl Iterator<Item = (usize, &'a Holder)>,
        owner: &str,
        clock_skew: Duration,
        now: Moment,
        round_trip: Duration,
    ) {
        self.refusing.clear();
        let mut holder_of_all = None;
        let mut has_one_holder = true;
        for (index, holder) in refused {
            let others = holder.reservation.as_ref().filter(|reservation| {
                reservation.owner != owner && reservation.until <= Reservation::latest(now, clock_skew)
            });
            self.each[index].see(holder, others.map(|reservation| reservation.until), now, round_trip);
            self.refusing.push(index);
            has_one_holder &=
                holder.owner.is_some() && holder.owner == *holder_of_all.get_or_insert(holder.owner.clone());
        }
        self.has_one_holder = has_one_holder && self.refusing.len() == self.each.len();
        self.conflicts = 0;
        self.may_reserve = true;
    }

    /// Takes note of the row in which this waiter was given the last place.
    pub(crate) fn joined(&mut self, index: usize, holder: &Holder, now: Moment, round_trip: Duration) {
        self.each[index].joined(holder.queue.tail);
        self.each[index].see(holder, None, now, round_trip);
    }

    /// Takes note of a join that failed. Returns the delay before this waiter asks, and joins again if it is refused.
    pub(crate) fn join_failed(&mut self, index: usize, random: f64) -> Duration {
        self.each[index].join_failed(random)
    }

    /// Takes note of an attempt that conflicted with a transaction. Returns the delay before the next one. The delay is shorter
    /// than with plain backoff, because this may be the waiter's turn.
    pub(crate) fn conflicted(&mut self, random: f64) -> Duration {
        self.conflicts += 1;
        after_failures(self.conflicts, random)
    }

    /// Takes note of a reservation for this time, or of a reservation that failed.
    pub(crate) fn reserved(&mut self, is_reserved: bool, time: Duration, sent: Moment, answered: Moment) {
        let (until, again) =
            (if is_reserved { time } else { Duration::ZERO }, if is_reserved { 2 * time } else { time });
        let at = |moment: Moment, time| millis(moment.wall.saturating_add(time));
        self.reserved = Some(Reserved { until: at(sent, until), again: at(answered, again) });
        self.may_reserve = false;
    }

    /// Returns the shortest time of a request that was refused.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.each.iter().filter_map(|turn| turn.round_trip).min()
    }

    /// Returns `true` if this waiter has a place in a queue.
    pub(crate) fn has_place(&self) -> bool {
        self.each.iter().any(KeyTurn::has_place)
    }

    /// Returns `true` if the keys that refused the last attempt, or permits of theirs, were free then.
    pub(crate) fn is_free(&self) -> bool {
        self.refusing.iter().all(|index| self.each[*index].is_free())
    }

    /// Returns the queue of a key, as it was seen last.
    pub(crate) fn queue(&self, index: usize) -> Queue {
        self.each[index].queue()
    }

    /// Returns the rank of the next attempt for each key.
    pub(crate) fn ranks(&self, now: Moment) -> Vec<Rank> {
        let has_reserved = self.has_reserved(now);
        let rank = |turn: &KeyTurn| match turn.rank() {
            rank if has_reserved => Rank { leaves_to: LeavesTo::Reservation, has_reserved, ..rank },
            rank => rank,
        };
        self.each.iter().map(rank).collect()
    }

    /// Returns the rank of the last attempt for each key, which leaves the keys to nobody.
    pub(crate) fn last_ranks(&self, now: Moment) -> Vec<Rank> {
        vec![Rank { has_reserved: self.has_reserved(now), ..Rank::default() }; self.each.len()]
    }

    fn has_reserved(&self, now: Moment) -> bool {
        self.reserved.as_ref().is_some_and(|reserved| now.millis() < reserved.until)
    }

    /// Returns the next step after a refusal. `random` is between 0 and 1.
    pub(crate) fn next(&self, now: Moment, random: f64) -> Step {
        let (mut joins, mut until_join, mut until_turn) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        for index in self.with_queues() {
            match self.each[index].next(now, random) {
                Action::BackOff => return Step::BackOff,
                Action::Join(delay) => {
                    joins.push(index);
                    until_join = until_join.max(delay);
                }
                Action::Ask(delay) => until_turn = until_turn.max(delay),
            }
        }
        if !joins.is_empty() {
            return Step::Join { keys: joins, delay: until_join };
        }
        self.reservation(now).unwrap_or(Step::Ask(until_turn))
    }

    /// Returns the keys that refused the last attempt and whose queues count. If one holder has all keys, a place with one of
    /// them is enough while nobody waits for another.
    fn with_queues(&self) -> impl Iterator<Item = usize> {
        let first = self.refusing.iter().min().copied();
        self.refusing.iter().copied().filter(move |index| {
            !self.has_one_holder
                || Some(*index) == first
                || self.each[*index].has_place()
                || self.each[*index].has_waiters()
        })
    }

    /// Reserves the keys that are known, if other waiters could take a key before all keys are free. A key whose holds are
    /// short is reserved only for about the last hold.
    fn reservation(&self, now: Moment) -> Option<Step> {
        let keys: Vec<_> = (0..self.each.len()).filter(|index| self.each[*index].is_known()).collect();
        let is_soon = self.reserved.as_ref().is_some_and(|reserved| now.millis() < reserved.again);
        if keys.len() < 2 || self.has_one_holder || is_soon || !self.may_reserve || !self.reserves {
            return None;
        }
        let left = |index: &usize| Some((self.each[*index].until_its_turn(now)?, *index));
        let left: Option<Vec<_>> = self.refusing.iter().map(left).collect();
        let (longest, last) = left?.into_iter().max()?;
        let hold_time = |index: usize| self.each[index].hold_time();
        let others = keys.iter().filter(|index| **index != last).filter_map(|index| hold_time(*index));
        let lead = others.map(|hold| hold.mean).max()? + self.each[last].courtesy();
        let lead = lead.min(Reservation::LONGEST / 2);
        if longest > lead {
            return Some(Step::Ask(longest.saturating_sub(lead).min(LONGEST_DELAY)));
        }
        let deviation = hold_time(last).map(HoldTime::deviation).unwrap_or_default();
        let time = longest + (2 * deviation).min(lead) + self.each[last].courtesy();
        Some(Step::Reserve { keys, time: time.min(Reservation::LONGEST) })
    }
}
