//! One batch: run each of its items once, within the time of the invocation.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt, stream};
use lambda_runtime::{Context, Diagnostic};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tower_service::Service;

use super::super::handler_input::HandlerInput;
use super::super::invocation::invocation_of;
use super::consumer::{BatchTime, Consumer};
use super::lane::{Delivered, Entry, Lane};
use super::outcome::ItemOutcome;
use super::source::{Fate, Label, NotDone, Source};
use crate::clock::{Moment, since_epoch};
use crate::error::ErrorKind;
use crate::idempotency::{HandlerError, Identity, Invocation, NextStep, Run};
use crate::limits::time_to_ask;
use crate::metrics;

impl<S, H, T, E> Consumer<S, H, T, E>
where
    S: Source + Send + Sync + 'static,
    S::Item: Send + 'static,
    H: HandlerInput<Run, Input = S::Item> + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    /// Runs each item of a batch once, and returns and counts their outcomes, by position.
    pub(super) async fn run<Inner>(self, batch: Vec<S::Raw>, context: &Context, inner: Inner) -> Vec<ItemOutcome>
    where
        Inner: Service<H, Response = T, Error = E> + Clone + Send + 'static,
        Inner::Future: Send,
    {
        let mut invocation = invocation_of(context, self.idempotency.locks());
        let time = self.limit(&mut invocation);
        let outcomes = Mutex::new(vec![ItemOutcome::NotStarted; batch.len()]);
        let lanes = self.lanes(batch, &invocation);
        let last_deliveries = Mutex::new(last_deliveries(&lanes));
        let is_stopped = AtomicBool::new(false);
        let batch = Arc::new(Batch { consumer: self, invocation, time, outcomes, last_deliveries, is_stopped });
        Arc::clone(&batch).run_all(lanes, inner).await;
        let outcomes = batch.outcomes().clone();
        for (&position, label) in &*batch.last_deliveries() {
            let has_started = outcomes[position] == ItemOutcome::TimedOut;
            S::log(label, &NotDone::Last(if has_started { "not finished" } else { NOT_STARTED }));
        }
        for outcome in &outcomes {
            metrics::count_by(metrics::BATCH_ITEMS, metrics::OUTCOME, outcome.name());
        }
        outcomes
    }
}

const NOT_STARTED: &str = "not started";

struct Batch<S: Source, H, T, E> {
    consumer: Consumer<S, H, T, E>,
    invocation: Invocation,
    time: Option<BatchTime>,
    /// The outcome at each position of the batch.
    outcomes: Mutex<Vec<ItemOutcome>>,
    /// What is a dead letter if it is not done now, by its position, as long as nothing is logged about it.
    last_deliveries: Mutex<BTreeMap<usize, Label>>,
    /// Whether no more items start, because one failed.
    is_stopped: AtomicBool,
}

