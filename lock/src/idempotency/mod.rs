//! `Idempotency`: work that is done once for each key, and answered with its first result after that.

mod finite;
mod format;
mod policy;
mod refusal;
mod run;

use std::fmt;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use lru::LruCache;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::acquire::{Acquire, in_time_to_answer, while_held};
use crate::backoff::Backoff;
use crate::clock::{millis, since_epoch};
use crate::error::{Error, HandlerError, Kind};
use crate::holder::{Data, Holder};
use crate::lock::Lock;
use crate::locks::{Locks, MAX_RETENTION, check_duration};
use crate::protocol::{Completed, Outcome, RecordClaim, Released, check_data};
use crate::{metrics, telemetry};

pub use format::RecordFormat;
pub use policy::{OnError, OnMissingKey, OnTimeout, OnUnstorableResult, StoredError};
pub(crate) use refusal::Refusal;
pub use run::{HandlerInput, Run, WithRun};

/// Does work once for each key: a duplicate gets the result of the first run, without a second one.
///
/// The settings, for inputs of type `I` and results of type `Result<T, E>`. [`run`](Self::run) protects any async
/// function; with the feature `lambda`, `IdempotentLayer` protects a handler, and `SqsConsumer` the messages of a queue.
///
/// | the record of the key is | what happens |
/// | --- | --- |
/// | absent, given up, or its window has passed | the work runs, and its result is stored for the [window](Self::window) |
/// | in progress | an error that [`is_in_progress`](Error::is_in_progress), or a [wait](Self::wait) for its result |
/// | in progress, but its lease has ended | the work runs again, or [is refused](Self::on_timeout) |
/// | completed | its result is returned, after the [validation](Self::validate) |
///
/// # What happens when
///
/// A record is in progress for the lease: under a middleware until the invocation's deadline, elsewhere until
/// [`until`](Self::until), for [`lease`](Self::lease), or for that of the [`Locks`]. What a retry gets after a crash or a
/// timeout:
///
/// | the first run ended | before its side effect | during it | after it, before its result was stored |
/// | --- | --- | --- | --- |
/// | [`OnTimeout::RunAgain`] (default) | runs, once the lease has ended | runs again: what was done half is done again | runs again: the effect is there twice |
/// | [`OnTimeout::Reject`] | refused for the window: the effect is not there | refused for the window | refused for the window: the effect is there once |
/// | with [`Run::complete_in`] | runs, once the lease has ended | runs: the transaction left nothing | replayed: result and effect were committed together |
///
/// If the handler returns an error, [`on_error`](Self::on_error) decides; by default the record is given up, and a retry
/// runs at once. A panic, or being cancelled at the end of the lease, is treated as an error that gives up, or with
/// [`OnTimeout::Reject`] as a crash. (A panic in a program that is built with `panic = "abort"` is a crash.) If the
/// record was lost when the result is to be stored, because its lease had ended and another run began, the caller gets
/// this run's result all the same, with a warning in the log.
///
/// # Cost
///
/// Two `UpdateItem`s for work that runs, one for a duplicate, none for one that the [cache](Self::cache) answers. A
/// completion that is throttled or not answered is sent again, with pauses of up to a second, until 100 ms before the
/// lease ends: otherwise the work would run again. A shorter [lease](Self::lease) limits that wait. DynamoDB
/// counts a write by the size of the row, also if it is refused. IAM action `dynamodb:UpdateItem`.
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::{Error, HandlerError, Idempotency, Locks, OnMissingKey};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Receipt;
/// struct Order { id: Option<String>, amount: u32 }
///
/// # async fn example(locks: Locks, order: Order) -> Result<Receipt, HandlerError<std::io::Error>> {
/// let orders = Idempotency::new(locks, OnMissingKey::Reject, |order: &Order| order.id.clone())
///     .validate(|order| order.amount)
///     .window(Duration::from_hours(24));
/// let receipt = orders.run(&order, async |_| charge(&order).await).await?;
/// # Ok(receipt)
/// # }
/// # async fn charge(_: &Order) -> Result<Receipt, std::io::Error> { Ok(Receipt) }
/// ```
pub struct Idempotency<I, T, E> {
    settings: Arc<Settings<I, T, E>>,
}

