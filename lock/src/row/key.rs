//! The protocol of a key: each condition and each update of its row, written once.

use aws_sdk_dynamodb::types::ReturnValue;

use super::claim::{Claim, LeavesTo, Rank};
use super::expression::{Attribute as _, Condition, To, Update, all, any, count, not, string, text, value};
use super::names::{
    ACQUIRED_AT, ASKED, COMPLETED, ENDED, EXPIRATION, FENCE, FREED_AT, HEAD, HELD_SINCE, HOLDER, IN_PROGRESS,
    LEASE_END, OF_ACQUIRE, OWNER, RELEASED, RESERVED_BY, RESERVED_UNTIL, SEQUENCE, STATUS, WITHDRAWN,
};
use super::owner::split;
use super::place::{Place, Release, is_empty, serve, was_just_freed, with_hold};
use super::table::{Item, Table};
use crate::clock::{Lease, Moment, millis, seconds_up};
use crate::holder::{Data, Holder};
use crate::queue::Reservation;

/// The row of a key, as the place of one owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyPlace<'a> {
    pub(super) table: &'a Table,
    pub(super) key: &'a str,
    pub(super) owner: &'a str,
}

impl<'a> KeyPlace<'a> {
    /// The owner has the key, with a number of which this holds. A release, a completion and a takeover change the number.
    fn is_owner(self, has_number: Condition<'a>) -> Condition<'a> {
        all([has_number, OWNER.is(text("owner", self.owner)), STATUS.is(text("in_progress", IN_PROGRESS))])
    }

    fn is_own(self, number: u64) -> Condition<'a> {
        self.is_owner(FENCE.is(count("own", number)))
    }

    /// Takes a free key.
    pub(super) fn take(self, attempt: u64, claim: &Claim<'a>, rank: Rank, over: Condition<'a>) -> Update<'a> {
        let is_free = all([accepts(attempt), is_free(claim.now, over)]);
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

