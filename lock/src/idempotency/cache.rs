//! The cache of completed records, which answers duplicates without a request.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;

use crate::holder::Holder;

/// Completed records by key. A full cache drops the least recently used one.
pub(super) struct Cache(Mutex<LruCache<String, Holder>>);

impl Cache {
    pub(super) fn new(records: NonZeroUsize) -> Self {
        // `LruCache::new` would allocate room for all records at once.
        let mut cache = LruCache::unbounded();
        cache.resize(records);
        Self(Mutex::new(cache))
    }

    /// Returns the record of a key unless its window has passed at `now`, in milliseconds since the epoch.
    pub(super) fn get(&self, key: &str, now: u64) -> Option<Holder> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match cache.get(key) {
            Some(record) if record.until > now => Some(record.clone()),
            Some(_) => {
                cache.pop(key);
                None
            }
            None => None,
        }
    }

    pub(super) fn put(&self, key: &str, record: Holder) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(key.to_owned(), record);
    }
}
