//! Requests for the lock of an identity, in any process.

use tracing::Instrument as _;

use super::locks::Locks;
use crate::error::Error;
use crate::limits::check_identity;
use crate::metrics;

impl Locks {
    /// Frees the key, or the permit of the semaphore, if this [identity](crate::Acquire::identity) holds it. Returns `false`
    /// if it does not: its lock was released, its lease has ended, or another holder has the key.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// if locks.release_identity("deploy", execution_arn).await? {
    ///     println!("the execution held the lock when it was stopped");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It is for the end of a workflow that knows its identity and not its [`Ticket`](crate::Ticket): a step after an error,
    /// or a function that learns that an execution was stopped. The holder finds its lock lost. Make sure that it has ended.
    /// The key is free at once, whatever its [minimum hold](crate::Acquire::min_hold). Of several keys, it frees one. If others
    /// leave their work to the identity, use [`release_identity_coalescing`](Self::release_identity_coalescing).
    ///
    /// One consistent `GetItem`, and one `UpdateItem` if the identity holds the key; up to three of each while others change
    /// the row. IAM actions `dynamodb:GetItem` and
    /// `dynamodb:UpdateItem`. It can be repeated after any error. If locking is [disabled](crate::LocksBuilder::enabled),
    /// nothing is sent.
    pub async fn release_identity(&self, key: impl Into<String>, identity: &str) -> Result<bool, Error> {
        Ok(self.release_by_identity(key.into(), identity).await?.is_some())
    }

    /// The same, and returns `true` if others were skipped meanwhile and [left their work](Self::coalesce) to this identity: start
    /// the workflow once more. Returns `false` if nobody was, or if the identity does not hold the key.
    pub async fn release_identity_coalescing(&self, key: impl Into<String>, identity: &str) -> Result<bool, Error> {
        Ok(self.release_by_identity(key.into(), identity).await? == Some(true))
    }

    /// Returns whether work was left to the identity, if it held the key.
    async fn release_by_identity(&self, key: String, identity: &str) -> Result<Option<bool>, Error> {
        self.check_key(&key)?;
        check_identity(identity)?;
        let settings = &self.0;
        if !settings.enabled {
            return Ok(None);
        }
        let (table, now) = (&settings.table, settings.clock.now());
        let span = tracing::info_span!("identity", request = "release", key = &*table.place().printable_key(&key));
        let freed = table.release_identity(&key, identity, now).instrument(span).await?;
        if freed.is_some() {
            metrics::count(metrics::RELEASED);
        }
        Ok(freed)
    }
}
