//! The middleware for singletons: acquires a lock before the handler runs and releases it afterwards.

use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lambda_runtime::{Context, LambdaEvent};
use tower_layer::Layer;
use tower_service::Service;

use super::handler_input::HandlerInput;
use super::invocation::{check_not_durable, holder, is_held_by_attempt, key_of_tenant};
use super::layered::Layered;
use crate::clock::since_epoch;
use crate::error::{Cause, Error, ErrorKind, Source};
use crate::idempotency::HandlerError;
use crate::limits::{deadline_if_any, time_to_ask};
use crate::lock::{Acquire, Lock, Locks, Rate, Wait, count_refusal, hold_until, record_refusal};
use crate::metrics;
use crate::panics;
use crate::text::printable;

/// A tower layer that makes a handler a singleton: each invocation runs under a lock. It goes
/// [outside of an `IdempotencyLayer`](crate::docs::learn::which#a-lock-and-idempotency-together), which would store the answer of
/// [`on_held`](Self::on_held) as the event's result. With [`coalesce`](Self::coalesce), leave the `IdempotencyLayer` out. Of two
/// limits, such as one of a tenant and one of all tenants, [the narrower one](crate::docs::recipes::limits#two-limits-at-once)
/// goes outside: otherwise, an invocation that waits for its tenant holds a permit of all.
///
/// ```no_run
/// use lambda_lock::{LockLayer, Locks};
/// use lambda_runtime::{Error, LambdaEvent, Runtime};
/// use tower::{Layer, service_fn};
///
/// async fn report(_: LambdaEvent<()>) -> Result<String, Error> {
///     Ok("written".to_owned())
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     let layer = LockLayer::new(Locks::from_env().await?)
///         .on_held(|held| format!("skipped: {held}")); // without this, it fails with `LockHeld`, and Lambda retries it
///     Runtime::new(layer.layer(service_fn(report))).run().await
/// }
/// ```
///
/// Put it around the handler, inside the runtime: `Runtime::new(layer.layer(service_fn(handler)))`, for `run` and
/// `run_concurrent` alike. (`Runtime::layer` does not fit: it sees bytes, not events.) The handler keeps its signature. A
/// handler that takes a [`WithLock`](crate::WithLock) around the `LambdaEvent` gets the lock as well.
///
/// | setting | default |
/// | --- | --- |
/// | [`key`](Self::key), [`key_from`](Self::key_from) | the function's name |
/// | [`lease`](Self::lease) | until the invocation's deadline |
/// | [`wait`](Self::wait) | off |
/// | [`on_held`](Self::on_held) | the invocation fails with `LockHeld` |
/// | [`coalesce`](Self::coalesce) | an invocation that is skipped is not run later |
/// | [`on_unavailable`](Self::on_unavailable) | the invocation fails with `LockUnavailable` or `LockThrottled` |
/// | [`min_hold`](Self::min_hold) | off |
/// | [`at_most`](Self::at_most), [`at_rate`](Self::at_rate) | one invocation at a time |
/// | [`per_tenant`](Self::per_tenant) | all tenants of a function share a key |
///
/// The lock is released when the handler returns, fails or panics; the panic then continues. A handler that is still
/// running when the lease ends is cancelled, and the invocation fails with `LockLost`. By default Lambda's own timeout is
/// due at the same time and usually comes first; on Managed Instances, nothing but this layer ends the handler. A handler
/// that blocks its thread is not cancelled, and fails in the same way when it returns. Work in `spawn_blocking` or
/// `tokio::spawn` is not cancelled either: [give it the lock](crate::docs::operate::deploying#managed-instances). A failed
/// release is logged and does not replace the handler's result.
///
/// Put a timeout inside of this layer. One outside drops the handler and the lock, whose release in the background Lambda
/// may freeze.
///
/// Two requests for an invocation that runs the handler, one for an invocation that finds the key held; more for one that
/// [waits](Self::wait). IAM action `dynamodb:UpdateItem`.
///
/// # A handler that uses a client
///
/// The layer keeps your handler, so a closure that borrows a client of `main` does not compile under a layer (error E0597).
/// Move the client into the closure, and clone it for each event:
///
/// ```no_run
/// # use aws_sdk_dynamodb::Client;
/// # use lambda_lock::{LockLayer, Locks};
/// # use lambda_runtime::{Error, LambdaEvent, Runtime};
/// # use tower::{Layer, service_fn};
/// # async fn report(client: &Client, _: LambdaEvent<()>) -> Result<(), Error> { Ok(drop(client.clone())) }
/// # async fn example(layer: LockLayer<LambdaEvent<()>, ()>, client: Client) -> Result<(), Error> {
/// let handler = service_fn(move |event| {
///     let client = client.clone();
///     async move { report(&client, event).await }
/// });
/// Runtime::new(layer.layer(handler)).run().await
/// # }
/// ```
///
/// The service of a layer is a type without a lifetime, which `lambda_runtime` runs in a boxed future. With
/// `service_fn(|event| report(&client, event))`, which is enough for `lambda_runtime` alone, that future would borrow `client`.
///
/// # Durable functions
///
/// Do not put the layer around the entry of a durable function. Each suspension ends an invocation, and that releases the
/// lock in the middle of the execution. Hold the lock for an [identity](crate::docs::reference::identities) from the first step
/// to the last instead. If the payload is a `serde_json::Value`, the layer sees the ARN and the token of a durable execution,
/// and the invocation fails with `LockInvalid`.
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
/// Without it, `cargo lambda build`, which `sam build` uses, builds with `panic = "abort"`. A panic then ends the process,
/// and the lock stays held until its lease ends: by default for the rest of the function's timeout.
///
/// A layer or consumer built that way logs one warning when it is created, and [`Locks::check`](crate::Locks::check)
/// reports it.
///
/// # What `lambda_runtime` logs
///
/// `lambda_runtime` logs each invocation that fails as an error of the target `lambda_runtime::layers::panic`. So it logs each
/// `LockHeld`, too, although nothing has failed and the caller comes again. If the holder does the work of such an invocation,
/// answer it with [`on_held`](Self::on_held). Otherwise leave that target out, as in
/// `RUST_LOG=info,lambda_runtime::layers::panic=off`, and log what fails in your handler yourself. This crate logs the refusal at
/// level `info`.
///
/// If an event does not deserialise into the handler's payload type, `lambda_runtime` calls no layer and logs an error that
/// shows the offending value. If that value may be secret, take a `LambdaEvent<serde_json::Value>` and read the payload in
/// the handler: every event is a `Value`, and the error is your own. Alternatively, suppress the line with a filter
/// directive, as in `RUST_LOG=info,lambda_runtime::layers::api_response=off`. The response to the invocation then still
/// contains the value.
pub struct LockLayer<H: HandlerInput<Arc<Lock>>, R> {
    settings: Arc<LockSettings<H, R>>,
}

