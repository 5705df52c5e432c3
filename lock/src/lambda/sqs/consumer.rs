//! `SqsConsumer`: a consumer of the messages of a queue.

use std::fmt::Display;

use serde::de::DeserializeOwned;

use super::super::batch::Consumer;
use super::super::invocation::escape;
use super::message::SqsMessage;
use super::source::SqsSource;
use crate::idempotency::{Idempotency, OnMissingKey};
use crate::lock::Locks;

/// A tower layer that makes a consumer of SQS batches from a handler of one message. A message that is done does
/// not run again for the [window](Consumer::window), and only messages that are not done return to the queue.
///
/// [`Consumer`] says when a message is done, how long it may take, what is logged, and has the settings. The handler takes
/// a [`SqsMessage`], or a [`WithRun`](crate::WithRun) around it to get the run as well.
///
/// - A message that is done is deleted from the queue.
/// - A message that returns to the queue is visible again after the queue's visibility timeout. After `maxReceiveCount`
///   deliveries, SQS moves it to the dead-letter queue.
/// - A message that is in progress elsewhere returns to the queue; with `hide_while_in_progress` (feature `sqs`) hidden
///   until that lease ends.
/// - Up to [`concurrency`](Consumer::concurrency) messages run concurrently. In a FIFO queue, the messages of a group are a
///   lane: after one that returns to the queue, the rest of its group returns as well.
///
/// If the process ends, or Lambda delivers the whole batch again for another reason, the deliveries of all its messages
/// count: finally all of them may be in the dead-letter queue.
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
///
/// With a [key from the body](Consumer::new), a message that came back by a redrive from a dead-letter queue is found,
/// too. The window must then cover the redrive: the queue, the dead-letter queue, and the queue again keep the message for
/// up to 14 days each.
pub type SqsConsumer<H, B, T, E> = Consumer<SqsSource<B>, H, T, E>;

impl<H, B: DeserializeOwned, T, E> SqsConsumer<H, B, T, E> {
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
        Self::of(SqsSource::new(move |text: &str| parse(text).map_err(|error| error.to_string())), idempotency)
    }

    /// Says after how many deliveries the queue moves a message to its dead-letter queue: `maxReceiveCount` of its redrive
    /// policy. Each log line of a message that failed then has a field `dead_letter`: `true` if this was the last delivery,
    /// `false` if the message is delivered again. It changes nothing else.
    #[must_use]
    pub fn max_receive_count(mut self, deliveries: u32) -> Self {
        self.source.max_receive_count = Some(deliveries);
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
        self.source.queues = Some(queues);
        self
    }
}
