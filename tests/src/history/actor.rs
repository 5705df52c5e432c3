//! What the histories of locks, of permits and of sets have in common: workers on hosts that crash, a client that waits for what
//! was left behind, and the clients that come at the end.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{Acquire, Error, ErrorKind, Lock, Locks, Wait};
use tokio::time::{sleep, timeout};

use super::frame::History;
use super::liveness;
use super::stage::{Network, REQUEST, Waiting, millis};
use crate::guarantee::{BUDGET, CRASHES, SERVED};

/// A kind of history.
pub(crate) trait Kind: History {
    /// What an operation acquires.
    type Wanted: Clone + Send + Sync;
    type Operation: Report;

    /// How many workflows a history has, if it has any.
    const WORKFLOWS: u64;
    /// Whether what was released can stay held for a minimum time.
    const HAS_MIN_HOLD: bool = true;
    /// Whether a task of a holder may renew the lease during the release.
    const RENEWS_DURING_RELEASE: bool = false;
    /// How long a client at the end waits for what nobody holds.
    const PATIENCE: Duration = Duration::ZERO;

    fn draw(&self, random: &mut Rng) -> Self::Wanted;

    /// What nobody else wants.
    fn alone(&self) -> Self::Wanted;

    /// What is free at the end, also for an identity.
    fn all(&self) -> Vec<(Self::Wanted, Option<String>)>;

    fn operation(&self, name: &str, wanted: &Self::Wanted, identity: Option<&str>, random: &mut Rng)
    -> Self::Operation;

    fn acquire(&self, locks: &Locks, operation: &Self::Operation, random: &mut Rng) -> Acquire;

    fn waiting(random: &mut Rng) -> Waiting {
        Waiting::draw(random)
    }

    /// How long a worker does nothing. Occasional pauses let rows expire and be deleted.
    fn pause(&self, random: &mut Rng) -> RangeInclusive<u64> {
        if random.u8(0..10) == 0 { 900_000..=1_100_000 } else { 0..=300 }
    }

    /// How many clients come for the same at the end.
    fn last_waiters(&self) -> u32 {
        liveness::LAST_WAITERS
    }

    /// How large a row is at most.
    fn largest(_: &liveness::Row) -> usize {
        liveness::LARGEST_ROW
    }

    /// Sends this acquire, and holds what it gets for a while.
    fn work(
        &self,
        operation: &Self::Operation,
        acquire: Acquire,
        plan: Plan<'_>,
        random: Rng,
    ) -> impl Future<Output = ()> + Send {
        hold(self, operation, acquire, plan, random)
    }
}

/// What an operation reports to its ledger.
pub(crate) trait Report: Send + Sync {
    fn name(&self) -> &str;

    /// The key of one of the rows.
    fn key(&self) -> &str;

    fn identity(&self) -> Option<&str>;

    /// Records an acquired lock, whose validity others can query.
    fn acquired(&self, lock: &Arc<Lock>, min_hold: Duration);

    fn refused(&self, error: &Error);

    /// Writes to a receiver that keeps the largest fence, if there is one.
    fn writes(&self, lock: &Lock);

    fn renewed(&self, lock: &Arc<Lock>, sent: Sent, answer: Result<(), Error>);

    fn released(&self, lock: &Arc<Lock>, sent: Sent, answer: Result<(), Error>);

    /// Frees what the operation is for, for its identity.
    fn stop(&self, locks: &Locks) -> impl Future<Output = ()> + Send;

    /// The work was not done, or its outcome is unknown.
    fn ended(&self, how: &str);

    /// The host crashed, or has kept its lock, and another client waits for it. Returns whether it was held.
    fn left(&self, how: &str, successor: Waiting) -> bool;

    fn broke(&self, what: &str, how: &dyn Debug);
}

/// A request of a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: SystemTime,
    /// The earliest end of the lease while the request is under way.
    pub(crate) end: SystemTime,
}

/// The host of an acquire, and its settings.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) host: &'a Host,
    pub(crate) lease: Duration,
    pub(crate) min_hold: Duration,
    pub(crate) budget: Duration,
}

