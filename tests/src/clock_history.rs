//! Histories of wrong clocks: some hosts are hours or seconds off, from their start or after a jump, and contend with hosts that are
//! right for keys, records and a rate. A seed determines each history, which runs in paused time. A ledger sees what each holder
//! believes, and when each run begins and ends.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use lambda_lock::embedded::Answer;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, ErrorKind, HandlerError, Idempotency, Lock, Locks};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::guarantee::{HOLDERS, ONCE, SERVED};
use crate::history::book::{Book, Observe};
use crate::history::frame::{self, History, Set};
use crate::history::stage::{Network, Stage, Waiting, millis};
use crate::history::{Mutation, Outcome, counts};
use crate::request::{LEASE_END, Purpose, purpose_of};

/// The lease of all holders. If the answer to an acquire by a wrong clock gets lost, the key stays held for as long, so a longer
/// lease of another holder would not be protected.
const LEASE: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_secs(40);
const KEYS: [&str; 2] = ["key 0", "key 1"];
const RECORD: &str = "record";
const RATE: &str = "rate";
/// A clock can be as far off and not be found: whole seconds, and the time of a request.
const UNSEEN: u64 = 5;

counts! {
    /// Locks acquired.
    acquired,
    /// Leases renewed.
    renewed,
    /// Runs of the work.
    runs,
    /// Results that came from another run.
    replayed,
    /// Calls of the rate that passed.
    passed,
    /// Clocks that jumped.
    jumped,
    /// Operations that failed because of a wrong clock.
    found_wrong,
    /// Acquires that were dropped.
    dropped,
    /// Operations that were refused for another reason.
    refused,
    /// Requests that put back what a wrong clock had replaced.
    put_back,
}

/// The mistakes, and the violation that each causes.
pub const MUTATIONS: [Mutation; 4] = [
    Mutation {
        name: "no clock is checked, and two have a key",
        breaks: HOLDERS,
        is_common: true,
        answer: |_, answer| answer.date = None,
        ..Mutation::NONE
    },
    Mutation {
        name: "no clock is checked, and a record is lost",
        breaks: ONCE,
        is_common: true,
        answer: |_, answer| answer.date = None,
        ..Mutation::NONE
    },
    Mutation {
        name: "no clock is checked, and a key is blocked",
        breaks: SERVED,
        is_common: true,
        answer: |_, answer| answer.date = None,
        ..Mutation::NONE
    },
    Mutation {
        name: "what a wrong clock has replaced is freed",
        breaks: HOLDERS,
        request: |request| {
            let put_back = request.update_for(Purpose::PutBack);
            if let Some(put_back) = put_back.filter(|put_back| put_back.sets(LEASE_END).is_some()) {
                put_back.change(LEASE_END, |_| 1);
            }
        },
        ..Mutation::NONE
    },
];

/// Runs the history of a seed, with the protocol or with a mutation of it.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts> {
    frame::run::<Scene>(seed, mutation)
}

type Scene = Set<Kept>;
type Ledger = Book<Kept>;

#[derive(Default)]
struct Kept {
    /// By key.
    holders: HashMap<String, Vec<Weak<Lock>>>,
    /// When the last run has ended whose result was stored.
    completed: Option<SystemTime>,
    /// How many hosts have a clock that jumped ahead.
    ahead: usize,
    /// When a wrong clock took the record last.
    taken_by_mistake: Option<SystemTime>,
    /// When a result was stored last.
    stored: Option<SystemTime>,
}

impl History for Scene {
    const LATEST_ARRIVAL: Duration = Duration::from_secs(20);

    fn set(_: u64, stage: Stage, _: &mut Rng) -> Self {
        Self::new(stage, Kept::default(), ())
    }

    fn workers(&self) -> RangeInclusive<usize> {
        3..=5
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        worker(scene, number, random)
    }

    /// When all requests have arrived and each lease has ended, everything is free for a clock that is right.
    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        let locks = scene.stage.locks(&scene.host(random, Network::Good));
        for key in KEYS {
            match locks.acquire(key).lease(LEASE).wait(scene.stage.slack()).await {
                Ok(lock) => drop(lock.release().await),
                Err(error) => scene.blocked(key, &error),
            }
        }
        sleep(WINDOW).await;
        let refused = |error: &Error| matches!(error.kind(), ErrorKind::Held | ErrorKind::InProgress);
        if let Err(error) = locks.rate(RATE, 5, Duration::from_secs(1)).pass().await
            && refused(&error)
        {
            scene.blocked(RATE, &error);
        }
        match locks.acquire(RECORD).lease(LEASE).wait(scene.stage.slack()).await {
            Err(error) if refused(&error) => scene.blocked(RECORD, &error),
            _ => {}
        }
    }
}

