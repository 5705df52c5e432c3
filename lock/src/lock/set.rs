//! `AcquireAll` and `LockSet`: several keys, all or none.

use std::fmt;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::ConditionCheck;

use super::acquire::{Acquire, hold};
use super::attempt::{Attempt, Turn};
use super::held::Lock;
use super::locks::Locks;
use super::wait::Wait;
use crate::error::Error;
use crate::row::Kind;

impl Locks {
    /// Prepares an acquire of the locks on 1 to 100 different keys: all of them or none. Their order does not matter, so two
    /// callers cannot deadlock. Await it, or set options first. Without [`AcquireAll::wait`], one `TransactWriteItems`; IAM
    /// action `dynamodb:UpdateItem`.
    pub fn acquire_all(&self, keys: impl IntoIterator<Item = impl Into<String>>) -> AcquireAll {
        AcquireAll { acquire: self.acquire_kind(Kind::keys(keys.into_iter().map(Into::into).collect())) }
    }
}

/// An acquire of several keys that was not sent yet. Await it to get a [`LockSet`], or [`run`](Self::run) work under the
/// locks.
///
/// Each key has the row of an ordinary lock. While the set is held, an [`acquire`](Locks::acquire) of one of its keys is
/// refused, and the set is refused while one of its keys is held. [`Locks::get`] and [`Locks::list`] show each key. The data
/// that a holder left in a row stays there.
///
/// Without options it makes one attempt. If others hold some of the keys, it fails with an error that
/// [`is_held`](Error::is_held), which names every key in the way, its holder and until when
/// ([`holders`](Error::holders)).
///
/// # Cost
///
/// Each attempt is one `TransactWriteItems` with one update for each key (IAM action `dynamodb:UpdateItem` on each key). It
/// costs two write units for each key, also when it is refused. If the clock of this host is behind the last release of a key,
/// or if the same identity holds some of the keys, an attempt sends another transaction, up to four in all.
/// DynamoDB's limit for the rows of a transaction, with the data in them, is 4 MB in all.
///
/// DynamoDB cancels a transaction if another request or transaction on one of its rows is in progress. The attempt then
/// fails with an error of kind [`Conflict`](crate::ErrorKind::Conflict); a wait tries again. A plain acquire of one of
/// the keys at the same moment can fail in the same way. Renewals and releases are repeated.
///
/// A table with [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency) has no transactions: the
/// acquire then fails with an error of kind [`Invalid`](crate::ErrorKind::Invalid), or of kind
/// [`Rejected`](crate::ErrorKind::Rejected) without that setting.
///
/// # Withdrawal
///
/// If it ends without the locks while one of its requests is unanswered, it withdraws as [`Acquire`] does. First a transaction
/// frees the keys that its attempts have taken, and then one `UpdateItem` makes the row of the first key refuse the late
/// request, which is enough to refuse the whole transaction. More requests follow while others change the rows.
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
/// transfer(accounts.fence("account#1"), accounts.fence("account#2")).await;
/// accounts.release().await
/// # }
/// # async fn transfer(_: Option<u64>, _: Option<u64>) {}
/// ```
#[must_use = "an acquire does nothing unless it is awaited"]
#[derive(Debug)]
pub struct AcquireAll {
    acquire: Acquire,
}

