//! `Idempotency`: its settings, and the record that an input has under them.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::cache::Cache;
use super::format::{RecordFormat, is_missing};
use super::policy::{OnError, OnMissingKey, OnUnfinished, OnUnstorableResult};
use crate::error::{Cause, Error};
use crate::holder::Holder;
use crate::limits::{MAX_RETENTION, check_duration};
use crate::lock::{self, Locks, Wait};

/// Runs work once for each key: a duplicate gets the result of the first run without a second one.
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::idempotency::OnMissingKey;
/// # use lambda_lock::{Error, HandlerError, Idempotency, Locks};
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
///
/// This type holds the settings, for inputs of type `I` and results of type `Result<T, E>`. [`run`](Self::run) protects
/// any async function. With the feature `lambda`, `IdempotencyLayer` protects a handler and `SqsConsumer` the messages of a
/// queue.
///
/// | the record of the key | what happens |
/// | --- | --- |
/// | is absent, was released, or its window has passed | the work runs, and its result is stored for the [window](Self::window) |
/// | is in progress | an error of kind [`InProgress`](crate::ErrorKind::InProgress), or a [wait](Self::wait) for the result |
/// | is in progress, but its lease has ended | the work runs again, or [is rejected](Self::on_unfinished) |
/// | is completed | its result is returned, after [validation](Self::validate) |
///
/// # Failures
///
/// A record is in progress until it is completed or released, or its lease ends. Under a middleware, the lease ends at the
/// invocation's deadline. Elsewhere, [`deadline`](Self::deadline), [`lease`](Self::lease) or the lease of the [`Locks`] sets its
/// end. [After a crash](crate::docs::reference::idempotency#after-a-crash) shows what a retry gets then: another run by default, a
/// refusal with [`OnUnfinished::Reject`], or the result with [`Run::complete_in`](crate::Run::complete_in).
///
/// If the handler returns an error, [`on_error`](Self::on_error) decides. By default the record is released, and a retry
/// runs at once. A panic, or cancellation at the end of the lease, releases the record like an error, or counts as a crash
/// with [`OnUnfinished::Reject`]. In a program built with `panic = "abort"`, a panic is a crash.
///
/// Work that blocks its thread is not cancelled. If it returns after the lease, its outcome is stored for the retry, unless
/// another run has taken the record, and the call fails with an error that [`is_lost`](crate::Error::is_lost). If the record
/// was lost before the lease ended, as by hand, the caller gets the result, and a warning is logged.
///
/// # Cost
///
/// Two `UpdateItem`s for work that runs, one for a duplicate, none for a duplicate answered from the
/// [cache](Self::cache). A completion that is throttled or not answered is sent again, with pauses of up to a second,
/// until 100 ms before the lease ends; otherwise the work would run again. A shorter [lease](Self::lease) limits that
/// wait. DynamoDB counts a write by the size of the row, also when the write is refused. IAM action
/// `dynamodb:UpdateItem`.
pub struct Idempotency<I, T, E> {
    pub(super) settings: Arc<RecordSettings<I, T, E>>,
}

pub(super) struct RecordSettings<I, T, E> {
    pub(super) locks: Locks,
    key: KeyOf<I>,
    on_missing_key: OnMissingKey,
    pub(super) prefix: Option<String>,
    pub(super) format: RecordFormat,
    pub(super) window: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) deadline: Option<SystemTime>,
    pub(super) wait: Option<Wait>,
    digest: Option<DigestOf<I>>,
    pub(super) on_error: Option<Policy<E>>,
    /// Whether an error says that the work failed, and not that it was refused.
    pub(super) is_failure: fn(&E) -> bool,
    pub(super) on_unfinished: OnUnfinished,
    pub(super) on_unstorable_result: OnUnstorableResult,
    pub(super) on_replay: Option<Hook<T>>,
    pub(super) cache: Option<Arc<Cache>>,
    across_tenants: bool,
}

type KeyOf<I> = Arc<dyn Fn(&I) -> Option<Value> + Send + Sync>;

type DigestOf<I> = Arc<dyn Fn(&I, RecordFormat) -> Result<String, String> + Send + Sync>;

type Policy<E> = Arc<dyn Fn(&E) -> OnError + Send + Sync>;

type Hook<T> = Arc<dyn Fn(&mut T, &Holder) + Send + Sync>;

