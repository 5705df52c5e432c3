//! The consumer of SQS batches: each message is worked on once, and exactly those that failed go back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::{self, Display};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, SystemTime};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use futures_util::{FutureExt, StreamExt, stream};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::{Layer, Service};

use super::caller;
use crate::clock::{Deadline, since_epoch};
use crate::idempotency::HandlerError;
use crate::idempotency::{HandlerInput, Idempotency, Identity, Invocation, NextStep, OnMissingKey};
use crate::limits::time_to_ask;
use crate::lock::Locks;
use crate::metrics;
use crate::panics;

/// Makes a consumer of SQS batches of a handler of one message: each message is done once, however often it is
/// delivered, and exactly those that are not done go back to the queue.
///
/// Turn `ReportBatchItemFailures` on in the event source mapping: without it, Lambda takes the answer for success and
/// deletes the messages that failed. Put the consumer around the handler, inside the runtime. The handler takes a
/// [`Message`], or a [`WithRun`](crate::WithRun) around it to get the run as well.
///
/// | a message | |
/// | --- | --- |
/// | whose handler returns `Ok` | is done, and recorded as done for the window |
/// | whose handler returns an error, panics, or is not done by the end of its lease | goes back; its record is given up, or what the [`Idempotency`] says |
/// | that was done before | is deleted without running |
/// | that is in progress elsewhere | goes back; hidden until that lease ends with `hide_while_in_progress` (feature `sqs`) |
/// | whose body does not parse, or that has no key | goes back, and in the end to the dead-letter queue |
/// | that is in the batch twice | runs once; both share the outcome |
/// | that was not started [in time](Self::min_remaining_time) | goes back without having been started |
/// | of a FIFO queue, after one of its group that goes back | goes back, so that the group stays in order; other groups go on |
///
/// A message without a message id, which SQS never sends, cannot be named in the answer: it is answered by an empty
/// name, for which Lambda puts the whole batch back. Nothing is lost, and what was done is not done again.
///
/// The leases of a batch end a second before the invocation's deadline, or a quarter of the time left if that is less,
/// so that one message that takes too long does not take the answer for the others with it.
///
/// What goes back is visible again when the queue's visibility timeout has passed.
///
/// Two requests for each message that runs, one for a duplicate; IAM action `dynamodb:UpdateItem`.
///
/// What goes back is logged, with its message id and, unless the format hashes it, its key, but not with its body: at
/// level info if it is in progress elsewhere, otherwise as an error or a warning. The line has the `error_type` of an error
/// whose conversion to `Diagnostic` gives it one. A body that does not parse is reported without its value, in contrast to
/// [what `lambda_runtime` does](crate::LockLayer#what-lambda_runtime-logs) with other events.
///
/// # The release profile
///
/// Set `panic = "unwind"` in the `Cargo.toml` at the root of the workspace:
///
/// ```toml
/// [profile.release]
/// panic = "unwind"
/// ```
///
/// Without it, `cargo lambda build`, and with it `sam build`, builds with `panic = "abort"`. A panic then ends the
/// process, and the whole batch goes back. The messages that were done are not done again, but each delivery counts: in
/// the end all of them may be in the dead-letter queue, with the one that panics.
///
/// A layer that is built that way logs one warning when it is made, and [`Locks::check`](crate::Locks::check) reports it.
///
/// # Example
///
/// ```no_run
/// use lambda_lock::{Locks, Message, SqsConsumer};
/// use lambda_runtime::{Error, Runtime};
/// use serde::Deserialize;
/// use tower::{Layer, service_fn};
///
/// #[derive(Deserialize)]
/// struct Payment {
///     amount: u32,
/// }
///
/// async fn pay(message: Message<Payment>) -> Result<(), Error> {
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
    settings: Settings<B, T, E>,
    handler_input: PhantomData<fn(H)>,
}

struct Settings<B, T, E> {
    idempotency: Idempotency<Message<B>, T, E>,
    parse: Parse<B>,
    concurrency: usize,
    min_remaining_time: Duration,
    #[cfg(feature = "sqs")]
    queues: Option<aws_sdk_sqs::Client>,
}

type Parse<B> = Arc<dyn Fn(&str) -> Result<B, String> + Send + Sync>;

