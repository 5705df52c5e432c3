//! When a waiter asks for a contended key: it predicts its turn.
//!
//! A refused waiter takes a place in the row's queue. From then on, each refusal tells it how many waiters are ahead, since
//! when the key is held, and how long holds take. So the next in line asks when the hold should end, and again until the hold
//! ends. The waiter behind it asks a moment later, in case the next in line is gone. The other waiters sleep through the turns
//! ahead.
//!
//! A semaphore has several holders. The waiters are dealt out to its permits, in the order in which the permits should come
//! free. Each waiter then waits for its permit as for a lock that only every Nth waiter wants.
//!
//! The prediction can fail: a hold takes much longer than the last ones, a clock is wrong, a waiter dies. Then the delays
//! grow with the age of the hold, which is an exponential backoff.
//!
//! `cargo bench --bench contention` shows what each constant is worth.

use std::time::Duration;

use crate::clock::Moment;
use crate::holder::Holder;
use crate::queue::{HoldTime, Queue};
use crate::row::{LeavesTo, Rank, Target};

/// How long the first waiter of a key whose holds are unknown sleeps before it joins: most holds are that short.
const FIRST_DELAY: Duration = Duration::from_millis(25);
/// How long a newcomer leaves a released key to the queue.
const NEWCOMER_COURTESY: Duration = Duration::from_millis(20);
/// The longest delay.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// The shortest and the longest delay of a waiter that sleeps elsewhere. A handover between two of these waiters takes about
/// the shortest delay: a sleep has whole seconds, and a process starts.
const SHORTEST_ELSEWHERE: Duration = Duration::from_secs(1);
const LONGEST_ELSEWHERE: Duration = Duration::from_mins(15);
/// How late a waiter that sleeps elsewhere may be at most if it knows no holds, unless the hold takes much longer.
const LATE_ELSEWHERE: Duration = Duration::from_secs(30);
/// How often a waiter is given a place: again after its row was deleted.
const MAX_JOINS: u32 = 3;
/// The longest delay after a conflict with a transaction, and after a join that failed. The delay doubles with each of them: a
/// conflict ends soon, throttling may not.
const AGAIN: Duration = Duration::from_millis(5);
/// How much earlier than the mean hold the next in line asks first, in deviations. Waiters farther back wake earlier by it,
/// too: the deviations of the holds ahead add up as those of independent times do.
const EARLY: f64 = 0.5;
/// The time until the next in line asks again, in deviations.
const STEP: f64 = 0.5;
/// The time of a request that is certainly not slow.
const QUICK: Duration = Duration::from_millis(4);
/// The delay in ages of a hold whose end cannot be predicted.
const GROWTH: f64 = 0.45;
/// A part of a hold that is short beside it. A waiter who is alone asks once more before the lease ends while the hold is
/// younger than this part, and a waiter that sleeps elsewhere asks as often if it knows no holds.
const SHORT: f64 = 0.05;

/// When a hold that takes much longer than recent holds is expected to end, beside other holds.
const LATE: f64 = 1e12;

/// A waiter's knowledge of the key.
#[derive(Clone, Debug)]
pub(crate) struct KeyTurn {
    /// How many owners can have the key at a time.
    capacity: u64,
    takes_place: bool,
    place: Option<u64>,
    joins: u32,
    /// How many joins have failed since the last join that succeeded.
    failed_joins: u32,
    /// The shortest time of a request.
    pub(super) round_trip: Option<Duration>,
    seen: Option<Seen>,
}

/// The state of the key in the last answer.
#[derive(Clone, Debug)]
struct Seen {
    at: Moment,
    /// The key's last hold, or the holds of the permits that are held.
    holds: Vec<Hold>,
    /// How many permits are free, or 1 for a key that is free.
    free: u64,
    waiters: u64,
    queue: Queue,
}

