//! The requests for a permit of a semaphore: acquire, renew, release, withdrawal, condition check, and the release by an
//! operator.
//!
//! The row counts its permits. Each request that adds or removes a permit changes the count under a condition on that
//! permit, so the count and the permits agree:
//!
//! ```text
//!   acquire                 the count is below N, and there is nothing of this owner      count + 1
//!   replace k that ended    each of the k has ended, and the count is below N + k         count - k + 1
//!   release                 the permit is there                                           count - 1
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, ReturnValue, ReturnValuesOnConditionCheckFailure as OnRefusal,
};

use super::claim::{Claim, Claimed};
use super::names::{
    DATA, EXPIRATION, FENCE, MAX_FENCE, PERMIT_FENCE_PREFIX, PERMIT_PREFIX, PERMITS, SEMAPHORE, STATUS, permit,
    tombstone,
};
use super::read::{Row, number_at};
use super::release::Step;
use super::semaphore::{Permit, Semaphore, Tombstone};
use super::table::{
    Expression as _, Item, Table, in_time, insist, insist_counted, number, send, send_counted, string, with_data,
};
use crate::client::SdkAttempts;
use crate::clock::{Lease, Moment, millis};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder, HolderKind};
use crate::limits::MAX_PERMITS;

/// How often a request is adapted to a row that others change meanwhile.
const TRIES: u32 = 4;

/// How many tombstones a row keeps, and for how long. Each makes every write of the row larger by about 70 bytes.
const TOMBSTONES: usize = 16;
const TOMBSTONE_AGE: Duration = Duration::from_mins(1);
/// How many tombstones one request removes, so that its expressions stay below DynamoDB's 4 KB.
const REMOVED_AT_ONCE: usize = 32;
/// Of the releases that find so many tombstones to remove, about one in this number sends a request for it.
const REMOVALS_EVERY: usize = 8;
const REMOVAL_TIMEOUT: Duration = Duration::from_millis(200);

/// Part of each acquire: there is nothing of this owner, so the request is no duplicate, and the fence can grow.
const NEW: &str = "#status = :semaphore AND attribute_not_exists(#permit) \
     AND (attribute_not_exists(#fence) OR #fence BETWEEN :zero AND :max_fence)";

/// The fence of a new row starts at the clock in microseconds, as that of a lock.
const TAKE: &str = "#status = :semaphore, #permit = :permit, #fence = if_not_exists(#fence, :now_micros) + :one, \
     #permit_fence = if_not_exists(#fence, :now_micros) + :one, #expiration = :expiration";

pub(super) const RENEW_PERMIT: &str =
    "SET #permit.#lease_end = :lease_end, #permit.#sequence = :sequence, #expiration = :expiration";

/// A permit that is held: it is neither released nor replaced.
const HELD: &str = "#permit.#lease_end > :now AND attribute_not_exists(#permit.#released)";

impl Table {
    /// Takes a permit if fewer than `limit` are held. Permits whose lease has ended are replaced. One request if there is
    /// room, or if all permits are held; two to replace permits; up to four while others change the row. Also returns what
    /// the row had before, because the release removes old tombstones of it.
    pub(crate) async fn acquire_permit(
        &self,
        claim: &Claim<'_>,
        limit: u32,
        attempts: &SdkAttempts,
    ) -> Result<(Claimed, Semaphore), Error> {
        let taken = tokio::time::timeout(claim.time_limit(), Box::pin(self.take_permit(claim, limit, attempts))).await;
        taken.unwrap_or_else(|elapsed| Err(Error::new(Cause::Unavailable, &self.name, claim.key).with_source(elapsed)))
    }

