//! The protocol: what a row holds, the requests that write it, and how their refusals are read.
//!
//! This file alone knows the names of attributes and the expressions. Each request is one `UpdateItem`, or for
//! reading one consistent `GetItem`; completing can also be part of the caller's own transaction.
//!
//! The time line of a row, by the clock of whoever looks at it:
//!
//! ```text
//!   acquired_at          holder's deadline   in_progress_expiration          expiration
//!        |------- valid for the holder ------|-- clock skew --|--- retention ----|
//!        |---------------- held for everyone else ------------|------ free ------|-- deleted by TTL, some day
//! ```
//!
//! and of a record of idempotency:
//!
//! ```text
//!   acquired_at                completed                                    expiration
//!        |-------- in progress ----|------ window: its result is replayed -------|------ free ------
//! ```

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::get_item::builders::GetItemFluentBuilder;
use aws_sdk_dynamodb::operation::transact_write_items::builders::TransactWriteItemsFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::{UpdateItemError, UpdateItemOutput};
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, ReturnValue, ReturnValuesOnConditionCheckFailure as OnRefusal, TransactWriteItem,
    Update,
};
use futures_util::future::BoxFuture;

use crate::client::Attempts;
use crate::clock::{Deadline, Moment, millis};
use crate::error::{Error, Kind};
use crate::holder::{Data, Holder};
use crate::list::ListedRow;

pub(crate) type Item = HashMap<String, AttributeValue>;

pub(crate) const DEFAULT_PARTITION_KEY: &str = "id";
/// `INPROGRESS` or `COMPLETED`.
const STATUS: &str = "status";
/// The lease's end, in milliseconds since the epoch.
const LEASE_END: &str = "in_progress_expiration";
/// The TTL attribute, in seconds since the epoch; for a completed row also the end of its result's window.
pub(crate) const EXPIRATION: &str = "expiration";
/// The nonce of the acquisition.
const OWNER: &str = "owner";
/// The nonce of the last acquisition that was released, by which a release whose response was lost knows itself
/// even when the next holder was quicker than its retry.
const RELEASED: &str = "released";
/// The number of the owner's last renewal or release, from 1; 0 after the acquire. A request that arrives after one with a
/// larger number is late, and is refused.
const SEQUENCE: &str = "sequence";
/// The nonce of the last acquire that ended without the key while a request of its own was unanswered. That request is
/// refused if it arrives after all.
const WITHDRAWN: &str = "withdrawn";
const FENCE: &str = "fence";
const HOLDER: &str = "holder";
const ACQUIRED_AT: &str = "acquired_at";
const DATA: &str = "data";
/// The digest of the payload fields that must match when a result is replayed.
const VALIDATION: &str = "validation";
/// A stored error, which is replayed in place of a result.
const ERROR: &str = "error";

const RESERVED: [&str; 13] = [
    STATUS,
    LEASE_END,
    EXPIRATION,
    OWNER,
    RELEASED,
    SEQUENCE,
    WITHDRAWN,
    FENCE,
    HOLDER,
    ACQUIRED_AT,
    DATA,
    VALIDATION,
    ERROR,
];

const IN_PROGRESS: &str = "INPROGRESS";
const COMPLETED: &str = "COMPLETED";

/// The largest time a row may name: the end of the year 9999, in milliseconds.
pub(crate) const LATEST: u64 = 253_402_300_799_999;
/// A fence beyond this is not taken further. It was not written by us.
const MAX_FENCE: u64 = i64::MAX as u64;

/// What is asked for to see what is allowed.
const PROBE_KEY: &str = "lambda-lock-check";

pub(crate) fn probe_key(prefix: &str) -> String {
    format!("{prefix}{PROBE_KEY}")
}

/// A condition that no row meets, nor a missing one.
const NEVER: &str = "attribute_exists(#id) AND attribute_not_exists(#id)";

/// DynamoDB's limit for a partition key.
pub(crate) const MAX_KEY_BYTES: usize = 2048;

/// How long a request may take, the SDK's retries included; an acquire never longer than its lease.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// What an acquire leaves of the time until the deadline, so that Lambda gets an answer and not a timeout.
pub(crate) const TIME_TO_ANSWER: Duration = Duration::from_millis(100);

/// How much of the time that is left may be waited for an answer: all but that, or half if there is less.
pub(crate) fn time_to_ask(left: Duration) -> Duration {
    left.saturating_sub(TIME_TO_ANSWER).max(left / 2)
}

/// How often a withdrawal looks again at a row that has changed since.
const WITHDRAWALS: u32 = 3;

/// What data may take of DynamoDB's 400 KiB for an item; the rest is for the key and the other attributes.
const MAX_DATA_BYTES: usize = 390 * 1024;

pub(crate) fn check_data(Data(data): &Data) -> Result<(), Error> {
    let bytes = size(data);
    if bytes <= MAX_DATA_BYTES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the data has {bytes} bytes, more than {MAX_DATA_BYTES}: store it elsewhere, and its name here"
    )))
}

/// What a value counts of an item's size, at the most: "DynamoDB item sizes and formats" in the developer guide.
fn size(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len() + 1,
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        AttributeValue::L(list) => list.iter().map(|value| size(value) + 1).sum::<usize>() + 3,
        AttributeValue::M(map) => map.iter().map(|(name, value)| name.len() + size(value) + 1).sum::<usize>() + 3,
        _ => 1,
    }
}