struct LockSettings<H: HandlerInput<Arc<Lock>>, R> {
    locks: Locks,
    key: KeyOf<H::Input>,
    lease: Option<Duration>,
    wait: Option<Wait>,
    limit: Limit,
    per_tenant: bool,
    min_hold: Duration,
    on_held: Option<Answer<R>>,
    coalesce: Option<Coalesce<H::Input>>,
    on_too_little_time: Option<RunElsewhere>,
    on_unavailable: OnUnavailable,
    handler_input: PhantomData<fn(H)>,
}

type Answer<R> = Arc<dyn Fn(&Error) -> R + Send + Sync>;

/// How the work of invocations that were skipped is done.
struct Coalesce<I> {
    /// The time that a further run needs.
    needs: Duration,
    clone: fn(&I) -> I,
}

/// The closure that begins the further run elsewhere, if too little time is left for it here.
type RunElsewhere = Arc<dyn Fn() -> BoxFuture<'static, Result<(), Source>> + Send + Sync>;

/// How many invocations of a key run.
#[derive(Clone)]
enum Limit {
    /// One at a time.
    One,
    /// N at a time.
    Permits(PermitOf),
    /// N in a period.
    Rate(PassOf),
}

/// Hidden behind a pointer, so that a function without permits does not link semaphores.
type PermitOf = Arc<dyn Fn(&Locks, &str) -> Acquire + Send + Sync>;

