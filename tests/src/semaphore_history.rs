//! Histories of semaphores: several hosts with wrong clocks and bad networks contend for the permits of two keys, crash,
//! overstay and come back. A seed determines each history, which runs in paused time. A ledger sees every request as it is
//! applied, and every permit as its holder sees it. It reports at the end whether the guarantees held.

mod ledger;
mod mutations;

use std::collections::VecDeque;
use std::iter;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::Host;
use lambda_lock::{Acquire, Lock, Locks};

use crate::history::actor::{self, Kind};
use crate::history::operator::operate;
use crate::history::stage::{self, Network, Stage};
use crate::history::{Mutation, Outcome, counts, liveness, workflow};
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
        .map(|number| tokio::spawn(actor::worker(Arc::clone(&scene), number, random.fork())))
        .collect();
    let workflows = workflow::begin(seed, &scene);
    operate(seed, &scene.stage, &scene.ledger, (0..keys).map(|number| format!("key {number}")).collect()).await;
    for worker in workers {
        worker.await.unwrap();
    }
    workflows.await;
    actor::serve_last_waiters(&*scene, &mut random).await;
    if seed % CROWD_EVERY == CROWD_SEED && !scene.stage.is_throttled() {
        crowd(&scene, CROWDS[usize::try_from(seed / CROWD_EVERY % 4).unwrap()], &mut random).await;
    }
    stage::settle(LATEST_ARRIVAL).await;
    sweeper.abort();
    actor::inspect(&*scene, &mut random).await;
    Outcome { twisted: scene.stage.twisted(), ..scene.ledger.outcome() }
}

impl Kind for Scene {
    /// The key, and how many permits its callers allow.
    type Wanted = (String, u32);
    type Operation = Operation;

    const WORKFLOWS: u64 = 2;
    const HAS_MIN_HOLD: bool = false;

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

    fn all(&self) -> Vec<((String, u32), Option<String>)> {
        let keys = || (0..self.keys).map(|number| (format!("key {number}"), self.permits));
        let identities = (0..self.identities).map(|number| Some(workflow::identity(number)));
        iter::once(None).chain(identities).flat_map(|identity| keys().map(move |key| (key, identity.clone()))).collect()
    }

    fn operation(&self, name: &str, wanted: &(String, u32), identity: Option<&str>, _: &mut Rng) -> Operation {
        Operation::new(name, wanted.clone(), identity, Arc::clone(&self.ledger))
    }

    fn acquire(&self, locks: &Locks, operation: &Operation, _: &mut Rng) -> Acquire {
        locks.semaphore(&operation.key, operation.permits).acquire()
    }

    fn pause(&self, random: &mut Rng) -> RangeInclusive<u64> {
        match random.u8(0..20) {
            0 | 1 if self.has_nights => 90_000_000..=100_000_000,
            2 => 60_000..=120_000,
            _ => 0..=300,
        }
    }

    fn last_waiters(&self) -> u32 {
        self.permits + liveness::LAST_WAITERS
    }

    fn violated(&self, what: String) {
        self.ledger.broke(&mut self.ledger.state(), what);
    }

    /// A crowd leaves its permits.
    fn largest(row: &liveness::Row) -> usize {
        let permits = row["permits"].as_n().map_or(0, |permits| permits.parse().unwrap());
        liveness::LARGEST_ROW + PERMIT_BYTES * MOST_PERMITS.max(permits)
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
