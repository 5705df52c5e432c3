//! `Acquire`: one acquisition, from its options through its attempts to the lock.

use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::timeout;
use tracing::{Instrument, Span};

use super::attempt::{Attempt, Turn};
use super::held::{Grant, Lock, in_background};
use super::locks::{Locks, check_attribute_name};
use super::telemetry::{self, AcquireSpan, HoldSpan};
use super::turn::{self, Memory};
use super::turns::{Step, Turns};
use super::wait::{Wait, Waiting};
use crate::client::SdkAttempts;
use crate::clock::{Lease, Moment, millis, since_epoch};
use crate::error::{Cause, Error, ErrorKind};
use crate::holder::{Data, Holder};
use crate::limits::{
    DAY, MIN_LEASE, TIME_TO_ANSWER, check_attributes, check_duration, check_holder, check_identity, deadline_if_any,
    time_to_ask,
};
use crate::random;
use crate::row::{Acquisition, Claim, Claimed, Joined, Kind, Rank, owner_of};
use crate::text::printable;
use crate::trace;

/// How long a refusal waits for a withdrawal.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a waiter waits for its place.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

impl Locks {
    /// Prepares an acquire of the lock on `key`. Await it, or set options first. Without [`Acquire::wait`], one request;
    /// IAM action `dynamodb:UpdateItem`.
    pub fn acquire(&self, key: impl Into<String>) -> Acquire {
        self.acquire_kind(Kind::key(key.into()))
    }

    pub(crate) fn acquire_kind(&self, kind: Kind) -> Acquire {
        Acquire {
            locks: self.clone(),
            kind,
            lease: None,
            until: None,
            wait: None,
            around_pause: None,
            hold_at_least: Duration::ZERO,
            holder: None,
            identity: None,
            takes_over: false,
            data: None,
            attributes: Vec::new(),
        }
    }