struct Settings<I, T, E> {
    locks: Locks,
    key: KeyOf<I>,
    on_missing_key: OnMissingKey,
    prefix: Option<String>,
    format: RecordFormat,
    window: Duration,
    lease: Option<Duration>,
    until: Option<SystemTime>,
    wait: Option<Backoff>,
    validate: Option<PartOf<I>>,
    on_error: Option<Policy<E>>,
    on_timeout: OnTimeout,
    on_unstorable_result: OnUnstorableResult,
    on_replay: Option<Hook<T>>,
    cache: Option<Arc<Cache>>,
}

type KeyOf<I> = Arc<dyn Fn(&I) -> Option<Value> + Send + Sync>;

type PartOf<I> = Arc<dyn Fn(&I) -> Value + Send + Sync>;

type Policy<E> = Arc<dyn Fn(&E) -> OnError + Send + Sync>;

type Hook<T> = Arc<dyn Fn(&mut T, &Holder) + Send + Sync>;

/// Completed records by key, the least recently used one first to go.
type Cache = Mutex<LruCache<String, Holder>>;

impl<I, T, E> Idempotency<I, T, E> {
    /// Records in the table of these locks, with the key that `key` finds in an input: a string, or with a
    /// [format](Self::format) that hashes it any JSON value. What is null, empty, or has nothing but nulls in it is no key
    /// either.
    ///
    /// Operations that share a [prefix](Self::prefix) share their records: where a function has two, give each its own.
    /// Outside of Lambda there is none by default, and records share their keys with the plain locks of the table too.
    pub fn new<K: Into<Value>>(
        locks: Locks,
        on_missing_key: OnMissingKey,
        key: impl Fn(&I) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Self {
            settings: Arc::new(Settings {
                locks,
                key: Arc::new(move |input| key(input).map(Into::into)),
                on_missing_key,
                prefix: None,
                format: RecordFormat::default(),
                window: Duration::from_hours(1),
                lease: None,
                until: None,
                wait: None,
                validate: None,
                on_error: None,
                on_timeout: OnTimeout::default(),
                on_unstorable_result: OnUnstorableResult::default(),
                on_replay: None,
                cache: None,
            }),
        }
    }