/// Begins an acquire of what the operation is for.
pub(crate) fn acquire<K: Kind>(scene: &K, host: &Host, operation: &K::Operation, random: &mut Rng) -> Acquire {
    let acquire = scene.acquire(&scene.stage().locks(host), operation, random).holder(operation.name());
    match operation.identity() {
        Some(identity) => acquire.identity(identity),
        None => acquire,
    }
}

/// A worker: one host after another, with one operation after another.
pub(crate) async fn worker<K: Kind>(scene: Arc<K>, number: usize, mut random: Rng) {
    let mut host = scene.host(&mut random, Network::Bad);
    for step in 0..random.usize(3..=6) {
        let pause = scene.pause(&mut random);
        sleep(millis(&mut random, pause)).await;
        let wanted = scene.draw(&mut random);
        let operation = scene.operation(&format!("worker {number} step {step}"), &wanted, None, &mut random);
        let work = work(&*scene, &host, &operation, random.fork());
        match random.u8(0..10) {
            // The host crashes at this point, and another one replaces it.
            0 | 1 => {
                let mut crash = Box::pin(timeout(millis(&mut random, 0..=2500), work));
                if (&mut crash).await.is_err() {
                    host.crash();
                    left(&scene, &wanted, &operation, "crashed", random.fork());
                    drop(crash);
                    host = scene.host(&mut random, Network::Bad);
                }
            }
            // The invocation is cancelled, and the host continues.
            2 => {
                let _ = timeout(millis(&mut random, 0..=1500), work).await;
                operation.ended("was dropped, or had ended");
            }
            _ => work.await,
        }
    }
}

async fn work<K: Kind>(scene: &K, host: &Host, operation: &K::Operation, mut random: Rng) {
    let lease = millis(&mut random, 300..=2500);
    let min_hold = min_hold::<K>(&mut random);
    let budget = if random.bool() { millis(&mut random, 0..=6000) } else { Duration::ZERO };
    let acquire = acquire(scene, host, operation, &mut random).wait(K::waiting(&mut random).up_to(budget));
    let acquire = if min_hold.is_zero() { acquire } else { acquire.min_hold(min_hold) };
    let acquire =
        if random.bool() { acquire.lease(lease) } else { acquire.lease(lease).deadline(host.now() + budget + lease) };
    scene.work(operation, acquire, Plan { host, lease, min_hold, budget }, random).await;
}

pub(crate) fn min_hold<K: Kind>(random: &mut Rng) -> Duration {
    if K::HAS_MIN_HOLD && random.u8(0..6) == 0 { millis(random, 1..=3000) } else { Duration::ZERO }
}

/// Acquires, holds it for a while, and releases it in one of several ways.
pub(crate) async fn hold<K: Kind>(
    scene: &K,
    operation: &K::Operation,
    acquire: Acquire,
    Plan { host, lease, min_hold, budget }: Plan<'_>,
    mut random: Rng,
) {
    let engine = &scene.stage().engine;
    let started = engine.now();
    let acquired = acquire.await;
    let waited = engine.now().duration_since(started).unwrap();
    if waited > budget + REQUEST + scene.stage().slack() {
        operation.broke(&format!("{BUDGET}: an acquire outlasted its budget"), &format!("{waited:?} of {budget:?}"));
    }
    let lock = match acquired {
        Ok(lock) => Arc::new(lock),
        Err(error) => return operation.refused(&error),
    };
    operation.acquired(&lock, min_hold);
    // Most holders finish in time. Some stay until the end of the lease, or overstay it.
    let work = if random.u8(0..3) == 0 { lease.mul_f64(0.8 + random.f64()) } else { lease.mul_f64(random.f64() / 2.0) };
    sleep(work).await;
    let deadline = lock.expires_at();
    for _ in 0..random.usize(0..=8).saturating_sub(4) {
        // Some renewals restore the end from the acquire, which the row had before.
        let back = deadline.duration_since(host.now()).ok().filter(|left| left.as_millis() > 0 && random.bool());
        let renewal = back.unwrap_or_else(|| lease.mul_f64(0.2 + 1.3 * random.f64()));
        if K::RENEWS_DURING_RELEASE && random.u8(0..8) == 0 {
            tokio::join!(renew(scene, operation, &lock, renewal), release(scene, operation, &lock));
            return;
        }
        renew(scene, operation, &lock, renewal).await;
        if random.u8(0..3) == 0 {
            sleep(lease.mul_f64(random.f64() * 1.2)).await;
        }
    }
    match random.u8(0..10) {
        // A drop without a release sends the release in the background.
        0 => operation.ended("dropped what it had"),
        _ => release(scene, operation, &lock).await,
    }
}

