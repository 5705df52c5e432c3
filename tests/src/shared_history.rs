//! Histories of shared keys: the same few keys are locks, parts of a set, semaphores and records of idempotency at once, under
//! two key prefixes. A key has the kind of its row until the row is deleted: the others are refused, or wait if they have the
//! same kind of row. A seed determines each history. A ledger sees every request as it is applied, and every holder.

mod ledger;
mod mutations;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, ErrorKind, HandlerError, Idempotency, Locks, OnUnfinished, Run, Wait};
use tokio::time::{sleep, timeout};

use crate::guarantee::SERVED;
use crate::history::frame::{self, History, Set};
use crate::history::operator::operate;
use crate::history::stage::{Network, Stage, Waiting, millis};
use crate::history::{Mutation, Outcome, counts, liveness};
use ledger::{Kept, Kind, Operation};
pub use mutations::MUTATIONS;

/// The window of a record.
const WINDOW: Duration = Duration::from_secs(30);
const PERMITS: u32 = 2;
/// The start of every key, which is the key prefix of one of two functions.
const PREFIX: &str = "shared ";
/// The largest row of a semaphore in a history.
const LARGEST_SEMAPHORE: usize = 8000;

counts! {
    /// Locks acquired.
    locks,
    /// Sets acquired.
    sets,
    /// Permits acquired.
    permits,
    /// Runs of idempotent work.
    runs,
    /// Answers that came from another run.
    replayed,
    /// Refusals because the key is held.
    held,
    /// Refusals because the row of the key has another kind.
    wrong_kind,
    /// Rows whose key had another kind before.
    changed_kind,
    /// Locks, permits and runs that an operator has freed by force.
    freed_by_force,
    /// Hosts that crashed.
    crashed,
    /// Rows deleted by TTL.
    swept,
    /// Requests sent.
    requests,
}

/// Runs the history of a seed, with the protocol or with a mutation of it.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts> {
    frame::run::<Scene>(seed, mutation)
}

type Scene = Set<Kept, Own>;

struct Own {
    keys: usize,
}

impl History for Scene {
    /// Less than a record is kept.
    const LATEST_ARRIVAL: Duration = Duration::from_secs(20);

    fn set(_: u64, stage: Stage, random: &mut Rng) -> Self {
        Self::new(stage, Kept::default(), Own { keys: random.usize(1..=3) })
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        worker(scene, number, random)
    }

    async fn sweep(&self) {
        loop {
            sleep(Duration::from_mins(10)).await;
            let swept = self.stage.engine.sweep_expired().unwrap();
            let left = if swept > 0 { liveness::rows(&self.stage.engine).await } else { continue };
            let left = left.iter().map(|row| row["id"].as_s().unwrap().as_str()).collect();
            self.ledger.swept_but(swept, &left);
        }
    }

    async fn beside(seed: u64, scene: &Arc<Self>) {
        operate(seed, &**scene, (0..scene.keys).map(|key| format!("{PREFIX}{key}")).collect()).await;
    }

    /// After the faults, a waiter of each kind with a good network comes for each key. It is served in time, or told at once
    /// that the key has another kind.
    async fn serve_last(&self, random: &mut Rng) {
        for number in 0..self.keys {
            for kind in [Kind::Lock, Kind::Permit, Kind::Set, Kind::Record] {
                let (name, key) = (format!("last {kind:?} for {number}"), format!("{PREFIX}{number}"));
                let operation = Operation::new(name, kind, vec![key.clone()], Arc::clone(&self.ledger));
                let host = self.host(random, Network::Good);
                let function = self.function(random, &host);
                let started = self.stage.engine.now();
                let at_once = Duration::from_secs(1) + self.stage.slack();
                let patience = liveness::last_wait(self.stage.slack()) + WINDOW;
                let plan = Plan {
                    lease: Duration::from_secs(2),
                    wait: Waiting::InTurn.up_to(patience),
                    work: liveness::LAST_HOLD,
                    ends: Ends::Release,
                };
                let took = || self.stage.engine.now().duration_since(started).unwrap();
                match work(function, &operation, plan).await {
                    Err(error) if error.kind() == ErrorKind::WrongKind && took() < at_once => {}
                    Err(error) => operation.broke(&format!("{SERVED}: a waiter was not served"), &error),
                    Ok(()) => {}
                }
            }
        }
    }

    async fn inspect(scene: &Arc<Self>, _: &mut Rng) {
        for what in liveness::inspect(&scene.stage.engine, largest).await {
            scene.ledger.violated(what);
        }
    }
}

fn largest(row: &liveness::Row) -> usize {
    if row.contains_key("permits") { LARGEST_SEMAPHORE } else { liveness::LARGEST_ROW }
}

impl Scene {
    /// A function on this host, and the prefix of its keys.
    fn function(&self, random: &mut Rng, host: &Host) -> (Locks, &'static str) {
        let prefix = if random.bool() { PREFIX } else { "" };
        (self.stage.builder(host).key_prefix(prefix).build().unwrap(), prefix)
    }
}

