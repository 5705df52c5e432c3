//! The record of idempotency: how a run is completed.

use std::time::Duration;

use aws_sdk_dynamodb::types::{self, AttributeValue};

use super::acquisition::Acquisition;
use super::expression::{Update, value};
use super::names::{DATA, ERROR};
use super::table::Table;
use super::write::{Answer, Transactional};
use crate::clock::{Moment, seconds_up};
use crate::error::Error;
use crate::holder::{Data, Holder};

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
        let row = refused.into_row(self, now)?;
        if let Some(row) = row.as_ref().filter(|row| row.completed && row.released == Some(last)) {
            return Ok(Completed::Before(Box::new(row.clone())));
        }
        Err(Error::lost_to(vec![(acquisition.key().to_owned(), acquisition.lost_to(row))], self.place()))
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
    let update = acquisition.key_place(table, acquisition.key()).complete(acquisition.numbers.own, last, until);
    match outcome {
        Outcome::Result(result) => update.set(DATA, value("outcome", result)),
        Outcome::Error(Data(error)) => update.set(ERROR, value("outcome", error)),
        Outcome::WithoutResult => update,
    }
}
