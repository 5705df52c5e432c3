//! Histories of several keys: hosts with wrong clocks and bad networks acquire overlapping sets of a few keys, and now and
//! then a lock on one of them. Some transactions conflict. In half of the histories, DynamoDB has forgotten the tokens of
//! transactions when they are repeated. A ledger sees every request as it is applied, and every set as its holder sees it.

mod ledger;
mod mutations;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{ErrorKind, Lock, Locks};
use tokio::time::{sleep, timeout};

use crate::guarantee::{BUDGET, CRASHES, SERVED};
use crate::history::operator::operate;
use crate::history::stage::{self, Network, REQUEST, Stage, Waiting, millis};
use crate::history::workflow::{self, Ask, Kind as _};
use crate::history::{Mutation, Outcome, counts, liveness};
use ledger::{Ledger, Operation};
pub use mutations::MUTATIONS;

/// How late a request can arrive: AWS accepts its signature for 5 minutes.
const LATEST_ARRIVAL: Duration = Duration::from_mins(5);

counts! {
    /// Sets acquired.
    sets,
    /// Locks on one key acquired.
    locks,
    /// Acquires that were refused because a key was held.
    held,
    /// Acquires that were refused because several keys were held.
    held_in_part,
    /// Leases renewed.
    renewed,
    /// Releases and renewals that found a key lost.
    lost,
    /// Hosts that crashed while they held keys.
    crashed,
    /// Places in the queue of a key.
    joined,
    /// Keys reserved for a set.
    reserved,
    /// Acquires that withdrew.
    withdrawn,
    /// Requests cancelled by a conflict.
    conflicts,
    /// Transactions recognised by their token.
    recognised,
    /// Keys that a later acquire of their identity took over.
    taken_over,
    /// Takeovers that found a key that their identity does not hold.
    takeovers_refused,
    /// Keys that were released for their identity.
    freed_for_identity,
    /// Keys that an operator has freed by force.
    freed_by_force,
    /// Renewals and releases that found a key taken over, or freed by others.
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

#[derive(Debug)]
struct Scene {
    stage: Stage,
    ledger: Arc<Ledger>,
    keys: usize,
}

async fn history(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts> {
    let mut random = Rng::with_seed(seed);
    let stage = Stage::set(seed, &mut random, LATEST_ARRIVAL, mutation).await;
    let ledger = Arc::new(Ledger::new(&stage, random.fork()));
    let scene = Arc::new(Scene { stage, ledger, keys: random.usize(2..=4) });

    let sweeper = tokio::spawn({
        let scene = Arc::clone(&scene);
        async move { scene.stage.sweep(Duration::from_secs(5), |rows| scene.ledger.swept(rows)).await }
    });
    let workflows = workflow::begin(seed, &scene);
    tokio::join!(
        stage::work(&mut random, |number, random| worker(Arc::clone(&scene), number, random)),
        operate(seed, &scene.stage, &scene.ledger, (0..scene.keys).map(|key| format!("key {key}")).collect()),
    );
    workflows.await;
    scene.serve_last_waiters(&mut random).await;
    stage::settle(LATEST_ARRIVAL).await;
    sweeper.abort();
    scene.inspect(&mut random).await;
    Outcome { twisted: scene.stage.twisted(), ..scene.ledger.outcome() }
}

impl workflow::Kind for Scene {
    type Wanted = Vec<String>;
    type Operation = Operation;

    const WORKFLOWS: u64 = 2;

    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn host(&self, random: &mut Rng, network: Network) -> Host {
        self.stage.host(random, network, self.ledger.observer())
    }

    fn draw(&self, random: &mut Rng) -> Vec<String> {
        keys(random, self.keys, 3)
    }

    fn alone(&self) -> Vec<String> {
        ["key alone", "key alone, too"].map(str::to_owned).into()
    }

    fn key(operation: &Operation) -> &str {
        &operation.keys[0]
    }

    /// Some attempts are for some of the keys only.
    fn operation(&self, name: &str, keys: &Vec<String>, identity: &str, random: &mut Rng) -> Operation {
        let most = if random.u8(0..4) == 0 { random.usize(1..=keys.len()) } else { keys.len() };
        let name = format!("{name}, skew {}", self.stage.clock_skew.as_millis());
        Operation::new(name, keys[..most].to_vec(), Arc::clone(&self.ledger)).of_identity(identity)
    }

    async fn acquire(&self, operation: &Operation, ask: Ask<'_>, random: &mut Rng) -> Option<Arc<Lock>> {
        let acquire = match operation.keys.as_slice() {
            [key] if random.bool() => ask.locks.acquire(key),
            keys => ask.locks.acquire_all(keys),
        };
        match ask.send(acquire.holder(&operation.name)).await {
            Ok(held) => {
                operation.acquired(&held);
                Some(held)
            }
            Err(error) => {
                operation.refused(&error);
                None
            }
        }
    }

    async fn renew(&self, operation: &Operation, held: &Arc<Lock>, lease: Duration) {
        let sent = operation.now();
        operation.renewed(held, sent, held.renew(lease).await);
    }

    async fn release(&self, operation: &Operation, held: &Arc<Lock>) {
        release(operation, held).await;
    }

    async fn stop(&self, operation: &Operation, locks: &Locks, _: &str) {
        for key in &operation.keys {
            let before = operation.stops(key);
            operation.stopped(key, &before, &locks.release_identity(key, operation.identity()).await);
        }
    }

    fn ended(&self, operation: &Operation, how: &str) {
        operation.ended(how);
    }

    fn left(self: &Arc<Self>, operation: &Operation, how: &str, random: Rng) {
        if operation.left(how) {
            tokio::spawn(take_over(Arc::clone(self), operation.keys.clone(), random));
        }
    }
}

impl Scene {
    fn good_locks(&self, random: &mut Rng) -> Locks {
        self.stage.locks(&self.stage.host(random, Network::Good, self.ledger.observer()))
    }

    /// After the faults, waiters with good networks come for overlapping keys at once. Late requests still arrive.
    async fn serve_last_waiters(&self, random: &mut Rng) {
        let waiters = (0..liveness::LAST_WAITERS).map(|number| {
            let name = format!("last waiter {number}");
            let operation = Operation::new(name, keys(random, self.keys, 3), Arc::clone(&self.ledger));
            let locks = self.good_locks(random);
            async move {
                let acquire = locks.acquire_all(&operation.keys).holder(&operation.name).lease(Duration::from_secs(2));
                match acquire.wait(Waiting::InTurn.up_to(liveness::last_wait(self.stage.slack()))).await {
                    Ok(set) => {
                        let held = Arc::new(set);
                        operation.acquired(&held);
                        sleep(liveness::LAST_HOLD).await;
                        release(&operation, &held).await;
                    }
                    Err(error) => operation.broke(&format!("{SERVED}: a waiter was not served"), &error),
                }
            }
        });
        join_all(waiters.collect::<Vec<_>>()).await;
    }

    /// When no request is under way, all keys are free at once, and each row is small and can be read.
    async fn inspect(&self, random: &mut Rng) {
        let locks = self.good_locks(random);
        let all = (0..self.keys).map(|key| format!("key {key}")).collect();
        let operation = Operation::new("the last".to_owned(), all, Arc::clone(&self.ledger));
        // Conflicts are repeated.
        let acquire = locks.acquire_all(&operation.keys).holder(&operation.name).lease(Duration::from_secs(2));
        match acquire.wait(Waiting::Backoff.up_to(Duration::from_secs(5))).await {
            Ok(set) => {
                let held = Arc::new(set);
                operation.acquired(&held);
                release(&operation, &held).await;
            }
            Err(error) => operation.broke(&format!("{SERVED}: free keys were refused"), &error),
        }
        for what in liveness::inspect(&self.stage.engine, |_| liveness::LARGEST_ROW).await {
            self.ledger.violated(what);
        }
    }
}

/// A worker: one host after another, with one operation after another.
async fn worker(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let host = |random: &mut Rng| scene.stage.host(random, Network::Bad, scene.ledger.observer());
    let mut at = host(&mut random);
    for step in 0..random.usize(3..=6) {
        // Occasional pauses let rows expire and be deleted.
        let pause = if random.u8(0..10) == 0 { 900_000..=1_100_000 } else { 0..=300 };
        sleep(millis(&mut random, pause)).await;
        let name = format!("worker {number} step {step}, skew {}", scene.stage.clock_skew.as_millis());
        let most = if random.u8(0..4) == 0 { 1 } else { 3 };
        let operation = Operation::new(name, keys(&mut random, scene.keys, most), Arc::clone(&scene.ledger));
        let work = work(&scene, scene.stage.locks(&at), &operation, random.fork());
        match random.u8(0..10) {
            // The host crashes at this point, and another one replaces it.
            0 | 1 => {
                let mut crash = Box::pin(timeout(millis(&mut random, 0..=2500), work));
                if (&mut crash).await.is_err() {
                    at.crash();
                    scene.left(&operation, "crashed", random.fork());
                    drop(crash);
                    at = host(&mut random);
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

/// Draws up to this many keys.
fn keys(random: &mut Rng, of: usize, most: usize) -> Vec<String> {
    let mut keys: Vec<_> = (0..of).map(|key| format!("key {key}")).collect();
    random.shuffle(&mut keys);
    keys.truncate(random.usize(1..=most));
    keys
}

/// A host with a good network that waits for the keys of a crashed holder.
async fn take_over(scene: Arc<Scene>, keys: Vec<String>, mut random: Rng) {
    let operation = Operation::new(format!("successor {:08x}", random.u32(..)), keys, Arc::clone(&scene.ledger));
    let locks = scene.stage.locks(&scene.stage.host(&mut random, Network::Good, scene.ledger.observer()));
    let acquire = locks.acquire_all(&operation.keys).holder(&operation.name).lease(Duration::from_secs(2));
    match acquire.wait(Waiting::Backoff.up_to(Duration::from_mins(2))).await {
        Ok(set) => {
            let held = Arc::new(set);
            operation.acquired(&held);
            release(&operation, &held).await;
        }
        Err(error) => operation.broke(&format!("{CRASHES}: keys were not taken over"), &error),
    }
}

/// Acquires the keys, holds them for a while, and releases them in one of several ways.
async fn work(scene: &Scene, locks: Locks, operation: &Operation, mut random: Rng) {
    let lease = millis(&mut random, 300..=2500);
    let budget = if random.bool() { millis(&mut random, 0..=6000) } else { Duration::ZERO };
    // Only waiters in turn reserve their keys, and few of them do.
    let waiting = if random.u8(0..3) == 0 { Waiting::Backoff } else { Waiting::InTurn };
    let wait = waiting.up_to(budget);
    let started = scene.stage.engine.now();
    let acquired = match operation.keys.as_slice() {
        [key] if random.bool() => locks.acquire(key).holder(&operation.name).wait(wait).lease(lease).await,
        keys => locks.acquire_all(keys).holder(&operation.name).wait(wait).lease(lease).await,
    };
    let waited = scene.stage.engine.now().duration_since(started).unwrap();
    if waited > budget + REQUEST + scene.stage.slack() {
        operation.broke(&format!("{BUDGET}: an acquire outlasted its budget"), &format!("{waited:?} of {budget:?}"));
    }
    let held = match acquired {
        Ok(held) => Arc::new(held),
        Err(error) => return operation.refused(&error),
    };
    operation.acquired(&held);
    // Most holders finish in time. Some stay until the end of the lease, or overstay it.
    let work = if random.u8(0..3) == 0 { lease.mul_f64(0.8 + random.f64()) } else { lease.mul_f64(random.f64() / 2.0) };
    sleep(work).await;
    for _ in 0..random.usize(0..=6).saturating_sub(3) {
        let sent = operation.now();
        operation.renewed(&held, sent, held.renew(lease.mul_f64(0.2 + 1.3 * random.f64())).await);
        if random.u8(0..3) == 0 {
            sleep(lease.mul_f64(random.f64() * 1.2)).await;
        }
    }
    match random.u8(0..10) {
        // A drop without a release sends the release in the background.
        0 => operation.ended("dropped its locks"),
        _ => release(operation, &held).await,
    }
}

async fn release(operation: &Operation, held: &Arc<Lock>) {
    let mut sent = operation.now();
    let mut answer = held.release().await;
    if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
        // The release may have been applied, or may arrive later.
        sent = operation.now();
        answer = held.release().await;
    }
    operation.released(held, sent, answer);
}
