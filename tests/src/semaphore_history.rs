//! Histories of semaphores: several hosts with wrong clocks and bad networks contend for the permits of two keys, crash,
//! overstay and come back. A seed determines each history, which runs in paused time. A ledger sees every request as it is
//! applied, and every permit as its holder sees it. It reports at the end whether the guarantees held.

mod ledger;
mod mutations;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{ErrorKind, Lock, Locks};
use tokio::time::{sleep, timeout};

use crate::guarantee::{CRASHES, SERVED};
use crate::history::operator::operate;
use crate::history::stage::{self, Network, Stage, Waiting, millis};
use crate::history::workflow::{self, Ask, Kind as _};
use crate::history::{Mutation, Outcome, counts, liveness};
pub(crate) use ledger::refused_with_room;
use ledger::{Ledger, Operation};
pub use mutations::MUTATIONS;

/// How late a request can arrive: AWS accepts its signature for 5 minutes.
const LATEST_ARRIVAL: Duration = Duration::from_mins(5);

/// One history in so many, from this seed on, ends with a crowd.
const CROWD_EVERY: u64 = 50;
pub(crate) const CROWD_SEED: u64 = 7;
/// How many permits a crowd has in use, the first crowd first, and how many of them it replaces.
const CROWDS: [u32; 4] = [64, 3, 100, 17];
const REPLACED: u32 = 200;
/// One history in so many has many permits.
const MANY_EVERY: u64 = 8;
/// The most permits of a history without a crowd.
const MOST_PERMITS: usize = 9 + 2;
/// The size of a permit in a row, at most.
const PERMIT_BYTES: usize = 300;

counts! {
    /// Permits acquired.
    acquired,
    /// Permits whose lease had ended, and which were replaced.
    replaced,
    /// Acquires that were refused because all permits were held.
    held,
    /// Places in the queue that were taken.
    joined,
    /// Leases renewed.
    renewed,
    /// Releases and renewals that found the permit lost.
    lost,
    /// Hosts that crashed while they held a permit, and permits that were kept for a later step.
    crashed,
    /// Acquires that withdrew without a permit.
    withdrawn,
    /// Permits that a later acquire of their identity took over.
    taken_over,
    /// Takeovers that found no permit of their identity.
    takeovers_refused,
    /// Permits that were released for their identity.
    freed_for_identity,
    /// Permits that an operator has freed by force.
    freed_by_force,
    /// Renewals and releases that found the permit taken over, or freed by others.
    superseded,
    /// Rows deleted by TTL.
    swept,
    /// Requests sent.
    requests,
}

/// Runs the history of a seed, with the protocol or with a mutation of it.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts> {
    stage::play(seed, history(seed, mutation))
}

/// The part of a history that all its tasks share.
#[derive(Debug)]
struct Scene {
    stage: Stage,
    ledger: Arc<Ledger>,
    keys: u64,
    /// How many permits most callers allow. Some allow one or two more, as during a deployment.
    permits: u32,
    /// Some pauses are so long that TTL deletes the row.
    has_nights: bool,
    /// How many identities have workflows.
    identities: u64,
}