impl<S, H, T, E> Batch<S, H, T, E>
where
    S: Source + Send + Sync + 'static,
    S::Item: Send + 'static,
    H: HandlerInput<Run, Input = S::Item> + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    /// Runs the lanes, several at a time, until all are done or the answer is due.
    async fn run_all<Inner>(self: Arc<Self>, lanes: Vec<Lane<S>>, inner: Inner)
    where
        Inner: Service<H, Response = T, Error = E> + Clone + Send + 'static,
        Inner::Future: Send,
    {
        let concurrency = self.consumer.concurrency;
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
                    tracing::error!("panic outside of the handler: {}", S::UNFINISHED);
                }
            })
        });
        let runs = runs.boxed().buffer_unordered(concurrency).collect::<()>();
        // The answer reports what is done, even if DynamoDB does not answer. The block drops `runs` inside of
        // `catch_unwind`.
        let in_time = AssertUnwindSafe(async { timeout(to_answer, runs).await.is_ok() });
        match in_time.catch_unwind().await {
            Ok(true) => {}
            Ok(false) => tracing::warn!("no time left: {}", S::UNFINISHED),
            Err(_) => tracing::error!("panic outside of the handler: {}", S::UNFINISHED),
        }
    }

    async fn run_lane<Inner>(&self, lane: Lane<S>, inner: Inner)
    where
        Inner: Service<H, Response = T, Error = E> + Clone,
    {
        for Entry { copies, item } in lane.entries {
            if self.is_stopped() {
                break;
            }
            let first = &copies[0];
            let outcome = match item {
                Some((item, identity)) if self.has_time() => {
                    self.set(&copies, ItemOutcome::TimedOut);
                    self.run_item(item, &copies, identity, inner.clone()).await
                }
                Some(_) => not_started::<S>(&first.label),
                None => ItemOutcome::Unreadable,
            };
            self.set(&copies, outcome);
            for copy in &copies {
                self.last_deliveries().remove(&copy.position);
            }
            if !outcome.is_done() {
                copies[1..].iter().for_each(|copy| log_if_last::<S>(copy, "a copy of a message that is not done"));
            }
            if outcome.is_done() {
                // Copies of a dead letter, too: one letter is enough.
                self.set(&copies[1..], ItemOutcome::Duplicate);
            }
            // After its last receive, SQS moves a message to the dead letters when it is visible again.
            if outcome.is_failed() {
                let again = copies.iter().filter(|copy| copy.label.is_last != Some(true));
                inform_all(again, || Fate::Failed).await;
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
    async fn run_item<Inner>(
        &self,
        item: S::Item,
        copies: &[Delivered],
        identity: Option<Identity>,
        inner: Inner,
    ) -> ItemOutcome
    where
        Inner: Service<H, Response = T, Error = E>,
    {
        let label = &copies[0].label;
        let run = AssertUnwindSafe(async {
            let is_dead = AtomicBool::new(false);
            let error = match self.run_once(item, copies, identity, &is_dead, inner).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let outcome = match &error {
                HandlerError::Lock(error) if error.kind() == ErrorKind::InProgress => ItemOutcome::InProgress,
                HandlerError::Lock(error) if error.is_lost() => ItemOutcome::TimedOut,
                HandlerError::Handler(_) if is_dead.into_inner() => ItemOutcome::DeadLettered,
                _ => ItemOutcome::Failed,
            };
            // Converted here, because the conversion is the user's code and may panic.
            Err((outcome, error.into()))
        });
        match run.catch_unwind().await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err((outcome, Diagnostic { error_type, error_message: error }))) => {
                // By default `lambda_runtime` names the Rust type of a reference, such as
                // `&alloc::boxed::Box<dyn core::error::Error + …>`, which says nothing about the error.
                let error_type = Some(&*error_type).filter(|name| !name.starts_with('&'));
                S::log(
                    label,
                    &match outcome {
                        ItemOutcome::InProgress => NotDone::InProgress { error: &error },
                        ItemOutcome::DeadLettered => NotDone::Dead { error_type, error: &error },
                        _ => NotDone::Failed { error_type, error: &error },
                    },
                );
                outcome
            }
            Err(_) => {
                S::log(label, &NotDone::Failed { error_type: None, error: "the handler panicked" });
                ItemOutcome::Failed
            }
        }
    }

    async fn run_once<Inner>(
        &self,
        item: S::Item,
        copies: &[Delivered],
        identity: Option<Identity>,
        is_dead: &AtomicBool,
        mut inner: Inner,
    ) -> Result<ItemOutcome, HandlerError<E>>
    where
        Inner: Service<H, Response = T, Error = E>,
    {
        let idempotency = &self.consumer.idempotency;
        let run = match idempotency.begin_unlogged(identity, &self.invocation).await {
            Ok(NextStep::Replay { key, record: row }) => {
                return match idempotency.replay(&row, &key) {
                    Err(error @ HandlerError::Replayed(_)) => Err(error),
                    // Done, even if the stored result cannot be read as today's result type.
                    _ => Ok(ItemOutcome::Duplicate),
                };
            }
            Ok(NextStep::Run(run)) => run,
            Err(error) => {
                if let Some(left) = self.in_progress_for(&error) {
                    inform_all(copies, || Fate::InProgress(left)).await;
                }
                return Err(error);
            }
        };
        // Acquiring may have been a wait.
        let (has_time, is_stopped) = (self.has_time(), self.is_stopped());
        if is_stopped || !has_time {
            idempotency.release(run.lock()).await;
            if !is_stopped {
                return Ok(not_started::<S>(&copies[0].label));
            }
            log_if_last::<S>(&copies[0], NOT_STARTED);
            return Ok(ItemOutcome::NotStarted);
        }
        let work = async {
            poll_fn(|context| inner.poll_ready(context)).await?;
            let result = inner.call(H::with(item, &run)).await;
            let why_dead =
                result.as_ref().err().zip(self.consumer.why_dead.as_ref()).and_then(|(error, why)| why(error));
            // What was committed is done, whatever the handler says. The letter is sent within the lease, so that no other
            // run begins meanwhile, and this one keeps its own error.
            if let (Some(reason), Some(inform)) = (why_dead, &copies[0].inform)
                && !run.has_transaction()
                && inform(Fate::Dead { reason, within: time_to_ask(run.lock().remaining()) }).await
            {
                is_dead.store(true, Ordering::Relaxed);
            }
            result
        };
        idempotency.execute(&run, work).await.map(|_| ItemOutcome::Done)
    }
}

