//! The requests for several keys: one transaction of one update for each key, applied to all rows or to none.
//!
//! The rows are those of ordinary locks. A transaction returns no values, so an acquire proposes the fences.

use std::time::Duration;

use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{CancellationReason, TransactWriteItem, Update};
use futures_util::future::BoxFuture;

use super::claim::{Claim, Claimed, FREE, TAKE};
use super::names::MAX_FENCE;
use super::read::Row;
use super::release::{RENEW, Step};
use super::table::{Expression as _, Table, in_time, number, repeat};
use super::withdraw::TRIES;
use crate::client::SdkAttempts;
use crate::clock::{Lease, Moment};
use crate::error::{Cause, Error};
use crate::limits::REQUEST_TIMEOUT;

/// How often one attempt proposes fences.
const PROPOSALS: u32 = 4;

/// The fences of one acquire of several keys, in the order of the keys.
#[derive(Debug)]
pub(crate) struct Fences {
    /// The fences that the last attempt has written. After a lost answer, those that the rows have.
    written: Vec<u64>,
    /// The largest fences that refusals have shown.
    seen: Vec<u64>,
}

impl Fences {
    pub(crate) fn new(keys: usize) -> Self {
        Self { written: vec![0; keys], seen: vec![0; keys] }
    }

    pub(crate) fn written(&self) -> &[u64] {
        &self.written
    }

    /// Proposes fences that are larger than all that were seen. As with a lock, the fence of a new row starts at the clock
    /// in microseconds, so that a deletion of the row does not set it back.
    fn propose(&mut self, now: Moment) {
        let clock = u64::try_from(now.wall.as_micros()).unwrap_or(u64::MAX);
        self.written = self.seen.iter().map(|seen| clock.max(seen.saturating_add(1)).min(MAX_FENCE)).collect();
    }
}

/// Why a transaction was cancelled.
struct Cancelled<'a> {
    /// The keys whose condition failed, with their rows, or with the error of a malformed row.
    refused: Vec<(&'a str, Result<Option<Row>, Error>)>,
    /// The keys whose condition was met.
    willing: Vec<&'a str>,
    /// The error of the other keys, such as a conflict with another transaction.
    prevented: Option<Error>,
}

impl Table {
    /// Takes all keys if all are free, and otherwise none. One request. Another one if a free row has a fence that is not
    /// smaller than the proposed one, which only a wrong clock or another program writes; up to four in all.
    ///
    /// The condition on the fence also refuses a late duplicate after a later acquisition.
    pub(crate) async fn acquire_all(
        &self,
        claim: &Claim<'_>,
        keys: &[String],
        fences: &mut Fences,
        attempts: &SdkAttempts,
    ) -> Result<Claimed, Error> {
        for _ in 0..PROPOSALS {
            fences.propose(claim.now);
            let updates = keys.iter().zip(&fences.written).map(|(key, &fence)| {
                let take = self.take_request(&Claim { key, ..*claim });
                take.condition_expression(format!("({FREE}) AND (attribute_not_exists(#fence) OR #fence < :fence)"))
                    .update_expression(format!("{TAKE}:fence"))
                    .value(":fence", number(fence))
            });
            let updates = self.items(updates, claim.key)?;
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            let Err(cancelled) = self.transact(&keys, updates, claim.time_limit(), attempts.clone()).await? else {
                let fence = fences.written.first().copied();
                return Ok(Claimed::Acquired {
                    fence: fence.unwrap_or_default(),
                    data: None,
                    taken_from: None,
                    hold_time: None,
                });
            };
            if let Some(claimed) = self.refused_all(claim, &keys, cancelled, fences)? {
                return Ok(claimed);
            }
        }
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let (key, others) = first(&keys);
        Err(Error::new(Cause::Conflict, &self.name, key).with_others(others))
    }

