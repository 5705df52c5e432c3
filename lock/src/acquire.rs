//! `Acquire`: one acquisition, from its options through the waiting to the lock.

use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::FutureExt;
use tokio::time::timeout;
use tracing::{Instrument, Span};

use crate::backoff::Backoff;
use crate::client::Attempts;
use crate::clock::{Moment, since_epoch};
use crate::error::{Error, Kind};
use crate::holder::{Data, Holder};
#[cfg(feature = "idempotency")]
use crate::idempotency::Refusal;
use crate::lock::{Lock, Ownership};
use crate::locks::{Locks, MAX_LEASE, check_attribute_name, check_duration};
use crate::protocol::{Claim, Claimed, Lease, RecordClaim, TIME_TO_ANSWER, check_data, time_to_ask};
use crate::telemetry::{self, Asking, Holding};

/// How long a refusal waits for a withdrawal.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(1);

/// An acquisition that has not been sent yet: await it for a [`Lock`], or [`run`](Self::run) work under it.
///
/// Without options it makes one attempt and fails with an error that [`is_held`](Error::is_held) when someone else
/// holds the key. Each attempt is one `UpdateItem` (IAM action `dynamodb:UpdateItem`), plus the SDK's own retries
/// after a throttled or lost request.
///
/// An acquire that ends without the lock withdraws if one of its attempts was not answered: mostly two more requests free
/// the key, or let the row refuse that attempt when it arrives late. A refusal waits up to 1 s for them. After any other
/// error, and when the future is dropped, they are sent in the background. (Lambda freezes an environment between
/// invocations, and what it does in the background with it. [`Locks::flush`] waits for it.) If they do not arrive, or
/// another acquire withdraws from the same row before the late attempt arrives, that attempt may take the key for nobody:
/// it is free when that lease ends, no later.
///
/// Dropping the future stops the waiting.
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use lambda_lock::{Backoff, Error, Locks};
/// # async fn example(locks: Locks, deadline: SystemTime) -> Result<(), Error> {
/// let lock = locks
///     .acquire("nightly-report")
///     .until(deadline)
///     .wait(Backoff::default().up_to(Duration::from_secs(5)))
///     .await?;
/// println!("ours, with fence {}", lock.fence());
/// lock.release().await
/// # }
/// ```
#[must_use = "nothing is acquired until it is awaited"]
pub struct Acquire {
    locks: Locks,
    key: String,
    lease: Option<Duration>,
    until: Option<SystemTime>,
    wait: Backoff,
    hold_at_least: Duration,
    holder: Option<String>,
    data: Option<Data>,
    attributes: Vec<(String, AttributeValue)>,
    record: Option<RecordClaim>,
}

impl Acquire {
    pub(crate) fn new(locks: Locks, key: String) -> Self {
        Self {
            locks,
            key,
            lease: None,
            until: None,
            wait: Backoff::NO_WAIT,
            hold_at_least: Duration::ZERO,
            holder: None,
            data: None,
            attributes: Vec::new(),
            record: None,
        }
    }

    /// Takes the key as a record of idempotency.
    #[cfg(feature = "idempotency")]
    pub(crate) fn record(mut self, record: RecordClaim) -> Self {
        self.record = Some(record);
        self
    }

    /// How long the lock is held at the most, from 1 ms to a day; the default is that of the [`Locks`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// The lease ends at this time by the host's clock, such as the deadline of the Lambda invocation. With
    /// [`lease`](Self::lease) too, at whichever is earlier. A wait ends 100 ms before, so that
    /// there is time to say so.
    pub fn until(mut self, deadline: SystemTime) -> Self {
        self.until = Some(deadline);
        self
    }

    /// Waits while the key is held, and through throttling and server errors. Off by default.
    pub fn wait(mut self, backoff: Backoff) -> Self {
        self.wait = backoff;
        self
    }

    /// A release before this time has passed keeps the key for the rest of it, so that two schedules that fire
    /// seconds apart run a short job once. Off by default, up to a day. A crashed holder's key is free at the lease's
    /// end all the same, and that of a lock that is dropped without a release, or whose [`run`](Self::run) panicked or was
    /// cancelled, at once.
    pub fn hold_at_least(mut self, hold: Duration) -> Self {
        self.hold_at_least = hold;
        self
    }

