//! The requests of a holder after its acquire (renew, release, condition check), and the release by an operator.

use std::time::Duration;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{ConditionCheck, ReturnValuesOnConditionCheckFailure as OnRefusal};

use super::names::{
    EXPIRATION, HOLD, HOLD_DEVIATION, HOLDER, IN_PROGRESS, LEASE_END, OWNER, RELEASED, SEQUENCE, STATUS,
};
use super::table::{Expression as _, Table, hold_number, insist, number, string, with_data};
use crate::clock::{Lease, Moment, millis, seconds_up};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};
use crate::queue::HoldTime;

/// A request of the owner of a key, after the acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) key: &'a str,
    pub(crate) owner: &'a str,
    /// Larger than the number of every earlier request of this owner.
    pub(crate) sequence: u64,
    pub(crate) now: Moment,
}

/// The smallest deviation in a row: 0 means that it is unknown.
const RESOLUTION: Duration = Duration::from_micros(1);

pub(super) const RENEW: &str = "SET #lease_end = :lease_end, #expiration = :expiration, #sequence = :sequence";

const RELEASE: &str =
    "SET #lease_end = :lease_end, #expiration = :expiration, #released = :owner, #sequence = :sequence";

impl Table {
    /// Moves the end of the lease, if this owner holds the row and the lease has not ended. One request.
    ///
    /// A duplicate that arrives after the release or the completion must not take the key again, and one that arrives
    /// after a later renewal must not move the end back. The conditions on `released` and `sequence` refuse both.
    pub(crate) async fn renew(&self, step: Step<'_>, lease: Lease, data: Option<&Data>) -> Result<(), Error> {
        let Step { key, owner, sequence, now } = step;
        let request = with_data(self.renew_request(step, lease), RENEW, data);
        let Err(error) = insist(request).await else {
            return Ok(());
        };
        match self.refusal(error, key)? {
            // An earlier attempt of this renewal was applied; its answer was lost.
            Some(row) if row.is_renewed_by(owner, sequence) => Ok(()),
            row => Err(self.lost(key, owner, row, now)),
        }
    }

    /// Builds the renewal without its update expression.
    pub(super) fn renew_request(
        &self,
        Step { key, owner, sequence, now }: Step<'_>,
        lease: Lease,
    ) -> UpdateItemFluentBuilder {
        self.update(key)
            .condition_expression(
                "#owner = :owner AND #released <> :owner AND #sequence < :sequence AND #lease_end > :now",
            )
            .names([
                ("#owner", OWNER),
                ("#released", RELEASED),
                ("#sequence", SEQUENCE),
                ("#lease_end", LEASE_END),
                ("#expiration", EXPIRATION),
            ])
            .values([
                (":owner", string(owner)),
                (":sequence", number(sequence)),
                (":now", number(now.millis())),
                (":lease_end", number(lease.end)),
                (":expiration", number(lease.expiration)),
            ])
    }

    /// Frees the key at `end`, stores the hold time, and keeps the row, if this owner holds it. Returns the record,
    /// unmodified, if this owner has completed it in a transaction whose answer was lost. One request.
    pub(crate) async fn release(
        &self,
        step: Step<'_>,
        end: Duration,
        retention: Duration,
        data: Option<&Data>,
        hold_time: HoldTime,
    ) -> Result<Option<Box<Holder>>, Error> {
        let Step { key, owner, now, .. } = step;
        let set = format!("{RELEASE}, #hold = :hold, #hold_deviation = :hold_deviation");
        let request = self
            .release_request(step, end, retention)
            .names([("#hold", HOLD), ("#hold_deviation", HOLD_DEVIATION)])
            .values([
                (":hold", hold_number(hold_time.mean)),
                (
                    ":hold_deviation",
                    hold_number(hold_time.deviation.map_or(Duration::ZERO, |known| known.max(RESOLUTION))),
                ),
            ]);
        let Err(error) = insist(with_data(request, &set, data)).await else {
            return Ok(None);
        };
        match self.refusal(error, key)? {
            Some(row) if row.is_completed_by(owner) => Ok(Some(Box::new(row.into_holder(now)))),
            Some(row) if row.is_released_by(owner) => Ok(None),
            row => Err(self.lost(key, owner, row, now)),
        }
    }

