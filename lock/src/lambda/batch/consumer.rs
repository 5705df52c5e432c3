//! `Consumer`: its settings, and the time that a batch has.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::source::Source;
use crate::clock::{Deadline, since_epoch};
use crate::idempotency::{Idempotency, Invocation, OnUnstorableResult};
use crate::limits::{MIN_LEASE, time_to_ask};
use crate::lock::Rate;
use crate::panics;

/// A tower layer that makes a consumer of batches from a handler of one item. An item that is done does not run again for
/// the [window](Self::window), and the answer names the items that are not done.
///
/// [`SqsConsumer`](crate::SqsConsumer), `StreamConsumer` and `KafkaConsumer` are this type with their source: an item is a
/// message of a queue, or a record of a stream or of a topic. Their pages say what their service does with an item that is
/// not done. Everything else is said here.
///
/// Enable `ReportBatchItemFailures` in the event source mapping. Without it, Lambda takes the answer as success, and items
/// that failed are lost. Put the consumer around the handler, inside the runtime. The handler takes an item, or a
/// [`WithRun`](crate::WithRun) around it to get the run as well. A handler that borrows a client of `main` does not compile:
/// [clone the client](crate::LockLayer#a-handler-that-uses-a-client).
///
/// The items of a batch whose order counts are a *lane*: the messages of a group of a FIFO queue, or the records of a stream or
/// of a partition with the same key. They run one after the other, and lanes run at once. An item without an order is a lane by
/// itself, but items with the same key in the table are one lane that does not stop.
///
/// | case | what happens to the item |
/// | --- | --- |
/// | Its handler returns `Ok`. | It is done for the [window](Self::window), even if its result cannot be stored. |
/// | `SqsConsumer::dead_letter_if` has sent it to a dead-letter queue. | It is done, but its row is released. |
/// | Its handler returns an error, panics, or is [unfinished near the end of its lease](#time). | It is not done. Its row is released, unless the [`Idempotency`] says otherwise. |
/// | It was done before. | It is done without a run. |
/// | It is in progress elsewhere. | It is not done, unless the consumer [waits](Idempotency::wait) for it. By default, a record of a stream or a topic waits until the lease there ends, and a message of a queue does not wait. |
/// | It does not parse, or has no key. | It is not done. |
/// | Its batch has it twice, with the same name. | It runs once, and both share the outcome. |
/// | Another item of its lane has its key. | It asks the table when the other item has ended. If the other item is done, it is done without a run, and otherwise it runs itself. |
/// | An item of another lane has its key. | Both may run at the same time, so one of them is in progress elsewhere, as above. |
/// | [Too little time](Self::min_remaining_time) is left to start it. | It is not done. |
/// | An item before it in its lane is not done. | It is not started, so that the lane stays in order. Other lanes go on. |
/// | An item before it is not done, with [`stop_at_first_failure`](Self::stop_at_first_failure). | It is not started. |
///
/// So the outcome of an item does not depend on the other items of its batch. For example, if an order with quantity 0 becomes
/// a dead letter, and the next message is the corrected order with the same id, the corrected order runs.
///
/// An item without the id or number that the source gives it cannot be named in the answer. It does not run, and is
/// answered with an empty name, for which Lambda delivers the whole batch again. Nothing is lost, and items that are done do
/// not run again.
///
/// # Time
///
/// The leases of a batch end a second before the invocation's deadline, or a quarter of the remaining time before it if
/// that is less. An item that takes too long therefore does not cost the others their answer.
///
/// A handler that is unfinished 100 ms before its lease ends, or at half of a shorter lease than 200 ms, is cancelled at its
/// next await point. The consumer then releases the row within the lease, so this item has timed out, but its lock does not
/// count as [lost](crate::metrics::LOST). A lock is lost if the handler blocks its thread, or if the environment was frozen,
/// until the lease has ended.
///
/// Put a timeout inside of this layer. One outside drops all handlers of the batch, and Lambda may freeze the background
/// releases of their rows.
///
/// # Cost
///
/// Two requests for each item that runs, one for an item that was done before; IAM action `dynamodb:UpdateItem`. An item that
/// was done before as another item of the same batch also costs one, and none with [`Idempotency::cache`].
///
/// # Panics of a handler
///
/// Without the [release profile](crate::LockLayer#the-release-profile), a panic ends the process, and Lambda delivers the
/// whole batch again. Items that are done do not run again, but each delivery counts for all of them.
///
/// # Log
///
/// An item that is not done is logged with its name (the field `message_id`, `sequence_number` or `offset`) and the reason,
/// but without its body:
///
/// | an item | level | reason |
/// | --- | --- | --- |
/// | in progress elsewhere | info | the error of the lock, with the idempotency key |
/// | not started in time, or cut off when the answer is due | warning | `no time left`: one line for all, with their number in `count` and the names of up to 100 |
/// | otherwise refused | error | the error of the lock with the idempotency key, and in parentheses the message of DynamoDB |
/// | cancelled near the end of its lease | error | with `error_type` `TimedOut` |
/// | whose handler returns an error or panics | error | the handler's `error_type` and error message, or that it panicked |
/// | that does not parse, or that has no key | error | the position of an error in JSON without the value, or the error of your parser |
///
/// The type of the handler's error converts into [`lambda_runtime::Diagnostic`], which has both texts.
///
/// If the format hashes keys, the logged key is the hash. Items that are not started because of a failure before them have
/// no line. But a message that is not delivered again, as `SqsConsumer::max_receive_count` tells, is always named, so that
/// you find out why it is a dead letter: warnings with `dead_letter=true`, of up to 100 names each, have the messages that
/// were not started, not finished, or a copy of one that is not done. If the event itself is malformed, `lambda_runtime` fails
/// the invocation, and [logs the event](crate::LockLayer#what-lambda_runtime-logs).
pub struct Consumer<S: Source, H, T, E> {
    pub(in crate::lambda) source: S,
    pub(super) idempotency: Idempotency<S::Item, T, E>,
    /// How many lanes run concurrently.
    pub(super) concurrency: usize,
    min_remaining_time: Duration,
    /// Whether no more items start after one that is not done.
    pub(super) stop_at_first_failure: bool,
    /// Whether the invocation fails if no item is done and one failed.
    pub(super) fails_if_all_failed: bool,
    /// Why no retry can succeed after this error, if none can.
    pub(in crate::lambda) why_dead: Option<WhyDead<E>>,
    /// How many items start in a time, in all.
    pub(super) rate: Option<Rate>,
    handler_input: PhantomData<fn(H)>,
}