    /// Acquires the lock on `key`, or returns `None` if another holder has it. One request; IAM action
    /// `dynamodb:UpdateItem`.
    pub async fn try_acquire(&self, key: impl Into<String>) -> Result<Option<Lock>, Error> {
        match self.acquire(key).await {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.is_held() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// An acquire that was not sent yet. Await it to get a [`Lock`], or [`run`](Self::run) work under the lock.
///
/// Without options it makes one attempt, and fails with an error that [`is_held`](Error::is_held) if another holder has the
/// key. Each attempt is one `UpdateItem` (IAM action `dynamodb:UpdateItem`), plus the SDK's retries after a throttled or
/// lost request. With [`wait`](Self::wait), the wait decides when a throttled attempt is made again, and a refused acquire
/// also takes a place in the key's queue, which is one more `UpdateItem`. Dropping the future ends the wait.
///
/// An answer that comes after the end of the lease is discarded: the acquire frees the key, and the attempt fails with an
/// error of kind [`Unavailable`](crate::ErrorKind::Unavailable).
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks, deadline: SystemTime) -> Result<(), Error> {
/// let lock = locks
///     .acquire("nightly-report")
///     .until(deadline)
///     .wait(Duration::from_secs(5))
///     .await?;
/// println!("acquired with fence {}", lock.fence());
/// lock.release().await
/// # }
/// ```
///
/// # Withdrawal
///
/// An unanswered request can still arrive. So if an acquire ends without the lock while one of its requests is unanswered,
/// it withdraws: one request makes the row refuse the late one, and another frees the key if it had arrived already. At most
/// six, while others change the row.
///
/// If DynamoDB answered the last attempt, the acquire waits for the withdrawal: up to 1 s, and not past the deadline.
/// Otherwise, and if that time runs out or the future is dropped, the withdrawal is sent in the background. Lambda freezes
/// an idle environment, and background requests with it, except on Managed Instances. [`Locks::flush`] waits for them.
///
/// If the withdrawal does not arrive, the late request can take the key without a holder. The key is free when that lease ends.
#[must_use = "an acquire does nothing unless it is awaited"]
pub struct Acquire {
    locks: Locks,
    /// What it claims. An acquire changes it only before it is sent.
    pub(super) kind: Kind,
    lease: Option<Duration>,
    until: Option<SystemTime>,
    wait: Option<Wait>,
    around_pause: Option<Arc<dyn AroundPause>>,
    hold_at_least: Duration,
    holder: Option<String>,
    identity: Option<String>,
    /// Only an earlier acquire of the identity is replaced.
    takes_over: bool,
    data: Option<Data>,
    attributes: Vec<(String, AttributeValue)>,
}

impl Acquire {
    /// Sets the lease, the time after which the lock ends unless it is renewed: from 1 ms to 366 days, and with
    /// [`until`](Self::until), or for a permit of a semaphore, to a day. The default is the time until the deadline if
    /// `until` is set, and otherwise the lease of the [`Locks`].
    ///
    /// A lease of more than a day is for a lock that outlives its invocation ([`Lock::into_ticket`]). If its process or its
    /// ticket is lost, the key stays held until the lease ends, or until an operator [frees](Locks::force_release) it. A
    /// shorter lease that is renewed costs a request each time, and ends soon after a crash.
    #[doc(alias = "ttl", alias = "timeout")]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Ends the lease at this time by the host's clock, such as the deadline of the Lambda invocation: at most a day from
    /// now. With [`lease`](Self::lease) too, the earlier end counts. A wait ends 100 ms before the deadline, so that there is
    /// time to answer.
    ///
    /// A deadline that has just passed is an error of kind [`Invalid`](crate::ErrorKind::Invalid). One that is more than a day
    /// ago counts as none: `cargo lambda watch` gives a function a deadline in 1970, and a `Context` made by hand has zero.
    pub fn until(mut self, deadline: SystemTime) -> Self {
        self.until = deadline_if_any(deadline, self.locks.0.clock.now());
        self
    }

    /// Waits while the key is held, and retries after throttling and server errors. Off by default.
    ///
    /// With a [`Duration`] or [`Wait::in_turn`], waiters take turns in the order of arrival, which is not guaranteed. A
    /// free key without waiters costs one request, as without a wait. A waiter that is refused sends one request to
    /// take a place and one for each attempt: about six in all, with its release. IAM action `dynamodb:UpdateItem`.
    /// With [`Wait::backoff`], it takes no place.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = Some(wait.into());
        self
    }

    /// Calls `before` and `after` around each pause because of another holder.
    #[cfg(feature = "idempotency")]
    pub(crate) fn around_pause(mut self, around_pause: Option<Arc<dyn AroundPause>>) -> Self {
        self.around_pause = around_pause;
        self
    }

    /// Keeps the key held for at least this long after the acquire, even if the lock is released earlier. A schedule that
    /// fires twice, seconds apart, then runs a short job once. Off by default; up to a day.
    ///
    /// It does not extend the lease of a holder that crashed. The key is free at once if the lock is dropped without a
    /// release, or if its [`run`](Self::run) panics or is cancelled.
    #[doc(alias = "cron")]
    pub fn hold_at_least(mut self, hold: Duration) -> Self {
        self.hold_at_least = hold;
        self
    }

    /// Sets the holder's name that others read, up to 1,024 bytes: by default that of the [`Locks`].
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Acquires the lock for an identity of the caller, such as the ARN of an execution or the id of a message: 1 to 1,024
    /// bytes. A later acquire of the same identity takes the lock over instead of being refused, so that a retry finds the
    /// lock of an attempt that crashed. Without [`wait`](Self::wait), one request, and two to take a lock over; IAM action
    /// `dynamodb:UpdateItem`.
    ///
    /// The identity must be unique to one piece of work: two parallel branches of a workflow need two. It has one permit of a
    /// semaphore. It is a part of the [owner](Lock::owner) in the row, so others can read it; of an identity of more than 256
    /// bytes, the row has the SHA-256 digest. Refusals, logs and the program show it. Pass a digest of one that is
    /// confidential.
    ///
    /// # Two invocations of one identity
    ///
    /// The later acquire gets a larger [fence](Lock::fence). From then on only the later holder may rely on the lock. The
    /// earlier holder learns of it from its next request: a renewal, a release or a [condition
    /// check](Lock::condition_check) fails as [lost](Error::is_lost). Without a request, its lock stays valid on its own host
    /// until its lease ends, even after the later holder has released the key and another identity has acquired it.
    ///
    /// So this option gives up the guarantee that one holder at a time considers itself valid. Use it if the earlier
    /// invocation has ended, or if a receiver rejects its smaller fence, or with the condition check in the transaction.
    ///
    /// A lock that was released is not taken over.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// let lock = locks
    ///     .acquire("nightly-report")
    ///     .owner_from(execution_arn)
    ///     .wait(Duration::from_secs(5))
    ///     .await?;
    /// # lock.release().await
    /// # }
    /// ```
    pub fn owner_from(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Takes the lock over from an earlier acquire of the same [identity](Self::owner_from), with a larger
    /// [fence](Lock::fence) and a new lease. A step of a workflow that is retried has a fence of its own for each attempt.
    /// It never acquires what is free: the lock may have been another's meanwhile. A takeover that is not answered frees nothing:
    /// the identity still holds the lock. Two `UpdateItem`s, of which the first reads the row (IAM action
    /// `dynamodb:UpdateItem`).
    ///
    /// # Errors
    ///
    /// The error [`is_lost`](Error::is_lost) if the identity does not hold the lock. Without an identity it is
    /// [invalid](ErrorKind::Invalid).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks, Ticket};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<Ticket, Error> {
    /// let lock = locks
    ///     .acquire("deploy")
    ///     .lease(Duration::from_secs(600))
    ///     .owner_from(execution_arn)
    ///     .wait(Duration::from_secs(5))
    ///     .take_over()
    ///     .await?;
    /// write(lock.fence()).await;
    /// # async fn write(_: u64) {}
    /// Ok(lock.into_ticket()) // the identity still holds the lock
    /// # }
    /// ```
    pub async fn take_over(mut self) -> Result<Lock, Error> {
        self.takes_over = true;
        self.send().await
    }

    /// Stores data with the lock, and replaces the data of the last holder. By default, that data is kept and handed over.
    /// Up to 390 KiB, and for a permit of a semaphore 200 KiB.
    pub fn data(mut self, data: impl Into<Data>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Writes another attribute to the lock row. It stays there until another acquire overwrites it. All attributes of an
    /// acquire have up to 2 KiB with their names. With the same names in all acquires of a key, the row has room for the
    /// [data](Self::data) of any holder.
    pub fn attribute(mut self, name: impl Into<String>, value: AttributeValue) -> Self {
        self.attributes.push((name.into(), value));
        self
    }

    /// Runs `body` under the lock, and releases the lock when the body returns, fails or panics. In a program that is built
    /// with `panic = "abort"`, a panic ends the process instead, and the key is free when the lease ends.
    ///
    /// Returns what the body returns, a `Result` of its own included. When the lease ends first, the body is cancelled at its
    /// next await point, and the error [`is_lost`](Error::is_lost). A body that blocks its thread is not cancelled: if it
    /// returns after the lease, the error is the same. So is it after Lambda has frozen the process until after the lease: the
    /// clock is read [before each step](Lock::while_held) of the body. Work in `spawn_blocking` or `tokio::spawn` is not
    /// cancelled either: it outlives the lock unless it watches [`Lock::is_valid`] or [`Lock::lost`]. If the key cannot be acquired, the body does
    /// not run. A failed release is logged and does not replace the body's result. Two requests.
    ///
    /// If the future is dropped, so is the body, perhaps with half of its work done, and the lock is released in the
    /// background. Put a timeout around the work in the body, or await the future on a task of its own (`tokio::spawn`).
    ///
    /// A body that returns counts as done, so [`hold_at_least`](Self::hold_at_least) applies, and the metrics count it as
    /// [released](crate::metrics::RELEASED): call [`Lock::clear_hold_at_least`] in a body that failed.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let rows = locks.acquire("nightly-report").run(async |lock| write_report(lock.fence()).await).await?;
    /// # let _: u32 = rows;
    /// # Ok(())
    /// # }
    /// # async fn write_report(_: u64) -> u32 { 0 }
    /// ```
    pub async fn run<T>(self, body: impl AsyncFnOnce(&Lock) -> T) -> Result<T, Error> {
        let lock = self.await?;
        hold(&lock, async { body(&lock).await }).await
    }

    /// Makes one attempt of a wait, for a caller that sleeps elsewhere: a workflow that is suspended, or a state machine. Pass
    /// no turn first. If another holder has the key, the outcome is a [`Turn`]: sleep for its
    /// [delay](Turn::delay), and pass it to the next attempt, which may be in another process. The waiter keeps its place.
    ///
    /// [`wait`](Self::wait) limits the time from the first attempt: a day by default. After that, a refused attempt fails
    /// with an error that [`is_held`](Error::is_held). Any other error that [`is_retryable`](Error::is_retryable) also becomes
    /// a turn, so that the wait goes on.
    ///
    /// Delays are from 1 s to 15 min, and shorter before the end of the wait: until the holder and those ahead should be done.
    /// If the hold lasts longer than others, they are up to half of its age. Without known holds, those of the next in line
    /// grow from 5 s to 30 s or a twentieth of the hold's age; waiters behind it sleep as long as its longest delay. Without
    /// a place, they are those of the backoff. The [deadline](Self::until) ends the lease and not the wait. One `UpdateItem` (IAM action
    /// `dynamodb:UpdateItem`), and one more for the place, which is taken after up to 25 ms.
    ///
    /// # Errors
    ///
    /// A turn of another key or table is [invalid](ErrorKind::Invalid).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Attempt, Error, Locks, Ticket, Turn};
    /// # struct State { turn: Option<Turn>, ticket: Option<Ticket> }
    /// /// A step of a workflow: sleeps and runs again until it has the lock.
    /// async fn acquire(locks: &Locks, execution: &str, state: &mut State) -> Result<Option<Duration>, Error> {
    ///     let acquire = locks.acquire("deploy").lease(Duration::from_secs(600)).owner_from(execution);
    ///     match acquire.attempt(state.turn.take()).await? {
    ///         Attempt::Waiting(turn) => {
    ///             let delay = turn.delay();
    ///             state.turn = Some(turn);
    ///             Ok(Some(delay))
    ///         }
    ///         Attempt::Acquired(lock) => {
    ///             state.ticket = Some(lock.into_ticket());
    ///             Ok(None)
    ///         }
    ///     }
    /// }
    /// ```
    pub async fn attempt(self, turn: Option<Turn>) -> Result<Attempt, Error> {
        self.attempt_once(turn).await
    }

    /// Makes one attempt, and tells the telemetry.
    pub(super) async fn attempt_once(mut self, turn: Option<Turn>) -> Result<Attempt, Error> {
        self.wait.get_or_insert_with(|| DAY.into());
        let settings = &self.locks.0;
        let checked = self.check();
        if !settings.enabled {
            return checked.and_then(|()| self.unlocked()).map(Attempt::Acquired);
        }
        let is_own = |turn: &Turn| turn.check(&settings.table, self.kind.all_keys());
        let checked = checked.and_then(|()| turn.as_ref().map_or(Ok(()), is_own));
        checked.inspect_err(telemetry::record_refusal)?;
        let mut telemetry = AcquireSpan::start(&self.name(), &settings.clock, true);
        let span = telemetry.span().clone();
        match self.ask_once(turn, &mut telemetry).instrument(span).await {
            Ok(AskedOnce::Acquired(lock, taken_from)) => {
                telemetry.acquired(lock.shown_key(), lock.owner(), lock.fence(), &taken_from);
                Ok(Attempt::Acquired(lock))
            }
            Ok(AskedOnce::Waiting(turn)) => {
                telemetry.postponed(turn.delay());
                Ok(Attempt::Waiting(turn))
            }
            Err(error) => {
                telemetry.refused(&error);
                Err(error)
            }
        }
    }

    /// Makes one attempt, and computes when to make the next one.
    async fn ask_once(&self, turn: Option<Turn>, telemetry: &mut AcquireSpan) -> Result<AskedOnce, Error> {
        let mut attempts = AcquireAttempts::start(self)?;
        attempts.sleep_elsewhere(turn.as_ref());
        let error = match attempts.next(telemetry).await {
            Ok(Answered::Taken(taken)) if taken.is_valid(self.locks.0.clock.now()) => {
                let (lock, from) = attempts.into_lock(*taken, telemetry.span());
                return Ok(AskedOnce::Acquired(lock, from));
            }
            Ok(_) => attempts.begin_anew().await,
            Err(error) => error,
        };
        let is_over = !error.is_retryable() || attempts.is_last;
        let turn = if is_over {
            None
        } else {
            tracing::debug!(key = self.name(), ?error, "refused");
            attempts.turn_after(&error, telemetry).await
        };
        let made = if is_over { attempts.delays.attempts().saturating_add(1) } else { attempts.delays.attempts() };
        // Withdraws now if the caller goes on elsewhere or DynamoDB answered, and otherwise in the background.
        if turn.is_some() || (error.is_answered() && error.kind() != ErrorKind::Invalid) {
            attempts.give_up().await;
        }
        turn.map(AskedOnce::Waiting).ok_or_else(|| error.with_attempts(made))
    }

    /// Acquires the lock. Borrows the options, so that a caller can fall back to [`unlocked`](Self::unlocked).
    pub(crate) async fn send(&self) -> Result<Lock, Error> {
        match self.begin().await? {
            Begun::Acquired(lock) => Ok(lock),
            Begun::Completed(record) => Err(self.acquisition()?.error(Cause::Held(*record), &self.locks.0.table)),
        }
    }

    /// Acquires what is claimed, unless a record shows that the work is done.
    pub(crate) async fn begin(&self) -> Result<Begun, Error> {
        let settings = &self.locks.0;
        let checked = self.check();
        if !settings.enabled {
            return checked.and_then(|()| self.unlocked()).map(Begun::Acquired);
        }
        // Validate first: the span must not carry an oversized key.
        checked.inspect_err(telemetry::record_refusal)?;
        let mut telemetry = AcquireSpan::start(&self.name(), &settings.clock, self.waits());
        let span = telemetry.span().clone();
        match self.ask(&mut telemetry).instrument(span).await {
            Ok(Asked::Acquired(lock, taken_from)) => {
                telemetry.acquired(lock.shown_key(), lock.owner(), lock.fence(), &taken_from);
                Ok(Begun::Acquired(lock))
            }
            Ok(Asked::Completed(record)) => {
                telemetry.completed();
                Ok(Begun::Completed(record))
            }
            Err(error) => {
                telemetry.refused(&error);
                Err(error)
            }
        }
    }

    /// Makes attempts until one succeeds or the wait ends.
    async fn ask(&self, telemetry: &mut AcquireSpan) -> Result<Asked, Error> {
        let mut attempts = AcquireAttempts::start(self)?;
        let error = loop {
            let error = match attempts.next(telemetry).await {
                Ok(Answered::Taken(taken)) if taken.is_valid(self.locks.0.clock.now()) => {
                    let (lock, from) = attempts.into_lock(*taken, telemetry.span());
                    return Ok(Asked::Acquired(lock, from));
                }
                Ok(Answered::Completed(record)) => {
                    attempts.give_up().await;
                    return Ok(Asked::Completed(record));
                }
                Ok(answered) => {
                    let error = attempts.begin_anew().await;
                    if matches!(answered, Answered::InPart) && self.waits() && attempts.asks_at_once() {
                        continue;
                    }
                    error
                }
                Err(error) => error,
            };
            if !error.is_retryable() {
                break error;
            }
            tracing::debug!(key = self.name(), ?error, "refused");
            if !attempts.pause(&error, telemetry).await {
                break error.with_attempts(attempts.delays.attempts());
            }
        };
        // Withdraws now if DynamoDB answered the last attempt, and otherwise in the background.
        if error.is_answered() && error.kind() != ErrorKind::Invalid {
            attempts.give_up().await;
        }
        Err(error)
    }

    /// Returns a lock that is not enforced, for work that runs without protection.
    pub(crate) fn unlocked(&self) -> Result<Lock, Error> {
        let now = self.locks.0.clock.now();
        let telemetry = HoldSpan::new(Span::none(), self.name());
        let grant = Grant::unlocked(now, self.lease_from(now)?);
        Ok(Lock::new(self.locks.clone(), self.acquisition()?, grant, telemetry, Duration::ZERO))
    }

    fn waits(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_repeated())
    }

    /// Returns the text that names the rows' keys for people.
    fn name(&self) -> String {
        self.kind.name(self.locks.0.table.place())
    }

    /// Draws a new nonce.
    fn acquisition(&self) -> Result<Acquisition, Error> {
        let nonce = self.locks.0.table.nonce(self.kind.all_keys().first().map_or("", String::as_str))?;
        Ok(Acquisition::new(self.kind.clone(), owner_of(self.identity.as_deref(), &nonce)))
    }

    fn check(&self) -> Result<(), Error> {
        self.kind.check(&self.locks.0.table.key_prefix)?;
        if let Some(lease) = self.lease {
            self.kind.check_lease("lease", lease, self.until.is_some())?;
        }
        if let Some(identity) = &self.identity {
            check_identity(identity)?;
        }
        if self.takes_over && self.identity.is_none() {
            return Err(Error::invalid("a takeover needs the identity of the holder: set `owner_from`"));
        }
        check_duration("minimum hold", self.hold_at_least, Duration::ZERO, DAY)?;
        self.wait.map_or(Ok(()), |wait| wait.check())?;
        if let Some(data) = &self.data {
            self.kind.check_data(data)?;
        }
        check_holder(self.holder_name())?;
        let table = &self.locks.0.table;
        let sort_key = table.sort_key.as_ref().map(|(name, _)| name);
        let mut seen = vec![&table.partition_key];
        seen.extend(sort_key);
        for (name, _) in &self.attributes {
            check_attribute_name("attribute", name)?;
            if seen.contains(&name) {
                let name = printable(name);
                return Err(Error::invalid(format!("the attribute `{name}` is set twice, or is a key of the table")));
            }
            seen.push(name);
        }
        check_attributes(&self.attributes)
    }

    /// Returns the lease of an attempt at this moment.
    fn lease_from(&self, now: Moment) -> Result<Lease, Error> {
        let settings = &self.locks.0;
        let lease = match (self.lease, self.time_left(now)) {
            (Some(lease), Some(left)) => lease.min(left),
            (None, Some(left)) => left,
            (lease, None) => lease.unwrap_or(settings.lease),
        };
        if lease < MIN_LEASE {
            return Err(Error::invalid(format!(
                "the deadline for key `{}` has passed: there is no time left to hold it",
                self.name()
            )));
        }
        self.kind.check_lease("time until the deadline", lease, self.until.is_some())?;
        Ok(settings.table.lease(&self.kind, now, now.deadline_after(lease), None))
    }

    fn holder_name(&self) -> &str {
        self.holder.as_deref().unwrap_or(&self.locks.0.holder)
    }

    /// Returns the time until the deadline, if there is one.
    fn time_left(&self, now: Moment) -> Option<Duration> {
        self.until.map(|until| since_epoch(until).saturating_sub(now.wall))
    }

    fn time_to_withdraw(&self) -> Duration {
        self.time_left(self.locks.0.clock.now())
            .map_or(WITHDRAWAL_TIMEOUT, |left| time_to_ask(left).min(WITHDRAWAL_TIMEOUT))
    }
}

/// Omits data and attributes, which may be confidential.
impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("key", &self.name()).finish_non_exhaustive()
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lock, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.send().await })
    }
}

