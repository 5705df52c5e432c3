//! What has a key: a kind of lock, and who holds it.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::time::Duration;

use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Acquire, Error, HandlerError, Idempotency, Lock, Locks, Run, Ticket, Wait, request_token};
use lambda_lock_tests::Late;
use lambda_lock_tests::invocation::LoseAnswers;
use tokio::sync::{mpsc, oneshot};

const JOB: &str = "job";
const DAY: Duration = Duration::from_hours(24);

/// A kind of lock, as its holder uses it.
pub(crate) trait Subject: Sized {
    const KEYS: &'static [&'static str] = &[JOB];
    /// The longest lease, and how an error names it.
    const LONGEST: (Duration, &'static str) = (DAY, "1day");
    /// The operation of all its writes.
    const OPERATION: &'static str = "UpdateItem";
    /// Another process can have it by a ticket.
    const HAS_TICKET: bool = true;
    /// Its release leaves a trace in the row.
    const LEAVES_TRACE: bool = true;
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

    /// Takes over what an earlier acquire of the identity has, perhaps with a wait.
    async fn take_over(_: &Locks, _: Duration, _identity: &str, _: Option<Wait>) -> Result<Self, Error> {
        unreachable!("it has no identity")
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error>;

    async fn release(&mut self) -> Result<(), Error>;

    /// Returns the fence of each key.
    fn fences(&self) -> Vec<u64>;

    /// Returns a ticket, unless it cannot be handed over.
    fn into_ticket(self) -> Ticket;

    /// Acquires and releases one of the keys as a kind that this one does not know.
    async fn use_as_another_kind(locks: &Locks) {
        locks.semaphore(JOB, 1).acquire().await.unwrap().release().await.unwrap();
    }

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

#[derive(Debug)]
pub(crate) struct Key(Lock);

impl Key {
    fn asked(locks: &Locks, lease: Duration) -> Acquire {
        locks.acquire(JOB).lease(lease)
    }
}

impl Subject for Key {
    const LONGEST: (Duration, &'static str) = (Duration::from_hours(366 * 24), "366days");

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        Self::asked(locks, lease).await.map(Self)
    }

    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error> {
        Self::asked(locks, lease).wait(wait).await.map(Self)
    }

    async fn acquire_for(locks: &Locks, lease: Duration, identity: &str, wait: Option<Wait>) -> Result<Self, Error> {
        let acquire = Self::asked(locks, lease).identity(identity);
        match wait {
            Some(wait) => acquire.wait(wait).await.map(Self),
            None => acquire.await.map(Self),
        }
    }

    async fn take_over(locks: &Locks, lease: Duration, identity: &str, wait: Option<Wait>) -> Result<Self, Error> {
        let acquire = Self::asked(locks, lease).identity(identity);
        match wait {
            Some(wait) => acquire.wait(wait).take_over().await.map(Self),
            None => acquire.take_over().await.map(Self),
        }
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error> {
        self.0.renew(lease).await
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.0.release().await
    }

    fn fences(&self) -> Vec<u64> {
        vec![self.0.fence()]
    }

    fn into_ticket(self) -> Ticket {
        self.0.into_ticket().unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct SeveralKeys(Lock);

impl SeveralKeys {
    fn asked(locks: &Locks, lease: Duration) -> Acquire {
        locks.acquire_all(Self::KEYS.iter().copied()).lease(lease)
    }
}

impl Subject for SeveralKeys {
    const KEYS: &'static [&'static str] = &[JOB, "other job"];
    const OPERATION: &'static str = "TransactWriteItems";
    const HAS_TICKET: bool = false;

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        Self::asked(locks, lease).await.map(Self)
    }

    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error> {
        Self::asked(locks, lease).wait(wait).await.map(Self)
    }

    async fn acquire_for(locks: &Locks, lease: Duration, identity: &str, wait: Option<Wait>) -> Result<Self, Error> {
        let acquire = Self::asked(locks, lease).identity(identity);
        match wait {
            Some(wait) => acquire.wait(wait).await.map(Self),
            None => acquire.await.map(Self),
        }
    }

    async fn take_over(locks: &Locks, lease: Duration, identity: &str, wait: Option<Wait>) -> Result<Self, Error> {
        let acquire = Self::asked(locks, lease).identity(identity);
        match wait {
            Some(wait) => acquire.wait(wait).take_over().await.map(Self),
            None => acquire.take_over().await.map(Self),
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

    fn into_ticket(self) -> Ticket {
        unreachable!("a set has no ticket")
    }
}

/// The only permit of a semaphore.
#[derive(Debug)]
pub(crate) struct Permit(Lock);

impl Permit {
    fn asked(locks: &Locks, lease: Duration) -> Acquire {
        locks.semaphore(JOB, 1).acquire().lease(lease)
    }
}

impl Subject for Permit {
    const LEAVES_TRACE: bool = false;

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        Self::asked(locks, lease).await.map(Self)
    }

    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error> {
        Self::asked(locks, lease).wait(wait).await.map(Self)
    }

    async fn acquire_for(locks: &Locks, lease: Duration, identity: &str, wait: Option<Wait>) -> Result<Self, Error> {
        let acquire = Self::asked(locks, lease).identity(identity);
        match wait {
            Some(wait) => acquire.wait(wait).await.map(Self),
            None => acquire.await.map(Self),
        }
    }

    async fn take_over(locks: &Locks, lease: Duration, identity: &str, wait: Option<Wait>) -> Result<Self, Error> {
        let acquire = Self::asked(locks, lease).identity(identity);
        match wait {
            Some(wait) => acquire.wait(wait).take_over().await.map(Self),
            None => acquire.take_over().await.map(Self),
        }
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error> {
        self.0.renew(lease).await
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.0.release().await
    }

    fn fences(&self) -> Vec<u64> {
        vec![self.0.fence()]
    }

    fn into_ticket(self) -> Ticket {
        self.0.into_ticket().unwrap()
    }

    async fn use_as_another_kind(locks: &Locks) {
        locks.acquire(JOB).await.unwrap().release().await.unwrap();
    }
}

/// A lock that is renewed and released with its ticket, without a resumption.
#[derive(Debug)]
pub(crate) struct ByTicket<S> {
    locks: Locks,
    ticket: Ticket,
    kind: PhantomData<S>,
}

pub(crate) type TicketOfAKey = ByTicket<Key>;
pub(crate) type TicketOfAPermit = ByTicket<Permit>;

impl<S: Subject> ByTicket<S> {
    fn hand_over(locks: &Locks, held: S) -> Self {
        let ticket = serde_json::to_string(&held.into_ticket()).unwrap();
        Self { locks: locks.clone(), ticket: serde_json::from_str(&ticket).unwrap(), kind: PhantomData }
    }
}

impl<S: Subject> Subject for ByTicket<S> {
    const KEYS: &'static [&'static str] = S::KEYS;
    const LONGEST: (Duration, &'static str) = S::LONGEST;
    const OPERATION: &'static str = S::OPERATION;

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        S::acquire(locks, lease).await.map(|held| Self::hand_over(locks, held))
    }

    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error> {
        S::wait(locks, lease, wait).await.map(|held| Self::hand_over(locks, held))
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error> {
        self.locks.renew_ticket(&self.ticket, lease).await.map(drop)
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.locks.release_ticket(&self.ticket).await
    }

    fn fences(&self) -> Vec<u64> {
        vec![self.ticket.fence()]
    }

    fn into_ticket(self) -> Ticket {
        self.ticket
    }

    async fn use_as_another_kind(locks: &Locks) {
        S::use_as_another_kind(locks).await;
    }
}

/// A lock of which each acquire has an identity of its own.
#[derive(Debug)]
pub(crate) struct OfIdentity<S>(S);

pub(crate) type KeyOfIdentity = OfIdentity<Key>;
pub(crate) type SeveralKeysOfIdentity = OfIdentity<SeveralKeys>;
pub(crate) type PermitOfIdentity = OfIdentity<Permit>;
pub(crate) type TicketOfAPermitOfIdentity = ByTicket<PermitOfIdentity>;

impl<S: Subject> Subject for OfIdentity<S> {
    const KEYS: &'static [&'static str] = S::KEYS;
    const LONGEST: (Duration, &'static str) = S::LONGEST;
    const OPERATION: &'static str = S::OPERATION;
    const HAS_TICKET: bool = S::HAS_TICKET;
    const LEAVES_TRACE: bool = S::LEAVES_TRACE;

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        S::acquire_for(locks, lease, &request_token(), None).await.map(Self)
    }

    async fn wait(locks: &Locks, lease: Duration, wait: Wait) -> Result<Self, Error> {
        S::acquire_for(locks, lease, &request_token(), Some(wait)).await.map(Self)
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error> {
        self.0.renew(lease).await
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.0.release().await
    }

    fn fences(&self) -> Vec<u64> {
        self.0.fences()
    }

    fn into_ticket(self) -> Ticket {
        self.0.into_ticket()
    }

    async fn use_as_another_kind(locks: &Locks) {
        S::use_as_another_kind(locks).await;
    }
}

/// A run that fails when it is told to, which releases its record.
pub(crate) struct Record {
    run: Option<Ending>,
    renewals: Option<mpsc::UnboundedSender<Renewal>>,
    fence: u64,
}

/// A run, with the error of its record.
type Ending = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// A lease, and who waits for the answer.
type Renewal = (Duration, oneshot::Sender<Result<(), Error>>);

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
    const HAS_TICKET: bool = false;
    const REPORTS_LATE_RELEASE: bool = false;

    async fn acquire(locks: &Locks, lease: Duration) -> Result<Self, Error> {
        let (renewals, mut asked) = mpsc::unbounded_channel::<Renewal>();
        let (begun, mut has_begun) = oneshot::channel();
        let orders = Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &String| Some(order.clone()));
        let orders = orders.lease(lease);
        let mut run: Ending = Box::pin(async move {
            let body = async |run: &Run| {
                begun.send(run.lock().fence()).unwrap();
                while let Some((lease, answer)) = asked.recv().await {
                    let _unless_it_was_dropped = answer.send(run.lock().renew(lease).await);
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
            fence = &mut has_begun => Ok(Self { run: Some(run), renewals: Some(renewals), fence: fence.unwrap() }),
        }
    }

    async fn wait(_: &Locks, _: Duration, _: Wait) -> Result<Self, Error> {
        unreachable!("runs take no turns")
    }

    async fn renew(&mut self, lease: Duration) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.renewals.as_ref().unwrap().send((lease, answer)).unwrap();
        tokio::select! {
            biased;
            ended = self.end() => ended,
            answer = answered => answer.unwrap(),
        }
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.renewals = None;
        self.end().await
    }

    fn fences(&self) -> Vec<u64> {
        vec![self.fence]
    }

    fn into_ticket(self) -> Ticket {
        unreachable!("a run has no ticket")
    }
}
