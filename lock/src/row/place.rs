//! The protocol: each condition and each update of a row, written once.
//!
//! A **place** is where one owner at a time can be: the row of a key, or a permit in the row of a semaphore. Each request that
//! takes or frees a place carries a **number**. A place accepts only a number that is larger than every number that it has
//! accepted, and than every number that was given up. So a request that arrives late changes nothing: whatever came after it
//! has a larger number.
//!
//! A key keeps the last number that it accepted in its `fence`, also after a release. A permit is a place that exists while it
//! is held: its number is in its map, and nothing of it stays after a release. Both have the numbers that were given up in
//! `withdrawn`.
//!
//! The row of a semaphore counts its permits. Each request that adds or removes one changes the count under a condition on
//! that permit, so that the count and the permits agree:
//!
//! ```text
//!   acquire                 nothing of this owner is there, and the count is below N         count + 1
//!   replace k that ended    each of the k is as it was seen, and the count is below N + k    count - k + 1
//!   take over               the permit is as it was seen, and the count is not 0             the same
//!   release, free           the permit is there with its number                              count - 1
//! ```

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::claim::{Claim, LeavesTo, Plan, Rank};
use super::expression::{
    Attribute as _, Condition, Path, To, Update, all, any, count, hold_time, not, number, string, text, value,
};
use super::names::{
    ACQUIRED_AT, ASKED, COMPLETED, ENDED, EXPIRATION, FENCE, FREED_AT, HEAD, HELD_SINCE, HOLD, HOLD_DEVIATION, HOLDER,
    IN_PROGRESS, LEASE_END, MAX_FENCE, OF_ACQUIRE, OWNER, PERMIT_FENCE_PREFIX, PERMIT_PREFIX, PERMITS, RELEASED,
    RESERVED_BY, RESERVED_UNTIL, SEMAPHORE, SEQUENCE, STATUS, TAIL, TAIL_UNTIL, WITHDRAWN, permit,
};
use super::owner::split;
use super::table::{Item, Table};
use crate::clock::{Lease, Moment, micros, millis, seconds_up};
use crate::holder::{Data, Holder};
use crate::queue::{HoldTime, Reservation};

/// The smallest deviation of hold times in a row: 0 means that it is unknown.
const RESOLUTION: Duration = Duration::from_micros(1);
/// How much larger than a fence that is ahead of the clock the number is that frees it: a minute.
const AHEAD: u64 = 60_000_000;
/// How many waiters may take as many free permits at once, beside all.
const TOGETHER: [u32; 8] = [1, 2, 3, 4, 8, 16, 32, 64];

/// The place of one owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) table: &'a Table,
    pub(super) key: &'a str,
    pub(super) owner: &'a str,
    pub(super) is_permit: bool,
}

/// The attributes of a place. An acquire writes them in three functions: `take` and `take_over`, and `take_permit`, which lists
/// the entries of the map.
#[derive(Clone, Copy, Debug)]
enum Field {
    Number,
    Holder,
    AcquiredAt,
    HeldSince,
    LeaseEnd,
    Sequence,
    Released,
}

/// The acquisition that a takeover replaces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Earlier<'s> {
    /// It was seen in the row.
    Seen(&'s Holder),
    /// Nobody was asked to run once more for it since.
    WithFence(u64),
}

/// A release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release<'a> {
    /// Of a key, larger than those of all attempts of its owner. Of a permit, the largest of its owner's that was not
    /// answered, or 0.
    pub(crate) number: u64,
    /// Larger than that of every earlier request of this owner.
    pub(crate) sequence: u64,
    pub(crate) now: Moment,
    /// Until when the key stays held after the release.
    pub(crate) hold_until: Option<Duration>,
    /// What the hold time for waiters follows from, if the hold is known.
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
    /// The acquire has seen the row. Otherwise a hold time that is there stays.
    pub(crate) is_before_known: bool,
}

