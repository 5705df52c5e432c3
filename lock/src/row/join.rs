//! The join: a waiter takes a place in the key's queue. The lock in the row is unchanged.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;

use super::expression::{Attribute as _, To, Update, count};
use super::names::{HEAD, STATUS, TAIL, TAIL_UNTIL};
use super::table::{Table, in_time};
use super::write::send;
use crate::clock::{Moment, millis};
use crate::error::Error;
use crate::holder::Holder;
use crate::limits::DAY;
use crate::queue::Queue;

impl Table {
    /// Takes the place behind the last one. `seen` is the queue that the caller has seen; `until` is the time at which it
    /// stops waiting, in milliseconds since the epoch. Returns the row, whose `tail` is the place; or `None` if there is no row.
    /// One request.
    pub(crate) async fn join(
        &self,
        key: &str,
        seen: Queue,
        until: u64,
        now: Moment,
        limit: Duration,
    ) -> Result<Option<Holder>, Error> {
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
                let row = Holder::read(output.attributes.unwrap_or_default(), now);
                row.map(Some).map_err(|why| self.malformed(key, why))
            }
            Err(error) => self.refused(error, &update)?.into_row(self, now).map(|_| None),
        }
    }
}