impl<I, T, E> Idempotency<I, T, E> {
    /// Creates settings with records in the table of these locks.
    ///
    /// `key` returns the key of an input: a string, or any JSON value with a [format](Self::format) that hashes it. A key
    /// that is null, empty, or contains only nulls counts as missing.
    ///
    /// Operations with the same [prefix](Self::prefix) share their records: if a function has two operations, give each
    /// its own prefix. Outside of Lambda there is no prefix by default, and records also share their keys with the plain
    /// locks of the table.
    pub fn new<K: Into<Value>>(
        locks: Locks,
        on_missing_key: OnMissingKey,
        key: impl Fn(&I) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Self {
            settings: Arc::new(RecordSettings {
                locks,
                key: Arc::new(move |input| key(input).map(Into::into)),
                on_missing_key,
                prefix: None,
                format: RecordFormat::default(),
                window: None,
                lease: None,
                deadline: None,
                wait: None,
                digest: None,
                on_error: None,
                is_failure: |_| true,
                on_unfinished: OnUnfinished::default(),
                on_unstorable_result: OnUnstorableResult::default(),
                on_replay: None,
                cache: None,
                across_tenants: false,
            }),
        }
    }

    /// Sets the prefix of record keys, which a `#` separates from the input's key. The default is the Lambda function's
    /// name, and no prefix outside of Lambda. An empty prefix adds no `#`. The prefix of the [`Locks`] comes first.
    ///
    /// A consumer of queues, streams or topics adds the source to the default prefix, so that `o1` of one queue is not `o1`
    /// of another. A prefix of your own replaces both, so its records are shared by all sources.
    ///
    /// With [`RecordFormat::Plain`] a prefix must not contain a `#`: the key `refunds#7` under the prefix `orders`
    /// would equal the key `7` under `orders#refunds`. Otherwise each run fails with an error of kind
    /// [`Invalid`](crate::ErrorKind::Invalid). Hashed keys contain no `#`, so their prefix may be any string. With
    /// Lambda's tenant isolation, choose one without `#` there, too: the tenant `refunds` under the prefix `orders` would
    /// share its keys with the prefix `orders#refunds` of another operation. An operation without a prefix can still
    /// have the key `orders#7`, which equals the key `7` under the prefix `orders`: give each operation a prefix.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.with(|settings| settings.prefix = Some(prefix.into()))
    }

    /// Sets the format of keys and results; [`RecordFormat::Plain`] by default.
    #[must_use]
    pub fn format(self, format: RecordFormat) -> Self {
        self.with(|settings| settings.format = format)
    }

    /// Sets for how long a result is replayed and, with [`OnUnfinished::Reject`], an unfinished run is rejected; an hour by
    /// default, and longer under the consumers of queues and streams. At least a second more than twice the clock skew, at
    /// most 366 days. Stored in whole seconds, rounded up.
    ///
    /// The clock enforces the window, whether or not DynamoDB's TTL has deleted the row. Choose it longer than a request
    /// may be delayed on its way: a request that arrives after the row was deleted writes the row again, with its own
    /// fence.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.with(|settings| settings.window = Some(window))
    }

    /// Sets a lease shorter than the time until the invocation's deadline, from 1 ms to a day. The work is cancelled when
    /// the lease ends, and a crash delays duplicates for less time. Outside of Lambda, the default is the lease of the
    /// [`Locks`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| settings.lease = Some(lease))
    }

    /// Ends the lease at this time by the host's clock, or earlier if [`lease`](Self::lease) is shorter.
    ///
    /// For work outside of the middlewares, which use the invocation's deadline:
    /// `orders.clone().deadline(context.deadline()).run(…)`. A deadline that is more than a day ago counts as none, as for
    /// [`Acquire::deadline`](crate::Acquire::deadline).
    #[must_use]
    pub fn deadline(self, deadline: SystemTime) -> Self {
        self.with(|settings| settings.deadline = Some(deadline))
    }

    /// Lets a duplicate that finds the work in progress wait for its result. If the other run releases the record or its
    /// lease ends, the work runs here. Off by default. Each attempt is one more request.
    ///
    /// Duplicates take no place in a queue, because a completed record has the result for all of them. With a
    /// [`Duration`] or [`Wait::in_turn`], they ask when the run should end, if the record has the time of recent holds.
    /// Otherwise, and with [`Wait::backoff`], they use plain [backoff](crate::Backoff).
    #[must_use]
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        self.with(|settings| settings.wait = Some(wait.into()))
    }

    /// Sets the part of the input that must be equal in a duplicate. The record stores its digest. If the part differs, the
    /// duplicate fails with an error of kind [`Mismatch`](crate::ErrorKind::Mismatch).
    ///
    /// A record without a digest was made before a deployment set this. Its result is returned without a comparison, to
    /// anyone who has its key. A deployment that changes the part changes the digest, so that an identical duplicate of an
    /// earlier run is a mismatch until the window has passed.
    ///
    /// For several fields, return a list: `serde_json::json!([order.amount, order.currency])`.
    #[must_use]
    pub fn validate<V: Into<Value>>(self, part: impl Fn(&I) -> V + Send + Sync + 'static) -> Self {
        self.digest_by(move |input, format| format.digest(&part(input).into()))
    }

    /// Like [`validate`](Self::validate), with the digests themselves.
    pub(crate) fn digest_by(
        self,
        digest: impl Fn(&I, RecordFormat) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.digest = Some(Arc::new(digest)))
    }

    /// Sets what happens to the record when the handler returns an error; [`OnError::Release`] by default.
    #[must_use]
    pub fn on_error(self, policy: impl Fn(&E) -> OnError + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_error = Some(Arc::new(policy)))
    }

    /// Sets what happens after a run that did not finish; [`OnUnfinished::RunAgain`] by default.
    #[must_use]
    pub fn on_unfinished(self, policy: OnUnfinished) -> Self {
        self.with(|settings| settings.on_unfinished = policy)
    }

    /// Sets what happens if a result cannot be stored; [`OnUnstorableResult::Fail`] by default. A consumer of a queue or a
    /// stream always completes without the result, because nobody reads it, and
    /// `HttpIdempotencyLayer` does so by default, because the client has its answer.
    #[must_use]
    pub fn on_unstorable_result(self, policy: OnUnstorableResult) -> Self {
        self.with(|settings| settings.on_unstorable_result = policy)
    }

    /// Calls `hook` with each replayed result before it is returned, and with the record of the first run: to mark the
    /// result, or to count it.
    #[must_use]
    pub fn on_replay(self, hook: impl Fn(&mut T, &Holder) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_replay = Some(Arc::new(hook)))
    }

    /// Keeps up to this many completed records in memory, each until its window has passed. A duplicate in the same
    /// environment then costs no request. Off by default; 0 turns it off. Clones of these settings share the cache. A
    /// result takes up to 390 KiB.
    ///
    /// A row that is deleted or edited by hand is still replayed from the cache.
    #[must_use]
    pub fn cache(self, records: usize) -> Self {
        let cache = NonZeroUsize::new(records).map(|records| Arc::new(Cache::new(records)));
        self.with(|settings| settings.cache = cache)
    }

    /// Shares records between the tenants of a function with Lambda's tenant isolation: a tenant gets the result of another
    /// one that has sent the same key.
    ///
    /// ```
    /// # use lambda_lock::idempotency::OnMissingKey;
    /// # use lambda_lock::{Idempotency, Locks};
    /// # struct Chart { id: String }
    /// # fn example(locks: Locks) -> Idempotency<Chart, u32, std::io::Error> {
    /// Idempotency::new(locks, OnMissingKey::Reject, |chart: &Chart| Some(chart.id.clone())).across_tenants()
    /// # }
    /// ```
    ///
    /// By default, each tenant has its own records under the layers and consumers. The row's key is then
    /// `prefix#tenant#key`. In the tenant's id, `#` becomes `%23` and `%` becomes `%25`. Powertools' libraries do not know
    /// tenants, so their functions find no such record. [`run`](Self::run) knows no invocation: put the tenant into the key
    /// yourself. Beside [`LockLayer::per_tenant`](crate::LockLayer::per_tenant), choose a prefix: otherwise a key that is the id of
    /// a tenant has the same row as that tenant's lock.
    #[cfg(feature = "lambda")]
    #[must_use]
    pub fn across_tenants(self) -> Self {
        self.with(|settings| settings.across_tenants = true)
    }

    fn with(mut self, set: impl FnOnce(&mut RecordSettings<I, T, E>)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    #[cfg(feature = "http")]
    pub(crate) fn on_missing_key(self, policy: OnMissingKey) -> Self {
        self.with(|settings| settings.on_missing_key = policy)
    }

    /// Sets which errors count as failed work; all by default.
    #[cfg(feature = "http")]
    pub(crate) fn failures(self, is_failure: fn(&E) -> bool) -> Self {
        self.with(|settings| settings.is_failure = is_failure)
    }

    /// Whether this invocation has no prefix, of any kind, although none was asked for.
    #[cfg(feature = "http")]
    pub(crate) fn lacks_prefix(&self, invocation: &Invocation) -> bool {
        let RecordSettings { prefix, locks, .. } = &*self.settings;
        prefix.is_none() && invocation.function.is_empty() && locks.0.table.key_prefix.is_empty()
    }

    #[cfg(feature = "http")]
    pub(crate) fn rejects_unfinished(&self) -> bool {
        self.settings.on_unfinished == OnUnfinished::Reject
    }

    /// Sets the window unless the user has set one.
    #[cfg(feature = "lambda")]
    pub(crate) fn default_window(self, window: Duration) -> Self {
        self.with(|settings| settings.window = settings.window.or(Some(window)))
    }

    /// Sets the wait unless the user has set one.
    #[cfg(feature = "lambda")]
    pub(crate) fn default_wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait = settings.wait.or(Some(wait.into())))
    }

    #[cfg(feature = "lambda")]
    pub(crate) fn locks(&self) -> &Locks {
        &self.settings.locks
    }

    /// Returns the key of the row for people.
    #[cfg(feature = "lambda")]
    pub(crate) fn shown_key(&self, identity: &Identity) -> String {
        self.locks().0.table.place().printable_key(&identity.key)
    }

    /// Returns the record of this input, which comes from this source, or `None` if it runs unprotected.
    pub(crate) fn identify(
        &self,
        input: &I,
        source: Option<&str>,
        invocation: &Invocation,
    ) -> Result<Option<Identity>, Error> {
        self.settings.identity(input, source, invocation).inspect_err(lock::record_refusal)
    }
}