pub(crate) fn is_reserved(attribute: &str) -> bool {
    RESERVED.contains(&attribute)
}

/// Where the rows are.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) partition_key: String,
    /// The name and the fixed value of the sort key, in a table that has one.
    pub(crate) sort_key: Option<(String, String)>,
    pub(crate) key_prefix: String,
}

/// Without the client, which prints its whole configuration.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client: _, name, partition_key, sort_key, key_prefix } = self;
        f.debug_struct("Table")
            .field("name", name)
            .field("partition_key", partition_key)
            .field("sort_key", sort_key)
            .field("key_prefix", key_prefix)
            .finish_non_exhaustive()
    }
}

/// One attempt to acquire.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) key: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) holder: &'a str,
    pub(crate) now: Moment,
    pub(crate) lease: Lease,
    pub(crate) data: Option<&'a Data>,
    pub(crate) attributes: &'a [(String, AttributeValue)],
    pub(crate) record: Option<&'a RecordClaim>,
}

/// A request of the owner of a key, after the acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) key: &'a str,
    pub(crate) owner: &'a str,
    /// Larger than that of every request that this owner sent before.
    pub(crate) sequence: u64,
    pub(crate) now: Moment,
}

/// What a claim to a record of idempotency has beyond that to a lock.
#[derive(Clone, Debug)]
pub(crate) struct RecordClaim {
    /// The digest to store, and to compare with a stored one.
    pub(crate) validation: Option<String>,
    /// For how long after its beginning a run is refused that was neither completed nor given up; `None`: it is free when
    /// its lease has ended.
    pub(crate) refuse_unfinished: Option<Duration>,
}

/// How a run ended, for whoever asks for the same later.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Result(AttributeValue),
    /// One that is too large to store.
    WithoutResult,
    Error(Data),
}

/// A lease as the row has it and as its holder counts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// The holder's deadline plus the clock skew, in milliseconds since the epoch.
    pub(crate) end: u64,
    pub(crate) deadline: Deadline,
    /// The TTL, in seconds since the epoch.
    expiration: u64,
}

impl Lease {
    pub(crate) fn new(deadline: Deadline, clock_skew: Duration, retention: Duration) -> Self {
        let end = deadline.wall().saturating_add(clock_skew);
        // Up, for a skew of less than a millisecond.
        let whole = millis(end.saturating_add(Duration::from_nanos(999_999)));
        Self { end: whole, deadline, expiration: seconds_up(end.saturating_add(retention)) }
    }

    /// The same with a TTL that is no earlier than this.
    pub(crate) fn kept_until(self, time: Duration) -> Self {
        Self { expiration: self.expiration.max(seconds_up(time)), ..self }
    }

    /// The same with a TTL that is no earlier than that of the lease it follows.
    pub(crate) fn following(self, earlier: Self) -> Self {
        Self { expiration: self.expiration.max(earlier.expiration), ..self }
    }
}

/// What became of an attempt to acquire.
#[derive(Debug)]
pub(crate) enum Claimed {
    Acquired {
        fence: u64,
        data: Option<Data>,
        /// The last holder, if its lease ended without a release.
        taken_from: Option<Holder>,
    },
    /// The row has the very nonce of this claim: an earlier request was applied and its response lost.
    Already(Row),
    Held(Holder),
}

/// What a release made of a row.
#[derive(Debug)]
pub(crate) enum Released {
    Freed,
    /// Nothing: this owner had completed it, in a transaction whose answer was lost.
    Completed(Box<Holder>),
}

/// What a completion found.
#[derive(Debug)]
pub(crate) enum Completed {
    /// The outcome was stored, until this time in milliseconds since the epoch.
    Now { until: u64 },
    /// This owner had stored one before, in a request or a transaction whose answer was lost.
    Before(Box<Holder>),
}

/// The condition under which a row may be taken, given when one in progress is over. `<>` is true of a missing attribute.
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
const FREE: &str = free!("#lease_end <= :now");
/// A record whose last run was not given up stays taken for the window; one of Powertools' for its own.
const FREE_UNLESS_UNFINISHED: &str = free!(
    "#lease_end <= :now AND (#released = #owner OR #acquired_at <= :window_ago \
     OR (attribute_not_exists(#acquired_at) AND #expiration <= :now_seconds))"
);

/// A new row's fence starts at the clock in microseconds, so that a deleted row cannot rewind it.
const TAKE: &str = "SET #status = :in_progress, #owner = :owner, #holder = :holder, #acquired_at = :now, \
     #lease_end = :lease_end, #expiration = :expiration, #sequence = :zero, #fence = if_not_exists(#fence, :now_micros) + :one";

