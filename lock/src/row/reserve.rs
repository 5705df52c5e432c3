//! The reservation: a waiter for several keys asks other waiters to leave the keys to it, until it can have all of them. The
//! locks in the rows are unchanged.

use std::time::Duration;

use tokio::time::timeout;

use super::acquisition::Acquisition;
use super::expression::{Attribute as _, Update, count, text};
use super::key::is_not_reserved;
use super::names::{IN_PROGRESS, RESERVED_BY, RESERVED_UNTIL, STATUS};
use super::table::Table;
use super::write::{Answer, Refused, Write};
use crate::clock::Moment;
use crate::error::Error;
use crate::queue::Reservation;

impl Table {
    /// Reserves these keys of an acquisition until a time in milliseconds since the epoch: all, or none of them. Returns
    /// `false` if one of them is reserved for another waiter or has no row, or if there is no answer. One transaction.
    pub(crate) async fn reserve<'a>(
        &self,
        acquisition: &'a Acquisition,
        keys: impl Iterator<Item = &'a String>,
        until: u64,
        now: Moment,
        limit: Duration,
    ) -> Result<bool, Error> {
        let (owner, latest) = (&acquisition.owner, Reservation::latest(now, self.clock_skew));
        let update = |key: &'a String| {
            Update::new(key)
                .when(STATUS.is(text("in_progress", IN_PROGRESS)))
                .when(is_not_reserved(owner, now, latest))
                .set(RESERVED_UNTIL, count("until", until))
                .set(RESERVED_BY, text("owner", owner))
        };
        let write = Write::new(keys.map(update).collect(), acquisition.target.transact());
        let answer = timeout(limit, Box::pin(self.write_once(&write))).await;
        Ok(matches!(answer.unwrap_or_else(|_| Ok(Answer::Refused(Refused::default())))?, Answer::Applied(_)))
    }
}