    /// What others read as the holder's name; the default is that of the [`Locks`].
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Stores data with the lock, in place of what the last holder left. Without it, that is kept and handed over.
    pub fn data(mut self, data: impl Into<Data>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Writes another attribute with the lock row. It stays until another acquire overwrites it.
    pub fn attribute(mut self, name: impl Into<String>, value: AttributeValue) -> Self {
        self.attributes.push((name.into(), value));
        self
    }

    /// Runs `body` while holding the lock, and releases it whether the body returns, fails or panics. In a program that is
    /// built with `panic = "abort"`, a panic ends the process, and the key is free when the lease ends.
    ///
    /// When the lease ends first, the body is cancelled at its next await point and the error
    /// [`is_lost`](Error::is_lost); a body that blocks its thread is not cancelled. When the key cannot be acquired the
    /// body does not run. A failed release is logged and does not replace the body's result. Two requests.
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

    pub(crate) async fn send(&self) -> Result<Lock, Error> {
        let settings = &self.locks.0;
        let checked = self.check();
        if !settings.enabled {
            return checked.and_then(|()| self.unlocked());
        }
        // Before the span, which shall not have a key that is too long to be one.
        checked.inspect_err(telemetry::refused)?;
        let mut asking = Asking::begin(&self.key, &settings.clock, self.wait.is_repeated());
        let span = asking.span().clone();
        match self.ask(&mut asking).instrument(span).await {
            Ok((lock, taken_from)) => {
                asking.acquired(&lock, taken_from.as_ref());
                Ok(lock)
            }
            Err(error) => {
                asking.refused(&error);
                Err(error)
            }
        }
    }

    /// The attempts. The lock comes with the last holder, if its lease ended without a release.
    async fn ask(&self, asking: &mut Asking) -> Result<(Lock, Option<Holder>), Error> {
        let Self { locks, key, hold_at_least, .. } = self;
        let settings = &locks.0;
        let started = settings.clock.now();
        let mut pending = Pending { ownership: Ownership::new(locks, key)?, unresolved: false };
        // A request whose response was lost may be found applied by a later attempt: its lease is then the one that
        // counts.
        let mut sent: Vec<(Moment, Lease)> = Vec::new();
        let mut unanswered = false;
        let mut delays = self.wait.delays(
            self.until.map(|until| since_epoch(until).saturating_sub(started.wall).saturating_sub(TIME_TO_ANSWER)),
        );
        let error = loop {
            let now = settings.clock.now();
            let lease = self.lease_from(now)?;
            sent.retain(|(_, lease)| !lease.deadline.remaining(now).is_zero());
            sent.push((now, lease));
            let claim = Claim {
                key,
                owner: &pending.ownership.owner,
                holder: self.holder.as_deref().unwrap_or(&settings.holder),
                now,
                lease,
                data: self.data.as_ref(),
                attributes: &self.attributes,
                record: self.record.as_ref(),
            };
            pending.unresolved = true;
            asking.attempt();
            let attempts = Attempts::default();
            let taken = match settings.table.acquire(&claim, &attempts).await {
                Ok(Claimed::Acquired { fence, data, taken_from }) => Ok(Some((now, lease, fence, data, taken_from))),
                Ok(Claimed::Already(row)) => {
                    tracing::debug!(key, "acquired by an earlier request, whose response was lost");
                    let ours = sent.iter().find(|(_, lease)| lease.end == row.end);
                    Ok(ours.zip(row.fence).map(|(&(sent, lease), fence)| (sent, lease, fence, row.data, None)))
                }
                Ok(Claimed::Held(holder)) => {
                    let kind = match &self.record {
                        #[cfg(feature = "idempotency")]
                        Some(record) => Kind::Idempotency(Refusal::by(holder, record.validation.as_deref())),
                        _ => Kind::Held(holder),
                    };
                    Err(Error::new(kind, &settings.table.name, key))
                }
                Err(error) => Err(error),
            };
            unanswered |= attempts.is_unanswered();
            let answered = settings.clock.now();
            let error = match taken {
                Ok(Some((sent, lease, fence, data, taken_from))) if !lease.deadline.remaining(answered).is_zero() => {
                    let holding = Holding::new(asking.span().clone(), key, sent);
                    let lock = Lock::new(pending.resolve(), Some(fence), data, holding, lease, *hold_at_least);
                    return Ok((lock, taken_from));
                }
                Ok(_) => {
                    // Too late to be of use: free the key and start anew, with another nonce, for this one is refused.
                    // What is not withdrawn here is withdrawn in the background, when `stale` is dropped.
                    let fresh = Pending { ownership: Ownership::new(locks, key)?, unresolved: false };
                    let stale = std::mem::replace(&mut pending, fresh);
                    (unanswered, sent) = (false, Vec::new());
                    if !delays.are_over(answered.since(started)) {
                        stale.withdraw(self.time_to_withdraw(answered)).await;
                    }
                    Error::new(Kind::Unavailable, &settings.table.name, key)
                }
                Err(error) => error,
            };
            pending.unresolved = unanswered;
            if !error.is_worth_waiting() {
                break error;
            }
            tracing::debug!(key, %error, "refused");
            let now = settings.clock.now();
            let holder_remaining = error.holder().map(|holder| since_epoch(holder.until()).saturating_sub(now.wall));
            let delay = delays.next(now.since(started), holder_remaining);
            if let Some(delay) = delay {
                asking.sleeps();
                tokio::time::sleep(delay).await;
            }
            // The wall clock may have passed the deadline while the timer slept.
            if delay.is_none() || self.lease_from(settings.clock.now()).is_err() {
                break error.with_attempts(delays.attempts());
            }
        };
        if error.is_answered() {
            pending.withdraw(self.time_to_withdraw(settings.clock.now())).await;
        }
        Err(error)
    }

    fn time_to_withdraw(&self, now: Moment) -> Duration {
        let left = self.until.map(|until| since_epoch(until).saturating_sub(now.wall));
        left.map_or(WITHDRAWAL_TIMEOUT, |left| time_to_ask(left).min(WITHDRAWAL_TIMEOUT))
    }

    /// A lock that keeps nobody out, for work that shall run all the same.
    pub(crate) fn unlocked(&self) -> Result<Lock, Error> {
        let now = self.locks.0.clock.now();
        let ownership = Ownership::new(&self.locks, &self.key)?;
        Ok(Lock::new(
            ownership,
            None,
            None,
            Holding::new(Span::none(), &self.key, now),
            self.lease_from(now)?,
            Duration::ZERO,
        ))
    }

    fn check(&self) -> Result<(), Error> {
        self.locks.check_key(&self.key)?;
        if let Some(lease) = self.lease {
            check_duration("lease", lease, Duration::from_millis(1), MAX_LEASE)?;
        }
        check_duration("least hold", self.hold_at_least, Duration::ZERO, MAX_LEASE)?;
        self.wait.check()?;
        if let Some(data) = &self.data {
            check_data(data)?;
        }
        let table = &self.locks.0.table;
        let sort_key = table.sort_key.as_ref().map(|(name, _)| name);
        let mut seen = vec![&table.partition_key];
        seen.extend(sort_key);
        for (name, _) in &self.attributes {
            check_attribute_name("attribute", name)?;
            if seen.contains(&name) {
                return Err(Error::invalid(format!("the attribute `{name}` is given twice, or is a key of the table")));
            }
            seen.push(name);
        }
        Ok(())
    }

    /// The lease of an attempt made now.
    fn lease_from(&self, now: Moment) -> Result<Lease, Error> {
        let settings = &self.locks.0;
        let left = self.until.map(|until| since_epoch(until).saturating_sub(now.wall));
        let lease = match (self.lease, left) {
            (Some(lease), Some(left)) => lease.min(left),
            (None, Some(left)) => left,
            (lease, None) => lease.unwrap_or(settings.lease),
        };
        if lease < Duration::from_millis(1) {
            return Err(Error::invalid(format!(
                "the deadline for key `{}` has passed: there is no time to hold it",
                self.key
            )));
        }
        check_duration("time until the deadline", lease, Duration::from_millis(1), MAX_LEASE)?;
        let lease = Lease::new(now.deadline_after(lease), settings.clock_skew, settings.retention);
        Ok(match self.record.as_ref().and_then(|record| record.refuse_unfinished) {
            Some(window) => lease.kept_until(now.wall.saturating_add(window)),
            None => lease,
        })
    }
}

/// Without the data and the attributes: they may be what nobody wants in a log.
impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("key", &self.key).finish_non_exhaustive()
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lock, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.send().await })
    }
}