impl AcquireAll {
    /// Sets the lease, the time after which the locks end unless they are renewed: from 1 ms to a day. The default is that
    /// of [`Acquire::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.acquire = self.acquire.lease(lease);
        self
    }

    /// Ends the lease at this time by the host's clock, as [`Acquire::until`] does: at most a day from now.
    /// A deadline that is more than a day ago counts as none.
    pub fn until(mut self, deadline: SystemTime) -> Self {
        self.acquire = self.acquire.until(deadline);
        self
    }

    /// Waits while a key is held, and retries after conflicts, throttling and server errors. Off by default.
    ///
    /// With a [`Duration`] or [`Wait::in_turn`], a waiter takes a place with each key that refuses it: one `UpdateItem` for
    /// each. While one holder has all keys and nobody waits for one of them alone, a place with the first key is enough.
    ///
    /// When the waiter is next in line with all keys that refuse it, and they should come free at different times, it
    /// reserves its keys with one `TransactWriteItems`. Other waiters in turn leave them to it until the last one should be
    /// free: for at most a minute, and then for at least as long not again. A single attempt and plain backoff do not.
    ///
    /// Each attempt is one `TransactWriteItems`. With [`Wait::backoff`], there are no other requests.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.acquire = self.acquire.wait(wait);
        self
    }

    /// Sets the holder's name that others read: by default that of the [`Locks`].
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.acquire = self.acquire.holder(holder);
        self
    }

    /// Acquires the locks for an identity of the caller, as [`Acquire::identity`] does. It takes over what an earlier acquire
    /// of the identity holds, key by key: the sets may differ. The earlier holder then finds its whole set lost, and its other
    /// keys stay held until it releases them or their leases end.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.acquire = self.acquire.identity(identity);
        self
    }

    /// Makes one attempt of a wait, for a caller that sleeps elsewhere, as [`Acquire::attempt`] does. It takes a place with
    /// each key, and reserves nothing. One `TransactWriteItems`, and one `UpdateItem` for each place; IAM action
    /// `dynamodb:UpdateItem` on each key.
    pub async fn attempt(self, turn: Option<Turn>) -> Result<Attempt<LockSet>, Error> {
        Ok(match self.acquire.attempt_once(turn).await? {
            Attempt::Acquired(lock) => Attempt::Acquired(LockSet { lock }),
            Attempt::Waiting(turn) => Attempt::Waiting(turn),
        })
    }

    /// Takes the locks over from earlier acquires of the same [identity](Self::identity), all or none, as
    /// [`Acquire::take_over`] does. Two `TransactWriteItems`, of which the first reads the rows; IAM action
    /// `dynamodb:UpdateItem` on each key.
    pub async fn take_over(self) -> Result<LockSet, Error> {
        Ok(LockSet { lock: self.acquire.take_over().await? })
    }

    /// Runs `body` under the locks, and releases them when the body returns, fails or panics, as [`Acquire::run`] does. The
    /// body is cancelled at its next await point when the lease ends or a renewal finds a key lost; the error then
    /// [`is_lost`](Error::is_lost). Two requests.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// locks.acquire_all(["account#1", "account#2"]).run(async |accounts| transfer(accounts.keys()).await).await
    /// # }
    /// # async fn transfer(_: &[String]) {}
    /// ```
    pub async fn run<T>(self, body: impl AsyncFnOnce(&LockSet) -> T) -> Result<T, Error> {
        let set = self.await?;
        hold(&set.lock, async { body(&set).await }).await
    }
}

impl IntoFuture for AcquireAll {
    type Output = Result<LockSet, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(LockSet { lock: self.acquire.send().await? }) })
    }
}

/// The locks on several keys, which were acquired together and are released together.
///
/// [Release](Self::release) them. A set that is dropped without a release logs a warning and sends the release in the
/// background, if there is a tokio runtime. Without a runtime, the keys are free when the lease ends.
///
/// All keys have one lease, and no ticket. What [`Lock`] says about a paused process applies: take the
/// [`fence`](Self::fence) of a key along with each write, or put the [`condition_checks`](Self::condition_checks) into the
/// transaction that writes.
#[must_use = "locks that are dropped at once protect nothing"]
pub struct LockSet {
    lock: Lock,
}