impl<'a> Place<'a> {
    fn at(self, field: Field) -> Path {
        let (attribute, entry) = match field {
            Field::Number => (FENCE, permit::NUMBER),
            Field::Holder => (HOLDER, permit::HOLDER),
            Field::AcquiredAt => (ACQUIRED_AT, permit::ACQUIRED_AT),
            Field::HeldSince => (HELD_SINCE, permit::HELD_SINCE),
            Field::LeaseEnd => (LEASE_END, permit::LEASE_END),
            Field::Sequence => (SEQUENCE, permit::SEQUENCE),
            Field::Released => (RELEASED, permit::RELEASED),
        };
        if self.is_permit { self.permit().entry(entry) } else { attribute.into() }
    }

    fn permit(self) -> Path {
        Path::named("permit", names_of(self.owner).0)
    }

    fn permit_fence(self) -> Path {
        Path::named("permit_fence", names_of(self.owner).1)
    }

    /// The owner has the place with this number. A release, a completion and a takeover change the number.
    fn is_own(self, number: u64) -> Condition<'a> {
        self.is_owner(self.at(Field::Number).is(count("own", number)))
    }

    /// The owner has the place, with a number of which this holds.
    fn is_owner(self, has_number: Condition<'a>) -> Condition<'a> {
        match split(self.owner) {
            _ if !self.is_permit => {
                all([has_number, OWNER.is(text("owner", self.owner)), STATUS.is(text("in_progress", IN_PROGRESS))])
            }
            Some((_, nonce)) => has_number.and(self.permit().entry(permit::NONCE).is(text("nonce", nonce))),
            None => has_number,
        }
    }

    /// The same, and the lease ends after `now`.
    pub(super) fn is_held(self, number: u64, now: u64) -> Condition<'a> {
        self.is_own(number).and(self.at(Field::LeaseEnd).above(count("now", now)))
    }

    /// No request of this owner with this sequence, or a later one, was applied. A permit without a sequence was just acquired.
    fn is_after(self, sequence: u64) -> Condition<'a> {
        not(self.at(Field::Sequence).at_least(count("sequence", sequence)))
    }

    /// The numbers that were given up, and of a key those that it has accepted, are smaller than this one.
    fn accepts(self, attempt: u64) -> Condition<'a> {
        let is_behind = |last: &'static str| not(last.at_least(count("number", attempt)));
        if self.is_permit { is_behind(WITHDRAWN) } else { all([is_behind(FENCE), is_behind(WITHDRAWN)]) }
    }

    /// Takes a free key.
    pub(super) fn take(self, attempt: u64, claim: &Claim<'a>, rank: Rank, over: Condition<'a>) -> Update<'a> {
        let is_free = all([self.accepts(attempt), is_free(claim.now, over)]);
        let update = Update::new(self.key)
            .returning(ReturnValue::AllOld)
            .when(any([self.table.key_path().missing(), is_free]))
            .set(STATUS, text("in_progress", IN_PROGRESS))
            .set(OWNER, text("owner", self.owner))
            .set(FENCE, count("number", attempt))
            .set(HOLDER, text("holder", claim.holder))
            .set(ACQUIRED_AT, count("now", claim.now.millis()))
            .set(LEASE_END, count("lease_end", claim.lease.end))
            .set(EXPIRATION, count("expiration", claim.lease.expiration))
            .set(SEQUENCE, count("zero", 0_u8))
            .remove(HELD_SINCE);
        serve(update, rank)
    }

    /// Takes the place over from an earlier acquire of the same identity.
    pub(super) fn take_over(self, attempt: u64, claim: &Claim<'a>, earlier: Earlier<'_>) -> Update<'a> {
        let now = || count("now", claim.now.millis());
        let update = Update::new(self.key)
            .returning(ReturnValue::AllOld)
            .when(self.accepts(attempt))
            // The row of another library has no such end: its TTL keeps other owners out, but not its identity.
            .when(not(self.at(Field::LeaseEnd).at_most(now())))
            .set(self.at(Field::Number), count("number", attempt))
            .set(self.at(Field::Holder), text("holder", claim.holder))
            .set(self.at(Field::AcquiredAt), now())
            .set(self.at(Field::LeaseEnd), count("lease_end", claim.lease.end))
            .set(EXPIRATION, count("expiration", claim.lease.expiration));
        let update = match earlier {
            Earlier::Seen(seen) => update
                .when(self.at(Field::Number).is(count("seen", seen.number.unwrap_or_default())))
                .set(self.at(Field::HeldSince), count("held_since", seen.held_since.unwrap_or(claim.now.millis()))),
            Earlier::WithFence(_) => update
                .when(self.at(Field::AcquiredAt).exists())
                .set(self.at(Field::HeldSince), To::Or(self.at(Field::AcquiredAt))),
        };
        let (start, nonce) = split(self.owner).unwrap_or_default();
        if self.is_permit {
            let permit_nonce = || self.permit().entry(permit::NONCE);
            let is_earlier = match earlier {
                Earlier::Seen(seen) => {
                    let seen_nonce = seen.owner.as_deref().and_then(split).map_or("", |(_, nonce)| nonce);
                    permit_nonce().is(value("seen_nonce", string(seen_nonce)))
                }
                // A release that keeps the permit for a while leaves its fence.
                Earlier::WithFence(fence) => all([
                    self.permit_fence().is(count("seen", fence)),
                    self.at(Field::Released).missing(),
                    fence_can_grow(),
                ]),
            };
            return self
                .counted(update, claim)
                .when(is_earlier)
                // Its release needs as many.
                .when(PERMITS.at_least(count("one", 1_u8)))
                .set(permit_nonce(), text("nonce", nonce))
                .remove(self.at(Field::Sequence));
        }
        // The work that was left to the earlier acquire is left to this one.
        let update = match earlier {
            Earlier::Seen(seen) if seen.number.is_some_and(|number| seen.was_asked(number)) => {
                update.set(ASKED, count("number", attempt))
            }
            Earlier::Seen(seen) => update.when(not(ASKED.is(count("seen", seen.number.unwrap_or_default())))),
            Earlier::WithFence(fence) => update.when(not(ASKED.is(count("seen", fence)))),
        };
        let is_earlier = match earlier {
            Earlier::Seen(seen) => OWNER.is(value("seen_owner", string(seen.owner.as_deref().unwrap_or_default()))),
            // A reader of a released row has seen the number of the release.
            Earlier::WithFence(fence) => all([
                self.at(Field::Number).is(count("seen", fence)),
                not(self.at(Field::Released).is(count("seen", fence))),
                OWNER.begins_with(text("identity", start)),
            ]),
        };
        update
            .when(is_earlier)
            .when(STATUS.is(text("in_progress", IN_PROGRESS)))
            .set(OWNER, text("owner", self.owner))
            .set(SEQUENCE, count("zero", 0_u8))
    }

    /// Takes one of `permits`, if there is a free one. Those that have ended are replaced.
    pub(super) fn take_permit(self, attempt: u64, permits: u32, claim: &Claim<'a>, plan: &Plan) -> Update<'a> {
        let nonce = split(self.owner).map(|(_, nonce)| nonce);
        let held = [
            (permit::NUMBER, number(attempt)),
            (permit::HOLDER, string(claim.holder)),
            (permit::ACQUIRED_AT, number(claim.now.millis())),
            (permit::LEASE_END, number(claim.lease.end)),
        ];
        let held = held.into_iter().chain(nonce.map(|nonce| (permit::NONCE, string(nonce))));
        let held = held.map(|(name, value)| (name.to_owned(), value)).collect::<HashMap<_, _>>();
        let (now, ended) = (claim.now, plan.ended.len() as u64);
        let replaces_own = plan.ended.iter().any(|ended| ended.has_identity_of(self.owner));
        let mut is_free = all([STATUS.is(text("semaphore", SEMAPHORE)), self.accepts(attempt)]);
        if !replaces_own {
            is_free = is_free.and(self.permit().missing());
        }
        if let Some(is_turn) = is_turn_for_permit(self.table, permits, claim.rank(), now, ended) {
            is_free = is_free.and(is_turn);
        }
        let most = count("most", u64::from(permits - 1) + ended);
        let update = self.counted(Update::new(self.key).returning(ReturnValue::AllOld), claim);
        let update = update
            .set(STATUS, text("semaphore", SEMAPHORE))
            .set(self.permit(), value("permit", AttributeValue::M(held)))
            .set(EXPIRATION, count("expiration", claim.lease.expiration));
        let rank = Rank { place: plan.place(claim), ..claim.rank() };
        if plan.ended.is_empty() {
            is_free = is_free.and(PERMITS.between(count("zero", 0_u8), most)).and(fence_can_grow());
            let is_free = if let Some(is_served) = is_not_passed(rank) { is_free.and(is_served) } else { is_free };
            let update = update
                .when(any([self.table.key_path().missing(), is_free]))
                .set(PERMITS, To::next(PERMITS, count("zero", 0_u8)));
            return served(update, rank);
        }
        let mut update = serve(update, rank)
            .when(is_free)
            .when(fence_can_grow())
            .when(PERMITS.between(count("ended", ended), most))
            .set(PERMITS, To::Minus(count("fewer", ended - 1)))
            .set(FREED_AT, count("now", now.millis()));
        for (index, ended) in plan.ended.iter().enumerate() {
            let (path, fence) = other_paths(index, ended.owner.as_deref().unwrap_or_default());
            // It was not renewed, taken over or released meanwhile.
            update = update.when(
                ended.map.clone().map_or_else(|| path.clone().missing(), |map| path.clone().is(value("seen", map))),
            );
            if !ended.has_identity_of(self.owner) {
                update = update.remove(path).remove(fence);
            }
        }
        update
    }

    /// Counts one more acquisition of a semaphore. A map in the same update cannot refer to the count, so that the fence of
    /// the permit stands beside it. The fence of a new row starts at the clock, so that a deletion does not set it back.
    fn counted(self, update: Update<'a>, claim: &Claim<'_>) -> Update<'a> {
        let next = || To::next(FENCE, count("now_micros", micros(claim.now.wall)));
        update.set(FENCE, next()).set(self.permit_fence(), next())
    }

    /// Moves the end of the lease. One that arrives after a later renewal is refused by its sequence.
    pub(super) fn renew(self, own: u64, sequence: u64, now: Moment, lease: Lease, data: Option<&Data>) -> Update<'a> {
        Update::new(self.key)
            .when(self.is_held(own, now.millis()))
            .when(self.is_after(sequence))
            .set(self.at(Field::LeaseEnd), count("lease_end", lease.end))
            .set(EXPIRATION, count("expiration", lease.expiration))
            .set(self.at(Field::Sequence), count("sequence", sequence))
            .set_data(data)
    }

    /// Frees the place, or keeps it until the end of its minimum hold. A release that is repeated after it was applied replaces
    /// the data and the minimum hold of the one before.
    pub(super) fn release(self, own: u64, release: &Release<'_>) -> Update<'a> {
        let Release { number, sequence, now, hold_until, hold, data, coalesces } = *release;
        let last = || count("number", if self.is_permit { number_of_release(own) } else { number });
        let is_released = all([self.at(Field::Number).is(last()), self.at(Field::Released).is(last())]);
        let hold_end = hold_until.filter(|end| *end > now.wall);
        let end = hold_end.map_or(ENDED, millis);
        let update = Update::new(self.key)
            .when(self.is_owner(any([self.at(Field::Number).is(count("own", own)), is_released])))
            .when(self.is_after(sequence))
            .set(FREED_AT, count("now", now.millis()))
            .set_data(data);
        let update = with_hold(update, hold, hold_end.unwrap_or(now.wall));
        let update = if coalesces { update.returning(ReturnValue::AllOld) } else { update };
        if !self.is_permit {
            let kept_until = self.table.kept_after(hold_end.unwrap_or(now.wall));
            return end_acquisition(update, number)
                .set(LEASE_END, count("lease_end", end))
                .set(EXPIRATION, count("expiration", seconds_up(kept_until)))
                .set(SEQUENCE, count("sequence", sequence));
        }
        let update = self.give_up(update, number, now);
        if hold_end.is_none() {
            return free_permits(update, vec![(self.permit(), self.permit_fence())]);
        }
        update
            .set(self.at(Field::Number), last())
            .set(self.at(Field::Released), last())
            .set(self.at(Field::LeaseEnd), count("lease_end", end))
            .set(self.at(Field::Sequence), count("sequence", sequence))
    }

    /// Gives up the attempts at a semaphore's permits up to this number, if it is not 0 and they were not given up before.
    fn give_up(self, update: Update<'a>, last: u64, now: Moment) -> Update<'a> {
        let update = update.set(EXPIRATION, count("expiration", seconds_up(self.table.semaphore_kept_until(now))));
        if last == 0 {
            return update;
        }
        update.when(not(WITHDRAWN.at_least(count("withdrawn", last)))).set(WITHDRAWN, count("withdrawn", last))
    }

    /// Completes the record of a key. It also counts as the release.
    pub(super) fn complete(self, own: u64, last: u64, until: u64) -> Update<'a> {
        end_acquisition(Update::new(self.key), last)
            .when(self.is_own(own))
            .set(STATUS, text("completed", COMPLETED))
            .set(EXPIRATION, count("expiration", until))
    }

    /// Puts back the row of a key that this owner's acquire has replaced with this number, and gives up its attempts. The holder
    /// of that row goes on as if nothing had happened, and runs once more if it coalesces: the work of a client may have been left
    /// to this owner. If a client has given up attempts meanwhile, the row does not come back, because it may be that client's.
    pub(super) fn put_back(self, own: u64, before: &Item) -> Update<'a> {
        let given_up = before.get(WITHDRAWN);
        let is_as_before =
            given_up.map_or(WITHDRAWN.missing(), |number| WITHDRAWN.is(value("given_up", number.clone())));
        let update = Update::new(self.key).when(self.is_own(own)).when(is_as_before);
        let update = update.set(WITHDRAWN, count("withdrawn", own));
        let update = match before.get(FENCE) {
            Some(fence) => update.set(ASKED, value("fence", fence.clone())),
            None => update,
        };
        OF_ACQUIRE.into_iter().fold(update, |update, name| match before.get(name) {
            Some(attribute) => update.set(name, value("before", attribute.clone())),
            None => update.remove(name),
        })
    }

    /// Gives up this owner's attempts up to this number. The row is as it was seen last, if it was.
    ///
    /// No form touches the status or the end of a row that is there: a run of another library may be in progress.
    pub(super) fn withdraw(self, last: u64, row: Option<&Option<Holder>>, now: Moment) -> Update<'a> {
        let row_is = |status| STATUS.is(text("status", status));
        let update = Update::new(self.key).returning(ReturnValue::AllOld);
        if matches!(row, Some(None)) {
            return self.withdraw_without_row(update.when(self.table.key_path().missing()), last, now);
        }
        if self.is_permit {
            return self.give_up(update, last, now).when(row_is(SEMAPHORE));
        }
        let update =
            update.when(not(WITHDRAWN.at_least(count("withdrawn", last)))).set(WITHDRAWN, count("withdrawn", last));
        // TTL could delete the row before the late attempt arrives. That of a completed row is the end of its window, and
        // that of a run of another library is the end of the time in which it is refused: they stay.
        let expiration = seconds_up(self.table.kept_after(now.wall));
        let stays = || not(EXPIRATION.below(count("expiration", expiration)));
        let is_completed = || STATUS.is(text("completed", COMPLETED));
        match row.and_then(Option::as_ref) {
            None => update.when(any([is_completed(), all([row_is(IN_PROGRESS), stays()])])),
            Some(row) if row.is_deleted_before(expiration) => update
                .when(row_is(IN_PROGRESS))
                .when(LEASE_END.exists())
                .when(ACQUIRED_AT.exists())
                .when(EXPIRATION.below(count("expiration", expiration)))
                .set(EXPIRATION, count("expiration", expiration)),
            Some(_) => update.when(any([is_completed(), row_is(IN_PROGRESS)])),
        }
    }

    /// The new row looks as if the owner had released it.
    fn withdraw_without_row(self, update: Update<'a>, last: u64, now: Moment) -> Update<'a> {
        if self.is_permit {
            return update
                .set(EXPIRATION, count("expiration", seconds_up(self.table.semaphore_kept_until(now))))
                .set(WITHDRAWN, count("withdrawn", last))
                .set(STATUS, text("semaphore", SEMAPHORE))
                .set(PERMITS, count("zero", 0_u8));
        }
        end_acquisition(update, last)
            .set(STATUS, text("in_progress", IN_PROGRESS))
            .set(OWNER, text("owner", self.owner))
            .set(ACQUIRED_AT, count("now", now.millis()))
            .set(FREED_AT, count("now", now.millis()))
            .set(LEASE_END, count("lease_end", ENDED))
            .set(EXPIRATION, count("expiration", seconds_up(self.table.kept_after(now.wall))))
    }
}