    /// The row keeps its owner, and its end is not before the release. So it refuses a late duplicate of an acquire of
    /// this owner, and of any acquire that was sent more than the clock skew before the release. It also refuses a
    /// release that arrives after a later release of the same owner.
    pub(super) fn release_request(
        &self,
        Step { key, owner, sequence, .. }: Step<'_>,
        end: Duration,
        retention: Duration,
    ) -> UpdateItemFluentBuilder {
        self.update(key)
            .update_expression(RELEASE)
            .condition_expression("#owner = :owner AND #status = :in_progress AND #sequence < :sequence")
            .names([
                ("#owner", OWNER),
                ("#status", STATUS),
                ("#released", RELEASED),
                ("#sequence", SEQUENCE),
                ("#lease_end", LEASE_END),
                ("#expiration", EXPIRATION),
            ])
            .values([
                (":in_progress", string(IN_PROGRESS)),
                (":owner", string(owner)),
                (":sequence", number(sequence)),
                (":lease_end", number(millis(end))),
                (":expiration", number(seconds_up(end.saturating_add(retention)))),
            ])
    }

    /// Builds the check "this owner still holds the key" for a transaction. Without an owner, the check always holds.
    pub(crate) fn condition_check(&self, key: &str, owner: Option<&str>, now: Moment) -> Result<ConditionCheck, Error> {
        let check = ConditionCheck::builder().table_name(&self.name).set_key(Some(self.key(key)));
        match owner {
            Some(owner) => check
                .condition_expression("#owner = :owner AND #released <> :owner AND #lease_end > :now")
                .names([("#owner", OWNER), ("#released", RELEASED), ("#lease_end", LEASE_END)])
                .values([(":owner", string(owner)), (":now", number(now.millis()))]),
            None => check
                .condition_expression("attribute_exists(#id) OR attribute_not_exists(#id)")
                .name("#id", &self.partition_key),
        }
        .return_values_on_condition_check_failure(OnRefusal::AllOld)
        .build()
        .map_err(|error| Error::new(Cause::Rejected, &self.name, key).with_source(error))
    }

    /// Takes the key from the acquisition that was `seen`, for the operator's `owner`, and releases it at once, so that its
    /// holder finds it lost. Returns `false` if the row has changed since it was seen. One request.
    pub(crate) async fn force_release(
        &self,
        key: &str,
        owner: &str,
        holder: &str,
        seen: &Holder,
        now: Moment,
        retention: Duration,
    ) -> Result<bool, Error> {
        // Not after the end of the lease, even if this clock is ahead; and after the request that began the lease, so that
        // a duplicate of it is refused.
        let end = now.millis().min(seen.until).max(seen.since.map_or(0, |since| since + 1));
        let request = self
            .update(key)
            .update_expression(
                "SET #owner = :owner, #released = :owner, #holder = :holder, #lease_end = :end, #expiration = :expiration",
            )
            .names([
                ("#status", STATUS),
                ("#owner", OWNER),
                ("#released", RELEASED),
                ("#holder", HOLDER),
                ("#lease_end", LEASE_END),
                ("#expiration", EXPIRATION),
            ])
            .values([
                (":in_progress", string(IN_PROGRESS)),
                (":owner", string(owner)),
                (":holder", string(holder)),
                (":end", number(end)),
                (":expiration", number(seconds_up(now.wall.saturating_add(retention)))),
            ]);
        let request = match &seen.owner {
            // A row that its owner released is not changed, so that a retry of that release recognises it.
            Some(owner) => request
                .condition_expression(
                    "#status = :in_progress AND #owner = :seen AND (#released <> :seen OR #lease_end > :now)",
                )
                .values([(":now", number(now.millis())), (":seen", string(owner))]),
            // A row that another library wrote has no owner. Its end tells one acquisition from the next.
            None => request
                .condition_expression(
                    "#status = :in_progress AND attribute_not_exists(#owner) AND (#lease_end = :seen \
                     OR (attribute_not_exists(#lease_end) AND #expiration = :seen_seconds))",
                )
                .values([(":seen", number(seen.until)), (":seen_seconds", number(seen.until / 1000))]),
        };
        let Err(error) = insist(request).await else { return Ok(true) };
        Ok(self.refusal(error, key)?.is_some_and(|row| {
            let is_released = |owner: &str| row.is_owned_by(owner) && row.is_released_by(owner);
            let by_holder = !row.completed && seen.owner.as_deref().is_some_and(is_released);
            // An earlier attempt of this request was applied; its answer was lost.
            let by_this_request = row.is_released_by(owner);
            by_holder || by_this_request
        }))
    }
}
