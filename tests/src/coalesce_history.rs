//! Histories of coalescing: invocations on hosts with wrong clocks and bad networks share a few keys. An invocation that is
//! refused, some of them after a wait, leaves its work to the holder, which runs once more. An invocation that crashes or fails
//! is retried, as Lambda does, some with an identity that takes its lock over, and an operator frees keys. A seed determines
//! each history, which runs in paused time. A ledger sees every request as it is applied, and every run as it begins and ends.

mod mutations;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::{Answer, Host};
use lambda_lock::{Backoff, Error, ErrorKind, Holder, Lock, Locks, Wait};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::guarantee::{AGAIN, READABLE};
use crate::history::book::{Book, Observe};
use crate::history::frame::{self, History, Set};
use crate::history::operator::{Judge, operate};
use crate::history::stage::{Network, Stage, millis};
use crate::history::{Mutation, Outcome, counts};
use crate::request::{ASKED, Purpose, Request};
pub use mutations::MUTATIONS;

const LEASE: Duration = Duration::from_secs(5);
/// How often an invocation looks for another holder.
const TRIES: usize = 3;
/// Mixed into the seed of a source, so that its other draws do not depend on the waits.
const OWN_SEED: u64 = 0x77_6169_7473;

counts! {
    /// Runs that began.
    runs,
    /// Invocations that left their work to a holder.
    left,
    /// Runs of them that followed because work was left.
    further,
    /// Invocations that found that the holder had gone.
    gone,
    /// Invocations that crashed or failed, and were retried.
    retried,
    /// Runs that lost their lock.
    lost,
    /// Locks that were taken over, with the work that was left to them.
    taken_over,
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
    const LATEST_ARRIVAL: Duration = Duration::from_mins(1);

    fn set(_: u64, stage: Stage, random: &mut Rng) -> Self {
        Self::new(stage, Kept::default(), Own { keys: random.usize(1..=2) })
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        source(scene, number, random)
    }

    async fn beside(seed: u64, scene: &Arc<Self>) {
        operate(seed, &**scene, (0..scene.keys).map(|number| format!("key {number}")).collect()).await;
    }

    async fn inspect(scene: &Arc<Self>, _: &mut Rng) {
        scene.ledger.check();
    }
}

impl Scene {
    fn function(&self, random: &mut Rng) -> (Host, Locks) {
        let network = Network::draw(random);
        let host = self.host(random, network);
        let locks = self.stage.locks(&host);
        (host, locks)
    }
}

/// A source of events: one invocation after another, each until it has succeeded.
async fn source(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let mut host = scene.function(&mut random);
    let mut own = Rng::with_seed(random.clone().u64(..) ^ OWN_SEED);
    for event in 0..random.usize(4..=10) {
        sleep(millis(&mut random, 0..=1500)).await;
        let (key, name) = (format!("key {}", random.usize(0..scene.keys)), format!("source {number} event {event}"));
        let earlier = own.bool().then(AtomicU64::default);
        loop {
            // Some overstay the lease.
            let work = if random.u8(0..7) == 0 { 4500..=9000 } else { 50..=1200 };
            let (work, wait) = (millis(&mut random, work), own.bool().then(|| short_wait(&mut own)));
            let invocation = Invocation { scene: &scene, key: &key, name: &name, earlier: &earlier, work, wait };
            let crashes = random.u8(0..6) == 0 || earlier.is_some() && own.u8(0..3) == 0;
            let limit = if crashes { millis(&mut random, 0..=2500) } else { Duration::from_mins(5) };
            match timeout(limit, invocation.handle(&host.1)).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => {
                    host.0.crash();
                    host = scene.function(&mut random);
                }
            }
            scene.ledger.retried(&name);
            sleep(millis(&mut random, 500..=3000)).await;
        }
    }
}

