//! `DynamoDb`: the tables, and the requests that they answer.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use dynoxide::types::item_size;
use dynoxide::{Database, DynoxideError};
use serde_json::{Value, json};

use super::partitions::{self, Partition, Partitions, RowWrite};
use super::time::TrueTime;
use crate::error::{Cause, Error, Source};

/// A DynamoDB in this process. Cheap to clone; clones share their tables.
///
/// It supports the operations on items, transactions, tables, tags and TTL. Expired rows stay until
/// [`sweep_expired`](Self::sweep_expired) is called; DynamoDB also deletes them some time after they expire. See the
/// [module](super) for an example.
#[derive(Clone)]
pub struct DynamoDb {
    database: Database,
    time: TrueTime,
    partitions: Option<Arc<Partitions>>,
    has_strong_regions: bool,
}

impl DynamoDb {
    /// Creates a DynamoDB without tables. Its time starts at the system's time and advances with tokio's.
    pub fn new() -> Result<Self, Error> {
        Self::starting_at(SystemTimeSource::new().now())
    }

    /// Creates a DynamoDB without tables whose time starts at `start`, for tests that repeat exactly.
    pub fn starting_at(start: SystemTime) -> Result<Self, Error> {
        let time = TrueTime::starting_at(start);
        let database = Database::memory_with_clock(Arc::new(time))
            .map_err(|error| Error::new(Cause::Unavailable, "embedded", "").with_source(error))?;
        Ok(Self { database, time, partitions: None, has_strong_regions: false })
    }

    /// Opens a DynamoDB whose tables are in a file, which is created if it does not exist. Processes on this machine can
    /// share the file, and it survives a restart. Its time is the system's time.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), lambda_lock::Error> {
    /// let dynamodb = lambda_lock::embedded::DynamoDb::open("locks.sqlite")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(file: impl AsRef<Path>) -> Result<Self, Error> {
        let file = file.as_ref();
        let unusable =
            |error: Source| Error::invalid(format!("cannot open the file `{}` as a database: {error}", file.display()));
        let name = file.to_str().ok_or_else(|| unusable("its name is not UTF-8".into()))?;
        // Of two processes that open a new file at the same time, SQLite refuses one as "database is locked", without a wait.
        let folder =
            File::open(file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")));
        let _one_at_a_time = folder.ok().filter(|folder| folder.lock().is_ok());
        let database = Database::new(name).map_err(|error| unusable(error.into()))?;
        Ok(Self { database, time: TrueTime::of_system(), partitions: None, has_strong_regions: false })
    }

    /// Throttles the writes of a partition key beyond so many write units a second, with a reserve of one second. A partition
    /// of DynamoDB takes 1,000. Without this setting, nothing is throttled.
    ///
    /// ```
    /// # fn main() -> Result<(), lambda_lock::Error> {
    /// let dynamodb = lambda_lock::embedded::DynamoDb::new()?.limit_partitions(1000);
    /// # let _ = dynamodb;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A write costs one unit for each KB of its row, rounded up, before or after the write, whichever is larger. One that its
    /// condition refuses costs the same, in a transaction twice as much. A throttled write costs nothing.
    /// `BatchWriteItem` is not limited. Clones of the returned value share the limit.
    #[must_use]
    pub fn limit_partitions(self, write_units: u32) -> Self {
        Self { partitions: Some(Arc::new(Partitions::limited_to(write_units))), ..self }
    }

