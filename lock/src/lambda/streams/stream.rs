//! How a batch of a stream's records is read and answered.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

use aws_lambda_events::dynamodb::{Event as DynamoDbEvent, EventRecord};
use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse, KinesisEventResponse};
use serde::de::DeserializeOwned;

use super::super::batch::{Name, Source};
use super::record::{DynamoDbRecord, KinesisRecord, change_number, sequence_number};

/// The input of a handler under a [`StreamConsumer`](crate::streams::StreamConsumer): a [`KinesisRecord`] or a
/// [`DynamoDbRecord`].
///
/// This trait is sealed.
pub trait StreamRecord: sealed::Sealed + Sized {
    /// The event that has a batch of these records.
    type Event;
    /// The answer that Lambda expects.
    type Answer;
    /// The parsed part of the record: its data, or its images.
    type Body;

    #[doc(hidden)]
    type Raw: Send + 'static;

    /// Whether the event is of a tumbling window, and expects its state in the answer.
    #[doc(hidden)]
    fn has_window(event: &Self::Event) -> bool;

    #[doc(hidden)]
    fn records(event: Self::Event) -> Vec<Self::Raw>;

    #[doc(hidden)]
    fn number(record: &Self::Raw) -> Option<&str>;

    /// Records of one lane run in order.
    #[doc(hidden)]
    fn lane(record: &Self::Raw) -> String;

    #[doc(hidden)]
    fn read(record: Self::Raw) -> Result<Self, String>
    where
        Self::Body: DeserializeOwned;

    #[doc(hidden)]
    fn default_key(&self) -> Option<String>;

    /// Returns the answer with the number of the first record that is not done.
    #[doc(hidden)]
    fn answer(not_done: Option<String>) -> Self::Answer;
}

/// The field of an event that only a mapping with a tumbling window sends.
const TUMBLING_WINDOW: &str = "window";

mod sealed {
    pub trait Sealed {}
    impl<B> Sealed for super::KinesisRecord<B> {}
    impl<B> Sealed for super::DynamoDbRecord<B> {}
}

impl<B> StreamRecord for KinesisRecord<B> {
    type Event = KinesisEvent;
    type Answer = KinesisEventResponse;
    type Body = B;
    type Raw = KinesisEventRecord;

    fn has_window(event: &KinesisEvent) -> bool {
        event.other.contains_key(TUMBLING_WINDOW)
    }

    fn records(event: KinesisEvent) -> Vec<KinesisEventRecord> {
        event.records
    }

    fn number(record: &KinesisEventRecord) -> Option<&str> {
        sequence_number(record)
    }

    fn lane(record: &KinesisEventRecord) -> String {
        record.kinesis.partition_key.clone()
    }

    fn read(record: KinesisEventRecord) -> Result<Self, String>
    where
        B: DeserializeOwned,
    {
        Self::parse_json(record)
    }

    fn default_key(&self) -> Option<String> {
        self.key()
    }

    fn answer(not_done: Option<String>) -> KinesisEventResponse {
        let mut answer = KinesisEventResponse::default();
        answer.set_failures(not_done);
        answer
    }
}

impl<B> StreamRecord for DynamoDbRecord<B> {
    type Event = DynamoDbEvent;
    type Answer = DynamoDbEventResponse;
    type Body = B;
    type Raw = EventRecord;

    fn has_window(event: &DynamoDbEvent) -> bool {
        event.other.contains_key(TUMBLING_WINDOW)
    }

    fn records(event: DynamoDbEvent) -> Vec<EventRecord> {
        event.records
    }

    fn number(record: &EventRecord) -> Option<&str> {
        change_number(record)
    }

    fn lane(record: &EventRecord) -> String {
        // Sorted, because the order of the attributes differs from record to record.
        format!("{:?}", record.change.keys.iter().collect::<BTreeMap<_, _>>())
    }

    fn read(record: EventRecord) -> Result<Self, String>
    where
        B: DeserializeOwned,
    {
        Self::parse_images(record)
    }

    fn default_key(&self) -> Option<String> {
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

/// The stream that a consumer gets records from.
pub(super) struct Stream<R: StreamRecord> {
    read: Read<R>,
    /// Whether the log says that tumbling windows are refused.
    refusal: Arc<Once>,
}

type Read<R> = Arc<dyn Fn(<R as StreamRecord>::Raw) -> Result<R, String> + Send + Sync>;

impl<R: StreamRecord> Stream<R> {
    pub(super) fn new(read: impl Fn(R::Raw) -> Result<R, String> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), refusal: Arc::new(Once::new()) }
    }

    /// Logs once that an event of a tumbling window is refused. Lambda delivers it again and again.
    pub(super) fn log_window(&self, first: Option<&R::Raw>) {
        self.refusal.call_once(|| {
            tracing::error!(
                sequence_number = first.and_then(R::number),
                "records not done: the event source mapping has a tumbling window, whose state this consumer would lose: \
                 remove `TumblingWindowInSeconds`"
            );
        });
    }
}

impl<R: StreamRecord> Source for Stream<R> {
    type Record = R::Raw;
    type Item = R;
    type Copy = ();
    type Lane = String;

    /// The retention of a DynamoDB stream, and the default retention of a Kinesis stream, 24 hours each, and a day.
    const WINDOW: Duration = Duration::from_hours(48);
    const NOT_DONE: &'static str = "record not done";
    const UNFINISHED: &'static str = "unfinished records are not done";

    fn name(record: &R::Raw) -> Name {
        Name::Record(R::number(record).map(str::to_owned))
    }

    fn lane(record: &R::Raw) -> Option<String> {
        Some(R::lane(record))
    }

    fn read(&self, record: R::Raw) -> Result<R, String> {
        if R::number(&record).is_none() {
            return Err("it has no sequence number".to_owned());
        }
        (self.read)(record)
    }

    fn copy(item: R) {
        // The drop of a body may panic.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(item)));
    }
}

// By hand, because a derive would require the type of records to be `Clone`.
impl<R: StreamRecord> Clone for Stream<R> {
    fn clone(&self) -> Self {
        Self { read: Arc::clone(&self.read), refusal: Arc::clone(&self.refusal) }
    }
}
