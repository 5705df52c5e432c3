//! The protocol. [`KeyPlace`](super::key::KeyPlace) and [`PermitPlace`](super::permit::PermitPlace) have each condition and each
//! update of their rows; this file has the parts that both share.
//!
//! One owner at a time can have a key, or a permit in the row of a semaphore. Each request that takes or frees a key or a
//! permit carries a **number**. A key or a permit accepts only a number that is larger than every number that it has accepted,
//! and than every number that was given up. So a request that arrives late changes nothing: each request that came after it has
//! a larger number.
//!
//! A key keeps the last number that it accepted in its `fence`, also after a release. A permit exists while it is held: its
//! number is in its map, and nothing of the permit stays after a release. The rows of both have the numbers that were given up
//! in `withdrawn`.

use std::time::Duration;

use super::claim::{Claim, Rank};
use super::expression::{Attribute as _, Condition, To, Update, any, count, hold_time, not};
use super::names::{FREED_AT, HEAD, HOLD, HOLD_DEVIATION, MAX_FENCE, TAIL, TAIL_UNTIL};
use super::table::Table;
use crate::clock::{Lease, Moment, micros, millis};
use crate::holder::{Data, Holder};
use crate::queue::HoldTime;

/// The smallest deviation of hold times in a row: 0 means that it is unknown.
const RESOLUTION: Duration = Duration::from_micros(1);
/// How much larger than a fence that is ahead of the clock the number is that frees it: a minute.
const AHEAD: u64 = 60_000_000;

/// The place of one owner: a key, or a permit in the row of a semaphore.
pub(super) trait Place<'a> {
    /// The owner has the key or permit with this number, and the lease ends after `now`.
    fn is_held(&self, number: u64, now: u64) -> Condition<'a>;

    /// Takes the place over from an earlier acquire of the same identity, if it is as it was seen.
    fn take_over(&self, attempt: u64, claim: &Claim<'a>, seen: &Holder) -> Update<'a>;

    /// Moves the end of the lease. A renewal that arrives after a later one is refused by its sequence.
    fn renew(&self, own: u64, sequence: u64, now: Moment, lease: Lease, data: Option<&Data>) -> Update<'a>;

    /// Frees the place. A key can stay held until the end of its minimum hold.
    fn release(&self, own: u64, release: &Release<'_>) -> Update<'a>;

    /// Gives up this owner's attempts up to this number. The row is as it was seen last, if it was.
    fn withdraw(&self, last: u64, row: Option<&Option<Holder>>, now: Moment) -> Update<'a>;
}

/// A release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release<'a> {
    /// For a key, larger than the numbers of all attempts of its owner. For a permit, the largest number of an attempt of its
    /// owner that was not answered, or 0.
    pub(crate) number: u64,
    /// Larger than the sequence of every earlier request of this owner.
    pub(crate) sequence: u64,
    pub(crate) now: Moment,
    /// Until when the key stays held after the release.
    pub(crate) hold_until: Option<Duration>,
    /// The hold from which the hold time for waiters follows, if the hold is known.
    pub(crate) hold: Option<Hold>,
    pub(crate) data: Option<&'a Data>,
    /// The answer says whether the holder was asked to run once more.
    pub(crate) coalesces: bool,
}

/// A hold that ends with a release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) since: Duration,
    /// How long the holds before this one took.
    pub(crate) before: Option<HoldTime>,
    /// The acquire has seen the row. Otherwise a hold time in the row stays.
    pub(crate) is_before_known: bool,
}

/// Returns the number with which an operator or an identity ends an acquisition that was seen with these numbers: beyond all
/// numbers that its owner has sent, also if the clock of its host was ahead.
pub(super) fn number_for_others(table: &Table, seen: u64, withdrawn: u64, now: Moment) -> u64 {
    let clock = micros(now.wall.saturating_add(2 * table.clock_skew));
    let ahead = if seen >= clock { seen.saturating_add(AHEAD) } else { 0 };
    clock.max(ahead).max(withdrawn.saturating_add(1)).min(MAX_FENCE)
}

/// Sets the hold time after this hold, which ends at `end`.
pub(super) fn with_hold(update: Update<'_>, hold: Option<Hold>, end: Duration) -> Update<'_> {
    let Some(Hold { since, before, is_before_known }) = hold else { return update };
    let HoldTime { mean, deviation } = HoldTime::after(before, end.saturating_sub(since));
    let deviation = deviation.map_or(Duration::ZERO, |known| known.max(RESOLUTION));
    let to = if is_before_known { To::Value } else { To::Default };
    update.set(HOLD, to(hold_time("hold", mean))).set(HOLD_DEVIATION, to(hold_time("hold_deviation", deviation)))
}

/// Nobody waits in the queue.
pub(super) fn is_empty(now: Moment) -> Condition<'static> {
    any([not(HEAD.below(TAIL)), TAIL_UNTIL.at_most(count("now", now.millis()))])
}

/// The key or a permit was freed in the last moment, which belongs to the waiters ahead. A time that is farther ahead than
/// clocks differ is wrong.
pub(super) fn was_just_freed(table: &Table, now: Moment, moment: Duration) -> Condition<'static> {
    let next_moment_ago = count("next_moment_ago", millis(now.wall.saturating_sub(moment)) + 1);
    FREED_AT.between(next_moment_ago, count("latest_freed", latest(table, now)))
}

/// Returns the latest time that any clock shows.
pub(super) fn latest(table: &Table, now: Moment) -> u64 {
    millis(now.wall.saturating_add(table.clock_skew))
}

/// Serves the place of this rank in the queue.
pub(super) fn serve(update: Update<'_>, rank: Rank) -> Update<'_> {
    served(update.when_some(is_not_passed(rank)), rank)
}

pub(super) fn served(update: Update<'_>, rank: Rank) -> Update<'_> {
    match rank.place {
        Some(place) => update.set(HEAD, count("place", place)),
        None => update,
    }
}

/// A waiter that was paused while other waiters were served may not set the queue back: it asks again without its place.
pub(super) fn is_not_passed(rank: Rank) -> Option<Condition<'static>> {
    rank.place.map(|place| not(HEAD.above(count("place", place))))
}
