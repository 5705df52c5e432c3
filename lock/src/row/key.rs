//! A key: the row that one owner has at a time, as a lock or as a record of idempotency. Its rules are also those of each row
//! of [several keys](super::keys).

use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::claim::{Claim, Claimed, LeavesTo, Rank};
use super::expression::{Attribute as _, Condition, Path, To, Update, all, any, count, not, text, value};
use super::names::{
    ACQUIRED_AT, COMPLETED, DATA, EXPIRATION, FENCE, HEAD, HELD_SINCE, HOLDER, IN_PROGRESS, LEASE_END, MAX_FENCE,
    MAX_SEQUENCE, OWNER, RELEASED, RESERVED_BY, RESERVED_UNTIL, RESUMED, SEQUENCE, STATUS, TAIL, TAIL_UNTIL,
    TRACEPARENT, WITHDRAWN,
};
use super::owner::{is_same_identity, split};
use super::read::{Row, Unreadable, number_at};
#[cfg(feature = "idempotency")]
use super::record::RecordClaim;
use super::rules::{Field, Own, OwnRow, Release, Rules, Trace};
use super::table::{Item, Table};
use super::write::{Refused, Write};
use crate::clock::{Moment, millis, seconds_up};
use crate::error::{Cause, Error};
use crate::holder::Data;
use crate::limits::{MAX_LEASE, check_key};
use crate::queue::Reservation;

#[derive(Clone, Debug)]
pub(crate) struct Key {
    key: String,
    /// What makes the row a record of idempotency.
    #[cfg(feature = "idempotency")]
    record: Option<RecordClaim>,
}

impl Key {
    pub(super) fn new(key: String) -> Self {
        Self {
            key,
            #[cfg(feature = "idempotency")]
            record: None,
        }
    }

    #[cfg(feature = "idempotency")]
    pub(super) fn with_record(key: String, record: RecordClaim) -> Self {
        Self { key, record: Some(record) }
    }

    fn unreadable(&self, why: Unreadable, table: &Table) -> Error {
        #[cfg(feature = "idempotency")]
        if self.is_record() {
            return RecordClaim::unreadable(why, table, &self.key);
        }
        why.into_error(table.place(), &self.key)
    }

    /// Returns the end of the time for which a record shows an unfinished run, if that is to be rejected.
    #[cfg_attr(
        not(feature = "idempotency"),
        expect(clippy::unused_self, reason = "without the feature there are no records")
    )]
    fn window_end(&self, now: Moment) -> Duration {
        #[cfg(feature = "idempotency")]
        return self.record.as_ref().and_then(|record| record.window_end(now)).unwrap_or_default();
        #[cfg(not(feature = "idempotency"))]
        {
            let _ = now;
            Duration::ZERO
        }
    }

    #[cfg_attr(
        not(feature = "idempotency"),
        expect(clippy::unused_self, reason = "without the feature there are no records")
    )]
    fn is_record(&self) -> bool {
        #[cfg(feature = "idempotency")]
        return self.record.is_some();
        #[cfg(not(feature = "idempotency"))]
        false
    }
}

impl Rules for Key {
    fn boxed(&self) -> Box<dyn Rules> {
        Box::new(self.clone())
    }

    fn keys(&self) -> &[String] {
        std::slice::from_ref(&self.key)
    }

    fn check(&self, key_prefix: &str) -> Result<(), Error> {
        check_key(key_prefix, &self.key)
    }

    fn longest_lease(&self) -> Duration {
        if self.is_record() { crate::limits::DAY } else { MAX_LEASE }
    }

    /// The outcome of a record's run is for all who wait for it, so they do not take turns.
    fn takes_place(&self) -> bool {
        !self.is_record()
    }

    fn kept_until(&self, table: &Table, now: Moment, end: Duration) -> Duration {
        table.kept_after(end).max(self.window_end(now))
    }

    fn claim<'a>(&'a mut self, table: &Table, owner: &'a str, claim: &'a Claim<'_>) -> Write<'a> {
        let over = is_over(table, owner, claim, claim.rank());
        #[cfg(feature = "idempotency")]
        let over = match &self.record {
            Some(record) => record.is_over(over, claim.now),
            None => over,
        };
        let mut update = take(&self.key, owner, claim)
            .set(FENCE, To::Next(FENCE.into(), count("now_micros", claim.micros())))
            .when(can_be_taken(table, owner, claim, over))
            .returning(ReturnValue::AllOld);
        update = serve(claim.with_extras(update), claim.rank());
        #[cfg(feature = "idempotency")]
        if let Some(record) = &self.record {
            update = record.begin(update);
        }
        update.into()
    }