/// What a caller does around each pause of an acquire that waits for another holder. The wait ends if it takes longer than
/// that.
pub(crate) trait AroundPause: Send + Sync {
    /// Ends when the pause may begin.
    fn before(&self) -> BoxFuture<'_, ()>;
    /// Ends when the next attempt may be sent.
    fn after(&self) -> BoxFuture<'_, ()>;
}

/// The outcome of an acquire.
#[derive(Debug)]
pub(crate) enum Begun {
    Acquired(Lock),
    /// The work was done before: this record has its result.
    Completed(Box<Holder>),
}

/// The same, with the last holder if it did not release the key.
enum Asked {
    Acquired(Lock, Vec<Holder>),
    Completed(Box<Holder>),
}

/// The outcome of one attempt, with the last holder if it did not release the key.
enum AskedOnce {
    Acquired(Lock, Vec<Holder>),
    Waiting(Turn),
}

/// The attempts of one acquire.
struct AcquireAttempts<'a> {
    acquire: &'a Acquire,
    started: Moment,
    pending: Pending,
    /// The attempts, by their numbers. A later one may find that an earlier one was applied and its answer lost. The lease of
    /// that earlier attempt counts then.
    sent: Vec<(RangeInclusive<u64>, Moment, Lease)>,
    unanswered: bool,
    delays: Waiting,
    /// The places of this waiter, if waiters take turns.
    turns: Option<Turns>,
    is_last: bool,
    /// The ranks of the last attempt, in the order of the keys.
    ranks: Vec<Rank>,
}