/// A wait that often ends before the key is free, after one attempt or several.
fn short_wait(own: &mut Rng) -> Wait {
    let backoff = Backoff::new().base(millis(own, 5..=100)).cap(Duration::from_millis(200));
    let wait = if own.bool() { Wait::in_turn() } else { Wait::backoff(backoff) };
    wait.up_to(millis(own, 0..=800)).max_attempts(own.u32(1..=5))
}

struct Invocation<'a> {
    scene: &'a Scene,
    key: &'a str,
    name: &'a str,
    /// With an identity, the fence of the last try.
    earlier: &'a Option<AtomicU64>,
    work: Duration,
    wait: Option<Wait>,
}

impl Invocation<'_> {
    async fn acquire(&self, locks: &Locks) -> Result<Lock, Error> {
        let acquire = || locks.acquire(self.key).lease(LEASE).holder(self.name);
        let acquire = match self.earlier {
            Some(fence) => {
                let taken = acquire().identity(self.name).take_over_from(fence.load(Ordering::Relaxed)).await;
                if taken.as_ref().err().is_none_or(|error| !error.is_lost()) {
                    return taken;
                }
                acquire().identity(self.name)
            }
            None => acquire(),
        };
        match self.wait {
            Some(wait) => acquire.wait(wait).await,
            None => acquire.await,
        }
    }

    /// Does the work of the event, and once more for each time that others have left theirs, or leaves it to the holder. Returns
    /// `false` if it has to be retried.
    async fn handle(&self, locks: &Locks) -> bool {
        let ledger = &self.scene.ledger;
        let (mut has_run, mut tries) = (false, 0);
        while tries < TRIES {
            let error = match self.acquire(locks).await {
                Ok(lock) => {
                    if has_run {
                        ledger.further();
                    }
                    if let Some(is_done) = self.run(&lock).await {
                        return is_done;
                    }
                    has_run = true;
                    // Others may come in between.
                    sleep(self.work / 6).await;
                    continue;
                }
                Err(error) => error,
            };
            let Some(holder) = error.holder().filter(|holder| error.is_held() && holder.name() != Some(self.name))
            else {
                ledger.failed(&error);
                return false;
            };
            match locks.coalesce(self.key, holder).await {
                Ok(true) => {
                    ledger.left(self, holder.fence().unwrap());
                    return true;
                }
                Ok(false) => {
                    ledger.gone(self);
                    tries += 1;
                }
                Err(error) => {
                    ledger.failed(&error);
                    return false;
                }
            }
        }
        false
    }

    /// Runs the work under the lock. Returns nothing if it has to run once more.
    async fn run(&self, lock: &Lock) -> Option<bool> {
        let ledger = &self.scene.ledger;
        if let Some(earlier) = self.earlier {
            earlier.store(lock.fence(), Ordering::Relaxed);
        }
        ledger.begun(self, lock.fence());
        sleep(self.work).await;
        let released = lock.release_coalescing().await;
        ledger.ended(self, lock.fence(), &released);
        match released {
            Ok(true) => None,
            Ok(false) => Some(true),
            // An operator may have freed the key of a holder that was asked.
            Err(error) if error.is_lost() => None,
            Err(_) => Some(false),
        }
    }
}

/// Records what was left to whom, and which runs have begun.
type Ledger = Book<Kept>;

#[derive(Default)]
struct Kept {
    /// By key: the largest fence of a run that has begun.
    begun: HashMap<String, u64>,
    /// Keys, fences of the holders to whom work was left, and who has left it.
    left: Vec<(String, u64, String)>,
    /// Keys and fences of the holders that were asked, as the requests were applied.
    asked: HashSet<(String, u64)>,
    /// By key: the fence of the holder that was asked last.
    last_asked: HashMap<String, u64>,
}

impl Ledger {
    fn begun(&self, invocation: &Invocation<'_>, fence: u64) {
        let mut page = self.state();
        page.counts.runs += 1;
        self.log(&mut page, &format!("{} runs under {} with {fence}", invocation.name, invocation.key));
        let largest = page.begun.entry(invocation.key.to_owned()).or_default();
        *largest = fence.max(*largest);
    }

