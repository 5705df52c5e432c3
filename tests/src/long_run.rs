//! Long runs: thousands of operations on one row, over a network that loses and repeats requests. The row stays small, and
//! everything that is asked of it is answered.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, Idempotency, Lock, Locks, Run};
use serde_json::Value;
use tokio::time::sleep;

use crate::history::Mutation;
use crate::history::liveness::{self, LARGEST_ROW};
use crate::history::stage::{self, Network, Stage, Waiting, millis};

const KEY: &str = "one row";
const LEASE: Duration = Duration::from_secs(10);
/// The window of a record.
const WINDOW: Duration = Duration::from_secs(5);
const PERMITS: u32 = 5;
const PERMIT_BYTES: usize = 300;
/// The row is read after so many operations.
const READ_EVERY: usize = 50;

/// What uses the row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum User {
    /// Locks, sets of one key, records and identities.
    Key,
    /// The permits of a semaphore.
    Semaphore,
}

/// What a long run has seen.
#[derive(Debug, Default)]
pub struct Report {
    /// Operations that had what they asked for.
    pub operations: usize,
    /// Operations that ended with an error, by its kind.
    pub errors: BTreeMap<String, usize>,
    /// The size of the row in bytes at most.
    pub largest: usize,
    /// The number of its attributes at most.
    pub attributes: usize,
    /// What was wrong.
    pub violations: Vec<String>,
}

/// Runs so many operations on one row, and now and then one more beside it.
#[must_use]
pub fn run(user: User, operations: usize, mutation: Option<Mutation>) -> Report {
    // The generators of a seed without twists.
    let seed = 1;
    stage::play(seed, run_on_stage(seed, user, operations, mutation))
}

/// Watches nothing: the rows say what happened.
#[derive(Debug)]
struct Unobserved;

impl Intercept for Unobserved {
    fn answer(&self, _: &str, _: &Value, _: &mut Answer) {}
}

async fn run_on_stage(seed: u64, user: User, operations: usize, mutation: Option<Mutation>) -> Report {
    let mut random = Rng::with_seed(seed);
    let stage = Stage::set(seed, &mut random, Duration::from_secs(20), mutation).await.without_twists();
    let hosts = [(); 3].map(|()| stage.host(&mut random, Network::Bad, Unobserved));
    let locks = hosts.map(|host| stage.locks(&host));
    let mut report = Report::default();
    for number in 1..=operations {
        let (one, other) = (&locks[random.usize(0..3)], &locks[random.usize(0..3)]);
        // Now and then two at once.
        let both = async |random: &mut Rng| match random.u8(0..8) {
            0 => {
                let (one, other) = tokio::join!(user.operate(one, random.fork()), user.operate(other, random.fork()));
                vec![one, other]
            }
            _ => vec![user.operate(one, random.fork()).await],
        };
        for operation in both(&mut random).await {
            match operation {
                Ok(()) => report.operations += 1,
                Err(error) => *report.errors.entry(format!("{:?}", error.kind())).or_default() += 1,
            }
        }
        if number % READ_EVERY == 0 {
            report.read(&stage, user).await;
        }
        sleep(millis(&mut random, 0..=50)).await;
    }
    report.read(&stage, user).await;
    report
}

impl Report {
    async fn read(&mut self, stage: &Stage, user: User) {
        let most = match user {
            User::Key => LARGEST_ROW,
            User::Semaphore => LARGEST_ROW + PERMITS as usize * PERMIT_BYTES,
        };
        self.violations.extend(liveness::inspect(&stage.engine, |_| most).await);
        for row in liveness::rows(&stage.engine).await {
            self.largest = self.largest.max(liveness::size(&row));
            self.attributes = self.attributes.max(row.len());
        }
    }
}

impl User {
    async fn operate(self, locks: &Locks, mut random: Rng) -> Result<(), Error> {
        let wait = Waiting::draw(&mut random).up_to(Duration::from_mins(1));
        let acquire = || {
            let acquire = match self {
                Self::Key => locks.acquire(KEY),
                Self::Semaphore => locks.semaphore(KEY, PERMITS).acquire(),
            };
            acquire.lease(LEASE).wait(wait)
        };
        let held = match random.u8(0..20) {
            0 if self == Self::Key => return run_once(locks.clone(), wait).await,
            1 | 2 if self == Self::Key => locks.acquire_all([KEY]).lease(LEASE).wait(wait).await?,
            3..=6 => {
                let identity = format!("execution {}", random.u32(..));
                let first = acquire().identity(&identity).await?;
                let (next, fence) = (acquire().identity(&identity), first.fence());
                first.keep();
                // The clock of the next acquire is later.
                sleep(Duration::from_millis(2)).await;
                if random.bool() { next.take_over().await? } else { next.take_over_from(fence).await? }
            }
            _ => acquire().await?,
        };
        sleep(millis(&mut random, 0..=20)).await;
        release(held, random).await
    }
}

async fn release(held: Lock, mut random: Rng) -> Result<(), Error> {
    match random.u8(0..10) {
        0 | 1 => {
            held.renew(LEASE).await?;
            held.release().await
        }
        2 => {
            drop(held);
            Ok(())
        }
        _ => held.release().await,
    }
}

/// Runs idempotent work, whose record has the row until its window ends.
async fn run_once(locks: Locks, wait: lambda_lock::Wait) -> Result<(), Error> {
    let of = |order: &&str| Some((*order).to_owned());
    let orders = Idempotency::new(locks, OnMissingKey::Reject, of).prefix("").window(WINDOW).lease(LEASE).wait(wait);
    let ran = orders.run(&KEY, async |_: &Run| Ok::<_, Infallible>(1)).await;
    sleep(WINDOW).await;
    match ran {
        Err(lambda_lock::HandlerError::Lock(error)) => Err(error),
        _ => Ok(()),
    }
}