async fn history(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts> {
    let mut random = Rng::with_seed(seed);
    let stage = Stage::set(seed, &mut random, LATEST_ARRIVAL, mutation).await;
    let ledger = Arc::new(Ledger::new(&stage));
    let (keys, few, has_nights) = (random.u64(1..=2), random.u32(1..=3), random.u8(0..5) == 0);
    // One history in so many has many permits, and enough workers for them.
    let many = (seed % MANY_EVERY == 1).then(|| 4 + u32::try_from(seed / MANY_EVERY % 6).unwrap());
    let identities = workflow::workflows::<Scene>(seed);
    let scene = Arc::new(Scene { stage, ledger, keys, permits: many.unwrap_or(few), has_nights, identities });
    let sweeper = tokio::spawn({
        let scene = Arc::clone(&scene);
        let interval = Duration::from_secs(if scene.has_nights { 600 } else { 5 });
        async move { scene.stage.sweep(interval, |rows| scene.ledger.swept(rows)).await }
    });
    let workers: Vec<_> = (0..random.usize(3..=6) + many.unwrap_or_default() as usize)
        .map(|number| tokio::spawn(worker(Arc::clone(&scene), number, random.fork())))
        .collect();
    let workflows = workflow::begin(seed, &scene);
    operate(seed, &scene.stage, &scene.ledger, (0..keys).map(|number| format!("key {number}")).collect()).await;
    for worker in workers {
        worker.await.unwrap();
    }
    workflows.await;
    scene.serve_last_waiters(&mut random).await;
    if seed % CROWD_EVERY == CROWD_SEED && !scene.stage.is_throttled() {
        crowd(&scene, CROWDS[usize::try_from(seed / CROWD_EVERY % 4).unwrap()], &mut random).await;
    }
    stage::settle(LATEST_ARRIVAL).await;
    sweeper.abort();
    scene.inspect(&mut random).await;
    Outcome { twisted: scene.stage.twisted(), ..scene.ledger.outcome() }
}

impl workflow::Kind for Scene {
    /// The key, and how many permits all attempts allow.
    type Wanted = (String, u32);
    type Operation = Operation;

    const WORKFLOWS: u64 = 2;

    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn host(&self, random: &mut Rng, network: Network) -> Host {
        self.stage.host(random, network, self.ledger.observer())
    }

    fn draw(&self, random: &mut Rng) -> (String, u32) {
        (format!("key {}", random.u64(0..self.keys)), self.permits + random.u32(0..6).saturating_sub(3))
    }

    fn alone(&self) -> (String, u32) {
        ("key alone".to_owned(), self.permits)
    }

    fn key(operation: &Operation) -> &str {
        &operation.key
    }

    fn operation(&self, name: &str, (key, permits): &(String, u32), identity: &str, _: &mut Rng) -> Operation {
        Operation::new(name, key.clone(), *permits, Arc::clone(&self.ledger)).of_identity(identity)
    }

    async fn acquire(&self, operation: &Operation, ask: Ask<'_>, _: &mut Rng) -> Option<Arc<Lock>> {
        let acquire = ask.locks.semaphore(&operation.key, operation.permits).acquire().holder(&operation.name);
        match ask.send(acquire).await {
            Ok(permit) => {
                operation.acquired(&permit);
                Some(permit)
            }
            Err(error) => {
                operation.refused(&error);
                None
            }
        }
    }

    async fn renew(&self, operation: &Operation, permit: &Arc<Lock>, lease: Duration) {
        let end = operation.earliest_end(permit, lease);
        operation.renewed(permit, end, permit.renew(lease).await);
    }

    async fn release(&self, operation: &Operation, permit: &Arc<Lock>) {
        release(operation, permit).await;
    }

    async fn stop(&self, operation: &Operation, locks: &Locks, identity: &str) {
        let before = operation.stops();
        operation.stopped(&before, &locks.release_identity(&operation.key, identity).await);
    }

    fn ended(&self, operation: &Operation, how: &str) {
        operation.ended(how);
    }

    fn left(self: &Arc<Self>, operation: &Operation, how: &str, random: Rng) {
        if operation.left(how) {
            tokio::spawn(take_over(Arc::clone(self), operation.key.clone(), random));
        }
    }
}

impl Scene {
    /// After the faults, waiters with good networks come for a permit at once. Late requests still arrive.
    async fn serve_last_waiters(&self, random: &mut Rng) {
        let key = format!("key {}", random.u64(0..self.keys));
        let waiters = (0..self.permits + liveness::LAST_WAITERS).map(|number| {
            let name = format!("last waiter {number}");
            let operation = Operation::new(&name, key.clone(), self.permits, Arc::clone(&self.ledger));
            let locks = self.stage.locks(&self.host(random, Network::Good));
            async move {
                let acquire = locks.semaphore(&operation.key, operation.permits).acquire().holder(&operation.name);
                let wait = Waiting::InTurn.up_to(liveness::last_wait(self.stage.slack()));
                match acquire.lease(Duration::from_secs(2)).wait(wait).await {
                    Ok(permit) => {
                        let permit = Arc::new(permit);
                        operation.acquired(&permit);
                        sleep(liveness::LAST_HOLD).await;
                        release(&operation, &permit).await;
                    }
                    Err(error) => operation.broke(&format!("{SERVED}: a waiter was not served"), &error),
                }
            }
        });
        join_all(waiters.collect::<Vec<_>>()).await;
    }

    /// When no request is under way, all permits are free at once, and each row is small and can be read.
    async fn inspect(&self, random: &mut Rng) {
        let locks = self.stage.locks(&self.host(random, Network::Good));
        for number in 0..self.keys {
            let ledger = Arc::clone(&self.ledger);
            let operation = Operation::new("the last", format!("key {number}"), self.permits, ledger);
            let semaphore = locks.semaphore(&operation.key, operation.permits);
            match semaphore.acquire().holder(&operation.name).lease(Duration::from_secs(2)).await {
                Ok(permit) => {
                    let permit = Arc::new(permit);
                    operation.acquired(&permit);
                    release(&operation, &permit).await;
                }
                Err(error) => operation.broke(&format!("{SERVED}: a free permit was refused"), &error),
            }
        }
        for number in 0..self.keys * self.identities {
            let (key, identity) = (format!("key {}", number % self.keys), workflow::identity(number / self.keys));
            let operation = Operation::new("the last of an identity", key, self.permits, Arc::clone(&self.ledger));
            let operation = operation.of_identity(&identity);
            let semaphore = locks.semaphore(&operation.key, operation.permits);
            let acquire = semaphore.acquire().identity(&identity).holder(&operation.name);
            match acquire.lease(Duration::from_secs(2)).await {
                Ok(permit) => {
                    let permit = Arc::new(permit);
                    operation.acquired(&permit);
                    release(&operation, &permit).await;
                }
                Err(error) => operation.broke(&format!("{SERVED}: a free permit was refused to an identity"), &error),
            }
        }
        // A crowd leaves its permits.
        let most = |row: &liveness::Row| {
            let permits = row["permits"].as_n().map_or(0, |permits| permits.parse().unwrap());
            liveness::LARGEST_ROW + PERMIT_BYTES * MOST_PERMITS.max(permits)
        };
        for what in liveness::inspect(&self.stage.engine, most).await {
            self.ledger.broke(&mut self.ledger.state(), what);
        }
    }
}

/// A worker: one host after another, with one operation after another.
async fn worker(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let mut host = scene.host(&mut random, Network::Bad);
    for step in 0..random.usize(3..=6) {
        let pause = match random.u8(0..20) {
            0 | 1 if scene.has_nights => 90_000_000..=100_000_000,
            2 => 60_000..=120_000,
            _ => 0..=300,
        };
        sleep(millis(&mut random, pause)).await;
        let key = format!("key {}", random.u64(0..scene.keys));
        let permits = scene.permits + random.u32(0..6).saturating_sub(3);
        let operation =
            Operation::new(&format!("worker {number} step {step}"), key, permits, Arc::clone(&scene.ledger));
        let work = work(&scene, &host, &operation, random.fork());
        match random.u8(0..10) {
            // The host crashes at this point, and another one replaces it.
            0 | 1 => {
                let mut crash = Box::pin(timeout(millis(&mut random, 0..=2500), work));
                if (&mut crash).await.is_err() {
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

/// A host that has many permits in use, and replaces one after the other. The row stays small.
async fn crowd(scene: &Scene, crowd: u32, random: &mut Rng) {
    let locks = scene.stage.locks(&scene.host(random, Network::Good));
    let semaphore = locks.semaphore("crowded", crowd);
    let mut held = VecDeque::new();
    for number in 0..crowd + REPLACED {
        if number >= crowd {
            let oldest: Lock = held.pop_front().unwrap();
            if let Err(error) = oldest.release().await {
                return scene.ledger.crowd_lost(&error);
            }
        }
        let acquire = semaphore.acquire().holder(format!("crowd {number}")).lease(Duration::from_mins(10));
        held.push_back(acquire.await.unwrap());
    }
    for permit in held {
        // The history does not wait for the releases of dropped permits.
        permit.keep();
    }
}

/// A host with a good network that waits for a permit after a crash.
async fn take_over(scene: Arc<Scene>, key: String, mut random: Rng) {
    let name = format!("successor {:08x}", random.u32(..));
    let operation = Operation::new(&name, key, scene.permits, Arc::clone(&scene.ledger));
    let locks = scene.stage.locks(&scene.host(&mut random, Network::Good));
    let semaphore = locks.semaphore(&operation.key, operation.permits);
    let wait = Waiting::draw(&mut random).up_to(Duration::from_mins(2));
    let acquire = semaphore.acquire().holder(&operation.name).wait(wait);
    match acquire.lease(Duration::from_secs(2)).await {
        Ok(permit) => {
            let permit = Arc::new(permit);
            operation.acquired(&permit);
            release(&operation, &permit).await;
        }
        Err(error) => operation.broke(&format!("{CRASHES}: no permit became free after a crash"), &error),
    }
}

/// Acquires a permit, holds it for a while, and releases it in one of several ways.
async fn work(scene: &Scene, host: &Host, operation: &Operation, mut random: Rng) {
    let locks = scene.stage.locks(host);
    let lease = millis(&mut random, 300..=2500);
    let budget = if random.bool() { millis(&mut random, 0..=6000) } else { Duration::ZERO };
    let semaphore = locks.semaphore(&operation.key, operation.permits);
    let acquire = semaphore.acquire().holder(&operation.name).lease(lease);
    let permit = match acquire.wait(Waiting::draw(&mut random).up_to(budget)).await {
        Ok(permit) => Arc::new(permit),
        Err(error) => return operation.refused(&error),
    };
    operation.acquired(&permit);
    // Most holders finish in time. Some stay until the end of the lease, or overstay it.
    let work = if random.u8(0..3) == 0 { lease.mul_f64(0.8 + random.f64()) } else { lease.mul_f64(random.f64() / 2.0) };
    sleep(work).await;
    let deadline = permit.expires_at();
    for _ in 0..random.usize(0..=8).saturating_sub(4) {
        // Some renewals restore the end from the acquire, which the row had before.
        let back = deadline.duration_since(host.now()).ok().filter(|left| left.as_millis() > 0 && random.bool());
        let renewal = back.unwrap_or_else(|| lease.mul_f64(0.2 + 1.3 * random.f64()));
        let end = operation.earliest_end(&permit, renewal);
        let renewed = permit.renew(renewal).await;
        operation.renewed(&permit, end, renewed);
        if random.u8(0..3) == 0 {
            sleep(lease.mul_f64(random.f64() * 1.2)).await;
        }
    }
    match random.u8(0..10) {
        // A drop without a release sends the release in the background.
        0 => operation.ended("dropped its permit"),
        _ => release(operation, &permit).await,
    }
}

async fn release(operation: &Operation, permit: &Arc<Lock>) {
    let end = permit.expires_at();
    let mut answer = permit.release().await;
    if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
        // The release may have been applied, or may arrive later.
        answer = permit.release().await;
    }
    operation.released(permit, end, answer);
}