/// The answer to one attempt.
enum Answered {
    Taken(Box<Taken>),
    /// An earlier attempt took the key, and its lease is no longer known.
    TakenTooLong,
    /// An earlier attempt took several keys, and some of them were lost since.
    InPart,
    Completed(Box<Holder>),
}

/// A key that an attempt has taken.
struct Taken {
    grant: Grant,
    /// The last holders, if they did not release the key. Unknown after a lost answer.
    from: Vec<Holder>,
}

impl Taken {
    /// Returns `false` if the answer came after the lease.
    fn is_valid(&self, now: Moment) -> bool {
        !self.grant.lease.deadline.has_passed(now)
    }
}

impl<'a> AcquireAttempts<'a> {
    fn start(acquire: &'a Acquire) -> Result<Self, Error> {
        let started = acquire.locks.0.clock.now();
        let limit = acquire.time_left(started).map(|left| left.saturating_sub(TIME_TO_ANSWER));
        Ok(Self {
            acquire,
            started,
            pending: Pending::new(acquire)?,
            sent: Vec::new(),
            unanswered: false,
            delays: Waiting::start(acquire.wait, limit),
            turns: (!acquire.takes_over && acquire.wait.is_some_and(|wait| wait.takes_turns()))
                .then(|| Turns::new(acquire.kind.capacity(), acquire.kind.all_keys().len())),
            is_last: false,
            ranks: Vec::new(),
        })
    }