    /// Reads a refusal. Returns `None` if only the fences were too small.
    fn refused_all(
        &self,
        claim: &Claim<'_>,
        keys: &[&str],
        Cancelled { refused, prevented, .. }: Cancelled<'_>,
        fences: &mut Fences,
    ) -> Result<Option<Claimed>, Error> {
        let Claim { owner, now, .. } = *claim;
        let (mut own, mut held, mut is_behind) = (Vec::new(), Vec::new(), false);
        for (key, row) in refused {
            let row = row?.ok_or_else(|| self.malformed(key, "the refusal names no row"))?;
            if row.semaphore.is_some() {
                return Err(Error::new(Cause::WrongUse { is: "a semaphore", not: "a lock" }, &self.name, key));
            }
            if row.is_owned_by(owner) {
                own.push(row);
                continue;
            }
            let Some(index) = keys.iter().position(|other| *other == key) else { continue };
            fences.seen[index] = fences.seen[index].max(row.fence.unwrap_or_default());
            let is_free = row.end <= now.millis();
            if is_free && row.fence >= Some(MAX_FENCE) {
                return Err(self.malformed(key, "`fence` has reached its largest value"));
            }
            if is_free && row.fence >= Some(fences.written[index]) {
                is_behind = true;
            } else {
                held.push((key.to_owned(), row.into_holder(now)));
            }
        }
        let already = |fence, end| Claimed::Already { fence, data: None, end, hold_time: None };
        match (own.first(), prevented) {
            // An earlier attempt was applied, to all rows.
            (Some(first), _) if own.len() == keys.len() && own.iter().all(|row| row.end == first.end) => {
                fences.written = own.iter().map(|row| row.fence.unwrap_or_default()).collect();
                Ok(Some(already(first.fence, first.end)))
            }
            (_, None) if own.is_empty() && held.is_empty() && is_behind => Ok(None),
            (_, Some(error)) if held.is_empty() => Err(error),
            // An earlier attempt was applied, and some keys were lost since.
            (Some(_), _) => Ok(Some(already(None, 0))),
            (None, _) => Err(Error::held_by(held, &self.name)),
        }
    }

    /// Moves the end of the leases of all keys, if this owner holds all of them and the lease has not ended. One request.
    pub(crate) async fn renew_all(&self, step: Step<'_>, keys: &[String], lease: Lease) -> Result<(), Error> {
        let Step { owner, sequence, now, .. } = step;
        let updates = keys.iter().map(|key| self.renew_request(Step { key, ..step }, lease).update_expression(RENEW));
        let updates = self.items(updates, step.key)?;
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let Err(cancelled) = self.insist_on_all(&keys, updates).await? else {
            return Ok(());
        };
        // An earlier attempt of this renewal was applied to the others; its answer was lost.
        let is_lost = |row: &Option<Row>| !row.as_ref().is_some_and(|row| row.is_renewed_by(owner, sequence));
        let refused = cancelled.refused.into_iter().map(|(key, row)| Ok((key, row?)));
        let refused = refused.collect::<Result<Vec<_>, Error>>()?;
        let lost: Vec<_> = refused.into_iter().filter(|(_, row)| is_lost(row)).collect();
        if lost.is_empty() { Ok(()) } else { Err(self.lost_all(lost, owner, now)) }
    }

    /// Frees all keys at `end` that this owner holds, and keeps their rows. One request, or two if some keys were lost: the
    /// error names them.
    pub(crate) async fn release_all(
        &self,
        step: Step<'_>,
        keys: &[String],
        end: Duration,
        retention: Duration,
    ) -> Result<(), Error> {
        let lost = self.release_held(step, keys, end, retention).await?;
        if lost.is_empty() { Ok(()) } else { Err(self.lost_all(lost, step.owner, step.now)) }
    }

