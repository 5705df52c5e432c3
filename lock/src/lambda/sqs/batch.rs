//! One batch: read its messages, run each once, and answer with those that return to the queue.

use std::convert::Infallible;
use std::fmt;
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

use super::super::invocation::invocation_of;
use super::consumer::{Settings, SqsConsumer};
use super::message::Message;
use super::sequence::{Entry, Sequence};
use crate::clock::{Deadline, since_epoch};
use crate::idempotency::{HandlerError, HandlerInput, Identity, Invocation, NextStep};
use crate::limits::time_to_ask;
use crate::metrics;

impl<S, H, B, T, E> Layer<S> for SqsConsumer<H, B, T, E> {
    type Service = SqsConsumerService<S, H, B, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        SqsConsumerService { inner, settings: self.settings.clone(), handler_input: PhantomData }
    }
}

/// The service that [`SqsConsumer`] makes from a handler of one message.
///
/// The handler is cloned for each message. The service never fails: each message has its own outcome.
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

    /// Always ready: the handler's readiness is checked for each message.
    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, LambdaEvent { payload, context }: LambdaEvent<SqsEvent>) -> Self::Future {
        let (inner, settings) = (self.inner.clone(), self.settings.clone());
        Box::pin(async move {
            let mut invocation = invocation_of(&context, settings.idempotency.locks());
            let time = settings.limit(&mut invocation);
            let message_ids: Vec<_> = payload.records.iter().map(|record| record.message_id.clone()).collect();
            let outcomes = Mutex::new(vec![Outcome::NotStarted; message_ids.len()]);
            let sequences = settings.sequences(payload.records, &invocation);
            let batch = Arc::new(Batch { settings, invocation, time, outcomes, handler_input: PhantomData });
            Arc::clone(&batch).run_all(sequences, inner).await;
            Ok(batch.response(message_ids))
        })
    }
}

struct Batch<H, B, T, E> {
    settings: Settings<B, T, E>,
    invocation: Invocation,
    time: Option<BatchTime>,
    /// The outcome at each position of the batch.
    outcomes: Mutex<Vec<Outcome>>,
    handler_input: PhantomData<fn(H)>,
}

/// The time limits of a batch.
#[derive(Clone, Copy)]
struct BatchTime {
    lease_end: Deadline,
    /// The remaining lease without which no message starts.
    min_remaining: Duration,
    /// The time from the start of the batch to its answer.
    to_answer: Duration,
}

/// The outcome of a message.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    NotStarted,
    /// Started, but unfinished when its lease ended or the answer was due.
    TimedOut,
    Unreadable,
    InProgress,
    Failed,
    Done,
    Duplicate,
}

impl<B, T, E> Settings<B, T, E> {
    /// Shortens the leases of a batch so that they end in time for its answer.
    fn limit(&self, invocation: &mut Invocation) -> Option<BatchTime> {
        let now = self.idempotency.locks().0.clock.now();
        let left = since_epoch(invocation.deadline?).saturating_sub(now.wall);
        let lease = left.saturating_sub((left / 4).min(Duration::from_secs(1)));
        let lease_end = now.deadline_after(lease);
        invocation.deadline = Some(SystemTime::UNIX_EPOCH + lease_end.wall());
        let min_remaining = self.min_remaining_time.min(lease * 9 / 10);
        Some(BatchTime { lease_end, min_remaining, to_answer: time_to_ask(left) })
    }
}