    /// Sends one attempt.
    async fn next(&mut self, telemetry: &mut AcquireSpan) -> Result<Answered, Error> {
        let Acquire { locks, data, attributes, .. } = self.acquire;
        let settings = &locks.0;
        let now = settings.clock.now();
        let lease = self.acquire.lease_from(now)?;
        self.sent.retain(|(_, _, lease)| !lease.deadline.has_passed(now));
        self.ranks = self.ranks(now);
        let trace = trace::context(telemetry.span());
        let claim = Claim {
            holder: self.acquire.holder_name(),
            now,
            lease,
            data: data.as_ref(),
            attributes,
            ranks: &self.ranks,
            takes_over: self.acquire.takes_over,
            trace: trace.as_deref(),
        };
        self.pending.may_have_key = true;
        let before = self.pending.acquisition.numbers.sent;
        telemetry.attempt();
        let asks_again = !self.is_last && self.acquire.waits();
        let sdk_attempts = if asks_again { SdkAttempts::leaving_prevented() } else { SdkAttempts::default() };
        let claimed = settings.table.acquire(&mut self.pending.acquisition, &claim, &sdk_attempts).await;
        let numbers = &mut self.pending.acquisition.numbers;
        self.sent.push((before + 1..=numbers.sent, now, lease));
        if sdk_attempts.is_unanswered() {
            (self.unanswered, numbers.unanswered) = (true, numbers.sent);
        }
        let answered = settings.clock.now();
        if let (Some(turns), Err(error)) = (&mut self.turns, &claimed)
            && error.holder().is_some()
        {
            let (table, keys) = (&settings.table, self.acquire.kind.all_keys());
            let index = |shown: &str| keys.iter().position(|key| table.place().row_key(key) == shown);
            let refused = error.holders().filter_map(|(key, holder)| Some((index(key)?, holder)));
            let owner = &self.pending.acquisition.owner;
            turns.see(refused, owner, table.clock_skew, answered, answered.since(now));
        }
        // A key that was taken is freed if this future is dropped before `into_lock`.
        let is_taken = matches!(claimed, Ok(Claimed::Granted { .. } | Claimed::Already { .. } | Claimed::InPart));
        self.pending.may_have_key = is_taken || self.unanswered;
        match claimed? {
            Claimed::Granted { fences, data, taken_from, hold_time } => {
                let excess = self.turns.as_ref().map(|turns| turns.excess(answered.since(now))).unwrap_or_default();
                let grant = Grant { fences, data, sent: now, lease, hold_time, excess };
                Ok(Answered::Taken(Box::new(Taken { grant, from: taken_from })))
            }
            Claimed::Already { fences, data, hold_time } => {
                let key = self.acquire.name();
                tracing::debug!(key, "acquired by an earlier attempt, whose answer was lost");
                // A lock without a fence would count as one that is not enforced.
                let own = self.pending.acquisition.numbers.own;
                let ours = self.sent.iter().find(|(numbers, ..)| numbers.contains(&own)).filter(|_| !fences.is_empty());
                let Some(&(_, sent, lease)) = ours else { return Ok(Answered::TakenTooLong) };
                let grant = Grant { fences, data, sent, lease, hold_time, excess: Duration::ZERO };
                Ok(Answered::Taken(Box::new(Taken { grant, from: Vec::new() })))
            }
            Claimed::InPart => {
                tracing::debug!(key = self.acquire.name(), "acquired by an earlier attempt, and lost in part since");
                Ok(Answered::InPart)
            }
            Claimed::Completed(record) => Ok(Answered::Completed(record)),
        }
    }

