//! One execution: acquire the record, run the work, store or replay its result.

use std::panic::resume_unwind;
use std::sync::Arc;

use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::HandlerError;
use super::policy::{OnError, OnUnfinished, OnUnstorableResult};
use super::run::Run;
use super::settings::{Idempotency, Identity, Invocation, RecordSettings};
use crate::clock::{millis, since_epoch};
use crate::error::{Cause, ErrorKind};
use crate::holder::{Data, Holder, HolderKind};
use crate::limits::{MAX_DATA_BYTES, check_data};
use crate::lock::asking::Ended;
use crate::lock::{self, Acquire, AroundPause, Lock, in_time_to_answer, until_overrun};
use crate::metrics;
use crate::random;
use crate::row::{self, Completed, Outcome, RecordClaim};

/// A stored result that serde cannot read as today's type. Without serde's message, which would show the value in a log.
const OTHER_TYPE: &str = "the stored result is not of the handler's result type, which has probably changed since the first \
                          run: let the type read what was stored (`#[serde(default)]` for a new field), or set another \
                          Idempotency::prefix, which forgets all results, so that their duplicates run again";
const OTHER_ERROR: &str = "the stored error cannot be read: another version of this crate or another program wrote it; set \
                           another Idempotency::prefix, which forgets all results, so that their duplicates run again";

/// What to do with an input: replay or run.
pub(crate) enum NextStep {
    /// The work was done before.
    Replay { key: String, record: Box<Holder> },
    /// The work runs under this run's lock.
    Run(Run),
}

/// What happens to the record after the work.
enum RecordUpdate {
    Store(Outcome),
    /// Nothing: the caller's transaction has completed the record.
    Completed,
    Release,
    /// Nothing: the record stays in progress until its lease ends.
    Keep,
    /// Nothing, as with `Keep`, because the result cannot be stored.
    Unstorable(String),
}

