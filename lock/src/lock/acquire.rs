//! `Acquire`: the options of one acquisition.

use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tracing::Span;

use super::attempt::{Attempt, Turn};
use super::held::Lock;
use super::locks::{Locks, check_attribute_name};
use super::telemetry::HoldSpan;
use super::wait::{Turns, Wait};
use crate::clock::{Lease, Moment, since_epoch};
use crate::error::{Cause, Error};
use crate::holder::Data;
use crate::limits::{
    DAY, MIN_LEASE, check_attributes, check_duration, check_holder, check_identity, deadline_if_any, time_to_ask,
};
use crate::row::{Acquisition, Grant, Target, owner_of};
use crate::text::printable;

/// How long a refusal waits for a withdrawal.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(1);

impl Locks {
    /// Prepares an acquire of the lock on `key`. Await it, or set options first. Without [`Acquire::wait`], one request;
    /// IAM action `dynamodb:UpdateItem`.
    pub fn acquire(&self, key: impl Into<String>) -> Acquire {
        self.acquire_target(Target::Key(key.into()))
    }

    /// Prepares an acquire of the locks on 1 to 100 different keys: all of them or none. Their order does not matter, so two
    /// callers cannot deadlock. Await it, or set options first. Without [`Acquire::wait`], one `TransactWriteItems`; IAM
    /// action `dynamodb:UpdateItem` on each key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let accounts = locks
    ///     .acquire_all(["account#1", "account#2"])
    ///     .lease(Duration::from_secs(10))
    ///     .wait(Duration::from_secs(5))
    ///     .await?;
    /// transfer(accounts.fence_of("account#1"), accounts.fence_of("account#2")).await;
    /// accounts.release().await
    /// # }
    /// # async fn transfer(_: Option<u64>, _: Option<u64>) {}
    /// ```
    ///
    /// Each key has the row of an ordinary lock. While the lock is held, an [`acquire`](Self::acquire) of one of its keys is
    /// refused, and the acquire of all is refused while one of the keys is held. The error then names every key in the way,
    /// its holder and until when ([`holders`](Error::holders)).
    ///
    /// One [`Lock`] has all keys, with one lease of up to a day. The data that a holder left in a row stays there: the lock
    /// has no [data](Acquire::data), no [attributes](Acquire::attribute) and no [minimum hold](Acquire::min_hold). Each of
    /// these is an error of kind [`Invalid`](crate::ErrorKind::Invalid). To leave the keys to a later process,
    /// [keep](Lock::keep) them for an [identity](Acquire::identity).
    ///
    /// # Cost
    ///
    /// Each attempt is one `TransactWriteItems` with one update for each key. It costs two write units for each key, also
    /// when it is refused. If the clock of this host is behind the last release of a key, or if the same identity holds some
    /// of the keys, an attempt sends another transaction, up to four in all. DynamoDB's limit for the rows of a transaction,
    /// with the data in them, is 4 MB in all.
    ///
    /// DynamoDB cancels a transaction if another request or transaction on one of its rows is in progress. The attempt then
    /// fails with an error of kind [`Conflict`](crate::ErrorKind::Conflict); a wait tries again. A plain acquire of one of
    /// the keys at the same moment can fail in the same way. Renewals and releases are repeated.
    ///
    /// A table with [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency) has no
    /// transactions: the acquire then fails with an error of kind [`Invalid`](crate::ErrorKind::Invalid), or of kind
    /// [`Rejected`](crate::ErrorKind::Rejected) without that setting.
    ///
    /// # Waiting
    ///
    /// With a [`Duration`] or [`Wait::in_turn`], a waiter takes a place with each key that refuses it: one `UpdateItem` for
    /// each. While one holder has all keys and nobody waits for one of them alone, a place with the first key is enough.
    ///
    /// When the waiter is next in line with all keys that refuse it, and they should come free at different times, it
    /// reserves its keys with one `TransactWriteItems`. Other waiters in turn leave them to it until the last one should be
    /// free: for at most a minute, and then for at least as long not again. A single attempt, plain backoff and
    /// [`attempt_in_turn`](Acquire::attempt_in_turn) reserve nothing.
    ///
    /// # Identities and withdrawal
    ///
    /// An acquire for an [identity](Acquire::identity) takes over what an earlier acquire of the identity holds, key by key:
    /// the keys may differ. The earlier holder then finds its whole lock lost, and its other keys stay held until it releases
    /// them or their leases end.
    ///
    /// An acquire that ends without the lock [withdraws](Acquire#withdrawal). One `UpdateItem` makes the row of the
    /// first key refuse the late request, which is enough to refuse the whole transaction. Then a transaction frees the keys
    /// that the attempts have taken. More requests follow while another client changes the rows.
    pub fn acquire_all(&self, keys: impl IntoIterator<Item = impl Into<String>>) -> Acquire {
        self.acquire_target(Target::several(keys.into_iter().map(Into::into).collect()))
    }