type WhyDead<E> = Arc<dyn Fn(&E) -> Option<String> + Send + Sync>;

impl<S: Source + Default, H, T, E> Consumer<S, H, T, E> {
    /// Creates a consumer with custom settings, such as a key from the body. A message's body and a Kinesis record's data
    /// are JSON. The guide [Streams](crate::docs::reference::streams) says which type reads an image of a DynamoDB record.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Idempotency, Locks, SqsConsumer};
    /// # use serde::Deserialize;
    /// #[derive(Deserialize)]
    /// struct Payment {
    ///     id: String,
    /// }
    /// # fn example(locks: Locks) -> SqsConsumer<Payment, std::io::Error> {
    /// let once = Idempotency::new(locks, OnMissingKey::Reject, |message: &SqsMessage<Payment>| Some(message.body.id.clone()));
    /// SqsConsumer::new(once).window(Duration::from_hours(43 * 24)).concurrency(5)
    /// # }
    /// ```
    ///
    /// The key belongs to the item's source: the row's key is `function#source#key`, with the ARN of the queue or the stream, or
    /// the cluster and the topic. So the key need not be unique among the sources of a function. If they carry the same work,
    /// give the [`Idempotency`] a [prefix](Idempotency::prefix), which replaces function and source.
    ///
    /// A key from the body also finds an item that was sent twice. Choose a [window](Self::window) longer than the source
    /// keeps its items.
    #[must_use]
    pub fn new(idempotency: Idempotency<S::Item, T, E>) -> Self {
        Self::of(S::default(), idempotency)
    }
}

