//! `Lock`: a lock that is held, until its release.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::ConditionCheck;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tracing::Instrument;

use super::holding::{Continuation, Holding, Phase, State, Watch};
use super::locks::Locks;
use super::telemetry::HoldSpan;
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder, identity_of};
use crate::limits::{MIN_LEASE, check_duration, time_to_ask};
use crate::row::{Acquisition, Grant, Released, Renewed, Renewing};

/// A lock that was acquired.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn import() {}
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// let lock = locks.acquire("import").await?;
/// lock.while_held(import()).await?; // cancelled if the lease ends
/// lock.release().await
/// # }
/// ```
///
/// [Release](Self::release) it. A lock that is dropped without a release logs a warning and sends the release in the
/// background, if there is a tokio runtime. Without a runtime, the key is free when the lease ends.
///
/// A lease cannot stop a process that is paused. Before a write that must not happen twice, take the [`fence`](Self::fence)
/// along, and let the receiver reject a fence that is smaller than the largest one it has seen (Kleppmann, "How to do
/// distributed locking"). Or put [`condition_check`](Self::condition_check) into the DynamoDB transaction that writes.
#[must_use = "a lock that is dropped at once protects nothing"]
pub struct Lock {
    pub(super) hold: Arc<Holding>,
    data: Option<Data>,
    /// Serializes renewals, so that the lease here is that of the renewal which the row applied last.
    renewing: AsyncMutex<()>,
}

impl Lock {
    pub(super) fn new(
        locks: Locks,
        acquisition: Acquisition,
        grant: Grant,
        telemetry: HoldSpan,
        min_hold: Duration,
    ) -> Self {
        let continuation = Continuation::new(grant.sent, min_hold, locks.0.table.clock_skew);
        let Grant { fences, data, sent, lease, held_since, hold_time, excess, taken_from: _ } = grant;
        let hold = Arc::new(Holding {
            locks,
            acquisition,
            fences,
            telemetry,
            sent,
            held_since: held_since.map(Duration::from_millis),
            hold_time,
            excess,
            state: Mutex::new(State {
                lease,
                new_data: None,
                phase: Phase::Held,
                is_stopped: false,
                watched: 0,
                continuation,
            }),
            changed: Notify::new(),
        });
        if hold.is_enforced() {
            hold.locks.0.held.add(&hold);
        }
        Self { hold, data, renewing: AsyncMutex::new(()) }
    }

    /// Returns the key of the row for people.
    pub(crate) fn shown_key(&self) -> &str {
        self.hold.telemetry.key()
    }