/// Logs that an item did not start.
fn not_started<S: Source>(label: &Label) -> ItemOutcome {
    S::log(label, &NotDone::NotStarted);
    ItemOutcome::NotStarted
}

/// Logs why an item is not done, if it is a dead letter now.
fn log_if_last<S: Source>(Delivered { label, .. }: &Delivered, why: &'static str) {
    if label.is_last == Some(true) {
        S::log(label, &NotDone::Last(why));
    }
}

/// What is a dead letter if it is not done now. Why an item cannot be read has been logged, but not for its copies.
fn last_deliveries<S: Source>(lanes: &[Lane<S>]) -> BTreeMap<usize, Label> {
    let entries = lanes.iter().flat_map(|lane| &lane.entries);
    let copies = entries.flat_map(|entry| entry.copies.iter().skip(usize::from(entry.item.is_none())));
    let last = copies.filter(|copy| copy.label.is_last == Some(true));
    last.map(|copy| (copy.position, copy.label.clone())).collect()
}

/// Tells the source about the fate of these items.
async fn inform_all(copies: impl IntoIterator<Item = &Delivered>, fate: impl Fn() -> Fate) {
    join_all(copies.into_iter().filter_map(|copy| copy.inform.as_ref()).map(|inform| inform(fate()))).await;
}

impl<S: Source, H, T, E> Batch<S, H, T, E> {
    /// Returns how long the lease lasts under which the item of this refusal is in progress elsewhere.
    fn in_progress_for(&self, refusal: &HandlerError<E>) -> Option<Duration> {
        let HandlerError::Lock(error) = refusal else { return None };
        let holder = error.holder().filter(|_| error.kind() == ErrorKind::InProgress)?;
        Some(since_epoch(holder.until()).saturating_sub(self.now().wall))
    }

    fn has_time(&self) -> bool {
        self.time.is_none_or(|time| time.lease_end.remaining(self.now()) >= time.min_remaining)
    }

    fn now(&self) -> Moment {
        self.consumer.idempotency.locks().0.clock.now()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Starts no more items if the consumer stops at the first failure.
    fn stop_if_asked(&self) {
        self.is_stopped.fetch_or(self.consumer.stop_at_first_failure, Ordering::Relaxed);
    }

    fn outcomes(&self) -> MutexGuard<'_, Vec<ItemOutcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_deliveries(&self) -> MutexGuard<'_, BTreeMap<usize, Label>> {
        self.last_deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, copies: &[Delivered], outcome: ItemOutcome) {
        let mut outcomes = self.outcomes();
        for copy in copies {
            outcomes[copy.position] = outcome;
        }
    }
}