impl Table {
    /// Takes the key if it is free. One request, whose attempts are counted in `attempts`.
    pub(crate) async fn acquire(&self, claim: &Claim<'_>, attempts: &Attempts) -> Result<Claimed, Error> {
        let mut take = TAKE.to_owned();
        let unfinished = claim.record.and_then(|record| record.refuse_unfinished);
        let mut request = self
            .update(claim.key)
            .condition_expression(if unfinished.is_some() { FREE_UNLESS_UNFINISHED } else { FREE })
            .return_values(ReturnValue::AllOld)
            .expression_attribute_names("#id", &self.partition_key)
            .expression_attribute_names("#status", STATUS)
            .expression_attribute_names("#owner", OWNER)
            .expression_attribute_names("#holder", HOLDER)
            .expression_attribute_names("#acquired_at", ACQUIRED_AT)
            .expression_attribute_names("#lease_end", LEASE_END)
            .expression_attribute_names("#expiration", EXPIRATION)
            .expression_attribute_names("#fence", FENCE)
            .expression_attribute_names("#sequence", SEQUENCE)
            .expression_attribute_names("#withdrawn", WITHDRAWN)
            .expression_attribute_values(":in_progress", string(IN_PROGRESS))
            .expression_attribute_values(":completed", string(COMPLETED))
            .expression_attribute_values(":owner", string(claim.owner))
            .expression_attribute_values(":holder", string(claim.holder))
            .expression_attribute_values(":now", number(claim.now.millis()))
            .expression_attribute_values(":now_seconds", number(claim.now.wall.as_secs()))
            .expression_attribute_values(":now_micros", number(claim.now.wall.as_micros()))
            .expression_attribute_values(":lease_end", number(claim.lease.end))
            .expression_attribute_values(":expiration", number(claim.lease.expiration))
            .expression_attribute_values(":zero", number(0_u8))
            .expression_attribute_values(":one", number(1_u8))
            .expression_attribute_values(":max_fence", number(MAX_FENCE));
        if let Some(Data(data)) = claim.data {
            take.push_str(", #data = :data");
            request =
                request.expression_attribute_names("#data", DATA).expression_attribute_values(":data", data.clone());
        }
        for (index, (name, value)) in claim.attributes.iter().enumerate() {
            let (to, from) = (format!("#extra{index}"), format!(":extra{index}"));
            take.extend([", ", &to, " = ", &from]);
            request = request.expression_attribute_names(to, name).expression_attribute_values(from, value.clone());
        }
        if let Some(window) = unfinished {
            let window_ago = millis(claim.now.wall.saturating_sub(window));
            request = request
                .expression_attribute_names("#released", RELEASED)
                .expression_attribute_values(":window_ago", number(window_ago));
        }
        if let Some(record) = claim.record {
            request = request.expression_attribute_names("#validation", VALIDATION);
            // What the last run left is not the result of this one.
            request = request.expression_attribute_names("#data", DATA).expression_attribute_names("#error", ERROR);
            if let Some(validation) = &record.validation {
                take.push_str(", #validation = :validation REMOVE #data, #error");
                request = request.expression_attribute_values(":validation", string(validation));
            } else {
                take.push_str(" REMOVE #data, #error, #validation");
            }
        }
        // An answer when the lease is over is of no use, nor one that leaves no time to tell Lambda of it.
        let limit = REQUEST_TIMEOUT.min(time_to_ask(claim.lease.deadline.remaining(claim.now)));
        let request = request.update_expression(take);
        match in_time(limit, send_counted(request, attempts.clone())).await {
            Ok(output) => {
                // The row as it was before: who had it shows in that alone, and what is there now follows from it.
                let mut before = output.attributes.unwrap_or_default();
                let fence = number_at(&before, FENCE, MAX_FENCE).map_err(|why| self.malformed(claim.key, why))?;
                let fence = fence.map_or_else(|| claim.now.wall.as_micros() + 1, |fence| u128::from(fence) + 1);
                let left = before.remove(DATA).map(Data).filter(|_| claim.record.is_none());
                let taken_from = Row::read(before).map(|row| row.into_holder(claim.now)).ok();
                Ok(Claimed::Acquired {
                    fence: u64::try_from(fence).unwrap_or(u64::MAX),
                    data: claim.data.cloned().or(left),
                    taken_from: taken_from.filter(|holder| !holder.completed && !holder.released),
                })
            }
            // "Attempting to store more than 38 significant digits in a Number", or "DynamoDB only supports precision up to 38
            // digits" from DynamoDB Local. Of what is written, only the sum for the fence and the user's attributes can have
            // so many.
            Err(error)
                if claim.attributes.is_empty() && error.message().is_some_and(|message| message.contains("digits")) =>
            {
                let why = format!("`{FENCE}` is not a whole number to count on from");
                Err(self.malformed(claim.key, why).with_source(error))
            }
            Err(error) => match self.refusal(error, claim.key)? {
                Some(row) if row.owner.as_deref() == Some(claim.owner) => Ok(Claimed::Already(row)),
                Some(row) if row.end <= claim.now.millis() && row.fence > Some(MAX_FENCE) => {
                    Err(self.malformed(claim.key, format!("`{FENCE}` has reached its largest value")))
                }
                Some(row) => Ok(Claimed::Held(row.into_holder(claim.now))),
                None => Err(self.malformed(claim.key, "the refusal names no row".to_owned())),
            },
        }
    }

    /// Frees the key at `end`, keeping the row, if it still has this owner and was not completed. One request.
    pub(crate) async fn release(
        &self,
        step: Step<'_>,
        end: Duration,
        retention: Duration,
        data: Option<&Data>,
    ) -> Result<Released, Error> {
        let Step { key, owner, now, .. } = step;
        match in_time(REQUEST_TIMEOUT, send(self.release_request(step, end, retention, data))).await {
            Ok(_) => Ok(Released::Freed),
            Err(error) => match self.refusal(error, key)? {
                Some(row) if row.is_completed_by(owner) => Ok(Released::Completed(Box::new(row.into_holder(now)))),
                Some(row) if row.released.as_deref() == Some(owner) => Ok(Released::Freed),
                row => Err(self.lost(key, owner, row, now)),
            },
        }
    }

