//! A process that works for a while on one kind of lock, and writes down what it believes.

mod hold;
mod identity;
mod probe;
mod rate;
mod rebuild;
mod record;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use clap::{Args, ValueEnum};
use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::{Error, Lock, Locks, Rate};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::clocks;
use crate::event::{Log, What};

/// The kinds, each with its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Locks,
    Sets,
    Permits,
    Identities,
    Records,
    Queue,
    Rates,
    Rebuilds,
    /// After all others have ended: everything must be free.
    Probe,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().unwrap().get_name())
    }
}

/// The longest lease of any operation. A holder that is gone blocks no one for longer, except for the clock skew.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_millis(1500);
/// The keys of locks, of sets, and of executions.
pub(crate) const LOCKS: u64 = 12;
pub(crate) const SETS: u64 = 10;
pub(crate) const EXECUTIONS: u64 = 6;
/// The semaphores, and how many permits each has.
pub(crate) const PERMITS: [(&str, u32); 3] = [("permit-0", 2), ("permit-1", 3), ("permit-2", 5)];
/// The rates: how many calls in which period, and how many may come at once.
pub(crate) const RATES: [(&str, u32, Duration, u32); 2] =
    [("rate-0", 10, Duration::from_secs(1), 1), ("rate-1", 10, Duration::from_millis(1500), 3)];

#[derive(Args, Clone, Debug)]
pub(crate) struct Settings {
    #[arg(long)]
    pub(crate) kind: Kind,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) seed: u64,
    /// The folder of the files.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// The table of effects.
    #[arg(long)]
    pub(crate) effects: String,
    /// How many operations are in progress at a time.
    #[arg(long)]
    pub(crate) tasks: u64,
    /// How many holds of a hundred outlast their lease.
    #[arg(long)]
    pub(crate) overruns: u8,
    /// How many holds of a hundred are renewed.
    #[arg(long)]
    pub(crate) renewals: u8,
    /// The true time at which the process ends.
    #[arg(long)]
    pub(crate) until: u64,
}

#[derive(Debug)]
struct Worker {
    settings: Settings,
    log: Log,
    locks: Locks,
    rates: Vec<(&'static str, Rate)>,
    client: Client,
    next_op: AtomicU64,
}

/// Runs until the end. The settings of the locks are in the environment, as for a function.
pub(crate) async fn run(settings: Settings) {
    // Also if it is stopped at that time.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let log = Log::open(&settings.folder.join(format!("{}.jsonl", settings.name)));
    let locks = Locks::from_env().await.unwrap();
    let client = locks.client().clone();
    let rates = rate::rates(&locks);
    let worker = Arc::new(Worker { log, locks, rates, client, next_op: AtomicU64::new(0), settings });
    if worker.settings.kind == Kind::Probe {
        return worker.probe().await;
    }
    join_all((0..worker.settings.tasks).map(|task| {
        let random = Rng::with_seed(worker.settings.seed.wrapping_mul(1009).wrapping_add(task));
        Arc::clone(&worker).work(random)
    }))
    .await;
}

impl Worker {
    async fn work(self: Arc<Self>, mut random: Rng) {
        while clocks::now() < self.settings.until {
            match self.settings.kind {
                Kind::Records => Box::pin(self.run_once(&mut random)).await,
                Kind::Queue => Box::pin(Arc::clone(&self).deliver(&mut random)).await,
                Kind::Rates => Box::pin(self.call(&mut random)).await,
                Kind::Rebuilds => Box::pin(self.rebuild(&mut random)).await,
                Kind::Identities => Box::pin(self.work_on_execution(&mut random)).await,
                _ => Box::pin(self.lock_and_work(&mut random)).await,
            }
        }
    }

    fn op(&self) -> u64 {
        self.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// The name of an operation, which the row has as its holder.
    fn holder(&self, op: u64) -> String {
        format!("{}.{op}", self.settings.name)
    }

    fn note(&self, op: u64, what: What) {
        self.log.note(op, what);
    }

    /// Writes down what came of an acquire.
    fn answered(&self, op: u64, answer: Result<Lock, Error>) -> Option<Lock> {
        match &answer {
            Ok(held) => self.note(op, hold::has(held)),
            Err(error) => self.failed(op, error),
        }
        answer.ok()
    }

    fn failed(&self, op: u64, error: &Error) {
        self.refused(op, error);
        self.note(op, What::Failed { why: error.kind().to_string() });
    }

    /// Writes down who refuses this.
    fn refused(&self, op: u64, error: &Error) {
        for (key, holder) in error.holders() {
            let permits = if holder.is_semaphore() { holder.permits() } else { std::slice::from_ref(holder) };
            for holder in permits {
                let (by, fence) = (holder.name().map(str::to_owned), holder.fence());
                self.note(op, What::Refused { key: key.to_owned(), by, fence });
            }
        }
    }
}

fn draw(random: &mut Rng, millis: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(random.u64(millis))
}
