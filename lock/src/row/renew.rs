//! The renewal of a lease.

use super::acquisition::Acquisition;
use super::operation::Operation;
use super::table::Table;
use super::write::{Answer, Write};
use crate::clock::{Lease, Moment, Offset};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};

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

/// A renewal. It extends the lease of all keys, if this owner holds them and the lease has not ended. One request.
#[derive(Clone, Debug)]
pub(crate) struct Renewing<'a> {
    pub(crate) acquisition: Acquisition,
    /// Larger than the sequence of every earlier request of this owner.
    pub(crate) sequence: u64,
    pub(crate) now: Moment,
    pub(crate) lease: Lease,
    pub(crate) data: Option<&'a Data>,
}

impl Operation for Renewing<'_> {
    type Output = Renewed;

    fn request<'b>(&'b self, table: &'b Table, _: Moment) -> Write<'b> {
        let Self { acquisition, sequence, now, lease, data, .. } = self;
        let own = acquisition.numbers.own;
        let update = |key| acquisition.place(table, key).renew(own, *sequence, *now, *lease, *data);
        let updates = acquisition.target.keys().iter().map(|key| update(key));
        Write::new(updates.collect(), acquisition.target.transact())
    }

    fn on(&mut self, table: &Table, answer: Answer, _: Moment) -> Result<Option<Renewed>, Error> {
        let acquisition = &self.acquisition;
        let Answer::Refused(refused) = answer else { return Ok(Some(Renewed::Extended)) };
        // An earlier attempt of this renewal was applied to the rows with its sequence; its answer was lost.
        let is_renewed = |row: Option<&Holder>| {
            let place = acquisition.held_with(acquisition.numbers.own, row);
            place.is_some_and(|place| place.sequence == Some(self.sequence))
        };
        let rows = refused.into_rows(table, self.now)?.into_iter();
        let lost: Vec<_> = rows.filter(|(_, row)| !is_renewed(row.as_ref())).collect();
        if lost.is_empty() {
            return Ok(Some(Renewed::Extended));
        }
        let has_others = lost.len() < acquisition.target.keys().len();
        let lost = lost.into_iter().map(|(key, row)| (key, acquisition.lost_to(row)));
        Ok(Some(Renewed::Lost { error: Error::lost_to(lost.collect(), table.place()), has_others }))
    }

    /// The lease that the renewal wrote means something else to other hosts, so the lock is lost, and a release frees the key.
    fn on_wrong_clock(&mut self, table: &Table, offset: Offset) -> Option<Renewed> {
        let error = self.acquisition.error(Cause::ClockSkew(offset, table.clock_skew), table);
        Some(Renewed::Lost { error, has_others: true })
    }
}
