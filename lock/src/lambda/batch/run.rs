//! One batch: run each of its items once, within the time of the invocation.

use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
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
use super::slots::{Slot, Slots};
use super::source::{Fate, Label, NotDone, Source};
use crate::clock::{Moment, since_epoch};
use crate::error::{Error, ErrorKind};
use crate::idempotency::{HandlerError, Identity, Invocation, NextStep, Run};
use crate::limits::{MIN_LEASE, time_to_ask};
use crate::lock::Lock;
use crate::metrics;

/// How many items a line of the log names at most.
const NAMES: usize = 100;

/// Why an item is not done that its lease was too short for.
const CANCELLED: &str = "unfinished when its lease was about to end, and cancelled";
/// Why an item is not done that the answer did not wait for.
pub(super) const CUT_OFF: &str = "unfinished when the answer was due";

/// How a batch ended.
pub(super) struct Ended {
    /// The outcome at each position of the batch.
    pub(super) outcomes: Vec<ItemOutcome>,
    /// Why the first item failed that did.
    pub(super) first_failure: Option<Diagnostic>,
}

impl<S, H, T, E> Consumer<S, H, T, E>
where
    S: Source + Send + Sync + 'static,
    S::Item: Send + 'static,
    H: HandlerInput<Run, Input = S::Item> + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    /// Runs each item of a batch once, and counts their outcomes.
    pub(super) async fn run<Inner>(self, batch: Vec<S::Raw>, context: &Context, inner: Inner) -> Ended
    where
        Inner: Service<H, Response = T, Error = E> + Clone + Send + 'static,
        Inner::Future: Send,
    {
        let mut invocation = invocation_of(context, self.idempotency.locks());
        let time = self.limit(&mut invocation);
        let lanes = self.lanes(batch, &invocation);
        let batch = Arc::new(Batch {
            consumer: self,
            invocation,
            time,
            items: Mutex::new(items(&lanes)),
            first_failure: Mutex::new(None),
            is_stopped: AtomicBool::new(false),
        });
        for Entry { copies, item } in lanes.iter().flat_map(|lane| &lane.entries) {
            if let Err(why) = item {
                batch.note_failure(copies[0].position, None, why);
            }
        }
        Arc::clone(&batch).run_all(lanes, inner).await;
        let items = std::mem::take(&mut *batch.items());
        // The answer did not wait for the lanes of the items without an outcome.
        let unended = |item: &Item| if item.is_started { ItemOutcome::TimedOut } else { ItemOutcome::NoTime };
        let outcomes: Vec<_> = items.iter().map(|item| item.outcome.unwrap_or_else(|| unended(item))).collect();
        log_the_rest::<S>(&items, &outcomes);
        for outcome in &outcomes {
            metrics::count_by(metrics::BATCH_ITEMS, metrics::OUTCOME, outcome.name());
        }
        let first_failure = batch.first_failure().take().map(|(_, failure)| failure);
        Ended { outcomes, first_failure }
    }
}

struct Batch<S: Source, H, T, E> {
    consumer: Consumer<S, H, T, E>,
    invocation: Invocation,
    time: Option<BatchTime>,
    /// The items, by their positions.
    items: Mutex<Vec<Item>>,
    /// Why the first item failed that did, and its position.
    first_failure: Mutex<Option<(usize, Diagnostic)>>,
    /// Whether no more items start, because one failed.
    is_stopped: AtomicBool,
}

