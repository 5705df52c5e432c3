//! Histories of locks: several hosts with wrong clocks and bad networks contend for a few keys, crash, overstay and
//! come back. A seed determines each history, which runs in paused time. A ledger sees every request as it is applied,
//! and every lock as its holder sees it. It reports at the end whether the guarantees held.

pub(crate) mod actor;
pub(crate) mod book;
mod elsewhere;
pub(crate) mod frame;
pub(crate) mod holders;
pub(crate) mod identities;
mod ledger;
pub mod liveness;
pub(crate) mod mutation;
pub(crate) mod operation;
pub(crate) mod operator;
pub(crate) mod rows;
pub(crate) mod stage;
pub(crate) mod twist;
pub(crate) mod workflow;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::{Acquire, Locks};
use tokio::time::sleep;

use actor::{Kind, Plan, Report as _};
use frame::{History, Set};
use ledger::{Inside, Kept, Operation};
pub use mutation::Mutation;
use stage::Stage;
pub use twist::Twisted;

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
    frame::run::<Scene>(seed, mutation)
}

type Scene = Set<Kept, Own>;

struct Own {
    keys: u64,
}

impl History for Scene {
    fn set(_: u64, stage: Stage, random: &mut Rng) -> Self {
        Self::new(stage, Kept::default(), Own { keys: random.u64(1..=3) })
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        actor::worker(scene, number, random)
    }

    async fn sweep(&self) {
        self.ledger.sweep(Duration::from_secs(5), |counts| &mut counts.swept).await;
    }

    fn beside(seed: u64, scene: &Arc<Self>) -> impl Future<Output = ()> {
        let executions = elsewhere::begin(seed, scene);
        let workflows = workflow::begin(seed, scene);
        async move {
            operator::operate(seed, &**scene, scene.keys()).await;
            workflows.await;
            executions.await;
        }
    }

    async fn serve_last(&self, random: &mut Rng) {
        actor::serve_last_waiters(self, random).await;
    }

    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        actor::inspect(&**scene, random).await;
        scene.ledger.check_crashes();
    }
}

impl Kind for Scene {
    type Wanted = String;
    type Operation = Operation;

    const WORKFLOWS: u64 = 3;
    const RENEWS_DURING_RELEASE: bool = true;

    fn draw(&self, random: &mut Rng) -> String {
        format!("key {}", random.u64(0..self.keys))
    }

    fn alone(&self) -> String {
        "key alone".to_owned()
    }

    fn all(&self) -> Vec<(String, Option<String>)> {
        self.keys().into_iter().map(|key| (key, None)).collect()
    }

    fn operation(&self, name: &str, key: &String, identity: Option<&str>, _: &mut Rng) -> Operation {
        Operation::new(name, vec![key.clone()], None, identity, &self.ledger)
    }

    fn acquire(&self, locks: &Locks, operation: &Operation, _: &mut Rng) -> Acquire {
        locks.acquire(operation.key())
    }

    async fn work(&self, operation: &Operation, acquire: Acquire, plan: Plan<'_>, mut random: Rng) {
        if random.u8(0..4) == 0 {
            return run_under(operation, acquire, plan.min_hold, self.stage.largest_step(), random).await;
        }
        actor::hold(self, operation, acquire, plan, random).await;
    }
}

impl Scene {
    fn keys(&self) -> Vec<String> {
        (0..self.keys).map(|number| format!("key {number}")).collect()
    }
}

/// Acquires the key and holds it with `run`, whose body must not outlive the lease.
/// While it sleeps, the clock can step by so much.
async fn run_under(operation: &Operation, acquire: Acquire, min_hold: Duration, step: Duration, mut random: Rng) {
    let steps = random.u32(0..150);
    let ran = acquire.run(async |lock| {
        let inside = Inside::enter(operation, lock, min_hold);
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
        Ok(_) => operation.ledger.note(&format!("{} completed", operation.name)),
        Err(error) if error.is_lost() => ledger::cancelled(operation),
        Err(error) => operation.refused(&error),
    }
}
