//! Histories of locks: several hosts with wrong clocks and bad networks contend for a few keys, crash, overstay and
//! come back. A seed determines each history, which runs in paused time. A ledger sees every request as it is applied,
//! and every lock as its holder sees it. It reports at the end whether the guarantees held.

pub(crate) mod book;
mod elsewhere;
pub(crate) mod holders;
pub(crate) mod identities;
mod ledger;
pub mod liveness;
pub(crate) mod mutation;
pub(crate) mod operator;
pub(crate) mod stage;
pub(crate) mod twist;
pub(crate) mod workflow;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{Acquire, ErrorKind, Lock, Locks};
use tokio::time::{sleep, timeout};

use crate::guarantee::{BUDGET, CRASHES, SERVED};
use ledger::{Ledger, Operation};
pub use mutation::Mutation;
use stage::{Network, REQUEST, Stage, Waiting, millis};
pub use twist::Twisted;
use workflow::{Ask, Kind as _};

/// How late a request can arrive: AWS accepts its signature for 5 minutes.
const LATEST_ARRIVAL: Duration = Duration::from_mins(5);

/// The events of a history, and its violations.
#[derive(Debug)]
pub struct Outcome<C = Counts> {
    /// One line for each event.
    pub log: Vec<String>,
    /// One line for each violation.
    pub violations: Vec<String>,
    /// How often each outcome occurred, so that a test can see that the histories reach it.
    pub counts: C,
    /// How often what is common to all kinds occurred.
    pub twisted: Twisted,
}