    /// The row keeps its owner, and its end is no earlier than the release: so a duplicate of an acquire of this owner's,
    /// or of anyone's that was sent more than the clock skew before the release, is refused when it arrives after it. A
    /// release that arrives after a later one of the same owner is refused too.
    fn release_request(
        &self,
        Step { key, owner, sequence, .. }: Step<'_>,
        end: Duration,
        retention: Duration,
        data: Option<&Data>,
    ) -> UpdateItemFluentBuilder {
        let request = self
            .update(key)
            .condition_expression("#owner = :owner AND #status = :in_progress AND #sequence < :sequence")
            .expression_attribute_names("#owner", OWNER)
            .expression_attribute_names("#status", STATUS)
            .expression_attribute_values(":in_progress", string(IN_PROGRESS))
            .expression_attribute_names("#released", RELEASED)
            .expression_attribute_names("#sequence", SEQUENCE)
            .expression_attribute_names("#lease_end", LEASE_END)
            .expression_attribute_names("#expiration", EXPIRATION)
            .expression_attribute_values(":owner", string(owner))
            .expression_attribute_values(":sequence", number(sequence))
            .expression_attribute_values(":lease_end", number(millis(end)))
            .expression_attribute_values(":expiration", number(seconds_up(end.saturating_add(retention))));
        let set = "SET #lease_end = :lease_end, #expiration = :expiration, #released = :owner, #sequence = :sequence";
        with_data(request, set, data)
    }

    /// Makes sure that no request of an acquire that ended without the key takes it when it arrives late. Frees the key
    /// if this owner has it after all; otherwise leaves the owner's nonce in the row, which makes the row refuse it. One
    /// request if the owner has the key, two if it does not.
    ///
    /// Without it, a release by another holder does not refuse such a request where this host's clock is ahead of that
    /// holder's. The row has one nonce of this kind: a second acquire that withdraws replaces the first one's.
    pub(crate) async fn withdraw(&self, key: &str, owner: &str, now: Moment, retention: Duration) -> Result<(), Error> {
        for _ in 0..WITHDRAWALS {
            let step = Step { key, owner, sequence: 1, now };
            let release = self.release_request(step, now.wall, retention, None);
            let Err(error) = in_time(REQUEST_TIMEOUT, send(release)).await else { return Ok(()) };
            let row = self.refusal(error, key)?;
            if row.as_ref().is_some_and(|row| row.owner.as_deref() == Some(owner)) {
                return Ok(());
            }
            let withdrawal = self.withdrawal(step, row, seconds_up(now.wall.saturating_add(retention)));
            match in_time(REQUEST_TIMEOUT, send(withdrawal)).await {
                Ok(_) => return Ok(()),
                // The row has changed meanwhile.
                Err(error) => self.refusal(error, key).map(drop)?,
            }
        }
        Err(Error::new(Kind::Conflict, &self.name, key))
    }

    /// The request that makes a row refuse this owner, if it is as it was seen.
    fn withdrawal(
        &self,
        Step { key, owner, now, .. }: Step<'_>,
        row: Option<Row>,
        expiration: u64,
    ) -> UpdateItemFluentBuilder {
        let request = self
            .update(key)
            .expression_attribute_names("#owner", OWNER)
            .expression_attribute_values(":owner", string(owner));
        match row {
            // As if the owner had released it.
            None => request
                .condition_expression("attribute_not_exists(#id)")
                .update_expression(
                    "SET #owner = :owner, #released = :owner, #status = :in_progress, #lease_end = :lease_end, \
                     #expiration = :expiration",
                )
                .expression_attribute_names("#id", &self.partition_key)
                .expression_attribute_names("#released", RELEASED)
                .expression_attribute_names("#status", STATUS)
                .expression_attribute_names("#lease_end", LEASE_END)
                .expression_attribute_values(":in_progress", string(IN_PROGRESS))
                .expression_attribute_values(":lease_end", number(now.millis())),
            // Its TTL is due before the late request may be. That of a completed row is the end of its window.
            Some(row) if row.is_deleted_before(expiration) => request
                .condition_expression(
                    "#owner <> :owner AND #status = :in_progress AND attribute_exists(#lease_end) \
                     AND attribute_exists(#acquired_at) AND #expiration < :expiration",
                )
                .update_expression("SET #withdrawn = :owner, #expiration = :expiration")
                .expression_attribute_names("#status", STATUS)
                .expression_attribute_names("#lease_end", LEASE_END)
                .expression_attribute_names("#acquired_at", ACQUIRED_AT)
                .expression_attribute_names("#withdrawn", WITHDRAWN)
                .expression_attribute_values(":in_progress", string(IN_PROGRESS)),
            Some(_) => {
                return request
                    .condition_expression("attribute_exists(#status) AND #owner <> :owner")
                    .update_expression("SET #withdrawn = :owner")
                    .expression_attribute_names("#status", STATUS)
                    .expression_attribute_names("#withdrawn", WITHDRAWN);
            }
        }
        .expression_attribute_names("#expiration", EXPIRATION)
        .expression_attribute_values(":expiration", number(expiration))
    }

