//! The requests of an owner after its acquire: renew, release, and the withdrawal of an acquire that ended without the lock.

use std::borrow::Cow;

use aws_sdk_dynamodb::types::ConditionCheck;

use super::expression::{Attribute as _, Condition, any};
use super::kind::Acquisition;
use super::names::MAX_SEQUENCE;
use super::place::{Hold, Release, number_of_release};
use super::read::Row;
use super::table::Table;
use super::write::{Answer, Write};
use crate::clock::{Clock, Lease, Moment};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};

/// How often a request looks again at a row that changed meanwhile.
pub(super) const TRIES: u32 = 3;

/// The effect of a renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Extended,
    Lost {
        error: Error,
        /// The owner still has other keys, which a release frees.
        has_others: bool,
    },
}

/// The effect of a release.
#[derive(Debug)]
pub(crate) enum Released {
    Freed,
    /// This owner had completed the record, in a request or a transaction whose answer was lost.
    Completed(Box<Holder>),
    /// The permit is gone after an earlier attempt, also of an earlier call, that was not answered. Either that attempt was
    /// applied, or others have taken the permit after the end of the lease.
    NoTrace,
}

/// What a row says about an owner.
#[derive(Debug)]
pub(super) enum Trace {
    /// The place is its own.
    Own(Own),
    /// Another owner has the key, or the permit of the same identity.
    Other(Box<Holder>),
    /// There is no such permit.
    Gone,
    NoRow,
}

/// The acquisition in an owner's place.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) number: u64,
    pub(super) fence: Option<u64>,
    /// The end of the lease, in milliseconds since the epoch.
    pub(super) end: u64,
    pub(super) sequence: Option<u64>,
    /// It was released, completed, or freed by others.
    pub(super) is_released: bool,
    pub(super) resumed: Option<String>,
    pub(super) acquired_at: Option<u64>,
}

impl Own {
    /// Returns `true` if the acquisition with this number is there.
    pub(super) fn is_held(&self, number: u64) -> bool {
        self.number == number && !self.is_released
    }
}

impl Acquisition {
    /// Returns `true` if the row shows this acquisition, as it was acquired.
    pub(super) fn has(&self, row: &Row) -> bool {
        row.is_owned_by(&self.owner) && row.fence == Some(self.numbers.own)
    }

    /// Returns `true` if the row shows that the release with this number was applied.
    pub(super) fn is_released_in(&self, row: &Row, number: u64) -> bool {
        match &row.semaphore {
            Some(semaphore) => {
                let permit = semaphore.permit(&self.owner);
                permit
                    .is_some_and(|permit| permit.is_released() && permit.number == number_of_release(self.numbers.own))
            }
            None => row.released == Some(number),
        }
    }

    pub(super) fn trace(&self, row: Option<&Row>, now: Moment) -> Trace {
        let Some(row) = row.filter(|row| row.semaphore.is_some() == self.kind.permits.is_some()) else {
            return Trace::NoRow;
        };
        let Some(semaphore) = &row.semaphore else {
            if !row.is_owned_by(&self.owner) {
                return Trace::Other(Box::new(row.clone().into_holder(now)));
            }
            return Trace::Own(Own {
                number: row.fence.unwrap_or_default(),
                fence: row.fence,
                end: row.end,
                sequence: row.sequence,
                is_released: row.completed || row.is_released(),
                resumed: row.resumed.clone(),
                acquired_at: row.acquired_at,
            });
        };
        if let Some(permit) = semaphore.permit(&self.owner) {
            return Trace::Own(Own {
                number: permit.number,
                fence: permit.fence,
                end: permit.lease_end,
                sequence: Some(permit.sequence),
                is_released: permit.is_released(),
                resumed: permit.resumed.clone(),
                acquired_at: permit.acquired_at,
            });
        }
        match semaphore.permit_of_identity(&self.owner) {
            Some(later) => Trace::Other(Box::new(later.clone().into_holder(now))),
            None => Trace::Gone,
        }
    }

    /// Returns who has what this owner has lost, if the row shows it.
    fn lost_to(&self, row: Option<Row>, now: Moment) -> Option<Holder> {
        match self.trace(row.as_ref(), now) {
            Trace::Other(holder) => Some(*holder),
            // Others have freed it.
            Trace::Own(own) if own.number != self.numbers.own => row.map(|row| row.into_holder(now)),
            _ => None,
        }
    }
}

