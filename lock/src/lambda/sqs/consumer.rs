//! `SqsConsumer`: a consumer of the messages of a queue.

use std::fmt::Display;
#[cfg(feature = "sqs")]
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::super::batch::Consumer;
use super::super::invocation::escape;
use super::message::SqsMessage;
use super::source::SqsSource;
use crate::idempotency::{Idempotency, OnMissingKey};
#[cfg(feature = "sqs")]
use crate::lock::Backoff;
use crate::lock::Locks;

/// A tower layer that makes a consumer of SQS batches from a handler of one message.
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
/// A message that is done does not run again for the [window](Consumer::window), also if it comes again. The answer returns
/// only messages that are not done to the queue, but after a crash the whole batch comes again.
///
/// [`Consumer`] says when a message is done, how long it may take, what is logged, and has the settings. The handler takes
/// a [`SqsMessage`], or a [`WithRun`](crate::WithRun) around it to get the run as well.
///
/// - A message that is done is deleted from the queue.
/// - A message that returns to the queue is visible again after the queue's visibility timeout. After `maxReceiveCount`
///   deliveries, SQS moves it to the dead-letter queue.
/// - A message that failed comes again after a delay of its own with `back_off`, and not at all if `dead_letter_if` sends it
///   to a dead-letter queue (feature `sqs`).
/// - A message that is in progress elsewhere returns to the queue; with `hide_while_in_progress` (feature `sqs`) hidden
///   until that lease ends.
/// - Up to [`concurrency`](Consumer::concurrency) messages run concurrently. In a FIFO queue, the messages of a group
///   run in order: after one that returns to the queue, the rest of its group returns as well.
///
/// The guide [SQS in detail](crate::docs::reference::sqs) has the settings of the queue and the mapping, says what happens to the
/// messages behind a failed one of a [FIFO queue](crate::docs::reference::sqs#message-groups), and which [key and
/// window](crate::docs::reference::sqs#the-key) also find a message that comes back from a dead-letter queue.
pub type SqsConsumer<B, E = lambda_runtime::Error, T = (), H = SqsMessage<B>> = Consumer<SqsSource<B>, H, T, E>;

impl<H, B: DeserializeOwned, T, E> SqsConsumer<B, E, T, H> {
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

impl<H, B, T, E> SqsConsumer<B, E, T, H> {
    /// Creates a consumer for bodies that are not JSON. The parser's errors are logged.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Idempotency, Locks, SqsConsumer};
    /// # fn example(once: Idempotency<SqsMessage<String>, (), Infallible>) -> SqsConsumer<String, Infallible> {
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
    /// `false` if the message is delivered again. After its last delivery, a message that was not started or not finished
    /// has a line as well, unless the process ended first, and `back_off` sends no request.
    #[must_use]
    pub fn max_receive_count(mut self, deliveries: u32) -> Self {
        self.source.max_receive_count = Some(deliveries);
        self
    }

    /// Hides a message in progress elsewhere until that lease ends. Otherwise the message is visible again after the
    /// queue's visibility timeout. Feature `sqs`.
    ///
    /// One request for such a message, and one for each of its copies in the batch, of 2 s at most; IAM action
    /// `sqs:ChangeMessageVisibility` on the queue. A message is hidden for at most 11 hours and 40 minutes, because SQS
    /// allows 12 hours since its receive. If the request fails, a warning is logged, and the message is visible again after
    /// the queue's visibility timeout.
    #[cfg(feature = "sqs")]
    #[must_use]
    pub fn hide_while_in_progress(mut self, queues: aws_sdk_sqs::Client) -> Self {
        self.source.requests.hide_in_progress = Some(queues);
        self
    }