/// A worker: one host after another, with one operation after another.
async fn worker(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let mut host = scene.host(&mut random, Network::Bad);
    for step in 0..random.usize(4..=7) {
        // TTL deletes rows in the long pauses: that of a semaphore after more than a day.
        let pause = match random.u8(0..20) {
            0 => 1_200_000..=1_500_000,
            1 => 100_000_000..=110_000_000,
            2 | 3 => 20_000..=40_000,
            _ => 0..=300,
        };
        sleep(millis(&mut random, pause)).await;
        let kind = [Kind::Lock, Kind::Set, Kind::Permit, Kind::Record][random.usize(0..4)];
        let mut keys: Vec<_> = (0..scene.keys).map(|key| format!("{PREFIX}{key}")).collect();
        random.shuffle(&mut keys);
        keys.truncate(if kind == Kind::Set { random.usize(1..=2) } else { 1 });
        let name = format!("worker {number} step {step}");
        let operation = Operation::new(name, kind, keys, Arc::clone(&scene.ledger));
        let plan = Plan::draw(&mut random);
        let work = work(scene.function(&mut random, &host), &operation, plan);
        match random.u8(0..10) {
            // The host crashes at this point, and another one replaces it.
            0 | 1 => {
                let mut crash = Box::pin(timeout(millis(&mut random, 0..=2500), work));
                if (&mut crash).await.is_err() {
                    host.crash();
                    operation.crashed();
                    drop(crash);
                    host = scene.host(&mut random, Network::Bad);
                }
            }
            // The invocation is cancelled, and the host continues.
            2 => {
                let _ = timeout(millis(&mut random, 0..=1500), work).await;
                operation.left("was dropped, or had ended");
            }
            _ => {
                let _ = work.await;
            }
        }
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    lease: Duration,
    wait: Wait,
    work: Duration,
    ends: Ends,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Release,
    Renewal,
    Drop,
}

impl Plan {
    fn draw(random: &mut Rng) -> Self {
        let lease = millis(random, 300..=2500);
        let budget = if random.bool() { millis(random, 0..=6000) } else { Duration::ZERO };
        // Most holders finish in time. Some overstay the lease.
        let work = lease.mul_f64(if random.u8(0..3) == 0 { 0.8 + random.f64() } else { random.f64() / 2.0 });
        let ends = match random.u8(0..10) {
            0 => Ends::Drop,
            1..=3 => Ends::Renewal,
            _ => Ends::Release,
        };
        Self { lease, wait: Waiting::draw(random).up_to(budget), work, ends }
    }
}

/// Acquires the keys as their kind, holds them for a while, and releases them.
async fn work((locks, prefix): (Locks, &str), operation: &Operation, plan: Plan) -> Result<(), Error> {
    let Plan { lease, wait, work, ends } = plan;
    let mut keys = operation.keys.iter().map(|key| key.strip_prefix(prefix).unwrap().to_owned());
    let acquired = match operation.kind {
        Kind::Lock => {
            let acquire = locks.acquire(keys.next().unwrap()).holder(&operation.name);
            acquire.lease(lease).wait(wait).await
        }
        Kind::Permit => {
            let acquire = locks.semaphore(keys.next().unwrap(), PERMITS).acquire().holder(&operation.name);
            acquire.lease(lease).wait(wait).await
        }
        Kind::Set => locks.acquire_all(keys).holder(&operation.name).lease(lease).wait(wait).await,
        Kind::Record => return run_once(locks, operation, keys.next().unwrap(), plan).await,
    };
    let held = match acquired {
        Ok(held) => Arc::new(held),
        Err(error) => {
            operation.refused(&error);
            return Err(error);
        }
    };
    operation.acquired(&held);
    sleep(work).await;
    if ends == Ends::Renewal && held.renew(lease).await.is_ok() {
        operation.renewed();
        sleep(lease / 4).await;
    }
    if ends == Ends::Drop {
        operation.left("dropped what it had");
    } else {
        let answer = held.release().await;
        operation.released(&held, &answer);
    }
    Ok(())
}

/// Runs idempotent work with this key.
async fn run_once(locks: Locks, operation: &Operation, key: String, plan: Plan) -> Result<(), Error> {
    let of = |order: &String| Some(order.clone());
    let orders = Idempotency::new(locks, OnMissingKey::Reject, of).prefix("").window(WINDOW).lease(plan.lease);
    let orders = orders.on_unfinished(OnUnfinished::RunAgain);
    let body = async |run: &Run| {
        let _inside = operation.entered(run.lock());
        sleep(plan.work).await;
        Ok::<_, Infallible>(run.lock().fence())
    };
    match orders.wait(plan.wait).run(&key, body).await {
        Ok(_) => {
            operation.answered();
            Ok(())
        }
        Err(HandlerError::Lock(error)) => {
            operation.refused(&error);
            Err(error)
        }
        Err(error) => unreachable!("the work does not fail: {error}"),
    }
}