    /// What comes before the key in the record's, with a `#` between; by default the Lambda function's name, elsewhere
    /// nothing. If it is empty, there is no `#` either. The [`Locks`]' own prefix comes before it.
    ///
    /// With [`RecordFormat::Plain`] it has no `#` of its own: the key `refunds#7` under the prefix `orders` would be the
    /// key `7` under `orders#refunds`. Work under a prefix that has one fails with an error that
    /// [`is_invalid`](Error::is_invalid). A hashed key has no `#` in it, and its prefix may be any. Where one operation has
    /// no prefix, its key `orders#7` is still the key `7` under the prefix `orders`: give each operation a prefix.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.with(|settings| settings.prefix = Some(prefix.into()))
    }

    /// How keys and results are written; [`RecordFormat::Plain`] by default.
    #[must_use]
    pub fn format(self, format: RecordFormat) -> Self {
        self.with(|settings| settings.format = format)
    }

    /// For how long a result is replayed, and with [`OnTimeout::Reject`] an unfinished run refused; an hour by default.
    /// At least a second more than twice the clock skew, up to 366 days; kept in whole seconds, rounded up.
    ///
    /// Enforced by the clock, whether or not DynamoDB's TTL has deleted the row. Choose it longer than a request may be
    /// late on its way: one that arrives after the row was deleted writes it anew, with the fence of its time.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.with(|settings| settings.window = window)
    }

    /// A lease shorter than the time until the invocation's deadline, from 1 ms to a day. The work is cancelled at its
    /// end; in return, a crash keeps duplicates waiting less long. Outside of Lambda, the default is that of the
    /// [`Locks`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| settings.lease = Some(lease))
    }

    /// The lease ends at this time by the host's clock, for work outside of the middlewares, which know the invocation's
    /// deadline: `orders.clone().until(context.deadline()).run(…)`. With [`lease`](Self::lease) too, at whichever is
    /// earlier.
    #[must_use]
    pub fn until(self, deadline: SystemTime) -> Self {
        self.with(|settings| settings.until = Some(deadline))
    }

    /// A duplicate that finds the work in progress waits for its result, and returns that. If the other gives up, or
    /// its lease ends, the work runs here. Off by default. Each attempt is one more request.
    #[must_use]
    pub fn wait(self, backoff: Backoff) -> Self {
        self.with(|settings| settings.wait = Some(backoff))
    }

    /// The part of the input that must be the same in a duplicate; a digest of it is stored. If it is not, or if the
    /// record was written without, the error [`is_mismatch`](Error::is_mismatch). For several fields, give a list of
    /// them: `serde_json::json!([order.amount, order.currency])`.
    #[must_use]
    pub fn validate<V: Into<Value>>(self, part: impl Fn(&I) -> V + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.validate = Some(Arc::new(move |input| part(input).into())))
    }

    /// What to do with the record when the handler returned this error; [`OnError::Release`] by default.
    #[must_use]
    pub fn on_error(self, policy: impl Fn(&E) -> OnError + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_error = Some(Arc::new(policy)))
    }

    /// What to do with a run that did not finish; [`OnTimeout::RunAgain`] by default.
    #[must_use]
    pub fn on_timeout(self, policy: OnTimeout) -> Self {
        self.with(|settings| settings.on_timeout = policy)
    }

    /// What to do with a result that cannot be stored; [`OnUnstorableResult::Fail`] by default.
    #[must_use]
    pub fn on_unstorable_result(self, policy: OnUnstorableResult) -> Self {
        self.with(|settings| settings.on_unstorable_result = policy)
    }

    /// Sees every result that is replayed, with what the record says about the first run, before it is returned: to
    /// mark it, or to count it.
    #[must_use]
    pub fn on_replay(self, hook: impl Fn(&mut T, &Holder) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_replay = Some(Arc::new(hook)))
    }

    /// Keeps up to this many completed records in memory, each until its window has passed, so that a duplicate in the
    /// same environment costs no request. Off by default; 0 turns it off. The clones of these settings share it. A result
    /// takes up to 390 KiB.
    ///
    /// A row that is deleted or edited in the table by hand is still replayed from here.
    #[must_use]
    pub fn cache(self, records: usize) -> Self {
        let cache = NonZeroUsize::new(records).map(|records| {
            // Not with room for all of them from the start.
            let mut cache = LruCache::unbounded();
            cache.resize(records);
            Arc::new(Mutex::new(cache))
        });
        self.with(|settings| settings.cache = cache)
    }

    fn with(mut self, set: impl FnOnce(&mut Settings<I, T, E>)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    #[cfg(feature = "lambda")]
    pub(crate) fn locks(&self) -> &Locks {
        &self.settings.locks
    }

    /// The record for this input; `None` for one without a key that shall run without.
    pub(crate) fn identify(&self, input: &I, caller: &Caller) -> Result<Option<Identity>, Error> {
        self.identity(input, caller).inspect_err(telemetry::refused)
    }

    fn identity(&self, input: &I, caller: &Caller) -> Result<Option<Identity>, Error> {
        let Settings { locks, format, prefix, window, .. } = &*self.settings;
        if !locks.0.enabled {
            return Ok(None);
        }
        check_duration("window", *window, Duration::from_secs(1) + 2 * locks.0.clock_skew, MAX_RETENTION)?;
        let key = (self.settings.key)(input).filter(|key| !format::is_missing(key));
        let Some(key) = key else {
            return match self.settings.on_missing_key {
                OnMissingKey::RunUnprotected => Ok(None),
                OnMissingKey::Reject => Err(self.settings.error(Refusal::NoKey, "")),
            };
        };
        let key =
            format.key(&key).map_err(|why| Error::invalid(format!("the idempotency key cannot be used: {why}")))?;
        let validation = self.settings.validate.as_ref().map(|part| format.digest(&part(input))).transpose();
        let validation = validation.map_err(|why| Error::invalid(format!("the payload cannot be validated: {why}")))?;
        let key = match prefix.as_deref().unwrap_or(&caller.function) {
            "" => key,
            prefix if prefix.contains('#') && *format == RecordFormat::Plain => {
                return Err(Error::invalid(format!(
                    "the prefix `{prefix}` has a `#` in it, so that a key under it could be one under a shorter prefix: \
                     choose a prefix without, or `RecordFormat::Hashed`"
                )));
            }
            prefix => format!("{prefix}#{key}"),
        };
        Ok(Some(Identity { key, validation }))
    }
}

