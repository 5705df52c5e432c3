//! Histories of several keys: hosts with wrong clocks and bad networks acquire overlapping sets of a few keys, and now and
//! then a lock on one of them. Some transactions conflict. In half of the histories, DynamoDB has forgotten the tokens of
//! transactions when they are repeated. A ledger sees every request as it is applied, and every set as its holder sees it.

mod ledger;
mod mutations;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::{Acquire, Locks};

use crate::history::actor::{self, Kind};
use crate::history::frame::{self, History, Set};
use crate::history::operator::operate;
use crate::history::stage::{Stage, Waiting};
use crate::history::{Mutation, Outcome, counts, workflow};
use ledger::{Kept, Operation};
pub use mutations::MUTATIONS;

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
    frame::run::<Scene>(seed, mutation)
}

type Scene = Set<Kept, Own>;

struct Own {
    keys: usize,
}

impl History for Scene {
    fn set(_: u64, stage: Stage, random: &mut Rng) -> Self {
        Self::new(stage, Kept::draw(random.fork()), Own { keys: random.usize(2..=4) })
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        actor::worker(scene, number, random)
    }

    async fn sweep(&self) {
        self.ledger.sweep(Duration::from_secs(5), |counts| &mut counts.swept).await;
    }

    fn beside(seed: u64, scene: &Arc<Self>) -> impl Future<Output = ()> {
        let workflows = workflow::begin(seed, scene);
        async move {
            operate(seed, &**scene, scene.keys()).await;
            workflows.await;
        }
    }

    async fn serve_last(&self, random: &mut Rng) {
        actor::serve_last_waiters(self, random).await;
    }

    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        actor::inspect(&**scene, random).await;
    }
}

impl Kind for Scene {
    type Wanted = Vec<String>;
    type Operation = Operation;

    const WORKFLOWS: u64 = 2;
    const HAS_MIN_HOLD: bool = false;
    /// Conflicts are repeated.
    const PATIENCE: Duration = Duration::from_secs(5);

    fn draw(&self, random: &mut Rng) -> Vec<String> {
        let mut keys = self.keys();
        random.shuffle(&mut keys);
        keys.truncate(if random.u8(0..4) == 0 { 1 } else { random.usize(1..=3) });
        keys
    }

    fn alone(&self) -> Vec<String> {
        ["key alone", "key alone, too"].map(str::to_owned).into()
    }

    fn all(&self) -> Vec<(Vec<String>, Option<String>)> {
        vec![(self.keys(), None)]
    }

    /// Some attempts of a workflow are for some of its keys only.
    fn operation(&self, name: &str, keys: &Vec<String>, identity: Option<&str>, random: &mut Rng) -> Operation {
        let is_part = identity.is_some() && random.u8(0..4) == 0;
        let most = if is_part { random.usize(1..=keys.len()) } else { keys.len() };
        let operation = Operation::new(name, keys[..most].to_vec(), None, identity, &self.ledger);
        self.ledger.state().wanted.insert(operation.name.clone(), operation.keys.clone());
        operation
    }

    fn acquire(&self, locks: &Locks, operation: &Operation, random: &mut Rng) -> Acquire {
        match &operation.keys[..] {
            [key] if random.bool() => locks.acquire(key),
            keys => locks.acquire_all(keys),
        }
    }

    /// Only waiters in turn reserve their keys, and few of them do.
    fn waiting(random: &mut Rng) -> Waiting {
        if random.u8(0..3) == 0 { Waiting::Backoff } else { Waiting::InTurn }
    }
}

impl Scene {
    fn keys(&self) -> Vec<String> {
        (0..self.keys).map(|key| format!("key {key}")).collect()
    }
}