    fn into_lock(self, taken: Taken, span: &Span) -> (Lock, Vec<Holder>) {
        let acquisition = self.pending.into_acquisition();
        let telemetry = HoldSpan::new(span.clone(), self.acquire.name());
        let Acquire { locks, hold_at_least, .. } = self.acquire;
        (Lock::new(locks.clone(), acquisition, taken.grant, telemetry, *hold_at_least), taken.from)
    }

    /// Withdraws what the attempts so far have taken, because their lease has ended or others have a part of it: in the
    /// background if the time runs out. The numbers of later attempts are larger. Returns the error of the attempt.
    async fn begin_anew(&mut self) -> Error {
        let next = self.pending.next();
        let stale = std::mem::replace(&mut self.pending, next);
        self.unanswered = false;
        self.sent.clear();
        stale.withdraw(self.acquire.time_to_withdraw()).await;
        self.pending.acquisition.error(Cause::Unavailable, &self.acquire.locks.0.table)
    }

    /// Counts an attempt that does not say who holds the key, so that another one follows at once, also after the last one.
    /// Returns `false` at the deadline.
    fn asks_at_once(&mut self) -> bool {
        let now = self.acquire.locks.0.clock.now();
        if self.acquire.lease_from(now).is_err() {
            return false;
        }
        self.is_last = !self.delays.count(now.since(self.started));
        true
    }

    /// Returns the ranks of the next attempt.
    fn ranks(&self, now: Moment) -> Vec<Rank> {
        let takes_place = self.acquire.kind.takes_place();
        self.turns.as_ref().map(|turns| turns.ranks(takes_place, self.is_last, now)).unwrap_or_default()
    }