    pub(crate) fn acquire_target(&self, target: Target) -> Acquire {
        Acquire {
            locks: self.clone(),
            target,
            lease: None,
            deadline: None,
            wait: None,
            around_pause: None,
            min_hold: Duration::ZERO,
            holder: None,
            identity: None,
            takes_over: false,
            earlier_fence: None,
            is_counted_later: false,
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

/// An acquire that was not sent yet.
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks, deadline: SystemTime) -> Result<(), Error> {
/// let lock = locks
///     .acquire("nightly-report")
///     .deadline(deadline)
///     .wait(Duration::from_secs(5))
///     .await?;
/// println!("acquired with fence {}", lock.fence());
/// lock.release().await
/// # }
/// ```
///
/// Await it to get a [`Lock`], or [`run`](Self::run) work under the lock.
///
/// Without options it makes one attempt, and fails with an error that [`is_held`](Error::is_held) if another holder has the
/// key. With the keys of [`acquire_all`](Locks::acquire_all), it has all of them or none. Each attempt is one `UpdateItem` (IAM
/// action `dynamodb:UpdateItem`), plus the SDK's retries after a throttled or lost request. If the key is free, but the clock
/// of this host is behind the last release, the attempt sends another `UpdateItem`, up to four while other clients change the
/// row. With [`wait`](Self::wait), the wait decides when a throttled attempt is made again, and a refused acquire also takes a
/// place in the key's queue, which is one more `UpdateItem`. Dropping the future ends the wait.
///
/// An answer that comes after the end of the lease is discarded: the acquire frees the key, and the attempt fails with an
/// error of kind [`Unavailable`](crate::ErrorKind::Unavailable).
///
/// # Withdrawal
///
/// An unanswered request can still arrive. So if an acquire ends without the lock while one of its requests is unanswered, it
/// withdraws: one request writes the numbers of its attempts into the row, which then refuses the late request, and another
/// request frees the key if the late request had arrived already. At most six requests, while other clients change the row.
///
/// If DynamoDB answered the last attempt, the acquire waits for the withdrawal: up to 1 s, and not past the deadline.
/// Otherwise, and if that time runs out or the future is dropped, the withdrawal is sent in the background. Lambda freezes
/// an idle environment, and background requests with it, except on Managed Instances. [`Locks::flush`] waits for them.
///
/// If the withdrawal does not arrive, and nobody has had the key since, the late request can take the key without a holder. The
/// key is free when the lease of this request ends. [The
/// protocol](crate::docs::trust::protocol#why-a-stale-request-seldom-takes-a-key) has all cases.
#[must_use = "an acquire does nothing unless it is awaited"]
pub struct Acquire {
    pub(crate) locks: Locks,
    /// An acquire changes its target only before it is sent.
    pub(super) target: Target,
    lease: Option<Duration>,
    deadline: Option<SystemTime>,
    pub(super) wait: Option<Wait>,
    pub(super) around_pause: Option<Arc<dyn AroundPause>>,
    pub(crate) min_hold: Duration,
    holder: Option<String>,
    identity: Option<Identity>,
    /// Only an earlier acquire of the identity is replaced.
    pub(crate) takes_over: bool,
    /// The fence of the earlier acquire, if the caller knows it.
    pub(crate) earlier_fence: Option<u64>,
    /// Whether the caller counts a refusal because the key is held.
    pub(crate) is_counted_later: bool,
    pub(super) data: Option<Data>,
    pub(super) attributes: Vec<(String, AttributeValue)>,
}

/// The identity by which a later acquire takes the lock over.
enum Identity {
    Own(String),
    /// The nonce of the acquire.
    Random,
}

impl Acquire {
    /// Sets the lease, the time after which the lock ends unless it is renewed: from 1 ms to 366 days, and with
    /// [`deadline`](Self::deadline), or for a permit of a semaphore, to a day. The default is the time until the deadline if
    /// `deadline` is set, and otherwise the lease of the [`Locks`].
    ///
    /// A lease of more than a day is for a lock that outlives its invocation ([`Lock::keep`]). If nobody goes on with it, the key
    /// stays held until the lease ends, or until an operator [frees](Locks::force_release) it. A shorter lease that is renewed
    /// costs a request each time, and ends soon after a crash.
    #[doc(alias = "ttl", alias = "timeout")]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Ends the lease at this time by the host's clock, such as the deadline of the Lambda invocation: at most a day from
    /// now. With [`lease`](Self::lease) too, the earlier end counts. A wait ends 100 ms before the deadline, so that there is
    /// time to answer.
    ///
    /// A deadline that has just passed is an error of kind [`Invalid`](crate::ErrorKind::Invalid). A deadline that is more than
    /// a day ago counts as none: `cargo lambda watch` gives a function a deadline in 1970, and a `Context` made by hand has
    /// zero.
    pub fn deadline(mut self, deadline: SystemTime) -> Self {
        self.deadline = deadline_if_any(deadline, self.locks.0.clock.now());
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
    pub(crate) fn around_pause(mut self, around_pause: Option<Arc<dyn AroundPause>>) -> Self {
        self.around_pause = around_pause;
        self
    }

    /// Keeps the key held for at least this long after the acquire, even if the lock is released earlier. A schedule that
    /// fires twice, seconds apart, then runs a short job once. Off by default; up to a day.
    ///
    /// It does not extend the lease of a holder that crashed. The key is free at once if the lock is dropped without a
    /// release, or if its [`run`](Self::run) panics or is cancelled. A permit of a [semaphore](Locks::semaphore) has no minimum
    /// hold, and neither have [several keys](Locks::acquire_all): the error is of kind [`Invalid`](crate::ErrorKind::Invalid).
    #[doc(alias = "cron")]
    pub fn min_hold(mut self, hold: Duration) -> Self {
        self.min_hold = hold;
        self
    }

    /// Sets the holder's name that others read, up to 1,024 bytes: by default the name of the [`Locks`].
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Acquires the lock for an identity of the caller, such as the ARN of an execution or the id of a message: 1 to 1,024
    /// bytes. A later acquire of the same identity takes the lock over instead of being refused, so that a retry finds the
    /// lock of an attempt that crashed. Without [`wait`](Self::wait), one request, and two to take a lock over; IAM action
    /// `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// let lock = locks
    ///     .acquire("nightly-report")
    ///     .identity(execution_arn)
    ///     .wait(Duration::from_secs(5))
    ///     .await?;
    /// # lock.release().await
    /// # }
    /// ```
    ///
    /// The identity must be unique to one piece of work: two parallel branches of a workflow need two. It has one permit of a
    /// semaphore. It is a part of the [owner](Lock::owner) in the row, so others can read it; of an identity of more than 256
    /// bytes, the row has the SHA-256 digest. Refusals, logs and the program show it. Pass a digest of an identity that is
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
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(Identity::Own(identity.into()));
        self
    }

    /// Acquires the lock for a random [identity](Self::identity) of 128 bits, which [`Lock::identity`] returns: for work that
    /// has no id of its own and outlives this process. Pass it on to the process that goes on with the lock.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<Option<String>, Error> {
    /// let lock = locks.acquire("import").random_identity().await?;
    /// let identity = lock.identity().map(str::to_owned);
    /// lock.keep(); // `locks.release_identity("import", &identity)` frees it
    /// # Ok(identity)
    /// # }
    /// ```
    pub fn random_identity(mut self) -> Self {
        self.identity = Some(Identity::Random);
        self
    }

    /// Takes the lock over from an earlier acquire of the same [identity](Self::identity), with a larger
    /// [fence](Lock::fence) and a new lease: for the next step of a workflow, whose step before [kept](Lock::keep) the lock. A
    /// step that is repeated has a fence of its own for each attempt.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// let lease = Duration::from_mins(10);
    /// let lock = locks.acquire("deploy").identity(execution_arn).lease(lease).take_over().await?;
    /// deploy(lock.fence()).await;
    /// lock.keep(); // the identity still holds the lock
    /// # Ok(())
    /// # }
    /// # async fn deploy(_: u64) {}
    /// ```
    ///
    /// A takeover never acquires a free key: another holder may have had it meanwhile. A takeover that is not answered frees
    /// nothing: the identity still holds the lock. A takeover is also how another process renews the lock. Two `UpdateItem`s,
    /// of which the first reads the row (IAM action `dynamodb:UpdateItem`). With the fence of the step before,
    /// [`take_over_from`](Self::take_over_from) needs one.
    ///
    /// # Errors
    ///
    /// The error [`is_lost`](Error::is_lost) if the identity does not hold the lock: its lease has ended, it was released, or
    /// another holder has the key. Without an identity it is [invalid](crate::ErrorKind::Invalid).
    pub async fn take_over(mut self) -> Result<Lock, Error> {
        self.takes_over = true;
        self.send().await
    }

    /// Takes the lock over as [`take_over`](Self::take_over) does, in one `UpdateItem` if the lock still has this
    /// [fence](Lock::fence), which the step before has passed on. If the lock has another fence, because the present step is
    /// repeated for example, or if work was [left](Locks::coalesce) to it, a second `UpdateItem` takes it over. A takeover of
    /// [several keys](Locks::acquire_all) or of a permit ignores the fence, and sends two requests. IAM action
    /// `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use lambda_lock::{Error, Lock, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str, fence: u64) -> Result<Lock, Error> {
    /// let lock = locks.acquire("deploy").identity(execution_arn).take_over_from(fence).await?;
    /// # Ok(lock)
    /// # }
    /// ```
    ///
    /// The fence saves a request and proves nothing: whoever has a wrong fence and the identity takes the lock over, too.
    pub async fn take_over_from(mut self, fence: u64) -> Result<Lock, Error> {
        self.earlier_fence = Some(fence);
        self.take_over().await
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
    ///
    /// The name cannot be that of an [attribute of this crate](crate::docs::trust::protocol#the-attributes-of-a-row), and cannot
    /// contain a colon, because each attribute that a later version adds will have one. So your names never meet those of a later
    /// version.
    pub fn attribute(mut self, name: impl Into<String>, value: AttributeValue) -> Self {
        self.attributes.push((name.into(), value));
        self
    }

    /// Runs `body` under the lock, and releases the lock when the body returns, fails or panics. In a program that is built
    /// with `panic = "abort"`, a panic ends the process instead, and the key is free when the lease ends.
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
    ///
    /// Returns what the body returns, a `Result` of its own included. When the lease ends first, the body is cancelled at its
    /// next await point, and the error [`is_lost`](Error::is_lost). A body that blocks its thread is not cancelled: if it
    /// returns after the lease, the error is the same. The error is also the same after Lambda has frozen the process until
    /// after the lease: the clock is read [before each step](Lock::while_held) of the body. Work in `spawn_blocking` or
    /// `tokio::spawn` is not cancelled either: it outlives the lock unless it watches [`Lock::is_valid`] or
    /// [`Lock::until_lost`]. If the key cannot be acquired, the body does not run. A failed release is logged and does not
    /// replace the body's result. Two requests; IAM action `dynamodb:UpdateItem`.
    ///
    /// If the future is dropped, so is the body, perhaps with half of its work done, and the lock is released in the
    /// background. Put a timeout around the work in the body, or await the future on a task of its own (`tokio::spawn`).
    ///
    /// A body that returns counts as done, so [`min_hold`](Self::min_hold) applies, and the metrics count it as
    /// [released](crate::metrics::RELEASED): call [`Lock::clear_min_hold`] in a body that failed.
    pub async fn run<T>(self, body: impl AsyncFnOnce(&Lock) -> T) -> Result<T, Error> {
        let lock = self.await?;
        hold(&lock, async { body(&lock).await }).await
    }

    /// Makes one attempt of a wait, for a caller that sleeps elsewhere: a workflow that is suspended, or a state machine. Pass
    /// no turn first. If another holder has the key, the outcome is a [`Turn`]: sleep for its
    /// [delay](Turn::delay), and pass it to the next attempt, which may be in another process. The waiter keeps its place.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Attempt, Error, Locks, Turn};
    /// # struct State { turn: Option<Turn>, fence: u64 }
    /// /// A step of a workflow: sleeps and runs again until it has the lock.
    /// async fn acquire(locks: &Locks, execution: &str, state: &mut State) -> Result<Option<Duration>, Error> {
    ///     let acquire = locks.acquire("deploy").lease(Duration::from_secs(600)).identity(execution);
    ///     match acquire.attempt_in_turn(state.turn.take()).await? {
    ///         Attempt::Waiting(turn) => {
    ///             let delay = turn.delay();
    ///             state.turn = Some(turn);
    ///             Ok(Some(delay))
    ///         }
    ///         Attempt::Acquired(lock) => {
    ///             state.fence = lock.fence();
    ///             lock.keep(); // for the next step
    ///             Ok(None)
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// [`wait`](Self::wait) limits the time from the first attempt: a day by default. After that, a refused attempt fails
    /// with an error that [`is_held`](Error::is_held). Any other error that [`is_retryable`](Error::is_retryable) also becomes
    /// a turn, so that the wait goes on.
    ///
    /// Delays are from 1 s to 15 min, and shorter before the end of the wait: until the holder and the waiters ahead should be
    /// done. If the hold takes longer than other holds, the delays are up to half of its age. If the row does not know how long
    /// holds take, the delays are up to half of the age of the hold, too, but at most 30 s or a twentieth of this age. Without
    /// a place, the delays are those of the backoff. The [deadline](Self::deadline) ends the lease and not the wait. One
    /// `UpdateItem` (IAM action `dynamodb:UpdateItem`), and one more for the place, which is taken after up to 25 ms.
    ///
    /// # Errors
    ///
    /// A turn of another key or table is [invalid](crate::ErrorKind::Invalid).
    pub async fn attempt_in_turn(self, turn: Option<Turn>) -> Result<Attempt, Error> {
        self.attempt_once(turn).await
    }

    /// Returns a lock that is not enforced, for work that runs without protection.
    pub(crate) fn unlocked(&self) -> Result<Lock, Error> {
        let now = self.locks.0.clock.now();
        let telemetry = HoldSpan::new(Span::none(), self.name());
        let grant = Grant::new(Vec::new(), None, now, self.lease_from(now)?);
        Ok(Lock::new(self.locks.clone(), self.acquisition()?, grant, telemetry, Duration::ZERO))
    }

    /// Returns the longest wait, which ends in time to answer.
    #[cfg(feature = "lambda")]
    pub(crate) fn longest_wait(&self) -> Duration {
        let left = self.time_left(self.locks.0.clock.now()).map_or(Duration::MAX, time_to_ask);
        self.wait.map_or(Duration::ZERO, |wait| wait.budget()).min(left)
    }

    pub(super) fn waits(&self) -> bool {
        self.wait.is_some_and(|wait| wait.is_repeated())
    }

    /// Returns the text that names the rows' keys for people.
    pub(super) fn name(&self) -> String {
        self.target.name(self.locks.0.table.place())
    }

    /// Draws a new nonce.
    pub(super) fn acquisition(&self) -> Result<Acquisition, Error> {
        let nonce = self.locks.0.table.nonce(self.target.keys().first().map_or("", String::as_str))?;
        let identity = self.identity.as_ref().map(|identity| match identity {
            Identity::Own(identity) => identity,
            Identity::Random => &nonce,
        });
        Ok(Acquisition::new(self.target.clone(), owner_of(identity.map(String::as_str), &nonce)))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.target.check(&self.locks.0.table.key_prefix)?;
        if let Some(lease) = self.lease {
            self.check_lease("lease", lease)?;
        }
        if let Some(Identity::Own(identity)) = &self.identity {
            check_identity(identity)?;
        }
        if self.takes_over && !matches!(self.identity, Some(Identity::Own(_))) {
            return Err(Error::invalid("a takeover needs the identity of the holder: set `identity`"));
        }
        check_duration("minimum hold", self.min_hold, Duration::ZERO, DAY)?;
        if !self.min_hold.is_zero() {
            self.target.check_min_hold()?;
        }
        if !self.attributes.is_empty() {
            self.target.check_one_key("attributes")?;
        }
        self.wait.map_or(Ok(()), |wait| wait.check())?;
        if let Some(data) = &self.data {
            self.target.check_data(data)?;
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
    pub(super) fn lease_from(&self, now: Moment) -> Result<Lease, Error> {
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
        self.check_lease("time until the deadline", lease)?;
        Ok(settings.table.lease(&self.target, now, now.deadline_after(lease), None))
    }

    fn check_lease(&self, what: &str, lease: Duration) -> Result<(), Error> {
        let longest = self.deadline.map_or_else(|| self.target.longest_lease(), |_| DAY);
        check_duration(what, lease, MIN_LEASE, longest)
    }

    pub(super) fn holder_name(&self) -> &str {
        self.holder.as_deref().unwrap_or(&self.locks.0.holder)
    }

    /// Returns the time until the deadline, if there is one.
    pub(super) fn time_left(&self, now: Moment) -> Option<Duration> {
        self.deadline.map(|deadline| since_epoch(deadline).saturating_sub(now.wall))
    }

    pub(super) fn time_to_withdraw(&self, now: Moment) -> Duration {
        self.time_left(now).map_or(WITHDRAWAL_TIMEOUT, |left| time_to_ask(left).min(WITHDRAWAL_TIMEOUT))
    }

    /// Returns the places of this waiter, if waiters take turns.
    pub(super) fn turns(&self) -> Option<Turns> {
        let takes_turns = !self.takes_over && self.wait.is_some_and(|wait| wait.takes_turns());
        takes_turns.then(|| Turns::new(&self.target))
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

/// The calls around each pause of an acquire that waits for another holder. If a call takes longer than the rest of the wait,
/// the wait ends.
pub(crate) trait AroundPause: Send + Sync {
    /// Ends when the pause may begin.
    fn before(&self) -> BoxFuture<'_, ()>;
    /// Ends when the next attempt may be sent.
    fn after(&self) -> BoxFuture<'_, ()>;
}

/// Runs `body` while `lock` is held, then releases the lock.
pub(crate) async fn hold<T>(lock: &Lock, body: impl Future<Output = T>) -> Result<T, Error> {
    hold_until(lock, body, lock.release()).await.map(|(value, _)| value)
}

/// Runs `body` while `lock` is held, then this release. A failed release is logged, and does not replace the value.
pub(crate) async fn hold_until<T, R>(
    lock: &Lock,
    body: impl Future<Output = T>,
    release: impl Future<Output = Result<R, Error>>,
) -> Result<(T, Result<R, Error>), Error> {
    lock.leave_to_task();
    let outcome = AssertUnwindSafe(lock.while_held(body)).catch_unwind().await.map(Result::ok);
    if !matches!(outcome, Ok(Some(_))) {
        lock.clear_min_hold();
    }
    let released = in_time_to_answer(lock, release).await;
    // A loss was logged before.
    if let Err(error) = released.as_ref()
        && !error.is_lost()
    {
        tracing::warn!(key = lock.shown_key(), fence = lock.fence(), ?error, "release failed");
    }
    match outcome {
        Ok(Some(value)) => Ok((value, released)),
        Ok(None) => Err(lock.error(Cause::Lost(None))),
        Err(panic) => resume_unwind(panic),
    }
}

/// Runs the `body` of an idempotent run. Returns `None` if its lease ended first, and an error if the body panicked.
pub(crate) async fn until_overrun<T>(lock: &Lock, body: impl Future<Output = T>) -> std::thread::Result<Option<T>> {
    lock.leave_to_task();
    AssertUnwindSafe(lock.until_overrun(body)).catch_unwind().await.map(Result::ok)
}

/// Limits the last request under a lock, so that the answer to Lambda does not wait for a table that does not answer.
pub(crate) async fn in_time_to_answer<T>(
    lock: &Lock,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(lock.time_to_answer(), request).await.unwrap_or_else(|_| Err(lock.hold.unanswered()))
}