impl<I, T, E> Idempotency<I, T, E>
where
    T: Serialize + DeserializeOwned,
{
    /// Runs `body`, or returns the result of the run that was first with this input's key.
    ///
    /// The body is cancelled at its next await point when the lease ends, and the error then
    /// [`is_lost`](Error::is_lost). See the [type](Self) for what else can happen, and for what it costs.
    pub async fn run(&self, input: &I, body: impl AsyncFnOnce(&Run) -> Result<T, E>) -> Result<T, HandlerError<E>> {
        let caller = Caller {
            function: std::env::var("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_default(),
            until: self.settings.until,
            ..Caller::default()
        };
        let identity = self.identify(input, &caller).map_err(HandlerError::Lock)?;
        match self.begin(identity, &caller).await? {
            Begun::Completed { key, record } => self.replay(&record, &key),
            // Boxed: the futures around it would each have room for it again.
            Begun::Run(run) => self.finish(&run, Box::pin(body(&run))).await,
        }
    }

    /// Takes the record, or returns what it has.
    pub(crate) async fn begin(&self, identity: Option<Identity>, caller: &Caller) -> Result<Begun, HandlerError<E>> {
        let begun = self.begin_quietly(identity, caller).await;
        if let Err(HandlerError::Lock(error)) = &begun
            && error.is_in_progress()
        {
            telemetry::not_acquired(error);
        }
        begun
    }

    /// The same, for a caller who tells by itself that the work is in progress.
    pub(crate) async fn begin_quietly(
        &self,
        identity: Option<Identity>,
        caller: &Caller,
    ) -> Result<Begun, HandlerError<E>> {
        let settings = &*self.settings;
        let Some(Identity { key, validation }) = identity else {
            tracing::debug!("an input runs without protection");
            // A key that nobody else has, for a transaction that is to be completed in.
            let nobodys =
                format!("{}#{:032x}", settings.prefix.as_ref().unwrap_or(&caller.function), fastrand::u128(..));
            let lock = settings.acquire(nobodys, caller).unlocked().map_err(HandlerError::Lock)?;
            return Ok(Begun::Run(self.run_under(lock, None)));
        };
        if let Some(record) = settings.cached(&key) {
            return match Refusal::by(record, validation.as_deref()) {
                Refusal::Completed(record) => Ok(Begun::completed(key, record)),
                other => {
                    let error = settings.error(other, &key);
                    telemetry::refused(&error);
                    Err(HandlerError::Lock(error))
                }
            };
        }
        let refuse_unfinished = (settings.on_timeout == OnTimeout::Reject).then_some(settings.window);
        let claim = RecordClaim { validation: validation.clone(), refuse_unfinished };
        match settings.acquire(key.clone(), caller).record(claim).await {
            Ok(lock) => {
                let record = settings.cache.is_some().then(|| Holder {
                    owner: Some(lock.owner().to_owned()),
                    name: Some(caller.holder.as_ref().unwrap_or(&settings.locks.0.holder).clone()),
                    fence: Some(lock.fence()),
                    since: Some(millis(since_epoch(lock.acquired_at()))),
                    until: 0,
                    data: None,
                    current: true,
                    completed: true,
                    released: true,
                    error: None,
                    validation,
                });
                Ok(Begun::Run(self.run_under(lock, record)))
            }
            Err(error) => {
                let record = error.into_completed().map_err(HandlerError::Lock)?;
                settings.remember(&key, &record);
                Ok(Begun::completed(key, record))
            }
        }
    }

    fn run_under(&self, lock: Lock, record: Option<Holder>) -> Run {
        let Settings { window, format, .. } = *self.settings;
        Run { lock: Arc::new(lock), window, format, completed_in: Arc::default(), record: record.map(Arc::new) }
    }

    /// The result, or the error, that a completed record has.
    pub(crate) fn replay(&self, record: &Holder, key: &str) -> Result<T, HandlerError<E>> {
        tracing::info!(key, fence = record.fence, "replaying the first run's result");
        let settings = &*self.settings;
        let unusable = |why: &str| HandlerError::Lock(settings.error(Refusal::Result(why.to_owned()), key));
        if let Some(error) = &record.error {
            let stored = error.as_str().and_then(|text| serde_json::from_str(text).ok());
            return Err(stored.map_or_else(|| unusable("a stored error cannot be read"), HandlerError::Replayed));
        }
        let data = record.data.as_ref().map(|Data(data)| data);
        let value = settings.format.load(data).map_err(|why| unusable(&why))?;
        // Without what serde says about the value, which would carry it into a log.
        let mut result = serde_json::from_value(value).map_err(|_| match data {
            Some(_) => unusable("a stored result is not of the type that is wanted now"),
            None => unusable("the first run was completed without its result"),
        })?;
        if let Some(hook) = &settings.on_replay {
            hook(&mut result, record);
        }
        Ok(result)
    }

    /// Does the work, and settles what becomes of the record.
    pub(crate) async fn finish(
        &self,
        run: &Run,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, HandlerError<E>> {
        let (settings, lock) = (&*self.settings, &*run.lock);
        if !lock.is_enforced() {
            return work.await.map_err(HandlerError::Handler);
        }
        let unfinished = LeaveUnfinished(Some(lock).filter(|_| settings.on_timeout == OnTimeout::Reject));
        // The user's code, with that which turns the result into JSON, is all in here: should it panic, the work counts
        // as unfinished.
        let done = while_held(lock, async {
            let result = work.await;
            let settlement = self.settlement(run, &result);
            (result, settlement)
        });
        let (outcome, settlement) = match done.await {
            Ok(Some((result, settlement))) => {
                unfinished.disarm();
                (Ok(result.map_err(HandlerError::Handler)), settlement)
            }
            // It may have been done half. Unless that is to be refused, it is free to be done again.
            Ok(None) => {
                drop(unfinished);
                (Ok(Err(HandlerError::Lock(lock.error(Kind::Lost(None))))), Settlement::GiveUp)
            }
            Err(panic) => {
                drop(unfinished);
                (Err(panic), Settlement::GiveUp)
            }
        };
        let found = match settlement {
            Settlement::Completed => {
                lock.was_completed();
                None
            }
            Settlement::Leave => {
                lock.abandon();
                None
            }
            Settlement::Unstorable(why) => {
                lock.abandon();
                return Err(HandlerError::Lock(settings.error(Refusal::Result(why), lock.key())));
            }
            Settlement::GiveUp => self.give_up(lock).await,
            Settlement::Store(outcome) => self.store(run, outcome).await,
        };
        match (outcome, found) {
            (Err(panic), _) => resume_unwind(panic),
            // The transaction that was to complete it failed for its caller, but was committed.
            (Ok(Err(_)), Some(record)) if record.error.is_none() => self.replay(&record, lock.key()),
            (Ok(outcome), _) => outcome,
        }
    }

    /// What is to become of the record.
    fn settlement(&self, run: &Run, result: &Result<T, E>) -> Settlement {
        let settings = &*self.settings;
        let error = match result {
            Ok(_) if run.completed_in.load(Ordering::Acquire) => return Settlement::Completed,
            Ok(result) => {
                return match (run.outcome(result), settings.on_unstorable_result) {
                    (Ok(outcome), _) => Settlement::Store(outcome),
                    (Err(why), OnUnstorableResult::Fail) => Settlement::Unstorable(why),
                    (Err(why), OnUnstorableResult::CompleteWithoutResult) => {
                        tracing::warn!(key = run.lock.key(), why, "completed without the result");
                        Settlement::Store(Outcome::WithoutResult)
                    }
                };
            }
            Err(error) => error,
        };
        match settings.on_error.as_ref().map_or(OnError::Release, |policy| policy(error)) {
            OnError::Release => Settlement::GiveUp,
            OnError::Keep => Settlement::Leave,
            OnError::Store(error) => {
                let error = Data::from(error.to_json());
                if settings.format.keeps_errors() && check_data(&error).is_ok() {
                    return Settlement::Store(Outcome::Error(error));
                }
                tracing::warn!(
                    key = run.lock.key(),
                    "given up: the error is too large, or the format has no place for it"
                );
                Settlement::GiveUp
            }
        }
    }

    /// Frees the record, unless that is left to its lease; a record that turns out to be completed is returned.
    async fn give_up(&self, lock: &Lock) -> Option<Box<Holder>> {
        match in_time_to_answer(lock, lock.give_up()).await {
            Ok(Released::Freed) => None,
            Ok(Released::Completed(record)) => Some(record),
            // That it was lost has been told.
            Err(error) if error.is_lost() => None,
            Err(error) => {
                tracing::warn!(key = lock.key(), fence = lock.fence(), %error, "giving up a record failed");
                None
            }
        }
    }

    /// Completes the record; one that turns out to be completed already is returned.
    async fn store(&self, run: &Run, outcome: Outcome) -> Option<Box<Holder>> {
        let (settings, lock) = (&*self.settings, &*run.lock);
        let remembered = run.record.as_ref().map(|record| (Holder::clone(record), outcome.clone()));
        match lock.complete(settings.window, outcome).await {
            Ok(Completed::Now { until }) => {
                if let Some((record, outcome)) = remembered {
                    let (data, error) = match outcome {
                        Outcome::Result(data) => (Some(Data(data)), None),
                        Outcome::WithoutResult => (None, None),
                        Outcome::Error(error) => (None, Some(error)),
                    };
                    settings.remember(lock.key(), &Holder { until, data, error, ..record });
                }
                None
            }
            Ok(Completed::Before(record)) => {
                settings.remember(lock.key(), &record);
                Some(record)
            }
            // Here it may have been released by the work itself.
            Err(error) if error.is_lost() && lock.is_known_lost() => None,
            Err(error) => {
                tracing::warn!(key = lock.key(), fence = lock.fence(), %error, "the outcome was not stored");
                None
            }
        }
    }
}

impl<I, T, E> Settings<I, T, E> {
    fn acquire(&self, key: String, caller: &Caller) -> Acquire {
        let mut acquire = self.locks.acquire(key);
        if let Some(until) = caller.until {
            acquire = acquire.until(until);
        }
        if let Some(holder) = &caller.holder {
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
        let mut cache = self.cache.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.locks.0.clock.now().millis();
        match cache.get(key) {
            Some(record) if record.until > now => Some(record.clone()),
            Some(_) => {
                cache.pop(key);
                None
            }
            None => None,
        }
    }

    fn remember(&self, key: &str, record: &Holder) {
        if let Some(cache) = &self.cache {
            cache.lock().unwrap_or_else(PoisonError::into_inner).put(key.to_owned(), record.clone());
        }
    }

    fn error(&self, refusal: Refusal, key: &str) -> Error {
        Error::new(Kind::Idempotency(refusal), &self.locks.0.table.name, key)
    }
}

/// The record of one input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// With the prefix, and hashed if that is wanted.
    key: String,
    validation: Option<String>,
}

/// Who asks, and until when there is time.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    pub(crate) function: String,
    pub(crate) holder: Option<String>,
    pub(crate) until: Option<SystemTime>,
}

pub(crate) enum Begun {
    Completed { key: String, record: Box<Holder> },
    Run(Run),
}

impl Begun {
    fn completed(key: String, record: Holder) -> Self {
        metrics::count(metrics::REPLAYS);
        Self::Completed { key, record: Box::new(record) }
    }
}

/// What becomes of a record after the work.
enum Settlement {
    Store(Outcome),
    /// It was, in the caller's transaction.
    Completed,
    GiveUp,
    /// It is kept until its lease ends.
    Leave,
    /// The same, because the result cannot be stored.
    Unstorable(String),
}

/// Leaves the record in progress when the work is cancelled or panics, so that it is known not to have finished.
struct LeaveUnfinished<'a>(Option<&'a Lock>);

impl LeaveUnfinished<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for LeaveUnfinished<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            lock.abandon();
        }
    }
}

// By hand, because deriving would ask the types of inputs, results and errors to be `Clone` and `Debug` too.
impl<I, T, E> Clone for Idempotency<I, T, E> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

impl<I, T, E> Clone for Settings<I, T, E> {
    fn clone(&self) -> Self {
        Self {
            locks: self.locks.clone(),
            key: Arc::clone(&self.key),
            prefix: self.prefix.clone(),
            validate: self.validate.clone(),
            on_error: self.on_error.clone(),
            on_replay: self.on_replay.clone(),
            cache: self.cache.clone(),
            ..*self
        }
    }
}

impl<I, T, E> fmt::Debug for Idempotency<I, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("locks", &self.settings.locks).finish_non_exhaustive()
    }
}
