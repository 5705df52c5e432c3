//! The join: a waiter takes a place in the key's queue. The lock in the row is unchanged.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;

use super::names::{HEAD, STATUS, TAIL, TAIL_UNTIL};
use super::read::{Row, number_at};
use super::table::{Expression as _, Table, in_time, number, send};
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
        skew: Duration,
        limit: Duration,
    ) -> Result<Option<Joined>, Error> {
        // If nobody waits any more by any clock, the queue begins behind the places that were given.
        let is_empty = seen.tail <= seen.head || seen.until.saturating_add(millis(skew)) <= now.millis();
        let head = if is_empty { seen.tail.max(seen.head) } else { seen.head };
        let tail = if seen.is_malformed || seen.tail < seen.head { ":head" } else { "if_not_exists(#tail, :head)" };
        let served = if seen.is_malformed || is_empty { ":head" } else { "if_not_exists(#head, :head)" };
        // The waiter in front of this one may wait for longer.
        let until = until.max(seen.until.min(now.millis().saturating_add(millis(DAY))));
        let update = format!("SET #tail = {tail} + :one, #head = {served}, #tail_until = :until");
        let request = self
            .update(key)
            .update_expression(update)
            .condition_expression("attribute_exists(#status)")
            .return_values(ReturnValue::AllNew)
            .names([("#status", STATUS), ("#tail", TAIL), ("#head", HEAD), ("#tail_until", TAIL_UNTIL)])
            .values([(":head", number(head)), (":one", number(1_u8)), (":until", number(until))]);
        match in_time(limit, send(request)).await {
            Ok(output) => {
                let row = output.attributes.unwrap_or_default();
                let place = number_at(&row, TAIL, u64::MAX).ok().flatten().unwrap_or_default();
                let holder = Row::read(row).map_err(|why| self.malformed(key, why))?.into_holder(now);
                Ok(Some(Joined { place, holder }))
            }
            Err(error) => self.refusal(error, key).map(|_| None),
        }
    }
}