/// Asks the holder with this number to run once more. Its release changes the number, so it has not released the key yet. Gives up
/// the attempts of the client that asks, up to `last`, if that has to be done.
pub(super) fn ask<'a>(key: &'a str, owner: &'a str, number: u64, last: Option<u64>, now: Moment) -> Update<'a> {
    let update = Update::new(key).set(ASKED, count("asked", number));
    let update = match last {
        Some(last) => {
            update.when(not(WITHDRAWN.at_least(count("withdrawn", last)))).set(WITHDRAWN, count("withdrawn", last))
        }
        None => update,
    };
    update
        .when(STATUS.is(text("in_progress", IN_PROGRESS)))
        .when(OWNER.is(text("seen_owner", owner)))
        .when(FENCE.is(count("asked", number)))
        .when(LEASE_END.above(count("now", now.millis())))
}

/// Returns the number of the release of a permit that counts until the end of its minimum hold.
pub(super) fn number_of_release(own: u64) -> u64 {
    own + 1
}

/// Frees the key that was `seen`, for others than its owner: an operator, an identity, a workflow that has ended. Its holder
/// finds it lost.
pub(super) fn free<'a>(table: &Table, key: &'a str, seen: &'a Holder, last: u64, now: Moment) -> Update<'a> {
    let expiration = seconds_up(table.kept_after(now.wall));
    ended_by_others(key, seen, last, now)
        .set(LEASE_END, count("lease_end", ENDED))
        .set(FREED_AT, count("now", now.millis()))
        .set(EXPIRATION, count("expiration", expiration))
}

