//! A permit of a semaphore: a part of a row that up to N owners have at a time.
//!
//! The row counts its permits. Each request that adds or removes a permit changes the count under a condition on that
//! permit, so the count and the permits agree:
//!
//! ```text
//!   acquire                 the count is below N, and there is nothing of this owner         count + 1
//!   replace k that ended    each of the k is as it was seen, and the count is below N + k    count - k + 1
//!   take over               the permit is there, and the count is not 0                      the same
//!   release                 the permit is there                                              count - 1
//! ```

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::claim::{Claim, Claimed, LeavesTo};
use super::expression::{
    Attribute as _, Condition, Path, To, Update, all, any, count, not, number, string, text, value,
};
use super::key::{fence_can_grow, has_no_later};
use super::names::{
    DATA, EXPIRATION, FENCE, FREED_AT, HEAD, MAX_FENCE, PERMIT_FENCE_PREFIX, PERMIT_PREFIX, PERMITS, SEMAPHORE, STATUS,
    TAIL, TAIL_UNTIL, WITHDRAWN, permit, tombstone,
};
use super::owner::{is_same_identity, split};
use super::read::{self, Row, number_at};
use super::rules::{Field, Own, OwnRow, Release, Rules, TRIES, Trace};
use super::semaphore::{self, Semaphore, Tombstone};
use super::table::{Item, Table};
use super::write::{Answer, Refused, Write};
use crate::clock::{Moment, millis, seconds_up};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder, HolderKind};
use crate::limits::{DAY, MAX_PERMIT_DATA_BYTES, MAX_PERMITS, check_key, check_permits};
use crate::queue::Queue;
use crate::random;

/// How many waiters may take as many free permits at once, beside all.
const TOGETHER: [u32; 8] = [1, 2, 3, 4, 8, 16, 32, 64];
/// How many tombstones a row keeps, and for how long. Each makes every write of the row larger by about 70 bytes.
const TOMBSTONES: usize = 16;
const TOMBSTONE_AGE: Duration = Duration::from_mins(1);
/// How many tombstones one request removes, so that its expressions stay below DynamoDB's 4 KB.
const REMOVED_AT_ONCE: usize = 32;
/// How many permits one request releases by force, so that its condition has at most 300 operators.
const FORCED_AT_ONCE: usize = 40;
/// Of the releases that find so many tombstones to remove, about one in this number sends a request for it.
const REMOVALS_EVERY: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Permit {
    key: String,
    /// How many permits the semaphore has.
    permits: u32,
    /// What the row had at the acquire. The release removes old tombstones of it.
    seen: Option<Semaphore>,
    /// The permits that the next attempt replaces.
    ended: Vec<semaphore::Permit>,
    /// The place of this waiter, if one behind it was served first.
    passed: Option<u64>,
    /// The next attempt takes the permit over from an earlier acquire of the same identity.
    takes_over: bool,
}

impl Permit {
    pub(super) const IN_TICKETS: &'static str = "permit";

    pub(super) fn new(key: String, permits: u32) -> Self {
        Self { key, permits, seen: None, ended: Vec::new(), passed: None, takes_over: false }
    }

    /// Returns the place that an attempt serves if it succeeds.
    fn place(&self, claim: &Claim<'_>) -> Option<u64> {
        claim.rank().place.filter(|place| self.passed != Some(*place))
    }

    /// Returns numbers up to that of the permits. As many waiters may take as many free permits at once.
    fn together(&self) -> impl Iterator<Item = u32> {
        TOGETHER.into_iter().take_while(|many| *many < self.permits).chain([self.permits])
    }

