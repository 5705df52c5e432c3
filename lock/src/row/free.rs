//! An operator, or an identity, ends the acquisition of an owner: it frees the key or permit, or completes the record. The
//! holder finds the lock lost, and an acquire that is under way begins anew.

use std::slice;
use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;

use super::expression::{count, text};
use super::key::{ended_by_others, free};
use super::names::{COMPLETED, DATA, EXPIRATION, HOLDER, STATUS};
use super::operation::{Operation, TRIES};
use super::owner::start_of;
use super::permit::free_for_others;
use super::place::{Hold, number_for_others, with_hold};
use super::table::Table;
use super::write::{Answer, Write};
use crate::client::SdkAttempts;
use crate::clock::Moment;
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder, HolderKind};
use crate::limits::MAX_PERMITS;

/// How many permits one request frees, so that its condition has at most 300 operators.
const FREED_AT_ONCE: usize = 40;

/// For whom a key is freed.
#[derive(Clone, Debug)]
enum For {
    /// An operator, by this name. How long a crashed holder had the key says nothing about other holds.
    Operator(String),
    /// The identity that has the key or permit, after this hold.
    Identity(Option<Hold>),
}

/// The release of a key or of permits that were seen, for an operator or an identity, under way. One request; for permits one
/// request for each 40, and up to three more if some permits were released meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Freeing {
    key: String,
    whom: For,
    now: Moment,
    /// The key, or the permits, that are left to free.
    left: Vec<Holder>,
    withdrawn: Option<u64>,
    refusals: u32,
    freed: Freed,
}

/// The outcome of a release for an operator or an identity.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freed {
    /// The holder was asked to run once more.
    pub(crate) is_asked: bool,
    /// How many of the permits a later acquire of the same identity has now.
    later: usize,
}

impl Freeing {
    /// Frees the key or the permits that an operator has seen. The row is not the row of a rate.
    pub(crate) fn by_force(key: &str, by: &str, seen: &Holder, now: Moment) -> Self {
        let left = if seen.is_semaphore() { seen.permits.clone() } else { vec![seen.clone()] };
        Self::new(key, For::Operator(by.to_owned()), left, seen.withdrawn, now)
    }

    fn new(key: &str, whom: For, mut left: Vec<Holder>, withdrawn: Option<u64>, now: Moment) -> Self {
        left.truncate(MAX_PERMITS as usize);
        Self { key: key.to_owned(), whom, now, left, withdrawn, refusals: 0, freed: Freed::default() }
    }

    /// The next permits to free, or the key.
    fn next(&self) -> &[Holder] {
        &self.left[..self.left.len().min(FREED_AT_ONCE)]
    }

    fn number(&self, table: &Table) -> u64 {
        let number = |seen: &Holder| if seen.kind == HolderKind::Key { seen.fence } else { seen.number };
        let largest = self.next().iter().filter_map(number).max().unwrap_or_default();
        number_for_others(table, largest, self.withdrawn.unwrap_or_default(), self.now)
    }

    /// The row of the key has changed since it was `seen`. Returns `None` if somebody else has the key.
    fn changed_key(seen: &Holder, row: Option<Holder>, last: u64) -> Option<Freed> {
        let row = row?;
        let by_holder = !row.completed && row.owner.is_some() && row.owner == seen.owner && row.is_released();
        // An earlier attempt of this request was applied; its answer was lost. Then the row still shows whether the holder was
        // asked.
        let by_this = row.released == Some(last);
        (by_holder || by_this).then(|| Freed { is_asked: by_this && is_asked(&row, seen), later: 0 })
    }

    /// Some of the permits have changed since they were seen.
    fn changed_permits(&mut self, row: &Holder) {
        self.withdrawn = row.withdrawn;
        self.left.retain(|seen| {
            let owner = seen.owner.as_deref().unwrap_or_default();
            let is_there = row.permit(owner).is_some_and(|permit| permit.number == seen.number);
            let has_later = row.permits.iter().any(|held| held.has_identity_of(owner));
            self.freed.later += usize::from(!is_there && has_later);
            is_there
        });
        self.refusals += 1;
    }
}

/// Returns `true` if the holder that was `seen` was asked to run once more.
fn is_asked(row: &Holder, seen: &Holder) -> bool {
    seen.number.is_some_and(|number| row.was_asked(number))
}

impl Operation for Freeing {
    /// `None` if the row has changed since it was seen.
    type Output = Option<Freed>;

