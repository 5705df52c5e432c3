//! A real client that does what a client of the model decides.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use futures_util::FutureExt;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{
    Backoff, Error, HandlerError, Idempotency, Jitter, Lock, LockSet, Locks, OnError, OnUnfinished, Run, Wait,
};
use lambda_lock_model::Subject;
use lambda_lock_model::walk::{Operation, WINDOW};

use crate::gate::Gate;
use crate::lab::TABLE;

/// What an operation ended with.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An acquire, without the lock itself.
    Acquired(Result<(), Error>),
    /// A renewal or a release.
    Done(Result<(), Error>),
    /// A run of idempotent work.
    Run(Result<u32, HandlerError<Failure>>),
    /// The handler's own transaction.
    Transacted(bool),
}

type Future<T> = Pin<Box<dyn std::future::Future<Output = T>>>;

/// How the handler of a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Failure {
    Release,
    Keep,
}

/// The lease of the model, in ticks.
const LEASE: u32 = 2;

/// The result that a run stores.
const RESULT: u32 = 7;

/// What an acquire shows to the path, and what the path tells the handler of a run.
#[derive(Default)]
struct Shared {
    taken: RefCell<Option<Held>>,
    /// How the handler ends.
    end: Cell<Option<Result<u32, Failure>>>,
}

/// What a client has acquired.
#[derive(Clone)]
pub(crate) enum Held {
    Lock(Arc<Lock>),
    Set(Arc<LockSet>),
    Run(Run),
}

impl Held {
    pub(crate) async fn renew(&self, lease: Duration) -> Result<(), Error> {
        match self {
            Self::Lock(lock) => lock.renew(lease).await,
            Self::Set(set) => set.renew(lease).await,
            Self::Run(run) => run.lock().renew(lease).await,
        }
    }

    pub(crate) async fn release(&self) -> Result<(), Error> {
        match self {
            Self::Lock(lock) => lock.release().await,
            Self::Set(set) => set.release().await,
            Self::Run(run) => run.lock().release().await,
        }
    }

    pub(crate) fn expires_at(&self) -> SystemTime {
        match self {
            Self::Lock(lock) => lock.expires_at(),
            Self::Set(set) => set.expires_at(),
            Self::Run(run) => run.lock().expires_at(),
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Lock(lock) => lock.is_valid(),
            Self::Set(set) => set.is_valid(),
            Self::Run(run) => run.lock().is_valid(),
        }
    }

    /// Returns the fence of a key, or nothing if it is not one of the keys that are held.
    pub(crate) fn fence(&self, key: &str) -> Option<u64> {
        match self {
            Self::Lock(lock) => (lock.key() == key).then(|| lock.fence()),
            Self::Set(set) => set.fence(key),
            Self::Run(run) => (run.lock().key() == key).then(|| run.lock().fence()),
        }
    }
}

/// A client on its way through one path.
pub(crate) struct RealClient {
    pub(crate) gate: Gate,
    locks: Locks,
    subject: Subject,
    /// How many permits the semaphore has.
    permits: u8,
    tick: Duration,
    /// What it asks for.
    keys: Vec<String>,
    /// The acquire, or the run of idempotent work.
    asking: Option<Future<Outcome>>,
    /// What else the client waits for.
    request: Option<Future<Outcome>>,
    shared: Rc<Shared>,
    pub(crate) held: Option<Held>,
    /// Whether the handler of a run has been told to end.
    is_ending: bool,
    /// Whether the process stands still. It has an answer that it has not read.
    pub(crate) is_frozen: bool,
    /// Whether the request under way is that of a task in the background.
    pub(crate) is_in_background: bool,
    /// What the last operation ended with.
    pub(crate) outcome: Option<Outcome>,
}

impl RealClient {
    pub(crate) fn new(
        subject: Subject,
        permits: u8,
        tick: Duration,
        keys: Vec<String>,
        (locks, gate): (Locks, Gate),
    ) -> Self {
        Self {
            gate,
            locks,
            subject,
            permits,
            tick,
            keys,
            asking: None,
            request: None,
            shared: Rc::default(),
            held: None,
            is_ending: false,
            is_frozen: false,
            is_in_background: false,
            outcome: None,
        }
    }

    /// Ends an acquire that was refused.
    pub(crate) fn forget(&mut self) {
        self.asking = None;
    }

    /// Begins an operation. `is_once` says that an acquire makes one attempt and does not wait.
    pub(crate) fn begin(&mut self, operation: Operation, is_once: bool) {
        self.outcome = None;
        match operation {
            Operation::Ask if self.asking.is_some() => {}
            Operation::Ask => self.asking = Some(self.ask(is_once)),
            // The process goes on, reads the answer, and withdraws.
            Operation::StopAsking if self.is_frozen => self.is_frozen = false,
            Operation::StopAsking => {
                self.asking = None;
                // A request for a place ends, too.
                self.gate.switch(false);
                self.is_in_background = true;
            }
            Operation::Renew(ticks) => {
                let (held, lease) = (self.held(), self.tick * u32::from(ticks));
                self.request = Some(Box::pin(async move { Outcome::Done(held.renew(lease).await) }));
            }
            Operation::Release if self.is_record() && self.asking.is_some() => self.end(Err(Failure::Release)),
            Operation::Release => {
                let held = self.held();
                self.request = Some(Box::pin(async move { Outcome::Done(held.release().await) }));
            }
            Operation::Complete => self.end(Ok(RESULT)),
            Operation::Abandon => self.end(Err(Failure::Keep)),
            Operation::Transact => self.request = Some(self.transact()),
            // The acquire goes on.
            Operation::Join => {}
        }
    }

