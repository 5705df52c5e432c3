//! `KafkaConsumer`: a consumer of the records of a topic.

use std::fmt::Display;

use serde::de::DeserializeOwned;

use super::super::batch::Consumer;
use super::record::KafkaRecord;
use super::source::KafkaSource;
use crate::idempotency::{Idempotency, OnMissingKey};
use crate::lock::Locks;

/// A tower layer that makes a consumer of Kafka topics, in Amazon MSK or self-managed, from a handler of one record.
///
/// ```no_run
/// use lambda_lock::Locks;
/// use lambda_lock::kafka::{KafkaConsumer, KafkaRecord};
/// use lambda_runtime::{Error, Runtime};
/// use serde::Deserialize;
/// use tower::{Layer, service_fn};
///
/// #[derive(Deserialize)]
/// struct Reading {
///     celsius: f64,
/// }
///
/// async fn store(record: KafkaRecord<Reading>) -> Result<(), Error> {
///     Ok(println!("{} at {}", record.body.celsius, record.offset))
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     let consumer = KafkaConsumer::by_offset(Locks::from_env().await?);
///     Runtime::new(consumer.layer(service_fn(store))).run().await
/// }
/// ```
///
/// A record that is done does not run again for the [window](Consumer::window). Records with the same key run in order, one
/// at a time.
///
/// [`Consumer`] says when a record is done, how long it may take, what is logged, and has the settings. The handler takes a
/// [`KafkaRecord`], or a [`WithRun`](crate::WithRun) around it to get the run as well. The guide
/// [Streams](crate::docs::reference::streams#kafka) has an event source mapping.
///
/// - A batch has records of several partitions. The answer names the first record of each partition that is not done.
///   Lambda delivers a partition again from there. The records behind it that are done are completed in the table, and do
///   not run again. A partition that is not named is finished.
/// - The records of a batch in the same partition with the same key run in order. Records without a key keep the partition's
///   order among each other, and have none to records with a key. Lambda itself keeps the order between batches.
/// - The consumer waits for a record that is in progress elsewhere.
/// - The log has the record in the field `offset`, as `payments-0:17`, and the cluster in `cluster`.
///
/// # Event source mappings without partial responses
///
/// Lambda reads the answer of a mapping in provisioned mode with `ReportBatchItemFailures`. Without both, it takes each
/// answer as success, and **records that failed are lost**. There, fail the invocation instead. Lambda then delivers the
/// whole batch again, and what is done does not run again:
///
/// ```
/// # use lambda_lock::kafka::{KafkaConsumer, KafkaEventResponse, KafkaRecord};
/// # use lambda_lock::Locks;
/// # use lambda_runtime::{Diagnostic, Error, Runtime};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # async fn store(_: KafkaRecord<String>) -> Result<(), Error> { Ok(()) }
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// let consumer = KafkaConsumer::by_offset(locks).layer(service_fn(store));
/// let all_or_none = consumer.map_result(|answer: Result<KafkaEventResponse, Diagnostic>| {
///     if answer?.batch_item_failures.is_empty() { Ok(()) } else { Err(Diagnostic::from("records are not done")) }
/// });
/// Runtime::new(all_or_none).run().await
/// # }
/// ```
pub type KafkaConsumer<B, E = lambda_runtime::Error, T = (), H = KafkaRecord<B>> = Consumer<KafkaSource<B>, H, T, E>;

impl<H, B: DeserializeOwned + 'static, T, E> KafkaConsumer<B, E, T, H> {
    /// Creates a consumer that runs each record once by its offset, for the [window](Self::window), with the key of
    /// [`KafkaRecord::id`]. Values are JSON. A tombstone, which has no value, is `null`: to read it, take a
    /// `KafkaRecord<Option<…>>`.
    ///
    /// A producer that writes twice, without being idempotent, creates two offsets: see [`new`](Self::new). The key has the
    /// bootstrap servers of a self-managed cluster. After a change of them, records that are delivered again run again. A
    /// key has up to 2,048 bytes.
    ///
    /// A record that is in progress elsewhere was probably left by a crash, and the partition waits for it anyway. The
    /// consumer [waits](Idempotency::wait) until the record is done or its [lease](Self::lease) ends, for as long as the
    /// leases of this batch last. Each attempt is one more request.
    #[must_use]
    pub fn by_offset(locks: Locks) -> Self {
        Self::new(Idempotency::new(locks, OnMissingKey::Reject, KafkaRecord::id))
    }
}

impl<H, B, T, E> KafkaConsumer<B, E, T, H> {
    /// Creates a consumer of values that are not JSON, such as Avro. The parser gets `None` for a tombstone. Its errors are
    /// logged.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::kafka::{KafkaConsumer, KafkaRecord};
    /// # use lambda_lock::{Idempotency, Locks};
    /// # type Record = KafkaRecord<Vec<u8>>;
    /// # fn example(locks: Locks) -> KafkaConsumer<Vec<u8>, std::io::Error> {
    /// let once = Idempotency::new(locks, OnMissingKey::Reject, Record::id);
    /// KafkaConsumer::with_parser(once, |value| Ok::<_, Infallible>(value.unwrap_or_default()))
    /// # }
    /// ```
    #[must_use]
    pub fn with_parser<P: Display>(
        idempotency: Idempotency<KafkaRecord<B>, T, E>,
        parse: impl Fn(Option<Vec<u8>>) -> Result<B, P> + Send + Sync + 'static,
    ) -> Self {
        Self::of(KafkaSource::new(move |value| parse(value).map_err(|error| error.to_string())), idempotency)
    }
}