    /// There is nothing of this owner, so the request is no duplicate. If the owner has an identity, an earlier owner has left
    /// what this attempt replaces, or nothing.
    fn has_no_permit<'a>(&self, owner: &'a str, claim: &Claim<'_>) -> Condition<'a> {
        let permit = || paths(owner).0;
        let Some((_, nonce)) = split(owner) else { return permit().missing() };
        let is_other = permit().entry(permit::NONCE).differs_from(text("nonce", nonce));
        let is_not_withdrawn = permit().entry(permit::WITHDRAWN).differs_from(text("nonce", nonce));
        let now = || count("now", claim.now.millis());
        if self.takes_over {
            return all([
                permit().entry(permit::LEASE_END).above(now()),
                permit().entry(permit::RELEASED).missing(),
                permit().entry(permit::ACQUIRED_AT).below(now()),
                is_other,
                is_not_withdrawn,
            ]);
        }
        if self.ended.iter().any(|ended| is_same_identity(owner, &ended.owner)) {
            return all([permit().entry(permit::LEASE_END).at_most(now()), is_other, is_not_withdrawn]);
        }
        let is_tombstone = permit().entry(tombstone::RELEASED_AT).at_most(now());
        any([permit().missing(), all([is_tombstone, is_other, is_not_withdrawn])])
    }

    /// There is a free permit for a waiter of this rank, beside those for the waiters ahead, while `ended` permits are
    /// replaced.
    fn is_turn(&self, table: &Table, claim: &Claim<'_>, ended: usize) -> Option<Condition<'static>> {
        let (Claim { now, .. }, moment) = (claim, claim.rank().moment()?);
        let moment_ago = count("moment_ago", millis(now.wall.saturating_sub(moment)) + 1);
        // A time that is farther ahead is wrong.
        let is_recent = FREED_AT.between(moment_ago, count("latest", latest(table, *now)));
        let mut is_turn = vec![not(is_recent)];
        if let LeavesTo::Ahead { place, .. } = claim.rank().leaves_to {
            is_turn.extend(self.together().map(|many| {
                let is_near = not(HEAD.below(count("place_ahead", place.saturating_sub(many.into()))));
                all([is_near, PERMITS.at_most(count("others", u128::from(self.permits - many) + ended as u128))])
            }));
        } else {
            is_turn.push(not(HEAD.below(TAIL)));
            is_turn.push(TAIL_UNTIL.at_most(count("now", now.millis())));
        }
        Some(Condition::Any(is_turn))
    }

    /// Returns `true` if this row gives a permit to a waiter of this rank: what [`is_turn`](Self::is_turn) says, and what
    /// the ends of leases say.
    fn is_turn_in(&self, table: &Table, claim: &Claim<'_>, queue: &Queue, semaphore: &Semaphore) -> bool {
        let Some(moment) = claim.rank().moment() else { return true };
        let moment_ago = millis(claim.now.wall.saturating_sub(moment));
        let freed_at = semaphore.freed_at.filter(|freed_at| *freed_at <= latest(table, claim.now));
        if freed_at.max(self.ended.iter().map(|permit| permit.lease_end).max()) <= Some(moment_ago) {
            return true;
        }
        let held = semaphore.permits.len() - self.ended.len();
        let free = u64::from(self.permits).saturating_sub(held as u64);
        match claim.rank().leaves_to {
            LeavesTo::Ahead { place, .. } => {
                let ahead = place.saturating_sub(queue.head).saturating_sub(1);
                self.together().map(u64::from).any(|many| ahead < many && many <= free)
            }
            _ => queue.waiters(claim.now) == 0,
        }
    }

    /// A permit that another process has acquired. A ticket does not say how many there are, and only an acquire needs it.
    pub(super) fn handed_over(key: String) -> Self {
        Self::new(key, MAX_PERMITS)
    }
}

impl Rules for Permit {
    fn boxed(&self) -> Box<dyn Rules> {
        Box::new(self.clone())
    }

    fn in_tickets(&self) -> Option<&'static str> {
        Some(Self::IN_TICKETS)
    }

    fn keys(&self) -> &[String] {
        std::slice::from_ref(&self.key)
    }

    fn check(&self, key_prefix: &str) -> Result<(), Error> {
        check_key(key_prefix, &self.key)?;
        check_permits(&self.key, self.permits)
    }

    fn capacity(&self) -> u32 {
        self.permits
    }

    fn longest_data(&self) -> usize {
        MAX_PERMIT_DATA_BYTES
    }