    async fn take_permit(
        &self,
        claim: &Claim<'_>,
        limit: u32,
        attempts: &SdkAttempts,
    ) -> Result<(Claimed, Semaphore), Error> {
        let Claim { key, owner, now, .. } = *claim;
        let mut ended = Vec::new();
        for _ in 0..TRIES {
            let request = self.claim_permit(claim, limit, &ended);
            let error = match send_counted(request, attempts.clone()).await {
                Ok(output) => return self.permit_claimed(claim, ended, output.attributes.unwrap_or_default()),
                Err(error) => error,
            };
            if claim.has_endless_fence(&error) {
                let why = format!("`{FENCE}` is not a whole number that can be incremented");
                return Err(self.malformed(key, why).with_source(error));
            }
            let Some(mut row) = self.refusal(error, key)? else {
                // The permits to replace are gone with their row.
                ended.clear();
                continue;
            };
            let Some(semaphore) = row.semaphore.take() else {
                let cause = Cause::WrongUse { is: "a lock or a record of idempotency", not: "a semaphore" };
                return Err(Error::new(cause, &self.name, key));
            };
            if let Some(permit) = semaphore.permit(owner) {
                let (fence, end) = (permit.fence, permit.lease_end);
                let claimed = Claimed::Already { fence, data: row.data, end, hold_time: None };
                return Ok((claimed, semaphore));
            }
            if semaphore.tombstone(owner).is_some() {
                // An earlier attempt was applied, and an operator has freed the permit since.
                let claimed = Claimed::Already { fence: None, data: None, end: 0, hold_time: None };
                return Ok((claimed, semaphore));
            }
            let (held, over): (Vec<_>, Vec<_>) =
                semaphore.permits.iter().cloned().partition(|permit| permit.lease_end > now.millis());
            if held.len() >= limit as usize {
                row.semaphore = Some(semaphore);
                return Err(Error::new(Cause::Held(row.into_holder(now)), &self.name, key));
            }
            if row.fence > Some(MAX_FENCE) {
                return Err(self.malformed(key, format!("`{FENCE}` has reached its largest value")));
            }
            ended = over;
            ended.truncate(MAX_PERMITS as usize);
        }
        // The row has changed each time.
        Err(Error::new(Cause::Conflict, &self.name, key))
    }

    /// Builds the request that takes a permit, and replaces these permits if there are any.
    fn claim_permit(&self, claim: &Claim<'_>, limit: u32, ended: &[Permit]) -> UpdateItemFluentBuilder {
        let (permit, permit_fence) = names_of(claim.owner);
        let held = [
            (permit::HOLDER, string(claim.holder)),
            (permit::ACQUIRED_AT, number(claim.now.millis())),
            (permit::LEASE_END, number(claim.lease.end)),
            (permit::SEQUENCE, number(0_u8)),
        ];
        let mut set = format!("SET {TAKE}");
        let mut request = self
            .update(claim.key)
            .return_values(ReturnValue::AllOld)
            .names([
                ("#status", STATUS),
                ("#permit", &permit),
                ("#permit_fence", &permit_fence),
                ("#permits", PERMITS),
                ("#fence", FENCE),
                ("#expiration", EXPIRATION),
            ])
            .values([
                (":semaphore", string(SEMAPHORE)),
                (":permit", map(held)),
                (":now_micros", number(claim.now.wall.as_micros())),
                (":expiration", number(claim.lease.expiration)),
                (":zero", number(0_u8)),
                (":one", number(1_u8)),
                (":max_fence", number(MAX_FENCE)),
                (":most", number(u128::from(limit - 1) + ended.len() as u128)),
            ]);
        request = claim.extras(&mut set, request);
        if ended.is_empty() {
            set.push_str(", #permits = if_not_exists(#permits, :zero) + :one");
            return request.name("#id", &self.partition_key).update_expression(set).condition_expression(format!(
                "attribute_not_exists(#id) OR ({NEW} AND #permits BETWEEN :zero AND :most)"
            ));
        }
        set.push_str(", #permits = #permits - :fewer");
        let mut condition = format!("{NEW} AND #permits BETWEEN :ended AND :most");
        request = request.name("#lease_end", permit::LEASE_END).values([
            (":ended", number(ended.len() as u128)),
            (":fewer", number(ended.len() as u128 - 1)),
            (":now", number(claim.now.millis())),
        ]);
        let mut remove = String::new();
        for (index, permit) in ended.iter().enumerate() {
            let (name, fence_name) = names_of(&permit.owner);
            let (to, fence) = (format!("#p{index}"), format!("#f{index}"));
            let _infallible = write!(condition, " AND {to}.#lease_end <= :now");
            let _infallible = write!(remove, "{}{fence}", if index == 0 { " REMOVE " } else { ", " });
            request = request.name(&to, &name).name(&fence, &fence_name);
            if permit.released {
                // The release may be repeated, and recognises itself.
                let _infallible = write!(set, ", {to} = :tombstone");
                request = request.value(":tombstone", tombstone_of(claim.now, None));
            } else {
                let _infallible = write!(remove, ", {to}");
            }
        }
        request.update_expression(set + &remove).condition_expression(condition)
    }