/// A host whose clock may be wrong.
async fn worker(scene: Arc<Scene>, number: usize, mut random: Rng) {
    // Without a lost answer, a result or a call that a wrong clock has taken always comes back.
    let is_good = random.bool();
    let steps = random.usize(6..=14);
    // The first host is right.
    let jumps_at = (number > 0 && random.u8(0..3) > 0).then(|| if random.bool() { 0 } else { random.usize(1..steps) });
    let network = match jumps_at {
        _ if is_good => Network::Good,
        None => Network::Bad,
        // A key that a copy of its answered request takes stays held until the lease's end by its clock: the protocol says so.
        Some(_) => Network::Once,
    };
    let host = scene.host(&mut random, network);
    let locks = scene.stage.locks(&host);
    for step in 0..steps {
        sleep(millis(&mut random, 0..=1500)).await;
        if jumps_at == Some(step) {
            let by = wrong(&mut random);
            if random.bool() {
                host.set_clock_forward(by);
                scene.ledger.state().ahead += 1;
            } else {
                host.set_clock_back(by);
            }
            scene.note(|counts| &mut counts.jumped, &format!("the clock of worker {number} jumps by {by:?}"));
        }
        let name = format!("worker {number} step {step}");
        match random.u8(0..6) {
            0 if network == Network::Good => {
                let rate = locks.rate(RATE, 5, Duration::from_secs(1));
                match rate.pass_within(millis(&mut random, 0..=400)).await {
                    Ok(()) => scene.note(|counts| &mut counts.passed, &format!("{name} passes")),
                    Err(error) => scene.refused(&name, &error),
                }
            }
            1 | 2 if network == Network::Good => scene.begin(&name, &locks, &mut random).await,
            3 => scene.hold(&name, &locks, &KEYS, &mut random).await,
            _ => scene.hold(&name, &locks, &KEYS[random.usize(0..2)..][..1], &mut random).await,
        }
    }
}

/// Between a few seconds and two days.
fn wrong(random: &mut Rng) -> Duration {
    Duration::from_secs(match random.u8(0..3) {
        0 => random.u64(UNSEEN..=20),
        1 => random.u64(20..=3600),
        _ => random.u64(3600..=48 * 3600),
    })
}

impl Scene {
    fn note(&self, count: impl FnOnce(&mut Counts) -> &mut usize, what: &str) {
        let mut page = self.ledger.state();
        *count(&mut page.counts) += 1;
        self.ledger.log(&mut page, what);
    }

    fn refused(&self, name: &str, error: &Error) {
        let what = format!("{name} refused: {:?}", error.kind());
        match error.kind() {
            ErrorKind::ClockSkew => self.note(|counts| &mut counts.found_wrong, &what),
            _ => self.note(|counts| &mut counts.refused, &what),
        }
    }

    /// A host whose clock is ahead may put back the row of another such host, which then cannot put back what it replaced.
    fn blocked(&self, key: &str, why: &Error) {
        if self.ledger.state().ahead <= 1 {
            self.ledger.violated(format!("{SERVED}: {key} is blocked: {why}"));
        }
    }

    /// Acquires these keys, renews the lease sometimes, and releases them.
    async fn hold(&self, name: &str, locks: &Locks, keys: &[&str], random: &mut Rng) {
        let acquire = if let [key] = keys { locks.acquire(*key) } else { locks.acquire_all(keys.iter().copied()) };
        let budget = if random.bool() { millis(random, 0..=6000) } else { Duration::ZERO };
        let acquire = acquire.lease(LEASE).wait(Waiting::draw(random).up_to(budget)).into_future();
        let is_dropped = random.u8(0..6) == 0;
        let limit = if is_dropped { millis(random, 0..=100) } else { Duration::MAX };
        let lock = match timeout(limit, acquire).await {
            Ok(Ok(lock)) => Arc::new(lock),
            Ok(Err(error)) => return self.refused(name, &error),
            Err(_) => return self.note(|counts| &mut counts.dropped, &format!("{name} was dropped")),
        };
        self.note(|counts| &mut counts.acquired, &format!("{name} acquired {keys:?}"));
        self.believes(name, &lock);
        sleep(LEASE.mul_f64(random.f64() * 1.2)).await;
        if random.bool() {
            match lock.renew(LEASE).await {
                Ok(()) => {
                    self.note(|counts| &mut counts.renewed, &format!("{name} renewed"));
                    self.believes(name, &lock);
                }
                Err(error) => {
                    self.refused(name, &error);
                    if error.kind() == ErrorKind::ClockSkew && lock.is_valid() {
                        self.ledger.violated(format!("{HOLDERS}: {name} is valid after a renewal by a wrong clock"));
                    }
                }
            }
            sleep(LEASE.mul_f64(random.f64())).await;
        }
        if let Err(error) = lock.release().await {
            self.refused(name, &error);
        }
    }