    fn kept_until(&self, table: &Table, now: Moment, _end: Duration) -> Duration {
        kept_until(table, now)
    }

    /// Permits whose lease has ended are replaced.
    fn claim<'a>(&'a mut self, table: &Table, owner: &'a str, claim: &'a Claim<'_>) -> Write<'a> {
        self.takes_over |= claim.takes_over;
        // The clock may have stepped back since they were seen.
        self.ended.retain(|permit| permit.lease_end <= claim.now.millis());
        let (permit, permit_fence) = paths(owner);
        let nonce = split(owner).map(|(_, nonce)| nonce);
        let held = [
            (permit::HOLDER, string(claim.holder)),
            (permit::ACQUIRED_AT, number(claim.now.millis())),
            (permit::LEASE_END, number(claim.lease.end)),
            (permit::SEQUENCE, number(0_u8)),
        ];
        let held = map(held.into_iter().chain(nonce.map(|nonce| (permit::NONCE, string(nonce)))));
        // The fence of a new row starts at the clock in microseconds, as that of a key.
        let next_fence = || To::Next(FENCE.into(), count("now_micros", claim.micros()));
        let ended = self.ended.len() as u128;
        let most = count("most", u128::from(self.permits - 1) + ended);
        let mut is_new = Condition::All(vec![
            STATUS.is(text("semaphore", SEMAPHORE)),
            self.has_no_permit(owner, claim),
            fence_can_grow(),
        ]);
        if nonce.is_some() {
            is_new = is_new.and(WITHDRAWN.differs_from(text("owner", owner)));
        }
        if self.takes_over {
            let at = |name| permit.clone().entry(name);
            let update = Update::new(&self.key)
                .returning(ReturnValue::AllOld)
                .when(is_new)
                // Its release needs as many.
                .when(PERMITS.at_least(count("one", 1_u8)))
                .set(at(permit::NONCE), text("nonce", nonce.unwrap_or_default()))
                .set(at(permit::HOLDER), text("holder", claim.holder))
                .set(at(permit::HELD_SINCE), To::DefaultOf(at(permit::ACQUIRED_AT)))
                .set(at(permit::ACQUIRED_AT), count("now", claim.now.millis()))
                .set(at(permit::LEASE_END), count("lease_end", claim.lease.end))
                .set(at(permit::SEQUENCE), count("zero", 0_u8))
                .set(FENCE, next_fence())
                .set(permit_fence, next_fence())
                .set(EXPIRATION, count("expiration", claim.lease.expiration))
                .remove(at(permit::RESUMED));
            return claim.with_extras(update).into();
        }
        if let Some(is_turn) = self.is_turn(table, claim, self.ended.len()) {
            is_new = is_new.and(is_turn);
        }
        let place = self.place(claim);
        if let Some(place) = place {
            is_new = is_new.and(not(HEAD.above(count("place", place))));
        }
        let update = Update::new(&self.key)
            .returning(ReturnValue::AllOld)
            .set(STATUS, text("semaphore", SEMAPHORE))
            .set(permit, value("permit", held))
            .set(FENCE, next_fence())
            .set(permit_fence, next_fence())
            .set(EXPIRATION, count("expiration", claim.lease.expiration));
        let mut update = claim.with_extras(update);
        if let Some(place) = place {
            update = update.set(HEAD, count("place", place));
        }
        if self.ended.is_empty() {
            let has_room = PERMITS.between(count("zero", 0_u8), most);
            return update
                .set(PERMITS, To::Next(PERMITS.into(), count("zero", 0_u8)))
                .when(any([table.partition_key_path().missing(), is_new.and(has_room)]))
                .into();
        }
        update = update
            .set(PERMITS, To::Minus(count("fewer", ended - 1)))
            .set(FREED_AT, count("now", claim.now.millis()))
            .when(is_new)
            .when(PERMITS.between(count("ended", ended), most));
        for (index, permit) in self.ended.iter().enumerate() {
            let (path, fence) = other_paths(index, &permit.owner);
            // It was not renewed, taken over or released meanwhile: what it leaves follows from what was seen.
            update = update.when(path.clone().is(value("seen", permit.seen.clone())));
            if is_same_identity(owner, &permit.owner) {
                continue;
            }
            update = update.remove(fence);
            update = if permit.released {
                // The release may be repeated, and recognises itself.
                let tombstone = tombstone_of(&permit.owner, claim.now.millis(), None);
                update.set(path, value("tombstone", tombstone))
            } else if let Some((identity, _)) = split(&permit.owner) {
                // It refuses what earlier owners of the identity still send, and tells them that they lost the permit. It has
                // the nonce of the one that replaced it, because no owner of the identity has released it.
                let nonce = split(owner).map_or(owner, |(_, nonce)| nonce);
                let tombstone = tombstone_of(&format!("{identity}{nonce}"), claim.now.millis(), None);
                update.set(path, value("tombstone", tombstone))
            } else {
                update.remove(path)
            };
        }
        update.into()
    }