    /// Reads the answer, which is the row as it was before.
    fn permit_claimed(
        &self,
        claim: &Claim<'_>,
        ended: Vec<Permit>,
        mut before: Item,
    ) -> Result<(Claimed, Semaphore), Error> {
        let fence = number_at(&before, FENCE, MAX_FENCE).map_err(|why| self.malformed(claim.key, why))?;
        let fence = fence.map_or_else(|| claim.now.wall.as_micros() + 1, |fence| u128::from(fence) + 1);
        let left = before.remove(DATA).map(Data);
        let seen = Semaphore::read(&mut before).unwrap_or_default();
        let crashed = ended.into_iter().find(|permit| !permit.released);
        let claimed = Claimed::Acquired {
            fence: u64::try_from(fence).unwrap_or(u64::MAX),
            data: claim.data.cloned().or(left),
            taken_from: crashed.map(|permit| Box::new(permit.into_holder(claim.now))),
            hold_time: None,
        };
        Ok((claimed, seen))
    }

    /// Moves the end of a permit's lease, if the permit is still held. The conditions refuse duplicates as those of
    /// [`renew`](Self::renew) do. One request.
    pub(crate) async fn renew_permit(&self, step: Step<'_>, lease: Lease, data: Option<&Data>) -> Result<(), Error> {
        let Step { key, owner, sequence, now } = step;
        let (permit, _) = names_of(owner);
        let request = self
            .update(key)
            .condition_expression(format!("{HELD} AND #permit.#sequence < :sequence"))
            .names([
                ("#permit", &permit),
                ("#lease_end", permit::LEASE_END),
                ("#released", permit::RELEASED),
                ("#sequence", permit::SEQUENCE),
                ("#expiration", EXPIRATION),
            ])
            .values([
                (":now", number(now.millis())),
                (":sequence", number(sequence)),
                (":lease_end", number(lease.end)),
                (":expiration", number(lease.expiration)),
            ]);
        let Err(error) = insist(with_data(request, RENEW_PERMIT, data)).await else {
            return Ok(());
        };
        let semaphore = self.refusal(error, key)?.and_then(|row| row.semaphore);
        match semaphore.as_ref().and_then(|semaphore| semaphore.permit(owner)) {
            // An earlier attempt of this renewal was applied; its answer was lost.
            Some(permit) if !permit.released && permit.sequence == sequence => Ok(()),
            _ => Err(self.permit_lost(key, owner, semaphore.as_ref())),
        }
    }

    /// Frees a permit, or keeps it until `end` if that is later than now. Also removes old tombstones that the acquire has
    /// `seen`. One request; two if one of these has become a permit again.
    ///
    /// While many permits are in use, other releases have already removed the tombstones that this owner has seen, and the
    /// row grows. About every 32nd release then sends another request, which removes those that its answer shows; up to
    /// every eighth one does while many are sent at the same moment.
    ///
    /// Returns `false` if there is no trace of the permit after an earlier attempt, also of an earlier call with these
    /// `attempts`, that was not answered. Either that attempt was applied, and later releases have removed its tombstone, or
    /// the permit was replaced after its lease.
    pub(crate) async fn release_permit(
        &self,
        step: Step<'_>,
        end: Duration,
        expiration: u64,
        data: Option<&Data>,
        seen: &Semaphore,
        attempts: &SdkAttempts,
    ) -> Result<bool, Error> {
        let Step { key, owner, sequence, now } = step;
        let mut old = obsolete(&seen.tombstones, now);
        let row_after = (seen.len() >= REMOVED_AT_ONCE).then_some(ReturnValue::AllNew);
        loop {
            let request = self.permit_release(step, end, expiration, data, &old).set_return_values(row_after.clone());
            let error = match insist_counted(request, attempts.clone()).await {
                Ok(output) => {
                    self.remove_tombstones(key, output.attributes.unwrap_or_default(), now).await;
                    return Ok(true);
                }
                Err(error) => error,
            };
            let semaphore = self.refusal(error, key)?.and_then(|row| row.semaphore);
            let (permit, tombstone) = match &semaphore {
                Some(semaphore) => (semaphore.permit(owner), semaphore.tombstone(owner)),
                None => (None, None),
            };
            match (permit, tombstone) {
                (Some(permit), _) if permit.sequence < sequence && !old.is_empty() => old.clear(),
                (Some(permit), _) if permit.released => return Ok(true),
                (None, Some(tombstone)) if tombstone.forced_by.is_none() => return Ok(true),
                (None, None) if semaphore.is_some() && attempts.is_unanswered() => return Ok(false),
                _ => return Err(self.permit_lost(key, owner, semaphore.as_ref())),
            }
        }
    }