    /// Stores how the run ended until `end`, if the row still has this owner. One request.
    pub(crate) async fn complete(
        &self,
        key: &str,
        owner: &str,
        now: Moment,
        end: Duration,
        outcome: Outcome,
    ) -> Result<Completed, Error> {
        let until = seconds_up(end);
        let Completion { update, names, values } = Completion::new(owner, until, outcome);
        let request = self
            .update(key)
            .update_expression(update)
            .condition_expression(Completion::CONDITION)
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values));
        match in_time(REQUEST_TIMEOUT, send(request)).await {
            Ok(_) => Ok(Completed::Now { until: until * 1000 }),
            Err(error) => match self.refusal(error, key)? {
                Some(row) if row.is_completed_by(owner) => Ok(Completed::Before(Box::new(row.into_holder(now)))),
                row => Err(self.lost(key, owner, row, now)),
            },
        }
    }

    /// The same as a part of the caller's transaction.
    pub(crate) fn completion(&self, key: &str, owner: &str, end: Duration, outcome: Outcome) -> Result<Update, Error> {
        let Completion { update, names, values } = Completion::new(owner, seconds_up(end), outcome);
        Update::builder()
            .table_name(&self.name)
            .set_key(Some(self.key(key)))
            .update_expression(update)
            .condition_expression(Completion::CONDITION)
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .build()
            .map_err(|error| Error::new(Kind::Refused, &self.name, key).with_source(error))
    }

    /// Moves the lease's end, if the row has this owner and the lease has not ended. One request.
    ///
    /// A duplicate that arrives after the release or the completion must not take the key again for nobody, and one that
    /// arrives after a later renewal must not move the end back: hence the conditions on the last release and on the
    /// sequence.
    pub(crate) async fn renew(&self, step: Step<'_>, lease: Lease, data: Option<&Data>) -> Result<(), Error> {
        let Step { key, owner, sequence, now } = step;
        let request = self
            .update(key)
            .condition_expression(
                "#owner = :owner AND #released <> :owner AND #sequence < :sequence AND #lease_end > :now",
            )
            .expression_attribute_names("#owner", OWNER)
            .expression_attribute_names("#released", RELEASED)
            .expression_attribute_names("#sequence", SEQUENCE)
            .expression_attribute_names("#lease_end", LEASE_END)
            .expression_attribute_names("#expiration", EXPIRATION)
            .expression_attribute_values(":owner", string(owner))
            .expression_attribute_values(":sequence", number(sequence))
            .expression_attribute_values(":now", number(now.millis()))
            .expression_attribute_values(":lease_end", number(lease.end))
            .expression_attribute_values(":expiration", number(lease.expiration));
        let set = "SET #lease_end = :lease_end, #expiration = :expiration, #sequence = :sequence";
        let Err(error) = in_time(REQUEST_TIMEOUT, send(with_data(request, set, data))).await else {
            return Ok(());
        };
        match self.refusal(error, key)? {
            // By an earlier attempt of this very renewal, whose response was lost.
            Some(row)
                if row.owner.as_deref() == Some(owner)
                    && row.released != row.owner
                    && row.sequence == Some(sequence) =>
            {
                Ok(())
            }
            row => Err(self.lost(key, owner, row, now)),
        }
    }

    /// Reads the row. One consistent read.
    pub(crate) async fn get(&self, key: &str, now: Moment) -> Result<Option<Holder>, Error> {
        let read = self.client.get_item().table_name(&self.name).consistent_read(true);
        let output = in_time(REQUEST_TIMEOUT, Box::pin(read.set_key(Some(self.key(key))).send())).await;
        match output.map_err(|error| Error::from_sdk(error, &self.name, key))?.item {
            Some(item) => match Row::read(item) {
                Ok(row) => Ok(Some(row.into_holder(now))),
                Err(why) => Err(self.malformed(key, why)),
            },
            None => Ok(None),
        }
    }

    /// Reads the next rows. One consistent scan, of up to 1 MiB; `None` when there are no more.
    pub(crate) async fn scan(&self, cursor: &Cursor, now: Moment) -> Result<Option<Scanned>, Error> {
        let after = match cursor {
            Cursor::Start => None,
            Cursor::After(key) => Some(key.clone()),
            Cursor::End => return Ok(None),
        };
        let mut filter = "#status IN (:in_progress, :completed) \
             AND (attribute_exists(#lease_end) OR attribute_exists(#expiration))"
            .to_owned();
        // Without what holders left and runs returned: nobody asked for that.
        let attributes =
            "#id, #status, #owner, #released, #holder, #fence, #acquired_at, #lease_end, #expiration".to_owned();
        let mut request = self
            .client
            .scan()
            .table_name(&self.name)
            .consistent_read(true)
            .set_exclusive_start_key(after)
            .expression_attribute_names("#id", &self.partition_key)
            .expression_attribute_names("#status", STATUS)
            .expression_attribute_names("#owner", OWNER)
            .expression_attribute_names("#released", RELEASED)
            .expression_attribute_names("#holder", HOLDER)
            .expression_attribute_names("#fence", FENCE)
            .expression_attribute_names("#acquired_at", ACQUIRED_AT)
            .expression_attribute_names("#lease_end", LEASE_END)
            .expression_attribute_names("#expiration", EXPIRATION)
            .expression_attribute_values(":in_progress", string(IN_PROGRESS))
            .expression_attribute_values(":completed", string(COMPLETED));
        if !self.key_prefix.is_empty() {
            filter.push_str(" AND begins_with(#id, :prefix)");
            request = request.expression_attribute_values(":prefix", string(&self.key_prefix));
        }
        if let Some((name, value)) = &self.sort_key {
            filter.push_str(" AND #sort_key = :sort_key");
            request = request
                .expression_attribute_names("#sort_key", name)
                .expression_attribute_values(":sort_key", string(value));
        }
        let request = request.filter_expression(filter).projection_expression(attributes);
        let output = in_time(REQUEST_TIMEOUT, Box::pin(request.send()))
            .await
            .map_err(|error| Error::from_sdk(error, &self.name, ""))?;
        let rows = output.items.unwrap_or_default().into_iter().filter_map(|mut item| {
            let id = string_at(&mut item, &self.partition_key).ok()??;
            let key = id.strip_prefix(&self.key_prefix)?.to_owned();
            let row = Row::read(item).map(|row| row.into_holder(now)).map_err(|why| self.malformed(&key, why));
            Some(ListedRow { key, holder: row })
        });
        Ok(Some(Scanned {
            rows: rows.collect(),
            read: u64::try_from(output.scanned_count).unwrap_or_default(),
            cursor: output.last_evaluated_key.map_or(Cursor::End, Cursor::After),
        }))
    }

    /// Takes the key from the acquisition that was `seen`, for this `owner`, and releases it at once: nobody has it then, and
    /// whoever had it finds it lost. `false` if the row is no longer as it was seen. One request.
    pub(crate) async fn force_release(
        &self,
        key: &str,
        owner: &str,
        holder: &str,
        seen: &Holder,
        now: Moment,
        retention: Duration,
    ) -> Result<bool, Error> {
        // Whatever this host's clock says, no later than the lease would have ended, and later than the request that began
        // it, so that a duplicate of that is refused.
        let end = now.millis().min(seen.until).max(seen.since.map_or(0, |since| since + 1));
        let request = self
            .update(key)
            .update_expression(
                "SET #owner = :owner, #released = :owner, #holder = :holder, #lease_end = :end, #expiration = :expiration",
            )
            .expression_attribute_names("#status", STATUS)
            .expression_attribute_names("#owner", OWNER)
            .expression_attribute_names("#released", RELEASED)
            .expression_attribute_names("#holder", HOLDER)
            .expression_attribute_names("#lease_end", LEASE_END)
            .expression_attribute_names("#expiration", EXPIRATION)
            .expression_attribute_values(":in_progress", string(IN_PROGRESS))
            .expression_attribute_values(":owner", string(owner))
            .expression_attribute_values(":holder", string(holder))
            .expression_attribute_values(":end", number(end))
            .expression_attribute_values(":expiration", number(seconds_up(now.wall.saturating_add(retention))));
        let request = match &seen.owner {
            // What that owner has released itself is left as it is, so that a retry of that release knows it.
            Some(owner) => request
                .condition_expression(
                    "#status = :in_progress AND #owner = :seen AND (#released <> :seen OR #lease_end > :now)",
                )
                .expression_attribute_values(":now", number(now.millis()))
                .expression_attribute_values(":seen", string(owner)),
            // A row that another library wrote has no owner: there, its end tells one acquisition from the next.
            None => request
                .condition_expression(
                    "#status = :in_progress AND attribute_not_exists(#owner) AND (#lease_end = :seen \
                     OR (attribute_not_exists(#lease_end) AND #expiration = :seen_seconds))",
                )
                .expression_attribute_values(":seen", number(seen.until))
                .expression_attribute_values(":seen_seconds", number(seen.until / 1000)),
        };
        match in_time(REQUEST_TIMEOUT, send(request)).await {
            Ok(_) => Ok(true),
            Err(error) => Ok(self.refusal(error, key)?.is_some_and(|row| {
                // By this request, whose response was lost, or by the holder itself.
                let by_holder =
                    !row.completed && row.owner.is_some() && row.owner == seen.owner && row.released == row.owner;
                by_holder || row.released.as_deref() == Some(owner)
            })),
        }
    }

    /// "This owner still holds the key", for a transaction. `None`: a check that always holds.
    pub(crate) fn condition_check(&self, key: &str, owner: Option<&str>, now: Moment) -> Result<ConditionCheck, Error> {
        let check = ConditionCheck::builder().table_name(&self.name).set_key(Some(self.key(key)));
        match owner {
            Some(owner) => check
                .condition_expression("#owner = :owner AND #released <> :owner AND #lease_end > :now")
                .expression_attribute_names("#owner", OWNER)
                .expression_attribute_names("#released", RELEASED)
                .expression_attribute_names("#lease_end", LEASE_END)
                .expression_attribute_values(":owner", string(owner))
                .expression_attribute_values(":now", number(now.millis())),
            None => check
                .condition_expression("attribute_exists(#id) OR attribute_not_exists(#id)")
                .expression_attribute_names("#id", &self.partition_key),
        }
        .return_values_on_condition_check_failure(OnRefusal::AllOld)
        .build()
        .map_err(|error| Error::new(Kind::Refused, &self.name, key).with_source(error))
    }

    /// An acquire's request that is never applied: its refusal says that it is allowed.
    pub(crate) fn probe_update(&self) -> UpdateItemFluentBuilder {
        let probe = self.update(PROBE_KEY).condition_expression(NEVER).return_values(ReturnValue::AllOld);
        probe.expression_attribute_names("#id", &self.partition_key)
    }

    /// Sends that request, whose refusal shows that the table was reached.
    pub(crate) async fn reach(&self, limit: Duration) -> Result<(), Error> {
        match in_time(limit, send(self.probe_update())).await {
            Ok(_) => Ok(()),
            Err(error) => self.refusal(error, PROBE_KEY).map(drop),
        }
    }

    pub(crate) fn probe_get(&self) -> GetItemFluentBuilder {
        self.client.get_item().table_name(&self.name).set_key(Some(self.key(PROBE_KEY)))
    }

    /// The same for a condition check.
    pub(crate) fn probe_condition_check(&self) -> Result<TransactWriteItemsFluentBuilder, Error> {
        let check = ConditionCheck::builder().table_name(&self.name).set_key(Some(self.key(PROBE_KEY)));
        let check = check.condition_expression(NEVER).expression_attribute_names("#id", &self.partition_key).build();
        let check = check.map_err(|error| Error::new(Kind::Refused, &self.name, PROBE_KEY).with_source(error))?;
        let item = TransactWriteItem::builder().condition_check(check).build();
        Ok(self.client.transact_write_items().transact_items(item))
    }

    fn update(&self, key: &str) -> UpdateItemFluentBuilder {
        self.client
            .update_item()
            .table_name(&self.name)
            .set_key(Some(self.key(key)))
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
    }

    fn key(&self, key: &str) -> Item {
        let mut item = Item::from([(self.partition_key.clone(), string(&format!("{}{key}", self.key_prefix)))]);
        if let Some((name, value)) = &self.sort_key {
            item.insert(name.clone(), string(value));
        }
        item
    }

    /// The row that stood in the way, or the error if the request failed for another reason.
    fn refusal(&self, error: SdkError<UpdateItemError>, key: &str) -> Result<Option<Row>, Error> {
        match error {
            SdkError::ServiceError(context) if context.err().is_conditional_check_failed_exception() => {
                let UpdateItemError::ConditionalCheckFailedException(refused) = context.into_err() else {
                    return Ok(None);
                };
                match refused.item {
                    Some(item) => Row::read(item).map(Some).map_err(|why| self.malformed(key, why)),
                    None => Ok(None),
                }
            }
            error => Err(Error::from_sdk(error, &self.name, key)),
        }
    }

    fn lost(&self, key: &str, owner: &str, row: Option<Row>, now: Moment) -> Error {
        let other = row.filter(|row| row.owner.as_deref() != Some(owner));
        let holder = other.map(|row| row.into_holder(now));
        Error::new(Kind::Lost(holder), &self.name, key)
    }

    fn malformed(&self, key: &str, why: String) -> Error {
        Error::new(Kind::MalformedRow(why), &self.name, key)
    }
}

