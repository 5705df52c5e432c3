//! `Locks::delete_expired`: the deletion of old rows without TTL.

use crate::error::Error;
use crate::lock::Locks;

impl Locks {
    /// Deletes the rows that DynamoDB's TTL would delete, for a table without TTL: one with
    /// [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency). Call it on a schedule. Returns
    /// how many rows were deleted, without one whose answer was lost.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// let deleted = locks.delete_expired().await?;
    /// println!("deleted {deleted} old rows");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A row is deleted if its time, the attribute `expiration`, passed by at least the clock skew: the
    /// [retention](crate::LocksBuilder::retention) after the lease of a lock, a day more for a semaphore, or the end of the
    /// window of a record. The deletion has this as its condition, so a row that is in use again stays. Only rows with the key
    /// prefix and the sort key of these `Locks` are deleted, and only those that have attributes of a lock, a semaphore or a
    /// record. The rows of another program stay, also with a `status` and an `expiration`.
    ///
    /// Reads the whole table: one `Scan` for each MiB, which is not a consistent one, and one `DeleteItem` for each row that is
    /// deleted. IAM actions `dynamodb:Scan` and `dynamodb:DeleteItem`. After an error, and if the future is dropped, the rows
    /// that were deleted stay deleted: call it again.
    #[doc(alias = "ttl", alias = "cleanup")]
    pub async fn delete_expired(&self) -> Result<u64, Error> {
        let (settings, mut after, mut total) = (&self.0, None, 0);
        loop {
            let (deleted, next) = settings.table.delete_expired(after, settings.clock.now()).await?;
            (after, total) = (next, total + deleted);
            if after.is_none() {
                return Ok(total);
            }
        }
    }
}