impl<H, B, T, E> Batch<H, B, T, E>
where
    H: HandlerInput<Message<B>> + Send + 'static,
    B: Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    /// Runs the sequences, several at a time, until all are done or the answer is due.
    async fn run_all<S>(self: Arc<Self>, sequences: Vec<Sequence<B>>, inner: S)
    where
        S: Service<H, Response = T, Error = E> + Clone + Send + 'static,
        S::Future: Send,
    {
        let (concurrency, to_answer) =
            (self.settings.concurrency, self.time.map_or(Duration::MAX, |time| time.to_answer));
        let runs = stream::iter(sequences).map(move |sequence| {
            // Cloned outside of the future, because a handler need not be `Sync`.
            let inner = catch_unwind(AssertUnwindSafe(|| inner.clone()));
            let batch = Arc::clone(&self);
            // All code of the user may panic, even the drop of a body. A panic ends this sequence only.
            let run = AssertUnwindSafe(async move {
                batch.run_sequence(sequence, inner?).await;
                Ok(())
            });
            run.catch_unwind().map(|ended| {
                if ended.flatten().is_err() {
                    tracing::error!("panic outside of the handler: unfinished messages returned to the queue");
                }
            })
        });
        let runs = runs.boxed().buffer_unordered(concurrency).collect::<()>();
        // The answer reports what is done, even if DynamoDB does not answer. The block drops `runs` inside of
        // `catch_unwind`.
        let in_time = AssertUnwindSafe(async { tokio::time::timeout(to_answer, runs).await.is_ok() });
        match in_time.catch_unwind().await {
            Ok(true) => {}
            Ok(false) => tracing::warn!("no time left: unfinished messages returned to the queue"),
            Err(_) => tracing::error!("panic outside of the handler: unfinished messages returned to the queue"),
        }
    }

    async fn run_sequence<S>(&self, sequence: Sequence<B>, inner: S)
    where
        S: Service<H, Response = T, Error = E> + Clone,
    {
        for Entry { positions, message, copies } in sequence.entries {
            let outcome = match message {
                Some((message, identity)) if self.has_time() => {
                    self.set(&positions, Outcome::TimedOut);
                    self.run_message(message, identity, &copies, inner.clone()).await
                }
                Some((message, _)) => {
                    tracing::warn!(message_id = message.message_id(), "message returned to the queue: no time left");
                    Outcome::NotStarted
                }
                None => Outcome::Unreadable,
            };
            self.set(&positions, outcome);
            if outcome == Outcome::Done {
                self.set(&positions[1..], Outcome::Duplicate);
            }
            if sequence.is_ordered && !outcome.is_done() {
                break;
            }
        }
    }

    /// Runs a message, and logs why it returns to the queue.
    async fn run_message<S>(
        &self,
        message: Message<B>,
        identity: Option<Identity>,
        copies: &[SqsMessage],
        inner: S,
    ) -> Outcome
    where
        S: Service<H, Response = T, Error = E>,
    {
        let message_id = message.message_id().unwrap_or_default().to_owned();
        let run = AssertUnwindSafe(async {
            let error = match self.run_once(message, identity, copies, inner).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let outcome = match &error {
                HandlerError::Lock(error) if error.is_in_progress() => Outcome::InProgress,
                HandlerError::Lock(error) if error.is_lost() => Outcome::TimedOut,
                _ => Outcome::Failed,
            };
            // Converted here, because the conversion is the user's code and may panic.
            Err((outcome, error.into()))
        });
        match run.catch_unwind().await {
            Ok(Ok(done)) => done,
            // Routine, and not an error: a duplicate arrived while the first delivery is in progress.
            Ok(Err((Outcome::InProgress, Diagnostic { error_message, .. }))) => {
                let reason = "in_progress";
                tracing::info!(message_id, reason, error = error_message, "message returned to the queue");
                Outcome::InProgress
            }
            Ok(Err((outcome, Diagnostic { error_type, error_message }))) => {
                // By default `lambda_runtime` names the Rust type of a reference, such as
                // `&alloc::boxed::Box<dyn core::error::Error + …>`, which says nothing about the error.
                let error_type = Some(error_type).filter(|name| !name.starts_with('&'));
                tracing::error!(message_id, error_type, error = error_message, "message returned to the queue");
                outcome
            }
            Err(_) => {
                tracing::error!(message_id, error = "the handler panicked", "message returned to the queue");
                Outcome::Failed
            }
        }
    }

    #[cfg_attr(not(feature = "sqs"), expect(unused_variables, reason = "copies are only hidden"))]
    async fn run_once<S>(
        &self,
        message: Message<B>,
        identity: Option<Identity>,
        copies: &[SqsMessage],
        mut inner: S,
    ) -> Result<Outcome, HandlerError<E>>
    where
        S: Service<H, Response = T, Error = E>,
    {
        let idempotency = &self.settings.idempotency;
        let run = match idempotency.begin_unlogged(identity, &self.invocation).await {
            Ok(NextStep::Replay { key, record }) => {
                return match idempotency.replay(&record, &key) {
                    Err(error @ HandlerError::Replayed(_)) => Err(error),
                    // Done, even if the stored result cannot be read as today's result type.
                    _ => Ok(Outcome::Duplicate),
                };
            }
            Ok(NextStep::Run(run)) => run,
            Err(error) => {
                #[cfg(feature = "sqs")]
                if let HandlerError::Lock(error) = &error {
                    self.settings.hide(std::iter::once(&message.record).chain(copies), error).await;
                }
                return Err(error);
            }
        };
        let work = async {
            poll_fn(|context| inner.poll_ready(context)).await?;
            inner.call(H::under(message, &run)).await
        };
        idempotency.execute(&run, work).await.map(|_| Outcome::Done)
    }
}

impl<H, B, T, E> Batch<H, B, T, E> {
    fn has_time(&self) -> bool {
        let now = self.settings.idempotency.locks().0.clock.now();
        self.time.is_none_or(|time| time.lease_end.remaining(now) >= time.min_remaining)
    }

    fn outcomes(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, positions: &[usize], outcome: Outcome) {
        let mut outcomes = self.outcomes();
        for position in positions {
            outcomes[*position] = outcome;
        }
    }

    /// Returns the answer, which names the messages that are not done, and counts all of them.
    fn response(&self, message_ids: Vec<Option<String>>) -> SqsBatchResponse {
        let mut response = SqsBatchResponse::default();
        let outcomes = self.outcomes().clone();
        for (message_id, outcome) in message_ids.into_iter().zip(outcomes) {
            metrics::count_by(metrics::BATCH_ITEMS, metrics::OUTCOME, outcome.name());
            if !outcome.is_done() {
                response.add_failure(message_id.unwrap_or_default());
            }
        }
        response
    }
}

impl Outcome {
    fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Duplicate)
    }

    /// Returns the name in the metrics.
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

impl<S: Clone, H, B, T, E> Clone for SqsConsumerService<S, H, B, T, E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: self.settings.clone(), handler_input: PhantomData }
    }
}

impl<S: fmt::Debug, H, B, T, E> fmt::Debug for SqsConsumerService<S, H, B, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsConsumerService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
