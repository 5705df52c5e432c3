//! `StreamConsumer`: its settings.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::super::batch::Settings;
use super::record::KinesisRecord;
use super::stream::{Stream, StreamRecord};
use crate::idempotency::{Idempotency, OnMissingKey};
use crate::lock::Locks;
use crate::panics;

/// A tower layer that makes a consumer of Kinesis or DynamoDB streams from a handler of one record. A record that is
/// done does not run again for the [window](Self::window). Records with the same key run in order, one at a time.
///
/// Enable `ReportBatchItemFailures` in the event source mapping. Without it, Lambda takes the answer as success and
/// never delivers the records that failed again. Put the consumer around the handler, inside the runtime. The handler
/// takes a [`KinesisRecord`] or a [`DynamoDbRecord`](crate::streams::DynamoDbRecord), or a [`WithRun`](crate::WithRun)
/// around it to get the run as well. The guide [Streams](crate::docs::streams) explains the settings of the mapping.
///
/// The answer names the first record of the batch that is not done. Lambda delivers again from there: the records before
/// it are finished. The records behind it that are done are recorded, and do not run again.
///
/// | a record | |
/// | --- | --- |
/// | whose handler returns `Ok` | is done, and recorded as done for the [window](Self::window), even if its result cannot be stored |
/// | whose handler returns an error, panics, or is unfinished when its lease ends | is not done; its record is released, unless the [`Idempotency`] says otherwise |
/// | that was done before | is done without running |
/// | that is in progress elsewhere | is not done; with [`by_event_id`](Self::by_event_id), the consumer first waits for it |
/// | whose data or images do not parse, or that has no key | is not done |
/// | that was not started [in time](Self::min_remaining_time) | is not done |
/// | behind a record of its lane that is not done | is not started, so that the lane stays in order; other lanes continue |
/// | behind a failure, with [`stop_at_first_failure`](Self::stop_at_first_failure) | is not started |
///
/// A lane is the records of a batch with the same partition key, or in a DynamoDB stream with the same item's key. Lambda
/// itself keeps the order between batches.
///
/// A record without a sequence number cannot be named in the answer. It does not run, and is answered with an empty
/// number, for which Lambda delivers the whole batch again. Records that are done do not run again.
///
/// The leases of a batch end a second before the invocation's deadline, or a quarter of the remaining time before it if
/// that is less. A record that takes too long therefore does not cost the others their answer.
///
/// Two requests for each record that runs, one for a record that was done before; IAM action `dynamodb:UpdateItem`.
///
/// Without the [release profile](crate::LockLayer#the-release-profile), a panic ends the process, and Lambda delivers the
/// whole batch again. Records that are done do not run again.
///
/// Tumbling windows are not supported: a batch of one does not run and is answered as failed, and the first one is logged as
/// an error. Records that the Kinesis Producer Library aggregated are not supported either: the parser gets them as one
/// record.
///
/// Put a timeout inside of this layer. One outside drops all handlers of the batch, and Lambda may freeze the background
/// releases of their records.
///
/// # Log
///
/// A record that is not done is logged with its sequence number and the reason, but without its data:
///
/// | a record | level | reason |
/// | --- | --- | --- |
/// | in progress elsewhere | info | the error of the lock, with the idempotency key |
/// | not started in time | warning | |
/// | otherwise refused, or unfinished when its lease ends | error | the error of the lock, with the idempotency key |
/// | whose handler returns an error or panics | error | the handler's `error_type` and error message, or that it panicked |
/// | whose data or images do not parse, or that has no key | error | the position of an error in JSON without the value, which image does not parse, or the error of your [parser](Self::with_parser) |
///
/// If the format hashes keys, the logged key is the hash. Records that are not started because of a failure before them
/// have no line. For records that are unfinished when the answer is due, one warning says that there are some. If the
/// event itself is malformed, `lambda_runtime` fails the invocation, and
/// [logs the event](crate::LockLayer#what-lambda_runtime-logs).
///
/// # Example
///
/// ```no_run
/// use lambda_lock::streams::{KinesisRecord, StreamConsumer};
/// use lambda_lock::Locks;
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
/// A handler of a DynamoDB stream takes a `DynamoDbRecord<Order>` instead:
///
/// ```
/// # use lambda_lock::streams::{DynamoDbRecord, StreamConsumer};
/// # use lambda_lock::Locks;
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
/// # fn example(locks: Locks) -> StreamConsumer<DynamoDbRecord<Order>, DynamoDbRecord<Order>, (), std::io::Error> {
/// # StreamConsumer::by_event_id(locks)
/// # }
/// ```
pub struct StreamConsumer<H, R: StreamRecord, T, E> {
    pub(super) settings: Settings<Stream<R>, T, E>,
    handler_input: PhantomData<fn(H)>,
}

