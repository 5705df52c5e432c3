//! `KafkaRecord`: one record of a topic, as its handler sees it.

use std::fmt;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::handler_input::PlainInput;
use super::event::Encoded;
use crate::clock::{millis, since_epoch};

/// One record of a topic.
///
/// ```
/// use lambda_lock::kafka::KafkaRecord;
///
/// let mut record = KafkaRecord::new("the value");
/// record.topic = "payments".to_owned();
/// record.offset = 17;
/// assert_eq!(record.id().as_deref(), Some("#payments#0#17#0"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct KafkaRecord<B> {
    /// The parsed value.
    pub body: B,
    /// The ARN of the cluster in Amazon MSK. Otherwise the bootstrap servers, in alphabetical order.
    pub cluster: String,
    /// The topic; empty if the event has none.
    pub topic: String,
    /// The number of the partition in its topic.
    pub partition: i64,
    /// The offset, which is unique within the partition.
    pub offset: i64,
    /// When the producer wrote the record, or the broker, as the topic is configured. In milliseconds.
    pub timestamp: SystemTime,
    /// The key, by which the producer distributes records among partitions. Records of a partition with the same key are in
    /// order.
    pub key: Option<Vec<u8>>,
    /// The names and values of the headers, in their order. A name can occur several times.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl<B> KafkaRecord<B> {
    /// Creates a record with empty fields, for testing a handler alone.
    pub fn new(body: B) -> Self {
        Self {
            body,
            cluster: String::new(),
            topic: String::new(),
            partition: 0,
            offset: 0,
            timestamp: SystemTime::UNIX_EPOCH,
            key: None,
            headers: Vec::new(),
        }
    }

    /// Returns the key of [`KafkaConsumer::by_offset`](crate::kafka::KafkaConsumer::by_offset):
    /// `cluster#topic#partition#offset#timestamp`, with the timestamp in milliseconds since the epoch. All deliveries of a
    /// record have the same. `None` is a record without a topic.
    ///
    /// The timestamp makes the records of a topic that was deleted and created again other ones.
    pub fn id(&self) -> Option<String> {
        let Self { cluster, topic, partition, offset, timestamp, .. } = self;
        let timestamp = millis(since_epoch(*timestamp));
        (!topic.is_empty()).then(|| format!("{cluster}#{topic}#{partition}#{offset}#{timestamp}"))
    }

    /// Decodes a record, with this parser of its value, which a tombstone does not have.
    pub(super) fn parse(
        cluster: &str,
        record: Encoded,
        parse: impl FnOnce(Option<Vec<u8>>) -> Result<B, String>,
    ) -> Result<Self, String> {
        // Without the message, which would show a byte in the log.
        let decoded = |what: &str, text: Option<String>| {
            text.map(|text| STANDARD.decode(text)).transpose().map_err(|_| format!("the {what} is not in Base64"))
        };
        let (key, value) = (decoded("key", record.key)?, decoded("value", record.value)?);
        let body = parse(value).map_err(|why| format!("the value cannot be parsed: {why}"))?;
        let headers = record.headers.into_iter().flatten().flatten();
        Ok(Self {
            body,
            cluster: cluster.to_owned(),
            topic: record.topic.unwrap_or_default(),
            partition: record.partition,
            offset: record.offset,
            timestamp: time(record.timestamp.unwrap_or_default()),
            key,
            headers: headers.map(|(name, value)| (name, value.into_iter().flatten().map(byte).collect())).collect(),
        })
    }
}

/// Returns a byte that is written with or without a sign.
fn byte(value: i16) -> u8 {
    value.to_le_bytes()[0]
}

/// Returns the time so many milliseconds after the epoch, or before it.
fn time(millis: i64) -> SystemTime {
    let distance = Duration::from_millis(millis.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    if millis < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) }.unwrap_or(epoch)
}

impl<B> PlainInput for KafkaRecord<B> {}

/// Shows topic, partition and offset only: key, headers and value may be confidential.
impl<B> fmt::Debug for KafkaRecord<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaRecord")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
