//! `Slots`: how many lanes run at once, and how many wait meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lock::AroundPause;

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
        let slot = Slot { slots: self.clone(), running: Permit::default(), waiting: Permit::default() };
        slot.run().await;
        Arc::new(slot)
    }
}

/// The slot of one lane.
pub(super) struct Slot {
    slots: Slots,
    running: Permit,
    waiting: Permit,
}

impl Slot {
    /// Returns when this lane may run.
    pub(super) async fn run(&self) {
        self.running.take(&self.slots.running).await;
    }

    /// The lane no longer waits: it has what it asked for, or was refused.
    pub(super) fn end_wait(&self) {
        self.waiting.give_back();
    }
}

/// Lets another lane run during a pause. The lane asks again only when it may run at once, so that the handler begins with
/// the whole lease. Until then, the lane counts among the waiting lanes.
impl AroundPause for Slot {
    fn before(&self) -> BoxFuture<'_, ()> {
        self.running.give_back();
        self.waiting.take(&self.slots.waiting).boxed()
    }

    fn after(&self) -> BoxFuture<'_, ()> {
        self.run().boxed()
    }
}

/// A permit that a lane has or not.
#[derive(Default)]
struct Permit(Mutex<Option<OwnedSemaphorePermit>>);

impl Permit {
    /// Returns when the lane has the permit. The semaphores are never closed.
    async fn take(&self, semaphore: &Arc<Semaphore>) {
        if self.with(|permit| permit.is_none()) {
            let permit = Arc::clone(semaphore).acquire_owned().await.ok();
            self.with(|missing| *missing = permit);
        }
    }

    fn give_back(&self) {
        drop(self.with(Option::take));
    }

    fn with<T>(&self, change: impl FnOnce(&mut Option<OwnedSemaphorePermit>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
