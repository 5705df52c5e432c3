//! Leaving the work of a refused acquire to the holder.

use super::locks::Locks;
use crate::error::Error;
use crate::holder::Holder;
use crate::row::Coalescing;

impl Locks {
    /// Leaves the work of a refused acquire to the [holder](Error::holder) that the refusal has named, whose release
    /// then [says so](crate::Lock::release_coalescing). Returns `true` if the holder runs once more after its present run.
    /// Returns `false` if it has released or lost the key meanwhile: acquire again. One request, or two if others ask at the
    /// same time; IAM action `dynamodb:UpdateItem`.
    ///
    /// Suppose that a search index is rebuilt after each change, by one invocation at a time, and that a change comes in while
    /// one runs. It may have read its input already. If you skip the change, the index misses it until the next one.
    /// [`LockLayer::coalesce`](crate::LockLayer::coalesce) does all this for a handler, and
    /// [`release_coalescing`](crate::Lock::release_coalescing) has the whole loop.
    ///
    /// All holders of the key must release it so, and run once more whatever their run ended with. A plain release, the release of
    /// [several keys](Self::acquire_all) and the completion of a record do not look, and the work that was left would be lost. If
    /// the holder crashes, or an operator frees its key, its retry has to run the work: [all
    /// cases](crate::docs::recipes::rebuild#who-does-the-skipped-work).
    ///
    /// Take the holder from the refusal. It knows which attempts this acquire has sent, and the request gives them up, so that
    /// none of them takes the key later for nobody. A holder that [`get`](Self::get) has read knows of none.
    ///
    /// Returns `false`, too, for a permit, for a record of another library, and for a key that only a
    /// [minimum hold](crate::Acquire::min_hold) keeps: they have nobody who would run once more.
    #[doc(alias = "debounce", alias = "dirty flag", alias = "rerun")]
    pub async fn coalesce(&self, key: impl Into<String>, seen: &Holder) -> Result<bool, Error> {
        let key = key.into();
        self.check_key(&key)?;
        if !self.0.enabled {
            return Ok(false);
        }
        let is_left = match Coalescing::new(&key, seen, self.0.clock.now()) {
            Some(coalescing) => self.0.table.run(coalescing, || self.0.clock.now()).await?,
            None => false,
        };
        tracing::debug!(key = self.0.table.place().printable_key(&key), is_left, "left to the holder");
        Ok(is_left)
    }
}
