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
use lambda_lock::{Acquire, Lock, Locks};

use crate::history::actor::{self, Kind, Report as _};
use crate::history::frame::{self, History, Set};
use crate::history::operator::operate;
use crate::history::stage::{Network, Stage};
use crate::history::{Mutation, Outcome, counts, liveness, workflow};
pub(crate) use ledger::refused_with_room;
use ledger::{Kept, Operation};
pub use mutations::MUTATIONS;

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
    frame::run::<Scene>(seed, mutation)
}

type Scene = Set<Kept, Own>;

struct Own {
    keys: u64,
    /// How many permits most callers allow. Some allow one or two more, as during a deployment.
    permits: u32,
    /// Some pauses are so long that TTL deletes the row.
    has_nights: bool,
    /// How many workers there are beside those of each history.
    more_workers: usize,
    /// How many identities have workflows.
    identities: u64,
    /// How many permits the crowd at the end has in use.
    crowd: Option<u32>,
}

impl History for Scene {
    fn set(seed: u64, stage: Stage, random: &mut Rng) -> Self {
        let (keys, few, has_nights) = (random.u64(1..=2), random.u32(1..=3), random.u8(0..5) == 0);
        // One history in so many has many permits, and enough workers for them.
        let many = (seed % MANY_EVERY == 1).then(|| 4 + u32::try_from(seed / MANY_EVERY % 6).unwrap());
        let has_crowd = seed % CROWD_EVERY == CROWD_SEED && !stage.is_throttled();
        let own = Own {
            keys,
            permits: many.unwrap_or(few),
            has_nights,
            more_workers: many.unwrap_or_default() as usize,
            identities: workflow::workflows::<Self>(seed),
            crowd: has_crowd.then(|| CROWDS[usize::try_from(seed / CROWD_EVERY % 4).unwrap()]),
        };
        Self::new(stage, Kept::default(), own)
    }

    fn workers(&self) -> RangeInclusive<usize> {
        3 + self.more_workers..=6 + self.more_workers
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        actor::worker(scene, number, random)
    }

    async fn sweep(&self) {
        let every = Duration::from_secs(if self.has_nights { 600 } else { 5 });
        self.ledger.sweep(every, |counts| &mut counts.swept).await;
    }

    async fn beside(seed: u64, scene: &Arc<Self>) {
        let workflows = workflow::begin(seed, scene);
        operate(seed, &**scene, (0..scene.keys).map(|number| format!("key {number}")).collect()).await;
        workflows.await;
    }

    async fn serve_last(&self, random: &mut Rng) {
        actor::serve_last_waiters(self, random).await;
        if let Some(permits) = self.crowd {
            crowd(self, permits, random).await;
        }
    }

    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        actor::inspect(&**scene, random).await;
    }
}

impl Kind for Scene {
    /// The key, and how many permits its callers allow.
    type Wanted = (String, u32);
    type Operation = Operation;

    const WORKFLOWS: u64 = 2;
    const HAS_MIN_HOLD: bool = false;

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
        Operation::new(name, vec![wanted.0.clone()], Some(wanted.1), identity, &self.ledger)
    }

    fn acquire(&self, locks: &Locks, operation: &Operation, _: &mut Rng) -> Acquire {
        locks.semaphore(operation.key(), operation.permits.unwrap()).acquire()
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
                return scene.ledger.violated(format!("the crowded row has lost a permit: {error}"));
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