    /// The row is as it was before.
    fn granted(&mut self, table: &Table, owner: &str, claim: &Claim<'_>, mut before: Item) -> Result<Claimed, Error> {
        let fence = number_at(&before, FENCE, MAX_FENCE).map_err(|why| table.malformed(&self.key, why))?;
        let left = before.remove(DATA).map(Data);
        let hold_time = read::queue(&before).hold_time;
        let mut seen = Semaphore::read(&mut before).unwrap_or_default();
        // The permit has the place of the identity's own tombstone.
        seen.tombstones.retain(|tombstone| !is_same_identity(owner, &tombstone.owner));
        self.seen = Some(seen);
        let crashed = std::mem::take(&mut self.ended).into_iter().filter(|permit| !permit.released);
        let taken_over = self.takes_over.then(|| self.seen.as_ref()?.permit_of_identity(owner).cloned()).flatten();
        Ok(Claimed::Granted {
            fences: vec![claim.fence_after(fence)],
            data: claim.data.cloned().or(left),
            taken_from: crashed.chain(taken_over).map(|permit| permit.into_holder(claim.now)).collect(),
            hold_time,
        })
    }

    fn denied(
        &mut self,
        table: &Table,
        owner: &str,
        claim: &Claim<'_>,
        refused: Refused,
    ) -> Result<Option<Claimed>, Error> {
        self.takes_over = false;
        let Some(mut row) = refused.into_row(table)? else {
            // The permits to replace are gone with their row.
            self.ended.clear();
            return Ok(None);
        };
        let Some(semaphore) = row.semaphore.take() else {
            let cause = Cause::WrongKind { is: "a lock or a record of idempotency", not: "a semaphore" };
            return Err(Error::new(cause, table.place(), &self.key));
        };
        if let Some(permit) = semaphore.permit(owner) {
            let (fences, end) = (permit.fence.into_iter().collect(), permit.lease_end);
            self.seen = Some(semaphore);
            return Ok(Some(Claimed::Already { fences, data: row.data, end, hold_time: row.queue.hold_time }));
        }
        if semaphore.tombstone(owner).is_some() {
            // An earlier attempt was applied, and an operator has freed the permit since, or others for its identity.
            return Ok(Some(Claimed::Lost));
        }
        let now = claim.now.millis();
        let has_ended = |permit: &&semaphore::Permit| permit.lease_end <= now;
        let earlier = semaphore.permit_of_identity(owner).filter(|permit| permit.lease_end > now);
        self.takes_over = earlier.is_some_and(|permit| !permit.released && permit.acquired_at < Some(now));
        if self.takes_over {
            if row.fence > Some(MAX_FENCE) {
                return Err(table.last_fence(&self.key));
            }
            self.ended.clear();
            return Ok(None);
        }
        // The clock of the earlier acquire was ahead, or it has released the permit, which counts until its minimum hold ends.
        let released = semaphore.tombstone_of_identity(owner).filter(|tombstone| tombstone.released_at > now).cloned();
        if earlier.is_some() || released.is_some() || claim.takes_over {
            row.semaphore = Some(semaphore.with_released(released));
            return Err(Error::new(Cause::Held(row.into_holder(claim.now)), table.place(), &self.key));
        }
        self.ended = semaphore.permits.iter().filter(has_ended).cloned().collect();
        if semaphore.permits.len() - self.ended.len() >= self.permits as usize {
            row.semaphore = Some(semaphore);
            return Err(Error::new(Cause::Held(row.into_holder(claim.now)), table.place(), &self.key));
        }
        if row.fence > Some(MAX_FENCE) {
            return Err(table.last_fence(&self.key));
        }
        if !self.is_turn_in(table, claim, &row.queue, &semaphore) {
            // Those ahead replace them.
            self.ended.clear();
            row.semaphore = Some(semaphore);
            return Err(Error::new(Cause::Held(row.into_holder(claim.now)), table.place(), &self.key));
        }
        self.passed = claim.rank().place.filter(|place| *place < row.queue.head);
        self.ended.truncate(MAX_PERMITS as usize);
        Ok(None)
    }