    /// Continues after the attempts of other processes, if there were any.
    fn sleep_elsewhere(&mut self, turn: Option<&Turn>) {
        let now = self.acquire.locks.0.clock.now();
        // The wait outlasts the deadline of this process.
        self.delays = Waiting::start(self.acquire.wait, None);
        if let Some(turn) = turn {
            self.started = now.earlier(Duration::from_millis(turn.began).min(now.wall));
            self.delays.go_on(turn.attempts);
            self.is_last = self.delays.is_last(now.since(self.started));
        }
        if let Some(turns) = &mut self.turns {
            let Acquire { kind, .. } = self.acquire;
            let memories = turn.into_iter().flat_map(Turn::memories);
            *turns = Turns::elsewhere(kind.capacity(), kind.all_keys().len(), memories, now);
        }
    }

    /// Returns the turn of the next attempt, which takes its place in the queue now, or nothing if the wait is over.
    async fn turn_after(&mut self, error: &Error, telemetry: &mut AcquireSpan) -> Option<Turn> {
        let settings = &self.acquire.locks.0;
        if !self.delays.count(settings.clock.now().since(self.started)) {
            return None;
        }
        let delay = self.next_delay(error, telemetry).await;
        let now = settings.clock.now();
        let delay = match self.turns.as_ref().filter(|turns| turns.has_place() && error.holder().is_some()) {
            Some(turns) => turns.delay_elsewhere(now),
            None => turn::elsewhere(delay),
        };
        let (delay, _) = self.delays.limit(delay, now.since(self.started));
        let memories = self.turns.iter().flat_map(Turns::memories).chain(std::iter::repeat_with(Memory::default));
        let keys = self.acquire.kind.all_keys().iter().cloned().zip(memories);
        Some(Turn::new(&settings.table, self.started.millis(), self.delays.attempts(), delay, keys))
    }

    /// Sleeps until the next attempt. Returns `false` if there is none.
    async fn pause(&mut self, error: &Error, telemetry: &mut AcquireSpan) -> bool {
        let clock = &self.acquire.locks.0.clock;
        if !self.delays.count(clock.now().since(self.started)) {
            // The wait may not end with a refusal by a free key.
            self.is_last = true;
            return self.ranks.iter().any(Rank::is_conditional)
                && error.holder().is_some()
                && self.turns.as_ref().is_some_and(Turns::is_free)
                && self.acquire.lease_from(clock.now()).is_ok();
        }
        telemetry.sleep(error.holder());
        let around = self.acquire.around_pause.as_ref().filter(|_| error.holder().is_some());
        if let Some(around) = around
            && timeout(self.left(), around.before()).await.is_err()
        {
            return false;
        }
        let delay = self.next_delay(error, telemetry).await;
        let (delay, is_last) = self.delays.limit(delay, clock.now().since(self.started));
        self.is_last = is_last;
        tokio::time::sleep(delay).await;
        if let Some(around) = around
            && timeout(self.left(), around.after()).await.is_err()
        {
            return false;
        }
        // The wall clock may have passed the deadline while the timer slept.
        self.acquire.lease_from(clock.now()).is_ok()
    }

    /// Returns what is left of the wait.
    fn left(&self) -> Duration {
        self.delays.left(self.acquire.locks.0.clock.now().since(self.started))
    }

    /// Returns the delay before the next attempt: until this waiter's turn, or that of the backoff. Takes a place in the
    /// queue if there is none yet.
    async fn next_delay(&mut self, error: &Error, telemetry: &mut AcquireSpan) -> Duration {
        let clock = &self.acquire.locks.0.clock;
        if let Some(turns) = self.turns.as_mut().filter(|_| error.kind() == ErrorKind::Conflict) {
            return turns.conflicted(random::unit());
        }
        // A place costs a write, of which the partition has too few.
        if error.kind() == ErrorKind::Throttled && !self.turns.as_ref().is_some_and(Turns::has_place) {
            self.turns = None;
        }
        while let Some(turns) = self.turns.as_ref().filter(|_| error.holder().is_some()) {
            match turns.next(clock.now(), self.acquire.kind.takes_place(), random::unit()) {
                Step::BackOff => break,
                Step::Ask(delay) => return delay,
                Step::Join { keys, delay } => {
                    tokio::time::sleep(delay.min(self.delays.left(clock.now().since(self.started)))).await;
                    if self.delays.is_over(clock.now().since(self.started)) {
                        return Duration::ZERO;
                    }
                    if let Some(delay) = self.join(&keys, telemetry).await {
                        return delay;
                    }
                }
                Step::Reserve { .. } if self.delays.is_over(clock.now().since(self.started)) => return Duration::ZERO,
                Step::Reserve { keys, time } => self.reserve(&keys, time).await,
            }
        }
        let now = clock.now();
        let remaining = error.holder().map(|holder| since_epoch(holder.until()).saturating_sub(now.wall));
        self.delays.next(remaining)
    }

