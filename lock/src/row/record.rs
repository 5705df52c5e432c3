//! The record of idempotency: how its claim differs from a lock's, and how a run is completed.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, Update};

use super::claim::{ClaimExtension, FREE, free};
use super::names::{COMPLETED, DATA, ERROR, EXPIRATION, IN_PROGRESS, OWNER, RELEASED, STATUS, VALIDATION};
use super::read::NOT_UNICODE;
use super::table::{Expression as _, Item, Table, in_time, number, send, string};
use crate::clock::{Moment, millis, seconds_up};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};
use crate::limits::REQUEST_TIMEOUT;

/// The claim to a record.
#[derive(Clone, Debug)]
pub(crate) struct RecordClaim {
    /// The [digests](differ) to store, and to compare with stored ones.
    pub(crate) validation: Option<String>,
    /// For how long after its start an unfinished run is refused. `None`: its record is free when its lease has ended.
    pub(crate) reject_unfinished: Option<Duration>,
}

/// A record whose last run did not finish stays taken for the window; one that Powertools wrote stays taken until its TTL.
const FREE_UNLESS_UNFINISHED: &str = free!(
    "#lease_end <= :now AND (#released = #owner OR #acquired_at <= :window_ago \
     OR (attribute_not_exists(#acquired_at) AND #expiration <= :now_seconds))"
);

impl ClaimExtension for RecordClaim {
    fn condition(&self) -> &'static str {
        if self.reject_unfinished.is_some() { FREE_UNLESS_UNFINISHED } else { FREE }
    }

    /// Removes the outcome of the last run.
    fn extend(&self, set: &mut String, mut request: UpdateItemFluentBuilder, now: Moment) -> UpdateItemFluentBuilder {
        request = request.names([("#data", DATA), ("#error", ERROR), ("#validation", VALIDATION)]);
        if let Some(window) = self.reject_unfinished {
            let window_ago = millis(now.wall.saturating_sub(window));
            request = request.name("#released", RELEASED).value(":window_ago", number(window_ago));
        }
        if let Some(validation) = &self.validation {
            set.push_str(", #validation = :validation REMOVE #data, #error");
            request.value(":validation", string(validation))
        } else {
            set.push_str(" REMOVE #data, #error, #validation");
            request
        }
    }

    fn keep_until(&self, now: Moment) -> Option<Duration> {
        self.reject_unfinished.map(|window| now.wall.saturating_add(window))
    }

    fn refusal(&self, record: Holder) -> Cause {
        let (stored, ours) = (record.validation.as_deref(), self.validation.as_deref());
        if stored.zip(ours).is_some_and(|(stored, ours)| differ(stored, ours)) {
            Cause::Mismatch(record)
        } else if record.completed {
            Cause::Completed(record)
        } else if record.current {
            Cause::InProgress(record)
        } else {
            Cause::Unfinished(record)
        }
    }

    fn unreadable(&self) -> Cause {
        Cause::UnusableResult(format!(
            "the stored result cannot be read ({NOT_UNICODE}): let the function that wrote it return whole characters"
        ))
    }
}

/// Whether these digests are of two inputs. A text has one digest, or several, each after the name of what was digested:
/// `name:digest name:digest`.
///
/// Digests of different things say nothing about each other, and neither does a record without a digest: a deployment has
/// changed what is validated, and the duplicate may be identical.
fn differ(stored: &str, ours: &str) -> bool {
    fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
        text.split(' ').map(|digest| digest.rsplit_once(':').unwrap_or(("", digest)))
    }
    named(stored).any(|(name, digest)| named(ours).any(|(other, own)| name == other && digest != own))
}

/// The outcome of a run, for later duplicates.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Result(AttributeValue),
    /// The result cannot be stored.
    WithoutResult,
    Error(Data),
}

/// The effect of a completion.
#[derive(Debug)]
pub(crate) enum Completed {
    /// The outcome was stored, until this time in milliseconds since the epoch.
    Now { until: u64 },
    /// This owner had stored an outcome before, in a request or a transaction whose answer was lost.
    Before(Box<Holder>),
}

impl Table {
    /// Stores the outcome of a run until `end`, if this owner still holds the row. One request.
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
        let Err(error) = in_time(REQUEST_TIMEOUT, send(request)).await else {
            return Ok(Completed::Now { until: until * 1000 });
        };
        match self.refusal(error, key)? {
            Some(row) if row.is_completed_by(owner) => Ok(Completed::Before(Box::new(row.into_holder(now)))),
            row => Err(self.lost(key, owner, row, now)),
        }
    }

    /// Builds the same completion as a part of the caller's transaction.
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
            .map_err(|error| Error::new(Cause::Rejected, &self.name, key).with_source(error))
    }
}

/// The update that completes a row. It also counts as the release, so that a late duplicate of a renewal is refused.
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
