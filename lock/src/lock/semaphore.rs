//! `Semaphore`: a key that up to N holders have at a time.

use super::acquire::Acquire;
use super::held::Lock;
use super::locks::Locks;
use crate::error::Error;
use crate::row::Target;

impl Locks {
    /// Returns the semaphore on `key`, which up to `permits` holders have at a time: from 1 to 100. Sends no request; an
    /// acquire checks the number.
    pub fn semaphore(&self, key: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore { locks: self.clone(), key: key.into(), permits }
    }
}

/// A key with several permits: up to N pieces of work hold it at a time.
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
/// Cheap to clone.
///
/// A permit is a [`Lock`], and its acquire is an [`Acquire`]: with deadline, lease, wait, data and `run`, and without a
/// [minimum hold](Acquire::min_hold).
/// [`Holder::permits`](crate::Holder::permits) lists the permits that are held.
///
/// # Requests
///
/// | operation | requests |
/// | --- | --- |
/// | acquire, granted or refused | 1 `UpdateItem` |
/// | a place in the queue, for an acquire that [waits](Acquire::wait) and is refused | 1 `UpdateItem` |
/// | acquire that replaces permits whose lease has ended, or that takes over the permit of its identity | 2 `UpdateItem`; up to 4 while others change the row |
/// | renew, release | 1 `UpdateItem` |
///
/// The IAM action is `dynamodb:UpdateItem`. All permits of a key are in one row, and each adds its holder's name and about
/// 130 bytes while it is held (30 more after a renewal and a takeover), and with
/// [`identity`](Acquire::identity) twice the length of the identity. A released permit leaves nothing.
///
/// DynamoDB bills a write by the KB of the row, and writes one row about 1000 times a second at most. So a semaphore suits tens
/// of permits that are held for a second or longer, and not thousands of short calls a second.
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
/// Waiters take turns, as those for a lock: [Waiting](crate::docs::reference::waiting) describes who asks when. The order is not
/// guaranteed. With [`Wait::backoff`](crate::Wait::backoff) they take no place.
///
/// # Data
///
/// The permits share the [data](Lock::data) of the row: the last holder that wrote data leaves it to the next acquire.
/// At most 200 KiB. The name of a [holder](Acquire::holder) has at most 1024 bytes.
///
/// # Fences
///
/// Each acquisition has a larger [fence](Lock::fence) than all earlier ones. The fence counts the acquisitions of the key, so it
/// tells you in a log which permit was acquired first, and it tells `lambda-lock release` which permit you mean.
///
/// A receiver of writes cannot use it as it can use the fence of a lock. Up to N holders are valid at a time, also those with
/// smaller fences. For example, A has a permit with fence 7 and B one with fence 8. If the receiver rejected 7 after it has
/// seen 8, it would reject A, which still has its permit. And if A has lost its permit, its fence does not show that. To stop
/// a holder that was paused past its lease, put its [`condition_check`](Lock::condition_check) into the transaction that
/// writes.
///
/// # Late requests
///
/// If an acquire ends while one of its requests is unanswered, the client tells the row to refuse that request. The release of
/// a permit whose acquire sent such a request tells the row, too. But if a process dies, nobody tells the row: the request may
/// arrive later, take a free permit, and keep it until the lease that it asks for has ended. A request that the network repeats
/// although it was answered may do the same. No more holders are valid than there are permits, because a permit that a late
/// request takes has no holder.
///
/// If you [release](Lock::release) a permit that was replaced after its lease, the error [`is_lost`](Error::is_lost). Suppose that
/// the first request of a release is not answered, and the permit is gone when the release is repeated: until its lease has
/// ended, the permit counts as released, because the row does not show who has removed it.
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    locks: Locks,
    key: String,
    permits: u32,
}

impl Semaphore {
    /// Prepares an acquire of a permit. Await it, or set options first. Without [`Acquire::wait`], one request, or two to
    /// replace permits whose lease has ended or to take over the permit of its identity; IAM action `dynamodb:UpdateItem`.
    ///
    /// Fails with an error that [`is_held`](Error::is_held) if all permits are held. Its
    /// [`holder`](Error::holder) lists them.
    pub fn acquire(&self) -> Acquire {
        self.locks.acquire_target(Target::Permit { key: self.key.clone(), of: self.permits })
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
