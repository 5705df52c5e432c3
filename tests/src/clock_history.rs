//! Histories of wrong clocks: some hosts are hours or seconds off, from their start or after a jump, and contend with hosts that are
//! right for keys, records and a rate. A seed determines each history, which runs in paused time. A ledger sees what each holder
//! believes, and when each run begins and ends.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use lambda_lock::embedded::{Host, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, ErrorKind, HandlerError, Idempotency, Lock, Locks};
use tokio::time::{sleep, timeout};

use crate::guarantee::{HOLDERS, ONCE, SERVED};
use crate::history::book::{Book, Page};
use crate::history::stage::{self, Network, Stage, Waiting, millis};
use crate::history::{Mutation, Outcome, counts};
use crate::request::{LEASE_END, Purpose};

/// How late a request can arrive.
const LATEST_ARRIVAL: Duration = Duration::from_secs(20);
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
    stage::play(seed, history(seed, mutation))
}

#[derive(Debug)]
struct Scene {
    stage: Stage,
    book: Arc<Book<Kept>>,
}

#[derive(Default)]
struct Kept {
    counts: Counts,
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

async fn history(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts> {
    let mut random = Rng::with_seed(seed);
    let stage = Stage::set(seed, &mut random, LATEST_ARRIVAL, mutation).await;
    let book = Arc::new(Book::new(stage.engine.clone()));
    let scene = Arc::new(Scene { stage, book });
    let workers: Vec<_> = (0..random.usize(3..=5))
        .map(|number| tokio::spawn(worker(Arc::clone(&scene), number, random.fork())))
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    scene.inspect(&mut random).await;
    let Page { journal, kept } = scene.book.take();
    Outcome { twisted: scene.stage.twisted(), ..journal.outcome(kept.counts) }
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
                scene.book.state().kept.ahead += 1;
            } else {
                host.set_clock_back(by);
            }
            scene.note(|kept| &mut kept.counts.jumped, &format!("the clock of worker {number} jumps by {by:?}"));
        }
        let name = format!("worker {number} step {step}");
        match random.u8(0..6) {
            0 if network == Network::Good => {
                let rate = locks.rate(RATE, 5, Duration::from_secs(1));
                match rate.pass_within(millis(&mut random, 0..=400)).await {
                    Ok(()) => scene.note(|kept| &mut kept.counts.passed, &format!("{name} passes")),
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
    fn host(&self, random: &mut Rng, network: Network) -> Host {
        self.stage.host(random, network, Observer(Arc::clone(&self.book)))
    }

    fn note(&self, count: impl FnOnce(&mut Kept) -> &mut usize, what: &str) {
        let mut page = self.book.state();
        *count(&mut page.kept) += 1;
        self.book.log(&mut page, what);
    }

    fn broke(&self, what: String) {
        self.book.broke(&mut self.book.state(), what);
    }

    fn refused(&self, name: &str, error: &Error) {
        let what = format!("{name} refused: {:?}", error.kind());
        match error.kind() {
            ErrorKind::ClockSkew => self.note(|kept| &mut kept.counts.found_wrong, &what),
            _ => self.note(|kept| &mut kept.counts.refused, &what),
        }
    }

    /// A host whose clock is ahead may put back the row of another such host, which then cannot put back what it replaced.
    fn blocked(&self, key: &str, why: &Error) {
        if self.book.state().kept.ahead <= 1 {
            self.broke(format!("{SERVED}: {key} is blocked: {why}"));
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
            Err(_) => return self.note(|kept| &mut kept.counts.dropped, &format!("{name} was dropped")),
        };
        self.note(|kept| &mut kept.counts.acquired, &format!("{name} acquired {keys:?}"));
        self.believes(name, &lock);
        sleep(LEASE.mul_f64(random.f64() * 1.2)).await;
        if random.bool() {
            match lock.renew(LEASE).await {
                Ok(()) => {
                    self.note(|kept| &mut kept.counts.renewed, &format!("{name} renewed"));
                    self.believes(name, &lock);
                }
                Err(error) => {
                    self.refused(name, &error);
                    if error.kind() == ErrorKind::ClockSkew && lock.is_valid() {
                        self.broke(format!("{HOLDERS}: {name} is valid after a renewal by a wrong clock"));
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
        let mut page = self.book.state();
        let mut broken = Vec::new();
        for key in lock.keys() {
            let holders = page.kept.holders.entry(key.clone()).or_default();
            let others = holders.iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(other, lock));
            if lock.is_valid() && others.filter(|other| other.is_valid()).count() > 0 {
                broken.push(format!("{HOLDERS}: {name} has {key} beside another holder"));
            }
            holders.push(Arc::downgrade(lock));
        }
        for what in broken {
            self.book.broke(&mut page, what);
        }
    }

    /// Runs the work of the record, if that has not been done.
    async fn begin(&self, name: &str, locks: &Locks, random: &mut Rng) {
        let time = millis(random, 0..=2500);
        let work: Idempotency<(), u32, HandlerError<Error>> =
            Idempotency::new(locks.clone(), OnMissingKey::Reject, |()| Some(RECORD.to_owned()))
                .window(WINDOW)
                .lease(LEASE);
        let (mut ended, called) = (None, self.book.engine.now());
        let outcome = work
            .run(&(), async |_| {
                self.begins(name);
                sleep(time).await;
                ended = Some(self.book.engine.now());
                Ok(1)
            })
            .await;
        match (outcome, ended) {
            (Ok(_), Some(ended)) => {
                let mut page = self.book.state();
                if page.kept.stored >= Some(ended) {
                    page.kept.completed = page.kept.completed.max(Some(ended));
                    self.book.log(&mut page, &format!("{name} has stored its result"));
                } else if page.kept.taken_by_mistake >= Some(called) {
                    // A request that arrives while a wrong clock has the record finds it lost.
                    self.book.log(&mut page, &format!("{name} has run, and stored nothing"));
                } else {
                    self.book.broke(&mut page, format!("{ONCE}: {name} has stored nothing"));
                }
            }
            (Ok(_), None) => self.note(|kept| &mut kept.counts.replayed, &format!("{name} got the result")),
            (Err(HandlerError::Lock(error)), _) => self.refused(name, &error),
            (Err(error), _) => self.broke(format!("{name} failed: {error:?}")),
        }
    }

    fn begins(&self, name: &str) {
        let (mut page, now) = (self.book.state(), self.book.engine.now());
        page.kept.counts.runs += 1;
        self.book.log(&mut page, &format!("{name} begins"));
        // The clocks that are right differ by the skew.
        if page.kept.completed.is_some_and(|ended| now + self.stage.clock_skew < ended + WINDOW) {
            self.book.broke(&mut page, format!("{ONCE}: {name} runs within the window"));
        }
    }

    /// When all requests have arrived and each lease has ended, everything is free for a clock that is right.
    async fn inspect(&self, random: &mut Rng) {
        stage::settle(LATEST_ARRIVAL).await;
        let locks = self.stage.locks(&self.host(random, Network::Good));
        for key in KEYS {
            match locks.acquire(key).lease(LEASE).wait(self.stage.slack()).await {
                Ok(lock) => drop(lock.release().await),
                Err(error) => self.blocked(key, &error),
            }
        }
        sleep(WINDOW).await;
        let refused = |error: &Error| matches!(error.kind(), ErrorKind::Held | ErrorKind::InProgress);
        if let Err(error) = locks.rate(RATE, 5, Duration::from_secs(1)).pass().await
            && refused(&error)
        {
            self.blocked(RATE, &error);
        }
        match locks.acquire(RECORD).lease(LEASE).wait(self.stage.slack()).await {
            Err(error) if refused(&error) => self.blocked(RECORD, &error),
            _ => {}
        }
    }
}

/// Counts the rows that come back, and sees when a result is stored.
#[derive(Debug)]
struct Observer(Arc<Book<Kept>>);

impl Intercept for Observer {
    fn answer(&self, operation: &str, request: &serde_json::Value, answer: &mut lambda_lock::embedded::Answer) {
        let (mut page, now) = (self.0.state(), self.0.engine.now());
        let key = request["Key"]["id"]["S"].as_str().unwrap_or_default();
        match (crate::request::purpose_of(operation, request), answer.status) {
            (Some(Purpose::PutBack), 200) => {
                page.kept.counts.put_back += 1;
                self.0.log(&mut page, "  put back");
            }
            (Some(Purpose::Complete), 200) => page.kept.stored = Some(now),
            (Some(Purpose::Acquire), 200) if key == RECORD && is_off(request, now) => {
                page.kept.taken_by_mistake = Some(now);
            }
            _ => {}
        }
    }
}

/// Whether the clock of the sender is off by more than the skew.
fn is_off(request: &serde_json::Value, now: SystemTime) -> bool {
    let own: u64 = request["ExpressionAttributeValues"][":now"]["N"].as_str().unwrap().parse().unwrap();
    own.abs_diff(crate::invocation::millis(now)) > 1000
}
