//! The acquire: one request that takes a free key, and the reading of its answer.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata as _, SdkError};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::names::{
    ACQUIRED_AT, COMPLETED, DATA, EXPIRATION, FENCE, HEAD, HOLDER, IN_PROGRESS, LEASE_END, MAX_FENCE, OWNER, RELEASED,
    SEQUENCE, STATUS, TAIL, TAIL_UNTIL, WITHDRAWN,
};
use super::read::{Row, is_unreadable, number_at};
use super::table::{Expression as _, Item, Table, in_time, number, send_counted, string};
use crate::client::SdkAttempts;
use crate::clock::{Lease, Moment, millis};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};
use crate::limits::{REQUEST_TIMEOUT, time_to_ask};
use crate::queue::HoldTime;

/// One attempt to acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) key: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) holder: &'a str,
    pub(crate) now: Moment,
    pub(crate) lease: Lease,
    pub(crate) data: Option<&'a Data>,
    pub(crate) attributes: &'a [(String, AttributeValue)],
    pub(crate) extension: Option<&'a dyn ClaimExtension>,
    pub(crate) courtesy: Option<Courtesy>,
    /// The start of the owners whose lock this attempt may take over.
    pub(crate) identity: Option<&'a str>,
    /// The place in the queue that is served if this attempt succeeds.
    pub(crate) place: Option<u64>,
}

impl Claim<'_> {
    /// Adds the user's data and attributes to an update.
    pub(super) fn extras(&self, set: &mut String, mut request: UpdateItemFluentBuilder) -> UpdateItemFluentBuilder {
        if let Some(Data(data)) = self.data {
            set.push_str(", #data = :data");
            request = request.name("#data", DATA).value(":data", data.clone());
        }
        for (index, (name, value)) in self.attributes.iter().enumerate() {
            let (to, from) = (format!("#extra{index}"), format!(":extra{index}"));
            set.extend([", ", &to, " = ", &from]);
            request = request.name(&to, name).value(&from, value.clone());
        }
        request
    }

    /// Returns `true` if this error says that the fence in the row cannot be incremented.
    pub(super) fn has_endless_fence(&self, error: &SdkError<UpdateItemError>) -> bool {
        // "Attempting to store more than 38 significant digits in a Number", or "DynamoDB only supports precision up to
        // 38 digits" from DynamoDB Local. Only the new fence and the user's attributes can have so many digits.
        self.attributes.is_empty() && error.message().is_some_and(|message| message.contains("digits"))
    }
}

/// Leaves a key that was released a moment ago to the waiters ahead. A key that is still free after that moment goes to
/// anyone who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Courtesy {
    /// The place of this waiter, or `None` behind all places.
    pub(crate) place: Option<u64>,
    pub(crate) moment: Duration,
}

/// What a claim to more than a lock, such as a record of idempotency, adds to the acquire.
pub(crate) trait ClaimExtension: fmt::Debug + Send + Sync {
    /// The condition under which the row is free. It may use the names and values of [`FREE`].
    fn condition(&self) -> &'static str;

    /// Adds to the update: to its text `set`, which begins with `SET`, and to its names and values.
    fn extend(&self, set: &mut String, request: UpdateItemFluentBuilder, now: Moment) -> UpdateItemFluentBuilder;

    /// The earliest time at which TTL may delete the row, if that can be later than for a lock.
    fn keep_until(&self, now: Moment) -> Option<Duration>;

    /// The error that a refusal by this row means.
    fn refusal(&self, holder: Holder) -> Cause;

    /// The error that a refusal by a row means that [cannot be read](is_unreadable).
    fn unreadable(&self) -> Cause;
}

/// The answer to an attempt to acquire.
#[derive(Debug)]
pub(crate) enum Claimed {
    Acquired {
        fence: u64,
        data: Option<Data>,
        /// The last holder, if it did not release the key: its lease ended, or it is an earlier acquire of the same
        /// identity.
        taken_from: Option<Box<Holder>>,
        hold_time: Option<HoldTime>,
    },
    /// The row has the nonce of this acquire: an earlier attempt was applied, and its answer was lost.
    Already {
        fence: Option<u64>,
        data: Option<Data>,
        /// The end of the lease, as in [`Lease::end`].
        end: u64,
        hold_time: Option<HoldTime>,
    },
}