    /// Builds the release of a permit. It leaves a tombstone, so that the row refuses a late duplicate of the acquire.
    pub(super) fn permit_release(
        &self,
        Step { key, owner, sequence, now }: Step<'_>,
        end: Duration,
        expiration: u64,
        data: Option<&Data>,
        old: &[&str],
    ) -> UpdateItemFluentBuilder {
        let (permit, permit_fence) = names_of(owner);
        let mut condition = "#permit.#sequence < :sequence".to_owned();
        let mut request = self
            .update(key)
            .names([("#permit", &permit), ("#sequence", permit::SEQUENCE), ("#expiration", EXPIRATION)])
            .values([(":sequence", number(sequence)), (":expiration", number(expiration))]);
        let mut set = "SET #expiration = :expiration".to_owned();
        let mut remove = Vec::new();
        if end > now.wall {
            set.push_str(", #permit.#lease_end = :end, #permit.#released = :true, #permit.#sequence = :sequence");
            request = request
                .names([("#lease_end", permit::LEASE_END), ("#released", permit::RELEASED)])
                .values([(":end", number(millis(end))), (":true", AttributeValue::Bool(true))]);
        } else {
            condition.push_str(" AND #permits >= :one");
            set.push_str(", #permit = :tombstone, #permits = #permits - :one");
            remove.push("#permit_fence".to_owned());
            request = request
                .names([("#permit_fence", &permit_fence), ("#permits", PERMITS)])
                .values([(":one", number(1_u8)), (":tombstone", tombstone_of(now, None))]);
        }
        if let Some(Data(data)) = data {
            set.push_str(", #data = :data");
            request = request.name("#data", DATA).value(":data", data.clone());
        }
        request = without_tombstones(request, old, &mut condition, &mut remove);
        if !remove.is_empty() {
            let _infallible = write!(set, " REMOVE {}", remove.join(", "));
        }
        request.update_expression(set).condition_expression(condition)
    }

    /// Releases the permit if this owner has it after all. Otherwise leaves a tombstone, which refuses an attempt that
    /// arrives late. One request if the owner has a permit, two if not; up to eight if others change the row.
    pub(crate) async fn withdraw_permit(
        &self,
        key: &str,
        owner: &str,
        now: Moment,
        expiration: u64,
    ) -> Result<(), Error> {
        let step = Step { key, owner, sequence: 1, now };
        for _ in 0..TRIES {
            let release = self.permit_release(step, now.wall, expiration, None, &[]);
            let Err(error) = insist(release).await else { return Ok(()) };
            let row = self.refusal(error, key)?;
            let old = match &row {
                Some(Row { semaphore: Some(semaphore), .. }) => {
                    if semaphore.permit(owner).is_some() || semaphore.tombstone(owner).is_some() {
                        return Ok(());
                    }
                    obsolete(&semaphore.tombstones, now)
                }
                // A lock has the key, and refuses the attempt.
                Some(_) => return Ok(()),
                None => Vec::new(),
            };
            let withdrawal = self.permit_withdrawal(step, row.is_some(), expiration, &old);
            match insist(withdrawal).await {
                Ok(_) => return Ok(()),
                // The row has changed meanwhile.
                Err(error) => self.refusal(error, key).map(drop)?,
            }
        }
        Err(Error::new(Cause::Conflict, &self.name, key))
    }

