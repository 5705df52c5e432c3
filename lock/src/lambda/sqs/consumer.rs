//! `SqsConsumer`: its settings.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::super::batch::{Settings, json_error};
use super::super::invocation::escape;
use super::message::SqsMessage;
use super::queue::Queue;
use crate::idempotency::{Idempotency, OnMissingKey};
use crate::lock::Locks;
use crate::panics;

/// A tower layer that makes a consumer of SQS batches from a handler of one message. A message that is done does
/// not run again for the [window](Self::window), and only messages that are not done return to the queue.
///
/// Enable `ReportBatchItemFailures` in the event source mapping. Without it, Lambda takes the answer as success and deletes
/// the messages that failed. Put the consumer around the handler, inside the runtime. The handler takes a [`SqsMessage`], or
/// a [`WithRun`](crate::WithRun) around it to get the run as well.
///
/// | a message | |
/// | --- | --- |
/// | whose handler returns `Ok` | is done, and recorded as done for the [window](Self::window), even if its result cannot be stored |
/// | whose handler returns an error, panics, or is unfinished when its lease ends | returns to the queue; its record is released, unless the [`Idempotency`] says otherwise |
/// | that was done before | is deleted without running |
/// | that is in progress elsewhere | returns to the queue; with `hide_while_in_progress` (feature `sqs`) hidden until that lease ends |
/// | whose body does not parse, or that has no key | returns to the queue, and finally moves to the dead-letter queue |
/// | that is in the batch twice | runs once; both share the outcome |
/// | that was not started [in time](Self::min_remaining_time) | returns to the queue without having started |
/// | of a FIFO queue, after a message of its group that returns to the queue | returns to the queue, so that the group stays in order; other groups continue |
///
/// A message without a message id, which SQS never sends, cannot be named in the answer. It is answered with an empty
/// name, for which Lambda returns the whole batch. Nothing is lost, and messages that are done do not run again.
///
/// The leases of a batch end a second before the invocation's deadline, or a quarter of the remaining time before it if
/// that is less. A message that takes too long therefore does not cost the others their answer.
///
/// A message that returns to the queue is visible again after the queue's visibility timeout.
///
/// Two requests for each message that runs, one for a duplicate; IAM action `dynamodb:UpdateItem`.
///
/// Without the [release profile](crate::LockLayer#the-release-profile), a panic ends the process, and the whole batch
/// returns to the queue. Messages that are done do not run again, but each delivery counts: finally all of them may be in
/// the dead-letter queue, together with the message that panics.
///
/// # Log
///
/// A message that returns to the queue is logged with its message id and the reason, but without its body. The level is
/// info for a message in progress elsewhere, warning for one that was not started in time, otherwise error. The reason is
/// the error of the lock, which names the key or its hash, or the error of the handler, with the `error_type` that its
/// conversion to `Diagnostic` sets. A message of a FIFO queue that is not started because of a failure before it has no
/// line. For messages that are unfinished when the answer is due, one warning says that there are some.
///
/// JSON that does not parse is reported without its value, in contrast to
/// [what `lambda_runtime` logs](crate::LockLayer#what-lambda_runtime-logs) for other events.
///
/// Put a timeout inside of this layer. One outside drops all handlers of the batch, and Lambda may freeze the background
/// releases of their records.
///
/// # Example
///
/// ```no_run
/// use lambda_lock::lambda::SqsMessage;
/// use lambda_lock::{Locks, SqsConsumer};
/// use lambda_runtime::{Error, Runtime};
/// use serde::Deserialize;
/// use tower::{Layer, service_fn};
///
/// #[derive(Deserialize)]
/// struct Payment {
///     amount: u32,
/// }
///
/// async fn pay(message: SqsMessage<Payment>) -> Result<(), Error> {
///     Ok(println!("paid {}", message.body.amount))
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     let consumer = SqsConsumer::by_message_id(Locks::from_env().await?);
///     Runtime::new(consumer.layer(service_fn(pay))).run().await
/// }
/// ```
pub struct SqsConsumer<H, B, T, E> {
    pub(super) settings: Settings<Queue<B>, T, E>,
    handler_input: PhantomData<fn(H)>,
}