/// Lets an invocation of this key pass within this time. Hidden behind a pointer, as permits are.
type PassOf = Arc<dyn Fn(&str, Duration) -> BoxFuture<'static, Result<(), Error>> + Send + Sync>;

type KeyOf<I> = Arc<dyn Fn(&I, &Context) -> String + Send + Sync>;

/// The policy for an invocation when DynamoDB cannot be reached or throttles, also after waiting.
///
/// ```
/// # use lambda_lock::lambda::OnUnavailable;
/// # use lambda_lock::{LockLayer, Locks};
/// # use lambda_runtime::LambdaEvent;
/// # fn example(locks: Locks) -> LockLayer<LambdaEvent<()>, ()> {
/// LockLayer::new(locks).on_unavailable(OnUnavailable::RunUnlocked)
/// # }
/// ```
///
/// An error that waiting does not resolve (no table, no access, a malformed row) always fails the invocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// The invocation fails, and Lambda retries it. Safe.
    #[default]
    Fail,
    /// The invocation runs without the lock, with a warning. Use it if running twice is better than not running. Its lock
    /// is not [enforced](Lock::is_enforced), and its fence is zero.
    RunUnlocked,
}

impl<H: HandlerInput<Arc<Lock>>, R> LockLayer<H, R> {
    /// Creates a layer with the defaults above.
    #[must_use]
    pub fn new(locks: Locks) -> Self {
        panics::warn_if_they_abort();
        Self {
            settings: Arc::new(LockSettings {
                locks,
                key: Arc::new(|_, context: &Context| context.env_config.function_name.clone()),
                lease: None,
                wait: None,
                limit: Limit::One,
                per_tenant: false,
                min_hold: Duration::ZERO,
                on_held: None,
                coalesce: None,
                on_too_little_time: None,
                on_unavailable: OnUnavailable::Fail,
                handler_input: PhantomData,
            }),
        }
    }

