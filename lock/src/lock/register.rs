//! `Register`: the locks that are held, so that all of them can be released before the process ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::future::BoxFuture;

use crate::error::Error;

/// A lock in the register.
pub(super) trait Held: Send + Sync {
    /// Ends the lock before its lease does: work that runs under it stops. Returns `false` if no request is left to send.
    fn stop(&self) -> bool;

    /// Releases the lock, or waits until the task of its work has done so.
    fn released(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Returns the error of a release that was not answered in time.
    fn unanswered(&self) -> Error;
}

/// The locks by their address.
#[derive(Debug, Default)]
pub(crate) struct Register(Mutex<HashMap<usize, Weak<dyn Held>>>);

impl Register {
    pub(super) fn add(&self, held: &Arc<impl Held + 'static>) {
        let weak = Arc::downgrade(held);
        self.held().insert(address(held), weak);
    }

    pub(super) fn remove(&self, held: &Arc<impl Held>) {
        self.held().remove(&address(held));
    }

    /// Stops all locks that are not in `stopped`, and adds them to it. Returns the locks that are to be released.
    pub(super) fn stop(&self, stopped: &mut HashMap<usize, Arc<dyn Held>>) -> Vec<Arc<dyn Held>> {
        let others = |(address, held): (&usize, &Weak<dyn Held>)| match stopped.entry(*address) {
            Entry::Vacant(entry) => Some(Arc::clone(entry.insert(held.upgrade()?))),
            Entry::Occupied(_) => None,
        };
        let others: Vec<_> = self.held().iter().filter_map(others).collect();
        others.into_iter().filter(|held| held.stop()).collect()
    }

    /// The map is whole after a panic.
    fn held(&self) -> MutexGuard<'_, HashMap<usize, Weak<dyn Held>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn address(held: &Arc<impl Held>) -> usize {
    Arc::as_ptr(held).addr()
}
