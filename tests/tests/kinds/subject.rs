//! What has a key: a kind of lock, and who holds it.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Acquire, Error, HandlerError, Idempotency, Lock, Locks, Run, Wait, request_token};
use lambda_lock_tests::Late;
use lambda_lock_tests::invocation::LoseAnswers;
use tokio::sync::{mpsc, oneshot};

use crate::LEASE;

const JOB: &str = "job";
const DAY: Duration = Duration::from_hours(24);

/// A kind of lock, as its holder uses it.
pub(crate) trait Subject: Sized {
    const KEYS: &'static [&'static str] = &[JOB];
    /// The longest lease, and how an error names it.
    const LONGEST: (Duration, &'static str) = (DAY, "1day");
    /// The operation of all its writes.
    const OPERATION: &'static str = "UpdateItem";
    /// What an error calls it.
    const NAME: &'static str = "a lock";
    /// It is a permit, of which nothing stays in the row after its release.
    const IS_PERMIT: bool = false;
    /// An error says that a release came too late.
    const REPORTS_LATE_RELEASE: bool = true;

    /// Acquires without a wait, in one request.
    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error>;

    /// Acquires with a wait, unless waiters take no turns.
    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error>;

    /// Acquires for an identity, perhaps with a wait.
    async fn acquire_for(_: &Locks, _: Duration, _identity: &str, _: Option<Wait>) -> Result<Self, Error> {
        unreachable!("it has no identity")
    }

    /// Takes over what an earlier acquire of the identity has, perhaps from this fence.
    async fn take_over(_: &Locks, _identity: &str, _: Option<u64>, _: Option<Wait>) -> Result<Self, Error> {
        unreachable!("it has no identity")
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error>;

    async fn release(&mut self) -> Result<(), Error>;

    /// Returns the fence of each key.
    fn fences(&self) -> Vec<u64>;

    /// Returns the end of the lease, for its holder.
    fn expires_at(&self) -> SystemTime;

    /// Loses the answers to these writes of a host, counted from 1.
    fn lose_answers(which: RangeInclusive<u32>) -> LoseAnswers {
        LoseAnswers::to(Self::OPERATION, which)
    }

    /// Loses the answer to the first place that a waiter takes.
    fn lose_place() -> LoseAnswers {
        LoseAnswers::to("UpdateItem", if Self::OPERATION == "UpdateItem" { 2..=2 } else { 1..=1 })
    }

    /// Holds back these writes of a host, counted from 1.
    fn hold_back(which: RangeInclusive<u32>) -> Late {
        if Self::OPERATION == "UpdateItem" { Late::updates(which) } else { Late::transactions(which) }
    }
}

/// A kind of lock, and how it is acquired.
pub(crate) trait Claim {
    const KEYS: &'static [&'static str] = &[JOB];
    const LONGEST: (Duration, &'static str) = (DAY, "1day");
    const OPERATION: &'static str = "UpdateItem";
    const IS_PERMIT: bool = false;

    fn asked(locks: &Locks) -> Acquire;
}

#[derive(Debug)]
pub(crate) struct OneKey;

impl Claim for OneKey {
    const LONGEST: (Duration, &'static str) = (Duration::from_hours(366 * 24), "366days");

    fn asked(locks: &Locks) -> Acquire {
        locks.acquire(JOB)
    }
}

#[derive(Debug)]
pub(crate) struct TwoKeys;

impl Claim for TwoKeys {
    const KEYS: &'static [&'static str] = &[JOB, "other job"];
    const OPERATION: &'static str = "TransactWriteItems";

    fn asked(locks: &Locks) -> Acquire {
        locks.acquire_all(Self::KEYS.iter().copied())
    }
}

/// The only permit of a semaphore.
#[derive(Debug)]
pub(crate) struct OnePermit;

impl Claim for OnePermit {
    const IS_PERMIT: bool = true;

    fn asked(locks: &Locks) -> Acquire {
        locks.semaphore(JOB, 1).acquire()
    }
}

/// The lock of such a claim. Perhaps each acquire has an identity of its own.
#[derive(Debug)]
pub(crate) struct Held<C, const OF_IDENTITY: bool>(Lock, PhantomData<C>);

pub(crate) type Key = Held<OneKey, false>;
pub(crate) type SeveralKeys = Held<TwoKeys, false>;
pub(crate) type Permit = Held<OnePermit, false>;
pub(crate) type KeyOfIdentity = Held<OneKey, true>;
pub(crate) type SeveralKeysOfIdentity = Held<TwoKeys, true>;
pub(crate) type PermitOfIdentity = Held<OnePermit, true>;

impl<C: Claim, const OF_IDENTITY: bool> Held<C, OF_IDENTITY> {
    fn of(lock: Lock) -> Self {
        Self(lock, PhantomData)
    }

    fn asked(locks: &Locks, lease: Duration, wait: Option<Wait>) -> Acquire {
        let acquire = C::asked(locks).lease(lease);
        let acquire = if OF_IDENTITY { acquire.identity(request_token()) } else { acquire };
        match wait {
            Some(wait) => acquire.wait(wait),
            None => acquire,
        }
    }
}

impl<C: Claim, const OF_IDENTITY: bool> Subject for Held<C, OF_IDENTITY> {
    const KEYS: &'static [&'static str] = C::KEYS;
    const LONGEST: (Duration, &'static str) = C::LONGEST;
    const OPERATION: &'static str = C::OPERATION;
    const NAME: &'static str = if C::IS_PERMIT { "a semaphore" } else { "a lock" };
    const IS_PERMIT: bool = C::IS_PERMIT;

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        Self::asked(locks, lease, None).await.map(Self::of)
    }

    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error> {
        Self::asked(locks, lease, Some(wait)).await.map(Self::of)
    }

    async fn acquire_for(locks: &Locks, lease: Duration, identity: &str, wait: Option<Wait>) -> Result<Self, Error> {
        Self::asked(locks, lease, wait).identity(identity).await.map(Self::of)
    }

    async fn take_over(locks: &Locks, identity: &str, from: Option<u64>, wait: Option<Wait>) -> Result<Self, Error> {
        let acquire = Self::asked(locks, LEASE, wait).identity(identity);
        match from {
            Some(fence) => acquire.take_over_from(fence).await.map(Self::of),
            None => acquire.take_over().await.map(Self::of),
        }
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error> {
        self.0.renew(lease).await
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.0.release().await
    }

    fn fences(&self) -> Vec<u64> {
        Self::KEYS.iter().map(|key| self.0.fence_of(key).unwrap()).collect()
    }

    fn expires_at(&self) -> SystemTime {
        self.0.expires_at()
    }
}

/// A run that fails when it is told to, which releases its record.
pub(crate) struct Record {
    run: Option<Ending>,
    renewals: Option<mpsc::UnboundedSender<Renewal>>,
    fence: u64,
    expires_at: SystemTime,
}

/// A run, with the error of its record.
type Ending = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// A lease, and who waits for the answer and the end of the lease.
type Renewal = (Duration, oneshot::Sender<(Result<(), Error>, SystemTime)>);

#[derive(Debug)]
struct Failed;

impl Record {
    /// Waits for the end of the run.
    async fn end(&mut self) -> Result<(), Error> {
        let ended = self.run.as_mut().expect("the run has not ended").await;
        self.run = None;
        ended
    }
}

impl Subject for Record {
    const NAME: &'static str = "a record of idempotency";
    const REPORTS_LATE_RELEASE: bool = false;

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        Self::wait(locks, lease, Duration::ZERO.into()).await
    }

    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error> {
        let (renewals, mut asked) = mpsc::unbounded_channel::<Renewal>();
        let (begun, mut has_begun) = oneshot::channel();
        let orders = Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &String| Some(order.clone()));
        let orders = orders.lease(lease).wait(wait);
        let mut run: Ending = Box::pin(async move {
            let body = async |run: &Run| {
                let lock = run.lock();
                begun.send((lock.fence(), lock.expires_at())).unwrap();
                while let Some((lease, answer)) = asked.recv().await {
                    let renewed = lock.renew(lease).await;
                    let _unless_it_was_dropped = answer.send((renewed, lock.expires_at()));
                }
                Err::<u32, _>(Failed)
            };
            match orders.run(&JOB.to_owned(), body).await {
                Err(HandlerError::Handler(Failed)) => Ok(()),
                Err(HandlerError::Lock(error)) => Err(error),
                other => panic!("{other:?}"),
            }
        });
        tokio::select! {
            biased;
            ended = &mut run => Err(ended.expect_err("the body has not begun")),
            begun = &mut has_begun => {
                let (fence, expires_at) = begun.unwrap();
                Ok(Self { run: Some(run), renewals: Some(renewals), fence, expires_at })
            }
        }
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.renewals.as_ref().unwrap().send((lease, answer)).unwrap();
        tokio::select! {
            biased;
            ended = self.end() => ended,
            answer = answered => {
                let (renewed, expires_at) = answer.unwrap();
                self.expires_at = expires_at;
                renewed
            }
        }
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.renewals = None;
        self.end().await
    }

    fn fences(&self) -> Vec<u64> {
        vec![self.fence]
    }

    fn expires_at(&self) -> SystemTime {
        self.expires_at
    }
}
