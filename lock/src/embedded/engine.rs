use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use dynoxide::storage_backend::Clock as EngineClock;
use dynoxide::{Database, DynoxideError};
use tokio::time::Instant;

use super::host::HostBuilder;
use crate::clock::{Clock, since_epoch};
use crate::error::{Error, Kind, Source};

/// A DynamoDB in this process. Cheap to clone; the clones share their tables.
///
/// It speaks the operations on items, transactions, tables, tags and TTL. Expired rows stay until
/// [`sweep_expired`](Self::sweep_expired) is called, as DynamoDB too deletes them at some time of its own. See the
/// [module](super) for an example.
#[derive(Clone)]
pub struct DynamoDb {
    database: Database,
    time: TrueTime,
}

impl DynamoDb {
    /// An engine without tables, whose time starts at the system's and goes on with tokio's.
    pub fn new() -> Result<Self, Error> {
        Self::starting_at(SystemTimeSource::new().now())
    }

    /// The same with a start of the caller's choice, for a history that shall be the same in every run.
    pub fn starting_at(start: SystemTime) -> Result<Self, Error> {
        let time = TrueTime::starting_at(start);
        let database = Database::memory_with_clock(Arc::new(time))
            .map_err(|error| Error::new(Kind::Unavailable, "embedded", "").with_source(error))?;
        Ok(Self { database, time })
    }

    /// An engine whose tables are in a file, created if it is not there: processes of this machine can share it, and it
    /// is there again after a restart. Its time is the system's.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), lambda_lock::Error> {
    /// let engine = lambda_lock::embedded::DynamoDb::open("locks.sqlite")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(file: impl AsRef<Path>) -> Result<Self, Error> {
        let file = file.as_ref();
        let unusable = |error: Source| {
            Error::invalid(format!("the file `{}` cannot be used as a database: {error}", file.display()))
        };
        let name = file.to_str().ok_or_else(|| unusable("its name is not UTF-8".into()))?;
        let database = Database::new(name).map_err(|error| unusable(error.into()))?;
        Ok(Self { database, time: TrueTime { start: None, ..TrueTime::starting_at(SystemTime::UNIX_EPOCH) } })
    }

    /// A client with the right time and no faults.
    #[must_use]
    pub fn client(&self) -> Client {
        self.host().build().client()
    }

    /// A host of its own, with its own clock and network.
    pub fn host(&self) -> HostBuilder {
        HostBuilder::for_engine(self.clone())
    }

    /// The engine's time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.time.now()
    }

    /// Deletes the rows whose TTL has passed, as DynamoDB does at some time; returns how many.
    pub fn sweep_expired(&self) -> Result<usize, Error> {
        self.database.sweep_ttl().map_err(|error| Error::new(Kind::Unavailable, "embedded", "").with_source(error))
    }

    pub(super) fn time(&self) -> TrueTime {
        self.time
    }

    /// Carries out one request: the HTTP status and the body of the answer.
    pub(super) fn execute(&self, operation: &str, body: &[u8]) -> (u16, Vec<u8>) {
        match self.dispatch(operation, body) {
            Ok(answer) => (200, answer),
            Err(error) => (error.status_code(), error.to_json().into_bytes()),
        }
    }

    fn dispatch(&self, operation: &str, body: &[u8]) -> Result<Vec<u8>, DynoxideError> {
        macro_rules! run {
            ($method:ident) => {{
                let request = serde_json::from_slice(body)
                    .map_err(|error| DynoxideError::ValidationException(error.to_string()))?;
                serde_json::to_vec(&self.database.$method(request)?)
                    .map_err(|error| DynoxideError::InternalServerError(error.to_string()))
            }};
        }
        match operation {
            "BatchGetItem" => run!(batch_get_item),
            "BatchWriteItem" => run!(batch_write_item),
            "CreateTable" => run!(create_table),
            "DeleteItem" => run!(delete_item),
            "DeleteTable" => run!(delete_table),
            "DescribeTable" => run!(describe_table),
            "DescribeTimeToLive" => run!(describe_time_to_live),
            "GetItem" => run!(get_item),
            "ListTables" => run!(list_tables),
            "ListTagsOfResource" => run!(list_tags_of_resource),
            "PutItem" => run!(put_item),
            "Query" => run!(query),
            "Scan" => run!(scan),
            "TagResource" => run!(tag_resource),
            "TransactGetItems" => run!(transact_get_items),
            "TransactWriteItems" => run!(transact_write_items),
            "UntagResource" => run!(untag_resource),
            "UpdateItem" => run!(update_item),
            "UpdateTable" => run!(update_table),
            "UpdateTimeToLive" => run!(update_time_to_live),
            _ => Err(DynoxideError::ValidationException(format!("the embedded engine does not speak `{operation}`"))),
        }
    }
}

impl fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDb").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// The time that all clocks are compared with: a start, and what tokio says has passed since. Without a start, the
/// system's, which goes on while the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrueTime {
    start: Option<SystemTime>,
    since: Instant,
}

impl TrueTime {
    pub(super) fn starting_at(start: SystemTime) -> Self {
        Self { start: Some(start), since: Clock::new(None).now().monotonic }
    }

    pub(super) fn elapsed(&self) -> Duration {
        Clock::new(None).now().monotonic.saturating_duration_since(self.since)
    }

    pub(super) fn now(&self) -> SystemTime {
        self.start.map_or_else(|| SystemTimeSource::new().now(), |start| start + self.elapsed())
    }
}

impl EngineClock for TrueTime {
    fn now_unix_secs(&self) -> u64 {
        since_epoch(self.now()).as_secs()
    }

    fn now_unix_secs_f64(&self) -> f64 {
        since_epoch(self.now()).as_secs_f64()
    }
}