/// Begins the update that ends what was `seen`, for others than its owner.
///
/// What its owner has released is not changed after its minimum hold, so that a retry of that release recognises itself.
pub(super) fn ended_by_others<'a>(key: &'a str, seen: &'a Holder, last: u64, now: Moment) -> Update<'a> {
    let is_released_before = all([RELEASED.is(FENCE), LEASE_END.at_most(count("now", now.millis()))]);
    let is_owner = seen.owner.as_ref().map_or(OWNER.missing(), |owner| OWNER.is(text("seen_owner", owner)));
    let is_fence = seen.fence.map_or(FENCE.missing(), |fence| FENCE.is(count("fence", fence)));
    let is_as_seen = all([is_owner, is_fence]);
    let is_as_seen = if seen.owner.is_some() && seen.fence.is_some() {
        is_as_seen
    } else {
        // A row that another library wrote has neither. Its end tells one run from the next.
        is_as_seen.and(any([
            LEASE_END.is(count("seen", seen.until)),
            all([LEASE_END.missing(), EXPIRATION.is(count("seen_seconds", seen.until / 1000))]),
        ]))
    };
    Update::new(key)
        .when(STATUS.is(text("in_progress", IN_PROGRESS)))
        .when(is_as_seen)
        .when(not(is_released_before))
        .set(FENCE, count("number", last))
        .set(RELEASED, count("number", last))
}

