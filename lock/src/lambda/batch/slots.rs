//! `Slots`: how many lanes run at once, and how many wait meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many lanes run at once, and how many wait meanwhile for work that is in progress elsewhere. A lane that waits takes
/// no slot from those that can run. It counts all the same, because each wait asks again and again.
#[derive(Clone)]
pub(super) struct Slots {
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Slots {
    pub(super) fn new(concurrency: usize) -> Self {
        let slots = || Arc::new(Semaphore::new(concurrency.min(Semaphore::MAX_PERMITS)));
        Self { running: slots(), waiting: slots() }
    }

    /// Returns the slot of a lane that runs, when there is one.
    pub(super) async fn take(&self) -> Arc<Slot> {
        let permit = Mutex::new(one_of(&self.running).await);
        Arc::new(Slot { slots: self.clone(), permit, is_waiting: AtomicBool::new(false) })
    }
}

/// The slot of one lane.
pub(super) struct Slot {
    slots: Slots,
    /// To run, or to wait. The semaphores are never closed, so it is missing only while the lane asks for it.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    is_waiting: AtomicBool,
}

impl Slot {
    /// Lets another lane run while this one waits, and returns when it may wait.
    pub(super) async fn start_waiting(self: Arc<Self>) {
        if !self.is_waiting.swap(true, Ordering::Relaxed) {
            self.exchange_for(&self.slots.waiting).await;
        }
    }

    /// Returns when this lane may run, after a wait.
    pub(super) async fn go_on(&self) {
        if self.is_waiting.swap(false, Ordering::Relaxed) {
            self.exchange_for(&self.slots.running).await;
        }
    }

    async fn exchange_for(&self, slots: &Arc<Semaphore>) {
        drop(self.permit().take());
        let permit = one_of(slots).await;
        *self.permit() = permit;
    }

    fn permit(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn one_of(slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(slots).acquire_owned().await.ok()
}