/// Withdraws in the background when an acquisition ends without knowing whether a request of its own was, or will be,
/// applied.
#[derive(Debug)]
struct Pending {
    ownership: Ownership,
    unresolved: bool,
}

impl Pending {
    fn resolve(mut self) -> Ownership {
        self.unresolved = false;
        self.ownership.clone()
    }

    /// Withdraws now, for at most `limit`: Lambda freezes what is left to the background.
    async fn withdraw(mut self, limit: Duration) {
        if self.unresolved {
            let withdrawal = Box::pin(self.ownership.withdraw());
            self.unresolved = !matches!(timeout(limit, withdrawal).await, Ok(Ok(())));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.unresolved {
            let ownership = self.ownership.clone();
            self.ownership.in_background(Span::none(), async move { ownership.withdraw().await });
        }
    }
}

/// Runs `body` while `lock` is held, then releases it.
pub(crate) async fn hold<T>(lock: &Lock, body: impl Future<Output = T>) -> Result<T, Error> {
    let outcome = while_held(lock, body).await;
    if !matches!(outcome, Ok(Some(_))) {
        lock.clear_hold_at_least();
    }
    // That it was lost has been told.
    if let Err(error) = in_time_to_answer(lock, lock.release()).await
        && !error.is_lost()
    {
        tracing::warn!(key = lock.key(), fence = lock.fence(), %error, "releasing a lock failed");
    }
    match outcome {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(lock.error(Kind::Lost(None))),
        Err(panic) => resume_unwind(panic),
    }
}

/// What `body` came to: `None` if the lock was lost first, an error if it panicked.
pub(crate) async fn while_held<T>(lock: &Lock, body: impl Future<Output = T>) -> std::thread::Result<Option<T>> {
    AssertUnwindSafe(async {
        tokio::select! {
            biased;
            value = body.instrument(lock.span().clone()) => Some(value),
            () = lock.overrun() => None,
        }
    })
    .catch_unwind()
    .await
}

/// Sends the last request under a lock. The answer to Lambda shall not wait for that of a table that has fallen silent.
pub(crate) async fn in_time_to_answer<T>(
    lock: &Lock,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(lock.time_to_answer(), request).await.unwrap_or_else(|_| Err(lock.unanswered()))
}
