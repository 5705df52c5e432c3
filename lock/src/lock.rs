//! `Lock`: a lock that is held.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::{ConditionCheck, TransactWriteItem};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tracing::{Instrument, Span};

use crate::backoff::{Backoff, Jitter};
use crate::clock::Moment;
use crate::error::{Error, Kind};
use crate::holder::Data;
use crate::locks::{Locks, MAX_LEASE, check_duration};
use crate::protocol::{Completed, Lease, Outcome, Released, Step, check_data, time_to_ask};
use crate::telemetry::Holding;

/// The waits between the requests of a completion that is sent again.
const RESEND: Backoff = Backoff::NO_WAIT
    .base(Duration::from_millis(50))
    .factor(2.0)
    .cap(Duration::from_secs(1))
    .jitter(Jitter::Full)
    .up_to(Duration::MAX)
    .max_attempts(u32::MAX);

/// A lock that was acquired.
///
/// [Release](Self::release) it. Dropped without that, it logs a warning and sends the release in the background if a
/// tokio runtime is there; otherwise the key is free when the lease ends.
///
/// A lease cannot stop a process that is paused: before writing something that must not be written twice, take the
/// [`fence`](Self::fence) along and let the receiver refuse a smaller one than it has seen (Kleppmann, "How to do
/// distributed locking"), or put [`condition_check`](Self::condition_check) into the DynamoDB transaction that writes.
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
#[must_use = "a lock that is dropped at once protects nothing"]
pub struct Lock {
    ownership: Ownership,
    fence: Option<u64>,
    data: Option<Data>,
    /// Shared with a release in the background.
    holding: Arc<Holding>,
    state: Mutex<State>,
    /// Told of every change of the state.
    changed: Notify,
    /// Taken by a renewal: of two at once, the one that is applied last must be the one that is believed.
    renewing: AsyncMutex<()>,
}

#[derive(Debug)]
struct State {
    lease: Lease,
    /// Until when `hold_at_least` keeps the key after an early release.
    hold_until: Option<Duration>,
    leave: Option<Data>,
    phase: Phase,
    /// The number of the last request that was sent after the acquire.
    sequence: u64,
}

impl State {
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Held,
    /// A release was begun: from here on the lock counts as given up, even if no answer came.
    Releasing,
    /// There is nothing left to send.
    Released,
    /// Someone else has the key: there is nothing left to send either.
    Lost,
}

impl Lock {
    /// Without a fence, a lock that is not enforced.
    pub(crate) fn new(
        ownership: Ownership,
        fence: Option<u64>,
        data: Option<Data>,
        holding: Holding,
        lease: Lease,
        hold_at_least: Duration,
    ) -> Self {
        // The margin is for the others, whose clocks may be ahead.
        let (acquired, margin) = (holding.since(), ownership.locks.0.clock_skew);
        let hold_until = acquired.wall.saturating_add(hold_at_least).saturating_add(margin);
        Self {
            ownership,
            fence,
            data,
            holding: Arc::new(holding),
            state: Mutex::new(State {
                lease,
                hold_until: (!hold_at_least.is_zero()).then_some(hold_until),
                leave: None,
                phase: Phase::Held,
                sequence: 0,
            }),
            changed: Notify::new(),
            renewing: AsyncMutex::new(()),
        }
    }

