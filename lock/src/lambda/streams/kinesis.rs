//! `KinesisRecord`: one record of a Kinesis data stream, as its handler sees it.

use std::fmt;

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::streams::KinesisEventResponse;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::batch::json_error;
use super::super::handler_input::PlainInput;
use super::source::{StreamRecord, event_key};

/// One record of a Kinesis data stream.
///
/// ```
/// use aws_lambda_events::kinesis::KinesisEventRecord;
/// use lambda_lock::streams::KinesisRecord;
///
/// let mut record = KinesisEventRecord::default();
/// record.kinesis.partition_key = "customer 17".to_owned();
/// let record = KinesisRecord::new("the data", record);
/// assert_eq!(record.partition_key(), "customer 17");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct KinesisRecord<B> {
    /// The parsed data.
    pub body: B,
    /// The other fields of the record. The consumer removes the record's own data.
    pub record: KinesisEventRecord,
}

impl<B> KinesisRecord<B> {
    /// Creates a record, for testing a handler alone.
    pub fn new(body: B, record: KinesisEventRecord) -> Self {
        Self { body, record }
    }

    /// Returns the key by which the producer distributes records among shards. Records with the same key are in order.
    pub fn partition_key(&self) -> &str {
        &self.record.kinesis.partition_key
    }

    /// Returns the sequence number, which is unique within the shard.
    pub fn sequence_number(&self) -> Option<&str> {
        Self::number(&self.record)
    }

    /// Returns the key of [`StreamConsumer::by_event_id`](crate::streams::StreamConsumer::by_event_id): the stream's
    /// ARN, a `#`, and the event id, which consists of the shard and the sequence number. All deliveries of a record
    /// have the same key.
    pub fn key(&self) -> Option<String> {
        event_key(self.record.event_source_arn.as_deref(), self.record.event_id.as_deref())
    }

    /// Parses a record with this parser of its data.
    pub(super) fn parse(
        mut record: KinesisEventRecord,
        parse: impl FnOnce(Vec<u8>) -> Result<B, String>,
    ) -> Result<Self, String> {
        let data = std::mem::take(&mut record.kinesis.data.0);
        let container = container(&data);
        let body = parse(data).map_err(|why| {
            let container = container.unwrap_or_default();
            format!("the data cannot be parsed: {why}{container}")
        })?;
        Ok(Self { body, record })
    }
}

/// Returns the way out for data that only contains records, which its first bytes tell.
fn container(data: &[u8]) -> Option<&'static str> {
    match data {
        [0xf3, 0x89, 0x9a, 0xc2, ..] => Some(
            ": the Kinesis Producer Library has aggregated several records in it. Take them apart in \
             `StreamConsumer::with_parser`, or turn `AggregationEnabled` off in the producer",
        ),
        [0x1f, 0x8b, ..] => {
            Some(": it is compressed by gzip, as CloudWatch Logs does. Decompress it in `StreamConsumer::with_parser`")
        }
        _ => None,
    }
}

impl<B> PlainInput for KinesisRecord<B> {}

/// Shows the sequence number only: the data and the partition key may be confidential.
impl<B> fmt::Debug for KinesisRecord<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KinesisRecord").field("sequence_number", &self.sequence_number()).finish_non_exhaustive()
    }
}

impl<B> StreamRecord for KinesisRecord<B> {
    type Event = KinesisEvent;
    type Answer = KinesisEventResponse;
    type Body = B;
    type Raw = KinesisEventRecord;

    fn other(event: &KinesisEvent) -> &Map<String, Value> {
        &event.other
    }

    fn records(event: KinesisEvent) -> Vec<KinesisEventRecord> {
        event.records
    }

    fn number(record: &KinesisEventRecord) -> Option<&str> {
        Some(record.kinesis.sequence_number.as_str()).filter(|number| !number.is_empty())
    }

    fn stream(record: &KinesisEventRecord) -> Option<&str> {
        record.event_source_arn.as_deref()
    }

    fn lane(record: &KinesisEventRecord) -> String {
        record.kinesis.partition_key.clone()
    }

    fn read(record: KinesisEventRecord) -> Result<Self, String>
    where
        B: DeserializeOwned + 'static,
    {
        Self::parse(record, |data| serde_json::from_slice(&data).map_err(|error| json_error(&error)))
    }

    fn key_by_event_id(&self) -> Option<String> {
        self.key()
    }

    fn answer(not_done: Option<String>) -> KinesisEventResponse {
        let mut answer = KinesisEventResponse::default();
        answer.set_failures(not_done);
        answer
    }
}