/// What is known about an item.
struct Item {
    label: Arc<Label>,
    /// Set by its lane.
    outcome: Option<ItemOutcome>,
    is_started: bool,
    /// Whether the log has a line about this item alone.
    is_logged: bool,
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
        let slots = Slots::new(self.consumer.concurrency);
        // Reading the batch has taken some of the time.
        let to_answer = self.time.map_or(Duration::MAX, |time| time.answer.remaining(self.now()));
        let this = Arc::clone(&self);
        let next = move |lane| {
            let slots = slots.clone();
            async move { (lane, slots.take().await) }
        };
        let runs = stream::iter(lanes).then(next).map(move |(lane, slot)| {
            // Cloned outside of the future, because a handler need not be `Sync`.
            let inner = catch_unwind(AssertUnwindSafe(|| inner.clone()));
            let (running, batch) = (Arc::clone(&this), Arc::clone(&this));
            let positions: Vec<_> =
                lane.entries.iter().flat_map(|entry| &entry.copies).map(|copy| copy.position).collect();
            // All code of the user may panic, even the drop of a body. A panic ends this lane only.
            let run = AssertUnwindSafe(async move {
                running.run_lane(lane, inner?, slot).await;
                Ok(())
            });
            let run = run.catch_unwind().map(move |ended| {
                if ended.flatten().is_err() {
                    batch.stop_if_asked();
                    batch.note_panic();
                }
                batch.end(&positions);
            });
            run.boxed()
        });
        // The slots limit how many lanes run.
        let runs = runs.boxed().buffer_unordered(usize::MAX).collect::<()>();
        // The answer reports what is done, even if DynamoDB does not answer. The block drops `runs` inside of
        // `catch_unwind`.
        let in_time = AssertUnwindSafe(async { timeout(to_answer, runs).await.is_ok() });
        if in_time.catch_unwind().await.is_err() {
            self.note_panic();
        }
    }

    /// Code of the user has panicked outside of a handler.
    fn note_panic(&self) {
        tracing::error!("panic outside of the handler: {}", S::UNFINISHED);
        self.note_failure(usize::MAX, None, "panic outside of the handler");
    }

    async fn run_lane<Inner>(&self, lane: Lane<S>, inner: Inner, slot: Arc<Slot>)
    where
        Inner: Service<H, Response = T, Error = E> + Clone,
    {
        // Behind an item without time, an ordered lane has none either.
        let mut has_time = true;
        for Entry { copies, item } in lane.entries {
            // An item that waited in vain has left the lane without a slot.
            slot.run().await;
            if self.is_stopped() {
                break;
            }
            has_time = self.has_time() && (has_time || !lane.is_ordered);
            let outcome = match item {
                Ok((item, identity)) if has_time => {
                    self.start(&copies);
                    // Cloned here, because a handler need not be `Sync`.
                    let inner = catch_unwind(AssertUnwindSafe(|| inner.clone()));
                    self.run_item(item, &copies, identity, inner, &slot).await
                }
                Ok(_) => ItemOutcome::NoTime,
                Err(_) => ItemOutcome::Unreadable,
            };
            self.set(&copies, outcome);
            if outcome.is_done() {
                // Copies of a dead letter, too: one letter is enough.
                self.set(&copies[1..], ItemOutcome::Duplicate);
            }
            // After its last receive, SQS moves a message to the dead letters when it is visible again.
            if outcome.is_failed() {
                let again = copies.iter().filter(|copy| copy.label.is_last != Some(true));
                inform_all(again, || Fate::Failed).await;
            }
            if outcome == ItemOutcome::NoTime {
                has_time = false;
            } else if !outcome.is_done() {
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
        inner: std::thread::Result<Inner>,
        slot: &Arc<Slot>,
    ) -> ItemOutcome
    where
        Inner: Service<H, Response = T, Error = E>,
    {
        let first = &copies[0];
        let run = AssertUnwindSafe(async {
            let ended = OnceLock::new();
            let inner = inner.unwrap_or_else(|panic| resume_unwind(panic));
            let error = match self.run_once(item, copies, identity, &ended, inner, slot).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let outcome = match (&error, ended.into_inner()) {
                (HandlerError::Lock(error), _) if error.is_held() => ItemOutcome::UsedUp,
                (HandlerError::Lock(error), _) if is_for_later(error) => ItemOutcome::InProgress,
                (HandlerError::Lock(error), Some(ItemOutcome::TimedOut)) if error.is_lost() => {
                    return Err((ItemOutcome::TimedOut, failure(Some("TimedOut"), CANCELLED)));
                }
                (HandlerError::Lock(error), _) if error.is_lost() => ItemOutcome::TimedOut,
                (HandlerError::Handler(_), Some(outcome)) => outcome,
                _ => ItemOutcome::Failed,
            };
            // Converted here, because the conversion is the user's code and may panic.
            Err((outcome, error.into()))
        });
        let (outcome, Diagnostic { error_type, error_message: error }) = match run.catch_unwind().await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(failed)) => failed,
            Err(_) => {
                let error_message = "the handler panicked".to_owned();
                (ItemOutcome::Failed, Diagnostic { error_type: String::new(), error_message })
            }
        };
        // By default `lambda_runtime` names the Rust type of a reference, such as
        // `&alloc::boxed::Box<dyn core::error::Error + …>`, which says nothing about the error.
        let named = Some(&*error_type).filter(|name| !name.starts_with('&') && !name.is_empty());
        let why = match outcome {
            ItemOutcome::InProgress | ItemOutcome::UsedUp => NotDone::InProgress { error: &error },
            ItemOutcome::DeadLettered => NotDone::Dead { error_type: named, error: &error },
            _ => NotDone::Failed { error_type: named, error: &error },
        };
        S::log(&first.label, &why);
        self.items()[first.position].is_logged = true;
        if outcome.is_failed() {
            self.note_failure(first.position, named, &error);
        }
        outcome
    }

    /// Runs an item, unless another run has done it or is about to. `ended` is set if the error of the run was for good, or
    /// if the run was cancelled.
    async fn run_once<Inner>(
        &self,
        item: S::Item,
        copies: &[Delivered],
        identity: Option<Identity>,
        ended: &OnceLock<ItemOutcome>,
        mut inner: Inner,
        slot: &Arc<Slot>,
    ) -> Result<ItemOutcome, HandlerError<E>>
    where
        Inner: Service<H, Response = T, Error = E>,
    {
        let idempotency = &self.consumer.idempotency;
        let around_pause = Arc::clone(slot);
        let next = idempotency.begin_unlogged(identity, &self.invocation, Some(around_pause)).await;
        slot.end_wait();
        let run = match next {
            Ok(NextStep::Replay { key, record: row }) => {
                return match idempotency.replay(&row, &key) {
                    Err(error @ HandlerError::Replayed(_)) => Err(error),
                    // Done, even if the stored result cannot be read as today's result type.
                    _ => Ok(ItemOutcome::Duplicate),
                };
            }
            Ok(NextStep::Run(run)) => run,
            Err(error) => {
                if let Some(left) = self.comes_after(&error) {
                    inform_all(copies, || Fate::InProgress(left)).await;
                }
                return Err(error);
            }
        };
        let lock = run.lock();
        if let Some(rate) = &self.consumer.rate {
            let needed = self.time.map_or(MIN_LEASE, |time| time.min_remaining);
            if let Err(error) = rate.pass_within(lock.remaining().saturating_sub(needed)).await {
                lock.not_run();
                idempotency.release(lock).await;
                let error = HandlerError::Lock(error);
                if let Some(left) = self.comes_after(&error) {
                    inform_all(copies, || Fate::InProgress(left)).await;
                }
                return Err(error);
            }
        }
        // Acquiring may have been a wait, and so may have been the rate.
        let (has_time, is_stopped) = (self.has_time(), self.is_stopped());
        if is_stopped || !has_time {
            lock.not_run();
            idempotency.release(lock).await;
            return Ok(if is_stopped { ItemOutcome::NotStarted } else { ItemOutcome::NoTime });
        }
        // Time to release the record within the lease.
        let reserve = lock.remaining().saturating_sub(time_to_ask(lock.remaining()));
        // Boxed: otherwise each of the futures around it reserves space for it.
        let work = Box::pin(async {
            poll_fn(|context| inner.poll_ready(context)).await?;
            let result = inner.call(H::with(item, &run)).await;
            let why_dead =
                result.as_ref().err().zip(self.consumer.why_dead.as_ref()).and_then(|(error, why)| why(error));
            // What was committed is done, whatever the handler says. The letter is sent within the lease, so that no other
            // run begins meanwhile, and this one keeps its own error.
            let within = time_to_ask(lock.remaining().saturating_sub(reserve));
            if let (Some(reason), Some(inform)) = (why_dead, &copies[0].inform)
                && !run.has_transaction()
                && inform(Fate::Dead { reason, within }).await
            {
                let _first = ended.set(ItemOutcome::DeadLettered);
            }
            result
        });
        let work = async {
            tokio::select! {
                biased;
                result = work => Some(result),
                () = nearly_over(lock, reserve) => {
                    let _first = ended.set(ItemOutcome::TimedOut);
                    None
                }
            }
        };
        idempotency.execute_unless_cancelled(&run, work).await.map(|_| ItemOutcome::Done)
    }
}

