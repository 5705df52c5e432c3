//! The join: a waiter takes a place in the key's queue. The lock in the row is unchanged.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;

use super::expression::{Attribute as _, To, Update, count};
use super::names::{HEAD, STATUS, TAIL, TAIL_UNTIL};
use super::read::number_at;
use super::table::{Table, in_time};
use super::write::send;
use crate::clock::{Moment, millis};
use crate::error::Error;
use crate::holder::Holder;
use crate::limits::DAY;
use crate::queue::Queue;

/// A place in the queue, and the row when it was given.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) place: u64,
    pub(crate) holder: Holder,
}

impl Table {
    /// Takes the place behind the last one. `seen` is the queue that the caller has seen; `until` is the time at which it
    /// stops waiting, in milliseconds since the epoch. Returns `None` if there is no row. One request.
    pub(crate) async fn join(
        &self,
        key: &str,
        seen: Queue,
        until: u64,
        now: Moment,
        limit: Duration,
    ) -> Result<Option<Joined>, Error> {
        // If nobody waits any more by any clock, the queue begins behind the places that were given.
        let is_empty = seen.tail <= seen.head || seen.until.saturating_add(millis(self.clock_skew)) <= now.millis();
        let head = if is_empty { seen.tail.max(seen.head) } else { seen.head };
        let tail = if seen.is_malformed || seen.tail < seen.head {
            To::from(count("tail", head.saturating_add(1)))
        } else {
            To::next(TAIL, count("head", head))
        };
        let served = if seen.is_malformed || is_empty { To::Value } else { To::Default };
        // The waiter in front of this one may wait for longer.
        let until = until.max(seen.until.min(now.millis().saturating_add(millis(DAY))));
        let update = Update::new(key)
            .when(STATUS.exists())
            .set(TAIL, tail)
            .set(HEAD, served(count("head", head)))
            .set(TAIL_UNTIL, count("until", until))
            .returning(ReturnValue::AllNew);
        match in_time(limit, send(self.request(&update))).await {
            Ok(output) => {
                let row = output.attributes.unwrap_or_default();
                let place = number_at(&row, TAIL, u64::MAX).ok().flatten().unwrap_or_default();
                let holder = Holder::read(row, now).map_err(|why| self.malformed(key, why))?;
                Ok(Some(Joined { place, holder }))
            }
            Err(error) => self.refused(error, &update)?.into_row(self, now).map(|_| None),
        }
    }
}