/// One message of a batch.
///
/// ```
/// use aws_lambda_events::sqs::SqsMessage;
/// use lambda_lock::Message;
///
/// let mut record = SqsMessage::default();
/// record.message_id = Some("17".to_owned());
/// let message = Message::new("the body", record);
/// assert_eq!(message.message_id(), Some("17"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Message<B> {
    /// The body, parsed.
    pub body: B,
    /// What SQS says about the message: attributes, receipt handle, queue. Its own body is left out.
    pub record: SqsMessage,
}

impl<B> Message<B> {
    /// A message, for testing a handler by itself.
    pub fn new(body: B, record: SqsMessage) -> Self {
        Self { body, record }
    }

    /// The id that SQS gave the message when it was sent. Each delivery of it has the same.
    pub fn message_id(&self) -> Option<&str> {
        self.record.message_id.as_deref()
    }

    /// The deduplication id, in a FIFO queue: what the sender gave, or with content-based deduplication the body's hash.
    pub fn deduplication_id(&self) -> Option<&str> {
        self.attribute("MessageDeduplicationId")
    }

    /// The group within which a FIFO queue keeps order.
    pub fn group_id(&self) -> Option<&str> {
        self.attribute("MessageGroupId")
    }

    fn attribute(&self, name: &str) -> Option<&str> {
        self.record.attributes.get(name).map(String::as_str)
    }
}

/// The message id alone: a body and its attributes may be what nobody wants in a log.
impl<B> fmt::Debug for Message<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("message_id", &self.message_id()).finish_non_exhaustive()
    }
}

/// Longer than the longest visibility timeout, which is 12 hours.
const WINDOW: Duration = Duration::from_hours(24);

impl<H, B: DeserializeOwned + 'static, T, E> SqsConsumer<H, B, T, E> {
    /// Each message once by its message id, which is the same in every delivery of one sending; for a day. Bodies are
    /// JSON. A sender that sends twice gives two ids: see [`new`](Self::new).
    #[must_use]
    pub fn by_message_id(locks: Locks) -> Self {
        let key = |message: &Message<B>| message.message_id().map(str::to_owned);
        Self::new(Idempotency::new(locks, OnMissingKey::Reject, key).window(WINDOW))
    }

    /// Each message once by its deduplication id, within its queue and group, for a day, where the queue itself does so for
    /// five minutes; for FIFO queues. Bodies are JSON.
    ///
    /// The key is `queue#group#id`: the queue's ARN, the group, in which `#` becomes `%23` and `%` becomes `%25`, and the
    /// deduplication id as it is.
    #[must_use]
    pub fn by_deduplication_id(locks: Locks) -> Self {
        let key = |message: &Message<B>| {
            let queue = escape(message.record.event_source_arn.as_deref().unwrap_or_default());
            let group = escape(message.group_id().unwrap_or_default());
            message.deduplication_id().map(|id| format!("{queue}#{group}#{id}"))
        };
        Self::new(Idempotency::new(locks, OnMissingKey::Reject, key).window(WINDOW))
    }

    /// With settings of the caller's choice, such as a key from the body. Bodies are JSON.
    ///
    /// Choose a window longer than a message may come back: the queue's visibility timeout at least, up to 12 hours.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Idempotency, Locks, Message, SqsConsumer, OnMissingKey};
    /// # use serde::Deserialize;
    /// #[derive(Deserialize)]
    /// struct Payment {
    ///     id: String,
    /// }
    /// # fn example(locks: Locks) -> SqsConsumer<Message<Payment>, Payment, (), std::io::Error> {
    /// let once = Idempotency::new(locks, OnMissingKey::Reject, |message: &Message<Payment>| Some(message.body.id.clone()));
    /// SqsConsumer::new(once.window(Duration::from_hours(24 * 14))).concurrency(5)
    /// # }
    /// ```
    #[must_use]
    pub fn new(idempotency: Idempotency<Message<B>, T, E>) -> Self {
        // What serde says about a value would carry it into the log.
        Self::with_parser(idempotency, |text| {
            serde_json::from_str(text).map_err(|error| {
                format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
            })
        })
    }
}

/// A part of a key before the last: `#` stands between parts, and SQS allows it in the names of groups. What has neither
/// `#` nor `%` in it stands as it is.
fn escape(part: &str) -> String {
    part.replace('%', "%25").replace('#', "%23")
}