impl<I, T, E> RecordSettings<I, T, E> {
    fn identity(&self, input: &I, source: Option<&str>, invocation: &Invocation) -> Result<Option<Identity>, Error> {
        let Self { locks, format, prefix, .. } = self;
        if !locks.0.enabled {
            return Ok(None);
        }
        check_duration("window", self.window(), Duration::from_secs(1) + 2 * locks.0.table.clock_skew, MAX_RETENTION)?;
        let Some(key) = (self.key)(input).filter(|key| !is_missing(key)) else {
            return match self.on_missing_key {
                OnMissingKey::RunUnprotected => Ok(None),
                OnMissingKey::Reject => Err(self.error(Cause::KeyMissing, "")),
            };
        };
        let key = format.key(&key).map_err(|why| Error::invalid(format!("cannot use the idempotency key: {why}")))?;
        let validation = self.digest.as_ref().map(|digest| digest(input, *format)).transpose();
        let validation = validation.map_err(|why| Error::invalid(format!("cannot validate the payload: {why}")))?;
        // Some keys name their source already. A prefix of the user's own is for all sources.
        let names = |source: &&str| key.strip_prefix(source).is_some_and(|rest| rest.starts_with('#'));
        let source = source.filter(|source| prefix.is_none() && !names(source));
        let tenant = invocation.tenant.as_deref().filter(|_| !self.across_tenants);
        let key = [tenant, source, Some(&key)].into_iter().flatten().collect::<Vec<_>>().join("#");
        let key = match prefix.as_deref().unwrap_or(&invocation.function) {
            "" => key,
            prefix if prefix.contains('#') && *format == RecordFormat::Plain => {
                return Err(Error::invalid(format!(
                    "the prefix `{prefix}` contains a `#`, so a key under it could equal a key under a shorter prefix: \
                     choose a prefix without `#`, or `RecordFormat::Hashed`"
                )));
            }
            prefix => format!("{prefix}#{key}"),
        };
        Ok(Some(Identity { key, validation }))
    }