    fn ended(&self, invocation: &Invocation<'_>, fence: u64, released: &Result<bool, Error>) {
        let mut page = self.state();
        self.log(&mut page, &format!("{} has run under {fence}: {released:?}", invocation.name));
        let was_asked = page.asked.contains(&(invocation.key.to_owned(), fence));
        // If a later holder was asked before a repeated release, the row does not know any more. That holder has begun since.
        let knows = page.last_asked.get(invocation.key) == Some(&fence);
        match released {
            Ok(true) if !was_asked => {
                self.broke(&mut page, format!("{AGAIN}: {} runs again for nobody", invocation.name));
            }
            Ok(false) if was_asked && knows => {
                let what = "does not know of the work that was left to it";
                self.broke(&mut page, format!("{AGAIN}: {} {what}", invocation.name));
            }
            Err(error) if error.is_lost() => page.counts.lost += 1,
            Ok(_) | Err(_) => {}
        }
    }

    fn left(&self, invocation: &Invocation<'_>, fence: u64) {
        let mut page = self.state();
        page.counts.left += 1;
        self.log(&mut page, &format!("{} leaves its work to {fence}", invocation.name));
        page.left.push((invocation.key.to_owned(), fence, invocation.name.to_owned()));
    }

    fn gone(&self, invocation: &Invocation<'_>) {
        let mut page = self.state();
        page.counts.gone += 1;
        self.log(&mut page, &format!("{} finds the holder gone", invocation.name));
    }

    fn further(&self) {
        self.state().counts.further += 1;
    }

    fn retried(&self, name: &str) {
        let mut page = self.state();
        page.counts.retried += 1;
        self.log(&mut page, &format!("{name} is retried"));
    }

    fn failed(&self, error: &Error) {
        if !matches!(
            error.kind(),
            ErrorKind::Held | ErrorKind::Throttled | ErrorKind::Unavailable | ErrorKind::Conflict
        ) {
            self.broke(&mut self.state(), format!("{READABLE}: {error}"));
        }
    }

    /// After each invocation that was skipped, a run has begun.
    fn check(&self) {
        let mut page = self.state();
        let is_lost = |(key, fence, _): &&(String, u64, String)| page.begun.get(key).is_none_or(|begun| begun <= fence);
        let lost: Vec<_> = page.left.iter().filter(is_lost).map(|(.., name)| name.clone()).collect();
        for name in lost {
            self.broke(&mut page, format!("{AGAIN}: no run has begun after {name} was skipped"));
        }
    }
}

impl Judge for Ledger {
    fn sees(&self, _key: &str, _seen: &Holder) {}

    fn forced(&self, key: &str, seen: &Holder, answer: &Result<bool, Error>) {
        let mut page = self.state();
        self.log(&mut page, &format!("an operator frees {key}, held with {:?}: {answer:?}", seen.fence()));
        if let Err(error) = answer {
            drop(page);
            self.failed(error);
        }
    }
}

impl Observe for Kept {
    type Counts = Counts;

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut Answer) {
        let mut page = ledger.state();
        page.counts.requests += 1;
        let request = Request::parse(operation, request);
        let Some(update) = request.update().filter(|_| answer.status == 200) else { return };
        let before = &answer.body["Attributes"];
        let takes_over = update.is_takeover() && before[ASKED].is_object() && before[ASKED] == before["fence"];
        page.counts.taken_over += usize::from(takes_over);
        if takes_over || update.purpose == Purpose::Ask {
            let number = if takes_over { update.attempt() } else { update.number(ASKED) };
            let asked = (update.key.clone(), number.unwrap());
            ledger.log(&mut page, &format!("  {asked:?} is asked"));
            page.last_asked.insert(asked.0.clone(), asked.1);
            page.asked.insert(asked);
        }
    }
}