impl<H, B, T, E> SqsConsumer<H, B, T, E> {
    /// For bodies that are not JSON. What the parser returns as an error is logged.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use lambda_lock::{Idempotency, Locks, Message, SqsConsumer, OnMissingKey};
    /// # fn example(once: Idempotency<Message<String>, (), Infallible>) -> SqsConsumer<Message<String>, String, (), Infallible> {
    /// SqsConsumer::with_parser(once, |text| Ok::<_, Infallible>(text.to_owned()))
    /// # }
    /// ```
    #[must_use]
    pub fn with_parser<P: Display>(
        idempotency: Idempotency<Message<B>, T, E>,
        parse: impl Fn(&str) -> Result<B, P> + Send + Sync + 'static,
    ) -> Self {
        panics::warn_if_they_abort();
        Self {
            settings: Settings {
                idempotency,
                parse: Arc::new(move |text| parse(text).map_err(|error| error.to_string())),
                concurrency: 10,
                min_remaining_time: Duration::from_secs(1),
                #[cfg(feature = "sqs")]
                queues: None,
            },
            handler_input: PhantomData,
        }
    }

    /// How many messages are worked on at the same time, on the task of the invocation; 10 by default, at least 1. In a
    /// FIFO queue, of as many groups.
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.settings.concurrency = messages.max(1);
        self
    }

    /// A message is started only while this much is left of the batch's leases; 1 s by default, and never more than nine
    /// tenths of what they have at the start. Choose what most messages take: the rest goes back to the queue without
    /// having been started, in place of being cut off.
    #[must_use]
    pub fn min_remaining_time(mut self, time: Duration) -> Self {
        self.settings.min_remaining_time = time;
        self
    }

    /// Hides a message that is in progress elsewhere until that lease ends, in place of having it back when the queue's
    /// visibility timeout is over. Feature `sqs`.
    ///
    /// One request for such a message and for each of its twins in the batch; IAM action `sqs:ChangeMessageVisibility` on
    /// the queue. If it fails, the message comes back when it would have without.
    #[cfg(feature = "sqs")]
    #[must_use]
    pub fn hide_while_in_progress(mut self, queues: aws_sdk_sqs::Client) -> Self {
        self.settings.queues = Some(queues);
        self
    }
}

impl<S, H, B, T, E> Layer<S> for SqsConsumer<H, B, T, E> {
    type Service = SqsConsumerService<S, H, B, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        SqsConsumerService { inner, settings: self.settings.clone(), handler_input: PhantomData }
    }
}

/// The service that [`SqsConsumer`] makes of a handler of one message.
///
/// The handler is cloned for every message. It never fails as a whole: each message has an outcome of its own.
pub struct SqsConsumerService<S, H, B, T, E> {
    inner: S,
    settings: Settings<B, T, E>,
    handler_input: PhantomData<fn(H)>,
}

impl<S, H, B, T, E> Service<LambdaEvent<SqsEvent>> for SqsConsumerService<S, H, B, T, E>
where
    S: Service<H, Response = T, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    H: HandlerInput<Message<B>> + Send + 'static,
    B: Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    type Response = SqsBatchResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<SqsBatchResponse, Infallible>> + Send>>;

    /// Always: the handler is asked for every message by itself.
    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, LambdaEvent { payload, context }: LambdaEvent<SqsEvent>) -> Self::Future {
        let (inner, settings) = (self.inner.clone(), self.settings.clone());
        Box::pin(async move {
            let mut caller = caller(&context, settings.idempotency.locks());
            let time = settings.limit(&mut caller);
            let names: Vec<_> = payload.records.iter().map(|record| record.message_id.clone()).collect();
            let items = Mutex::new(vec![Item::NotStarted; names.len()]);
            let lanes = settings.lanes(payload.records, &caller);
            let concurrency = settings.concurrency;
            let batch = Arc::new(Batch { settings, caller, time, items, handler_input: PhantomData });
            let works = stream::iter(lanes).map({
                let batch = Arc::clone(&batch);
                move |lane| {
                    // Here, and not when the lane is begun: a handler need not be shared between threads.
                    let inner = catch_unwind(AssertUnwindSafe(|| inner.clone()));
                    let batch = Arc::clone(&batch);
                    // Whatever users give may panic, down to the drop of a body. That costs this lane alone.
                    let works = AssertUnwindSafe(async {
                        batch.work_through(lane, inner?).await;
                        Ok(())
                    });
                    works.catch_unwind().map(|worked| {
                        if worked.flatten().is_err() {
                            tracing::error!("a panic outside of the handler: what is not done goes back to the queue");
                        }
                    })
                }
            });
            let works = works.boxed().buffer_unordered(concurrency).collect::<()>();
            // Whatever has fallen silent: what is done is told to Lambda in time. The block is there so that what is under
            // way is dropped where a panic is caught.
            let in_time = AssertUnwindSafe(async {
                tokio::time::timeout(time.map_or(Duration::MAX, |time| time.to_answer), works).await.is_ok()
            });
            match in_time.catch_unwind().await {
                Ok(true) => {}
                Ok(false) => tracing::warn!("no time left: what is under way goes back to the queue"),
                Err(_) => tracing::error!("a panic outside of the handler: what is under way goes back to the queue"),
            }
            let mut response = SqsBatchResponse::default();
            let items = batch.items().clone();
            for (name, item) in names.into_iter().zip(items) {
                metrics::count_by(metrics::BATCH_ITEMS, metrics::OUTCOME, item.name());
                if !item.is_done() {
                    response.add_failure(name.unwrap_or_default());
                }
            }
            Ok(response)
        })
    }
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq)]
enum Item {
    NotStarted,
    /// Begun, and not at its end when its lease ended, or the answer had to be given.
    TimedOut,
    Unreadable,
    InProgress,
    Failed,
    Done,
    Duplicate,
}