/// The condition of an acquire: the key is free, this nonce has not been used, and the fence can grow. The argument says
/// when a row in progress has ended. `<>` is true if the attribute is missing.
macro_rules! free {
    ($over:literal) => {
        concat!(
            "attribute_not_exists(#id) OR (#owner <> :owner AND #withdrawn <> :owner \
             AND (attribute_not_exists(#fence) OR #fence BETWEEN :zero AND :max_fence) \
             AND ((#status = :completed AND #expiration <= :now_seconds) \
               OR (#status = :in_progress AND ",
            $over,
            ") OR (#status = :in_progress AND attribute_not_exists(#lease_end) AND #expiration <= :now_seconds)))"
        )
    };
}
#[cfg(feature = "idempotency")]
pub(super) use free;

pub(super) const FREE: &str = free!("#lease_end <= :now");
/// Free for a waiter without a place. `NOT` is true if an attribute is missing.
const FREE_BEHIND_ALL: &str =
    free!("(#lease_end <= :moment_ago OR (#lease_end <= :now AND (NOT #head < #tail OR #tail_until <= :now)))");
/// Free for a waiter with a place.
const FREE_IN_TURN: &str = free!("(#lease_end <= :moment_ago OR (#lease_end <= :now AND NOT #head < :place_ahead))");

/// Held by an earlier acquire of the same identity. A late duplicate of that acquire must not take the key back.
const HELD_BY_IDENTITY: &str = " OR (#status = :in_progress AND #owner <> :owner AND #withdrawn <> :owner \
     AND begins_with(#owner, :identity) AND #released <> #owner AND #lease_end > :now AND #acquired_at < :now \
     AND #fence BETWEEN :zero AND :max_fence)";

/// Ends with the fence.
pub(super) const TAKE: &str = "SET #status = :in_progress, #owner = :owner, #holder = :holder, #acquired_at = :now, \
     #lease_end = :lease_end, #expiration = :expiration, #sequence = :zero, #fence = ";
/// The fence of a new row starts at the clock in microseconds, so that a deletion of the row does not set it back.
const NEXT_FENCE: &str = "if_not_exists(#fence, :now_micros) + :one";

impl Claim<'_> {
    /// Returns how long the request may take. An answer after the lease is useless, and so is one that leaves no time to
    /// answer Lambda.
    pub(super) fn time_limit(&self) -> Duration {
        REQUEST_TIMEOUT.min(time_to_ask(self.lease.deadline.remaining(self.now)))
    }
}

impl Table {
    /// Takes the key if it is free. One request. `attempts` records which of the SDK's attempts were answered.
    pub(crate) async fn acquire(&self, claim: &Claim<'_>, attempts: &SdkAttempts) -> Result<Claimed, Error> {
        let send = || send_counted(self.claim_request(claim), attempts.clone());
        let answer = async {
            match send().await {
                // Applied, and the SDK cannot read the row as it was before. The same request again finds its own row.
                Err(error) if error.raw_response().is_some_and(|answer| answer.status().is_success()) => send().await,
                answer => answer,
            }
        };
        match in_time(claim.time_limit(), pin!(answer)).await {
            Ok(output) => self.claimed(claim, output.attributes.unwrap_or_default()),
            Err(error) => self.refused(claim, error),
        }
    }

    /// Builds the request without its expressions, with the names and values of [`FREE`] and [`TAKE`].
    pub(super) fn take_request(&self, claim: &Claim<'_>) -> UpdateItemFluentBuilder {
        self.update(claim.key)
            .names([
                ("#id", &self.partition_key),
                ("#status", STATUS),
                ("#owner", OWNER),
                ("#holder", HOLDER),
                ("#acquired_at", ACQUIRED_AT),
                ("#lease_end", LEASE_END),
                ("#expiration", EXPIRATION),
                ("#fence", FENCE),
                ("#sequence", SEQUENCE),
                ("#withdrawn", WITHDRAWN),
            ])
            .values([
                (":in_progress", string(IN_PROGRESS)),
                (":completed", string(COMPLETED)),
                (":owner", string(claim.owner)),
                (":holder", string(claim.holder)),
                (":now", number(claim.now.millis())),
                (":now_seconds", number(claim.now.wall.as_secs())),
                (":lease_end", number(claim.lease.end)),
                (":expiration", number(claim.lease.expiration)),
                (":zero", number(0_u8)),
                (":max_fence", number(MAX_FENCE)),
            ])
    }