    fn request<'b>(&'b self, table: &'b Table, _: Moment) -> Write<'b> {
        let (last, now) = (self.number(table), self.now);
        let update = match (self.next(), &self.whom) {
            ([seen], For::Operator(by)) if seen.kind == HolderKind::Key => {
                free(table, &self.key, seen, last, now).set(HOLDER, text("by", by))
            }
            ([seen], For::Identity(hold)) if seen.kind == HolderKind::Key => {
                let update = free(table, &self.key, seen, last, now);
                with_hold(update, *hold, now.wall).remove(HOLDER).returning(ReturnValue::AllOld)
            }
            (permits, whom) => {
                let permits: Vec<_> = permits.iter().filter_map(|permit| Some((permit.owner()?, permit))).collect();
                let hold = if let For::Identity(hold) = whom { *hold } else { None };
                with_hold(free_for_others(table, &self.key, &permits, last, now), hold, now.wall)
            }
        };
        update.into()
    }

    fn on(&mut self, table: &Table, answer: Answer, _: Moment) -> Result<Option<Option<Freed>>, Error> {
        let (last, now, many) = (self.number(table), self.now, self.next().len());
        let key = self.left.first().filter(|seen| seen.kind == HolderKind::Key).cloned();
        match (answer, key) {
            (Answer::Applied(before), key) => {
                let row = Holder::read(before, now).ok();
                self.freed.is_asked = key.zip(row).is_some_and(|(seen, row)| is_asked(&row, &seen));
                self.left.drain(..many);
            }
            (Answer::Refused(refused), Some(seen)) => {
                return Ok(Some(Self::changed_key(&seen, refused.into_row(table, now)?, last)));
            }
            (Answer::Refused(refused), None) => match refused.into_row(table, now)?.filter(Holder::is_semaphore) {
                Some(row) => self.changed_permits(&row),
                None => return Ok(Some(None)),
            },
        }
        if self.refusals > TRIES && !self.left.is_empty() {
            return Err(Error::new(Cause::Conflict, table.place(), &self.key));
        }
        Ok(self.left.is_empty().then_some(Some(self.freed)))
    }
}

impl Table {
    /// Frees the key, the permits or the rate that was `seen`, for the operator `by`. Returns `false` if the row has changed
    /// since it was seen.
    pub(crate) async fn force_release(&self, key: &str, by: &str, seen: &Holder, now: Moment) -> Result<bool, Error> {
        if seen.is_rate() {
            return self.free_calls(key, seen, now).await;
        }
        // Without permits there is nothing to free, and nothing is known of permits that were acquired since.
        if seen.is_semaphore() && seen.permits.is_empty() {
            return Ok(false);
        }
        Ok(self.run(Freeing::by_force(key, by, seen, now), || now).await?.is_some())
    }

    /// Frees the key, or the permit, that this identity has, and returns whether the identity was asked to run once more.
    /// Returns `None` if the identity has neither. A consistent read, and one more request to free the key or permit; again if
    /// other clients change the row.
    pub(crate) async fn release_identity(&self, key: &str, identity: &str, now: Moment) -> Result<Option<bool>, Error> {
        let start = start_of(identity);
        let is_own = |held: &&Holder| held.has_lease() && held.owner().is_some_and(|owner| owner.starts_with(&start));
        for _ in 0..TRIES {
            let Some(seen) = self.get(key, now).await? else { return Ok(None) };
            let all = if seen.kind == HolderKind::Key { slice::from_ref(&seen) } else { &seen.permits[..] };
            let Some(own) = all.iter().find(is_own) else { return Ok(None) };
            let since = own.held_since.map(Duration::from_millis);
            let hold = since.map(|since| Hold { since, before: seen.queue.hold_time, is_before_known: true });
            let freeing = Freeing::new(key, For::Identity(hold), vec![own.clone()], seen.withdrawn, now);
            // A later acquire of the identity may have taken the key or permit over.
            if let Some(Freed { is_asked, later: 0 }) = self.run(freeing, || now).await? {
                return Ok(Some(is_asked));
            }
        }
        Err(Error::new(Cause::Conflict, self.place(), key))
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
        let (fence, withdrawn) = (seen.fence.unwrap_or_default(), seen.withdrawn.unwrap_or_default());
        let last = number_for_others(self, fence, withdrawn, now);
        let completion = ended_by_others(key, seen, last, now)
            .set(HOLDER, text("by", by))
            .set(STATUS, text("completed", COMPLETED))
            .set(EXPIRATION, count("expiration", until));
        let completion = if result.is_some() { completion.set_data(result) } else { completion.remove(DATA) };
        let Answer::Refused(refused) = self.write(completion, &SdkAttempts::leaving_prevented()).await? else {
            return Ok(true);
        };
        // An earlier attempt of this request was applied; its answer was lost.
        Ok(refused.into_row(self, now)?.is_some_and(|row| row.completed && row.released == Some(last)))
    }
}