impl Item {
    fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Duplicate)
    }

    /// As the metrics have it.
    fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::TimedOut => "timed_out",
            Self::Unreadable => "unreadable",
            Self::InProgress => "in_progress",
            Self::Failed => "failed",
            Self::Done => "done",
            Self::Duplicate => "duplicate",
        }
    }
}

/// Messages that are worked on one after the other: one alone, or a group of a FIFO queue.
struct Lane<B> {
    works: Vec<Work<B>>,
    is_ordered: bool,
}

/// One message, its twins, and where they stand in the batch.
struct Work<B> {
    indices: Vec<usize>,
    /// `None`: it cannot be worked on, and has been logged.
    message: Option<(Message<B>, Option<Identity>)>,
    twins: Vec<SqsMessage>,
}

/// The time that a batch has.
#[derive(Clone, Copy)]
struct Time {
    /// When its leases end.
    leases: Deadline,
    least: Duration,
    /// From the start.
    to_answer: Duration,
}

impl<B, T, E> Settings<B, T, E> {
    /// Lets the leases of a batch end early enough for its answer.
    fn limit(&self, caller: &mut Invocation) -> Option<Time> {
        let now = self.idempotency.locks().0.clock.now();
        let left = since_epoch(caller.deadline?).saturating_sub(now.wall);
        let of_leases = left.saturating_sub((left / 4).min(Duration::from_secs(1)));
        let leases = now.deadline_after(of_leases);
        caller.deadline = Some(SystemTime::UNIX_EPOCH + leases.wall());
        Some(Time { leases, least: self.min_remaining_time.min(of_leases * 9 / 10), to_answer: time_to_ask(left) })
    }

    fn lanes(&self, records: Vec<SqsMessage>, caller: &Invocation) -> Vec<Lane<B>> {
        let mut lanes: Vec<Lane<B>> = Vec::new();
        let mut lane_of_group: HashMap<_, usize> = HashMap::new();
        // In another group a twin is another message: its outcome counts for the order there.
        let mut firsts: HashMap<_, (usize, usize)> = HashMap::new();
        for (index, record) in records.into_iter().enumerate() {
            let is_ordered =
                record.event_source_arn.as_deref().is_some_and(|queue| queue.strip_suffix(".fifo").is_some());
            let group = is_ordered.then(|| {
                (record.event_source_arn.clone(), record.attributes.get("MessageGroupId").cloned().unwrap_or_default())
            });
            let message = self.read(record, caller);
            let identity = message.as_ref().and_then(|(_, identity)| identity.clone());
            let place = identity.map(|identity| (group.clone(), identity));
            if let Some(&(lane, work)) = place.as_ref().and_then(|place| firsts.get(place)) {
                let first = &mut lanes[lane].works[work];
                first.indices.push(index);
                first.twins.extend(message.map(|(Message { body, record }, _)| {
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(body)));
                    record
                }));
                continue;
            }
            let next = lanes.len();
            let lane = group.map_or(next, |group| *lane_of_group.entry(group).or_insert(next));
            if lane == next {
                lanes.push(Lane { works: Vec::new(), is_ordered });
            }
            let works = &mut lanes[lane].works;
            if let Some(place) = place {
                firsts.insert(place, (lane, works.len()));
            }
            works.push(Work { indices: vec![index], message, twins: Vec::new() });
        }
        lanes
    }

    /// The message with its body parsed, and its record.
    fn read(&self, mut record: SqsMessage, caller: &Invocation) -> Option<(Message<B>, Option<Identity>)> {
        let id = record.message_id.clone();
        let failed =
            |why: &dyn Display| tracing::error!(message_id = id, error = %why, "a message goes back to the queue");
        if id.is_none() {
            failed(&"it has no message id");
            return None;
        }
        let text = record.body.take().unwrap_or_default();
        let read = AssertUnwindSafe(|| {
            let body = (self.parse)(&text).map_err(|why| format!("its body cannot be read: {why}"))?;
            let message = Message { body, record };
            let identity = self.idempotency.identify(&message, caller).map_err(|error| error.to_string())?;
            Ok::<_, String>((message, identity))
        });
        match catch_unwind(read) {
            Ok(Ok(message)) => Some(message),
            Ok(Err(why)) => {
                failed(&why);
                None
            }
            Err(_) => {
                failed(&"reading it panicked");
                None
            }
        }
    }
}