    fn at(&self, owner: &str, field: Field) -> Path {
        let (permit, permit_fence) = paths(owner);
        match field {
            Field::LeaseEnd => permit.entry(permit::LEASE_END),
            Field::Sequence => permit.entry(permit::SEQUENCE),
            Field::Fence => permit_fence,
            Field::Resumed => permit.entry(permit::RESUMED),
        }
    }

    /// The permit is neither released nor replaced.
    fn is_held<'a>(&self, owner: &'a str, now: u64) -> Condition<'a> {
        let (permit, _) = paths(owner);
        let is_held = all([
            permit.clone().entry(permit::LEASE_END).above(count("now", now)),
            permit.clone().entry(permit::RELEASED).missing(),
        ]);
        match is_of(permit, owner) {
            Some(is_own) => is_held.and(is_own),
            None => is_held,
        }
    }

    fn trace(&self, row: Option<&Row>, owner: &str, now: Moment) -> Trace {
        let Some(semaphore) = row.and_then(|row| row.semaphore.as_ref()) else { return Trace::NoRow };
        if let Some(permit) = semaphore.permit(owner) {
            return Trace::Own(Own {
                fence: permit.fence,
                end: permit.lease_end,
                sequence: Some(permit.sequence),
                is_released: permit.released,
                resumed: permit.resumed.clone(),
                acquired_at: permit.acquired_at,
                completed: None,
            });
        }
        match semaphore.tombstone(owner) {
            Some(tombstone) if tombstone.forced_by.is_some() => {
                let holder = Some(Box::new(tombstone.clone().into_holder()));
                Trace::Other { holder, is_released: false }
            }
            Some(_) => Trace::Other { holder: None, is_released: true },
            None => {
                // A later acquire of the identity has taken it over, or has taken the place of its tombstone. It may have been
                // released since.
                let later = semaphore.permit_of_identity(owner).map(|later| later.clone().into_holder(now));
                let later = later.or_else(|| Some(semaphore.tombstone_of_identity(owner)?.clone().into_holder()));
                match later {
                    Some(later) => Trace::Other { holder: Some(Box::new(later)), is_released: false },
                    None => Trace::Gone,
                }
            }
        }
    }

    fn forgets_releases(&self) -> bool {
        true
    }

    /// Frees the permit, or keeps it until the end of its minimum hold. It leaves a tombstone, so that the row refuses a late
    /// duplicate of the acquire. Also removes old tombstones that the acquire has seen.
    ///
    /// While many permits are in use, other releases have already removed the tombstones that this owner has seen, and the
    /// row grows. About every 32nd release then [tidies up](Self::tidied) those that its answer shows; up to every eighth
    /// one does while many are sent at the same moment.
    fn release<'a>(&self, of: OwnRow<'a>, release: &Release<'_>, is_first: bool) -> Update<'a> {
        let OwnRow { table, key, owner } = of;
        let Release { sequence, now, asked_at, hold_until, hold, data, .. } = *release;
        let (permit, permit_fence) = paths(owner);
        let number_of_request = || permit.clone().entry(permit::SEQUENCE);
        let mut update = Update::new(key)
            .when(number_of_request().below(count("sequence", sequence)))
            .when_some(is_of(permit.clone(), owner))
            .set(EXPIRATION, count("expiration", seconds_up(kept_until(table, now))))
            .set_data(data);
        if let Some(end) = hold_until.filter(|end| *end > now.wall) {
            update = update
                .set(permit.clone().entry(permit::LEASE_END), count("lease_end", millis(end)))
                .set(permit.clone().entry(permit::RELEASED), value("true", AttributeValue::Bool(true)))
                .set(number_of_request(), count("sequence", sequence));
        } else {
            update = update
                .when(PERMITS.at_least(count("one", 1_u8)))
                .set(permit, value("tombstone", tombstone_of(owner, millis(now.wall.max(asked_at)), None)))
                .set(PERMITS, To::Minus(count("one", 1_u8)))
                .set(FREED_AT, count("freed_at", now.millis()))
                .remove(permit_fence);
        }
        if let Some(hold) = hold {
            update = hold.set_in(update, release.end_of_hold());
        }
        let seen = self.seen.as_ref();
        // Without the acquire, nothing is known about tombstones.
        if seen.is_none_or(|seen| seen.len() >= REMOVED_AT_ONCE) {
            update = update.returning(ReturnValue::AllNew);
        }
        match seen.filter(|_| is_first) {
            Some(seen) => without_tombstones(update, &obsolete(&seen.tombstones, now)),
            None => update,
        }
    }

    /// A tombstone has changed since it was seen.
    fn adapts(&self, trace: &Trace, release: &Release<'_>) -> bool {
        let removes = self.seen.as_ref().is_some_and(|seen| !obsolete(&seen.tombstones, release.now).is_empty());
        removes && matches!(trace, Trace::Own(own) if own.sequence < Some(release.sequence))
    }

    fn tidied<'a>(&self, mut row: Item, key: &'a str, now: Moment) -> Option<Update<'a>> {
        let tombstones = Semaphore::read(&mut row).map(|semaphore| semaphore.tombstones).unwrap_or_default();
        let many = tombstones.iter().enumerate().filter(|tombstone| is_obsolete(*tombstone, now)).count();
        // Each release finds another number, so releases at the same moment do not all send a request.
        if many < REMOVED_AT_ONCE || many % REMOVALS_EVERY != 0 {
            return None;
        }
        let update = Update::new(key).when(STATUS.is(text("semaphore", SEMAPHORE)));
        Some(without_tombstones(update, &obsolete(&tombstones, now)))
    }

    /// Leaves a tombstone in the row, or in a new row without permits. What the identity has in the row is marked instead, and
    /// a tombstone that is there is dated anew.
    fn withdrawal<'a>(&self, of: OwnRow<'a>, row: Option<&Row>, now: Moment) -> Option<Update<'a>> {
        let OwnRow { table, key, owner } = of;
        let (permit, _) = paths(owner);
        let mut update = Update::new(key).set(EXPIRATION, count("expiration", seconds_up(kept_until(table, now))));
        if split(owner).is_some() {
            // Others may replace what the identity has in the row, and the mark in it.
            update = update.set(WITHDRAWN, text("owner", owner));
        }
        let with_tombstone = |update: Update<'a>, released_at| {
            update.set(permit.clone(), value("tombstone", tombstone_of(owner, released_at, None)))
        };
        let Some(row) = row else {
            return Some(
                with_tombstone(update, now.millis())
                    .when(table.partition_key_path().missing())
                    .set(STATUS, text("semaphore", SEMAPHORE))
                    .set(PERMITS, count("zero", 0_u8)),
            );
        };
        // A row of another kind refuses the attempt.
        let semaphore = row.semaphore.as_ref()?;
        let update = update.when(STATUS.is(text("semaphore", SEMAPHORE)));
        if let (Some(other), Some((_, nonce))) = (semaphore.permit_of_identity(owner), split(owner)) {
            let update = update.when(permit.clone().entry(permit::LEASE_END).above(count("zero", 0_u8)));
            let update = update.when_some(is_of(permit.clone(), &other.owner));
            return Some(update.set(permit.entry(permit::WITHDRAWN), text("nonce", nonce)));
        }
        if let Some(left) = semaphore.tombstone(owner).or_else(|| semaphore.tombstone_of_identity(owner)) {
            if split(owner).is_none() && left.forced_by.is_none() {
                // A withdrawal of this owner has left it.
                return None;
            }
            // It stays that of its owner, whose release may be unanswered. Others may have left it long ago.
            let latest = now.millis().max(left.released_at);
            let update = update
                .when(is_as_seen(&permit, left))
                .set(permit.clone().entry(tombstone::RELEASED_AT), count("released_at", latest));
            return Some(match split(owner).filter(|_| left.owner != owner) {
                Some((_, nonce)) => update.set(permit.entry(permit::WITHDRAWN), text("nonce", nonce)),
                None => update,
            });
        }
        let update = with_tombstone(update, now.millis()).when(permit.missing());
        Some(without_tombstones(update, &obsolete(&semaphore.tombstones, now)))
    }

    fn resumed(&mut self, row: Row) {
        self.seen = row.semaphore;
    }
}