    /// Releases the keys that this owner holds, and returns the others with their rows.
    async fn release_held<'a>(
        &self,
        step: Step<'_>,
        keys: &'a [String],
        end: Duration,
        retention: Duration,
    ) -> Result<Vec<(&'a str, Option<Row>)>, Error> {
        let Step { owner, .. } = step;
        let mut keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let (mut lost, mut malformed) = (Vec::new(), None);
        while !keys.is_empty() {
            let updates = keys.iter().map(|key| self.release_request(Step { key, ..step }, end, retention));
            let updates = self.items(updates, step.key)?;
            let Err(cancelled) = self.insist_on_all(&keys, updates).await? else { break };
            // An earlier attempt of this release was applied to the others; its answer was lost.
            let is_lost = |row: &Option<Row>| !row.as_ref().is_some_and(|row| row.is_released_by(owner));
            for (key, row) in cancelled.refused {
                match row {
                    Ok(row) if is_lost(&row) => lost.push((key, row)),
                    Ok(_) => {}
                    // It does not keep the other keys.
                    Err(error) => malformed = Some(error),
                }
            }
            keys = cancelled.willing;
        }
        malformed.map_or(Ok(lost), Err)
    }

    /// Frees the keys if this owner has them after all. Otherwise stores the owner's nonce in the row of one key, which then
    /// refuses an attempt that arrives late, and so the whole transaction. One request if the owner has the keys, two if
    /// not; up to six if others change the rows.
    pub(crate) async fn withdraw_all(
        &self,
        keys: &[String],
        owner: &str,
        now: Moment,
        retention: Duration,
    ) -> Result<(), Error> {
        let step = Step { key: "", owner, sequence: 1, now };
        for _ in 0..TRIES {
            let lost = self.release_held(step, keys, now.wall, retention).await?;
            let was_applied = lost.len() < keys.len()
                || lost.iter().any(|(_, row)| row.as_ref().is_some_and(|row| row.is_owned_by(owner)));
            let Some((key, row)) = lost.into_iter().next().filter(|_| !was_applied) else { return Ok(()) };
            if self.refuse_later(Step { key, ..step }, row, retention).await? {
                return Ok(());
            }
        }
        Err(Error::new(Cause::Conflict, &self.name, keys.first().map_or("", String::as_str)))
    }

    fn lost_all(&self, lost: Vec<(&str, Option<Row>)>, owner: &str, now: Moment) -> Error {
        let holder = |row: Option<Row>| row.and_then(|row| row.into_other_holder(owner, now));
        Error::lost_to(lost.into_iter().map(|(key, row)| (key.to_owned(), holder(row))).collect(), &self.name)
    }

    /// Converts updates of single rows into the items of a transaction.
    fn items(
        &self,
        updates: impl Iterator<Item = UpdateItemFluentBuilder>,
        key: &str,
    ) -> Result<Vec<TransactWriteItem>, Error> {
        let item = |update: UpdateItemFluentBuilder| {
            let update = update.as_input();
            let update = Update::builder()
                .set_table_name(update.get_table_name().clone())
                .set_key(update.get_key().clone())
                .set_update_expression(update.get_update_expression().clone())
                .set_condition_expression(update.get_condition_expression().clone())
                .set_expression_attribute_names(update.get_expression_attribute_names().clone())
                .set_expression_attribute_values(update.get_expression_attribute_values().clone())
                .set_return_values_on_condition_check_failure(
                    update.get_return_values_on_condition_check_failure().clone(),
                )
                .build()
                .map_err(|error| Error::new(Cause::Rejected, &self.name, key).with_source(error))?;
            Ok(TransactWriteItem::builder().update(update).build())
        };
        updates.map(item).collect()
    }

    /// Sends a transaction of the holder, and [repeats](repeat) it.
    async fn insist_on_all<'a>(
        &self,
        keys: &[&'a str],
        updates: Vec<TransactWriteItem>,
    ) -> Result<Result<(), Cancelled<'a>>, Error> {
        let send = || self.transact(keys, updates.clone(), REQUEST_TIMEOUT, SdkAttempts::default());
        let answer = repeat(send, |answer| match answer {
            Ok(Err(Cancelled { prevented: Some(error), .. })) | Err(error) => error.is_prevented(),
            _ => false,
        });
        match answer.await {
            Ok(Ok(Err(Cancelled { prevented: Some(error), .. }))) => Err(error),
            Ok(answer) => answer,
            Err(elapsed) => {
                let (key, others) = first(keys);
                Err(Error::new(Cause::Unavailable, &self.name, key).with_others(others).with_source(elapsed))
            }
        }
    }

    /// Sends one transaction. DynamoDB recognises a repetition by the SDK or the network by its token, for ten minutes.
    async fn transact<'a>(
        &self,
        keys: &[&'a str],
        updates: Vec<TransactWriteItem>,
        limit: Duration,
        attempts: SdkAttempts,
    ) -> Result<Result<(), Cancelled<'a>>, Error> {
        let (key, _) = first(keys);
        // A cancelled transaction was not applied, so another one needs another token. The SDK's own token comes from a
        // generator that a snapshot of this process clones.
        let token = self.nonce(key)?;
        let request = self.client.transact_write_items().set_transact_items(Some(updates)).client_request_token(token);
        // The type of the future is hidden, as for an update.
        let sent: BoxFuture<'static, _> = Box::pin(request.customize().interceptor(attempts).send());
        match in_time(limit, sent).await {
            Ok(_) => Ok(Ok(())),
            Err(error) => self.cancelled(keys, error).map(Err),
        }
    }

    /// Reads why a transaction was cancelled. DynamoDB gives one reason for each key, in their order.
    fn cancelled<'a>(
        &self,
        keys: &[&'a str],
        error: SdkError<TransactWriteItemsError>,
    ) -> Result<Cancelled<'a>, Error> {
        let reasons = match &error {
            SdkError::ServiceError(context) => match context.err() {
                TransactWriteItemsError::TransactionCanceledException(why) => why.cancellation_reasons().to_vec(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let mut cancelled = Cancelled { refused: Vec::new(), willing: Vec::new(), prevented: None };
        let mut preventing = Vec::new();
        let is_for_all = reasons.is_empty();
        for (&key, CancellationReason { item, code, .. }) in keys.iter().zip(reasons) {
            match code.as_deref() {
                None | Some("None") => cancelled.willing.push(key),
                Some("ConditionalCheckFailed") => {
                    let row = item.map(Row::read).transpose().map_err(|why| self.malformed(key, why));
                    cancelled.refused.push((key, row));
                }
                Some("TransactionConflict") => preventing.push((key, Cause::Conflict)),
                Some("ThrottlingError" | "ProvisionedThroughputExceeded") => preventing.push((key, Cause::Throttled)),
                Some(_) => preventing.insert(0, (key, Cause::Rejected)),
            }
        }
        let mut preventing = preventing.into_iter();
        match preventing.next() {
            Some((key, cause)) => {
                let error = Error::from_sdk(error, &self.name, key).with_cause(cause);
                cancelled.prevented = Some(error.with_others(preventing.map(|(key, _)| key)));
                Ok(cancelled)
            }
            None if is_for_all => {
                let (key, others) = first(keys);
                Err(Error::from_sdk(error, &self.name, key).with_others(others))
            }
            // DynamoDB has named no reason, and applied nothing.
            None if cancelled.refused.is_empty() => {
                let (key, others) = first(keys);
                let error = Error::from_sdk(error, &self.name, key).with_cause(Cause::Conflict);
                cancelled.prevented = Some(error.with_others(others));
                Ok(cancelled)
            }
            None => Ok(cancelled),
        }
    }
}

/// Returns the first key and the others.
fn first<'a>(keys: &[&'a str]) -> (&'a str, impl Iterator<Item = &'a str>) {
    (keys.first().copied().unwrap_or_default(), keys.iter().copied().skip(1))
}