impl<H, R, T, E> StreamConsumer<H, R, T, E>
where
    R: StreamRecord + 'static,
    R::Body: DeserializeOwned,
{
    /// Creates a consumer that runs each record once by its event id, for the [window](Self::window). The data of a
    /// Kinesis record is JSON, and an image of a DynamoDB record is parsed by `serde_dynamo`. As JSON, a
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
        let once = Idempotency::new(locks, OnMissingKey::Reject, R::default_key);
        Self::new(once.wait(Duration::MAX))
    }

    /// Creates a consumer with custom settings, such as a key from the body. The data of a Kinesis record is JSON, and an
    /// image of a DynamoDB record is parsed by `serde_dynamo`.
    ///
    /// Choose a window longer than the [retention of the stream](Self::window).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::streams::{KinesisRecord, StreamConsumer};
    /// # use lambda_lock::{Idempotency, Locks};
    /// # use serde::Deserialize;
    /// #[derive(Deserialize)]
    /// struct Payment {
    ///     id: String,
    /// }
    /// # type Record = KinesisRecord<Payment>;
    /// # fn example(locks: Locks) -> StreamConsumer<Record, Record, (), std::io::Error> {
    /// let key = |record: &KinesisRecord<Payment>| Some(record.body.id.clone());
    /// let once = Idempotency::new(locks, OnMissingKey::Reject, key).window(Duration::from_hours(24 * 8));
    /// StreamConsumer::new(once).concurrency(5)
    /// # }
    /// ```
    #[must_use]
    pub fn new(idempotency: Idempotency<R, T, E>) -> Self {
        Self::reading(idempotency, R::read)
    }
}

impl<H, B: 'static, T, E> StreamConsumer<H, KinesisRecord<B>, T, E> {
    /// Creates a consumer of Kinesis data that is not JSON. The parser's errors are logged.
    ///
    /// ```
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::streams::{KinesisRecord, StreamConsumer};
    /// # use lambda_lock::{Idempotency, Locks};
    /// # type Record = KinesisRecord<String>;
    /// # fn example(locks: Locks) -> StreamConsumer<Record, Record, (), std::io::Error> {
    /// let once = Idempotency::new(locks, OnMissingKey::Reject, KinesisRecord::key);
    /// StreamConsumer::with_parser(once, String::from_utf8)
    /// # }
    /// ```
    #[must_use]
    pub fn with_parser<P: Display>(
        idempotency: Idempotency<KinesisRecord<B>, T, E>,
        parse: impl Fn(Vec<u8>) -> Result<B, P> + Send + Sync + 'static,
    ) -> Self {
        Self::reading(idempotency, move |record| {
            KinesisRecord::parse(record, |data| parse(data).map_err(|error| error.to_string()))
        })
    }
}

