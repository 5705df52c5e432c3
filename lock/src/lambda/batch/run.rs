//! One batch: read its records, and run each once.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use lambda_runtime::{Context, Diagnostic};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tower::Service;

use super::super::handler_input::HandlerInput;
use super::super::invocation::invocation_of;
use super::lane::{Entry, Lane};
use super::outcome::Outcome;
use super::settings::{BatchTime, Settings};
use super::source::{Name, Source};
use crate::clock::Moment;
use crate::idempotency::{HandlerError, Identity, Invocation, NextStep, Run};
use crate::metrics;

impl<C, T, E> Settings<C, T, E>
where
    C: Source + Send + Sync + 'static,
    C::Item: Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    /// Runs each record of a batch once, and returns and counts their outcomes, by position.
    pub(in crate::lambda) async fn run<S, H>(self, records: Vec<C::Record>, context: &Context, inner: S) -> Vec<Outcome>
    where
        S: Service<H, Response = T, Error = E> + Clone + Send + 'static,
        S::Future: Send,
        H: HandlerInput<Run, Input = C::Item> + Send + 'static,
    {
        let mut invocation = invocation_of(context, self.idempotency.locks());
        let time = self.limit(&mut invocation);
        let outcomes = Mutex::new(vec![Outcome::NotStarted; records.len()]);
        let lanes = self.lanes(records, &invocation);
        let is_stopped = AtomicBool::new(false);
        let batch = Batch { settings: self, invocation, time, outcomes, is_stopped, handler_input: PhantomData };
        let batch = Arc::new(batch);
        Arc::clone(&batch).run_all(lanes, inner).await;
        let outcomes = batch.outcomes().clone();
        for outcome in &outcomes {
            metrics::count_by(metrics::BATCH_ITEMS, metrics::OUTCOME, outcome.name());
        }
        outcomes
    }
}

struct Batch<C: Source, H, T, E> {
    settings: Settings<C, T, E>,
    invocation: Invocation,
    time: Option<BatchTime>,
    /// The outcome at each position of the batch.
    outcomes: Mutex<Vec<Outcome>>,
    /// Whether no more items start, because one failed.
    is_stopped: AtomicBool,
    handler_input: PhantomData<fn(H)>,
}