/// A hold, as the row shows it.
#[derive(Clone, Copy, Debug)]
struct Hold {
    fence: Option<u64>,
    /// When this acquisition was first seen, and when the row was last seen without it.
    first: Moment,
    other: Option<Moment>,
    since: Option<u64>,
    until: u64,
    released: bool,
}

/// The memory that a waiter takes along to its next attempt, in another process. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(default))]
pub(crate) struct Memory {
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub(crate) place: Option<u64>,
    pub(crate) joins: u32,
    /// The queue as it was seen last.
    pub(crate) head: Option<u64>,
    pub(crate) tail: Option<u64>,
    pub(crate) tail_until: Option<u64>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub(crate) hold: Option<u64>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub(crate) hold_deviation: Option<u64>,
    /// The acquisition that was seen last, and when it was first seen.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub(crate) fence: Option<u64>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub(crate) seen: Option<u64>,
}

/// The hold whose end a waiter waits for.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    hold: Hold,
    /// How many other waiters wait for it, and come first.
    ahead: u64,
}

/// The next step of a waiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// To ask after this delay.
    Ask(Duration),
    /// To take a place after this delay.
    Join(Duration),
    /// Nothing can be predicted.
    BackOff,
}

impl KeyTurn {
    /// Creates the turn of a waiter with one key of the target.
    pub(crate) fn new(target: &Target) -> Self {
        let (capacity, takes_place) = (target.capacity().into(), target.takes_place());
        Self { capacity, takes_place, place: None, joins: 0, failed_joins: 0, round_trip: None, seen: None }
    }

    /// Continues the turn of a waiter in another process.
    pub(crate) fn remember(target: &Target, memory: &Memory, now: Moment) -> Self {
        let Memory { place, joins, head, tail, tail_until, hold, hold_deviation, fence, seen } = *memory;
        let time = Duration::from_millis;
        let queue = Queue {
            head: head.unwrap_or_default(),
            tail: tail.unwrap_or_default(),
            until: tail_until.unwrap_or_default(),
            hold_time: hold.map(|mean| HoldTime { mean: time(mean), deviation: hold_deviation.map(time) }),
            is_malformed: false,
        };
        let hold = seen.map(|seen| {
            let first = now.earlier(time(seen).min(now.wall));
            Hold { fence, first, other: None, since: None, until: 0, released: false }
        });
        // An acquisition that follows the remembered hold began after the hold was seen.
        let at = hold.as_ref().map_or(now, |hold| hold.first);
        let (holds, waiters) = (hold.into_iter().collect(), queue.waiters(now.millis()));
        let seen = Seen { at, holds, free: 0, waiters, queue };
        Self { place, joins, seen: Some(seen), ..Self::new(target) }
    }