/// Frees the permits that were `seen`, for others than their owners.
pub(super) fn free_permits_for_others<'a>(
    table: &Table,
    key: &'a str,
    seen: &[(&str, &Holder)],
    last: u64,
    now: Moment,
) -> Update<'a> {
    let update = Update::new(key)
        .when(not(WITHDRAWN.above(count("withdrawn", last))))
        .set(WITHDRAWN, count("withdrawn", last))
        .set(FREED_AT, count("now", now.millis()))
        .set(EXPIRATION, count("expiration", seconds_up(table.semaphore_kept_until(now))));
    let update = seen.iter().enumerate().fold(update, |update, (index, &(owner, seen))| {
        let permit = other_paths(index, owner).0;
        let is_seen = permit.clone().entry(permit::NUMBER).is(value("own", number(seen.number.unwrap_or_default())));
        update.when(match split(owner) {
            Some((_, nonce)) => is_seen.and(permit.entry(permit::NONCE).is(value("nonce", string(nonce)))),
            None => is_seen,
        })
    });
    free_permits(update, seen.iter().enumerate().map(|(index, (owner, _))| other_paths(index, owner)).collect())
}

/// Ends the acquisition of a key with this number.
fn end_acquisition(update: Update<'_>, last: u64) -> Update<'_> {
    update.set(FENCE, count("number", last)).set(RELEASED, count("number", last))
}

/// Removes these permits and their fences. The update has a condition on each permit.
fn free_permits(update: Update<'_>, permits: Vec<(Path, Path)>) -> Update<'_> {
    let freed = || count("freed", permits.len() as u64);
    let update = update.when(PERMITS.at_least(freed())).set(PERMITS, To::Minus(freed()));
    permits.into_iter().fold(update, |update, (permit, fence)| update.remove(permit).remove(fence))
}

/// Returns a number for those who free what was seen with these numbers: beyond all that its owner has sent, also if the clock
/// of its host was ahead.
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

/// The fence of a semaphore is a number that can be incremented.
fn fence_can_grow() -> Condition<'static> {
    any([FENCE.missing(), FENCE.between(count("zero", 0_u8), count("max_fence", MAX_FENCE))])
}

/// The row is that of a key, and nobody has it. `over` says when the lease of one in progress has ended.
fn is_free(now: Moment, over: Condition<'_>) -> Condition<'_> {
    let in_progress = || STATUS.is(text("in_progress", IN_PROGRESS));
    let has_expired = || EXPIRATION.at_most(count("now_seconds", now.wall.as_secs()));
    any([
        all([STATUS.is(text("completed", COMPLETED)), has_expired()]),
        all([in_progress(), over]),
        all([in_progress(), LEASE_END.missing(), has_expired()]),
    ])
}

/// The lease of a key has ended, for an attempt of this rank.
pub(super) fn is_over<'a>(table: &Table, owner: &'a str, now: Moment, rank: Rank) -> Condition<'a> {
    let over = || LEASE_END.at_most(count("now", now.millis()));
    let is_for_all = |moment| {
        let has_ended = LEASE_END.at_most(count("moment_ago", millis(now.wall.saturating_sub(moment))));
        all([has_ended, not(was_just_freed(table, now, moment))])
    };
    let is_turn = match rank.leaves_to {
        LeavesTo::Nobody => return over(),
        LeavesTo::Reservation => over(),
        LeavesTo::Queue { moment } => any([is_for_all(moment), all([over(), is_empty(now)])]),
        LeavesTo::Ahead { place, moment } => {
            let is_next = not(HEAD.below(count("place_ahead", place.saturating_sub(1))));
            any([is_for_all(moment), all([over(), is_next])])
        }
    };
    all([is_turn, is_not_reserved(owner, now, Reservation::latest(now, table.clock_skew))])
}

