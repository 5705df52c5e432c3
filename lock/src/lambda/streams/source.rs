//! `StreamSource`: how a batch of a stream's records is read and answered.

use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::batch::{Label, NotDone, Source, log_not_done};
use super::super::handler_input::PlainInput;

/// One record of a stream: a [`KinesisRecord`](crate::streams::KinesisRecord) or a
/// [`DynamoDbRecord`](crate::streams::DynamoDbRecord).
///
/// This trait is sealed.
pub trait StreamRecord: PlainInput + Sized {
    /// The event that has a batch of these records.
    type Event;
    /// The answer that Lambda expects.
    type Answer;
    /// The parsed part of the record: its data, or its images.
    type Body;

    #[doc(hidden)]
    type Raw: Send + 'static;

    /// Returns the fields of the event that only some mappings send.
    #[doc(hidden)]
    fn other(event: &Self::Event) -> &Map<String, Value>;

    #[doc(hidden)]
    fn records(event: Self::Event) -> Vec<Self::Raw>;

    #[doc(hidden)]
    fn number(raw: &Self::Raw) -> Option<&str>;

    /// Returns the ARN of the stream.
    #[doc(hidden)]
    fn stream(raw: &Self::Raw) -> Option<&str>;

    /// Records of one lane run in order.
    #[doc(hidden)]
    fn lane(raw: &Self::Raw) -> String;

    #[doc(hidden)]
    fn read(raw: Self::Raw) -> Result<Self, String>
    where
        Self::Body: DeserializeOwned + 'static;

    /// Returns the key of `StreamConsumer::by_event_id`.
    #[doc(hidden)]
    fn key_by_event_id(&self) -> Option<String>;

    /// Returns the answer with the number of the first record that is not done.
    #[doc(hidden)]
    fn answer(not_done: Option<String>) -> Self::Answer;
}

/// Returns the key of a record by its event id.
pub(super) fn event_key(stream: Option<&str>, event_id: Option<&str>) -> Option<String> {
    event_id.filter(|id| !id.is_empty()).map(|id| format!("{}#{id}", stream.unwrap_or_default()))
}

/// Why a batch is refused.
const TUMBLING_WINDOW: &str = "the event source mapping has a tumbling window, whose state this consumer would lose: remove \
                               `TumblingWindowInSeconds`";

/// The stream that a [`StreamConsumer`](crate::streams::StreamConsumer) gets records from.
pub struct StreamSource<R: StreamRecord> {
    read: Read<R>,
    /// Whether the log says that tumbling windows are refused.
    refusal: Arc<Once>,
}

type Read<R> = Arc<dyn Fn(<R as StreamRecord>::Raw) -> Result<R, String> + Send + Sync>;

impl<R: StreamRecord> StreamSource<R> {
    pub(super) fn new(read: impl Fn(R::Raw) -> Result<R, String> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), refusal: Arc::new(Once::new()) }
    }
}

/// Data is JSON, and an image is read by its own deserializer.
impl<R: StreamRecord<Body: DeserializeOwned> + 'static> Default for StreamSource<R> {
    fn default() -> Self {
        Self::new(R::read)
    }
}

impl<R: StreamRecord> Source for StreamSource<R> {
    type Event = R::Event;
    type Answer = R::Answer;
    type Item = R;
    type Raw = R::Raw;
    type Lane = String;

    /// The retention of a DynamoDB stream, and the default retention of a Kinesis stream, 24 hours each, and a day.
    const WINDOW: Duration = Duration::from_hours(48);
    /// A crash has probably left such a record, and its lane waits for it anyway.
    const WAIT: Duration = Duration::MAX;
    const NAME: &'static str = "sequence number";
    const UNFINISHED: &'static str = "unfinished records are not done";

    log_not_done!(sequence_number, stream, "record not done");

    /// Refuses a tumbling window, which expects its state in the answer.
    fn batch(&self, event: R::Event) -> Result<Vec<R::Raw>, &'static str> {
        let has_window = R::other(&event).contains_key("window");
        let records = R::records(event);
        if has_window {
            // Once, because Lambda delivers it again and again.
            self.refusal.call_once(|| {
                let sequence_number = records.first().and_then(R::number);
                tracing::error!(sequence_number, "records not done: {TUMBLING_WINDOW}");
            });
            return Err(TUMBLING_WINDOW);
        }
        Ok(records)
    }

    fn name(raw: &R::Raw) -> Option<String> {
        R::number(raw).map(str::to_owned)
    }

    fn source(raw: &R::Raw) -> Option<String> {
        R::stream(raw).map(str::to_owned)
    }

    fn lane(raw: &R::Raw) -> Option<String> {
        Some(R::lane(raw))
    }

    fn read(&self, raw: R::Raw) -> Result<R, String> {
        (self.read)(raw)
    }

    /// Lambda delivers a batch from one shard, in the shard's order, so the first number is the lowest. It takes an empty
    /// number as the failure of the whole batch.
    fn answer(not_done: Vec<String>) -> R::Answer {
        R::answer(not_done.into_iter().next())
    }
}

// By hand, because a derive would require the type of records to be `Clone` and `Debug`.
impl<R: StreamRecord> Clone for StreamSource<R> {
    fn clone(&self) -> Self {
        Self { read: Arc::clone(&self.read), refusal: Arc::clone(&self.refusal) }
    }
}

impl<R: StreamRecord> fmt::Debug for StreamSource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSource").finish_non_exhaustive()
    }
}