impl Table {
    /// Moves the end of the lease, if this owner holds all keys and the lease has not ended. One request.
    pub(crate) async fn renew(
        &self,
        acquisition: &Acquisition,
        sequence: u64,
        now: Moment,
        lease: Lease,
        data: Option<&Data>,
    ) -> Result<Renewed, Error> {
        let (keys, own) = (acquisition.kind.all_keys(), acquisition.numbers.own);
        let update = |key| acquisition.place(self, key).renew(own, sequence, now, lease, data);
        let write = Write::new(keys.iter().map(|key| update(key)).collect(), acquisition.kind.transact);
        let Answer::Refused(refused) = self.write(write, None).await? else {
            return Ok(Renewed::Extended);
        };
        // An earlier attempt of this renewal was applied to the others; its answer was lost.
        let is_renewed = |row: Option<&Row>| match acquisition.trace(row, now) {
            Trace::Own(trace) => trace.is_held(own) && trace.sequence == Some(sequence),
            _ => false,
        };
        let rows = refused.into_rows(self)?.into_iter();
        let lost: Vec<_> = rows.filter(|(_, row)| !is_renewed(row.as_ref())).collect();
        if lost.is_empty() {
            return Ok(Renewed::Extended);
        }
        let has_others = lost.len() < keys.len();
        let lost = lost.into_iter().map(|(key, row)| (key, acquisition.lost_to(row, now)));
        Ok(Renewed::Lost { error: Error::lost_to(lost.collect(), self.place()), has_others })
    }

    /// Frees all keys that this owner holds, and keeps their rows. One request; a second one if some of several keys were
    /// lost, which the error names.
    pub(crate) async fn release(&self, acquisition: &Acquisition, release: &Release<'_>) -> Result<Released, Error> {
        let (mut released, mut lost) = (Released::Freed, Vec::new());
        let keys = Cow::Borrowed(acquisition.kind.all_keys());
        for (key, row) in self.release_held(acquisition, keys, acquisition.numbers.own, release).await? {
            match &row {
                Some(shown) if acquisition.is_released_in(shown, release.number) => {
                    if shown.completed && shown.is_owned_by(&acquisition.owner) {
                        released = Released::Completed(Box::new(shown.clone().into_holder(release.now)));
                    }
                }
                shown => match acquisition.trace(shown.as_ref(), release.now) {
                    Trace::Gone if acquisition.has_unanswered_release() => released = Released::NoTrace,
                    _ => lost.push((key, acquisition.lost_to(row, release.now))),
                },
            }
        }
        if lost.is_empty() { Ok(released) } else { Err(Error::lost_to(lost, self.place())) }
    }

    /// Releases those of these keys that this owner holds with the number `own`. Returns the others with their rows.
    pub(super) async fn release_held(
        &self,
        acquisition: &Acquisition,
        mut keys: Cow<'_, [String]>,
        own: u64,
        release: &Release<'_>,
    ) -> Result<Vec<(String, Option<Row>)>, Error> {
        let (mut release, mut others, mut unreadable) = (*release, Vec::new(), None);
        while !keys.is_empty() {
            let update = |key| {
                let hold = release.hold.map(|hold| acquisition.hold_of(key, hold));
                acquisition.place(self, key).release(own, &Release { hold, ..release })
            };
            let write = Write::new(keys.iter().map(|key| update(key)).collect(), acquisition.kind.transact);
            let refused = match self.write(write, acquisition.release_attempts.as_ref()).await? {
                Answer::Applied(_) => break,
                Answer::Refused(refused) => refused,
            };
            let mut again = refused.willing;
            for (key, row) in refused.rows {
                match row {
                    // Its attempts were given up before, by a larger number.
                    Ok(Some(row)) if release.number > 0 && acquisition.is_given_up(&row, own, &release) => {
                        release.number = 0;
                        again.push(key);
                    }
                    Ok(row) => others.push((key, row)),
                    // It does not keep the other keys.
                    Err(why) => unreadable = Some(why.into_error(self.place(), &key)),
                }
            }
            keys = Cow::Owned(again);
        }
        unreadable.map_or(Ok(others), Err)
    }

    /// Makes sure that no attempt of an acquire that has ended holds anything: gives up its numbers, so that an attempt that
    /// arrives late is refused, and frees what an attempt has taken already. One request, or two; up to six if others change
    /// the row.
    ///
    /// With `keeps`, what an attempt has taken stays held: a takeover has it from its identity.
    pub(crate) async fn withdraw(&self, acquisition: &Acquisition, clock: &Clock, keeps: bool) -> Result<(), Error> {
        let (last, key) = (acquisition.numbers.sent, acquisition.key());
        let (is_one, mut seen) = (acquisition.kind.transact.is_none(), None);
        for _ in 0..TRIES {
            // One row refuses all that a late attempt asks for, and shows one key only.
            if !is_one && !keeps {
                self.free_own(acquisition, last, clock).await?;
            }
            // Lambda may have frozen this process since the last request, and a row with an old TTL is deleted too early.
            let withdrawal = acquisition.place(self, key).withdraw(last, seen.as_ref(), clock.now());
            let (row, is_withdrawn) = match self.write(withdrawal, None).await? {
                Answer::Applied(before) => (Row::read(before).ok(), true),
                Answer::Refused(refused) => {
                    let row = refused.into_row(self)?;
                    let is_withdrawn = row.as_ref().is_some_and(|row| acquisition.is_refused_by(row, last));
                    (row, is_withdrawn)
                }
            };
            if !is_withdrawn {
                // The row is not what it was taken for.
                seen = Some(row);
                continue;
            }
            let own = row.as_ref().and_then(|row| acquisition.own_number(row, last)).filter(|_| !keeps);
            return match own {
                Some(own) if is_one => {
                    let keys = Cow::Borrowed(acquisition.kind.all_keys());
                    self.release_held(acquisition, keys, own, &acquisition.end_of(clock.now())).await.map(drop)
                }
                Some(_) => self.free_own(acquisition, last, clock).await,
                None => Ok(()),
            };
        }
        Err(acquisition.error(Cause::Conflict, self))
    }

