//! `DynamoDbRecord`: one record of a DynamoDB stream, as its handler sees it.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::fmt;

use aws_lambda_events::dynamodb::{Event as DynamoDbEvent, EventRecord};
use aws_lambda_events::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use serde::de::DeserializeOwned;
use serde_dynamo::{AttributeValue, Deserializer, Item};
use serde_json::{Map, Value};

use super::super::handler_input::PlainInput;
use super::source::{StreamRecord, event_key};
use crate::text::printable;

/// One record of a DynamoDB stream: a change of an item.
///
/// ```
/// use aws_lambda_events::dynamodb::EventRecord;
/// use lambda_lock::streams::DynamoDbRecord;
///
/// let mut record = EventRecord::default();
/// record.event_name = "INSERT".to_owned();
/// let record = DynamoDbRecord::new(Some("the new item"), None, record);
/// assert_eq!(record.event_name(), "INSERT");
/// ```
///
/// The stream's view type decides which images a record has: `KEYS_ONLY`, `NEW_IMAGE`, `OLD_IMAGE` or
/// `NEW_AND_OLD_IMAGES`.
///
/// For a `DynamoDbRecord<serde_dynamo::Item>`, the images are the items as they are, with every type and every digit. For any
/// other type, the consumer reads both images by `serde_dynamo`, also one that the handler does not look at: a record with an
/// image that cannot be read is not done, and blocks its shard. The error in the log names the attribute. The guide has [a
/// table of which type reads what](crate::docs::reference::streams#the-type-of-an-image).
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
    pub fn keys(&self) -> &Item {
        &self.record.change.keys
    }

    /// Returns the sequence number, which is unique within the shard.
    pub fn sequence_number(&self) -> Option<&str> {
        Self::number(&self.record)
    }

    /// Returns the key of [`StreamConsumer::by_event_id`](crate::streams::StreamConsumer::by_event_id): the stream's
    /// ARN, a `#`, and the event id. All deliveries of a record have the same key.
    pub fn key(&self) -> Option<String> {
        event_key(self.record.event_source_arn.as_deref(), Some(&self.record.event_id))
    }
}

/// Reads an image: as it is for an [`Item`], and by `serde_dynamo` for any other type. An absent image has no attributes, and
/// a present one has at least its keys.
fn read_image<B: DeserializeOwned + 'static>(which: &str, image: Item) -> Result<Option<B>, String> {
    if image.is_empty() {
        return Ok(None);
    }
    let mut image = Some(image);
    // `Item` reads JSON in which each value has its type. A deserializer does not know for whom it reads.
    if let Some(same) = (&mut image as &mut dyn Any).downcast_mut::<Option<B>>() {
        return Ok(same.take());
    }
    let attributes = AttributeValue::M(image.unwrap_or_default().into_inner());
    let read = serde_path_to_error::deserialize(Deserializer::from_attribute_value(attributes));
    read.map(Some).map_err(|error| {
        let (wanted, why) = (type_name::<B>(), misfit(&error));
        format!(
            "the {which} image cannot be read as {wanted}, because {why}: give the handler a type that reads every image, such as \
             `serde_dynamo::Item`"
        )
    })
}

/// Says which attribute does not fit, without its value, because the text is logged.
fn misfit(error: &serde_path_to_error::Error<serde_dynamo::Error>) -> String {
    let path = error.path().to_string();
    let misfit = match path.as_str() {
        "." => "the item as a whole does not fit".to_owned(),
        path => format!("the attribute `{}` does not fit", printable(path)),
    };
    // No other message of `serde` is certain to hide the value.
    let why = error.inner().to_string();
    match why.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(name) => format!("{misfit} (missing field `{}`)", printable(name)),
        None => misfit,
    }
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

impl<B> StreamRecord for DynamoDbRecord<B> {
    type Event = DynamoDbEvent;
    type Answer = DynamoDbEventResponse;
    type Body = B;
    type Raw = EventRecord;

    fn other(event: &DynamoDbEvent) -> &Map<String, Value> {
        &event.other
    }

    fn records(event: DynamoDbEvent) -> Vec<EventRecord> {
        event.records
    }

    fn number(record: &EventRecord) -> Option<&str> {
        record.change.sequence_number.as_deref().filter(|number| !number.is_empty())
    }

    fn stream(record: &EventRecord) -> Option<&str> {
        record.event_source_arn.as_deref()
    }

    fn lane(record: &EventRecord) -> String {
        // Sorted, because the order of the attributes differs from record to record.
        format!("{:?}", record.change.keys.iter().collect::<BTreeMap<_, _>>())
    }

    fn read(mut record: EventRecord) -> Result<Self, String>
    where
        B: DeserializeOwned + 'static,
    {
        let new_image = read_image("new", std::mem::take(&mut record.change.new_image))?;
        let old_image = read_image("old", std::mem::take(&mut record.change.old_image))?;
        Ok(Self { new_image, old_image, record })
    }

    fn key_by_event_id(&self) -> Option<String> {
        self.key()
    }

    fn answer(not_done: Option<String>) -> DynamoDbEventResponse {
        let mut answer = DynamoDbEventResponse::default();
        answer.batch_item_failures.extend(not_done.map(|number| {
            let mut failure = DynamoDbBatchItemFailure::default();
            failure.item_identifier = Some(number);
            failure
        }));
        answer
    }
}