    /// Delays the next delivery of a message that failed, by its receive count: the delay after the first receive is that
    /// after the first attempt of this [`Backoff`]. Otherwise the message is visible again after the queue's visibility
    /// timeout. Feature `sqs`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Backoff, Locks, SqsConsumer};
    /// # fn example(locks: Locks, queues: aws_sdk_sqs::Client) -> SqsConsumer<String, std::io::Error> {
    /// let seldom = Backoff::new().base(Duration::from_secs(20)).cap(Duration::from_hours(1));
    /// SqsConsumer::by_message_id(locks).back_off(queues, seldom)
    /// # }
    /// ```
    ///
    /// A message fails if its handler returns an error or panics, if it is unfinished when its lease ends, if it does not
    /// parse or has no key, and if DynamoDB does not answer or the [`Idempotency`] refuses it, other than as in progress. A
    /// message that was not started is not delayed, nor is anything after a crash, or after the last delivery by
    /// [`max_receive_count`](Self::max_receive_count).
    ///
    /// Set the base and the cap. Those of [`Backoff::new`], 100 ms and 5 s, are for waits: they bring a message back sooner
    /// than the visibility timeout of most queues does. The default [`Jitter::Full`](crate::Jitter::Full) also halves the
    /// delays on average.
    ///
    /// SQS counts whole seconds, so a delay is rounded up. It is at most 11 hours and 40 minutes, because SQS allows 12
    /// hours since the receive. A queue keeps a message no longer than its retention, whatever the delays.
    ///
    /// In a FIFO queue, the group waits with its failed message. SQS also delivers no message of a group of which another
    /// one is hidden. If the batch had later messages of the group, the next delivery therefore is not before the queue's
    /// visibility timeout.
    ///
    /// One request for such a message, and one for each of its copies in the batch, of 2 s at most; IAM action
    /// `sqs:ChangeMessageVisibility` on the queue. If the request fails, a warning is logged, and the message is visible
    /// again after the queue's visibility timeout.
    #[cfg(feature = "sqs")]
    #[must_use]
    pub fn back_off(mut self, queues: aws_sdk_sqs::Client, backoff: Backoff) -> Self {
        self.source.requests.back_off = Some((queues, backoff));
        self
    }

    /// Sends a message to this dead-letter queue, and does not try it again, if `why` returns a reason for the handler's
    /// error: that no retry can succeed. `None` is an error that a retry may resolve. Feature `sqs`.
    ///
    /// ```
    /// # use lambda_lock::lambda::SqsMessage;
    /// # use lambda_lock::{Locks, SqsConsumer};
    /// enum Failure {
    ///     Declined,
    ///     Unreachable,
    /// }
    ///
    /// # fn example(locks: Locks, queues: aws_sdk_sqs::Client, url: &str) -> SqsConsumer<String, Failure> {
    /// SqsConsumer::by_message_id(locks).dead_letter_if(queues, url, |error| match error {
    ///     Failure::Declined => Some("the card was declined".to_owned()),
    ///     Failure::Unreachable => None,
    /// })
    /// # }
    /// ```
    ///
    /// The dead letter has the message's body, its group and its attributes, and two more, which replace attributes of the
    /// same name. `DeadLetterOf` is the id of the message. `DeadLetterReason` is the reason, in up to 1,024 bytes and
    /// without control characters. It is left out if it is empty, or if the message has nine attributes: SQS allows ten.
    ///
    /// Only when SQS has the dead letter is the message done and deleted. The rest of a FIFO group then goes on. The
    /// message is logged at level error with `dead_letter` and with the handler's error, which is in the dead letter only
    /// as far as `why` repeats it. If SQS does not take the dead letter within 2 s and within the lease, a warning is
    /// logged, and the message failed as any other. The same holds for a message with ten attributes, and for one that
    /// the attributes make larger than SQS allows. A message that does not parse has no error of the handler: let
    /// [`with_parser`](Self::with_parser) return a variant for it.
    ///
    /// A dead letter is sent at least once. It is sent again if the answer to the request is lost, or if SQS delivers
    /// the message again before Lambda deletes it, as after a crash: the handler then runs again. A queue whose URL ends
    /// with `.fifo` drops a repetition within five minutes. A letter also stands for a second delivery of its message in the
    /// same batch, but for no other message with its key: that one runs itself.
    ///
    /// Take the queue that the source's redrive policy names, because SQS redrives from no other queue. SQS does not know the
    /// source of these letters: the redrive has to name it (`--destination-arn`). Give the queue a longer retention than the
    /// source's.
    ///
    /// The record is released, as after any error of the handler. So a letter that comes back by a redrive runs again, and
    /// is done without a run if a message with its key has succeeded meanwhile. An [`Idempotency`] with
    /// [`OnError::Store`](crate::OnError::Store) keeps the error instead, and `why` is not called again: a letter that was
    /// not sent at once is never sent. Do not combine the two. A handler whose transaction has the write of
    /// [`Run::complete_in`](crate::Run::complete_in) sends no letter: the transaction may have been committed.
    ///
    /// One more request for such a message; IAM action `sqs:SendMessage` on the dead-letter queue.
    #[cfg(feature = "sqs")]
    #[must_use]
    pub fn dead_letter_if(
        mut self,
        queues: aws_sdk_sqs::Client,
        queue_url: impl Into<String>,
        why: impl Fn(&E) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.source.requests.dead_letters = Some((queues, queue_url.into().into()));
        self.why_dead = Some(Arc::new(why));
        self
    }
}