    /// Builds the request that leaves a tombstone in the row, or in a new row without permits.
    fn permit_withdrawal(
        &self,
        Step { key, owner, now, .. }: Step<'_>,
        is_there: bool,
        expiration: u64,
        old: &[&str],
    ) -> UpdateItemFluentBuilder {
        let (permit, _) = names_of(owner);
        let set = "SET #permit = :tombstone, #expiration = :expiration";
        let mut request =
            self.update(key).names([("#status", STATUS), ("#permit", &permit), ("#expiration", EXPIRATION)]).values([
                (":semaphore", string(SEMAPHORE)),
                (":tombstone", tombstone_of(now, None)),
                (":expiration", number(expiration)),
            ]);
        if !is_there {
            return request
                .name("#id", &self.partition_key)
                .name("#permits", PERMITS)
                .value(":zero", number(0_u8))
                .condition_expression("attribute_not_exists(#id)")
                .update_expression(format!("{set}, #status = :semaphore, #permits = :zero"));
        }
        let mut condition = "#status = :semaphore AND attribute_not_exists(#permit)".to_owned();
        let (mut update, mut remove) = (set.to_owned(), Vec::new());
        request = without_tombstones(request, old, &mut condition, &mut remove);
        if !remove.is_empty() {
            let _infallible = write!(update, " REMOVE {}", remove.join(", "));
        }
        request.condition_expression(condition).update_expression(update)
    }

    /// Removes old tombstones of this row if there are many. One request, or none.
    pub(super) async fn remove_tombstones(&self, key: &str, mut row: Item, now: Moment) {
        let tombstones = Semaphore::read(&mut row).map(|semaphore| semaphore.tombstones).unwrap_or_default();
        let many = tombstones.iter().enumerate().filter(|tombstone| is_obsolete(*tombstone, now)).count();
        // Each release finds another number, so releases at the same moment do not all send a request.
        if many < REMOVED_AT_ONCE || many % REMOVALS_EVERY != 0 {
            return;
        }
        let old = obsolete(&tombstones, now);
        let (mut condition, mut remove) = ("#status = :semaphore".to_owned(), Vec::new());
        let request = self.update(key).name("#status", STATUS).value(":semaphore", string(SEMAPHORE));
        let request = without_tombstones(request, &old, &mut condition, &mut remove);
        let request =
            request.update_expression(format!("REMOVE {}", remove.join(", "))).condition_expression(condition);
        let _a_later_one_removes_them = in_time(REMOVAL_TIMEOUT, send(request)).await;
    }

    /// Builds the check "this owner's permit is still held" for a transaction.
    pub(crate) fn permit_check(&self, key: &str, owner: &str, now: Moment) -> Result<ConditionCheck, Error> {
        ConditionCheck::builder()
            .table_name(&self.name)
            .set_key(Some(self.key(key)))
            .condition_expression(HELD)
            .names([
                ("#permit", &names_of(owner).0),
                ("#lease_end", permit::LEASE_END),
                ("#released", permit::RELEASED),
            ])
            .value(":now", number(now.millis()))
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
            .build()
            .map_err(|error| Error::new(Cause::Rejected, &self.name, key).with_source(error))
    }

    /// Releases the permits that were `seen`, for the operator `by`, so that their holders find them lost. `seen` is a
    /// semaphore or one permit. Returns `false` if the row is gone or not a semaphore. One request, and one more each time
    /// that another permit of those was released meanwhile.
    pub(crate) async fn force_release_permits(
        &self,
        key: &str,
        by: &str,
        seen: &Holder,
        now: Moment,
        expiration: u64,
    ) -> Result<bool, Error> {
        let seen = if seen.kind == HolderKind::Permit { std::slice::from_ref(seen) } else { &seen.permits[..] };
        let mut owners: Vec<&str> = seen.iter().filter_map(Holder::owner).take(MAX_PERMITS as usize).collect();
        for _ in 0..TRIES {
            if owners.is_empty() {
                return Ok(true);
            }
            let request = self.forced_release(key, by, &owners, now, expiration);
            let Err(error) = insist(request).await else { return Ok(true) };
            let Some(semaphore) = self.refusal(error, key)?.and_then(|row| row.semaphore) else { return Ok(false) };
            owners.retain(|owner| semaphore.permit(owner).is_some());
        }
        Err(Error::new(Cause::Conflict, &self.name, key))
    }

