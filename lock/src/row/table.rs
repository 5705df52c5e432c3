//! The table, and the settings of all its rows.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::types::AttributeValue;
use tokio::time::timeout;

use super::expression::{Path, string};
use super::names::{FENCE, WITHDRAWN};
use crate::error::{Cause, Error, Place};
use crate::random;

pub(crate) type Item = HashMap<String, AttributeValue>;

/// Where the rows are, and how long they stay.
#[derive(Clone)]
pub(crate) struct Table {
    /// The client of the caller.
    pub(crate) client: Client,
    /// The client of all requests here, on the connections of the caller's client.
    pub(crate) sender: Client,
    pub(crate) name: String,
    pub(crate) partition_key: String,
    /// The name of the sort key and a fixed value, if the table has one.
    pub(crate) sort_key: Option<(String, String)>,
    /// The sort key has the key of the row, and the partition key the fixed value.
    pub(crate) has_key_in_sort_key: bool,
    pub(crate) key_prefix: String,
    /// How far the clocks of two hosts may differ.
    pub(crate) clock_skew: Duration,
    /// How long a row stays after its lease.
    pub(crate) retention: Duration,
    /// It is a global table with multi-Region strong consistency, which has neither transactions nor TTL.
    pub(crate) has_strong_regions: bool,
    /// Nobody waits for the answers, so a request that failed at DynamoDB is repeated like a request that was prevented.
    pub(crate) is_in_background: bool,
}

/// Omits the clients, which print their whole configuration.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("place", &self.place())
            .field("clock_skew", &self.clock_skew)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// Returns the same table for requests whose answers nobody waits for.
    pub(crate) fn in_background(&self) -> Self {
        Self { is_in_background: true, ..self.clone() }
    }

    pub(super) fn key(&self, key: &str) -> Item {
        let mut item = Item::from([(self.key_attribute().clone(), AttributeValue::S(self.place().row_key(key)))]);
        if let Some((name, value)) = self.fixed_attribute() {
            item.insert(name.clone(), string(value));
        }
        item
    }

    /// Returns the name of the attribute that has the key of a row.
    pub(super) fn key_attribute(&self) -> &String {
        match &self.sort_key {
            Some((name, _)) if self.has_key_in_sort_key => name,
            _ => &self.partition_key,
        }
    }

    /// Returns the name of the other attribute of the table's key, and the value that it has in each row.
    pub(super) fn fixed_attribute(&self) -> Option<(&String, &String)> {
        let (name, value) = self.sort_key.as_ref()?;
        Some((if self.has_key_in_sort_key { &self.partition_key } else { name }, value))
    }

    /// Returns the table that an error or an event names.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            table: &self.name,
            key_prefix: &self.key_prefix,
            partition_key: &self.partition_key,
            sort_key: self.sort_key.as_ref().map(|(name, _)| name.as_str()),
        }
    }

    pub(super) fn key_path(&self) -> Path {
        Path::named("id", self.key_attribute().clone())
    }

    /// Draws a nonce: 128 bits in hexadecimal.
    pub(crate) fn nonce(&self, key: &str) -> Result<String, Error> {
        random::nonce().map_err(|error| Error::new(Cause::Unavailable, self.place(), key).with_source(error))
    }

    pub(super) fn malformed(&self, key: &str, why: impl Into<String>) -> Error {
        Error::new(Cause::MalformedRow(why.into()), self.place(), key)
    }

    /// The error for a row with the largest number, which no later acquisition can exceed.
    pub(super) fn last_fence(&self, key: &str) -> Error {
        self.malformed(key, format!("`{FENCE}` or `{WITHDRAWN}` has reached its largest value"))
    }

    /// Returns the time after which TTL may delete a row whose lease has this end.
    pub(super) fn kept_after(&self, end: Duration) -> Duration {
        end.saturating_add(self.retention)
    }
}

/// Limits the time of a request. Without a limit, the SDK can wait forever for an answer on a dead connection. The
/// future of an SDK request is large, so the caller boxes it.
#[expect(clippy::result_large_err, reason = "this is the SDK's error")]
pub(crate) fn in_time<T, E>(
    limit: Duration,
    request: impl Future<Output = Result<T, SdkError<E>>> + Unpin,
) -> impl Future<Output = Result<T, SdkError<E>>> {
    let answer = timeout(limit, request);
    async { answer.await.unwrap_or_else(|elapsed| Err(SdkError::timeout_error(elapsed))) }
}

/// Compares two names or ARNs of tables. A name matches an ARN that ends with it.
pub(crate) fn is_same_table(one: &str, other: &str) -> bool {
    let name = |table: &str| table.rsplit_once(":table/").map_or_else(|| table.to_owned(), |(_, name)| name.to_owned());
    let is_arn = |table: &str| table.starts_with("arn:");
    one == other || (is_arn(one) != is_arn(other) && name(one) == name(other))
}
