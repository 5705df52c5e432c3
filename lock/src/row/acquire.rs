//! The acquire: an attempt that takes a free key or permit, and the meaning of its answer.

use super::acquisition::Acquisition;
use super::claim::{Claim, Claimed, Grant, Plan};
use super::expression::{Update, count};
use super::key::is_over;
use super::names::{DATA, FENCE, MAX_FENCE, RESERVED_BY, RESERVED_UNTIL, SEQUENCE};
use super::permit::{PermitPlace, gives_permit};
use super::read::number_at;
use super::record_claim::RecordClaim;
use super::table::{Item, Table};
use super::target::Target;
use super::write::{Answer, Refused, Write};
use crate::clock::{Moment, micros};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder, HolderKind};
use crate::limits::MAX_PERMITS;

impl Acquisition {
    /// Returns the number of the next attempt.
    pub(crate) fn next_number(&mut self, table: &Table, now: Moment) -> Result<u64, Error> {
        self.numbers.next(now).ok_or_else(|| table.last_fence(self.key()))
    }

    /// Builds the attempt with this number.
    pub(crate) fn attempt<'a>(&'a self, table: &'a Table, claim: &Claim<'a>, number: u64) -> Write<'a> {
        // A permit or several keys are taken over only after a refusal, which shows a wrong clock: their rows would not come
        // back.
        let known_fence = claim.earlier_fence.filter(|_| matches!(self.target, Target::Key(_)));
        let update = |(index, key): (usize, &'a String)| {
            let update = match (self.plan.earlier(index), known_fence, &self.target) {
                (Some(seen), ..) => self.place(table, key).take_over(number, claim, seen),
                (None, Some(fence), _) => self.key_place(table, key).take_over_from(number, claim, fence),
                // The refusal shows the acquisitions to take over. A transaction has no update that sets nothing.
                (None, None, _) if claim.takes_over => {
                    return table.refused_update(key).set(SEQUENCE, count("zero", 0_u8));
                }
                (None, None, Target::Permit { of, .. }) => {
                    PermitPlace { table, key, owner: &self.owner }.take(number, *of, claim, &self.plan)
                }
                (None, None, _) => self.take(table, claim, number, index, key),
            };
            claim.with_extras(update)
        };
        Write::new(self.target.keys().iter().enumerate().map(update).collect(), self.target.transact())
    }

    /// Reads the answer to the attempt with this number. Returns `None` if another attempt can succeed at once: the number was
    /// too small, permits have ended, or the identity has the key or permit.
    pub(crate) fn answered(
        &mut self,
        table: &Table,
        claim: &Claim<'_>,
        number: u64,
        answer: Answer,
    ) -> Result<Option<Claimed>, Error> {
        match answer {
            Answer::Applied(before) => self.granted(table, claim, number, before).map(Claimed::Granted).map(Some),
            Answer::Refused(refusal) => self.refused(table, claim, number, refusal),
        }
    }

    /// Builds the part of an attempt that takes a free key.
    fn take<'a>(&'a self, table: &'a Table, claim: &Claim<'a>, number: u64, index: usize, key: &'a str) -> Update<'a> {
        let rank = claim.rank_for(index);
        let over = is_over(table, &self.owner, claim.now, rank);
        if let Some(record) = self.target.record() {
            let over = record.is_record_over(over, claim.now);
            return record.begin(self.key_place(table, key).take(number, claim, rank, over));
        }
        let update = self.key_place(table, key).take(number, claim, rank, over);
        // Ends the reservation of this waiter. A plain attempt leaves the reservation in the row alone: it may be another
        // waiter's.
        if self.target.transact().is_some() && (rank.is_conditional() || rank.has_reserved) {
            return update.remove(RESERVED_UNTIL).remove(RESERVED_BY);
        }
        update
    }

    /// Reads the answer to an attempt that was applied. The only row is as it was before; a transaction returns none.
    fn granted(&mut self, table: &Table, claim: &Claim<'_>, number: u64, mut before: Item) -> Result<Grant, Error> {
        self.numbers.own = number;
        let plan = std::mem::take(&mut self.plan);
        let fences = if self.target.is_permit() {
            let counted = number_at(&before, FENCE, MAX_FENCE).map_err(|why| table.malformed(self.key(), why))?;
            vec![counted.unwrap_or_else(|| micros(claim.now.wall)).saturating_add(1)]
        } else {
            vec![number; self.target.keys().len()]
        };
        let left = before.remove(DATA).map(Data).filter(|_| self.target.record().is_none());
        let last = Holder::read(before, claim.now).ok();
        let hold_time = last.as_ref().and_then(|row| row.queue.hold_time);
        let mut taken_from = plan.ended;
        match last {
            // A permit that has ended was replaced, and has the same identity, too.
            Some(row) if row.is_semaphore() => {
                let earlier = row.permit_of_identity(&self.owner).filter(|permit| permit.is_current());
                taken_from.extend(earlier.cloned());
            }
            row => taken_from.extend(row.filter(|holder| !holder.has_released())),
        }
        // A transaction returns no row.
        let seen = plan.earlier.first().and_then(Option::as_ref);
        let held_since = seen
            .or_else(|| taken_from.iter().find(|holder| holder.is_current()))
            .and_then(|earlier| earlier.held_since);
        let data = claim.data.cloned().or(left);
        Ok(Grant { held_since, hold_time, taken_from, ..Grant::new(fences, data, claim.now, claim.lease) })
    }

    /// Reads a refusal. Returns `None` if another attempt can succeed at once.
    fn refused(
        &mut self,
        table: &Table,
        claim: &Claim<'_>,
        number: u64,
        refusal: Refused,
    ) -> Result<Option<Claimed>, Error> {
        let has_taken_over = self.plan.earlier.iter().any(Option::is_some);
        self.plan = Plan::default();
        if let Some(key) = refusal.without_row().filter(|_| claim.takes_over) {
            return Err(Error::new(Cause::Lost(None), table.place(), key));
        }
        let claimed = match self.target {
            Target::Permit { of, .. } => self.refused_by_semaphore(table, claim, of, refusal),
            _ => self.refused_by_keys(table, claim, number, has_taken_over, refusal),
        };
        match claimed {
            Err(error) if claim.takes_over && error.holder().is_some() => Err(error.into_lost()),
            claimed => claimed,
        }
    }

    fn refused_by_keys(
        &mut self,
        table: &Table,
        claim: &Claim<'_>,
        number: u64,
        has_taken_over: bool,
        mut refusal: Refused,
    ) -> Result<Option<Claimed>, Error> {
        let (prevented, is_record) = (refusal.prevented.take(), self.target.record().is_some());
        self.plan.earlier = vec![None; self.target.keys().len()];
        let (mut own, mut held, mut asks_again) = (Vec::new(), Vec::new(), false);
        for (key, row) in refusal.into_each(table, claim.now) {
            let row = row.map_err(|error| if is_record { RecordClaim::unreadable(error) } else { error })?;
            let Some(row) = row else {
                // The acquisition to take over is gone with its row.
                asks_again = true;
                continue;
            };
            if row.kind != HolderKind::Key {
                let not = if is_record { "a record of idempotency" } else { "a lock" };
                return Err(Error::new(Cause::WrongKind { is: row.kind_name(), not }, table.place(), &key));
            }
            self.numbers.see(row.fence);
            self.numbers.see(row.withdrawn);
            if let (Some(index), true) = (self.index_of(&key), self.target.transact().is_some()) {
                self.hold_times.resize(self.target.keys().len(), None);
                self.hold_times[index] = row.queue.hold_time;
            }
            let last = row.fence.max(row.withdrawn);
            let is_own = row.is_owned_by(&self.owner);
            let is_earlier = !is_own && row.has_lease() && row.number.is_some() && row.has_identity_of(&self.owner);
            if is_own && !row.has_released() {
                own.push(row);
            } else if let (true, Some(index)) = (is_earlier, self.index_of(&key)) {
                self.plan.earlier[index] = Some(row);
                asks_again = true;
            } else if (last >= Some(number) || has_taken_over) && !row.is_current() && !claim.takes_over {
                // The key is free: the number was too small, or the acquisition to take over has ended meanwhile.
                if last >= Some(MAX_FENCE) {
                    return Err(table.last_fence(&key));
                }
                asks_again = true;
            } else {
                // Somebody has the key. If its lease has ended: the key is left to waiters or reserved, this waiter's place was
                // passed, or a record was left unfinished.
                held.push((key, Holder { refused: Some(self.numbers.sent), ..row }));
            }
        }
        let number_of = |row: &Holder| row.number.unwrap_or_default();
        match (own.first().map(number_of), prevented) {
            // An earlier attempt was applied, to all rows.
            (Some(applied), _)
                if own.len() == self.target.keys().len() && own.iter().all(|row| number_of(row) == applied) =>
            {
                self.numbers.own = applied;
                let fences = vec![applied; own.len()];
                let row = own.swap_remove(0);
                let held_since = row.taken_over_since();
                let of_one = self.target.transact().is_none();
                let (data, hold_time) = (row.data.filter(|_| of_one), row.queue.hold_time.filter(|_| of_one));
                let grant = Grant::new(fences, data, claim.now, claim.lease);
                Ok(Some(Claimed::Granted(Grant { held_since, hold_time, ..grant })))
            }
            (None, None) if held.is_empty() && asks_again => Ok(None),
            (_, Some(error)) if held.is_empty() => Err(error),
            (Some(_), _) => Ok(Some(Claimed::InPart)),
            (None, _) => {
                if let (Some(record), [(key, holder)]) = (self.target.record(), &held[..]) {
                    let completed = record.refusal(holder.clone());
                    let completed = completed.map_err(|cause| Error::new(*cause, table.place(), key))?;
                    return Ok(Some(Claimed::Completed(Box::new(completed))));
                }
                Err(Error::held_by(held, table.place()))
            }
        }
    }

    fn refused_by_semaphore(
        &mut self,
        table: &Table,
        claim: &Claim<'_>,
        permits: u32,
        refusal: Refused,
    ) -> Result<Option<Claimed>, Error> {
        let Some(row) = refusal.into_row(table, claim.now)? else {
            // The permits to replace, or to take over, are gone with their row.
            return Ok(None);
        };
        let key = self.key().to_owned();
        if !row.is_semaphore() {
            let cause = Cause::WrongKind { is: row.kind_name(), not: "a semaphore" };
            return Err(Error::new(cause, table.place(), &key));
        }
        self.numbers.see(row.withdrawn);
        if row.withdrawn >= Some(MAX_FENCE) || row.fence > Some(MAX_FENCE) {
            return Err(table.last_fence(&key));
        }
        if let Some(permit) = row.permit(&self.owner) {
            let (fences, hold_time) = (permit.fence.into_iter().collect(), row.queue.hold_time);
            let held_since = permit.taken_over_since();
            self.numbers.own = permit.number.unwrap_or_default();
            let grant = Grant::new(fences, row.data, claim.now, claim.lease);
            return Ok(Some(Claimed::Granted(Grant { held_since, hold_time, ..grant })));
        }
        if let Some(earlier) = row.permit_of_identity(&self.owner).filter(|permit| permit.is_current()) {
            self.numbers.see(earlier.number);
            self.plan.earlier = vec![Some(earlier.clone())];
            return Ok(None);
        }
        let ended = || row.permits.iter().filter(|permit| !permit.is_current());
        let is_full = row.permits.len() - ended().count() >= permits as usize;
        let ended: Vec<_> = ended().take(MAX_PERMITS as usize).cloned().collect();
        // The waiters ahead replace the permits that have ended.
        if claim.takes_over || is_full || !gives_permit(table, permits, claim, &row, &ended) {
            return Err(Error::new(Cause::Held(row), table.place(), &key));
        }
        self.plan.passed = claim.rank().place.filter(|place| *place < row.queue.head);
        self.plan.ended = ended;
        Ok(None)
    }

    /// Returns the position of a key.
    pub(super) fn index_of(&self, key: &str) -> Option<usize> {
        self.target.keys().iter().position(|other| other == key)
    }
}
