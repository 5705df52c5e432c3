//! What others than its owner do with a place: an operator frees or completes it, an identity or a workflow that has ended
//! frees it. Its holder finds it lost, and an acquire that is under way begins anew.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;

use super::expression::{count, text};
use super::hold::TRIES;
use super::key::{ended_by_others, free};
use super::names::{COMPLETED, DATA, EXPIRATION, HOLDER, STATUS};
use super::owner::start_of;
use super::permit::free_for_others;
use super::place::{Hold, number_for_others, with_hold};
use super::table::Table;
use super::write::Answer;
use crate::clock::Moment;
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder, HolderKind};
use crate::limits::MAX_PERMITS;

/// How many permits one request frees, so that its condition has at most 300 operators.
const FREED_AT_ONCE: usize = 40;

/// For whom a key is freed.
#[derive(Clone, Copy)]
enum For<'a> {
    /// An operator, by this name. How long a crashed holder had the key says nothing about other holds.
    Operator(&'a str),
    /// The identity that has it, after this hold.
    Identity(Option<Hold>),
}

impl Table {
    /// Frees what was `seen`, for the operator `by`. Returns `false` if the row has changed since it was seen. One request; for
    /// permits one for each 40, and up to three more if some of them were released meanwhile.
    pub(crate) async fn force_release(&self, key: &str, by: &str, seen: &Holder, now: Moment) -> Result<bool, Error> {
        let permits = match seen.kind {
            HolderKind::Key => return Ok(self.free_key(key, For::Operator(by), seen, now).await?.is_some()),
            HolderKind::Semaphore => &seen.permits[..],
            HolderKind::Permit => std::slice::from_ref(seen),
            HolderKind::Rate => return self.free_calls(key, seen, now).await,
        };
        // Without permits there is nothing to free, and nothing is known of those that were acquired since.
        Ok(!permits.is_empty() && self.free_permits(key, permits, seen.withdrawn, None, now).await?.is_some())
    }

    /// Frees the key, or the permit, that this identity has, and returns whether it was asked to run once more. Returns `None` if
    /// it has none. A consistent read, and one more request to free it; again if others change the row.
    pub(crate) async fn release_identity(&self, key: &str, identity: &str, now: Moment) -> Result<Option<bool>, Error> {
        let start = start_of(identity);
        let is_own = |held: &&Holder| held.has_lease() && held.owner().is_some_and(|owner| owner.starts_with(&start));
        for _ in 0..TRIES {
            let Some(seen) = self.get(key, now).await? else { return Ok(None) };
            let all = if seen.kind == HolderKind::Key { std::slice::from_ref(&seen) } else { &seen.permits[..] };
            let Some(own) = all.iter().find(is_own) else { return Ok(None) };
            let since = own.held_since.map(Duration::from_millis);
            let hold = since.map(|since| Hold { since, before: seen.queue.hold_time, is_before_known: true });
            let freed = if own.kind == HolderKind::Key {
                self.free_key(key, For::Identity(hold), own, now).await?
            } else {
                let later = self.free_permits(key, std::slice::from_ref(own), seen.withdrawn, hold, now).await?;
                (later == Some(0)).then_some(false)
            };
            // A later acquire of the identity may have taken it over.
            if freed.is_some() {
                return Ok(freed);
            }
        }
        Err(Error::new(Cause::Conflict, self.place(), key))
    }

    /// Returns whether the holder was asked to run once more, if it is freed.
    async fn free_key(&self, key: &str, whom: For<'_>, seen: &Holder, now: Moment) -> Result<Option<bool>, Error> {
        let is_asked = |row: &Holder| seen.number.is_some_and(|number| row.was_asked(number));
        let last = self.number_over(seen, now);
        let update = free(self, key, seen, last, now);
        let update = match whom {
            For::Operator(by) => update.set(HOLDER, text("by", by)),
            For::Identity(hold) => with_hold(update, hold, now.wall).remove(HOLDER).returning(ReturnValue::AllOld),
        };
        let refused = match self.write(update, None).await? {
            Answer::Applied(before) => return Ok(Some(Holder::read(before, now).is_ok_and(|row| is_asked(&row)))),
            Answer::Refused(refused) => refused,
        };
        Ok(refused.into_row(self, now)?.and_then(|row| {
            let by_holder = !row.completed && row.owner.is_some() && row.owner == seen.owner && row.is_released();
            // An earlier attempt of this request was applied; its answer was lost. Then the mark is still there.
            let by_this = row.released == Some(last);
            (by_holder || by_this).then(|| by_this && is_asked(&row))
        }))
    }

    /// Frees these permits. Returns how many of them a later acquire of the same identity has now, or `None` if the row is
    /// gone or not a semaphore.
    async fn free_permits(
        &self,
        key: &str,
        seen: &[Holder],
        mut withdrawn: Option<u64>,
        hold: Option<Hold>,
        now: Moment,
    ) -> Result<Option<usize>, Error> {
        let permits = seen.iter().filter_map(|permit| Some((permit.owner()?, permit)));
        let mut permits: Vec<_> = permits.take(MAX_PERMITS as usize).collect();
        let (mut later, mut refusals) = (0, 0);
        while !permits.is_empty() {
            let some = &permits[..permits.len().min(FREED_AT_ONCE)];
            let largest = some.iter().filter_map(|(_, permit)| permit.number).max().unwrap_or_default();
            let last = number_for_others(self, largest, withdrawn.unwrap_or_default(), now);
            let update = with_hold(free_for_others(self, key, some, last, now), hold, now.wall);
            let Answer::Refused(refused) = self.write(update, None).await? else {
                let freed = some.len();
                permits.drain(..freed);
                continue;
            };
            let Some(row) = refused.into_row(self, now)? else { return Ok(None) };
            if !row.is_semaphore() {
                return Ok(None);
            }
            withdrawn = row.withdrawn;
            let is_there =
                |owner: &str, seen: &Holder| row.permit(owner).is_some_and(|permit| permit.number == seen.number);
            let has_later = |owner: &str| row.permits.iter().any(|held| held.has_identity_of(owner));
            permits.retain(|(owner, seen)| {
                let is_there = is_there(owner, seen);
                later += usize::from(!is_there && has_later(owner));
                is_there
            });
            refusals += 1;
            if refusals > TRIES {
                return Err(Error::new(Cause::Conflict, self.place(), key));
            }
        }
        Ok(Some(later))
    }

    /// Stores the result of the run that was `seen`, for the operator `by`, until this time in seconds since the epoch. Returns
    /// `false` if the row has changed since it was seen. One request.
    pub(crate) async fn force_complete(
        &self,
        key: &str,
        by: &str,
        seen: &Holder,
        now: Moment,
        until: u64,
        result: Option<&Data>,
    ) -> Result<bool, Error> {
        let last = self.number_over(seen, now);
        let completion = ended_by_others(key, seen, last, now)
            .set(HOLDER, text("by", by))
            .set(STATUS, text("completed", COMPLETED))
            .set(EXPIRATION, count("expiration", until));
        let completion = if result.is_some() { completion.set_data(result) } else { completion.remove(DATA) };
        let Answer::Refused(refused) = self.write(completion, None).await? else { return Ok(true) };
        // An earlier attempt of this request was applied; its answer was lost.
        Ok(refused.into_row(self, now)?.is_some_and(|row| row.completed && row.released == Some(last)))
    }

    fn number_over(&self, seen: &Holder, now: Moment) -> u64 {
        number_for_others(self, seen.fence.unwrap_or_default(), seen.withdrawn.unwrap_or_default(), now)
    }
}