    pub(super) fn window(&self) -> Duration {
        self.window.unwrap_or(Duration::from_hours(1))
    }

    pub(super) fn error(&self, cause: Cause, key: &str) -> Error {
        Error::new(cause, self.locks.0.table.place(), key)
    }
}

/// The key of an input's record, and the digest of the payload that a duplicate must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// With the prefix; hashed if the format hashes keys.
    pub(super) key: String,
    pub(super) validation: Option<String>,
}

impl Identity {
    #[cfg(feature = "lambda")]
    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

/// The invocation that the work is part of.
#[derive(Debug, Default)]
pub(crate) struct Invocation {
    /// The function's name, which is the default prefix; empty outside of Lambda.
    pub(crate) function: String,
    /// The holder's name; by default that of the [`Locks`].
    pub(crate) holder: Option<String>,
    /// The id of the tenant, without `#`.
    pub(crate) tenant: Option<String>,
    pub(crate) deadline: Option<SystemTime>,
}

// By hand, because a derive would require the types of inputs, results and errors to be `Clone` and `Debug`.
impl<I, T, E> Clone for Idempotency<I, T, E> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

impl<I, T, E> Clone for RecordSettings<I, T, E> {
    fn clone(&self) -> Self {
        Self {
            locks: self.locks.clone(),
            key: Arc::clone(&self.key),
            prefix: self.prefix.clone(),
            digest: self.digest.clone(),
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