impl<I, T, E> Idempotency<I, T, E>
where
    T: Serialize + DeserializeOwned,
{
    /// Runs `body`, or returns the result of the first run with this input's key.
    ///
    /// When the lease ends, the body is cancelled at its next await point, and the call fails with an error that
    /// [`is_lost`](crate::Error::is_lost). The [type](Self) describes the other outcomes. The requests and
    /// the IAM action are those of [the type](Self#cost).
    ///
    /// If the future is dropped, so is the body, perhaps with half of its work done. The record is released in the
    /// background, or is unfinished with [`OnUnfinished::Reject`]. If the result was being stored, it may be lost, and
    /// the work runs again after the lease. In a server whose clients disconnect, or under a timeout, await the future
    /// on a task of its own (`tokio::spawn`).
    pub async fn run(&self, input: &I, body: impl AsyncFnOnce(&Run) -> Result<T, E>) -> Result<T, HandlerError<E>> {
        let invocation = Invocation {
            function: self.settings.locks.0.function.clone(),
            deadline: self.settings.deadline,
            ..Invocation::default()
        };
        let identity = self.identify(input, None, &invocation).map_err(HandlerError::Lock)?;
        match self.begin(identity, &invocation).await? {
            NextStep::Replay { key, record } => self.replay(&record, &key),
            // Boxed: otherwise each of the futures around it reserves space for it.
            NextStep::Run(run) => self.execute(&run, Box::pin(body(&run))).await,
        }
    }

    /// Acquires the record, or returns a completed one.
    pub(crate) async fn begin(
        &self,
        identity: Option<Identity>,
        invocation: &Invocation,
    ) -> Result<NextStep, HandlerError<E>> {
        let next = self.begin_unlogged(identity, invocation, None).await;
        if let Err(HandlerError::Lock(error)) = &next
            && error.kind() == ErrorKind::InProgress
        {
            lock::log_refusal(error);
        }
        next
    }

    /// Like [`begin`](Self::begin), for a caller that logs work in progress itself. `around_pause` is called around each
    /// pause of a wait for another run.
    pub(crate) async fn begin_unlogged(
        &self,
        identity: Option<Identity>,
        invocation: &Invocation,
        around_pause: Option<Arc<dyn AroundPause>>,
    ) -> Result<NextStep, HandlerError<E>> {
        let settings = &*self.settings;
        let Some(Identity { key, validation }) = identity else {
            tracing::debug!("running without protection");
            // A unique key, for a handler that completes in its own transaction.
            let prefix = settings.prefix.as_ref().unwrap_or(&invocation.function);
            let unique = format!("{prefix}#{}", random::nonce().unwrap_or_default());
            let lock = settings.acquire(row::Target::Key(unique), invocation).unlocked().map_err(HandlerError::Lock)?;
            return Ok(NextStep::Run(self.new_run(lock, None)));
        };
        let reject_unfinished = (settings.on_unfinished == OnUnfinished::Reject).then_some(settings.window());
        let claim = RecordClaim { validation: validation.clone(), reject_unfinished };
        if let Some(record) = settings.cached(&key) {
            return match claim.refusal(record) {
                Ok(record) => Ok(NextStep::replay(key, record)),
                Err(refusal) => {
                    let error = settings.error(*refusal, &key);
                    lock::record_refusal(&error);
                    Err(HandlerError::Lock(error))
                }
            };
        }
        let acquire = settings.acquire(row::Target::Record(key.clone(), claim), invocation).around_pause(around_pause);
        match acquire.begin().await {
            Ok(Ended::Acquired(lock)) => {
                let name = invocation.holder.as_ref().unwrap_or(&settings.locks.0.holder);
                let cache_entry = settings.cache.is_some().then(|| Holder {
                    owner: Some(lock.owner().to_owned()),
                    name: Some(name.clone()),
                    since: Some(millis(since_epoch(lock.acquired_at()))),
                    completed: true,
                    validation,
                    ..Holder::unknown(HolderKind::Key, 0)
                });
                Ok(NextStep::Run(self.new_run(lock, cache_entry)))
            }
            Ok(Ended::Completed(record)) => {
                settings.remember(&key, &record);
                Ok(NextStep::replay(key, *record))
            }
            Ok(Ended::Waiting(_)) => unreachable!("an idempotent run waits here"),
            Err(error) => Err(HandlerError::Lock(error)),
        }
    }

    fn new_run(&self, lock: Lock, cache_entry: Option<Holder>) -> Run {
        Run {
            lock: Arc::new(lock),
            window: self.settings.window(),
            format: self.settings.format,
            in_transaction: Arc::default(),
            cache_entry: cache_entry.map(Arc::new),
        }
    }

    /// Returns the result or the error of a completed record.
    pub(crate) fn replay(&self, record: &Holder, key: &str) -> Result<T, HandlerError<E>> {
        let (key_shown, fence) = (self.settings.locks.0.table.place().printable_key(key), record.fence);
        tracing::info!(key = key_shown, fence, "replaying the first run's result");
        let settings = &*self.settings;
        let unusable = |why: &str| HandlerError::Lock(settings.error(Cause::UnusableResult(why.to_owned()), key));
        if let Some(error) = &record.error {
            let stored = error.as_str().and_then(|text| serde_json::from_str(text).ok());
            return Err(stored.map_or_else(|| unusable(OTHER_ERROR), HandlerError::Replayed));
        }
        let data = record.data.as_ref().map(|Data(data)| data);
        let value = settings.format.load(data).map_err(|why| unusable(&why))?;
        let mut result = serde_json::from_value(value).map_err(|_| match data {
            Some(_) => unusable(OTHER_TYPE),
            None => unusable(
                "the first run was completed without its result, which could not be stored: return less, or a reference",
            ),
        })?;
        if let Some(hook) = &settings.on_replay {
            hook(&mut result, record);
        }
        Ok(result)
    }

    /// Runs the work under the record's lock, then updates the record.
    pub(crate) fn execute(
        &self,
        run: &Run,
        work: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<T, HandlerError<E>>> {
        // Not `async`, which would reserve space for the work twice.
        self.execute_unless_cancelled(run, work.map(Some))
    }

    /// The same for work that its caller may cancel, which then returns `None`. The run is unfinished then, and the error is
    /// that of a lease that has ended.
    pub(crate) async fn execute_unless_cancelled(
        &self,
        run: &Run,
        work: impl Future<Output = Option<Result<T, E>>>,
    ) -> Result<T, HandlerError<E>> {
        let (settings, lock) = (&*self.settings, &*run.lock);
        let lost = || HandlerError::Lock(lock.error(Cause::Lost(None)));
        if !lock.is_enforced() {
            return work.await.ok_or_else(lost)?.map_err(HandlerError::Handler);
        }
        let unfinished = AbandonOnDrop(Some(lock).filter(|_| settings.on_unfinished == OnUnfinished::Reject));
        // All code of the user runs here, including the serialization of the result. If it panics, the run is
        // unfinished.
        let (mut result, mut update) = (None, None);
        let done = until_overrun(lock, async {
            let Some(returned) = work.await else { return };
            update = Some(self.record_update(run, &returned));
            result = Some(returned);
        });
        let done = done.await;
        let (outcome, update) = match (done, update, result) {
            (Ok(in_time), Some(update), Some(result)) => {
                unfinished.disarm();
                // Work that blocked its thread until after the lease is done, even if it has lost its lock: a retry must not
                // do it again. If it failed, its own error explains more than that.
                let outcome = match result {
                    Ok(_) if in_time.is_none() => Ok(Err(lost())),
                    result => Ok(result.map_err(HandlerError::Handler)),
                };
                (outcome, update)
            }
            // The lease ended, or the caller cancelled, with the work half done. The record is released, unless `unfinished` has abandoned it.
            (Ok(_), ..) => {
                drop(unfinished);
                (Ok(Err(lost())), RecordUpdate::Release)
            }
            (Err(panic), ..) => {
                drop(unfinished);
                (Err(panic), RecordUpdate::Release)
            }
        };
        let is_done = matches!(
            update,
            RecordUpdate::Completed | RecordUpdate::Store(Outcome::Result(_) | Outcome::WithoutResult)
        );
        let was_refused = matches!(&outcome, Ok(Err(HandlerError::Handler(error))) if !(settings.is_failure)(error));
        if !is_done && !was_refused {
            // Counted as failed.
            lock.clear_min_hold();
        }
        let found = match update {
            RecordUpdate::Completed => {
                lock.was_completed();
                None
            }
            RecordUpdate::Keep => {
                lock.abandon();
                None
            }
            RecordUpdate::Unstorable(why) => {
                lock.abandon();
                return Err(HandlerError::Lock(settings.error(Cause::UnusableResult(why), lock.key())));
            }
            RecordUpdate::Release => self.release(lock).await,
            RecordUpdate::Store(outcome) => self.store(run, outcome).await,
        };
        match (outcome, found) {
            (Err(panic), _) => resume_unwind(panic),
            // The handler's transaction was committed after all. A retry gets its result, too.
            (Ok(outcome), Some(record)) => match (self.replay(&record, lock.key()), outcome) {
                (Err(_), Ok(result)) => Ok(result),
                (replayed, _) => replayed,
            },
            (Ok(outcome), _) => outcome,
        }
    }

    fn record_update(&self, run: &Run, result: &Result<T, E>) -> RecordUpdate {
        let settings = &*self.settings;
        let error = match result {
            Ok(result) => {
                let stored = run.stored(result);
                if stored.as_ref().is_ok_and(|stored| run.commits(stored)) {
                    return RecordUpdate::Completed;
                }
                return match (stored, settings.on_unstorable_result) {
                    (Ok(stored), _) => RecordUpdate::Store(Outcome::Result(stored)),
                    (Err(why), OnUnstorableResult::Fail) => RecordUpdate::Unstorable(why),
                    (Err(why), OnUnstorableResult::CompleteWithoutResult) => {
                        tracing::warn!(key = run.lock.shown_key(), why, "record completed without its result");
                        RecordUpdate::Store(Outcome::WithoutResult)
                    }
                };
            }
            Err(error) => error,
        };
        match settings.on_error.as_ref().map_or(OnError::Release, |policy| policy(error)) {
            OnError::Release => RecordUpdate::Release,
            OnError::Keep => RecordUpdate::Keep,
            OnError::Store(error) => {
                let error = Data::from(error.to_json());
                if settings.format.stores_errors() && check_data(&error, MAX_DATA_BYTES).is_ok() {
                    return RecordUpdate::Store(Outcome::Error(error));
                }
                tracing::warn!(
                    key = run.lock.shown_key(),
                    "record released: the error is too large, or the format cannot store errors"
                );
                RecordUpdate::Release
            }
        }
    }

    /// Releases the record unless it was abandoned. Returns the record if it is already completed.
    pub(crate) async fn release(&self, lock: &Lock) -> Option<Box<Holder>> {
        match in_time_to_answer(lock, lock.release_unless_completed()).await {
            Ok(completed) => completed,
            // Telemetry has logged the loss.
            Err(error) if error.is_lost() => None,
            Err(error) => {
                tracing::warn!(key = lock.shown_key(), fence = lock.fence(), ?error, "record not released");
                None
            }
        }
    }

    fn has_another_outcome(&self, record: &Holder, outcome: &Outcome) -> bool {
        let load = |data| self.settings.format.load(Some(data)).ok();
        match outcome {
            Outcome::Result(result) => record.data.as_ref().and_then(|Data(data)| load(data)) != load(result),
            Outcome::WithoutResult => record.data.is_some(),
            Outcome::Error(_) => record.error.is_none(),
        }
    }

    /// Completes the record. Returns the record if the handler's transaction completed it before, with another outcome.
    async fn store(&self, run: &Run, outcome: Outcome) -> Option<Box<Holder>> {
        let (settings, lock) = (&*self.settings, &*run.lock);
        let cached = run.cache_entry.as_ref().map(|record| (Holder::clone(record), outcome.clone()));
        let own = run.has_transaction().then(|| outcome.clone());
        match lock.complete(settings.window(), outcome).await {
            Ok(Completed::Now { fence, until }) => {
                if let Some((record, outcome)) = cached {
                    let (data, error) = match outcome {
                        Outcome::Result(data) => (Some(Data(data)), None),
                        Outcome::WithoutResult => (None, None),
                        Outcome::Error(error) => (None, Some(error)),
                    };
                    settings.remember(lock.key(), &Holder { fence: Some(fence), until, data, error, ..record });
                }
                None
            }
            Ok(Completed::Before(record)) => {
                settings.remember(lock.key(), &record);
                // The same outcome is this run's own: the answer to an earlier attempt was lost.
                Some(record).filter(|record| own.is_some_and(|own| self.has_another_outcome(record, &own)))
            }
            // Telemetry has logged this loss. A lock that the work itself released is not known as lost: it is logged
            // below.
            Err(error) if error.is_lost() && lock.is_known_lost() => None,
            Err(error) => {
                tracing::warn!(key = lock.shown_key(), fence = lock.fence(), ?error, "outcome not stored");
                None
            }
        }
    }
}

impl<I, T, E> RecordSettings<I, T, E> {
    fn acquire(&self, kind: row::Target, invocation: &Invocation) -> Acquire {
        let mut acquire = self.locks.acquire_target(kind);
        if let Some(deadline) = invocation.deadline {
            acquire = acquire.deadline(deadline);
        }
        if let Some(holder) = &invocation.holder {
            acquire = acquire.holder(holder);
        }
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        match self.wait {
            Some(backoff) => acquire.wait(backoff),
            None => acquire,
        }
    }

    fn cached(&self, key: &str) -> Option<Holder> {
        self.cache.as_ref()?.get(key, self.locks.0.clock.now().millis())
    }

    fn remember(&self, key: &str, record: &Holder) {
        if let Some(cache) = &self.cache {
            cache.put(key, record.clone());
        }
    }
}

impl NextStep {
    fn replay(key: String, record: Holder) -> Self {
        metrics::count(metrics::REPLAYS);
        Self::Replay { key, record: Box::new(record) }
    }
}

/// Abandons the lock when the work panics or is cancelled, so that the record shows an unfinished run.
struct AbandonOnDrop<'a>(Option<&'a Lock>);

impl AbandonOnDrop<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            // Counted as failed.
            lock.clear_min_hold();
            lock.abandon();
        }
    }
}
