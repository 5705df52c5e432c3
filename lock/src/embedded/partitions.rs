//! `Partitions`: how much is written to each partition, and which writes are too many.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// The bytes of one write unit.
const UNIT: usize = 1024;

/// A bucket of write units for each partition, which holds those of one second. A write that finds a bucket empty is
/// throttled and costs nothing. The last write may overdraw its bucket, so that a row may cost more than a bucket holds.
#[derive(Debug)]
pub(super) struct Partitions {
    units_a_second: f64,
    buckets: Mutex<HashMap<Partition, Bucket>>,
}

/// The name of the table, and the partition key as JSON.
pub(super) type Partition = (String, String);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    units: f64,
    at: SystemTime,
}

/// A write of one row.
#[derive(Debug)]
pub(super) struct RowWrite {
    pub(super) table: String,
    /// The attributes of the key, or of the whole row.
    pub(super) row: Value,
}

/// Returns the writes of a request.
pub(super) fn writes(operation: &str, request: &Value) -> Vec<RowWrite> {
    let write = |request: &Value| {
        let row = request.get("Key").or_else(|| request.get("Item"))?.clone();
        Some(RowWrite { table: request["TableName"].as_str()?.to_owned(), row })
    };
    match operation {
        "DeleteItem" | "PutItem" | "UpdateItem" => write(request).into_iter().collect(),
        TRANSACTION => {
            let items = request["TransactItems"].as_array().into_iter().flatten();
            items.filter_map(|item| item.as_object()?.values().next().and_then(write)).collect()
        }
        _ => Vec::new(),
    }
}

const TRANSACTION: &str = "TransactWriteItems";

/// Returns the write units of a row of this size. A transaction costs twice as many.
#[expect(clippy::cast_precision_loss, reason = "a row has at most 400 KB")]
pub(super) fn units(operation: &str, bytes: usize) -> f64 {
    let units = bytes.div_ceil(UNIT).max(1) as f64;
    if operation == TRANSACTION { 2.0 * units } else { units }
}

impl Partitions {
    pub(super) fn limited_to(units_a_second: u32) -> Self {
        Self { units_a_second: units_a_second.into(), buckets: Mutex::default() }
    }

    /// Returns whether each of these writes is throttled.
    pub(super) fn are_throttled(&self, writes: &[Partition], now: SystemTime) -> Vec<bool> {
        let mut buckets = self.buckets();
        writes.iter().map(|partition| self.fill(&mut buckets, partition, now).units <= 0.0).collect()
    }

    /// Takes note of a write, which may have been refused by its condition.
    pub(super) fn charge(&self, partition: &Partition, units: f64, now: SystemTime) {
        self.fill(&mut self.buckets(), partition, now).units -= units;
    }

    fn fill<'a>(
        &self,
        buckets: &'a mut HashMap<Partition, Bucket>,
        partition: &Partition,
        now: SystemTime,
    ) -> &'a mut Bucket {
        let bucket = buckets.entry(partition.clone()).or_insert_with(|| Bucket { units: self.units_a_second, at: now });
        let elapsed = now.duration_since(bucket.at).unwrap_or(Duration::ZERO);
        bucket.units = (bucket.units + self.units_a_second * elapsed.as_secs_f64()).min(self.units_a_second);
        bucket.at = now;
        bucket
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<Partition, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the body with which DynamoDB throttles a request. Its status is 400.
pub(super) fn throttled(operation: &str, are_throttled: &[bool]) -> Value {
    if operation == TRANSACTION {
        let reasons: Vec<_> = are_throttled.iter().map(|is| if *is { "ThrottlingError" } else { "None" }).collect();
        return json!({
            "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
            "Message": format!(
                "Transaction cancelled, please refer cancellation reasons for specific reasons [{}]", reasons.join(", ")
            ),
            "CancellationReasons": reasons.iter().map(|code| json!({ "Code": code })).collect::<Vec<_>>(),
        });
    }
    json!({
        "__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
        "message": "The requests exceed the throughput of the table or of a partition.",
    })
}