struct Batch<H, B, T, E> {
    settings: Settings<B, T, E>,
    caller: Invocation,
    time: Option<Time>,
    /// By the place of the message in the batch.
    items: Mutex<Vec<Item>>,
    handler_input: PhantomData<fn(H)>,
}

impl<H, B, T, E> Batch<H, B, T, E>
where
    H: HandlerInput<Message<B>> + Send + 'static,
    B: Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    async fn work_through<S>(self: Arc<Self>, lane: Lane<B>, inner: S)
    where
        S: Service<H, Response = T, Error = E> + Clone,
    {
        for Work { indices, message, twins } in lane.works {
            let outcome = match message {
                Some((message, identity)) if self.has_time() => {
                    self.set(&indices, Item::TimedOut);
                    self.work(message, identity, &twins, inner.clone()).await
                }
                Some((message, _)) => {
                    tracing::warn!(message_id = message.message_id(), "a message goes back to the queue: no time left");
                    Item::NotStarted
                }
                None => Item::Unreadable,
            };
            self.set(&indices, outcome);
            if outcome == Item::Done {
                self.set(&indices[1..], Item::Duplicate);
            }
            if lane.is_ordered && !outcome.is_done() {
                break;
            }
        }
    }

    fn items(&self) -> MutexGuard<'_, Vec<Item>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, indices: &[usize], outcome: Item) {
        let mut items = self.items();
        for index in indices {
            items[*index] = outcome;
        }
    }

    fn has_time(&self) -> bool {
        let now = self.settings.idempotency.locks().0.clock.now();
        self.time.is_none_or(|time| time.leases.remaining(now) >= time.least)
    }

    async fn work<S>(&self, message: Message<B>, identity: Option<Identity>, twins: &[SqsMessage], inner: S) -> Item
    where
        S: Service<H, Response = T, Error = E>,
    {
        let message_id = message.message_id().unwrap_or_default().to_owned();
        let work = AssertUnwindSafe(async {
            let error = match self.once(message, identity, twins, inner).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let item = match &error {
                HandlerError::Lock(error) if error.is_in_progress() => Item::InProgress,
                HandlerError::Lock(error) if error.is_lost() => Item::TimedOut,
                _ => Item::Failed,
            };
            // The conversion is the user's, and is caught with the handler.
            Err((item, error.into()))
        });
        match work.catch_unwind().await {
            Ok(Ok(done)) => done,
            // A duplicate came while the first one is worked on: routine, and no error.
            Ok(Err((Item::InProgress, Diagnostic { error_message, .. }))) => {
                let reason = "in_progress";
                tracing::info!(message_id, reason, error = error_message, "a message goes back to the queue");
                Item::InProgress
            }
            Ok(Err((item, Diagnostic { error_type, error_message }))) => {
                // For want of another name, `lambda_runtime` gives that of a reference in Rust, such as
                // `&alloc::boxed::Box<dyn core::error::Error + …>`. It helps nobody.
                let error_type = Some(error_type).filter(|name| !name.starts_with('&'));
                tracing::error!(message_id, error_type, error = error_message, "a message goes back to the queue");
                item
            }
            Err(_) => {
                tracing::error!(message_id, error = "its handler panicked", "a message goes back to the queue");
                Item::Failed
            }
        }
    }

    #[cfg_attr(not(feature = "sqs"), expect(unused_variables, reason = "twins are only there to be hidden"))]
    async fn once<S>(
        &self,
        message: Message<B>,
        identity: Option<Identity>,
        twins: &[SqsMessage],
        mut inner: S,
    ) -> Result<Item, HandlerError<E>>
    where
        S: Service<H, Response = T, Error = E>,
    {
        let idempotency = &self.settings.idempotency;
        let run = match idempotency.begin_unlogged(identity, &self.caller).await {
            Ok(NextStep::Replay { key, record }) => {
                return match idempotency.replay(&record, &key) {
                    Err(error @ HandlerError::Replayed(_)) => Err(error),
                    // It is done, whether or not its result is of a type that can be read today.
                    _ => Ok(Item::Duplicate),
                };
            }
            Ok(NextStep::Run(run)) => run,
            Err(error) => {
                #[cfg(feature = "sqs")]
                {
                    let records = std::iter::once(&message.record).chain(twins);
                    let requests: Vec<_> = records.filter_map(|record| self.settings.hide(record, &error)).collect();
                    futures_util::future::join_all(requests).await;
                }
                return Err(error);
            }
        };
        let work = async {
            poll_fn(|context| inner.poll_ready(context)).await?;
            inner.call(H::under(message, &run)).await
        };
        idempotency.execute(&run, work).await.map(|_| Item::Done)
    }
}

