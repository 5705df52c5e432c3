//! The protocol of a permit: each condition and each update of the row of a semaphore, written once.
//!
//! The row counts its permits. Each request that adds or removes one changes the count under a condition on that permit, so that
//! the count and the permits agree:
//!
//! ```text
//!   acquire                 nothing of this owner is there, and the count is below N         count + 1
//!   replace k that ended    each of the k is as it was seen, and the count is below N + k    count - k + 1
//!   take over               the permit is as it was seen, and the count is not 0             the same
//!   release, free           the permit is there with its number                              count - 1
//! ```

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::claim::{Claim, LeavesTo, Plan, Rank};
use super::expression::{
    Attribute as _, Condition, Path, To, Update, all, any, count, not, number, string, text, value,
};
use super::key::give_up;
use super::names::{
    EXPIRATION, FENCE, FREED_AT, HEAD, MAX_FENCE, PERMIT_FENCE_PREFIX, PERMIT_PREFIX, PERMITS, SEMAPHORE, STATUS,
    WITHDRAWN, permit,
};
use super::owner::split;
use super::place::{Place, Release, is_empty, is_not_passed, latest, serve, served, was_just_freed, with_hold};
use super::table::Table;
use crate::clock::{Lease, Moment, micros, millis, seconds_up};
use crate::holder::{Data, Holder};

/// How many waiters may take as many free permits at once, beside all.
const TOGETHER: [u32; 8] = [1, 2, 3, 4, 8, 16, 32, 64];

/// A permit in the row of a semaphore, as the place of one owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct PermitPlace<'a> {
    pub(super) table: &'a Table,
    pub(super) key: &'a str,
    pub(super) owner: &'a str,
}

impl<'a> PermitPlace<'a> {
    fn permit(self) -> Path {
        Path::named("permit", names_of(self.owner).0)
    }

    fn fence(self) -> Path {
        Path::named("permit_fence", names_of(self.owner).1)
    }

    fn at(self, entry: &'static str) -> Path {
        self.permit().entry(entry)
    }