/// How far a scan has come.
#[derive(Debug)]
pub(crate) enum Cursor {
    Start,
    After(Item),
    End,
}

/// What a scan found.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) rows: Vec<ListedRow>,
    /// How many rows it read to find them.
    pub(crate) read: u64,
    pub(crate) cursor: Cursor,
}

/// The update that completes a row. It counts as the release too, so that no late duplicate of a renewal touches it.
struct Completion {
    update: String,
    names: HashMap<String, String>,
    values: Item,
}

impl Completion {
    const CONDITION: &str = "#owner = :owner AND #status = :in_progress";

    fn new(owner: &str, until: u64, outcome: Outcome) -> Self {
        let set = "SET #status = :completed, #expiration = :expiration, #released = :owner";
        let mut completion = Self {
            update: set.to_owned(),
            names: [("#status", STATUS), ("#expiration", EXPIRATION), ("#released", RELEASED), ("#owner", OWNER)]
                .map(|(to, name)| (to.to_owned(), name.to_owned()))
                .into(),
            values: [
                (":completed", string(COMPLETED)),
                (":in_progress", string(IN_PROGRESS)),
                (":expiration", number(until)),
                (":owner", string(owner)),
            ]
            .map(|(to, value)| (to.to_owned(), value))
            .into(),
        };
        let (name, value) = match outcome {
            Outcome::WithoutResult => return completion,
            Outcome::Result(data) => (DATA, data),
            Outcome::Error(Data(error)) => (ERROR, error),
        };
        completion.update.push_str(", #outcome = :outcome");
        completion.names.insert("#outcome".to_owned(), name.to_owned());
        completion.values.insert(":outcome".to_owned(), value);
        completion
    }
}