impl<S: Source, H, T, E> Consumer<S, H, T, E> {
    pub(in crate::lambda) fn of(source: S, idempotency: Idempotency<S::Item, T, E>) -> Self {
        panics::warn_if_they_abort();
        let idempotency = idempotency
            .default_window(S::WINDOW)
            .default_wait(S::WAIT)
            // Nobody reads the result of an item, so one that cannot be stored must not make it run again.
            .on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
        Self {
            source,
            idempotency,
            concurrency: 10,
            min_remaining_time: Duration::from_secs(1),
            stop_at_first_failure: false,
            fails_if_all_failed: true,
            why_dead: None,
            rate: None,
            handler_input: PhantomData,
        }
    }

    /// Sets how many [lanes](Self) run concurrently, on the task of the invocation; 10 by default, at least 1. Each message of a
    /// standard queue is a lane, except that messages with the same key share one.
    ///
    /// A lane that has to [wait](Idempotency::wait) for an item in progress elsewhere does not count. Suppose that a crash has
    /// left ten records in progress, and ten others come in the same batch: the consumer asks for each of the ten once, and
    /// the others run meanwhile. At most as many lanes wait at once as run, so that thousands do not ask again and again; the
    /// rest wait without a request until one of these lanes ends its wait. A lane asks again only when it may run at once, so
    /// that its handler has the whole lease. A lane that cannot begin to ask again, or may not run before the deadline, is
    /// answered as in progress.
    #[must_use]
    pub fn concurrency(mut self, lanes: usize) -> Self {
        self.concurrency = lanes.max(1);
        self
    }

    /// Sets the remaining lease of the batch that an item needs to start; 1 s by default, and at most nine tenths of the
    /// lease at the start of the batch.
    ///
    /// Choose the time that most items take. The others are delivered again without having started, instead of being
    /// cancelled.
    #[must_use]
    pub fn min_remaining_time(mut self, time: Duration) -> Self {
        self.min_remaining_time = time;
        self
    }