pub(crate) async fn renew<K: Kind>(scene: &K, operation: &K::Operation, lock: &Arc<Lock>, lease: Duration) {
    let at = scene.stage().engine.now();
    let sent = Sent { at, end: lock.expires_at().min(at + lease) };
    operation.renewed(lock, sent, lock.renew(lease).await);
}

pub(crate) async fn release<K: Kind>(scene: &K, operation: &K::Operation, lock: &Arc<Lock>) {
    let mut sent = Sent { at: scene.stage().engine.now(), end: lock.expires_at() };
    let mut answer = lock.release().await;
    if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
        // The release may have been applied, or may arrive later.
        sent.at = scene.stage().engine.now();
        answer = lock.release().await;
    }
    operation.released(lock, sent, answer);
}

/// An operation is gone without a release. A host with a good network waits for what it held.
pub(crate) fn left<K: Kind>(scene: &Arc<K>, wanted: &K::Wanted, operation: &K::Operation, how: &str, mut random: Rng) {
    let waiting = Waiting::draw(&mut random);
    if !operation.left(how, waiting) {
        return;
    }
    let operation = scene.operation(&format!("successor {:08x}", random.u32(..)), wanted, None, &mut random);
    let scene = Arc::clone(scene);
    tokio::spawn(async move {
        let (wait, broken) = (waiting.up_to(Duration::from_mins(2)), format!("{CRASHES}: it was not taken over"));
        visit(&*scene, &operation, wait, &broken, random).await;
    });
}

/// A client with a good network that waits, and goes soon.
async fn visit<K: Kind>(scene: &K, operation: &K::Operation, wait: Wait, broken: &str, mut random: Rng) {
    let host = scene.host(&mut random, Network::Good);
    let acquire = acquire(scene, &host, operation, &mut random).lease(Duration::from_secs(2));
    match acquire.wait(wait).await {
        Ok(lock) => {
            let lock = Arc::new(lock);
            operation.acquired(&lock, Duration::ZERO);
            sleep(liveness::LAST_HOLD).await;
            release(scene, operation, &lock).await;
        }
        Err(error) => operation.broke(broken, &error),
    }
}

/// After the faults, waiters with good networks come for the same at once. Late requests still arrive.
pub(crate) async fn serve_last_waiters<K: Kind>(scene: &K, random: &mut Rng) {
    let wanted = scene.draw(random);
    let waiters = (0..scene.last_waiters()).map(|number| {
        let operation = scene.operation(&format!("last waiter {number}"), &wanted, None, random);
        let (wait, random) = (Waiting::InTurn.up_to(liveness::last_wait(scene.stage().slack())), random.fork());
        async move { visit(scene, &operation, wait, &format!("{SERVED}: a waiter was not served"), random).await }
    });
    join_all(waiters.collect::<Vec<_>>()).await;
}

/// When no request is under way, everything is free at once, and each row is small and can be read.
pub(crate) async fn inspect<K: Kind>(scene: &K, random: &mut Rng) {
    for (wanted, identity) in scene.all() {
        let operation = scene.operation("the last", &wanted, identity.as_deref(), random);
        let wait = Waiting::Backoff.up_to(K::PATIENCE);
        visit(scene, &operation, wait, &format!("{SERVED}: what is free was refused"), random.fork()).await;
    }
    for what in liveness::inspect(&scene.stage().engine, K::largest).await {
        scene.ledger().violated(what);
    }
}