    /// The owner has the permit with this number. A takeover changes the number.
    fn is_own(self, number: u64) -> Condition<'a> {
        let has_number = self.at(permit::NUMBER).is(count("own", number));
        match split(self.owner) {
            Some((_, nonce)) => has_number.and(self.at(permit::NONCE).is(text("nonce", nonce))),
            None => has_number,
        }
    }

    /// No request of this owner with this sequence, or a later one, was applied. A permit without a sequence was just acquired.
    fn is_after(self, sequence: u64) -> Condition<'a> {
        not(self.at(permit::SEQUENCE).at_least(count("sequence", sequence)))
    }

    /// Takes one of `permits`, if there is a free one. Those that have ended are replaced.
    pub(super) fn take(self, attempt: u64, permits: u32, claim: &Claim<'a>, plan: &Plan) -> Update<'a> {
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
        let mut is_free = all([STATUS.is(text("semaphore", SEMAPHORE)), accepts(attempt)]);
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
        update.set(FENCE, next()).set(self.fence(), next())
    }

    /// Gives up the attempts at a semaphore's permits up to this number, if it is not 0 and they were not given up before.
    fn give_up(self, update: Update<'a>, last: u64, now: Moment) -> Update<'a> {
        let update = update.set(EXPIRATION, count("expiration", seconds_up(self.table.semaphore_kept_until(now))));
        if last == 0 { update } else { give_up(update, last) }
    }
}

impl<'a> Place<'a> for PermitPlace<'a> {
    fn is_held(&self, number: u64, now: u64) -> Condition<'a> {
        self.is_own(number).and(self.at(permit::LEASE_END).above(count("now", now)))
    }

    fn take_over(&self, attempt: u64, claim: &Claim<'a>, seen: &Holder) -> Update<'a> {
        let now = || count("now", claim.now.millis());
        let seen_nonce = seen.owner.as_deref().and_then(split).map_or("", |(_, nonce)| nonce);
        let update = Update::new(self.key)
            .returning(ReturnValue::AllOld)
            .when(accepts(attempt))
            .when(not(self.at(permit::LEASE_END).at_most(now())))
            // The release of the permit lowers the count by one.
            .when(PERMITS.at_least(count("one", 1_u8)))
            .when(self.at(permit::NUMBER).is(count("seen", seen.number.unwrap_or_default())))
            .when(self.at(permit::NONCE).is(value("seen_nonce", string(seen_nonce))))
            .set(self.at(permit::NUMBER), count("number", attempt))
            .set(self.at(permit::NONCE), text("nonce", split(self.owner).map_or("", |(_, nonce)| nonce)))
            .set(self.at(permit::HOLDER), text("holder", claim.holder))
            .set(self.at(permit::HELD_SINCE), count("held_since", seen.held_since.unwrap_or(claim.now.millis())))
            .set(self.at(permit::ACQUIRED_AT), now())
            .set(self.at(permit::LEASE_END), count("lease_end", claim.lease.end))
            .set(EXPIRATION, count("expiration", claim.lease.expiration))
            .remove(self.at(permit::SEQUENCE));
        self.counted(update, claim)
    }

    fn renew(&self, own: u64, sequence: u64, now: Moment, lease: Lease, data: Option<&Data>) -> Update<'a> {
        Update::new(self.key)
            .when(self.is_held(own, now.millis()))
            .when(self.is_after(sequence))
            .set(self.at(permit::LEASE_END), count("lease_end", lease.end))
            .set(EXPIRATION, count("expiration", lease.expiration))
            .set(self.at(permit::SEQUENCE), count("sequence", sequence))
            .set_data(data)
    }

    /// Also gives up the attempts of the permit's owner up to the number of the release.
    fn release(&self, own: u64, release: &Release<'_>) -> Update<'a> {
        let Release { number, sequence, now, hold, data, .. } = *release;
        let update = Update::new(self.key)
            .when(self.is_own(own))
            .when(self.is_after(sequence))
            .set(FREED_AT, count("now", now.millis()))
            .set_data(data);
        let update = with_hold(update, hold, now.wall);
        free(self.give_up(update, number, now), vec![(self.permit(), self.fence())])
    }

    fn withdraw(&self, last: u64, row: Option<&Option<Holder>>, now: Moment) -> Update<'a> {
        let update = Update::new(self.key).returning(ReturnValue::AllOld);
        if matches!(row, Some(None)) {
            return update
                .when(self.table.key_path().missing())
                .set(EXPIRATION, count("expiration", seconds_up(self.table.semaphore_kept_until(now))))
                .set(WITHDRAWN, count("withdrawn", last))
                .set(STATUS, text("semaphore", SEMAPHORE))
                .set(PERMITS, count("zero", 0_u8));
        }
        self.give_up(update, last, now).when(STATUS.is(text("status", SEMAPHORE)))
    }
}

/// The numbers that were given up are smaller than this one.
fn accepts(attempt: u64) -> Condition<'static> {
    not(WITHDRAWN.at_least(count("number", attempt)))
}

/// Frees the permits that were `seen`, for others than their owners.
pub(super) fn free_for_others<'a>(
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
    free(update, seen.iter().enumerate().map(|(index, (owner, _))| other_paths(index, owner)).collect())
}

/// Removes these permits and their fences. The update has a condition on each permit.
fn free(update: Update<'_>, permits: Vec<(Path, Path)>) -> Update<'_> {
    let freed = || count("freed", permits.len() as u64);
    let update = update.when(PERMITS.at_least(freed())).set(PERMITS, To::Minus(freed()));
    permits.into_iter().fold(update, |update, (permit, fence)| update.remove(permit).remove(fence))
}

/// The fence of a semaphore is a number that can be incremented.
fn fence_can_grow() -> Condition<'static> {
    any([FENCE.missing(), FENCE.between(count("zero", 0_u8), count("max_fence", MAX_FENCE))])
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
