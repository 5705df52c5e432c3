//! `Semaphore`: a key that up to N holders have at a time.

use super::acquire::Acquire;
use super::held::Lock;
use super::locks::Locks;
use crate::error::Error;
use crate::row::Kind;

impl Locks {
    /// Returns the semaphore on `key`, which up to `permits` holders have at a time: from 1 to 100. Sends no request; an
    /// acquire checks the number.
    pub fn semaphore(&self, key: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore { locks: self.clone(), key: key.into(), permits }
    }
}

/// A key with several permits: up to N pieces of work hold it at a time. Cheap to clone.
///
/// A permit is a [`Lock`], and its acquire is an [`Acquire`]: with deadline, lease, wait, data and `run`. [`Holder::permits`](crate::Holder::permits) lists the
/// permits that are held.
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::{Wait, Error, Locks};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// // Five calls of the bank at a time, across all invocations.
/// let bank = locks.semaphore("bank-api", 5);
/// let balance = bank
///     .acquire()
///     .lease(Duration::from_secs(20))
///     .wait(Wait::in_turn())
///     .run(async |_permit| call_the_bank().await)
///     .await?;
/// # let _: u32 = balance;
/// # Ok(())
/// # }
/// # async fn call_the_bank() -> u32 { 0 }
/// ```
///
/// # Requests
///
/// | operation | requests |
/// | --- | --- |
/// | acquire, granted or refused | 1 `UpdateItem` |
/// | a place in the queue, for an acquire that [waits](Acquire::wait) and is refused | 1 `UpdateItem` |
/// | acquire that replaces permits whose lease has ended | 2 `UpdateItem`; up to 4 while others change the row |
/// | renew, release | 1 `UpdateItem` |
///
/// The IAM action is `dynamodb:UpdateItem`. All permits of a key are in one row, and each adds its holder's name and about
/// 210 bytes, and with [`owner_from`](Acquire::owner_from) about three times the length of the identity.
/// DynamoDB bills a write by the KB of the row, and writes one row about 1000 times a second at most. So a
/// semaphore suits tens of permits that are held for a second or longer, and not thousands of short calls a second.
///
/// # Different numbers
///
/// Each caller's own number counts. While a deployment changes it from 5 to 3, callers with 5 take up to five permits, and
/// callers with 3 are refused while three or more are held. No permit is withdrawn.
///
/// # One kind for each key
///
/// A key is either a semaphore, a lock, or a record of idempotency. An acquire of another kind fails with an error of kind
/// [`WrongKind`](crate::ErrorKind::WrongKind), also while the key is free: until DynamoDB's TTL deletes the row. The row of a
/// semaphore stays for the longest lease, a day, plus the skew and the [retention](crate::LocksBuilder::retention) after its
/// last request.
///
/// # Waiting
///
/// Waiters take turns, as those for a lock: [Waiting](crate::docs::waiting) describes who asks when. The order is not
/// guaranteed. With [`Wait::backoff`](crate::Wait::backoff) they take no place.
///
/// # Data
///
/// The permits share the [data](Lock::data) of the row: the last holder that wrote data leaves it to the next acquire.
/// At most 200 KiB. The name of a [holder](Acquire::holder) has at most 1024 bytes.
///
/// # Fences
///
/// Each acquisition has a larger [fence](Lock::fence) than all earlier ones, but up to N holders are valid at a time. So a
/// receiver cannot reject a write because its fence is smaller than another: the holder with the smaller fence may still
/// have its permit. A fence of a permit tells acquisitions apart, for example in a log.
///
/// # Late requests
///
/// If an acquire ends while one of its requests is unanswered, the client tells the row to refuse that request. The same holds for
/// a release. But if a process dies, nobody does so: its request may arrive later, take a free permit, and keep it until
/// the lease that it asks for has ended. So may a request that the network repeats although it was answered.
///
/// If you [release](Lock::release) a permit that was replaced after its lease, the error [`is_lost`](Error::is_lost).
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    locks: Locks,
    key: String,
    permits: u32,
}

impl Semaphore {
    /// Prepares an acquire of a permit. Await it, or set options first. Without [`Acquire::wait`], one request, or two to
    /// replace permits whose lease has ended; IAM action `dynamodb:UpdateItem`.
    ///
    /// Fails with an error that [`is_held`](Error::is_held) if all permits are held. Its
    /// [`holder`](Error::holder) lists them.
    pub fn acquire(&self) -> Acquire {
        self.locks.acquire_kind(Kind::permit(self.key.clone(), self.permits))
    }

    /// Acquires a permit, or returns `None` if all are held. The requests are those of [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let Some(permit) = locks.semaphore("bank-api", 5).try_acquire().await? else {
    ///     return Ok(()); // five others are at it
    /// };
    /// // … the work …
    /// permit.release().await
    /// # }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Lock>, Error> {
        match self.acquire().await {
            Ok(permit) => Ok(Some(permit)),
            Err(error) if error.is_held() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