    fn claim_request(&self, claim: &Claim<'_>) -> UpdateItemFluentBuilder {
        let mut take = format!("{TAKE}{NEXT_FENCE}");
        let mut condition = claim.extension.map_or(FREE, ClaimExtension::condition).to_owned();
        let request = self
            .take_request(claim)
            .return_values(ReturnValue::AllOld)
            .values([(":now_micros", number(claim.now.wall.as_micros())), (":one", number(1_u8))]);
        let mut request = claim.extras(&mut take, request);
        if let Some(Courtesy { place, moment }) = claim.courtesy {
            let moment_ago = number(millis(claim.now.wall.saturating_sub(moment)));
            request = request.name("#head", HEAD).value(":moment_ago", moment_ago);
            (condition, request) = match place {
                Some(place) => {
                    (FREE_IN_TURN.to_owned(), request.value(":place_ahead", number(place.saturating_sub(1))))
                }
                None => (FREE_BEHIND_ALL.to_owned(), request.names([("#tail", TAIL), ("#tail_until", TAIL_UNTIL)])),
            };
        }
        if let Some(identity) = claim.identity {
            condition.push_str(HELD_BY_IDENTITY);
            request = request.name("#released", RELEASED).value(":identity", string(identity));
        }
        if let Some(place) = claim.place {
            // A waiter that was paused while others were served may not set the queue back. It asks again without its place.
            condition = format!("({condition}) AND NOT #head > :place");
            take.push_str(", #head = :place");
            request = request.name("#head", HEAD).value(":place", number(place));
        }
        if let Some(extension) = claim.extension {
            request = extension.extend(&mut take, request, claim.now);
        }
        request.update_expression(take).condition_expression(condition)
    }

    /// Reads the answer, which is the row as it was before. It shows the last holder, and the present row follows from it.
    fn claimed(&self, claim: &Claim<'_>, mut before: Item) -> Result<Claimed, Error> {
        let fence = number_at(&before, FENCE, MAX_FENCE).map_err(|why| self.malformed(claim.key, why))?;
        let fence = fence.map_or_else(|| claim.now.wall.as_micros() + 1, |fence| u128::from(fence) + 1);
        let left = before.remove(DATA).map(Data).filter(|_| claim.extension.is_none());
        let last = Row::read(before).map(|row| row.into_holder(claim.now)).ok();
        Ok(Claimed::Acquired {
            fence: u64::try_from(fence).unwrap_or(u64::MAX),
            data: claim.data.cloned().or(left),
            hold_time: last.as_ref().and_then(|holder| holder.queue.hold_time),
            taken_from: last.filter(|holder| !holder.completed && !holder.released).map(Box::new),
        })
    }

    fn refused(&self, claim: &Claim<'_>, error: SdkError<UpdateItemError>) -> Result<Claimed, Error> {
        let Claim { key, owner, now, .. } = *claim;
        if claim.has_endless_fence(&error) {
            let why = format!("`{FENCE}` is not a whole number that can be incremented");
            return Err(self.malformed(key, why).with_source(error));
        }
        if let Some(extension) = claim.extension.filter(|_| is_unreadable(&error)) {
            return Err(Error::new(extension.unreadable(), &self.name, key).with_source(error));
        }
        match self.refusal(error, key)? {
            Some(row) if row.is_owned_by(owner) => {
                Ok(Claimed::Already { fence: row.fence, end: row.end, hold_time: row.queue.hold_time, data: row.data })
            }
            Some(row) if row.semaphore.is_some() => {
                let kind = if claim.extension.is_some() { "a record of idempotency" } else { "a lock" };
                Err(Error::new(Cause::WrongUse { is: "a semaphore", not: kind }, &self.name, key))
            }
            Some(row) if row.end <= now.millis() && row.fence > Some(MAX_FENCE) => {
                Err(self.malformed(key, format!("`{FENCE}` has reached its largest value")))
            }
            Some(row) => {
                let holder = row.into_holder(now);
                let kind = match claim.extension {
                    Some(extension) => extension.refusal(holder),
                    None => Cause::Held(holder),
                };
                Err(Error::new(kind, &self.name, key))
            }
            None => Err(self.malformed(key, "the refusal names no row")),
        }
    }
}