    pub(crate) fn memory(&self) -> Memory {
        let Some(seen) = &self.seen else { return Memory::default() };
        let (hold, time) = (seen.holds.first(), |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        Memory {
            place: self.place,
            joins: self.joins,
            head: Some(seen.queue.head),
            tail: Some(seen.queue.tail),
            tail_until: Some(seen.queue.until),
            hold: seen.queue.hold_time.map(|hold| time(hold.mean)),
            hold_deviation: seen.queue.hold_time.and_then(|hold| hold.deviation).map(time),
            fence: hold.and_then(|hold| hold.fence),
            seen: hold.map(|hold| hold.first.millis()),
        }
    }

    /// Returns the delay before the next attempt of a waiter that sleeps elsewhere, where each attempt costs much: until this
    /// waiter's turn, if each waiter ahead has its own turn.
    pub(crate) fn delay_elsewhere(&self, now: Moment) -> Duration {
        let Some(seen) = &self.seen else { return SHORTEST_ELSEWHERE };
        let Awaited { hold, ahead } = self.awaited(seen, now);
        let left_of_lease = (count(hold.until) - ms(now.wall)).max(0.0);
        let (age, known) = (self.age(&hold, now), seen.queue.hold_time.map(in_ms));
        let look = ms(LATE_ELSEWHERE).max(age * SHORT);
        let left = match known {
            _ if hold.released => left_of_lease,
            Some((mean, deviation)) if !is_late(age, mean, deviation) => {
                until(mean, age).unwrap_or(((age - mean) * GROWTH).max(STEP * deviation))
            }
            Some(_) => age * GROWTH,
            None if ahead == 0 => (age * GROWTH).clamp(ms(LONGEST_DELAY), look),
            None => look,
        };
        let left = left.min(left_of_lease);
        let turn = known.map_or(0.0, |(mean, _)| mean) + ms(SHORTEST_ELSEWHERE);
        let delay = left + count(ahead) * turn;
        elsewhere(in_time(delay))
    }

    /// Takes note of an answer to a request that took `round_trip`. `reserved_until` is how long the key is reserved for
    /// another waiter.
    pub(crate) fn see(&mut self, holder: &Holder, reserved_until: Option<u64>, now: Moment, round_trip: Duration) {
        self.round_trip = Some(self.round_trip.map_or(round_trip, |shortest| shortest.min(round_trip)));
        let before = self.seen.take();
        let hold = |holder: &Holder| {
            let same = before.iter().flat_map(|seen| &seen.holds).find(|hold| hold.fence == holder.fence);
            let (first, other) = match (same, &before) {
                (Some(hold), _) => (hold.first, hold.other),
                (None, before) => (now, before.as_ref().map(|seen| seen.at)),
            };
            Hold {
                fence: holder.fence,
                first,
                other,
                since: holder.held_since,
                until: holder.end(),
                released: holder.has_released(),
            }
        };
        let (holds, free) = if holder.is_semaphore() {
            let holds: Vec<_> = holder.permits.iter().filter(|permit| permit.is_current()).map(hold).collect();
            let free = self.capacity.saturating_sub(holds.len() as u64);
            (holds, free)
        } else {
            let mut hold = hold(holder);
            if let Some(until) = reserved_until.filter(|until| !holder.is_current() && *until > holder.end()) {
                (hold.until, hold.released) = (until, true);
            }
            (vec![hold], (!holder.is_current()).into())
        };
        // The row was deleted, and the places began anew.
        if self.place > Some(holder.queue.tail) {
            self.place = None;
        }
        self.seen = Some(Seen { at: now, holds, free, waiters: holder.waiters(), queue: holder.queue });
    }

    /// Takes note of a place that this waiter was given, or of 0 if the row shows no place.
    pub(crate) fn joined(&mut self, place: u64) {
        self.place = (place > 0).then_some(place);
        self.joins += 1;
        self.failed_joins = 0;
    }

    /// Takes note of a join that failed. Returns the delay before this waiter asks, and joins again if it is refused.
    ///
    /// A join without an answer may have taken a place, which nobody fills then. The empty place delays the waiters behind it
    /// as a waiter that has died does: by the moment that the next in line is left alone, until one of the waiters behind is
    /// served.
    pub(crate) fn join_failed(&mut self, random: f64) -> Duration {
        self.failed_joins += 1;
        after_failures(self.failed_joins, random)
    }

    /// Returns `true` if this waiter has a place in the queue.
    pub(crate) fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// Returns `true` if somebody has a place in the queue.
    pub(crate) fn has_waiters(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.waiters > 0)
    }

    /// Returns how many waiters are ahead of this one.
    pub(crate) fn ahead(&self) -> u64 {
        let head = self.seen.as_ref().map_or(0, |seen| seen.queue.head);
        self.place.map_or(0, |place| place.saturating_sub(head).saturating_sub(1))
    }