    /// The key, without the prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.ownership.key
    }

    /// The nonce of this acquisition: 128 bits from the operating system's generator, in hexadecimal.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.ownership.owner
    }

    /// The fencing token: larger than that of every earlier acquisition of this key. Zero for a lock that is not
    /// [enforced](Self::is_enforced), so that a receiver that checks fences refuses it.
    ///
    /// The row counts it, and a new row starts at the clock of the acquire in microseconds. It can go back in these cases:
    /// the row is deleted by hand, or by Powertools after a failure, and the next holder's clock is behind the last one's;
    /// the record of an idempotent run has a window shorter than a request may be late, and is deleted at its end.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence.unwrap_or(0)
    }

    /// What the last holder left in the row, or what this acquisition stored there.
    #[must_use]
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// `false` if locking is [switched off](crate::LocksBuilder::enabled), or if the middleware was told to run
    /// without the lock because the table could not be reached: nobody else is kept out.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.fence.is_some()
    }

    /// When the lock was acquired, by this host's clock.
    #[must_use]
    pub fn acquired_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.acquired()
    }

    /// Until when this lock may be relied on, by this host's clock. Others see the key free only later, by the clock
    /// skew.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.state().lease.deadline.wall()
    }

    /// What is left of the lease, by the wall clock or the monotonic clock, whichever is further on. Zero once it has
    /// ended, was lost, or a release was begun.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let state = self.state();
        match state.phase {
            Phase::Held => state.lease.deadline.remaining(self.now()),
            Phase::Releasing | Phase::Released | Phase::Lost => Duration::ZERO,
        }
    }

    /// Whether the lock may still be relied on. No request: it is a question of time.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Ready once the lock may no longer be relied on. No request: it is a question of time.
    ///
    /// ```
    /// # use lambda_lock::Lock;
    /// # async fn example(lock: &Lock) {
    /// tokio::select! {
    ///     () = lock.lost() => println!("stopping"),
    ///     () = work() => println!("done"),
    /// }
    /// # }
    /// # async fn work() {}
    /// ```
    pub async fn lost(&self) {
        // Looked at again every second: the lease may have been renewed, and the wall clock may run ahead of the timer.
        loop {
            let changed = self.changed.notified();
            let remaining = self.remaining();
            if remaining.is_zero() {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(remaining.min(Duration::from_secs(1))) => {}
            }
        }
    }

    /// Ready once work under this lock must stop: when the lock is lost, but not when the work released it itself.
    pub(crate) async fn overrun(&self) {
        loop {
            self.lost().await;
            let changed = self.changed.notified();
            if matches!(self.state().phase, Phase::Held | Phase::Lost) {
                return;
            }
            changed.await;
        }
    }

    /// Sets what the next renewal or release writes as the data for the next holder. No request.
    pub fn set_data(&self, data: impl Into<Data>) {
        self.state().leave = Some(data.into());
    }

    /// Lets the key be free as soon as it is released, whatever [`hold_at_least`](crate::Acquire::hold_at_least) says: for
    /// work that was not done, so that whoever tries again need not wait. No request.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let lock = locks.acquire("nightly-report").hold_at_least(Duration::from_secs(30)).await?;
    /// if write_report().await.is_err() {
    ///     lock.clear_hold_at_least();
    /// }
    /// lock.release().await
    /// # }
    /// # async fn write_report() -> Result<(), ()> { Ok(()) }
    /// ```
    pub fn clear_hold_at_least(&self) {
        self.state().hold_until = None;
    }

    /// Makes the lease end `lease` from now, from 1 ms to a day. One request; IAM action `dynamodb:UpdateItem`.
    ///
    /// The error [`is_lost`](Error::is_lost) if the lease has ended, the lock was released, or someone else has the
    /// key; the row is then left alone. After any other error, or if the future is dropped, the lock is valid until the
    /// earlier of the old and the new end, since the request may have been applied. Not limited by the deadline that the
    /// lock was acquired with.
    pub async fn renew(&self, lease: Duration) -> Result<(), Error> {
        check_duration("lease", lease, Duration::from_millis(1), MAX_LEASE)?;
        let settings = &self.ownership.locks.0;
        let _alone = self.renewing.lock().await;
        let now = self.now();
        let renewed = Lease::new(now.deadline_after(lease), settings.clock_skew, settings.retention);
        let (lease_before, data, sequence) = {
            let mut state = self.state();
            if state.phase != Phase::Held || state.lease.deadline.remaining(now).is_zero() {
                drop(state);
                return Err(self.error(Kind::Lost(None)));
            }
            state.leave.as_ref().map_or(Ok(()), check_data)?;
            state.lease.deadline = state.lease.deadline.earlier(renewed.deadline);
            (state.lease, state.leave.clone(), state.next_sequence())
        };
        self.changed.notify_waiters();
        // A record that is to be refused for longer stays for longer.
        let renewed = renewed.following(lease_before);
        if self.is_enforced() {
            let Ownership { key, owner, .. } = &self.ownership;
            let renew = settings.table.renew(Step { key, owner, sequence, now }, renewed, data.as_ref());
            if let Err(error) = renew.instrument(self.span().clone()).await {
                // It may have met a release, which knows better.
                if error.is_lost() && self.enter_from(&[Phase::Held], Phase::Lost).is_ok() {
                    self.holding.lost(error.holder());
                }
                return Err(error);
            }
        }
        self.state().lease = renewed;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Frees the key, or with `hold_at_least` lets it be free when that is over. One request; none once it has said
    /// whether the lock was still ours. IAM action `dynamodb:UpdateItem`.
    ///
    /// The error [`is_lost`](Error::is_lost) if someone else has taken the key since; the row is then left alone. A
    /// lock whose lease has ended but that nobody took is released like any other. After another error, the release
    /// can be tried again. From the call on, the lock is no longer valid.
    pub async fn release(&self) -> Result<(), Error> {
        self.give_up().await.map(|_| ())
    }

    /// Releases, and says if it was completed instead, in a transaction whose answer was lost.
    pub(crate) async fn give_up(&self) -> Result<Released, Error> {
        match self.enter_from(&[Phase::Held, Phase::Releasing], Phase::Releasing) {
            Err(Phase::Released) => return Ok(Released::Freed),
            Err(_) => return Err(self.error(Kind::Lost(None))),
            Ok(()) => {}
        }
        let (leave, sequence) = {
            let mut state = self.state();
            (state.leave.clone(), state.next_sequence())
        };
        let checked = leave.as_ref().map_or(Ok(()), check_data);
        if !self.is_enforced() {
            checked?;
            self.enter(Phase::Released);
            return Ok(Released::Freed);
        }
        checked.inspect_err(|error| self.holding.release_failed(error))?;
        let release = self.ownership.release(sequence, self.release_at(), leave.as_ref(), Some(&self.holding));
        let answer = release.instrument(self.span().clone()).await;
        match &answer {
            Ok(_) => self.enter(Phase::Released),
            Err(error) if error.is_lost() => self.enter(Phase::Lost),
            Err(_) => {}
        }
        answer
    }

    /// Stores how the run under this lock ended, for `window` from now. One request, which is sent again until the lease
    /// ends if it is throttled or not answered: otherwise the work would run again.
    pub(crate) async fn complete(&self, window: Duration, outcome: Outcome) -> Result<Completed, Error> {
        let limit = self.time_to_answer();
        // It may be applied even if no answer comes, so nothing else is sent after it.
        if self.enter_from(&[Phase::Held, Phase::Lost], Phase::Released).is_err() {
            return Err(self.error(Kind::Lost(None)));
        }
        let (Ownership { locks, key, owner }, now) = (&self.ownership, self.now());
        let mut last = None;
        let sent = async {
            let mut delays = RESEND.delays(None);
            loop {
                let complete =
                    locks.0.table.complete(key, owner, now, now.wall.saturating_add(window), outcome.clone());
                let delay = match complete.await {
                    Err(error) if error.is_worth_waiting() => {
                        tracing::debug!(key, %error, "a completion is sent again");
                        last = Some(error);
                        delays.next(Duration::ZERO, None).unwrap_or_default()
                    }
                    answer => return answer,
                };
                tokio::time::sleep(delay).await;
            }
        };
        let answer = tokio::time::timeout(limit, Box::pin(sent.instrument(self.span().clone()))).await;
        let answer = answer.unwrap_or_else(|_| Err(last.unwrap_or_else(|| self.error(Kind::Unavailable))));
        match &answer {
            Ok(_) => self.holding.released("completed", Some((now, self.now()))),
            Err(error) => self.holding.release_failed(error),
        }
        answer
    }

    /// How long the last request under this lock may take, so that Lambda is answered in time.
    pub(crate) fn time_to_answer(&self) -> Duration {
        match self.remaining() {
            Duration::ZERO => Duration::from_secs(1),
            remaining => time_to_ask(remaining),
        }
    }

    /// The same as a part of the caller's transaction; for a lock that is not enforced, a check that always holds.
    pub(crate) fn completion(&self, window: Duration, outcome: Outcome) -> Result<TransactWriteItem, Error> {
        let item = TransactWriteItem::builder();
        let Ownership { locks, key, owner } = &self.ownership;
        Ok(if self.is_enforced() {
            let end = self.now().wall.saturating_add(window);
            item.update(locks.0.table.completion(key, owner, end, outcome)?).build()
        } else {
            item.condition_check(self.condition_check()?).build()
        })
    }

    /// Leaves the row as it is, until its lease ends.
    pub(crate) fn abandon(&self) {
        self.enter(Phase::Released);
    }

    /// There is nothing left to send: the caller's transaction has completed it.
    pub(crate) fn was_completed(&self) {
        if self.enter_from(&[Phase::Held], Phase::Released).is_ok() {
            self.holding.released("completed", None);
        }
    }

    /// The error of a release or a completion that nobody waits for any longer.
    pub(crate) fn unanswered(&self) -> Error {
        let error = self.error(Kind::Unavailable);
        self.holding.release_failed(&error);
        error
    }

    pub(crate) fn span(&self) -> &Span {
        self.holding.span()
    }

    /// The `ConditionCheck` "this lock is still held" for the caller's own `TransactWriteItems`, so that a write and
    /// the lock stand or fall together. No request by itself; in the transaction it costs one write check, and needs
    /// the IAM action `dynamodb:ConditionCheckItem`.
    ///
    /// For a lock that is not [enforced](Self::is_enforced), a check that always holds.
    ///
    /// ```
    /// # use aws_sdk_dynamodb::{Client, types::{Put, TransactWriteItem}};
    /// # async fn example(client: Client, lock: &lambda_lock::Lock, put: Put) -> Result<(), Box<dyn std::error::Error>> {
    /// client
    ///     .transact_write_items()
    ///     .transact_items(TransactWriteItem::builder().condition_check(lock.condition_check()?).build())
    ///     .transact_items(TransactWriteItem::builder().put(put).build())
    ///     .send()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn condition_check(&self) -> Result<ConditionCheck, Error> {
        let Ownership { locks, key, owner } = &self.ownership;
        locks.0.table.condition_check(key, self.is_enforced().then_some(owner), self.now())
    }

    /// Whether it has been told that this lock was lost.
    pub(crate) fn is_known_lost(&self) -> bool {
        self.holding.is_lost()
    }

    fn enter(&self, phase: Phase) {
        let _from_whichever = self.enter_from(&[Phase::Held, Phase::Releasing, Phase::Released, Phase::Lost], phase);
    }

    /// Enters a phase from one of these; otherwise says which one it stays in.
    fn enter_from(&self, from: &[Phase], phase: Phase) -> Result<(), Phase> {
        let (before, lease) = {
            let mut state = self.state();
            if !from.contains(&state.phase) {
                return Err(state.phase);
            }
            (std::mem::replace(&mut state.phase, phase), state.lease)
        };
        self.changed.notify_waiters();
        if before == Phase::Held && self.is_enforced() {
            let now = self.now();
            self.holding.ended(now, lease.deadline.remaining(now).is_zero());
        }
        Ok(())
    }

    pub(crate) fn error(&self, kind: Kind) -> Error {
        Error::new(kind, &self.ownership.locks.0.table.name, &self.ownership.key)
    }

    fn now(&self) -> Moment {
        self.ownership.locks.0.clock.now()
    }

    /// When, as the row has it.
    fn acquired(&self) -> Duration {
        Duration::from_millis(self.holding.since().millis())
    }

    /// The time that a release made now gives as the lease's end.
    fn release_at(&self) -> Duration {
        // No earlier than the acquire, even if the clock was set back, so that duplicates of it are refused.
        let now = self.now().wall.max(self.acquired());
        self.state().hold_until.map_or(now, |until| until.max(now))
    }

    /// The state is plain values, so a panic elsewhere cannot have left it half-written.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.key())
            .field("owner", &self.owner())
            .field("fence", &self.fence)
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let (phase, leave, sequence) = {
            let mut state = self.state();
            (state.phase, state.leave.take(), state.next_sequence())
        };
        self.enter(Phase::Released);
        if matches!(phase, Phase::Released | Phase::Lost) || !self.is_enforced() {
            return;
        }
        if phase == Phase::Held {
            let _in = self.span().enter();
            tracing::warn!(key = self.key(), fence = self.fence(), "a lock was dropped without being released");
            self.clear_hold_at_least();
        }
        // Data that is too large would keep the key from being freed.
        let leave = leave.filter(|data| check_data(data).is_ok());
        let (ownership, end, holding) = (self.ownership.clone(), self.release_at(), Arc::clone(&self.holding));
        let span = self.span().clone();
        self.ownership.in_background(span, async move {
            ownership.release(sequence, end, leave.as_ref(), Some(&holding)).await.map(drop)
        });
    }
}