impl Table {
    /// Releases the permits that were `seen`, for the operator `by`, so that their holders find them lost. `seen` is a
    /// semaphore or one permit. Returns `false` if the row is gone or not a semaphore. One request for each 40 permits, and
    /// one more each time that another permit of those was released meanwhile.
    pub(super) async fn force_release_permits(
        &self,
        key: &str,
        by: &str,
        seen: &Holder,
        now: Moment,
    ) -> Result<bool, Error> {
        let seen = if seen.kind == HolderKind::Permit { std::slice::from_ref(seen) } else { &seen.permits[..] };
        let permits = seen.iter().filter_map(|permit| Some((permit.owner()?, permit)));
        let mut permits: Vec<_> = permits.take(MAX_PERMITS as usize).collect();
        let mut refusals = 0;
        while !permits.is_empty() {
            let at_once = permits.len().min(FORCED_AT_ONCE);
            let release = self.forced_release(key, by, &permits[..at_once], now);
            let Answer::Refused(refused) = self.write(release, None).await? else {
                permits.drain(..at_once);
                continue;
            };
            let Some(semaphore) = refused.into_row(self)?.and_then(|row| row.semaphore) else { return Ok(false) };
            permits.retain(|(owner, seen)| semaphore.permit(owner).is_some_and(|permit| permit.fence == seen.fence));
            refusals += 1;
            if refusals > TRIES {
                return Err(Error::new(Cause::Conflict, self.place(), key));
            }
        }
        Ok(true)
    }

