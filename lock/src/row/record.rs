//! The record of idempotency: how a run is completed.

use std::time::Duration;

use aws_sdk_dynamodb::types::{self, AttributeValue};

use super::acquisition::Acquisition;
use super::expression::{Update, value};
use super::names::{DATA, ERROR};
use super::operation::Operation;
use super::table::Table;
use super::write::{Answer, Transactional, Write};
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

/// The completion of a run. It stores the outcome until a time in seconds since the epoch, if this owner still holds the row. One
/// request.
#[derive(Clone, Debug)]
pub(crate) struct Completing<'a> {
    acquisition: Acquisition,
    /// The number of the release.
    last: u64,
    now: Moment,
    until: u64,
    outcome: &'a Outcome,
}

impl<'a> Completing<'a> {
    pub(crate) fn new(acquisition: &Acquisition, last: u64, now: Moment, end: Duration, outcome: &'a Outcome) -> Self {
        Self { acquisition: acquisition.clone(), last, now, until: seconds_up(end), outcome }
    }
}

impl Operation for Completing<'_> {
    type Output = Completed;

    fn request<'b>(&'b self, table: &'b Table, _: Moment) -> Write<'b> {
        completion(&self.acquisition, table, self.last, self.until, self.outcome.clone()).into()
    }

    fn on(&mut self, table: &Table, answer: Answer, _: Moment) -> Result<Option<Completed>, Error> {
        let Answer::Refused(refused) = answer else {
            return Ok(Some(Completed::Now { fence: self.last, until: self.until * 1000 }));
        };
        match refused.into_row(table, self.now)? {
            Some(row) if row.completed && row.released == Some(self.last) => Ok(Some(Completed::Before(Box::new(row)))),
            row => {
                let lost = vec![(self.acquisition.key().to_owned(), self.acquisition.lost_to(row))];
                Err(Error::lost_to(lost, table.place()))
            }
        }
    }
}

impl Table {
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