impl<H, B: DeserializeOwned + 'static, T, E> SqsConsumer<H, B, T, E> {
    /// Creates a consumer that runs each message once by its message id, for the [window](Self::window). Bodies are JSON.
    ///
    /// All deliveries of a message have the same id. A sender that sends twice creates two ids. A redrive from a dead-letter
    /// queue gives a message a new id, so one that was done runs again: see [`new`](Self::new).
    #[must_use]
    pub fn by_message_id(locks: Locks) -> Self {
        let key = |message: &SqsMessage<B>| message.message_id().map(str::to_owned);
        Self::new(Idempotency::new(locks, OnMissingKey::Reject, key))
    }

    /// Creates a consumer for FIFO queues that runs each message once by its deduplication id, within its queue and group,
    /// for the [window](Self::window). The queue itself deduplicates for five minutes. Bodies are JSON.
    ///
    /// A FIFO dead-letter queue replaces the deduplication id by the original message id. A message that was done therefore
    /// runs again after a redrive: see [`new`](Self::new).
    ///
    /// The key is `queue#group#id`: the queue's ARN, the group and the unchanged deduplication id. In ARN and group, `#`
    /// becomes `%23` and `%` becomes `%25`.
    #[must_use]
    pub fn by_deduplication_id(locks: Locks) -> Self {
        let key = |message: &SqsMessage<B>| {
            let queue = escape(message.record.event_source_arn.as_deref().unwrap_or_default());
            let group = escape(message.group_id().unwrap_or_default());
            message.deduplication_id().map(|id| format!("{queue}#{group}#{id}"))
        };
        Self::new(Idempotency::new(locks, OnMissingKey::Reject, key))
    }

    /// Creates a consumer with custom settings, such as a key from the body. Bodies are JSON.
    ///
    /// A key from the body also finds a message that was sent twice, or that came back by a redrive from a dead-letter
    /// queue. The window must then cover the redrive: the queue, the dead-letter queue, and the queue again keep the message
    /// for up to 14 days each. [Choosing times](crate::docs::choosing_times#window) recommends windows.
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
    /// # fn example(locks: Locks) -> SqsConsumer<SqsMessage<Payment>, Payment, (), std::io::Error> {
    /// let once = Idempotency::new(locks, OnMissingKey::Reject, |message: &SqsMessage<Payment>| Some(message.body.id.clone()));
    /// SqsConsumer::new(once).window(Duration::from_hours(43 * 24)).concurrency(5)
    /// # }
    /// ```
    #[must_use]
    pub fn new(idempotency: Idempotency<SqsMessage<B>, T, E>) -> Self {
        Self::with_parser(idempotency, |text| serde_json::from_str(text).map_err(|error| json_error(&error)))
    }
}

impl<H, B, T, E> SqsConsumer<H, B, T, E> {
    /// Creates a consumer for bodies that are not JSON. The parser's errors are logged.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Idempotency, Locks, SqsConsumer};
    /// # fn example(once: Idempotency<SqsMessage<String>, (), Infallible>) -> SqsConsumer<SqsMessage<String>, String, (), Infallible> {
    /// SqsConsumer::with_parser(once, |text| Ok::<_, Infallible>(text.to_owned()))
    /// # }
    /// ```
    #[must_use]
    pub fn with_parser<P: Display>(
        idempotency: Idempotency<SqsMessage<B>, T, E>,
        parse: impl Fn(&str) -> Result<B, P> + Send + Sync + 'static,
    ) -> Self {
        panics::warn_if_they_abort();
        let queue = Queue::new(move |text: &str| parse(text).map_err(|error| error.to_string()));
        Self { settings: Settings::new(queue, idempotency), handler_input: PhantomData }
    }

    /// Sets how many messages run concurrently, on the task of the invocation; 10 by default, at least 1. In a FIFO
    /// queue, the number of groups.
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.settings.concurrency = messages.max(1);
        self
    }

    /// Sets the remaining lease of the batch that a message needs to start; 1 s by default, and at most nine tenths of the
    /// lease at the start of the batch.
    ///
    /// Choose the time that most messages take. The others return to the queue without having started, instead of being
    /// cancelled.
    #[must_use]
    pub fn min_remaining_time(mut self, time: Duration) -> Self {
        self.settings.min_remaining_time = time;
        self
    }

    /// Sets for how long a message counts as done, like [`Idempotency::window`]; 15 days by default, unless the
    /// [`Idempotency`] sets a window. At least a second more than twice the clock skew, at most 366 days.
    ///
    /// SQS delivers a message again for as long as a queue keeps it, 14 days at most. The table has a row for each
    /// message of the window. With [`OnUnfinished::Reject`](crate::OnUnfinished::Reject), an unfinished message is
    /// refused for as long.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.settings.idempotency = self.settings.idempotency.window(window);
        self
    }

    /// Puts the id of the invocation's tenant into the keys, as
    /// [`IdempotencyLayer::per_tenant`](crate::IdempotencyLayer::per_tenant) does. Without a tenant id, each message is
    /// logged with that error and returns to the queue. An event source mapping sends no tenant id: this is for a
    /// function that another one invokes with the batches of a tenant.
    ///
    /// ```
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Locks, SqsConsumer};
    /// # fn example(locks: Locks) -> SqsConsumer<SqsMessage<String>, String, (), std::io::Error> {
    /// SqsConsumer::by_message_id(locks).per_tenant()
    /// # }
    /// ```
    #[must_use]
    pub fn per_tenant(mut self) -> Self {
        self.settings.idempotency = self.settings.idempotency.per_tenant();
        self
    }

    /// Hides a message in progress elsewhere until that lease ends. Otherwise the message is visible again after the
    /// queue's visibility timeout. Feature `sqs`.
    ///
    /// One request for such a message, and one for each of its copies in the batch; IAM action
    /// `sqs:ChangeMessageVisibility` on the queue. If the request fails, the message is visible again after the queue's
    /// visibility timeout.
    #[cfg(feature = "sqs")]
    #[must_use]
    pub fn hide_while_in_progress(mut self, queues: aws_sdk_sqs::Client) -> Self {
        self.settings.source.queues = Some(queues);
        self
    }
}

// By hand, because a derive would require the types of bodies, results and errors to be `Clone` and `Debug`.
impl<H, B, T, E> Clone for SqsConsumer<H, B, T, E> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), handler_input: PhantomData }
    }
}

impl<H, B, T, E> fmt::Debug for SqsConsumer<H, B, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsConsumer").field("idempotency", &self.settings.idempotency).finish_non_exhaustive()
    }
}