impl LockSet {
    /// Returns the keys in alphabetical order, without the prefix.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        self.lock.hold.acquisition.kind().all_keys()
    }

    /// Returns the nonce of this acquisition, which all rows have: 128 bits from the operating system's generator, in
    /// hexadecimal.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.lock.owner()
    }

    /// Returns the fencing token of this key, which is larger than that of every earlier acquisition of the key, or `None`
    /// if the set does not have the key. Zero if the locks are not [enforced](Self::is_enforced).
    ///
    /// All keys of a set have the same fence: the clock of the acquire in microseconds, or one more than the largest fence
    /// that a refusal showed. [`Lock::fence`] names two cases in which a fence can go back.
    #[must_use]
    pub fn fence(&self, key: &str) -> Option<u64> {
        let index = self.keys().iter().position(|other| other == key)?;
        Some(self.lock.hold.fences.get(index).copied().unwrap_or(0))
    }

    /// Returns `false` if the locks do not exclude others, because locking is [disabled](crate::LocksBuilder::enabled).
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.lock.is_enforced()
    }

    /// Returns when the request that acquired the locks was sent, by this host's clock.
    #[must_use]
    pub fn acquired_at(&self) -> SystemTime {
        self.lock.acquired_at()
    }

    /// Returns until when the locks are valid, by this host's clock. Other hosts see the keys as free later, by the clock
    /// skew.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        self.lock.expires_at()
    }

    /// Returns the time that is left of the lease, as [`Lock::remaining`] does.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lock.remaining()
    }

    /// Returns `true` while the locks are valid. Compares clocks; sends no request.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lock.is_valid()
    }

    /// Waits until the locks are no longer valid: their lease ended, one was lost, or a release was started. Compares
    /// clocks; sends no request.
    pub async fn lost(&self) {
        self.lock.lost().await;
    }

    /// Renews the lease of all keys, so that it ends `lease` from now: from 1 ms to a day. One `TransactWriteItems`, which
    /// is repeated as [`Lock::renew`] is; IAM action `dynamodb:UpdateItem`.
    ///
    /// Fails with an error that [`is_lost`](Error::is_lost) if the lease has ended, the locks were released, or a key is
    /// lost: the error names those keys. No row is modified then, and the whole set is lost. Release it to free the other
    /// keys. After any other error, and if the future is dropped, the request may have been applied, so the locks are valid
    /// until the earlier of the old and the new end.
    pub async fn renew(&self, lease: Duration) -> Result<(), Error> {
        self.lock.renew(lease).await
    }

    /// Releases all locks. One `TransactWriteItems`, unless a request has already shown the locks released or lost. It is
    /// repeated as [`Lock::release`] is; IAM action `dynamodb:UpdateItem`.
    ///
    /// If others have taken some of the keys, a second transaction releases the remaining ones. The error then
    /// [`is_lost`](Error::is_lost) and names the keys that were lost; their rows are not modified. Otherwise, what
    /// [`Lock::release`] says about errors applies.
    pub async fn release(&self) -> Result<(), Error> {
        self.lock.release().await
    }

    /// Returns the `ConditionCheck` "this key is still held" of each key, for your own `TransactWriteItems`.
    ///
    /// Sends no request. In the transaction each costs one write check, and needs the IAM action
    /// `dynamodb:ConditionCheckItem`. A transaction has at most 100 items.
    ///
    /// ```
    /// # use aws_sdk_dynamodb::{Client, types::{Put, TransactWriteItem}};
    /// # async fn example(client: Client, set: &lambda_lock::LockSet, put: Put) -> Result<(), Box<dyn std::error::Error>> {
    /// let checks = set.condition_checks()?.into_iter();
    /// let checks = checks.map(|check| TransactWriteItem::builder().condition_check(check).build());
    /// client
    ///     .transact_write_items()
    ///     .set_transact_items(Some(checks.collect()))
    ///     .transact_items(TransactWriteItem::builder().put(put).build())
    ///     .set_client_request_token(lambda_lock::request_token())
    ///     .send()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn condition_checks(&self) -> Result<Vec<ConditionCheck>, Error> {
        self.lock.hold.condition_checks()
    }

    /// Keeps the keys held after this process, for a [takeover](AcquireAll::take_over) by the same identity: until it frees
    /// them ([`Locks::release_identity`], for each key) or the lease ends. Sends no request.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// let accounts = ["account#1", "account#2"];
    /// locks.acquire_all(accounts).identity(execution_arn).await?.keep();
    /// // In a later step:
    /// let set = locks.acquire_all(accounts).identity(execution_arn).take_over().await?;
    /// set.release().await
    /// # }
    /// ```
    pub fn keep(self) {
        let _no_ticket = self.lock.hand_over();
    }
}

impl fmt::Debug for LockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockSet")
            .field("keys", &self.keys())
            .field("owner", &self.owner())
            .field("fences", &self.lock.hold.fences)
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}