    /// Sets one key for all events.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        let key: String = key.into();
        self.with(|settings| settings.key = Arc::new(move |_, _| key.clone()))
    }

    /// Sets a key for each event. Events with different keys run concurrently.
    ///
    /// ```
    /// # use lambda_lock::{LockLayer, Locks};
    /// # use lambda_runtime::LambdaEvent;
    /// # struct Tenant { id: String }
    /// # fn example(locks: Locks) -> LockLayer<LambdaEvent<Tenant>, ()> {
    /// LockLayer::new(locks).key_from(|event: &LambdaEvent<Tenant>| format!("tenant#{}", event.payload.id))
    /// # }
    /// ```
    #[must_use]
    pub fn key_from(self, key: impl Fn(&H::Input) -> String + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.key = Arc::new(move |event, _| key(event)))
    }

    /// Adds the id of the invocation's tenant to the key, for a function with Lambda's tenant isolation: each tenant has its
    /// own lock, so tenants do not wait for each other. The key is `key#tenant`, by default `function#tenant`. In the
    /// tenant's id, `#` becomes `%23` and `%` becomes `%25`.
    ///
    /// ```
    /// # use lambda_lock::{LockLayer, Locks};
    /// # use lambda_runtime::LambdaEvent;
    /// # fn example(locks: Locks) -> LockLayer<LambdaEvent<()>, ()> {
    /// LockLayer::new(locks).per_tenant()
    /// # }
    /// ```
    ///
    /// Without this setting, all tenants of a function share the lock of its name, so one of them can keep the others out.
    /// [Records](crate::Idempotency::across_tenants) are per tenant by default.
    ///
    /// An invocation without a tenant id fails with `LockInvalid`, and the handler does not run.
    #[must_use]
    pub fn per_tenant(self) -> Self {
        self.with(|settings| settings.per_tenant = true)
    }

    /// Sets a lease shorter than the time until the invocation's deadline, from 1 ms to a day. The handler is cancelled
    /// when the lease ends, and a crashed environment blocks the key for less time.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| settings.lease = Some(lease))
    }

    /// Waits while the key is held, at most until 100 ms before the invocation's deadline. Off by default.
    ///
    /// With a [`Duration`] or [`Wait::in_turn`], invocations take turns in the order of arrival, which is not
    /// guaranteed. An invocation that is refused sends one more request to take a place: see
    /// [`Acquire::wait`](crate::Acquire::wait).
    #[must_use]
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        self.with(|settings| settings.wait = Some(wait.into()))
    }

    /// Holds the key for at least this long, even if the handler finishes earlier; up to a day. A schedule that fires
    /// twice, seconds apart, then runs a short job once. A handler that fails frees the key at once, for the retry. Not together
    /// with [`at_most`](Self::at_most): a permit has no minimum hold.
    #[must_use]
    pub fn min_hold(self, hold: Duration) -> Self {
        self.with(|settings| settings.min_hold = hold)
    }

    /// Runs up to `permits` invocations of a key at a time, instead of one: each acquires a permit of the key's
    /// [semaphore](Locks::semaphore). From 1 to 100; another number fails every invocation with `LockInvalid`.
    ///
    /// ```
    /// # use lambda_lock::{LockLayer, Locks};
    /// # use lambda_runtime::LambdaEvent;
    /// # struct Payment { bank: String }
    /// # fn example(locks: Locks) -> LockLayer<LambdaEvent<Payment>, ()> {
    /// LockLayer::new(locks)
    ///     .key_from(|event: &LambdaEvent<Payment>| format!("calls#{}", event.payload.bank))
    ///     .at_most(5)
    /// # }
    /// ```
    ///
    /// A key is either a lock or a semaphore: the first deployment with this setting needs another key than a layer without
    /// it. Invocations that [wait](Self::wait) take turns, as those for a lock.
    #[must_use]
    pub fn at_most(self, permits: u32) -> Self {
        self.with(|settings| {
            settings.limit = Limit::Permits(Arc::new(move |locks, key| locks.semaphore(key, permits).acquire()));
        })
    }

    /// Starts `calls` invocations of a key in a `period`, spread evenly, instead of one at a time: each passes the key's
    /// [rate](Locks::rate). With [`wait`](Self::wait), an invocation sleeps until its time comes. Otherwise, and if the wait would
    /// be too long, it finds the key held: [`on_held`](Self::on_held) answers it, or it fails with `LockHeld`. Choose a wait
    /// that is longer than [clocks may differ](Rate#which-calls-pass).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{LockLayer, Locks};
    /// # use lambda_runtime::LambdaEvent;
    /// # struct Payment { bank: String }
    /// # fn example(locks: Locks) -> LockLayer<LambdaEvent<Payment>, ()> {
    /// LockLayer::new(locks)
    ///     .key_from(|event: &LambdaEvent<Payment>| format!("rate#{}", event.payload.bank))
    ///     .at_rate(10, Duration::from_secs(1))
    ///     .wait(Duration::from_secs(5))
    /// # }
    /// ```
    ///
    /// Nothing is held while the handler runs, so its lock is not [enforced](Lock::is_enforced), and
    /// [`min_hold`](Self::min_hold) has no effect. Replaces [`at_most`](Self::at_most), and needs another key than a layer
    /// without this setting. To limit both, put one layer around the other.
    #[must_use]
    pub fn at_rate(self, calls: u32, period: Duration) -> Self {
        let rate = self.settings.locks.rate("", calls, period);
        let pass = move |key: &str, wait| -> BoxFuture<'static, _> {
            let rate: Rate = rate.on(key);
            Box::pin(async move { rate.pass_within(wait).await })
        };
        self.with(|settings| settings.limit = Limit::Rate(Arc::new(pass)))
    }

    /// Answers an invocation that finds the key held, instead of failing it. The error names the
    /// [holder](Error::holder), and until when the key is held.
    ///
    /// The caller takes an answer for success and does not retry. This is right if the holder does the caller's work, as
    /// two deliveries of one schedule do. If each event has work of its own, leave this out: the invocation then fails with
    /// `LockHeld`, and its service retries it. Around a consumer, an answer that names no item deletes items that nobody did.
    /// `lambda_runtime` logs each `LockHeld` as an error: [how to stop that](Self#what-lambda_runtime-logs).
    ///
    /// The closure is called for each invocation that it answers, and for no other one, so it may count or log them.
    ///
    /// If the holder crashes, its key stays held until its lease ends, and its own retry must not be answered "skipped".
    /// Lambda retries an asynchronous invocation with the same request id, up to two times. The layer recognises it by that
    /// id in the holder's name, and fails it while the key is held. Keep the lease under a minute, or give the function a
    /// failure destination. Other callers (queues, streams, state machines, HTTP clients) retry with a new request id,
    /// which is answered. For them, leave this out, or let the answer make them retry.
    ///
    /// Lambda may also deliver an event twice while the first delivery runs. The second one fails in the same way, and its
    /// retry runs after the first has released the key. Let the work recognise its event by the request id, or choose a
    /// [`min_hold`](Self::min_hold) of several minutes.
    #[must_use]
    pub fn on_held(self, answer: impl Fn(&Error) -> R + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.on_held = Some(Arc::new(answer)))
    }

    /// Runs the handler once more if other invocations were skipped meanwhile. Off by default. For work that has to see each
    /// change, such as the rebuild of an index: a change that comes in while the handler runs may be too late for this run.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{LockLayer, Locks};
    /// # use lambda_runtime::LambdaEvent;
    /// # fn example(locks: Locks) -> LockLayer<LambdaEvent<()>, String> {
    /// LockLayer::new(locks)
    ///     .on_held(|held| format!("left to the run of {held}"))
    ///     .coalesce(Duration::from_secs(20))
    /// # }
    /// ```
    ///
    /// An invocation that finds the key held leaves its work to the holder, and is answered by [`on_held`](Self::on_held), which
    /// this setting needs. However many were skipped, one more run follows, which begins after all of them. It is a new
    /// acquisition with a larger [fence](Lock::fence), and handles the event of the invocation that runs it, not those that were
    /// skipped: let the handler read what has changed.
    ///
    /// The further run follows whatever the first one ended with: the event that was skipped may be the one that mends a failure.
    /// The invocation ends as its last run does.
    ///
    /// `needs` is the time that a run needs. If less is left until the deadline, the invocation fails instead, after it has
    /// released the key, so that its service retries it: with the error of a handler that failed, or with `LockRunAgain`. Lambda
    /// retries an asynchronous invocation, twice. The same holds if DynamoDB does not answer whether work was left. If changes come
    /// all the time, or nobody retries, [send an event](Self::on_too_little_time) instead, or give the function a failure
    /// destination.
    ///
    /// So after each invocation that was skipped, a run begins, unless the holder crashes, panics or loses its lock and nobody
    /// retries it: [all cases](crate::docs::recipes::rebuild#who-does-the-skipped-work). If an answer of DynamoDB is lost, or if
    /// another invocation gets the key between the two runs, one run more than needed may follow. All functions that share the key
    /// need this setting, and a handler that gets the [lock](crate::WithLock) leaves the release to this layer.
    ///
    /// With a [wait](Self::wait), an invocation leaves its work to the holder that has the key when the wait ends. If that
    /// holder has gone since, the invocation asks again at once, up to two times, and does not wait again.
    ///
    /// No request more if nobody was skipped; one for each invocation that is skipped, and two for the further run.
    ///
    /// Does not go together with [`min_hold`](Self::min_hold), [`at_most`](Self::at_most), [`at_rate`](Self::at_rate) and
    /// [`OnUnavailable::RunUnlocked`]: the invocation then fails with `LockInvalid`.
    #[must_use]
    pub fn coalesce(self, needs: Duration) -> Self
    where
        H::Input: Clone,
    {
        let coalesce = Coalesce { needs, clone: H::Input::clone };
        self.with(|settings| settings.coalesce = Some(coalesce))
    }

    /// Calls this after the key was released, instead of failing the invocation with `LockRunAgain`, if there is too little time to
    /// [run once more](Self::coalesce). Use it if nobody retries the invocation: let it send the event that begins another one. If
    /// it fails, the invocation fails with `LockRunAgain` and this source. After a handler that failed, it is called as well,
    /// and the invocation fails with the error of the handler.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{LockLayer, Locks};
    /// # use lambda_runtime::LambdaEvent;
    /// # async fn send_the_event() -> Result<(), std::io::Error> { Ok(()) }
    /// # fn example(locks: Locks) -> LockLayer<LambdaEvent<()>, String> {
    /// LockLayer::new(locks)
    ///     .on_held(|held| format!("left to the run of {held}"))
    ///     .coalesce(Duration::from_secs(20))
    ///     .on_too_little_time(|| async { Ok(send_the_event().await?) })
    /// # }
    /// ```
    #[must_use]
    pub fn on_too_little_time<F>(self, run: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        let run: RunElsewhere = Arc::new(move || Box::pin(run()));
        self.with(|settings| settings.on_too_little_time = Some(run))
    }

    /// Sets what happens if DynamoDB cannot be reached or throttles; [`OnUnavailable::Fail`] by default.
    #[must_use]
    pub fn on_unavailable(self, policy: OnUnavailable) -> Self {
        self.with(|settings| settings.on_unavailable = policy)
    }

    fn with(mut self, set: impl FnOnce(&mut LockSettings<H, R>)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<H: HandlerInput<Arc<Lock>>, R> LockSettings<H, R> {
    /// Acquires the lock for this event, or says how an invocation without it ends. An invocation that finds the key held has
    /// left its work to the holder, if it has to.
    async fn acquire<P: 'static>(&self, event: &LambdaEvent<P>, mut wait: Option<Wait>) -> Result<Lock, Refused<R>>
    where
        H: HandlerInput<Arc<Lock>, Input = LambdaEvent<P>>,
    {
        let mut tries = 0;
        loop {
            let (key, error, answer) = match self.attempt(event, wait).await {
                Err(Refused::Held { key, error, answer }) => (key, error, answer),
                acquired => return acquired,
            };
            if let (Some(_), Some(holder)) = (&self.coalesce, error.holder()) {
                match self.in_time(&event.context, &key, self.locks.coalesce(key.as_str(), holder)).await {
                    Ok(true) => metrics::count_by(metrics::REFUSED, metrics::REASON, "left_to_holder"),
                    Err(unanswered) => return Err(counted(unanswered)),
                    Ok(false) if tries + 1 == COALESCE_TRIES => return Err(counted(error)),
                    // The holder has gone since the wait ended.
                    Ok(false) => {
                        (tries, wait) = (tries + 1, None);
                        continue;
                    }
                }
            }
            return Err(Refused::Held { key, error, answer });
        }
    }

    /// Limits requests for this key, so that Lambda gets an answer.
    async fn in_time<T>(
        &self,
        context: &Context,
        key: &str,
        requests: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = time_to_ask(self.time_left(context));
        let unanswered = || Error::new(Cause::Unavailable, self.locks.0.table.place(), key);
        tokio::time::timeout(limit, requests).await.unwrap_or_else(|_| Err(unanswered()))
    }

    /// Returns the time until the deadline of the invocation.
    fn time_left(&self, context: &Context) -> Duration {
        let now = self.locks.0.clock.now();
        let deadline = deadline_if_any(context.deadline(), now);
        deadline.map_or(Duration::MAX, |deadline| since_epoch(deadline).saturating_sub(now.wall))
    }

    /// Makes one acquire.
    async fn attempt<P: 'static>(&self, event: &LambdaEvent<P>, wait: Option<Wait>) -> Result<Lock, Refused<R>>
    where
        H: HandlerInput<Arc<Lock>, Input = LambdaEvent<P>>,
    {
        let context = &event.context;
        check_not_durable(&event.payload, &self.locks).inspect_err(record_refusal).map_err(Refused::Error)?;
        let key = (self.key)(event, context);
        let key = if self.per_tenant && self.locks.0.enabled {
            key_of_tenant(context, key).inspect_err(record_refusal).map_err(Refused::Error)?
        } else {
            key
        };
        let is_alone = self.min_hold.is_zero() && matches!(self.limit, Limit::One);
        if self.coalesce.is_some() && !(is_alone && self.on_unavailable == OnUnavailable::Fail) {
            let why = "`coalesce` does not go together with `min_hold`, `at_most`, `at_rate` and `RunUnlocked`: leave one of them out";
            let error = Error::invalid(why);
            record_refusal(&error);
            return Err(Refused::Error(error));
        }
        let acquire = match &self.limit {
            Limit::Permits(permit) => permit(&self.locks, &key),
            Limit::One | Limit::Rate(_) => self.locks.acquire(&key),
        };
        let acquire = acquire.min_hold(self.min_hold).holder(holder(context));
        let mut acquire = acquire.deadline(context.deadline());
        // Here it is not known yet whether the work is left to the holder.
        acquire.is_counted_later = self.coalesce.is_some();
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        if let Some(wait) = wait {
            acquire = acquire.wait(wait);
        }
        let acquired = match &self.limit {
            Limit::Rate(pass) => {
                let passed = self.in_time(context, &key, pass(&key, acquire.longest_wait())).await;
                passed.and_then(|()| acquire.unlocked())
            }
            Limit::One | Limit::Permits(_) => acquire.send().await,
        };
        match acquired {
            Ok(lock) => Ok(lock),
            Err(error) if error.is_held() => match &self.on_held {
                Some(answer) if !is_held_by_attempt(context, &error) => {
                    Err(Refused::Held { key, error, answer: Arc::clone(answer) })
                }
                _ if self.coalesce.is_some() => Err(counted(error)),
                _ => Err(Refused::Error(error)),
            },
            Err(error)
                if self.on_unavailable == OnUnavailable::RunUnlocked
                    && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Throttled) =>
            {
                tracing::warn!(key = &*printable(error.key()), ?error, "running without the lock");
                acquire.unlocked().map_err(Refused::Error)
            }
            Err(error) => Err(Refused::Error(error)),
        }
    }
}