    /// Frees those of several keys that attempts up to the number `last` have taken.
    async fn free_own(&self, acquisition: &Acquisition, last: u64, clock: &Clock) -> Result<(), Error> {
        let (mut keys, mut own) = (Cow::Borrowed(acquisition.kind.all_keys()), last);
        for _ in 0..TRIES {
            let others = self.release_held(acquisition, keys, own, &acquisition.end_of(clock.now())).await?;
            // An earlier attempt has taken them.
            let earlier = |row: &Option<Row>| acquisition.own_number(row.as_ref()?, last);
            let Some(number) = others.iter().find_map(|(_, row)| earlier(row)) else { return Ok(()) };
            let others = others.into_iter().filter(|(_, row)| earlier(row) == Some(number));
            (keys, own) = (others.map(|(key, _)| key).collect(), number);
        }
        Err(acquisition.error(Cause::Conflict, self))
    }

    /// Builds the check "this owner still holds the key" for a transaction, for each key. Without a lock, it always holds.
    pub(crate) fn condition_checks(
        &self,
        acquisition: &Acquisition,
        is_enforced: bool,
        now: Moment,
    ) -> Result<Vec<ConditionCheck>, Error> {
        let always = || {
            let key = || self.partition_key_path();
            any([key().exists(), key().missing()])
        };
        let condition = |key| -> Condition<'_> {
            if is_enforced {
                acquisition.place(self, key).is_held(acquisition.numbers.own, now.millis())
            } else {
                always()
            }
        };
        acquisition.kind.all_keys().iter().map(|key| self.check(key, &condition(key))).collect()
    }
}

impl Acquisition {
    /// Returns the hold of one of the keys. A transaction returns no rows, so the hold times before are those that refusals
    /// have shown.
    fn hold_of(&self, key: &str, hold: Hold) -> Hold {
        if self.kind.transact.is_none() {
            return hold;
        }
        let index = self.kind.all_keys().iter().position(|other| other == key);
        let before = index.and_then(|index| self.hold_times.get(index).copied().flatten());
        Hold { before, is_before_known: before.is_some(), ..hold }
    }

    /// The release of what an acquire that has ended has taken.
    fn end_of(&self, now: Moment) -> Release<'static> {
        // A permit's attempts were given up before.
        let number = if self.kind.permits.is_some() { 0 } else { self.release_number(now) };
        Release { number, sequence: MAX_SEQUENCE, now, hold_until: None, hold: None, data: None }
    }

    /// Returns the number with which this owner holds the key or the permit of this row, if an attempt up to `last` took it.
    fn own_number(&self, row: &Row, last: u64) -> Option<u64> {
        let number = match &row.semaphore {
            Some(semaphore) => semaphore.permit(&self.owner).filter(|permit| !permit.is_released())?.number,
            None => row.fence.filter(|_| row.is_owned_by(&self.owner) && !row.is_released() && !row.completed)?,
        };
        (number <= last).then_some(number)
    }

    /// Returns `true` if this row refuses all attempts up to this number. A row of another kind refuses them in any case.
    fn is_refused_by(&self, row: &Row, last: u64) -> bool {
        row.semaphore.is_some() != self.kind.permits.is_some()
            || row.withdrawn >= Some(last)
            || (row.semaphore.is_none() && row.fence > Some(last))
    }

    /// Returns `true` if this owner's permit is there for this release, in a row that has given up what the release gives up.
    fn is_given_up(&self, row: &Row, own: u64, release: &Release<'_>) -> bool {
        let permit = row.semaphore.as_ref().and_then(|semaphore| semaphore.permit(&self.owner));
        row.withdrawn >= Some(release.number)
            && permit.is_some_and(|permit| {
                let is_repeated = permit.number == number_of_release(own) && permit.sequence < release.sequence;
                if permit.is_released() { is_repeated } else { permit.number == own }
            })
    }
}