    fn forced_release<'a>(&self, key: &'a str, by: &str, permits: &[(&str, &Holder)], now: Moment) -> Update<'a> {
        let freed = || count("freed", permits.len() as u128);
        let update = Update::new(key)
            .when(PERMITS.at_least(freed()))
            .set(PERMITS, To::Minus(freed()))
            .set(EXPIRATION, count("expiration", seconds_up(kept_until(self, now))));
        permits.iter().enumerate().fold(update, |update, (index, &(owner, seen))| {
            let (permit, permit_fence) = other_paths(index, owner);
            // Not before the acquire, whose clock may be ahead.
            let released_at = now.millis().max(seen.since.unwrap_or_default().min(latest(self, now)));
            update
                .when(permit.clone().entry(permit::LEASE_END).above(count("zero", 0_u8)))
                .when_some(is_of(permit.clone(), owner))
                .when_some(has_no_later(permit_fence.clone(), seen.fence))
                .set(permit, value("tombstone", tombstone_of(owner, released_at, Some(by))))
                .remove(permit_fence)
        })
    }
}

/// Returns the latest time at which a permit may have been released, by any clock.
fn latest(table: &Table, now: Moment) -> u64 {
    millis(now.wall.saturating_add(table.clock_skew))
}

/// Returns the time until which the row stays at least. Other permits of it may have the longest lease.
fn kept_until(table: &Table, now: Moment) -> Duration {
    table.kept_after(now.wall.saturating_add(DAY).saturating_add(table.clock_skew))
}