    /// Returns `true` if the key, or a permit, was free when it was last seen.
    pub(crate) fn is_free(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.free > 0)
    }

    fn awaited(&self, seen: &Seen, now: Moment) -> Awaited {
        let ahead = self.ahead();
        if let ([hold], 1) = (&seen.holds[..], self.capacity) {
            return Awaited { hold: *hold, ahead };
        }
        // A hold that takes longer than nearly all do does not count, unless all holds do: other permits come free before it.
        let left = |hold: &Hold| {
            let (age, known) = (self.age(hold, now), seen.queue.hold_time.map(in_ms));
            let left_of_lease = count(hold.until) - ms(now.wall);
            match known {
                _ if hold.released => left_of_lease,
                Some((mean, deviation)) if age < mean + 3.0 * deviation + self.moment() => {
                    (mean - age).min(left_of_lease)
                }
                Some((mean, _)) if left_of_lease < mean => left_of_lease,
                Some(_) => LATE + left_of_lease,
                None => -age,
            }
        };
        let mut holds: Vec<_> = seen.holds.iter().map(|hold| (left(hold), *hold)).collect();
        holds.sort_by(|(left, _), (other, _)| left.total_cmp(other));
        let on_time = holds.iter().filter(|(left, _)| *left < LATE).count() as u64;
        let free =
            Hold { fence: None, first: seen.at, other: None, since: None, until: seen.at.millis(), released: true };
        let many = match seen.free + on_time {
            0 => holds.len() as u64,
            many => many,
        }
        .max(1);
        let (index, rounds) = (ahead % many, ahead / many);
        let index = index.checked_sub(seen.free).and_then(|index| usize::try_from(index).ok());
        let hold = index.and_then(|index| holds.get(index)).map_or(free, |(_, hold)| *hold);
        Awaited { hold, ahead: rounds }
    }

    /// Returns the next step. `random` is between 0 and 1.
    pub(crate) fn next(&self, now: Moment, random: f64) -> Action {
        let Some(seen) = &self.seen else { return Action::BackOff };
        let is_known = seen.queue.hold_time.is_some();
        if self.place.is_none() && self.takes_place {
            return match self.joins {
                MAX_JOINS.. => Action::BackOff,
                0 if !is_known && seen.waiters == 0 => Action::Join(FIRST_DELAY),
                _ => Action::Join(Duration::ZERO),
            };
        }
        if self.place.is_none() && !is_known {
            return Action::BackOff;
        }
        let delay = self.delay(seen, self.awaited(seen, now), now, random).min(ms(LONGEST_DELAY));
        Action::Ask(in_time(delay))
    }

    /// Returns the rank of the next attempt. A waiter that takes no place leaves the key to nobody.
    pub(crate) fn rank(&self) -> Rank {
        let moment = Duration::from_secs_f64(self.courtesy_time() / 1000.0);
        let leaves_to = match self.place {
            _ if !self.takes_place => LeavesTo::Nobody,
            None => LeavesTo::Queue { moment: NEWCOMER_COURTESY },
            Some(place) if self.ahead() > 0 => LeavesTo::Ahead { place, moment },
            Some(_) => LeavesTo::Reservation,
        };
        Rank { leaves_to, place: self.served(), has_reserved: false }
    }

    /// Returns the place that the next attempt serves if it succeeds. A place ahead of it that was not served is then given
    /// up: its waiter is gone. But as long as holds are unknown, waiters ahead may be asleep: only the waiters that come next,
    /// one for each permit, give up the places ahead of them. For a lock, the second in line does so, too.
    fn served(&self) -> Option<u64> {
        let queue = self.seen.as_ref()?.queue;
        let place = self.place.filter(|place| *place > queue.head)?;
        (!queue.is_malformed && (queue.hold_time.is_some() || self.ahead() < self.capacity.max(2))).then_some(place)
    }

    /// Returns how long the hold of this moment should still take, if that can be predicted and this waiter is the next one.
    pub(crate) fn until_its_turn(&self, now: Moment) -> Option<Duration> {
        let seen = self.seen.as_ref()?;
        let Awaited { hold, ahead: 0 } = self.awaited(seen, now) else { return None };
        self.place?;
        let left_of_lease = count(hold.until) - ms(now.wall);
        let left = if left_of_lease <= 0.0 || hold.released {
            left_of_lease
        } else {
            let ((mean, deviation), age) = (seen.queue.hold_time.map(in_ms)?, self.age(&hold, now));
            if is_late(age, mean, deviation) {
                return None;
            }
            (mean - age).min(left_of_lease)
        };
        Some(in_time(left))
    }

    pub(crate) fn queue(&self) -> Queue {
        self.seen.as_ref().map(|seen| seen.queue).unwrap_or_default()
    }

    /// Returns how long a hold takes and how much that varies, if it is known.
    pub(crate) fn hold_time(&self) -> Option<HoldTime> {
        self.seen.as_ref()?.queue.hold_time
    }

    /// Returns how long the next in line may take to ask.
    pub(crate) fn courtesy(&self) -> Duration {
        in_time(self.courtesy_time())
    }

    /// Returns `true` if the row of the key was seen.
    pub(crate) fn is_known(&self) -> bool {
        self.seen.is_some()
    }

    /// Returns the delay before the next attempt in milliseconds.
    fn delay(&self, seen: &Seen, Awaited { hold, ahead }: Awaited, now: Moment, random: f64) -> f64 {
        let moment = self.moment();
        let behind = self.behind(seen.queue.hold_time, ahead);
        let left_of_lease = count(hold.until) - ms(now.wall);
        if left_of_lease <= 0.0 {
            // The key is left to the next in line, which may be about to ask.
            let after_courtesy = (left_of_lease + self.courtesy_time()).max(1.0);
            return match ahead {
                0 if hold.until > seen.at.millis() => 0.0,
                // The free row refused this waiter: its place was passed, or the end in the row has a fraction.
                0 if self.place <= Some(seen.queue.head) => 1.0,
                0 => moment,
                1 => after_courtesy,
                _ => behind.max(after_courtesy).min(ms(LONGEST_DELAY) / 2.0),
            };
        }
        if hold.released {
            // The key is reserved for another waiter, or held for its minimum hold, or this clock is behind the holder's.
            return left_of_lease + behind;
        }
        let age = self.age(&hold, now);
        let jitter = 0.85 + 0.3 * random;
        let delay = match seen.queue.hold_time.map(in_ms) {
            Some((mean, deviation)) if !is_late(age, mean, deviation) => {
                let again = (STEP * deviation).max(moment / 2.0).max(GROWTH * (age - mean) / 2.0);
                // An attempt that is too early costs a round trip.
                let first = mean + (self.round_trip() / 2.0 - EARLY * deviation).min(deviation);
                let delay = match ahead {
                    0 => until(first, age).unwrap_or(again),
                    // In case the next in line is gone.
                    1 => until((mean + deviation).min(2.0 * mean - deviation), age).unwrap_or(again) + moment,
                    _ => until(mean, age).unwrap_or((age - mean).max(moment)) + behind,
                };
                (delay + 0.1 * random * self.round_trip()).max(1.0)
            }
            // The lease ends soon.
            _ if seen.waiters <= 1 && left_of_lease <= ms(LONGEST_DELAY) => {
                let end = age + left_of_lease;
                let next = if age < SHORT * end { (age * end).sqrt() } else { end };
                (next - age).max(moment)
            }
            Some(_) => (age * GROWTH * jitter).max(moment) + behind,
            // Half as long as for a lock: waiters share the permits in fewer rounds, so a late waiter costs more of the whole.
            None if self.capacity > 1 => (age * (f64::midpoint(GROWTH, 1.0) + count(ahead)) * jitter).max(moment),
            None => (age * (GROWTH + count(ahead + 1)) * jitter).max(moment),
        };
        delay.min(left_of_lease + behind + random)
    }

    /// Returns how much later than the end of the present hold this waiter asks.
    fn behind(&self, hold_time: Option<HoldTime>, ahead: u64) -> f64 {
        let (mean, deviation) = hold_time.map_or((0.0, 0.0), in_ms);
        let (ahead, moment) = (count(ahead), self.moment());
        if ahead <= 1.0 {
            return ahead * moment;
        }
        let turns = (ahead - 1.0) * (mean + self.round_trip() / 2.0);
        (moment + turns - EARLY * ahead.sqrt() * deviation).max(2.0 * moment)
    }

    /// Returns the age of the hold. The clock of its host may be wrong, so this waiter's own observations limit the age.
    fn age(&self, hold: &Hold, now: Moment) -> f64 {
        let at_least = ms(now.since(hold.first)) + self.round_trip() / 2.0;
        let at_most = hold.other.map_or(f64::MAX, |other| ms(now.since(other)));
        hold.since.map_or(at_least, |since| ms(now.wall) - count(since)).min(at_most).max(at_least)
    }

    /// Returns how long the next in line may take to ask.
    fn courtesy_time(&self) -> f64 {
        let courtesy = self.seen.as_ref().and_then(|seen| {
            let (mean, deviation) = seen.queue.hold_time.map(in_ms)?;
            // The present hold may not be the hold that was seen.
            let age = self.age(&self.awaited(seen, seen.at).hold, seen.at);
            // The longest delay of the next in line, which waits for a hold that is late.
            let late =
                if is_late(age, mean, deviation) { (1.2 * GROWTH * age).min(ms(LONGEST_DELAY) / 5.0) } else { 0.0 };
            Some(late.max(STEP * deviation + 2.0 * self.moment()))
        });
        courtesy.unwrap_or_default().max(4.0 * self.moment()).min(ms(LONGEST_DELAY) / 2.0)
    }

    fn moment(&self) -> f64 {
        self.round_trip()
    }

    /// Returns the time of a request. When many waiters come at once, their first requests take long: a part of the hold,
    /// which includes a request, limits it.
    fn round_trip(&self) -> f64 {
        let hold_time = self.seen.as_ref().and_then(|seen| seen.queue.hold_time).map_or(f64::MAX, |hold| in_ms(hold).0);
        self.round_trip.map_or(1.0, ms).min((0.3 * hold_time).max(ms(QUICK))).clamp(1.0, 1000.0)
    }
}