    /// Sets for how long an item counts as done, like [`Idempotency::window`]. By default, unless the [`Idempotency`] sets a
    /// window: 15 days for a message, 48 hours for a stream's record, 8 days for a record of Kafka. At least a second more
    /// than twice the clock skew, at most 366 days.
    ///
    /// Choose a window longer than the source keeps its items, because Lambda delivers an item again for as long as the
    /// source has it. [Where duplicates come from](crate::docs::learn::duplicates) has the windows.
    ///
    /// The table has a row for each item of the window. With [`OnUnfinished::Reject`](crate::OnUnfinished::Reject), an
    /// unfinished item is refused for as long.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.with(|idempotency| idempotency.window(window))
    }

    /// Sets a lease shorter than the time until the end of the batch, as [`Idempotency::lease`] does. The handler of an item
    /// is cancelled when its lease ends.
    ///
    /// After a crash, an item does not run before the leases of the crashed invocation end. Choose a multiple of the time
    /// that an item takes, much shorter than the function's timeout.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|idempotency| idempotency.lease(lease))
    }

    /// Starts an item when the [`Rate`] lets it pass. Off by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Locks, SqsConsumer};
    /// # fn example(locks: Locks) -> SqsConsumer<String, std::io::Error> {
    /// let bank = locks.rate("bank-api", 10, Duration::from_secs(1));
    /// SqsConsumer::by_message_id(locks).at_rate(bank)
    /// # }
    /// ```
    ///
    /// An item waits for its time as long as its lease allows, less the [time that it needs](Self::min_remaining_time). If its
    /// time comes later, it is answered as one that is in progress: it comes again, and
    /// `SqsConsumer::hide_while_in_progress` hides a message until its time could come. A duplicate uses up no call.
    ///
    /// A refused item has reserved no time, and its delivery counts. So if a queue has many more messages than the rate lets pass
    /// within the lease, most of them use up their `maxReceiveCount` and become dead letters without a run. Allow for more receives
    /// than the backlog needs, or limit the concurrency of the event source mapping instead. For a stream or a topic, choose
    /// [batches that the rate lets pass in one invocation](crate::docs::reference::streams#a-rate-on-a-stream): Lambda counts the
    /// answer as a failure, and AWS does not say whether its retries count anew when a part of the batch is done.
    ///
    /// One more request for each item that runs; IAM action `dynamodb:UpdateItem`.
    #[must_use]
    pub fn at_rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Starts no more items after one that is not done. Items that are running finish. Off by default.
    ///
    /// The items that are not started are delivered again. Without this setting, the other lanes finish first.
    #[must_use]
    pub fn stop_at_first_failure(mut self) -> Self {
        self.stop_at_first_failure = true;
        self
    }

    /// Sets whether the invocation fails if no item of its batch is done and at least one failed; `true` by default.
    ///
    /// ```
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Locks, SqsConsumer};
    /// # fn example(locks: Locks) -> SqsConsumer<String, std::io::Error> {
    /// SqsConsumer::by_message_id(locks).fail_if_all_failed(false)
    /// # }
    /// ```
    ///
    /// Suppose that a deployment forgets the function's permission for the table: each message fails, and the consumer answers
    /// with their names. For Lambda, that is a success, so the metric `Errors` of the function stays 0, and so does an alarm on
    /// it. With this setting, the invocation fails with the `errorType` and the message of the first item that failed, and
    /// with `BatchFailed` if that has no type.
    ///
    /// Nothing is lost: Lambda delivers the whole batch again, as if the answer had named each item. Items that were not
    /// started come again in both cases. An item that is in progress elsewhere is no failure: if a batch has one, the
    /// consumer answers. So it does if no item was started because there was no time.
    ///
    /// Set `false` if you invoke the function yourself and read its answer, or if a batch of one bad message must not count as
    /// an error of the function.
    #[must_use]
    pub fn fail_if_all_failed(mut self, fails: bool) -> Self {
        self.fails_if_all_failed = fails;
        self
    }

    fn with(self, set: impl FnOnce(Idempotency<S::Item, T, E>) -> Idempotency<S::Item, T, E>) -> Self {
        Self { idempotency: set(self.idempotency), ..self }
    }

    /// Shortens the leases of a batch so that they end in time for its answer.
    pub(super) fn limit(&self, invocation: &mut Invocation) -> Option<BatchTime> {
        let now = self.idempotency.locks().0.clock.now();
        let left = since_epoch(invocation.deadline?).saturating_sub(now.wall);
        let lease = left.saturating_sub((left / 4).min(Duration::from_secs(1)));
        let lease_end = now.deadline_after(lease);
        invocation.deadline = Some(SystemTime::UNIX_EPOCH + lease_end.wall());
        let min_remaining = self.min_remaining_time.min(lease * 9 / 10).max(MIN_LEASE);
        Some(BatchTime { lease_end, min_remaining, answer: now.deadline_after(time_to_ask(left)) })
    }
}

/// The time limits of a batch.
#[derive(Clone, Copy)]
pub(super) struct BatchTime {
    pub(super) lease_end: Deadline,
    /// The remaining lease without which no item starts.
    pub(super) min_remaining: Duration,
    /// When the answer is due.
    pub(super) answer: Deadline,
}

// By hand, because a derive would require the types of items, results and errors to be `Clone` and `Debug`.
impl<S: Source, H, T, E> Clone for Consumer<S, H, T, E> {
    fn clone(&self) -> Self {
        Self {
            source: self.source.clone(),
            idempotency: self.idempotency.clone(),
            why_dead: self.why_dead.clone(),
            rate: self.rate.clone(),
            ..*self
        }
    }
}

impl<S: Source, H, T, E> fmt::Debug for Consumer<S, H, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("idempotency", &self.idempotency).finish_non_exhaustive()
    }
}