/// Nobody waits in the queue.
fn is_empty(now: Moment) -> Condition<'static> {
    any([not(HEAD.below(TAIL)), TAIL_UNTIL.at_most(count("now", now.millis()))])
}

/// The place was freed in the last moment, which belongs to those ahead. A time that is farther ahead than clocks differ is
/// wrong.
fn was_just_freed(table: &Table, now: Moment, moment: Duration) -> Condition<'static> {
    let next_moment_ago = count("next_moment_ago", millis(now.wall.saturating_sub(moment)) + 1);
    FREED_AT.between(next_moment_ago, count("latest_freed", latest(table, now)))
}

/// Returns the latest time that any clock shows.
fn latest(table: &Table, now: Moment) -> u64 {
    millis(now.wall.saturating_add(table.clock_skew))
}

/// There is a free permit for a waiter of this rank, beside those for the waiters ahead, while `ended` permits are replaced.
fn is_turn_for_permit(table: &Table, permits: u32, rank: Rank, now: Moment, ended: u64) -> Option<Condition<'static>> {
    let mut is_turn = vec![not(was_just_freed(table, now, rank.moment()?))];
    if let LeavesTo::Ahead { place, .. } = rank.leaves_to {
        is_turn.extend(together(permits).map(|many| {
            let is_near = not(HEAD.below(count("place_ahead", place.saturating_sub(many.into()))));
            all([is_near, PERMITS.at_most(count("others", u64::from(permits - many) + ended))])
        }));
    } else {
        is_turn.push(is_empty(now));
    }
    Some(Condition::Any(is_turn))
}

