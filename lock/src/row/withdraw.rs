//! The withdrawal: an acquire that ends without the key makes sure that none of its attempts takes the key later.

use std::time::Duration;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;

use super::names::{ACQUIRED_AT, EXPIRATION, IN_PROGRESS, LEASE_END, OWNER, RELEASED, STATUS, WITHDRAWN};
use super::read::Row;
use super::release::Step;
use super::table::{Expression as _, Table, insist, number, string};
use crate::clock::{Moment, seconds_up};
use crate::error::{Cause, Error};

/// How often a withdrawal looks again at a row that changed meanwhile.
pub(super) const TRIES: u32 = 3;

impl Table {
    /// Frees the key if this owner has it after all. Otherwise stores the owner's nonce in the row, which then refuses an
    /// attempt that arrives late. One request if the owner has the key, two if not; up to six if others change the row.
    ///
    /// Without a withdrawal, the row refuses such an attempt only if this host's clock is not ahead of the clock of the
    /// last holder to release. The row has one nonce of this kind: a second withdrawal replaces the first.
    pub(crate) async fn withdraw(&self, key: &str, owner: &str, now: Moment, retention: Duration) -> Result<(), Error> {
        for _ in 0..TRIES {
            let step = Step { key, owner, sequence: 1, now };
            let release = self.release_request(step, now.wall, retention);
            let Err(error) = insist(release).await else { return Ok(()) };
            let row = self.refusal(error, key)?;
            if row.as_ref().is_some_and(|row| row.is_owned_by(owner)) {
                return Ok(());
            }
            if self.refuse_later(step, row, retention).await? {
                return Ok(());
            }
        }
        Err(Error::new(Cause::Conflict, &self.name, key))
    }

    /// Makes the row refuse this owner. Returns `false` if the row has changed since it was read.
    pub(super) async fn refuse_later(
        &self,
        step: Step<'_>,
        row: Option<Row>,
        retention: Duration,
    ) -> Result<bool, Error> {
        let withdrawal = self.withdrawal(step, row, seconds_up(step.now.wall.saturating_add(retention)));
        match insist(withdrawal).await {
            Ok(_) => Ok(true),
            Err(error) => self.refusal(error, step.key).map(|_| false),
        }
    }

    /// Builds the request that makes the row refuse this owner, if the row is unchanged.
    fn withdrawal(
        &self,
        Step { key, owner, now, .. }: Step<'_>,
        row: Option<Row>,
        expiration: u64,
    ) -> UpdateItemFluentBuilder {
        let request = self.update(key).name("#owner", OWNER).value(":owner", string(owner));
        match row {
            // The new row looks as if the owner had released it.
            None => request
                .condition_expression("attribute_not_exists(#id)")
                .update_expression(
                    "SET #owner = :owner, #released = :owner, #status = :in_progress, #acquired_at = :now, \
                     #lease_end = :now, #expiration = :expiration",
                )
                .names([
                    ("#id", &self.partition_key),
                    ("#released", RELEASED),
                    ("#status", STATUS),
                    ("#acquired_at", ACQUIRED_AT),
                    ("#lease_end", LEASE_END),
                ])
                .values([(":in_progress", string(IN_PROGRESS)), (":now", number(now.millis()))]),
            // TTL could delete this row before the late attempt arrives. (The TTL of a completed row is the end of its
            // window, and stays.)
            Some(row) if row.is_deleted_before(expiration) => request
                .condition_expression(
                    "#owner <> :owner AND #status = :in_progress AND attribute_exists(#lease_end) \
                     AND attribute_exists(#acquired_at) AND #expiration < :expiration",
                )
                .update_expression("SET #withdrawn = :owner, #expiration = :expiration")
                .names([
                    ("#status", STATUS),
                    ("#lease_end", LEASE_END),
                    ("#acquired_at", ACQUIRED_AT),
                    ("#withdrawn", WITHDRAWN),
                ])
                .value(":in_progress", string(IN_PROGRESS)),
            Some(_) => {
                return request
                    .condition_expression("attribute_exists(#status) AND #owner <> :owner")
                    .update_expression("SET #withdrawn = :owner")
                    .names([("#status", STATUS), ("#withdrawn", WITHDRAWN)]);
            }
        }
        .name("#expiration", EXPIRATION)
        .value(":expiration", number(expiration))
    }
}