/// Returns the names of an owner's permit and of its fence.
fn names_of(owner: &str) -> (String, String) {
    let owner = split(owner).map_or(owner, |(start, _)| start);
    (format!("{PERMIT_PREFIX}{owner}"), format!("{PERMIT_FENCE_PREFIX}{owner}"))
}

/// Returns where the row has an owner's permit and its fence.
fn paths(owner: &str) -> (Path, Path) {
    let (permit, permit_fence) = names_of(owner);
    (Path::named("permit", permit), Path::named("permit_fence", permit_fence))
}

/// Returns the same for one of several other owners.
fn other_paths(index: usize, owner: &str) -> (Path, Path) {
    let (permit, permit_fence) = names_of(owner);
    (Path::named(format!("p{index}"), permit), Path::named(format!("f{index}"), permit_fence))
}

/// Returns `true` for a tombstone to remove, which has this index among all, the newest first.
fn is_obsolete((index, tombstone): (usize, &Tombstone), now: Moment) -> bool {
    index >= TOMBSTONES || tombstone.released_at <= millis(now.wall.saturating_sub(TOMBSTONE_AGE))
}

/// Returns the tombstones to remove. They are drawn, because other releases that have seen the same row remove tombstones of
/// it, too.
fn obsolete(tombstones: &[Tombstone], now: Moment) -> Vec<&Tombstone> {
    let obsolete = tombstones.iter().enumerate().filter(|tombstone| is_obsolete(*tombstone, now));
    let mut obsolete: Vec<_> = obsolete.map(|(_, tombstone)| tombstone).collect();
    random::reseed();
    fastrand::shuffle(&mut obsolete);
    obsolete.truncate(REMOVED_AT_ONCE);
    obsolete
}

/// Adds the removal of these tombstones to an update.
fn without_tombstones<'a>(update: Update<'a>, old: &[&Tombstone]) -> Update<'a> {
    old.iter().enumerate().fold(update, |update, (index, old)| {
        let path = Path::named(format!("t{index}"), names_of(&old.owner).0);
        update.when(any([path.clone().missing(), is_as_seen(&path, old)])).remove(path)
    })
}

/// The tombstone at this path has not changed since it was seen: a late duplicate of its acquire may have made it a permit
/// again, a withdrawal may have dated it anew, and a later acquire of the same identity may have left another one. Another
/// program may have written a time with a fraction.
fn is_as_seen(path: &Path, seen: &Tombstone) -> Condition<'static> {
    let next = u128::from(seen.released_at) + 1;
    let is_as_old = path.clone().entry(tombstone::RELEASED_AT).below(count("later", next));
    match is_of(path.clone(), &seen.owner) {
        Some(is_own) => is_as_old.and(is_own),
        None => is_as_old,
    }
}

/// What is at this path belongs to this owner, not to another one of the same identity.
fn is_of(path: Path, owner: &str) -> Option<Condition<'static>> {
    split(owner).map(|(_, nonce)| path.entry(permit::NONCE).is(value("nonce", string(nonce))))
}

fn tombstone_of(owner: &str, released_at: u64, forced_by: Option<&str>) -> AttributeValue {
    let forced_by = forced_by.map(|by| (tombstone::FORCED_BY, string(by)));
    let nonce = split(owner).map(|(_, nonce)| (tombstone::NONCE, string(nonce)));
    map([(tombstone::RELEASED_AT, number(released_at))].into_iter().chain(forced_by).chain(nonce))
}

fn map<'a>(values: impl IntoIterator<Item = (&'a str, AttributeValue)>) -> AttributeValue {
    AttributeValue::M(values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<HashMap<_, _>>())
}