    /// From now on, this holder considers itself valid: nobody else may.
    fn believes(&self, name: &str, lock: &Arc<Lock>) {
        let mut page = self.ledger.state();
        let mut broken = Vec::new();
        for key in lock.keys() {
            let holders = page.holders.entry(key.clone()).or_default();
            let others = holders.iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(other, lock));
            if lock.is_valid() && others.filter(|other| other.is_valid()).count() > 0 {
                broken.push(format!("{HOLDERS}: {name} has {key} beside another holder"));
            }
            holders.push(Arc::downgrade(lock));
        }
        for what in broken {
            self.ledger.broke(&mut page, what);
        }
    }

    /// Runs the work of the record, if that has not been done.
    async fn begin(&self, name: &str, locks: &Locks, random: &mut Rng) {
        let time = millis(random, 0..=2500);
        let work: Idempotency<(), u32, HandlerError<Error>> =
            Idempotency::new(locks.clone(), OnMissingKey::Reject, |()| Some(RECORD.to_owned()))
                .window(WINDOW)
                .lease(LEASE);
        let (mut ended, called) = (None, self.ledger.engine.now());
        let outcome = work
            .run(&(), async |_| {
                self.begins(name);
                sleep(time).await;
                ended = Some(self.ledger.engine.now());
                Ok(1)
            })
            .await;
        match (outcome, ended) {
            (Ok(_), Some(ended)) => {
                let mut page = self.ledger.state();
                if page.stored >= Some(ended) {
                    page.completed = page.completed.max(Some(ended));
                    self.ledger.log(&mut page, &format!("{name} has stored its result"));
                } else if page.taken_by_mistake >= Some(called) {
                    // A request that arrives while a wrong clock has the record finds it lost.
                    self.ledger.log(&mut page, &format!("{name} has run, and stored nothing"));
                } else {
                    self.ledger.broke(&mut page, format!("{ONCE}: {name} has stored nothing"));
                }
            }
            (Ok(_), None) => self.note(|counts| &mut counts.replayed, &format!("{name} got the result")),
            (Err(HandlerError::Lock(error)), _) => self.refused(name, &error),
            (Err(error), _) => self.ledger.violated(format!("{name} failed: {error:?}")),
        }
    }

    fn begins(&self, name: &str) {
        let (mut page, now) = (self.ledger.state(), self.ledger.engine.now());
        page.counts.runs += 1;
        self.ledger.log(&mut page, &format!("{name} begins"));
        // The clocks that are right differ by the skew.
        if page.completed.is_some_and(|ended| now + self.stage.clock_skew < ended + WINDOW) {
            self.ledger.broke(&mut page, format!("{ONCE}: {name} runs within the window"));
        }
    }
}

/// Counts the rows that come back, and sees when a result is stored.
impl Observe for Kept {
    type Counts = Counts;

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut Answer) {
        let (mut page, now) = (ledger.state(), ledger.engine.now());
        let key = request["Key"]["id"]["S"].as_str().unwrap_or_default();
        match (purpose_of(operation, request), answer.status) {
            (Some(Purpose::PutBack), 200) => {
                page.counts.put_back += 1;
                ledger.log(&mut page, "  put back");
            }
            (Some(Purpose::Complete), 200) => page.stored = Some(now),
            (Some(Purpose::Acquire), 200) if key == RECORD && is_off(request, now) => {
                page.taken_by_mistake = Some(now);
            }
            _ => {}
        }
    }
}

/// Whether the clock of the sender is off by more than the skew.
fn is_off(request: &Value, now: SystemTime) -> bool {
    let own: u64 = request["ExpressionAttributeValues"][":now"]["N"].as_str().unwrap().parse().unwrap();
    own.abs_diff(crate::invocation::millis(now)) > 1000
}
