//! The records of streams, as their handlers see them.

use std::any::type_name;
use std::fmt;

use aws_lambda_events::dynamodb::EventRecord;
use aws_lambda_events::kinesis::KinesisEventRecord;
use serde::de::DeserializeOwned;

use super::super::batch::json_error;
use super::super::handler_input::PlainInput;

/// One record of a Kinesis data stream.
///
/// ```
/// use aws_lambda_events::kinesis::KinesisEventRecord;
/// use lambda_lock::KinesisRecord;
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
        sequence_number(&self.record)
    }

    /// Returns the key of [`StreamConsumer::by_event_id`](crate::StreamConsumer::by_event_id): the stream's ARN, a `#`, and
    /// the event id, which consists of the shard and the sequence number. All deliveries of a record have the same key.
    pub fn key(&self) -> Option<String> {
        key(self.record.event_source_arn.as_deref(), self.record.event_id.as_deref())
    }

    /// Parses a record with this parser of its data.
    pub(super) fn parse(
        mut record: KinesisEventRecord,
        parse: impl FnOnce(Vec<u8>) -> Result<B, String>,
    ) -> Result<Self, String> {
        let data = std::mem::take(&mut record.kinesis.data.0);
        let body = parse(data).map_err(|why| format!("the data cannot be parsed: {why}"))?;
        Ok(Self { body, record })
    }

    pub(super) fn parse_json(record: KinesisEventRecord) -> Result<Self, String>
    where
        B: DeserializeOwned,
    {
        Self::parse(record, |data| serde_json::from_slice(&data).map_err(|error| json_error(&error)))
    }
}

pub(super) fn sequence_number(record: &KinesisEventRecord) -> Option<&str> {
    Some(record.kinesis.sequence_number.as_str()).filter(|number| !number.is_empty())
}

fn key(stream: Option<&str>, event_id: Option<&str>) -> Option<String> {
    event_id.filter(|id| !id.is_empty()).map(|id| format!("{}#{id}", stream.unwrap_or_default()))
}

impl<B> PlainInput for KinesisRecord<B> {}

/// Shows the sequence number only: the data and the partition key may be confidential.
impl<B> fmt::Debug for KinesisRecord<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KinesisRecord").field("sequence_number", &self.sequence_number()).finish_non_exhaustive()
    }
}

/// One record of a DynamoDB stream: a change of an item.
///
/// The stream's view type decides which images a record has: `KEYS_ONLY`, `NEW_IMAGE`, `OLD_IMAGE` or
/// `NEW_AND_OLD_IMAGES`. All images of a record must parse, also one that the handler does not read: otherwise the record
/// is not done. The guide has [an enum](crate::docs::streams#a-record-that-always-fails) that reads images of any kind.
///
/// ```
/// use aws_lambda_events::dynamodb::EventRecord;
/// use lambda_lock::DynamoDbRecord;
///
/// let mut record = EventRecord::default();
/// record.event_name = "INSERT".to_owned();
/// let record = DynamoDbRecord::new(Some("the new item"), None, record);
/// assert_eq!(record.event_name(), "INSERT");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct DynamoDbRecord<B> {
    /// The item after the change. `None` if it was removed, or if the stream has no new images.
    pub new_image: Option<B>,
    /// The item before the change. `None` if it was inserted, or if the stream has no old images.
    pub old_image: Option<B>,
    /// The other fields of the record. The consumer removes the record's own images.
    pub record: EventRecord,
}

impl<B> DynamoDbRecord<B> {
    /// Creates a record, for testing a handler alone.
    pub fn new(new_image: Option<B>, old_image: Option<B>, record: EventRecord) -> Self {
        Self { new_image, old_image, record }
    }

    /// Returns the kind of change: `INSERT`, `MODIFY` or `REMOVE`.
    pub fn event_name(&self) -> &str {
        &self.record.event_name
    }

    /// Returns the key attributes of the item. Records with the same keys are in order.
    pub fn keys(&self) -> &serde_dynamo::Item {
        &self.record.change.keys
    }

    /// Returns the sequence number, which is unique within the shard.
    pub fn sequence_number(&self) -> Option<&str> {
        change_number(&self.record)
    }

    /// Returns the key of [`StreamConsumer::by_event_id`](crate::StreamConsumer::by_event_id): the stream's ARN, a `#`, and
    /// the event id. All deliveries of a record have the same key.
    pub fn key(&self) -> Option<String> {
        key(self.record.event_source_arn.as_deref(), Some(&self.record.event_id))
    }

    pub(super) fn parse_images(mut record: EventRecord) -> Result<Self, String>
    where
        B: DeserializeOwned,
    {
        let new_image = parse_image("new", std::mem::take(&mut record.change.new_image))?;
        let old_image = parse_image("old", std::mem::take(&mut record.change.old_image))?;
        Ok(Self { new_image, old_image, record })
    }
}

pub(super) fn change_number(record: &EventRecord) -> Option<&str> {
    record.change.sequence_number.as_deref().filter(|number| !number.is_empty())
}

/// Parses an image. An absent image has no attributes, and a present one has at least its keys.
fn parse_image<B: DeserializeOwned>(which: &str, image: serde_dynamo::Item) -> Result<Option<B>, String> {
    if image.is_empty() {
        return Ok(None);
    }
    // Without serde's message, which would show the value in the log.
    serde_dynamo::from_item(image).map(Some).map_err(|_| {
        let wanted = type_name::<B>();
        format!("the {which} image cannot be read as {wanted}: give the handler a type that reads every image")
    })
}

impl<B> PlainInput for DynamoDbRecord<B> {}

/// Shows the sequence number and the kind of change only: keys and images may be confidential.
impl<B> fmt::Debug for DynamoDbRecord<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbRecord")
            .field("sequence_number", &self.sequence_number())
            .field("event_name", &self.event_name())
            .finish_non_exhaustive()
    }
}