/// Returns `true` if this row gives a permit to an attempt of this rank: what the condition says, and what the ends of the
/// leases say.
pub(super) fn gives_permit(table: &Table, permits: u32, claim: &Claim<'_>, row: &Holder, ended: &[Holder]) -> bool {
    let (rank, now) = (claim.rank(), claim.now);
    let Some(moment) = rank.moment() else { return true };
    let moment_ago = millis(now.wall.saturating_sub(moment));
    let freed_at = row.freed_at.filter(|freed_at| *freed_at <= latest(table, now));
    if freed_at.max(ended.iter().map(|permit| permit.until).max()) <= Some(moment_ago) {
        return true;
    }
    let free = u64::from(permits).saturating_sub((row.permits.len() - ended.len()) as u64);
    match rank.leaves_to {
        LeavesTo::Ahead { place, .. } => {
            let ahead = place.saturating_sub(row.queue.head).saturating_sub(1);
            together(permits).map(u64::from).any(|many| ahead < many && many <= free)
        }
        _ => row.waiters() == 0,
    }
}

/// Returns numbers up to that of the permits. As many waiters may take as many free permits at once.
fn together(permits: u32) -> impl Iterator<Item = u32> {
    TOGETHER.into_iter().take_while(move |many| *many < permits).chain([permits])
}