    /// Lets the handler of the run return.
    fn end(&mut self, result: Result<u32, Failure>) {
        self.shared.end.set(Some(result));
        self.is_ending = true;
    }

    fn ask(&self, is_once: bool) -> Future<Outcome> {
        // It asks again when the path lets it go on.
        let soon = Duration::from_millis(1);
        let patient = Wait::backoff(Backoff::new().base(soon).cap(soon).jitter(Jitter::None));
        let order = if self.subject == Subject::SemaphoreInTurn { Wait::in_turn() } else { patient };
        let wait = if is_once { order.max_attempts(1) } else { order.up_to(Duration::from_hours(24)) };
        let lease = self.tick * LEASE;
        let (key, shared) = (self.keys[0].clone(), Rc::clone(&self.shared));
        if self.keys.len() > 1 {
            let acquire = self.locks.acquire_all(&self.keys).lease(lease).wait(wait);
            return Box::pin(async move {
                let take = |set| drop(shared.taken.replace(Some(Held::Set(Arc::new(set)))));
                Outcome::Acquired(acquire.await.map(take))
            });
        }
        if !self.is_record() {
            let acquire = match self.subject {
                Subject::Semaphore | Subject::SemaphoreInTurn => {
                    self.locks.semaphore(key, self.permits.into()).acquire()
                }
                _ => self.locks.acquire(key),
            };
            let acquire = acquire.lease(lease).wait(wait);
            return Box::pin(async move {
                let take = |lock| drop(shared.taken.replace(Some(Held::Lock(Arc::new(lock)))));
                Outcome::Acquired(acquire.await.map(take))
            });
        }
        let unfinished =
            if self.subject == Subject::RejectingRecord { OnUnfinished::Reject } else { OnUnfinished::RunAgain };
        let work: Idempotency<String, u32, Failure> =
            Idempotency::new(self.locks.clone(), OnMissingKey::Reject, |key: &String| Some(key.clone()))
                .window(self.tick * u32::from(WINDOW))
                .lease(lease)
                .wait(wait)
                .on_unfinished(unfinished)
                .on_error(|failure| match failure {
                    Failure::Release => OnError::Release,
                    Failure::Keep => OnError::Keep,
                });
        Box::pin(async move {
            let body = async |run: &Run| {
                shared.taken.replace(Some(Held::Run(run.clone())));
                poll_fn(|_| shared.end.take().map_or(Poll::Pending, Poll::Ready)).await
            };
            Outcome::Run(work.run(&key, body).await)
        })
    }

    /// The handler completes the record in a transaction with a write of its own.
    fn transact(&self) -> Future<Outcome> {
        let Held::Run(run) = self.held() else { panic!("a lock has no outcome") };
        let completion = run.complete_in(&RESULT).expect("the result can be stored");
        let client = self.locks.client().clone();
        let id = AttributeValue::S(format!("written#{}", self.keys[0]));
        Box::pin(async move {
            let put = Put::builder().table_name(TABLE).item("id", id).build().expect("the write is complete");
            let parts = [completion, TransactWriteItem::builder().put(put).build()];
            let request = client.transact_write_items().set_transact_items(Some(parts.into()));
            Outcome::Transacted(Box::pin(request.send()).await.is_ok())
        })
    }

    fn is_record(&self) -> bool {
        matches!(self.subject, Subject::Record | Subject::RejectingRecord)
    }

    fn held(&self) -> Held {
        self.held.clone().expect("the client holds what it asked for")
    }

    /// Lets the client go on until a request of it waits at the gate, or until it has nothing to do for the moment.
    pub(crate) async fn go_on(&mut self, sends: bool) {
        for _ in 0..if sends { 100 } else { 4 } {
            // A request that waits is not polled: after a tick, its time limit would end it.
            if self.gate.waiting() > 0 {
                return;
            }
            self.poll();
            tokio::task::yield_now().await;
        }
    }

    fn poll(&mut self) {
        if self.is_frozen {
            return;
        }
        if let Some(request) = &mut self.request {
            let Some(outcome) = request.now_or_never() else { return };
            self.request = None;
            // The handler returns the result that its transaction has stored.
            if let Outcome::Transacted(true) = outcome {
                self.end(Ok(RESULT));
            } else {
                self.outcome = Some(outcome);
                return;
            }
        }
        // The handler of a run does nothing until it is told to end.
        let is_idle = matches!(self.held, Some(Held::Run(_))) && !self.is_ending;
        if let Some(asking) = self.asking.as_mut().filter(|_| !is_idle)
            && let Some(outcome) = asking.now_or_never()
        {
            self.asking = None;
            self.outcome = Some(outcome);
        }
        if let Some(taken) = self.shared.taken.take() {
            self.held = Some(taken);
        }
    }
}