impl<C, H, T, E> Batch<C, H, T, E>
where
    C: Source + Send + Sync + 'static,
    C::Item: Send + 'static,
    H: HandlerInput<Run, Input = C::Item> + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    /// Runs the lanes, several at a time, until all are done or the answer is due.
    async fn run_all<S>(self: Arc<Self>, lanes: Vec<Lane<C>>, inner: S)
    where
        S: Service<H, Response = T, Error = E> + Clone + Send + 'static,
        S::Future: Send,
    {
        let concurrency = self.settings.concurrency;
        // Reading the batch has taken some of the time.
        let to_answer = self.time.map_or(Duration::MAX, |time| time.answer.remaining(self.now()));
        let runs = stream::iter(lanes).map(move |lane| {
            // Cloned outside of the future, because a handler need not be `Sync`.
            let inner = catch_unwind(AssertUnwindSafe(|| inner.clone()));
            let (running, batch) = (Arc::clone(&self), Arc::clone(&self));
            // All code of the user may panic, even the drop of a body. A panic ends this lane only.
            let run = AssertUnwindSafe(async move {
                running.run_lane(lane, inner?).await;
                Ok(())
            });
            run.catch_unwind().map(move |ended| {
                if ended.flatten().is_err() {
                    batch.stop_if_asked();
                    tracing::error!("panic outside of the handler: {}", C::UNFINISHED);
                }
            })
        });
        let runs = runs.boxed().buffer_unordered(concurrency).collect::<()>();
        // The answer reports what is done, even if DynamoDB does not answer. The block drops `runs` inside of
        // `catch_unwind`.
        let in_time = AssertUnwindSafe(async { timeout(to_answer, runs).await.is_ok() });
        match in_time.catch_unwind().await {
            Ok(true) => {}
            Ok(false) => tracing::warn!("no time left: {}", C::UNFINISHED),
            Err(_) => tracing::error!("panic outside of the handler: {}", C::UNFINISHED),
        }
    }

    async fn run_lane<S>(&self, lane: Lane<C>, inner: S)
    where
        S: Service<H, Response = T, Error = E> + Clone,
    {
        for Entry { positions, name, item, copies } in lane.entries {
            if self.is_stopped() {
                break;
            }
            let outcome = match item {
                Some((item, identity)) if self.has_time() => {
                    self.set(&positions, Outcome::TimedOut);
                    self.run_item(item, &name, identity, &copies, inner.clone()).await
                }
                Some(_) => not_started::<C>(&name),
                None => Outcome::Unreadable,
            };
            self.set(&positions, outcome);
            if outcome == Outcome::Done {
                self.set(&positions[1..], Outcome::Duplicate);
            }
            if !outcome.is_done() {
                self.stop_if_asked();
                if lane.is_ordered {
                    break;
                }
            }
        }
    }

    /// Runs an item, and logs why it is not done.
    async fn run_item<S>(
        &self,
        item: C::Item,
        name: &Name,
        identity: Option<Identity>,
        copies: &[C::Copy],
        inner: S,
    ) -> Outcome
    where
        S: Service<H, Response = T, Error = E>,
    {
        let (message_id, sequence_number) = (name.message_id(), name.sequence_number());
        let run = AssertUnwindSafe(async {
            let error = match self.run_once(item, name, identity, copies, inner).await {
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
                tracing::info!(message_id, sequence_number, reason, error = error_message, "{}", C::NOT_DONE);
                Outcome::InProgress
            }
            Ok(Err((outcome, Diagnostic { error_type, error_message }))) => {
                // By default `lambda_runtime` names the Rust type of a reference, such as
                // `&alloc::boxed::Box<dyn core::error::Error + …>`, which says nothing about the error.
                let error_type = Some(error_type).filter(|name| !name.starts_with('&'));
                tracing::error!(message_id, sequence_number, error_type, error = error_message, "{}", C::NOT_DONE);
                outcome
            }
            Err(_) => {
                tracing::error!(message_id, sequence_number, error = "the handler panicked", "{}", C::NOT_DONE);
                Outcome::Failed
            }
        }
    }

    async fn run_once<S>(
        &self,
        item: C::Item,
        name: &Name,
        identity: Option<Identity>,
        copies: &[C::Copy],
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
                if let HandlerError::Lock(error) = &error {
                    let refused = self.settings.source.refused(&item, copies, error, idempotency.locks());
                    refused.await;
                }
                return Err(error);
            }
        };
        // Acquiring may have been a wait.
        let (has_time, is_stopped) = (self.has_time(), self.is_stopped());
        if is_stopped || !has_time {
            idempotency.release(run.lock()).await;
            return Ok(if is_stopped { Outcome::NotStarted } else { not_started::<C>(name) });
        }
        let work = async {
            poll_fn(|context| inner.poll_ready(context)).await?;
            inner.call(H::with(item, &run)).await
        };
        idempotency.execute(&run, work).await.map(|_| Outcome::Done)
    }
}

/// Logs that an item did not start.
fn not_started<C: Source>(name: &Name) -> Outcome {
    let (message_id, sequence_number) = (name.message_id(), name.sequence_number());
    tracing::warn!(message_id, sequence_number, "{}: no time left", C::NOT_DONE);
    Outcome::NotStarted
}

impl<C: Source, H, T, E> Batch<C, H, T, E> {
    fn has_time(&self) -> bool {
        self.time.is_none_or(|time| time.lease_end.remaining(self.now()) >= time.min_remaining)
    }

    fn now(&self) -> Moment {
        self.settings.idempotency.locks().0.clock.now()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Starts no more items if the consumer stops at the first failure.
    fn stop_if_asked(&self) {
        self.is_stopped.fetch_or(self.settings.stop_at_first_failure, Ordering::Relaxed);
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
}
