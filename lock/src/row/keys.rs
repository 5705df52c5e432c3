//! Several keys: one transaction of one update for each key, applied to all rows or to none.
//!
//! The rows are those of [keys](super::key). A transaction returns no values, so an acquire proposes the fences.

use super::claim::{Claim, Claimed};
use super::expression::{Attribute as _, Condition, Path, Update, any, count};
use super::key::{self, can_be_taken, is_over, serve, take};
use super::names::{FENCE, MAX_FENCE, RESERVED_BY, RESERVED_UNTIL};
use super::read::Row;
use super::rules::{Field, Hold, OwnRow, Release, Rules, Trace};
use super::table::{Item, Table};
use super::write::{Refused, Transact, Write};
use crate::clock::Moment;
use crate::error::{Cause, Error};
use crate::limits::check_keys;
use crate::queue::HoldTime;

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// In alphabetical order.
    names: Vec<String>,
    /// The fences that the last attempt has proposed, in the order of the keys.
    proposed: Vec<u64>,
    /// The largest fences that refusals have shown.
    seen: Vec<u64>,
    /// The hold times that refusals have shown.
    hold_times: Vec<Option<HoldTime>>,
}

impl Keys {
    pub(super) fn new(mut names: Vec<String>) -> Self {
        names.sort_unstable();
        let (none, unknown) = (vec![0; names.len()], vec![None; names.len()]);
        Self { names, proposed: none.clone(), seen: none, hold_times: unknown }
    }
}

impl Rules for Keys {
    fn boxed(&self) -> Box<dyn Rules> {
        Box::new(self.clone())
    }

    fn keys(&self) -> &[String] {
        &self.names
    }

    fn check(&self, key_prefix: &str) -> Result<(), Error> {
        check_keys(key_prefix, &self.names)
    }

    fn transact(&self) -> Option<Transact> {
        Some(Table::transact)
    }

    /// Proposes fences that are larger than all that were seen. A free row whose fence is not smaller, which only a wrong
    /// clock or another program writes, refuses them. The condition on the fence also refuses a late duplicate after a later
    /// acquisition.
    fn claim<'a>(&'a mut self, table: &Table, owner: &'a str, claim: &'a Claim<'_>) -> Write<'a> {
        let clock = claim.micros();
        self.proposed = self.seen.iter().map(|seen| clock.max(seen.saturating_add(1)).min(MAX_FENCE)).collect();
        let update = |(index, (key, &fence)): (usize, (&'a String, &u64))| {
            let (fence, rank) = (|| count("fence", fence), claim.rank_for(index));
            let update = take(key, owner, claim)
                .set(FENCE, fence())
                .when(can_be_taken(table, owner, claim, is_over(table, owner, claim, rank)))
                .when(any([FENCE.missing(), FENCE.below(fence())]));
            // Ends the reservation of this waiter. An attempt that leaves the key to nobody may be for a key that another
            // waiter has reserved.
            let ends_reservation = rank.is_conditional() || rank.has_reserved;
            let update = if ends_reservation { update.remove(RESERVED_UNTIL).remove(RESERVED_BY) } else { update };
            serve(update, rank)
        };
        let updates = self.names.iter().zip(&self.proposed).enumerate().map(update).collect();
        Write::new(updates, self.transact())
    }

    fn granted(&mut self, _table: &Table, _owner: &str, _claim: &Claim<'_>, _before: Item) -> Result<Claimed, Error> {
        Ok(Claimed::Granted { fences: self.proposed.clone(), data: None, taken_from: Vec::new(), hold_time: None })
    }

    fn denied(
        &mut self,
        table: &Table,
        owner: &str,
        claim: &Claim<'_>,
        mut refused: Refused,
    ) -> Result<Option<Claimed>, Error> {
        let prevented = refused.prevented.take();
        let (mut own, mut held, mut is_behind) = (Vec::new(), Vec::new(), false);
        for (key, row) in refused.into_rows(table)? {
            let row = row.ok_or_else(|| table.malformed(&key, "the refusal names no row"))?;
            if row.semaphore.is_some() {
                return Err(Error::new(Cause::WrongKind { is: "a semaphore", not: "a lock" }, table.place(), &key));
            }
            if row.is_owned_by(owner) {
                own.push(row);
                continue;
            }
            let Some(index) = self.names.iter().position(|other| *other == key) else { continue };
            self.seen[index] = self.seen[index].max(row.fence.unwrap_or_default());
            self.hold_times[index] = row.queue.hold_time;
            // The condition decides whether the identity can take it: another proposal costs a request at most.
            let may_be_taken = key::may_be_taken(&row, owner, claim);
            if may_be_taken && row.fence >= Some(MAX_FENCE) {
                return Err(table.last_fence(&key));
            }
            if may_be_taken && row.fence >= Some(self.proposed[index]) {
                is_behind = true;
            } else {
                held.push((key, row.into_holder(claim.now)));
            }
        }
        match (own.first(), prevented) {
            // An earlier attempt was applied, to all rows.
            (Some(first), _) if own.len() == self.names.len() && own.iter().all(|row| row.end == first.end) => {
                let fences = own.iter().filter_map(|row| row.fence).collect();
                Ok(Some(Claimed::Already { fences, data: None, end: first.end, hold_time: None }))
            }
            (_, None) if own.is_empty() && held.is_empty() && is_behind => Ok(None),
            (_, Some(error)) if held.is_empty() => Err(error),
            (Some(_), _) => Ok(Some(Claimed::Lost)),
            (None, _) => Err(Error::held_by(held, table.place())),
        }
    }

    fn at(&self, _owner: &str, field: Field) -> Path {
        key::at(field)
    }

    fn is_held<'a>(&self, owner: &'a str, now: u64) -> Condition<'a> {
        key::is_held(owner, now)
    }

    fn trace(&self, row: Option<&Row>, owner: &str, now: Moment) -> Trace {
        key::trace(row, owner, now)
    }

    /// A transaction returns no rows, so the hold times before are those that refusals have shown.
    fn release<'a>(&self, of: OwnRow<'a>, release: &Release<'_>, _is_first: bool) -> Update<'a> {
        let index = self.names.iter().position(|name| name == of.key);
        let before = index.and_then(|index| self.hold_times[index]);
        let hold = release.hold.map(|hold| Hold { before, is_before_known: before.is_some(), ..hold });
        key::release(of, &Release { hold, ..*release })
    }

    fn withdrawal<'a>(&self, of: OwnRow<'a>, row: Option<&Row>, now: Moment) -> Option<Update<'a>> {
        Some(key::withdrawal(of, row, now))
    }
}