/// A row, checked.
#[derive(Debug)]
pub(crate) struct Row {
    completed: bool,
    pub(crate) owner: Option<String>,
    released: Option<String>,
    sequence: Option<u64>,
    holder: Option<String>,
    pub(crate) fence: Option<u64>,
    acquired_at: Option<u64>,
    /// When the row is free, in milliseconds.
    pub(crate) end: u64,
    /// The TTL of a row for which it means nothing else, in milliseconds.
    ttl: Option<u64>,
    pub(crate) data: Option<Data>,
    error: Option<Data>,
    validation: Option<String>,
}

impl Row {
    /// Reads a row that anyone may have written; the error says what is wrong with it.
    fn read(mut item: Item) -> Result<Self, String> {
        let lease_end = number_at(&item, LEASE_END, LATEST)?;
        let acquired_at = number_at(&item, ACQUIRED_AT, LATEST)?;
        let expiration = number_at(&item, EXPIRATION, LATEST / 1000)?.map(|seconds| seconds * 1000);
        let (completed, end) = match string_at(&mut item, STATUS)?.as_deref() {
            Some(IN_PROGRESS) => (false, lease_end.or(expiration)),
            Some(COMPLETED) => (true, expiration),
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                return Err(format!("`{STATUS}` is `{other}`, not {IN_PROGRESS} or {COMPLETED}"));
            }
            None => return Err(format!("`{STATUS}` is missing")),
        };
        Ok(Self {
            completed,
            end: end.ok_or_else(|| format!("`{LEASE_END}` and `{EXPIRATION}` are missing"))?,
            owner: string_at(&mut item, OWNER)?,
            // Acquiring leaves it as it is, so a row that was taken may have anything there.
            released: string_at(&mut item, RELEASED).unwrap_or_default(),
            // One that is no number is not ours.
            sequence: number_at(&item, SEQUENCE, u64::MAX).unwrap_or_default(),
            holder: string_at(&mut item, HOLDER)?,
            fence: number_at(&item, FENCE, MAX_FENCE + 1)?,
            acquired_at,
            // That of Powertools' unfinished runs is also the end of what they refuse.
            ttl: expiration.filter(|_| !completed && lease_end.is_some() && acquired_at.is_some()),
            error: if completed { string_at(&mut item, ERROR)?.map(Data::from) } else { None },
            // One that is not a string matches nothing.
            validation: string_at(&mut item, VALIDATION).unwrap_or_default(),
            data: item.remove(DATA).map(Data),
        })
    }

    /// Powertools may have completed it later, without a look at the owner; but that leaves `released` as it was.
    fn is_completed_by(&self, owner: &str) -> bool {
        self.completed && self.owner.as_deref() == Some(owner) && self.released == self.owner
    }

    /// By its TTL alone, which says nothing about whether it is free.
    fn is_deleted_before(&self, seconds: u64) -> bool {
        self.ttl.is_some_and(|ttl| ttl < seconds.saturating_mul(1000))
    }

    fn into_holder(self, now: Moment) -> Holder {
        Holder {
            released: self.completed || (self.owner.is_some() && self.released == self.owner),
            owner: self.owner,
            name: self.holder,
            fence: self.fence,
            since: self.acquired_at,
            until: self.end,
            data: self.data,
            current: self.end > now.millis(),
            completed: self.completed,
            error: self.error,
            validation: self.validation,
        }
    }
}