/// No other waiter has reserved the key, until the latest end that counts.
pub(super) fn is_not_reserved(owner: &str, now: Moment, latest: u64) -> Condition<'_> {
    let is_reserved = RESERVED_UNTIL.between(count("next_ms", now.millis() + 1), count("latest", latest));
    any([not(is_reserved), RESERVED_BY.is(text("owner", owner))])
}

/// Serves the place of this rank in the queue.
fn serve(update: Update<'_>, rank: Rank) -> Update<'_> {
    served(update.when_some(is_not_passed(rank)), rank)
}

fn served(update: Update<'_>, rank: Rank) -> Update<'_> {
    match rank.place {
        Some(place) => update.set(HEAD, count("place", place)),
        None => update,
    }
}

/// A waiter that was paused while others were served may not set the queue back: it asks again without its place.
fn is_not_passed(rank: Rank) -> Option<Condition<'static>> {
    rank.place.map(|place| not(HEAD.above(count("place", place))))
}

/// Returns the names of an owner's permit and of its fence.
fn names_of(owner: &str) -> (String, String) {
    let owner = split(owner).map_or(owner, |(start, _)| start);
    (format!("{PERMIT_PREFIX}{owner}"), format!("{PERMIT_FENCE_PREFIX}{owner}"))
}

/// Returns where the row has the permit and the fence of one of several owners.
fn other_paths(index: usize, owner: &str) -> (Path, Path) {
    let (permit, fence) = names_of(owner);
    (Path::named(format!("p{index}"), permit), Path::named(format!("f{index}"), fence))
}