/// Returns by how much a request of this time took longer than the fastest one. The first requests of callers that connect,
/// or that come all at once, are slow. Waiters would take the excess for a part of the hold, and sleep too long.
pub(crate) fn excess(round_trip: Duration, shortest: Option<Duration>) -> Duration {
    round_trip.saturating_sub(shortest.unwrap_or(QUICK))
}

/// Returns the delay after so many failures in a row.
pub(crate) fn after_failures(failures: u32, random: f64) -> Duration {
    let longest = AGAIN.saturating_mul(1 << failures.saturating_sub(1).min(16));
    longest.min(LONGEST_DELAY).mul_f64(random)
}

/// Returns `true` if a hold of this age takes too long to predict its end.
fn is_late(age: f64, mean: f64, deviation: f64) -> bool {
    age > 2.0 * mean + 4.0 * deviation
}

/// Returns the time from `age` to the age `later`, if `later` is ahead.
fn until(later: f64, age: f64) -> Option<f64> {
    (later > age).then_some(later - age)
}

fn in_ms(hold_time: HoldTime) -> (f64, f64) {
    (ms(hold_time.mean), ms(hold_time.deviation()))
}

/// Limits a delay to the shortest and the longest sleep of a waiter that sleeps elsewhere.
pub(crate) fn elsewhere(delay: Duration) -> Duration {
    delay.clamp(SHORTEST_ELSEWHERE, LONGEST_ELSEWHERE)
}

fn in_time(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "a count of waiters, or of milliseconds until the year 9999, is exact")]
fn count(number: u64) -> f64 {
    number as f64
}