/// Sends a request. The SDK by itself would wait without end for an answer on a connection that is silently dead. Its
/// future is large: the caller boxes it, so that ours are not.
#[expect(clippy::result_large_err, reason = "it is the SDK's error")]
pub(crate) fn in_time<T, E>(
    limit: Duration,
    request: impl Future<Output = Result<T, SdkError<E>>> + Unpin,
) -> impl Future<Output = Result<T, SdkError<E>>> {
    let answer = tokio::time::timeout(limit, request);
    async { answer.await.unwrap_or_else(|elapsed| Err(SdkError::timeout_error(elapsed))) }
}

type Sent = BoxFuture<'static, Result<UpdateItemOutput, SdkError<UpdateItemError>>>;

/// Sends an update. The future's type is hidden: otherwise each crate that polls one of ours compiles the SDK's request loop
/// once more, 150 KB of machine code.
fn send(request: UpdateItemFluentBuilder) -> Sent {
    Box::pin(request.send())
}

/// The same, with its attempts counted.
fn send_counted(request: UpdateItemFluentBuilder, attempts: Attempts) -> Sent {
    Box::pin(request.customize().interceptor(attempts).send())
}

fn with_data(request: UpdateItemFluentBuilder, set: &str, data: Option<&Data>) -> UpdateItemFluentBuilder {
    match data {
        Some(Data(data)) => request
            .update_expression(format!("{set}, #data = :data"))
            .expression_attribute_names("#data", DATA)
            .expression_attribute_values(":data", data.clone()),
        None => request.update_expression(set),
    }
}

fn string(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(value: impl Into<u128>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

/// TTL has whole seconds: up, so that no row is swept early.
fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn string_at(item: &mut Item, name: &str) -> Result<Option<String>, String> {
    match item.remove(name) {
        None => Ok(None),
        Some(AttributeValue::S(value)) => Ok(Some(value)),
        Some(_) => Err(format!("`{name}` is not a string")),
    }
}

/// A number between zero and `max`; a fraction is cut off.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the bounds are checked first"
)]
fn number_at(item: &Item, name: &str, max: u64) -> Result<Option<u64>, String> {
    let text = match item.get(name) {
        None => return Ok(None),
        Some(AttributeValue::N(text)) => text,
        Some(_) => return Err(format!("`{name}` is not a number")),
    };
    let value = match (text.parse::<u64>(), text.parse::<f64>()) {
        (Ok(whole), _) => Some(whole),
        (_, Ok(real)) if real >= 0.0 && real <= max as f64 => Some(real as u64),
        _ => None,
    };
    match value {
        Some(value) if value <= max => Ok(Some(value)),
        _ => Err(format!("`{name}` is {text}, not between 0 and {max}")),
    }
}