/// How often an invocation looks for another holder that it can leave its work to.
const COALESCE_TRIES: u32 = 3;

enum Refused<R> {
    /// The key is held, and this closure answers.
    Held {
        key: String,
        error: Error,
        answer: Answer<R>,
    },
    Error(Error),
}

/// Counts an error that the acquire has left to be counted here.
fn counted<R>(error: Error) -> Refused<R> {
    count_refusal(&error);
    Refused::Error(error)
}

impl<S, H: HandlerInput<Arc<Lock>>, R> Layer<S> for LockLayer<H, R> {
    type Service = LockService<S, H, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

/// The service that [`LockLayer`] makes from a handler.
///
/// The handler is cloned for each event, because the lock is acquired after the handler is ready and before it is called.
/// A function or closure in `service_fn` is `Clone` if its captures are.
pub type LockService<S, H, R> = Layered<S, LockLayer<H, R>>;

impl<S, H, P, R> Service<LambdaEvent<P>> for LockService<S, H, R>
where
    S: Service<H, Response = R> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    H: HandlerInput<Arc<Lock>, Input = LambdaEvent<P>> + Send + 'static,
    P: Send + Sync + 'static,
    R: Send + 'static,
{
    type Response = R;
    type Error = HandlerError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<R, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(HandlerError::Handler)
    }

