//! `KafkaEvent`: what Lambda sends.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// A batch of records, as Lambda sends it.
///
/// A test reads it from JSON:
///
/// ```
/// # use lambda_lock::kafka::KafkaEvent;
/// let event: KafkaEvent = serde_json::from_str(
///     r#"{
///         "eventSource": "aws:kafka",
///         "eventSourceArn": "arn:aws:kafka:eu-west-1:123456789012:cluster/shop/1",
///         "records": {
///             "payments-0": [
///                 { "topic": "payments", "partition": 0, "offset": 17, "timestamp": 1767225600123, "value": "MTc=" }
///             ]
///         }
///     }"#,
/// )?;
/// # Ok::<_, serde_json::Error>(())
/// ```
///
/// JSON without `records` is not one. The type of `aws_lambda_events` does not read a record without a timestamp, and loses
/// a millisecond of others.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KafkaEvent {
    pub(super) event_source_arn: Option<String>,
    pub(super) bootstrap_servers: Option<String>,
    /// By topic and partition.
    pub(super) records: BTreeMap<String, Vec<Encoded>>,
}

/// A record whose key, headers and value are encoded.
#[derive(Clone, Deserialize)]
#[serde(expecting = "a Kafka record")]
pub(super) struct Encoded {
    #[serde(default)]
    pub(super) topic: Option<String>,
    pub(super) partition: i64,
    pub(super) offset: i64,
    /// In milliseconds since the epoch.
    #[serde(default)]
    pub(super) timestamp: Option<i64>,
    #[serde(default)]
    pub(super) key: Option<String>,
    #[serde(default)]
    pub(super) value: Option<String>,
    /// Bytes have a sign.
    #[serde(default)]
    pub(super) headers: Option<Vec<BTreeMap<String, Option<Vec<i16>>>>>,
}

/// Shows the partitions only: keys, headers and values may be confidential.
impl fmt::Debug for KafkaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partitions: Vec<_> = self.records.keys().collect();
        f.debug_struct("KafkaEvent").field("partitions", &partitions).finish_non_exhaustive()
    }
}