/// How often each outcome of a kind of history occurred.
pub trait Counted {
    /// The outcomes that every search must reach, with how often they occurred.
    fn named(&self) -> Vec<(&'static str, usize)>;
}

/// Declares the counts of a kind of history, all of which every search must reach.
macro_rules! counts {
    ($($(#[$documentation:meta])+ $count:ident,)+) => {
        /// How often each outcome occurred.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Counts {
            $($(#[$documentation])+ pub $count: usize,)+
        }

        impl $crate::history::Counted for Counts {
            fn named(&self) -> Vec<(&'static str, usize)> {
                vec![$((stringify!($count), self.$count),)+]
            }
        }
    };
}
pub(crate) use counts;

counts! {
    /// Locks acquired.
    acquired,
    /// Acquires that were refused because the key was held.
    held,
    /// Leases renewed.
    renewed,
    /// Releases, renewals and runs that found the lock lost.
    lost,
    /// Hosts that crashed while they held a key, and locks that were kept for a later step.
    crashed,
    /// Turns that another process continued with.
    postponed,
    /// Locks that a later acquire of their identity took over.
    taken_over,
    /// Takeovers that found no lock of their identity.
    takeovers_refused,
    /// Writes of an attempt that a receiver rejected, because a later one had written.
    writes_rejected,
    /// Locks that were released for their identity.
    freed_for_identity,
    /// Locks that an operator has freed by force.
    freed_by_force,
    /// Places in the queue that were given.
    joined,
    /// Acquires that withdrew.
    withdrawn,
    /// Rows deleted by TTL.
    swept,
    /// Requests sent.
    requests,
}

/// Runs the history of a seed, with the protocol or with a mutation of it.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>) -> Outcome {
    stage::play(seed, history(seed, mutation))
}

/// The part of a history that all its tasks share.
#[derive(Debug)]
struct Scene {
    stage: Stage,
    ledger: Arc<Ledger>,
    keys: u64,
}

async fn history(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let mut random = Rng::with_seed(seed);
    let stage = Stage::set(seed, &mut random, LATEST_ARRIVAL, mutation).await;
    let ledger = Arc::new(Ledger::new(&stage));
    let scene = Arc::new(Scene { stage, ledger, keys: random.u64(1..=3) });

    let sweeper = tokio::spawn({
        let scene = Arc::clone(&scene);
        async move { scene.stage.sweep(Duration::from_secs(5), |rows| scene.ledger.swept(rows)).await }
    });
    let executions =
        elsewhere::wait_in(seed).then(|| tokio::spawn(elsewhere::executions(Arc::clone(&scene), Rng::with_seed(seed))));
    let workflows = workflow::begin(seed, &scene);
    tokio::join!(
        stage::work(&mut random, |number, random| worker(Arc::clone(&scene), number, random)),
        operator::operate(seed, &scene.stage, &scene.ledger, scene.keys()),
    );
    workflows.await;
    if let Some(executions) = executions {
        executions.await.unwrap();
    }
    scene.serve_last_waiters(&mut random).await;
    stage::settle(LATEST_ARRIVAL).await;
    sweeper.abort();
    scene.inspect(&mut random).await;
    Outcome { twisted: scene.stage.twisted(), ..scene.ledger.outcome() }
}

impl workflow::Kind for Scene {
    type Wanted = String;
    type Operation = Operation;

    const WORKFLOWS: u64 = 3;

    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn host(&self, random: &mut Rng, network: Network) -> Host {
        self.stage.host(random, network, self.ledger.observer())
    }

    fn draw(&self, random: &mut Rng) -> String {
        format!("key {}", random.u64(0..self.keys))
    }

    fn alone(&self) -> String {
        "key alone".to_owned()
    }

    fn key(operation: &Operation) -> &str {
        &operation.key
    }

    fn operation(&self, name: &str, key: &String, identity: &str, _: &mut Rng) -> Operation {
        Operation::new(name, key.clone(), Arc::clone(&self.ledger)).of_identity(identity)
    }

    async fn acquire(&self, operation: &Operation, ask: Ask<'_>, random: &mut Rng) -> Option<Arc<Lock>> {
        let min_hold = if random.u8(0..4) == 0 { millis(random, 1..=3000) } else { Duration::ZERO };
        let acquire = ask.locks.acquire(&operation.key).holder(&operation.name).min_hold(min_hold);
        match ask.send(acquire).await {
            Ok(lock) => {
                operation.acquired(&lock, min_hold);
                Some(lock)
            }
            Err(error) => {
                operation.refused(&error);
                None
            }
        }
    }

    fn write(&self, operation: &Operation, lock: &Lock) {
        operation.writes(lock);
    }

    async fn renew(&self, operation: &Operation, lock: &Arc<Lock>, lease: Duration) {
        operation.renewed(lock, lock.renew(lease).await);
    }

    async fn release(&self, operation: &Operation, lock: &Arc<Lock>) {
        release(operation, lock).await;
    }

    async fn stop(&self, operation: &Operation, locks: &Locks, identity: &str) {
        let before = operation.stops();
        operation.stopped(&before, &locks.release_identity(&operation.key, identity).await);
    }

    fn ended(&self, operation: &Operation, how: &str) {
        operation.ended(how);
    }

    fn left(self: &Arc<Self>, operation: &Operation, how: &str, mut random: Rng) {
        let waiting = Waiting::draw(&mut random);
        if operation.left(how, waiting) {
            tokio::spawn(take_over(Arc::clone(self), operation.key.clone(), waiting, random));
        }
    }
}

impl Scene {
    fn keys(&self) -> Vec<String> {
        (0..self.keys).map(|number| format!("key {number}")).collect()
    }

    /// After the faults, waiters with good networks come for a key at once. Late requests still arrive.
    async fn serve_last_waiters(&self, random: &mut Rng) {
        let key = format!("key {}", random.u64(0..self.keys));
        let waiters = (0..liveness::LAST_WAITERS).map(|number| {
            let operation = Operation::new(&format!("last waiter {number}"), key.clone(), Arc::clone(&self.ledger));
            let locks = self.stage.locks(&self.host(random, Network::Good));
            async move {
                let acquire = locks.acquire(&operation.key).holder(&operation.name).lease(Duration::from_secs(2));
                match acquire.wait(Waiting::InTurn.up_to(liveness::last_wait(self.stage.slack()))).await {
                    Ok(lock) => {
                        let lock = Arc::new(lock);
                        operation.acquired(&lock, Duration::ZERO);
                        sleep(liveness::LAST_HOLD).await;
                        release(&operation, &lock).await;
                    }
                    Err(error) => operation.broke(&format!("{SERVED}: a waiter was not served"), &error),
                }
            }
        });
        join_all(waiters.collect::<Vec<_>>()).await;
    }

    /// When no request is under way, each key is free at once, and each row is small and can be read.
    async fn inspect(&self, random: &mut Rng) {
        let locks = self.stage.locks(&self.host(random, Network::Good));
        for number in 0..self.keys {
            let operation = Operation::new("the last", format!("key {number}"), Arc::clone(&self.ledger));
            match locks.acquire(&operation.key).holder(&operation.name).lease(Duration::from_secs(2)).await {
                Ok(lock) => {
                    let lock = Arc::new(lock);
                    operation.acquired(&lock, Duration::ZERO);
                    release(&operation, &lock).await;
                }
                Err(error) => operation.broke(&format!("{SERVED}: a free key was refused"), &error),
            }
        }
        for what in liveness::inspect(&self.stage.engine, |_| liveness::LARGEST_ROW).await {
            self.ledger.violated(what);
        }
    }
}

/// A worker: one host after another, with one operation after another.
async fn worker(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let mut host = scene.host(&mut random, Network::Bad);
    for step in 0..random.usize(3..=6) {
        // Occasional pauses let rows expire and be deleted.
        let pause = if random.u8(0..10) == 0 { 900_000..=1_100_000 } else { 0..=300 };
        sleep(millis(&mut random, pause)).await;
        let operation = Operation::new(
            &format!("worker {number} step {step}"),
            format!("key {}", random.u64(0..scene.keys)),
            Arc::clone(&scene.ledger),
        );
        let work = work(&scene, &host, &operation, random.fork());
        match random.u8(0..10) {
            // The host crashes at this point, and another one replaces it.
            0 | 1 => {
                let crash = timeout(millis(&mut random, 0..=2500), work);
                let mut crash = Box::pin(crash);
                let crashed = (&mut crash).await.is_err();
                if crashed {
                    host.crash();
                    scene.left(&operation, "crashed", random.fork());
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

/// A host with a good network that waits for the key of a crashed holder.
async fn take_over(scene: Arc<Scene>, key: String, waiting: Waiting, mut random: Rng) {
    let operation = Operation::new(&format!("successor {:08x}", random.u32(..)), key, Arc::clone(&scene.ledger));
    let locks = scene.stage.locks(&scene.host(&mut random, Network::Good));
    let acquire = locks.acquire(&operation.key).holder(&operation.name).wait(waiting.up_to(Duration::from_mins(2)));
    match acquire.lease(Duration::from_secs(2)).await {
        Ok(lock) => {
            let lock = Arc::new(lock);
            operation.acquired(&lock, Duration::ZERO);
            release(&operation, &lock).await;
        }
        Err(error) => operation.broke(&format!("{CRASHES}: a key was not taken over"), &error),
    }
}

/// Acquires a key, holds it for a while, and releases it in one of several ways.
async fn work(scene: &Scene, host: &Host, operation: &Operation, mut random: Rng) {
    let locks = scene.stage.locks(host);
    let lease = millis(&mut random, 300..=2500);
    let min_hold = if random.u8(0..6) == 0 { millis(&mut random, 1..=3000) } else { Duration::ZERO };
    let budget = if random.bool() { millis(&mut random, 0..=6000) } else { Duration::ZERO };
    let wait = Waiting::draw(&mut random).up_to(budget);
    let mut acquire = locks.acquire(&operation.key).holder(&operation.name).min_hold(min_hold).wait(wait);
    acquire =
        if random.bool() { acquire.lease(lease) } else { acquire.lease(lease).deadline(host.now() + budget + lease) };
    if random.u8(0..4) == 0 {
        return run_under(operation, acquire, min_hold, scene.stage.largest_step(), random).await;
    }
    let started = scene.stage.engine.now();
    let acquired = acquire.await;
    let waited = scene.stage.engine.now().duration_since(started).unwrap();
    if waited > budget + REQUEST + scene.stage.slack() {
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
        if random.u8(0..8) == 0 {
            // A task of the holder keeps renewing during the release.
            let (renewed, ()) = tokio::join!(lock.renew(renewal), release(operation, &lock));
            return operation.renewed(&lock, renewed);
        }
        operation.renewed(&lock, lock.renew(renewal).await);
        if random.u8(0..3) == 0 {
            sleep(lease.mul_f64(random.f64() * 1.2)).await;
        }
    }
    match random.u8(0..10) {
        // A drop without a release sends the release in the background.
        0 => operation.ended("dropped its lock"),
        _ => release(operation, &lock).await,
    }
}

async fn release(operation: &Operation, lock: &Arc<Lock>) {
    let mut answer = lock.release().await;
    if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
        // The release may have been applied, or may arrive later.
        answer = lock.release().await;
    }
    operation.released(lock, answer);
}

/// Acquires the key and holds it with `run`, whose body must not outlive the lease.
/// While it sleeps, the clock can step by so much.
async fn run_under(operation: &Operation, acquire: Acquire, min_hold: Duration, step: Duration, mut random: Rng) {
    let steps = random.u32(0..150);
    let ran = acquire.run(async |lock| {
        let inside = operation.entered(lock, min_hold);
        let mut overstayed = Duration::ZERO;
        for _ in 0..steps {
            sleep(Duration::from_millis(20)).await;
            overstayed += if lock.is_valid() { Duration::ZERO } else { Duration::from_millis(20) };
        }
        inside.done();
        overstayed
    });
    match ran.await {
        // A step that is due at the end of the lease may still happen.
        Ok(overstayed) if overstayed > Duration::from_millis(60) + step => {
            operation.broke("work outlived its lease", &format!("by {overstayed:?}"));
        }
        Ok(_) => operation.completed(),
        Err(error) if error.is_lost() => operation.cancelled(),
        Err(error) => operation.refused(&error),
    }
}