    /// Takes the key over from the acquire of the same identity that has this fence, if no work was left to it.
    pub(super) fn take_over_from(self, attempt: u64, claim: &Claim<'a>, fence: u64) -> Update<'a> {
        let start = split(self.owner).map_or(self.owner, |(start, _)| start);
        self.replace(attempt, claim, fence)
            // A reader of a released row has seen the number of the release.
            .when(not(RELEASED.is(count("seen", fence))))
            .when(OWNER.begins_with(text("identity", start)))
            .when(ACQUIRED_AT.exists())
            .when(not(ASKED.is(count("seen", fence))))
            .set(HELD_SINCE, To::Or(ACQUIRED_AT.into()))
    }

    /// Replaces the acquisition with this number, whose lease goes on.
    fn replace(self, attempt: u64, claim: &Claim<'a>, number: u64) -> Update<'a> {
        let now = || count("now", claim.now.millis());
        Update::new(self.key)
            .returning(ReturnValue::AllOld)
            .when(accepts(attempt))
            // The row of another library has no such end: its TTL keeps other owners out, but not its identity.
            .when(not(LEASE_END.at_most(now())))
            .when(STATUS.is(text("in_progress", IN_PROGRESS)))
            .when(FENCE.is(count("seen", number)))
            .set(FENCE, count("number", attempt))
            .set(OWNER, text("owner", self.owner))
            .set(HOLDER, text("holder", claim.holder))
            .set(ACQUIRED_AT, now())
            .set(LEASE_END, count("lease_end", claim.lease.end))
            .set(EXPIRATION, count("expiration", claim.lease.expiration))
            .set(SEQUENCE, count("zero", 0_u8))
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

    /// The new row looks as if the owner had released it.
    fn withdraw_without_row(self, update: Update<'a>, last: u64, now: Moment) -> Update<'a> {
        end_acquisition(update, last)
            .set(STATUS, text("in_progress", IN_PROGRESS))
            .set(OWNER, text("owner", self.owner))
            .set(ACQUIRED_AT, count("now", now.millis()))
            .set(FREED_AT, count("now", now.millis()))
            .set(LEASE_END, count("lease_end", ENDED))
            .set(EXPIRATION, count("expiration", seconds_up(self.table.kept_after(now.wall))))
    }
}

impl<'a> Place<'a> for KeyPlace<'a> {
    fn is_held(&self, number: u64, now: u64) -> Condition<'a> {
        self.is_own(number).and(LEASE_END.above(count("now", now)))
    }

    fn take_over(&self, attempt: u64, claim: &Claim<'a>, seen: &Holder) -> Update<'a> {
        let number = seen.number.unwrap_or_default();
        let update = self
            .replace(attempt, claim, number)
            .when(OWNER.is(value("seen_owner", string(seen.owner.as_deref().unwrap_or_default()))))
            .set(HELD_SINCE, count("held_since", seen.held_since.unwrap_or(claim.now.millis())));
        // The work that was left to the earlier acquire is left to this one.
        if seen.was_asked(number) {
            update.set(ASKED, count("number", attempt))
        } else {
            update.when(not(ASKED.is(count("seen", number))))
        }
    }

    fn renew(&self, own: u64, sequence: u64, now: Moment, lease: Lease, data: Option<&Data>) -> Update<'a> {
        Update::new(self.key)
            .when(self.is_held(own, now.millis()))
            .when(is_after(sequence))
            .set(LEASE_END, count("lease_end", lease.end))
            .set(EXPIRATION, count("expiration", lease.expiration))
            .set(SEQUENCE, count("sequence", sequence))
            .set_data(data)
    }

    /// A release that is repeated after it was applied replaces the data and the minimum hold of the one before.
    fn release(&self, own: u64, release: &Release<'_>) -> Update<'a> {
        let Release { number, sequence, now, hold_until, hold, data, coalesces } = *release;
        let last = || count("number", number);
        let hold_end = hold_until.filter(|end| *end > now.wall);
        let update = Update::new(self.key)
            .when(self.is_owner(any([FENCE.is(count("own", own)), all([FENCE.is(last()), RELEASED.is(last())])])))
            .when(is_after(sequence))
            .set(FREED_AT, count("now", now.millis()))
            .set_data(data);
        let update = with_hold(update, hold, hold_end.unwrap_or(now.wall));
        let update = if coalesces { update.returning(ReturnValue::AllOld) } else { update };
        end_acquisition(update, number)
            .set(LEASE_END, count("lease_end", hold_end.map_or(ENDED, millis)))
            .set(EXPIRATION, count("expiration", seconds_up(self.table.kept_after(hold_end.unwrap_or(now.wall)))))
            .set(SEQUENCE, count("sequence", sequence))
    }

    /// No form touches the status or the end of a row that is there: a run of another library may be in progress.
    fn withdraw(&self, last: u64, row: Option<&Option<Holder>>, now: Moment) -> Update<'a> {
        let update = Update::new(self.key).returning(ReturnValue::AllOld);
        let row_is = |status| STATUS.is(text("status", status));
        if matches!(row, Some(None)) {
            return self.withdraw_without_row(update.when(self.table.key_path().missing()), last, now);
        }
        let update = give_up(update, last);
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
}

/// Asks the holder with this number to run once more. Its release changes the number, so it has not released the key yet. Gives up
/// the attempts of the client that asks, up to `last`, if that has to be done.
pub(super) fn ask<'a>(key: &'a str, owner: &'a str, number: u64, last: Option<u64>, now: Moment) -> Update<'a> {
    let update = Update::new(key).set(ASKED, count("asked", number));
    let update = match last {
        Some(last) => give_up(update, last),
        None => update,
    };
    update
        .when(STATUS.is(text("in_progress", IN_PROGRESS)))
        .when(OWNER.is(text("seen_owner", owner)))
        .when(FENCE.is(count("asked", number)))
        .when(LEASE_END.above(count("now", now.millis())))
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

/// Ends the acquisition of a key with this number.
fn end_acquisition(update: Update<'_>, last: u64) -> Update<'_> {
    update.set(FENCE, count("number", last)).set(RELEASED, count("number", last))
}

/// Gives up the attempts up to this number, if they were not given up before.
pub(super) fn give_up(update: Update<'_>, last: u64) -> Update<'_> {
    update.when(not(WITHDRAWN.at_least(count("withdrawn", last)))).set(WITHDRAWN, count("withdrawn", last))
}

/// The numbers that the key has accepted, and those that were given up, are smaller than this one.
fn accepts(attempt: u64) -> Condition<'static> {
    let is_behind = |last: &'static str| not(last.at_least(count("number", attempt)));
    all([is_behind(FENCE), is_behind(WITHDRAWN)])
}

/// No request of the owner with this sequence, or a later one, was applied.
fn is_after(sequence: u64) -> Condition<'static> {
    not(SEQUENCE.at_least(count("sequence", sequence)))
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

/// No other waiter has reserved the key, until the latest end that counts.
pub(super) fn is_not_reserved(owner: &str, now: Moment, latest: u64) -> Condition<'_> {
    let is_reserved = RESERVED_UNTIL.between(count("next_ms", now.millis() + 1), count("latest", latest));
    any([not(is_reserved), RESERVED_BY.is(text("owner", owner))])
}