    /// The row as it was before shows the last holder, and the present row follows from it.
    fn granted(&mut self, table: &Table, _owner: &str, claim: &Claim<'_>, mut before: Item) -> Result<Claimed, Error> {
        let fence = number_at(&before, FENCE, MAX_FENCE).map_err(|why| table.malformed(&self.key, why))?;
        let left = before.remove(DATA).map(Data).filter(|_| !self.is_record());
        let last = Row::read(before).map(|row| row.into_holder(claim.now)).ok();
        Ok(Claimed::Granted {
            fences: vec![claim.fence_after(fence)],
            data: claim.data.cloned().or(left),
            hold_time: last.as_ref().and_then(|holder| holder.queue.hold_time),
            taken_from: last.filter(|holder| !holder.completed && !holder.released).into_iter().collect(),
        })
    }

    fn denied(
        &mut self,
        table: &Table,
        owner: &str,
        claim: &Claim<'_>,
        refused: Refused,
    ) -> Result<Option<Claimed>, Error> {
        let key = &self.key;
        let row = refused.rows.into_iter().next().map_or(Ok(None), |(_, row)| row);
        let row = row.map_err(|why| self.unreadable(why, table))?;
        let row = row.ok_or_else(|| table.malformed(key, "the refusal names no row"))?;
        if row.is_owned_by(owner) {
            let Row { fence, end, queue, data, .. } = row;
            let fences = fence.into_iter().collect();
            return Ok(Some(Claimed::Already { fences, end, hold_time: queue.hold_time, data }));
        }
        if row.semaphore.is_some() {
            let not = if self.is_record() { "a record of idempotency" } else { "a lock" };
            return Err(Error::new(Cause::WrongKind { is: "a semaphore", not }, table.place(), key));
        }
        if may_be_taken(&row, owner, claim) && row.fence > Some(MAX_FENCE) {
            return Err(table.last_fence(key));
        }
        let holder = row.into_holder(claim.now);
        #[cfg(feature = "idempotency")]
        if let Some(record) = &self.record {
            let completed = record.refusal(holder).map_err(|cause| Error::new(*cause, table.place(), key))?;
            return Ok(Some(Claimed::Completed(Box::new(completed))));
        }
        Err(Error::new(Cause::Held(holder), table.place(), key))
    }

    fn at(&self, _owner: &str, field: Field) -> Path {
        at(field)
    }

    fn is_held<'a>(&self, owner: &'a str, now: u64) -> Condition<'a> {
        is_held(owner, now)
    }

    fn trace(&self, row: Option<&Row>, owner: &str, now: Moment) -> Trace {
        trace(row, owner, now)
    }

    fn release<'a>(&self, of: OwnRow<'a>, release: &Release<'_>, _is_first: bool) -> Update<'a> {
        self::release(of, release)
    }

    fn withdrawal<'a>(&self, of: OwnRow<'a>, row: Option<&Row>, now: Moment) -> Option<Update<'a>> {
        Some(withdrawal(of, row, now))
    }
}

/// Begins the update that takes a row.
pub(super) fn take<'a>(key: &'a str, owner: &'a str, claim: &'a Claim<'_>) -> Update<'a> {
    let update = Update::new(key)
        .set(STATUS, text("in_progress", IN_PROGRESS))
        .set(OWNER, text("owner", owner))
        .set(HOLDER, text("holder", claim.holder))
        .set(ACQUIRED_AT, count("now", claim.now.millis()))
        .set(LEASE_END, count("lease_end", claim.lease.end))
        .set(EXPIRATION, count("expiration", claim.lease.expiration))
        .set(SEQUENCE, count("zero", 0_u8));
    let update = if claim.takes_over {
        update.set(HELD_SINCE, To::DefaultOf(ACQUIRED_AT.into()))
    } else {
        update.remove(HELD_SINCE)
    };
    match claim.trace {
        Some(context) => update.set(TRACEPARENT, value("traceparent", AttributeValue::S(format!("{owner} {context}")))),
        None => update,
    }
}