    /// Makes each table a replica of a global table with multi-Region strong consistency: `DescribeTable` says so, and
    /// transactions and TTL are refused. Each [host](Self::host) can be in another region;
    /// [`Faults::replicated_write_conflicts`](super::Faults::replicated_write_conflicts) lets their writes conflict.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks, embedded::DynamoDb};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let dynamodb = DynamoDb::new()?.multi_region_strong_consistency();
    /// let locks = Locks::builder(dynamodb.client(), "locks").multi_region_strong_consistency(true).build()?;
    /// locks.create_table().await?;
    /// assert!(locks.acquire_all(["account#1", "account#2"]).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn multi_region_strong_consistency(self) -> Self {
        Self { has_strong_regions: true, ..self }
    }

    /// Returns the current time in this DynamoDB.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.time.now()
    }

    /// Deletes the rows whose TTL has passed, as DynamoDB does some time later. Returns the number of deleted rows.
    pub fn sweep_expired(&self) -> Result<usize, Error> {
        self.database.sweep_ttl().map_err(|error| Error::new(Cause::Unavailable, "embedded", "").with_source(error))
    }

    pub(super) fn time(&self) -> TrueTime {
        self.time
    }

    /// Executes one request. Returns the HTTP status and the body of the response.
    pub(super) fn execute(&self, operation: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let dispatch = if self.has_strong_regions { Self::dispatch_with_regions } else { Self::dispatch };
        let answer = || match dispatch(self, operation, body) {
            Ok(body) => (200, body),
            Err(error) => (error.status_code(), error.to_json().into_bytes()),
        };
        match &self.partitions {
            Some(partitions) => self.limited(partitions, operation, body, answer),
            None => answer(),
        }
    }

    fn limited(
        &self,
        limits: &Partitions,
        operation: &str,
        body: &[u8],
        answer: impl FnOnce() -> (u16, Vec<u8>),
    ) -> (u16, Vec<u8>) {
        let request = serde_json::from_slice(body).unwrap_or_default();
        let writes = partitions::writes(operation, &request);
        // A request without a row that is valid is refused as without a limit.
        let rows: Vec<_> = writes.iter().filter_map(|write| self.key_of(write)).collect();
        let partitions: Vec<_> = rows.iter().map(|(partition, _)| partition.clone()).collect();
        let are_throttled = limits.are_throttled(&partitions, self.now());
        if are_throttled.contains(&true) {
            return (400, partitions::throttled(operation, &are_throttled).to_string().into_bytes());
        }
        let size = |(partition, key): &(Partition, Value)| self.size_of(&partition.0, key);
        let before: Vec<_> = rows.iter().map(size).collect();
        let answer = answer();
        for (row, before) in rows.iter().zip(before) {
            limits.charge(&row.0, partitions::units(operation, before.max(size(row))), self.now());
        }
        answer
    }

    /// Returns the partition of a write, and the key of its row.
    fn key_of(&self, write: &RowWrite) -> Option<(Partition, Value)> {
        let table = json!({ "TableName": write.table }).to_string();
        let table: Value = serde_json::from_slice(&self.dispatch("DescribeTable", table.as_bytes()).ok()?).ok()?;
        let schema = table["Table"]["KeySchema"].as_array()?;
        let name = |of: &Value| of["AttributeName"].as_str().map(str::to_owned);
        let key = schema.iter().map(|of| Some((name(of)?, write.row.get(name(of)?)?.clone())));
        let partition = schema.iter().find(|of| of["KeyType"] == "HASH").and_then(name)?;
        let partition = (write.table.clone(), write.row.get(partition)?.to_string());
        Some((partition, Value::Object(key.collect::<Option<_>>()?)))
    }

    fn size_of(&self, table: &str, key: &Value) -> usize {
        let request = json!({ "TableName": table, "Key": key, "ConsistentRead": true });
        let row = serde_json::from_value(request).ok().and_then(|request| self.database.get_item(request).ok()?.item);
        row.map_or(0, |row| item_size(&row))
    }

    /// Answers as a replica of a global table with multi-Region strong consistency.
    fn dispatch_with_regions(&self, operation: &str, body: &[u8]) -> Result<Vec<u8>, DynoxideError> {
        match operation {
            "TransactGetItems" | "TransactWriteItems" | "UpdateTimeToLive" => {
                let why = format!("{operation} is not supported on a table with multi-Region strong consistency");
                Err(DynoxideError::ValidationException(why))
            }
            "DescribeTable" => {
                let body = self.dispatch(operation, body)?;
                let invalid = |error: serde_json::Error| DynoxideError::InternalServerError(error.to_string());
                let mut answer: Value = serde_json::from_slice(&body).map_err(invalid)?;
                answer["Table"]["MultiRegionConsistency"] = "STRONG".into();
                answer["Table"]["Replicas"] = json!([{ "RegionName": "us-east-2", "ReplicaStatus": "ACTIVE" }]);
                answer["Table"]["GlobalTableWitnesses"] =
                    json!([{ "RegionName": "us-west-2", "WitnessStatus": "ACTIVE" }]);
                serde_json::to_vec(&answer).map_err(invalid)
            }
            _ => self.dispatch(operation, body),
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
            _ => {
                Err(DynoxideError::ValidationException(format!("the embedded DynamoDB does not support `{operation}`")))
            }
        }
    }
}

impl fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDb").field("now", &self.now()).finish_non_exhaustive()
    }
}
