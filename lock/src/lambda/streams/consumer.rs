//! `StreamConsumer`: a consumer of the records of a stream.

use std::fmt::Display;

use serde::de::DeserializeOwned;

use super::super::batch::Consumer;
use super::kinesis::KinesisRecord;
use super::source::{StreamRecord, StreamSource};
use crate::idempotency::{Idempotency, OnMissingKey};
use crate::lock::Locks;

/// A tower layer that makes a consumer of Kinesis or DynamoDB streams from a handler of one record.
///
/// ```no_run
/// use lambda_lock::Locks;
/// use lambda_lock::streams::{KinesisRecord, StreamConsumer};
/// use lambda_runtime::{Error, Runtime};
/// use serde::Deserialize;
/// use tower::{Layer, service_fn};
///
/// #[derive(Deserialize)]
/// struct Reading {
///     celsius: f64,
/// }
///
/// async fn store(record: KinesisRecord<Reading>) -> Result<(), Error> {
///     Ok(println!("{} of {}", record.body.celsius, record.partition_key()))
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     let consumer = StreamConsumer::by_event_id(Locks::from_env().await?);
///     Runtime::new(consumer.layer(service_fn(store))).run().await
/// }
/// ```
///
/// A record that is done does not run again for the [window](Consumer::window). Records with the same key run in order, one
/// at a time.
///
/// [`Consumer`] says when a record is done, how long it may take, what is logged, and has the settings. The handler takes a
/// [`KinesisRecord`] or a [`DynamoDbRecord`](crate::streams::DynamoDbRecord), or a [`WithRun`](crate::WithRun) around it
/// to get the run as well. The guide [Streams](crate::docs::reference::streams) explains the settings of the mapping.
///
/// - The answer names the first record of the batch that is not done. Lambda delivers again from there: the records before
///   it are finished. The records behind it that are done are completed in the table, and do not run again.
/// - The records of a batch with the same partition key, or in a DynamoDB stream with the same item's key, run in order. Lambda
///   itself keeps the order between batches.
/// - The consumer waits for a record that is in progress elsewhere.
///
/// Tumbling windows are not supported: a batch of one does not run and is answered as failed, and the first one is logged as
/// an error. Records that the Kinesis Producer Library aggregated come as one record: see
/// [`with_parser`](StreamConsumer::with_parser).
///
/// A handler of a DynamoDB stream takes a `DynamoDbRecord<Order>` instead:
///
/// ```
/// # use lambda_lock::Locks;
/// # use lambda_lock::streams::{DynamoDbRecord, StreamConsumer};
/// # use serde::Deserialize;
/// #[derive(Deserialize)]
/// struct Order {
///     quantity: u64,
/// }
///
/// async fn count(record: DynamoDbRecord<Order>) -> Result<(), std::io::Error> {
///     let quantity = |image: &Option<Order>| image.as_ref().map_or(0, |order| order.quantity);
///     Ok(println!("{} to {}", quantity(&record.old_image), quantity(&record.new_image)))
/// }
/// # fn example(locks: Locks) -> StreamConsumer<DynamoDbRecord<Order>, std::io::Error> {
/// # StreamConsumer::by_event_id(locks)
/// # }
/// ```
pub type StreamConsumer<R, E = lambda_runtime::Error, T = (), H = R> = Consumer<StreamSource<R>, H, T, E>;

impl<H, R, T, E> StreamConsumer<R, E, T, H>
where
    R: StreamRecord<Body: DeserializeOwned> + 'static,
{
    /// Creates a consumer that runs each record once by its event id, for the [window](Self::window). The data of a
    /// Kinesis record is JSON. An image of a DynamoDB record is an item: see [which type reads
    /// what](crate::docs::reference::streams#the-type-of-an-image). As JSON, a
    /// `KinesisRecord<Vec<u8>>` is an array of numbers: for the data as it is, use [`of_bytes`](Self::of_bytes).
    ///
    /// The key is `stream#event`: the stream's ARN and the event id. In Kinesis, the event id consists of the shard and the
    /// sequence number. All deliveries of a record have the same event id. A producer that writes twice creates two: see
    /// [`new`](Self::new).
    ///
    /// A record that is in progress elsewhere was probably left by a crash, and the shard waits for it anyway. The consumer
    /// [waits](Idempotency::wait) until the record is done or its [lease](Self::lease) ends, for as long as the leases of
    /// this batch last. Each attempt is one more request. Without the wait, each delivery would use up one of the mapping's
    /// `MaximumRetryAttempts`.
    #[must_use]
    pub fn by_event_id(locks: Locks) -> Self {
        Self::new(Idempotency::new(locks, OnMissingKey::Reject, R::key_by_event_id))
    }
}

impl<H, B: 'static, T, E> StreamConsumer<KinesisRecord<B>, E, T, H> {
    /// Creates a consumer of Kinesis data that is not JSON. The parser's errors are logged.
    ///
    /// ```
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::streams::{KinesisRecord, StreamConsumer};
    /// # use lambda_lock::{Idempotency, Locks};
    /// # type Record = KinesisRecord<String>;
    /// # fn example(locks: Locks) -> StreamConsumer<Record, std::io::Error> {
    /// let once = Idempotency::new(locks, OnMissingKey::Reject, KinesisRecord::key);
    /// StreamConsumer::with_parser(once, String::from_utf8)
    /// # }
    /// ```
    ///
    /// If the Kinesis Producer Library aggregates your records, the parser gets many of them as one, and no built-in parser
    /// takes them apart. Let your parser return a `Vec`, and your handler work through it: the vector counts as one record,
    /// so it is done or repeated as a whole. Or turn `AggregationEnabled` off in the producer.
    #[must_use]
    pub fn with_parser<P: Display>(
        idempotency: Idempotency<KinesisRecord<B>, T, E>,
        parse: impl Fn(Vec<u8>) -> Result<B, P> + Send + Sync + 'static,
    ) -> Self {
        let read = move |record| KinesisRecord::parse(record, |data| parse(data).map_err(|error| error.to_string()));
        Self::of(StreamSource::new(read), idempotency)
    }
}

impl<H, T, E> StreamConsumer<KinesisRecord<Vec<u8>>, E, T, H> {
    /// Creates a consumer of Kinesis data as it is.
    ///
    /// ```
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::streams::{KinesisRecord, StreamConsumer};
    /// # use lambda_lock::{Idempotency, Locks};
    /// # type Record = KinesisRecord<Vec<u8>>;
    /// # fn example(locks: Locks) -> StreamConsumer<Record, std::io::Error> {
    /// StreamConsumer::of_bytes(Idempotency::new(locks, OnMissingKey::Reject, KinesisRecord::key))
    /// # }
    /// ```
    #[must_use]
    pub fn of_bytes(idempotency: Idempotency<KinesisRecord<Vec<u8>>, T, E>) -> Self {
        Self::of(StreamSource::new(|record| KinesisRecord::parse(record, Ok)), idempotency)
    }
}