#[cfg(feature = "sqs")]
impl<B, T, E> Settings<B, T, E> {
    /// The request that hides a message until the lease of whoever works on it ends.
    fn hide<F>(
        &self,
        record: &SqsMessage,
        error: &HandlerError<F>,
    ) -> Option<impl Future<Output = ()> + use<B, T, E, F>> {
        let (Some(queues), HandlerError::Lock(error)) = (&self.queues, error) else { return None };
        let holder = error.holder().filter(|_| error.is_in_progress())?;
        let now = self.idempotency.locks().0.clock.now();
        let left = since_epoch(holder.until()).saturating_sub(now.wall);
        // Whole seconds: the next one, when the lease has ended.
        let seconds = i32::try_from(left.as_secs() + 1).unwrap_or(LONGEST_VISIBILITY_TIMEOUT);
        let request = queues
            .change_message_visibility()
            .queue_url(queue_url(record.event_source_arn.as_deref()?)?)
            .receipt_handle(record.receipt_handle.as_deref()?)
            .visibility_timeout(seconds.min(LONGEST_VISIBILITY_TIMEOUT));
        let message_id = record.message_id.clone();
        Some(async move {
            let answer = tokio::time::timeout(Duration::from_secs(2), Box::pin(request.send())).await;
            if !matches!(answer, Ok(Ok(_))) {
                tracing::warn!(message_id, "a message could not be hidden while it is in progress");
            }
        })
    }
}

/// In seconds.
#[cfg(feature = "sqs")]
const LONGEST_VISIBILITY_TIMEOUT: i32 = 12 * 3600;

/// The address of the queue with this ARN, as SQS forms it.
#[cfg(feature = "sqs")]
fn queue_url(arn: &str) -> Option<String> {
    let mut parts = arn.splitn(6, ':').skip(1);
    let (partition, _service, region, account, name) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let domain = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
    Some(format!("https://sqs.{region}.{domain}/{account}/{name}"))
}

// By hand, because deriving would ask the types of bodies, results and errors to be `Clone` and `Debug` too.
impl<B, T, E> Clone for Settings<B, T, E> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            parse: Arc::clone(&self.parse),
            #[cfg(feature = "sqs")]
            queues: self.queues.clone(),
            ..*self
        }
    }
}

impl<H, B, T, E> Clone for SqsConsumer<H, B, T, E> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), handler_input: PhantomData }
    }
}

impl<S: Clone, H, B, T, E> Clone for SqsConsumerService<S, H, B, T, E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: self.settings.clone(), handler_input: PhantomData }
    }
}

impl<H, B, T, E> fmt::Debug for SqsConsumer<H, B, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsConsumer").field("idempotency", &self.settings.idempotency).finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, H, B, T, E> fmt::Debug for SqsConsumerService<S, H, B, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsConsumerService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