    fn call(&mut self, mut event: LambdaEvent<P>) -> Self::Future {
        // The instance that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(&self.layer.settings);
        Box::pin(async move {
            let mut lock = match settings.acquire(&event, settings.wait).await {
                Ok(lock) => Arc::new(lock),
                Err(Refused::Held { error, answer, .. }) => return Ok(answer(&error)),
                Err(Refused::Error(error)) => return Err(HandlerError::Lock(error)),
            };
            loop {
                let again = settings.coalesce.as_ref().map(|coalesce| ((coalesce.clone)(&event), coalesce));
                let input = H::with(event, &lock);
                // Outside of the work, whose result is dropped if it returns after the lease.
                let mut answer = None;
                let work = async {
                    let result = inner.call(input).await;
                    if result.is_err() {
                        lock.clear_min_hold();
                    }
                    answer = Some(result);
                };
                let release = async {
                    if again.is_some() { lock.release_coalescing().await } else { lock.release().await.map(|()| false) }
                };
                let held = hold_until(&lock, work, release).await;
                let (answer, released) = match (answer.map(|answer| answer.map_err(HandlerError::Handler)), held) {
                    (Some(answer), Ok(((), released))) => (answer, released),
                    // The error of the handler explains more than that its lock was lost meanwhile.
                    (Some(failed @ Err(_)), Err(_)) => return failed,
                    (_, lost) => {
                        let lost = lost.err().unwrap_or_else(|| lock.error(Cause::Lost(None)));
                        return Err(HandlerError::Lock(lost));
                    }
                };
                let Some((next, coalesce)) = again else { return answer };
                // The outcome is that of the last run, and its error explains more than one of the lock.
                match released {
                    Ok(true) => {}
                    Ok(false) => return answer,
                    // Nobody knows, if an operator has freed the key.
                    Err(error) if error.is_lost() => {}
                    Err(error) => return answer.and(Err(HandlerError::Lock(error))),
                }
                if settings.time_left(&next.context) < coalesce.needs {
                    let too_late = lock.error(Cause::RunAgain);
                    let Some(run) = &settings.on_too_little_time else {
                        return answer.and(Err(HandlerError::Lock(too_late)));
                    };
                    return match run().await {
                        Ok(()) => answer,
                        Err(source) => answer.and(Err(HandlerError::Lock(too_late.with_source(source)))),
                    };
                }
                // Without a wait: an invocation that has taken the key since can run once more as well.
                lock = match settings.acquire(&next, None).await {
                    Ok(lock) => Arc::new(lock),
                    Err(Refused::Held { .. }) => return answer,
                    Err(Refused::Error(error)) => return answer.and(Err(HandlerError::Lock(error))),
                };
                event = next;
                poll_fn(|context| inner.poll_ready(context)).await.map_err(HandlerError::Handler)?;
            }
        })
    }
}

// By hand, because a derive would require the event and the response to be `Clone` and `Debug`.
impl<H: HandlerInput<Arc<Lock>>, R> Clone for LockSettings<H, R> {
    fn clone(&self) -> Self {
        Self {
            locks: self.locks.clone(),
            key: Arc::clone(&self.key),
            on_held: self.on_held.clone(),
            limit: self.limit.clone(),
            coalesce: self.coalesce.as_ref().map(|coalesce| Coalesce { ..*coalesce }),
            on_too_little_time: self.on_too_little_time.clone(),
            ..*self
        }
    }
}

impl<H: HandlerInput<Arc<Lock>>, R> Clone for LockLayer<H, R> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

impl<H: HandlerInput<Arc<Lock>>, R> fmt::Debug for LockLayer<H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").field("locks", &self.settings.locks).finish_non_exhaustive()
    }
}