    fn forced_release(
        &self,
        key: &str,
        by: &str,
        owners: &[&str],
        now: Moment,
        expiration: u64,
    ) -> UpdateItemFluentBuilder {
        let mut request = self
            .update(key)
            .names([("#permits", PERMITS), ("#lease_end", permit::LEASE_END), ("#expiration", EXPIRATION)])
            .values([
                (":freed", number(owners.len() as u128)),
                (":zero", number(0_u8)),
                (":tombstone", tombstone_of(now, Some(by))),
                (":expiration", number(expiration)),
            ]);
        let mut condition = "#permits >= :freed".to_owned();
        let mut set = "SET #permits = #permits - :freed, #expiration = :expiration".to_owned();
        let mut remove = String::new();
        for (index, owner) in owners.iter().enumerate() {
            let (permit, permit_fence) = names_of(owner);
            let (to, fence) = (format!("#p{index}"), format!("#f{index}"));
            let _infallible = write!(condition, " AND {to}.#lease_end > :zero");
            let _infallible = write!(set, ", {to} = :tombstone");
            let _infallible = write!(remove, "{}{fence}", if index == 0 { " REMOVE " } else { ", " });
            request = request.name(&to, &permit).name(&fence, &permit_fence);
        }
        request.condition_expression(condition).update_expression(set + &remove)
    }

    /// Returns the error of a permit that is no longer held, with the operator that released it by force.
    fn permit_lost(&self, key: &str, owner: &str, semaphore: Option<&Semaphore>) -> Error {
        let tombstone = semaphore.and_then(|semaphore| semaphore.tombstone(owner));
        let forced = tombstone.filter(|tombstone| tombstone.forced_by.is_some()).cloned();
        Error::new(Cause::Lost(forced.map(Tombstone::into_holder)), &self.name, key)
    }
}

/// Returns the names of an owner's permit and of its fence.
pub(super) fn names_of(owner: &str) -> (String, String) {
    (format!("{PERMIT_PREFIX}{owner}"), format!("{PERMIT_FENCE_PREFIX}{owner}"))
}

/// Returns `true` for a tombstone to remove, which has this index among all, the newest first.
fn is_obsolete((index, tombstone): (usize, &Tombstone), now: Moment) -> bool {
    index >= TOMBSTONES || tombstone.released_at <= millis(now.wall.saturating_sub(TOMBSTONE_AGE))
}

/// Returns the owners of the tombstones to remove. They are drawn, because other releases that have seen the same row remove
/// tombstones of it, too.
fn obsolete(tombstones: &[Tombstone], now: Moment) -> Vec<&str> {
    let obsolete = tombstones.iter().enumerate().filter(|tombstone| is_obsolete(*tombstone, now));
    let mut owners: Vec<_> = obsolete.map(|(_, tombstone)| tombstone.owner.as_str()).collect();
    fastrand::shuffle(&mut owners);
    owners.truncate(REMOVED_AT_ONCE);
    owners
}

/// Adds the removal of these tombstones to a request.
fn without_tombstones(
    mut request: UpdateItemFluentBuilder,
    old: &[&str],
    condition: &mut String,
    remove: &mut Vec<String>,
) -> UpdateItemFluentBuilder {
    for (index, owner) in old.iter().enumerate() {
        let to = format!("#t{index}");
        request = request.name(&to, &names_of(owner).0);
        // A late duplicate of its acquire may have made it a permit again. `NOT` is true if the attribute is missing.
        let _infallible = write!(condition, " AND NOT {to}.#lease_end > :zero");
        remove.push(to);
    }
    if old.is_empty() {
        return request;
    }
    request.name("#lease_end", permit::LEASE_END).value(":zero", number(0_u8))
}

fn tombstone_of(now: Moment, forced_by: Option<&str>) -> AttributeValue {
    let forced_by = forced_by.map(|by| (tombstone::FORCED_BY, string(by)));
    map([(tombstone::RELEASED_AT, number(now.millis()))].into_iter().chain(forced_by))
}

fn map<'a>(values: impl IntoIterator<Item = (&'a str, AttributeValue)>) -> AttributeValue {
    AttributeValue::M(values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<HashMap<_, _>>())
}