impl<H, T, E> StreamConsumer<H, KinesisRecord<Vec<u8>>, T, E> {
    /// Creates a consumer of Kinesis data as it is.
    ///
    /// ```
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::streams::{KinesisRecord, StreamConsumer};
    /// # use lambda_lock::{Idempotency, Locks};
    /// # type Record = KinesisRecord<Vec<u8>>;
    /// # fn example(locks: Locks) -> StreamConsumer<Record, Record, (), std::io::Error> {
    /// StreamConsumer::of_bytes(Idempotency::new(locks, OnMissingKey::Reject, KinesisRecord::key))
    /// # }
    /// ```
    #[must_use]
    pub fn of_bytes(idempotency: Idempotency<KinesisRecord<Vec<u8>>, T, E>) -> Self {
        Self::reading(idempotency, |record| KinesisRecord::parse(record, Ok))
    }
}

impl<H, R: StreamRecord, T, E> StreamConsumer<H, R, T, E> {
    fn reading(
        idempotency: Idempotency<R, T, E>,
        read: impl Fn(R::Raw) -> Result<R, String> + Send + Sync + 'static,
    ) -> Self {
        panics::warn_if_they_abort();
        Self { settings: Settings::new(Stream::new(read), idempotency), handler_input: PhantomData }
    }

    /// Sets how many lanes run concurrently, on the task of the invocation; 10 by default, at least 1.
    #[must_use]
    pub fn concurrency(mut self, lanes: usize) -> Self {
        self.settings.concurrency = lanes.max(1);
        self
    }

    /// Sets the remaining lease of the batch that a record needs to start; 1 s by default, and at most nine tenths of the
    /// lease at the start of the batch.
    ///
    /// Choose the time that most records take. The others are delivered again without having started, instead of being
    /// cancelled.
    #[must_use]
    pub fn min_remaining_time(mut self, time: Duration) -> Self {
        self.settings.min_remaining_time = time;
        self
    }

    /// Sets for how long a record counts as done, like [`Idempotency::window`]; 48 hours by default, unless the
    /// [`Idempotency`] sets a window. At least a second more than twice the clock skew, at most 366 days.
    ///
    /// Lambda delivers a record again for as long as the stream has it. A DynamoDB stream has it for 24 hours, a Kinesis
    /// stream for 24 hours by default and for 365 days at most. Choose a window that is longer than that.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.settings.idempotency = self.settings.idempotency.window(window);
        self
    }

    /// Sets a lease shorter than the time until the end of the batch, as [`Idempotency::lease`] does. The handler of a
    /// record is cancelled when its lease ends.
    ///
    /// After a crash, the next delivery waits until the leases of the crashed invocation end. Choose a multiple of the time
    /// that a record takes, much shorter than the function's timeout.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.idempotency = self.settings.idempotency.lease(lease);
        self
    }

    /// Puts the id of the invocation's tenant into the keys, as
    /// [`IdempotencyLayer::per_tenant`](crate::IdempotencyLayer::per_tenant) does. Without a tenant id, no record of
    /// the batch is done, and each is logged with that error. An event source mapping sends no tenant id: this is for a
    /// function that another one invokes with the batches of a tenant.
    #[must_use]
    pub fn per_tenant(mut self) -> Self {
        self.settings.idempotency = self.settings.idempotency.per_tenant();
        self
    }

    /// Starts no more records after one that is not done. Records that are running finish. Off by default.
    ///
    /// Lambda delivers the records behind a failure again in any case. Without this setting, the other lanes finish first.
    #[must_use]
    pub fn stop_at_first_failure(mut self) -> Self {
        self.settings.stop_at_first_failure = true;
        self
    }
}

// By hand, because a derive would require the types of records, results and errors to be `Clone` and `Debug`.
impl<H, R: StreamRecord, T, E> Clone for StreamConsumer<H, R, T, E> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), handler_input: PhantomData }
    }
}

impl<H, R: StreamRecord, T, E> fmt::Debug for StreamConsumer<H, R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamConsumer").field("idempotency", &self.settings.idempotency).finish_non_exhaustive()
    }
}
