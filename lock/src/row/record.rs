//! The record of idempotency: how its claim differs from a lock's, and how a run is completed.

use std::time::Duration;

use aws_sdk_dynamodb::types::{self, AttributeValue};

use super::expression::{Attribute as _, Condition, Update, all, any, count, text, value};
use super::kind::Acquisition;
use super::names::{ACQUIRED_AT, DATA, ERROR, EXPIRATION, FENCE, RELEASED, VALIDATION};
use super::read::{NOT_UNICODE, Unreadable};
use super::table::Table;
use super::write::{Answer, Transactional};
use crate::clock::{Moment, millis, seconds_up};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};

/// What makes a claim to a key one to a record.
#[derive(Clone, Debug)]
pub(crate) struct RecordClaim {
    /// The [digests](differ) to store, and to compare with stored ones.
    pub(crate) validation: Option<String>,
    /// For how long after its start an unfinished run is refused. `None`: its record is free when its lease has ended.
    pub(crate) reject_unfinished: Option<Duration>,
}

impl RecordClaim {
    /// The lease has ended. A record whose last run did not finish stays taken for the window, if that is to be rejected; one
    /// that Powertools wrote stays taken until its TTL.
    pub(super) fn is_over<'a>(&self, lease_is_over: Condition<'a>, now: Moment) -> Condition<'a> {
        let Some(window) = self.reject_unfinished else { return lease_is_over };
        let window_ago = millis(now.wall.saturating_sub(window));
        let has_expired = EXPIRATION.at_most(count("now_seconds", now.wall.as_secs()));
        all([
            lease_is_over,
            any([
                RELEASED.is(FENCE),
                ACQUIRED_AT.at_most(count("window_ago", window_ago)),
                all([ACQUIRED_AT.missing(), has_expired]),
            ]),
        ])
    }

    /// Removes the outcome of the last run.
    pub(super) fn begin<'a>(&'a self, update: Update<'a>) -> Update<'a> {
        let update = update.remove(DATA).remove(ERROR);
        match &self.validation {
            Some(validation) => update.set(VALIDATION, text("validation", validation)),
            None => update.remove(VALIDATION),
        }
    }

    /// Returns the end of the time for which an unfinished run is refused, if it is. TTL does not delete the row before.
    pub(super) fn window_end(&self, now: Moment) -> Option<Duration> {
        self.reject_unfinished.map(|window| now.wall.saturating_add(window))
    }

    /// Returns the record if it has the result. Otherwise returns the error that a refusal by this record means.
    pub(crate) fn refusal(&self, record: Holder) -> Result<Holder, Box<Cause>> {
        let (stored, ours) = (record.validation.as_deref(), self.validation.as_deref());
        if stored.zip(ours).is_some_and(|(stored, ours)| differ(stored, ours)) {
            Err(Box::new(Cause::Mismatch(record)))
        } else if record.completed {
            Ok(record)
        } else if record.current {
            Err(Box::new(Cause::InProgress(record)))
        } else {
            Err(Box::new(Cause::Unfinished(record)))
        }
    }

    /// Returns the error of a stored result that the SDK cannot read.
    pub(super) fn unreadable(why: Unreadable, table: &Table, key: &str) -> Error {
        match why {
            Unreadable::NotUnicode(error) => {
                let why = format!(
                    "the stored result cannot be read ({NOT_UNICODE}): let the function that wrote it return whole characters"
                );
                Error::new(Cause::UnusableResult(why), table.place(), key).with_source(*error)
            }
            why => why.into_error(table.place(), key),
        }
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
    /// The outcome was stored with this fence, until this time in milliseconds since the epoch.
    Now { fence: u64, until: u64 },
    /// This owner had stored an outcome before, in a request or a transaction whose answer was lost.
    Before(Box<Holder>),
}

impl Table {
    /// Stores the outcome of a run until `end`, if this owner still holds the row. `last` is the number of its release. One
    /// request.
    pub(crate) async fn complete(
        &self,
        acquisition: &Acquisition,
        last: u64,
        now: Moment,
        end: Duration,
        outcome: Outcome,
    ) -> Result<Completed, Error> {
        let until = seconds_up(end);
        let completion = completion(acquisition, self, last, until, outcome);
        let Answer::Refused(refused) = self.write(completion, None).await? else {
            return Ok(Completed::Now { fence: last, until: until * 1000 });
        };
        let row = refused.into_row(self)?;
        if let Some(row) = row.as_ref().filter(|row| row.completed && row.released == Some(last)) {
            return Ok(Completed::Before(Box::new(row.clone().into_holder(now))));
        }
        let holder = row.filter(|row| !acquisition.has(row)).map(|row| row.into_holder(now));
        Err(Error::lost_to(vec![(acquisition.key().to_owned(), holder)], self.place()))
    }

    /// Builds the same completion as a part of the caller's transaction.
    pub(crate) fn completion(
        &self,
        acquisition: &Acquisition,
        last: u64,
        end: Duration,
        outcome: Outcome,
    ) -> Result<types::Update, Error> {
        let completion = completion(acquisition, self, last, seconds_up(end), outcome);
        let mut part = self.part(Transactional::Completion, &completion)?;
        // The record, which may be large and confidential, is not the caller's concern.
        part.return_values_on_condition_check_failure = None;
        Ok(part)
    }
}

fn completion<'a>(
    acquisition: &'a Acquisition,
    table: &'a Table,
    last: u64,
    until: u64,
    outcome: Outcome,
) -> Update<'a> {
    let update = acquisition.place(table, acquisition.key()).complete(acquisition.numbers.own, last, until);
    match outcome {
        Outcome::Result(result) => update.set(DATA, value("outcome", result)),
        Outcome::Error(Data(error)) => update.set(ERROR, value("outcome", error)),
        Outcome::WithoutResult => update,
    }
}