/// Describes a failure as Lambda reports it.
pub(super) fn failure(error_type: Option<&str>, error: impl Into<String>) -> Diagnostic {
    Diagnostic { error_type: error_type.unwrap_or("BatchFailed").to_owned(), error_message: error.into() }
}

/// Whether the item is done later without a failure: it is in progress elsewhere, or its rate is used up.
fn is_for_later(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InProgress | ErrorKind::Held)
}

/// Waits until no more than `reserve` is left of a lease, which the handler may renew. A lock that is not enforced, or that
/// the handler itself released, ends with the batch.
async fn nearly_over(lock: &Lock, reserve: Duration) {
    if lock.is_enforced() {
        lock.overrun(reserve).await;
    } else {
        pending::<()>().await;
    }
}

/// Returns the items of a batch, by their positions, before any has started.
fn items<S: Source>(lanes: &[Lane<S>]) -> Vec<Item> {
    let entries = lanes.iter().flat_map(|lane| &lane.entries);
    let items = entries.flat_map(|Entry { copies, item }| {
        let is_logged = item.is_err();
        copies.iter().map(move |Delivered { position, label, .. }| {
            (*position, Item { label: Arc::clone(label), outcome: None, is_started: false, is_logged })
        })
    });
    let mut items: Vec<_> = items.collect();
    items.sort_unstable_by_key(|(position, _)| *position);
    items.into_iter().map(|(_, item)| item).collect()
}

