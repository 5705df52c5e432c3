//! Releases the locks of an identity, in any process.

use futures_util::future::join_all;
use tracing::Instrument as _;

use super::locks::Locks;
use crate::error::Error;
use crate::limits::{check_identity, check_keys};
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
    /// It is for the end of a workflow, in any process: for its last step, for a step after an error, or for a function that
    /// learns that an execution was stopped. The holder finds its lock lost. Make sure that the holder has ended. The key is free at
    /// once, whatever its [minimum hold](crate::Acquire::min_hold). If work is left to the identity, use
    /// [`release_identity_coalescing`](Self::release_identity_coalescing), and for several keys
    /// [`release_identity_all`](Self::release_identity_all).
    ///
    /// One consistent `GetItem`, and one `UpdateItem` if the identity holds the key; up to three of each while the row changes. IAM
    /// actions `dynamodb:GetItem` and `dynamodb:UpdateItem`. It can be repeated after any error. If locking is
    /// [disabled](crate::LocksBuilder::enabled), nothing is sent.
    pub async fn release_identity(&self, key: impl Into<String>, identity: &str) -> Result<bool, Error> {
        Ok(self.release_by_identity(&key.into(), identity).await?.is_some())
    }

    /// Frees each of these 1 to 100 different keys that the identity holds, as [`release_identity`](Self::release_identity)
    /// frees one. Returns `true` if the identity held one of them. The requests for each key are those of `release_identity`.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks, execution_arn: &str) -> Result<(), Error> {
    /// locks.release_identity_all(["account#1", "account#2"], execution_arn).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If it fails for one key, it frees the other keys, and returns the error of the key that failed.
    pub async fn release_identity_all(
        &self,
        keys: impl IntoIterator<Item = impl Into<String>>,
        identity: &str,
    ) -> Result<bool, Error> {
        let mut keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        keys.sort_unstable();
        check_keys(&self.0.table.key_prefix, &keys)?;
        let freed = join_all(keys.iter().map(|key| self.release_by_identity(key, identity))).await;
        freed.into_iter().try_fold(false, |any, freed| Ok(any | freed?.is_some()))
    }

    /// Frees the key as [`release_identity`](Self::release_identity) does, and returns `true` if work was
    /// [left](Self::coalesce) to this identity: start the workflow once more. Returns `false` if none was, or if the identity
    /// does not hold the key. The requests are those of `release_identity`.
    pub async fn release_identity_coalescing(&self, key: impl Into<String>, identity: &str) -> Result<bool, Error> {
        Ok(self.release_by_identity(&key.into(), identity).await? == Some(true))
    }

    /// Returns whether work was left to the identity, if it held the key.
    async fn release_by_identity(&self, key: &str, identity: &str) -> Result<Option<bool>, Error> {
        self.check_key(key)?;
        check_identity(identity)?;
        let settings = &self.0;
        if !settings.enabled {
            return Ok(None);
        }
        let (table, now) = (&settings.table, settings.clock.now());
        let span = tracing::info_span!("identity", request = "release", key = &*table.place().printable_key(key));
        let freed = table.release_identity(key, identity, now).instrument(span).await?;
        if freed.is_some() {
            metrics::count(metrics::RELEASED);
        }
        Ok(freed)
    }
}