    /// Returns the key, without the prefix: of [several](crate::Locks::acquire_all), the first in alphabetical order.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.acquisition.key()
    }

    /// Returns the keys in alphabetical order, without the prefix. A lock has more than one key if
    /// [`Locks::acquire_all`](crate::Locks::acquire_all) acquired it.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        self.hold.acquisition.target().keys()
    }

    /// Returns the nonce of this acquisition: 128 bits from the operating system's generator, in hexadecimal. With
    /// [`identity`](crate::Acquire::identity), the length of the identity and the identity precede it, as in
    /// `5#order#0f…`.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.hold.acquisition.owner
    }

    /// Returns the identity for which the lock was acquired: [your own](crate::Acquire::identity) or a
    /// [random](crate::Acquire::random_identity) one. `None` without either. Of your own with more than 256 bytes, returns
    /// `sha256:` and the digest, which names the same identity.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        identity_of(self.owner())
    }

    /// Returns the fencing token, which is larger than that of every earlier acquisition of this key: of several keys, that of
    /// the first ([`fence_of`](Self::fence_of)). Zero if the lock is not [enforced](Self::is_enforced), so that a receiver that
    /// checks fences rejects it.
    ///
    /// The fence of a key is at least the clock of the acquire in microseconds, and larger than all that the row has seen. It
    /// can go back in two cases. First, the row is deleted by hand, or by Powertools after a failure, and the clock of the next
    /// holder is behind that of the last one. Second, the record of an idempotent run has a window that is shorter than a
    /// request can be late, and TTL deletes it at the end of the window.
    ///
    /// The fence of a permit counts the acquisitions of its [semaphore](crate::Semaphore#fences). Holders with smaller ones can
    /// still be valid, so a receiver cannot reject them.
    #[doc(alias = "fencing token")]
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.hold.fences.first().copied().unwrap_or(0)
    }

    /// Returns the [fencing token](Self::fence) of this key, or `None` if the lock does not have the key.
    ///
    /// Of several keys, all have the same fence: the clock of the acquire in microseconds, or one more than the largest fence
    /// that a refusal showed.
    #[must_use]
    pub fn fence_of(&self, key: &str) -> Option<u64> {
        let index = self.keys().iter().position(|own| own == key)?;
        Some(self.hold.fences.get(index).copied().unwrap_or(0))
    }

    /// Returns the data that the last holder left in the row, or the data that this acquire stored.
    #[must_use]
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Returns `false` if the lock does not exclude others: locking is [disabled](crate::LocksBuilder::enabled), or the
    /// middleware runs without the lock because the table cannot be reached.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.hold.is_enforced()
    }

    /// Returns when the request that acquired the lock was sent, by this host's clock.
    #[must_use]
    pub fn acquired_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.hold.acquired()
    }

    /// Returns until when this lock is valid, by this host's clock. Other hosts see the key as free later, by the clock
    /// skew.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.hold.state().lease.deadline.wall()
    }

    /// Returns the time that is left of the lease, by the wall clock or the monotonic clock, whichever is further ahead.
    /// Zero after the lease ended, after the lock was lost, and after a release was started.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Returns `true` while the lock is valid. Compares clocks; sends no request.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Waits until the lock is no longer valid: its lease ended, it was lost, or a release was started. Compares clocks;
    /// sends no request.
    ///
    /// ```
    /// # use lambda_lock::Lock;
    /// # async fn example(lock: &Lock) {
    /// tokio::select! {
    ///     () = lock.until_lost() => println!("stopping"),
    ///     () = work() => println!("done"),
    /// }
    /// # }
    /// # async fn work() {}
    /// ```
    ///
    /// One lock for a whole process, such as on Managed Instances, where each environment is a process. A task waits for the
    /// lock, shows it to the invocations, renews it, and waits again after a loss:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Lock, Locks};
    /// # use tokio::sync::watch;
    /// const LEASE: Duration = Duration::from_secs(30);
    ///
    /// async fn lead(locks: Locks, leads: watch::Sender<Option<Arc<Lock>>>) {
    ///     loop {
    ///         let lock = match locks.acquire("leader").lease(LEASE).wait(Duration::MAX).await {
    ///             Ok(lock) => Arc::new(lock),
    ///             Err(error) => {
    ///                 eprintln!("{error}");
    ///                 tokio::time::sleep(LEASE / 3).await;
    ///                 continue;
    ///             }
    ///         };
    ///         leads.send_replace(Some(Arc::clone(&lock)));
    ///         while lock.is_valid() {
    ///             tokio::time::sleep(LEASE / 3).await;
    ///             if let Err(error) = lock.renew(LEASE).await {
    ///                 eprintln!("{error}");
    ///             }
    ///         }
    ///         leads.send_replace(None);
    ///     }
    /// }
    ///
    /// // In `main`: `let (publish, leads) = watch::channel(None); tokio::spawn(lead(locks, publish));`
    /// async fn invocation(leads: watch::Receiver<Option<Arc<Lock>>>) -> Result<(), Error> {
    ///     let lock = leads.borrow().clone();
    ///     match lock {
    ///         Some(lock) => lock.while_held(work()).await,
    ///         None => Ok(println!("another process leads")),
    ///     }
    /// }
    /// # async fn work() {}
    /// ```
    pub async fn until_lost(&self) {
        self.ends_within(Duration::ZERO).await;
    }

    /// Waits until no more than `reserve` is left of the lease.
    async fn ends_within(&self, reserve: Duration) {
        // Check every second, because the wall clock can run ahead of the timer.
        loop {
            let changed = self.hold.changed.notified();
            let left = self.remaining().saturating_sub(reserve);
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(left.min(Duration::from_secs(1))) => {}
            }
        }
    }

    /// Runs `work` until it ends, or cancels it at its next await point when the lock is lost: then fails with an error that
    /// [`is_lost`](Error::is_lost), also if the work blocked its thread and returns after the lease. Releases nothing and sends
    /// no request. [`Acquire::run`](crate::Acquire::run) does the same and releases the lock. This is for a lock that is
    /// [kept](Self::keep) afterwards.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// let lock = locks.acquire("deploy").identity(execution_arn).take_over().await?;
    /// lock.while_held(migrate()).await?;
    /// lock.keep();
    /// # Ok(())
    /// # }
    /// # async fn migrate() {}
    /// ```
    ///
    /// The clock is read before each step of the work, from one await point to the next. So if Lambda freezes the process
    /// until after the lease, the next step does not run, because another holder may have the key by then. A result that was
    /// ready in that step is lost with it.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = pin!(work);
        let next_step = poll_fn(|context| {
            if self.hold.is_overrun() {
                return Poll::Ready(Err(self.hold.error(Cause::Lost(None))));
            }
            work.as_mut().poll(context).map(Ok)
        });
        self.until_overrun(next_step).await.flatten()
    }

    /// Runs `work` like [`while_held`](Self::while_held), but lets it run a step before the clock is read: for idempotent
    /// work, whose result is worth storing after the lease, as long as its record is its own.
    pub(super) async fn until_overrun<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let _watched = Watch::start(&self.hold);
        tokio::select! {
            biased;
            // Work that has not begun does not begin after the end.
            () = self.overrun(Duration::ZERO), if self.hold.state().is_stopped => Err(self.hold.error(Cause::Lost(None))),
            // Work that blocked its thread was not cancelled.
            value = work.instrument(self.hold.span().clone()) => {
                if self.hold.has_expired() { Err(self.hold.error(Cause::Lost(None))) } else { Ok(value) }
            }
            () = self.overrun(Duration::ZERO) => Err(self.hold.error(Cause::Lost(None))),
        }
    }

    /// Waits until work under this lock must stop: until the lock is lost or no more than `reserve` is left of its lease, but
    /// not if the work itself released it.
    pub(crate) async fn overrun(&self, reserve: Duration) {
        loop {
            self.ends_within(reserve).await;
            let changed = self.hold.changed.notified();
            if !self.hold.was_released() {
                return;
            }
            changed.await;
        }
    }

    /// Sets the data that the next renewal or release writes for the next holder. Sends no request.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let lock = locks.acquire("import").await?;
    /// let page = lock.data().and_then(|data| data.as_str()).unwrap_or("1").to_owned();
    /// // … import from that page on …
    /// lock.set_data("2"); // written by the release, for the next holder
    /// lock.release().await
    /// # }
    /// ```
    pub fn set_data(&self, data: impl Into<Data>) {
        self.hold.state().new_data = Some(data.into());
    }

    /// Clears [`min_hold`](crate::Acquire::min_hold), so that the release frees the key at once. Use it when the
    /// work was not done, so that the next attempt need not wait. The work then counts as
    /// [failed](crate::metrics::WORK_FAILED), so that an alarm on work that is missing sees it. Sends no request.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let lock = locks.acquire("nightly-report").min_hold(Duration::from_secs(30)).await?;
    /// if write_report().await.is_err() {
    ///     lock.clear_min_hold();
    /// }
    /// lock.release().await
    /// # }
    /// # async fn write_report() -> Result<(), ()> { Ok(()) }
    /// ```
    pub fn clear_min_hold(&self) {
        self.hold.work_failed();
    }

    /// Keeps the release out of the metric of released locks, because the work was not run and comes again.
    #[cfg(feature = "lambda")]
    pub(crate) fn not_run(&self) {
        self.hold.telemetry.not_run();
    }

    /// Renews the lease, so that it ends `lease` from now: from 1 ms to 366 days, and for a permit of a semaphore to a day.
    /// One request; IAM action `dynamodb:UpdateItem`. It is repeated for up to 10 s while DynamoDB throttles it or a transaction
    /// on the row prevents it. The deadline of the acquire does not limit the new lease. After a crash, the key stays held
    /// until this lease ends or an operator [frees](crate::Locks::force_release) it.
    ///
    /// Fails with an error that [`is_lost`](Error::is_lost) if the lease has ended, the lock was released, or another holder
    /// has the key. The row is not modified then. If this host's clock is wrong, fails with an error of kind
    /// [`ClockSkew`](crate::ErrorKind::ClockSkew), and the lock is no longer valid, but its release still frees the key. After any
    /// other error, and if the future is dropped, the request may have been applied, so the lock is valid until the earlier of the
    /// old and the new end.
    #[doc(alias = "extend", alias = "heartbeat")]
    pub async fn renew(&self, lease: Duration) -> Result<(), Error> {
        let (locks, acquisition) = (&self.hold.locks, &self.hold.acquisition);
        check_duration("lease", lease, MIN_LEASE, acquisition.target().longest_lease())?;
        let _one_at_a_time = self.renewing.lock().await;
        let now = self.hold.now();
        let deadline = now.deadline_after(lease);
        let (renewed, data, sequence) = {
            let mut state = self.hold.state();
            if state.phase != Phase::Held || state.is_stopped || state.lease.deadline.has_passed(now) {
                drop(state);
                return Err(self.hold.error(Cause::Lost(None)));
            }
            state.new_data.as_ref().map_or(Ok(()), |data| acquisition.target().check_data(data))?;
            let renewed = locks.0.table.lease(acquisition.target(), now, deadline, Some(state.lease));
            state.lease.deadline = state.lease.deadline.earlier(deadline);
            (renewed, state.new_data.clone(), state.continuation.next_sequence())
        };
        self.hold.changed.notify_waiters();
        if self.is_enforced() {
            let (acquisition, data) = (acquisition.clone(), data.as_ref());
            let renewing = Renewing { acquisition, sequence, now, lease: renewed, data };
            let renewal = locks.0.table.run(renewing, || now);
            if let Renewed::Lost { error, has_others } = renewal.instrument(self.hold.span().clone()).await? {
                let phase = if has_others { Phase::LostInPart } else { Phase::Lost };
                // A concurrent release may have caused it, and reports its own outcome.
                if self.hold.enter_from(&[Phase::Held], phase).is_ok() {
                    self.hold.telemetry.lost(error.holder());
                }
                return Err(error);
            }
        }
        self.hold.state().lease = renewed;
        self.hold.changed.notify_waiters();
        Ok(())
    }

    /// Releases the lock, which frees the key at once or, with `min_hold`, when that time is over. A host whose clock is
    /// behind needs one more request to acquire it. One request, unless a request has already shown the lock released or
    /// lost; IAM action `dynamodb:UpdateItem`. It is repeated like a [renewal](Self::renew).
    ///
    /// Fails with an error that [`is_lost`](Error::is_lost) if another holder has taken the key, or an operator has
    /// [released it by force](crate::Locks::force_release). The row is not modified then. If the lease has ended but no other
    /// holder has the key, the release succeeds. After any other error, the release can be repeated; dropping the lock
    /// repeats it in the background. The lock is no longer valid as soon as the future is first polled, even if the release
    /// fails.
    #[doc(alias = "unlock")]
    pub async fn release(&self) -> Result<(), Error> {
        self.hold.release().await.map(drop)
    }

    /// Releases the lock as [`release`](Self::release) does, and returns `true` if an acquire that was refused has
    /// [left its work](crate::Locks::coalesce) to this holder. Then acquire the key again and run once more: however many acquires
    /// have left their work, one more run is enough, because it begins after all of them. One request; IAM action
    /// `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use lambda_lock::Locks;
    /// # async fn example(locks: Locks) -> Result<(), Box<dyn std::error::Error>> {
    /// for _ in 0..10 {
    ///     let refusal = match locks.acquire("search-index").await {
    ///         Ok(lock) => {
    ///             rebuild_the_index().await;
    ///             if lock.release_coalescing().await? {
    ///                 continue;
    ///             }
    ///             return Ok(());
    ///         }
    ///         Err(refusal) => refusal,
    ///     };
    ///     match refusal.holder() {
    ///         // The holder runs once more when it is done.
    ///         Some(holder) if locks.coalesce("search-index", holder).await? => return Ok(()),
    ///         // The holder has gone meanwhile.
    ///         Some(_) => continue,
    ///         None => return Err(refusal.into()),
    ///     }
    /// }
    /// Err("ten times, a holder had gone before its run was asked for".into())
    /// # }
    /// # async fn rebuild_the_index() {}
    /// ```
    ///
    /// If the acquire that follows is refused, another client has acquired the key since: leave your further run to that holder, as
    /// below. After an error that is not [lost](Error::is_lost), nobody knows whether work was left: repeat the release, or fail so
    /// that you are retried.
    ///
    /// An error that [`is_lost`](Error::is_lost) does not say whether work was left: acquire again, as if it was. A lock that was
    /// released before, or is not [enforced](Self::is_enforced), has been left no work, and neither has a permit. A lock of several
    /// keys cannot know: this is an error of kind [`Invalid`](crate::ErrorKind::Invalid), and the lock stays held.
    pub async fn release_coalescing(&self) -> Result<bool, Error> {
        self.hold.acquisition.target().check_one_key("coalescing")?;
        let released = self.hold.release_coalescing().await?;
        Ok(matches!(released, Released::Freed { is_asked: true }))
    }

    /// Releases the lock. Returns the record if a transaction whose answer was lost has completed it.
    pub(crate) async fn release_unless_completed(&self) -> Result<Option<Box<Holder>>, Error> {
        match self.hold.release().await? {
            Released::Completed(record) => Ok(Some(record)),
            Released::Freed { .. } | Released::NoTrace => Ok(None),
        }
    }

    /// Returns the `ConditionCheck` "this lock is still held" for your own `TransactWriteItems`, so that your write only
    /// succeeds while the lock is held.
    ///
    /// ```
    /// # use aws_sdk_dynamodb::{Client, types::{Put, TransactWriteItem}};
    /// # async fn example(client: Client, lock: &lambda_lock::Lock, put: Put) -> Result<(), Box<dyn std::error::Error>> {
    /// client
    ///     .transact_write_items()
    ///     .transact_items(TransactWriteItem::builder().condition_check(lock.condition_check()?).build())
    ///     .transact_items(TransactWriteItem::builder().put(put).build())
    ///     .client_request_token(lambda_lock::request_token())
    ///     .send()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Sends no request. In the transaction it costs one write check, and needs the IAM action
    /// `dynamodb:ConditionCheckItem`. For a lock that is not [enforced](Self::is_enforced), the check always holds. With
    /// [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency), there are no transactions: fails
    /// with an error of kind [`Invalid`](crate::ErrorKind::Invalid).
    ///
    /// A lock of several keys has one check for each ([`condition_checks`](Self::condition_checks)). One check for all of them
    /// is an error of kind [`Invalid`](crate::ErrorKind::Invalid).
    pub fn condition_check(&self) -> Result<ConditionCheck, Error> {
        let mut checks = self.hold.condition_checks()?.into_iter();
        match (checks.next(), checks.next()) {
            (Some(check), None) => Ok(check),
            _ => Err(Error::invalid("the lock has several keys: put all its `condition_checks` into the transaction")),
        }
    }

    /// Returns the [`condition_check`](Self::condition_check) of each key, in the order of the [keys](Self::keys). A
    /// transaction has at most 100 items.
    ///
    /// ```
    /// # use aws_sdk_dynamodb::{Client, types::{Put, TransactWriteItem}};
    /// # async fn example(client: Client, lock: &lambda_lock::Lock, put: Put) -> Result<(), Box<dyn std::error::Error>> {
    /// let checks = lock.condition_checks()?.into_iter();
    /// let checks = checks.map(|check| TransactWriteItem::builder().condition_check(check).build());
    /// client
    ///     .transact_write_items()
    ///     .set_transact_items(Some(checks.collect()))
    ///     .transact_items(TransactWriteItem::builder().put(put).build())
    ///     .client_request_token(lambda_lock::request_token())
    ///     .send()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn condition_checks(&self) -> Result<Vec<ConditionCheck>, Error> {
        self.hold.condition_checks()
    }

    /// Leaves the lock held after this process, for a [takeover](crate::Acquire::take_over) by the same
    /// [identity](crate::Acquire::identity): until the identity releases it
    /// ([`Locks::release_identity`](crate::Locks::release_identity)) or the lease ends. Sends no request.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// // The first step of a workflow:
    /// let lock = locks.acquire("deploy").identity(execution_arn).await?;
    /// let fence = lock.fence(); // pass it on to the next step
    /// lock.keep();
    /// // A later one:
    /// let lock = locks.acquire("deploy").identity(execution_arn).take_over_from(fence).await?;
    /// lock.release().await
    /// # }
    /// ```
    ///
    /// Data that was [set](Self::set_data) and not written by a renewal is dropped, and so is the [minimum
    /// hold](crate::Acquire::min_hold): set it again in the step that releases the lock. Without an identity, the key is held until
    /// the lease ends or an operator [frees](crate::Locks::force_release) it.
    #[doc(alias = "hand over", alias = "step functions", alias = "workflow")]
    pub fn keep(self) {
        // Of a lock that was released or lost, nothing is left to keep.
        if self.hold.state().phase == Phase::Held {
            self.hold.telemetry.kept();
            self.hold.enter(Phase::Released);
        }
    }

    /// Returns how long the last request under this lock may take, so that Lambda is answered in time. Call it before that
    /// request is started, because a release ends the lock.
    pub(super) fn time_to_answer(&self) -> Duration {
        match self.remaining() {
            Duration::ZERO => Duration::from_secs(1),
            remaining => time_to_ask(remaining),
        }
    }

    pub(crate) fn error(&self, cause: Cause) -> Error {
        self.hold.error(cause)
    }

    /// Leaves the release to the task of the work, which stores the result of work that is done.
    pub(super) fn leave_to_task(&self) {
        self.hold.state().watched += 1;
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("keys", &self.keys())
            .field("owner", &self.owner())
            .field("fences", &self.hold.fences)
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let hold = &self.hold;
        if hold.state().phase == Phase::Released {
            return hold.locks.0.held.remove(hold);
        }
        // `release_all` sees the lock, or waits for the request in the background.
        let _counted = hold.locks.0.background.begin();
        hold.locks.0.held.remove(hold);
        let (phase, data, sequence) = {
            let mut state = hold.state();
            (state.phase, state.new_data.take(), state.continuation.next_sequence())
        };
        hold.enter(Phase::Released);
        if phase == Phase::Lost || !self.is_enforced() {
            return;
        }
        if phase == Phase::Held {
            let _in = hold.span().enter();
            tracing::warn!(key = self.shown_key(), fence = self.fence(), "a lock was dropped without a release");
            hold.work_failed();
        }
        // Oversized data would make the release fail, and keep the key held.
        let data = data.filter(|data| hold.acquisition.target().check_data(data).is_ok());
        let released = Arc::clone(hold);
        hold.locks.0.background.send(self.shown_key().to_owned(), hold.span().clone(), async move {
            let table = released.locks.0.table.in_background();
            released.send_release(&table, sequence, data.as_ref(), false).await.map(drop)
        });
    }
}