/// One acquisition's claim to a key: all that a release needs.
#[derive(Clone, Debug)]
pub(crate) struct Ownership {
    pub(crate) locks: Locks,
    pub(crate) key: String,
    pub(crate) owner: String,
}

impl Ownership {
    pub(crate) fn new(locks: &Locks, key: &str) -> Result<Self, Error> {
        // From the operating system for every acquisition: a generator in this process would be cloned with a
        // snapshot of it.
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce)
            .map_err(|error| Error::new(Kind::Unavailable, &locks.0.table.name, key).with_source(error))?;
        Ok(Self { locks: locks.clone(), key: key.to_owned(), owner: format!("{:032x}", u128::from_be_bytes(nonce)) })
    }

    /// Frees the key at `end`, and tells the holding.
    pub(crate) async fn release(
        &self,
        sequence: u64,
        end: Duration,
        data: Option<&Data>,
        holding: Option<&Holding>,
    ) -> Result<Released, Error> {
        let (Self { key, owner, .. }, settings) = (self, &self.locks.0);
        let now = settings.clock.now();
        let step = Step { key, owner, sequence, now };
        let answer = settings.table.release(step, end, settings.retention, data).await;
        match (holding, &answer) {
            (Some(holding), Ok(released)) => {
                let outcome = if matches!(released, Released::Freed) { "released" } else { "completed" };
                holding.released(outcome, Some((now, settings.clock.now())));
            }
            (Some(holding), Err(error)) => holding.release_failed(error),
            (None, _) => {}
        }
        answer
    }

    /// Makes sure that an acquire that ended without the key does not take it by a request that arrives late.
    pub(crate) async fn withdraw(&self) -> Result<(), Error> {
        let settings = &self.locks.0;
        settings.table.withdraw(&self.key, &self.owner, settings.clock.now(), settings.retention).await
    }

    /// Sends a release without waiting for it, if a runtime is there to send it.
    pub(crate) fn in_background(&self, span: Span, release: impl Future<Output = Result<(), Error>> + Send + 'static) {
        if let Ok(runtime) = Handle::try_current() {
            let (under_way, key) = (UnderWay::begin(self.locks.clone()), self.key.clone());
            let release = async move {
                let _until_it_is_answered = under_way;
                if let Err(error) = release.await {
                    tracing::debug!(key, %error, "a request in the background failed");
                }
            };
            runtime.spawn(release.instrument(span));
        }
    }
}

/// A release in the background, for [`Locks::flush`]. Over when it is dropped, also by a runtime that ends.
#[derive(Debug)]
struct UnderWay(Locks);

impl UnderWay {
    fn begin(locks: Locks) -> Self {
        locks.0.in_background.send_modify(|releases| *releases += 1);
        Self(locks)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.in_background.send_modify(|releases| *releases -= 1);
    }
}
