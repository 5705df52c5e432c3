//! Requests and their answers as the model has them, instead of a network. A module of `row/write`, whose fields it reads.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use tokio::time::Instant;

use super::{Answer, Refused, Rendered, Write, types};
use crate::clock::{Moment, monotonic};

/// A row, as DynamoDB has it.
pub type Item = HashMap<String, AttributeValue>;

/// A request to update one row, or one update of a transaction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The key of the row.
    pub key: String,
    /// The text of the update, with its placeholders.
    pub update: Option<String>,
    /// The text of the condition, with its placeholders.
    pub condition: Option<String>,
    /// The names that the placeholders stand for.
    pub names: HashMap<String, String>,
    /// The values that the placeholders stand for.
    pub values: HashMap<String, AttributeValue>,
}

/// The answer of the table to the requests of a transaction, or to a single request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// All requests were applied. The rows of a transaction do not matter, because it returns none.
    Applied {
        /// The row as it was before.
        before: Option<Item>,
        /// The row as it is now.
        after: Item,
    },
    /// No request was applied: for each request whose condition was not met, the row if there is one.
    Refused(Vec<Option<Option<Item>>>),
}

/// The readings of the clocks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The time since the Unix epoch.
    pub wall: Duration,
    /// The time since the model began.
    pub monotonic: Duration,
}

impl Clocks {
    pub(crate) fn moment(self) -> Moment {
        static START: OnceLock<Instant> = OnceLock::new();
        // The time of the model, not that of the process, tells whether a lease has ended.
        let start = *START.get_or_init(|| monotonic() + Duration::from_hours(24));
        Moment { wall: self.wall, monotonic: start + self.monotonic }
    }
}

pub(crate) fn requests(write: &Write<'_>) -> Vec<Request> {
    let requests = write.updates.iter().map(|update| {
        let Rendered { update: text, condition, names, values } = Rendered::of_update(update);
        let (names, values) = (names.unwrap_or_default(), values.unwrap_or_default());
        Request { key: update.key.to_owned(), update: text, condition, names, values }
    });
    requests.collect()
}

pub(crate) fn answer(write: &Write<'_>, reply: Reply) -> Answer {
    match reply {
        Reply::Applied { before, after } => {
            // A transaction returns no row.
            let update = write.updates.first().filter(|_| write.transact.is_none());
            Answer::Applied(match update.and_then(|update| update.returns.as_ref()) {
                Some(types::ReturnValue::AllOld) => before.unwrap_or_default(),
                Some(types::ReturnValue::AllNew) => after,
                _ => Item::new(),
            })
        }
        Reply::Refused(rows) => {
            let mut refused = Refused::default();
            for (key, row) in write.keys().map(str::to_owned).zip(rows) {
                match row {
                    Some(row) => refused.rows.push((key, Ok(row))),
                    None => refused.willing.push(key),
                }
            }
            Answer::Refused(refused)
        }
    }
}