/// There is no row; or this nonce was neither used nor freed, the fence can grow, and the row is free or of the same
/// identity. `over` says when the lease of one in progress has ended.
pub(super) fn can_be_taken<'a>(table: &Table, owner: &'a str, claim: &Claim<'_>, over: Condition<'a>) -> Condition<'a> {
    let is_other = [OWNER, WITHDRAWN, RELEASED].map(|name| name.differs_from(text("owner", owner)));
    let is_new = all(is_other).and(fence_can_grow());
    let is_of_identity = split(owner).map(|(start, _)| is_of_identity(start, claim));
    match is_of_identity {
        Some(is_of_identity) if claim.takes_over => is_new.and(is_of_identity),
        is_of_identity => {
            let mut free = is_free(claim, over);
            free.extend(is_of_identity);
            any([table.partition_key_path().missing(), is_new.and(Condition::Any(free))])
        }
    }
}

/// The row that refused this owner is free or of the same identity, so that the fence may be the reason.
pub(super) fn may_be_taken(row: &Row, owner: &str, claim: &Claim<'_>) -> bool {
    let is_of_identity = row.owner.as_ref().is_some_and(|other| is_same_identity(owner, other));
    is_of_identity || row.end <= claim.now.millis()
}

/// No acquisition is later than the one that was seen, if its fence is known. A fence that another program wrote may have a
/// fraction.
pub(super) fn has_no_later(fence: Path, seen: Option<u64>) -> Option<Condition<'static>> {
    seen.map(|seen| fence.below(count("next_fence", u128::from(seen) + 1)))
}

pub(super) fn fence_can_grow() -> Condition<'static> {
    any([FENCE.missing(), FENCE.between(count("zero", 0_u8), count("max_fence", MAX_FENCE))])
}

/// The conditions under which a row is free; `over` says when the lease of one in progress has ended.
fn is_free<'a>(claim: &Claim<'_>, over: Condition<'a>) -> Vec<Condition<'a>> {
    let in_progress = || STATUS.is(text("in_progress", IN_PROGRESS));
    let has_expired = || EXPIRATION.at_most(count("now_seconds", claim.now.wall.as_secs()));
    vec![
        all([STATUS.is(text("completed", COMPLETED)), has_expired()]),
        all([in_progress(), over]),
        all([in_progress(), LEASE_END.missing(), has_expired()]),
    ]
}

/// Serves the place of this rank. A waiter that was paused while others were served may not set the queue back: it asks
/// again without its place.
pub(super) fn serve(update: Update<'_>, rank: Rank) -> Update<'_> {
    match rank.place {
        Some(place) => update.when(not(HEAD.above(count("place", place)))).set(HEAD, count("place", place)),
        None => update,
    }
}

/// No other waiter has reserved the key, until the latest end that counts.
pub(super) fn is_not_reserved(owner: &str, now: Moment, latest: u64) -> Condition<'_> {
    let is_reserved = RESERVED_UNTIL.between(count("next_ms", now.millis() + 1), count("latest", latest));
    any([not(is_reserved), RESERVED_BY.is(text("owner", owner))])
}

/// The lease has ended, for an attempt of this rank.
pub(super) fn is_over<'a>(table: &Table, owner: &'a str, claim: &Claim<'_>, rank: Rank) -> Condition<'a> {
    let over = || LEASE_END.at_most(count("now", claim.now.millis()));
    let a_moment_ago = |moment| LEASE_END.at_most(count("moment_ago", millis(claim.now.wall.saturating_sub(moment))));
    let is_turn = match rank.leaves_to {
        LeavesTo::Nobody => return over(),
        LeavesTo::Reservation => over(),
        LeavesTo::Queue { moment } => {
            let is_empty = any([not(HEAD.below(TAIL)), TAIL_UNTIL.at_most(count("now", claim.now.millis()))]);
            any([a_moment_ago(moment), all([over(), is_empty])])
        }
        LeavesTo::Ahead { place, moment } => {
            let is_next = not(HEAD.below(count("place_ahead", place.saturating_sub(1))));
            any([a_moment_ago(moment), all([over(), is_next])])
        }
    };
    let latest = Reservation::latest(claim.now, table.clock_skew);
    all([is_turn, is_not_reserved(owner, claim.now, latest)])
}

/// An earlier acquire of the same identity holds the row. A late duplicate of that acquire must not take it back.
fn is_of_identity<'a>(start: &'a str, claim: &Claim<'_>) -> Condition<'a> {
    all([
        STATUS.is(text("in_progress", IN_PROGRESS)),
        OWNER.begins_with(text("identity", start)),
        RELEASED.differs_from(OWNER),
        LEASE_END.above(count("now", claim.now.millis())),
        ACQUIRED_AT.below(count("now", claim.now.millis())),
        FENCE.exists(),
    ])
}