/// Logs about the items that are not done without a line of their own: a batch has thousands. One line has the number of
/// those for which there was no time. Each one that is a dead letter now is named.
fn log_the_rest<S: Source>(items: &[Item], outcomes: &[ItemOutcome]) {
    let rest = items.iter().zip(outcomes).filter(|(item, outcome)| !outcome.is_done() && !item.is_logged);
    let (mut cut_off, mut letters) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for (item, outcome) in rest {
        let label = &*item.label;
        if outcome.is_cut_off() {
            cut_off.push(label);
        }
        if label.is_last == Some(true) {
            let reason = match outcome {
                ItemOutcome::NotStarted | ItemOutcome::NoTime => "not started",
                ItemOutcome::TimedOut => "not finished",
                _ => "a copy of a message that is not done",
            };
            letters.entry(reason).or_default().push(label);
        }
    }
    if !cut_off.is_empty() {
        S::log_several(&cut_off[..cut_off.len().min(NAMES)], cut_off.len(), None, "no time left");
    }
    for (reason, letters) in letters {
        for named in letters.chunks(NAMES) {
            S::log_several(named, named.len(), Some(true), reason);
        }
    }
}

/// Tells the source about the fate of these items.
async fn inform_all(copies: impl IntoIterator<Item = &Delivered>, fate: impl Fn() -> Fate) {
    join_all(copies.into_iter().filter_map(|copy| copy.inform.as_ref()).map(|inform| inform(fate()))).await;
}

impl<S: Source, H, T, E> Batch<S, H, T, E> {
    /// Returns after which time the item of this refusal can be done: that of the lease under which it is in progress elsewhere,
    /// or of its rate.
    fn comes_after(&self, refusal: &HandlerError<E>) -> Option<Duration> {
        let HandlerError::Lock(error) = refusal else { return None };
        let holder = error.holder().filter(|_| is_for_later(error))?;
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

    fn items(&self) -> MutexGuard<'_, Vec<Item>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first_failure(&self) -> MutexGuard<'_, Option<(usize, Diagnostic)>> {
        self.first_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps why an item failed, if it is the first one in the batch.
    fn note_failure(&self, position: usize, error_type: Option<&str>, error: &str) {
        let mut first = self.first_failure();
        if first.as_ref().is_none_or(|(before, _)| position < *before) {
            *first = Some((position, failure(error_type, error)));
        }
    }

    fn set(&self, copies: &[Delivered], outcome: ItemOutcome) {
        let mut items = self.items();
        for copy in copies {
            items[copy.position].outcome = Some(outcome);
        }
    }

    fn start(&self, copies: &[Delivered]) {
        let mut items = self.items();
        for copy in copies {
            items[copy.position].is_started = true;
        }
    }

    /// A lane has ended: its items without an outcome are behind one that is not done, or behind a panic.
    fn end(&self, positions: &[usize]) {
        let mut items = self.items();
        for position in positions {
            let item = &mut items[*position];
            let outcome = if item.is_started { ItemOutcome::Failed } else { ItemOutcome::NotStarted };
            item.outcome.get_or_insert(outcome);
        }
    }
}