    /// Takes a place in the queues of these keys. Returns the delay before the next attempt if it did not get all: none if a
    /// row is gone. A waiter that may not join does without places.
    async fn join(&mut self, keys: &[usize], telemetry: &mut AcquireSpan) -> Option<Duration> {
        let (settings, names) = (&self.acquire.locks.0, self.acquire.kind.all_keys());
        let (turns, now) = (self.turns.as_mut()?, settings.clock.now());
        let left = self.delays.left(now.since(self.started)).min(DAY);
        let until = millis(now.wall.saturating_add(left));
        let join = async |index: usize| {
            let queue = turns.queue(index);
            let joined = settings.table.join(&names[index], queue, until, now, left.min(JOIN_TIMEOUT)).await;
            (index, joined, settings.clock.now())
        };
        let joins = join_all(keys.iter().map(|index| join(*index))).await;
        let (mut delay, mut may_not_join) = (None, false);
        for (index, joined, answered) in joins {
            let key = || settings.table.place().printable_key(&names[index]);
            match joined {
                Ok(Some(Joined { place, holder })) => {
                    turns.joined(index, place, &holder, answered, answered.since(now));
                    telemetry.joined(&key(), turns.ahead(index));
                }
                Ok(None) => delay = delay.max(Some(Duration::ZERO)),
                Err(error) => {
                    tracing::debug!(key = key(), ?error, "no place in the queue");
                    if error.is_retryable() {
                        delay = delay.max(Some(turns.join_failed(index, random::unit())));
                    }
                    may_not_join |= !error.is_retryable();
                }
            }
        }
        if may_not_join {
            self.turns = None;
        }
        delay
    }

    /// Reserves these keys. Without the reservation, the waiter asks when the last of them should be free.
    async fn reserve(&mut self, keys: &[usize], time: Duration) {
        let (settings, names) = (&self.acquire.locks.0, self.acquire.kind.all_keys());
        let now = settings.clock.now();
        let left = self.delays.left(now.since(self.started));
        let time = time.min(left);
        let until = millis(now.wall.saturating_add(time));
        let names = keys.iter().map(|index| &names[*index]);
        let acquisition = &self.pending.acquisition;
        let limit = left.min(JOIN_TIMEOUT);
        let is_reserved = match settings.table.reserve(acquisition, names, until, now, limit).await {
            Ok(is_reserved) => is_reserved,
            Err(error) => {
                tracing::debug!(key = self.acquire.name(), ?error, "not reserved");
                false
            }
        };
        if let Some(turns) = &mut self.turns {
            turns.reserved(is_reserved, time, now, settings.clock.now());
        }
    }

    /// Ends without the lock, and makes sure that no late attempt takes it.
    async fn give_up(self) {
        self.pending.withdraw(self.acquire.time_to_withdraw()).await;
    }
}

/// The present attempts. Withdraws them in the background if one of them may take the key without a holder.
#[derive(Debug)]
struct Pending {
    locks: Locks,
    acquisition: Acquisition,
    /// An attempt may have taken the key, or may still take it.
    may_have_key: bool,
    /// What a takeover has taken was the identity's before, and stays so.
    keeps: bool,
}

impl Pending {
    fn new(acquire: &Acquire) -> Result<Self, Error> {
        let (locks, acquisition, keeps) = (acquire.locks.clone(), acquire.acquisition()?, acquire.takes_over);
        Ok(Self { locks, acquisition, may_have_key: false, keeps })
    }

    /// Returns the attempts after these.
    fn next(&self) -> Self {
        Self {
            locks: self.locks.clone(),
            acquisition: self.acquisition.clone(),
            may_have_key: false,
            keeps: self.keeps,
        }
    }

    fn into_acquisition(mut self) -> Acquisition {
        self.may_have_key = false;
        self.acquisition.clone()
    }

    /// Withdraws now, for at most `limit`, because Lambda freezes background requests.
    async fn withdraw(mut self, limit: Duration) {
        if self.may_have_key {
            let (Locks(settings), Self { acquisition, keeps, .. }) = (&self.locks, &self);
            let withdrawal = Box::pin(settings.table.withdraw(acquisition, &settings.clock, *keeps));
            self.may_have_key = !matches!(timeout(limit, withdrawal).await, Ok(Ok(())));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.may_have_key {
            let (locks, acquisition) = (self.locks.clone(), self.acquisition.clone());
            let keeps = self.keeps;
            in_background(&self.locks, self.acquisition.name(self.locks.0.table.place()), Span::none(), async move {
                locks.0.table.withdraw(&acquisition, &locks.0.clock, keeps).await
            });
        }
    }
}

/// Runs `body` while `lock` is held, then releases the lock.
pub(crate) async fn hold<T>(lock: &Lock, body: impl Future<Output = T>) -> Result<T, Error> {
    lock.leave_to_task();
    let outcome = AssertUnwindSafe(lock.while_held(body)).catch_unwind().await.map(Result::ok);
    if !matches!(outcome, Ok(Some(_))) {
        lock.clear_hold_at_least();
    }
    // A loss was logged before.
    if let Err(error) = in_time_to_answer(lock, lock.release()).await
        && !error.is_lost()
    {
        tracing::warn!(key = lock.shown_key(), fence = lock.fence(), ?error, "release failed");
    }
    match outcome {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(lock.error(Cause::Lost(None))),
        Err(panic) => resume_unwind(panic),
    }
}

/// Runs the `body` of an idempotent run. Returns `None` if its lease ended first, and an error if the body panicked.
#[cfg(feature = "idempotency")]
pub(crate) async fn until_overrun<T>(lock: &Lock, body: impl Future<Output = T>) -> std::thread::Result<Option<T>> {
    lock.leave_to_task();
    AssertUnwindSafe(lock.until_overrun(body)).catch_unwind().await.map(Result::ok)
}

/// Limits the last request under a lock, so that the answer to Lambda does not wait for a table that does not answer.
pub(crate) async fn in_time_to_answer<T>(
    lock: &Lock,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(lock.time_to_answer(), request).await.unwrap_or_else(|_| Err(lock.unanswered()))
}