pub(super) fn at(field: Field) -> Path {
    match field {
        Field::LeaseEnd => LEASE_END,
        Field::Sequence => SEQUENCE,
        Field::Fence => FENCE,
        Field::Resumed => RESUMED,
    }
    .into()
}

pub(super) fn is_held(owner: &str, now: u64) -> Condition<'_> {
    all([
        OWNER.is(text("owner", owner)),
        STATUS.is(text("in_progress", IN_PROGRESS)),
        RELEASED.differs_from(text("owner", owner)),
        LEASE_END.above(count("now", now)),
    ])
}

pub(super) fn trace(row: Option<&Row>, owner: &str, now: Moment) -> Trace {
    let Some(row) = row else { return Trace::NoRow };
    let is_released = row.is_released_by(owner);
    if !row.is_owned_by(owner) {
        return Trace::Other { holder: Some(Box::new(row.clone().into_holder(now))), is_released };
    }
    Trace::Own(Own {
        fence: row.fence,
        end: row.end,
        sequence: row.sequence,
        is_released,
        resumed: row.resumed.clone(),
        acquired_at: row.acquired_at,
        completed: row.is_completed_by(owner).then(|| Box::new(row.clone().into_holder(now))),
    })
}

/// The row keeps its owner, and its end is not before the release. So it refuses a late duplicate of an acquire of this
/// owner, and of any acquire that was sent more than the clock skew before the release. It also refuses a release that
/// arrives after a later release of the same owner.
pub(super) fn release<'a>(OwnRow { table, key, owner }: OwnRow<'a>, release: &Release<'_>) -> Update<'a> {
    let Release { sequence, asked_at, hold, data, .. } = *release;
    // Not before an attempt of the acquire, even if the clock was set back as far as the clock skew allows. Each end is then
    // after them, and each acquire after the previous end. So the row refuses a late duplicate of an acquire, even when
    // another owner has replaced it.
    let end = release.end_of_hold().max(asked_at);
    let update = Update::new(key)
        .when(OWNER.is(text("owner", owner)))
        .when(STATUS.is(text("in_progress", IN_PROGRESS)))
        .when(SEQUENCE.below(count("sequence", sequence)))
        .set(LEASE_END, count("lease_end", millis(end)))
        .set(EXPIRATION, count("expiration", seconds_up(table.kept_after(end))))
        .set(RELEASED, text("owner", owner))
        .set(SEQUENCE, count("sequence", sequence))
        .set_data(data);
    match hold {
        Some(hold) => hold.set_in(update, release.end_of_hold()),
        None => update,
    }
}

/// Makes the row refuse this owner, if the row is unchanged.
///
/// Without a withdrawal, the row refuses a late acquire only if this host's clock is not ahead of the clock of the last
/// holder to release. The row has one nonce of this kind: a second withdrawal replaces the first.
pub(super) fn withdrawal<'a>(OwnRow { table, key, owner }: OwnRow<'a>, row: Option<&Row>, now: Moment) -> Update<'a> {
    let expiration = seconds_up(table.kept_after(now.wall));
    let update = Update::new(key);
    let owner_value = || text("owner", owner);
    let in_progress = || text("in_progress", IN_PROGRESS);
    // Others may have freed what this owner had.
    let is_not_held = || any([OWNER.differs_from(owner_value()), SEQUENCE.is(count("last", MAX_SEQUENCE))]);
    match row {
        // The new row looks as if the owner had released it.
        None => update
            .when(table.partition_key_path().missing())
            .set(OWNER, owner_value())
            .set(RELEASED, owner_value())
            .set(STATUS, in_progress())
            .set(ACQUIRED_AT, count("now", now.millis()))
            .set(LEASE_END, count("now", now.millis()))
            .set(EXPIRATION, count("expiration", expiration)),
        // TTL could delete this row before the late attempt arrives. (The TTL of a completed row is the end of its window,
        // and stays.)
        Some(row) if row.is_deleted_before(expiration) => update
            .when(is_not_held())
            .when(STATUS.is(in_progress()))
            .when(LEASE_END.exists())
            .when(ACQUIRED_AT.exists())
            .when(EXPIRATION.below(count("expiration", expiration)))
            .set(WITHDRAWN, owner_value())
            .set(EXPIRATION, count("expiration", expiration)),
        Some(_) => update.when(STATUS.exists()).when(is_not_held()).set(WITHDRAWN, owner_value()),
    }
}
