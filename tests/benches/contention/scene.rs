//! One run: waiters, their holds, and what goes wrong.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use lambda_lock::embedded::{Answer, Faults, Host, Intercept};
use lambda_lock::{Error, Lock, Locks, Wait};
use lambda_lock_tests::World;
use lambda_lock_tests::request::{Purpose, purpose_of};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The latency of a request, there and back.
pub(crate) const REQUEST: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_mins(5);
const KEY: &str = "job";

/// What waiters wait for.
#[derive(Clone, Copy)]
pub(crate) enum Contended {
    Key,
    /// A semaphore with so many permits.
    Permits(u32),
    /// These keys at once.
    Keys(&'static [&'static str]),
}

impl Contended {
    /// How many can have it at a time.
    fn capacity(self) -> u32 {
        match self {
            Self::Key | Self::Keys(_) => 1,
            Self::Permits(permits) => permits,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Hold {
    Steady(Duration),
    /// Uniform, 20 % shorter to 20 % longer.
    About(Duration),
    Exponential(Duration),
}

impl Hold {
    pub(crate) fn mean(self) -> Duration {
        let (Self::Steady(mean) | Self::About(mean) | Self::Exponential(mean)) = self;
        mean
    }

    fn draw(self, random: &mut Rng) -> Duration {
        match self {
            Self::Steady(mean) => mean,
            Self::About(mean) => mean.mul_f64(0.8 + 0.4 * random.f64()),
            Self::Exponential(mean) => mean.mul_f64(-(1.0 - random.f64()).ln()),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// One waiter in eight dies while it waits.
    Killed,
    /// Each host's clock is wrong by up to so much.
    Clocks(Duration),
    /// One answer in fifty is lost.
    AnswersLost,
    /// Others ask once and do not wait, every 100 ms on average.
    Newcomers,
    /// One permit belongs to a holder that has died, with this lease.
    DeadPermit(Duration),
}

/// A run's setting.
#[derive(Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) contended: Contended,
    pub(crate) waiters: u32,
    pub(crate) hold: Hold,
    /// The time between two arrivals.
    pub(crate) apart: Duration,
    /// Others have held the key before.
    pub(crate) is_known: bool,
    pub(crate) fault: Fault,
}

impl Scene {
    pub(crate) const fn at_once(waiters: u32, hold: Hold) -> Self {
        Self { contended: Contended::Key, waiters, hold, apart: Duration::ZERO, is_known: false, fault: Fault::None }
    }

    pub(crate) const fn permits(permits: u32, waiters: u32, hold: Hold) -> Self {
        Self { contended: Contended::Permits(permits), ..Self::at_once(waiters, hold) }
    }

    pub(crate) const fn sets(waiters: u32, hold: Hold) -> Self {
        Self { contended: Contended::Keys(&["first", "second"]), ..Self::at_once(waiters, hold) }
    }

    /// Returns the shortest total of so many holds: rounds × (hold + 2 requests).
    pub(crate) fn ideal(&self, served: u32) -> Duration {
        (self.hold.mean() + 2 * REQUEST) * served.div_ceil(self.contended.capacity())
    }

    pub(crate) fn play(self, wait: Wait, seed: u64) -> Shares {
        // The clients and the name of the table use the generator of the thread.
        fastrand::seed(seed);
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(self.contend(wait, Rng::with_seed(seed)))
    }

    async fn contend(self, wait: Wait, mut random: Rng) -> Shares {
        // A waiter may die after its request has taken the key. The lease is then a stall.
        let lease = if self.fault == Fault::Killed { Duration::from_secs(1) } else { Duration::from_mins(1) };
        let stage = Stage::set(lease, self.contended).await;
        if self.is_known {
            let first = stage.contender(wait, Fault::None, &mut random, None);
            for _ in 0..20 {
                first.work(self.hold.draw(&mut random)).await;
            }
        }
        let newcomers = (self.fault == Fault::Newcomers).then(|| {
            let newcomer = stage.contender(wait, self.fault, &mut random, Some(Waiter::NEWCOMER));
            tokio::spawn(newcomer.barge(self.hold, random.fork()))
        });
        let mut contenders = Vec::new();
        for number in 0..self.waiters {
            let waiter = stage.contender(wait, self.fault, &mut random, Some(Waiter(number)));
            let (hold, arrival) =
                (self.hold.draw(&mut random), self.apart * number + self.apart.mul_f64(0.1 * random.f64()));
            let death = self.hold.mean().mul_f64(0.5 + 2.0 * random.f64());
            let dies = self.fault == Fault::Killed && random.u8(0..8) == 0;
            contenders.push((waiter, hold, arrival, dies.then_some(death)));
        }
        if let (Fault::DeadPermit(lease), Contended::Permits(permits)) = (self.fault, self.contended) {
            let dead = stage.contender(wait, Fault::None, &mut random, None);
            let permit = dead.locks.semaphore(KEY, permits).acquire().lease(lease).await.unwrap();
            dead.host.crash();
            drop(permit);
        }
        let start = stage.clock.now();
        let mut waiters = JoinSet::new();
        for (waiter, hold, arrival, death) in contenders {
            let before = waiter.host.requests();
            waiters.spawn(async move {
                sleep(arrival).await;
                match death {
                    Some(death) => waiter.die_waiting(death, hold).await,
                    None => waiter.work(hold).await,
                }
                waiter.host.requests() - before
            });
        }
        let requests = waiters.join_all().await;
        if let Some(newcomers) = newcomers {
            newcomers.abort();
        }
        Shares::of(&stage.journal.0.lock().unwrap(), start, self.apart, &requests)
    }
}

/// The table, and a clock that is right.
struct Stage {
    world: World,
    journal: Arc<Journal>,
    clock: Host,
    lease: Duration,
    contended: Contended,
}

impl Stage {
    async fn set(lease: Duration, contended: Contended) -> Self {
        let world = World::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).await;
        let clock = world.host().build();
        Self { journal: Arc::new(Journal::default()), world, clock, lease, contended }
    }

    fn contender(&self, wait: Wait, fault: Fault, random: &mut Rng, waiter: Option<Waiter>) -> Contender {
        let mut faults = Faults::seeded(random.u64(..)).latency(REQUEST / 2..REQUEST / 2);
        if fault == Fault::AnswersLost {
            faults = faults.lose_answers(0.02);
        }
        let mut host = self.world.host().faults(faults);
        if let Some(waiter) = waiter {
            let observer = Observer { waiter, journal: Arc::clone(&self.journal), clock: self.clock.clone() };
            host = host.intercept(observer);
        }
        if let Fault::Clocks(most) = fault {
            let off = most.mul_f64(random.f64());
            host = if random.bool() { host.clock_ahead(off) } else { host.clock_behind(off) };
        }
        let host = host.build();
        let locks = self.world.locks(&host).lease(self.lease).build().unwrap();
        Contender { contended: self.contended, wait, host, locks }
    }
}

/// One that wants the key, on a host of its own.
struct Contender {
    contended: Contended,
    wait: Wait,
    host: Host,
    locks: Locks,
}

impl Contender {
    async fn work(&self, hold: Duration) {
        finish(&self.acquire().await, hold).await;
    }

    /// Dies after this time if it still waits then.
    async fn die_waiting(&self, death: Duration, hold: Duration) {
        match timeout(death, self.acquire()).await {
            Ok(lock) => finish(&lock, hold).await,
            Err(_) => self.host.crash(),
        }
    }

    /// Asks again and again, and never waits.
    async fn barge(self, hold: Hold, mut random: Rng) {
        loop {
            sleep(Hold::Exponential(Duration::from_millis(100)).draw(&mut random)).await;
            if let Ok(lock) = self.ask(Wait::in_turn().max_attempts(1)).await {
                finish(&lock, hold.draw(&mut random)).await;
            }
        }
    }

    async fn ask(&self, wait: Wait) -> Result<Lock, Error> {
        match self.contended {
            Contended::Key => self.locks.acquire(KEY).wait(wait).await,
            Contended::Permits(permits) => self.locks.semaphore(KEY, permits).acquire().wait(wait).await,
            Contended::Keys(keys) => self.locks.acquire_all(keys.iter().copied()).wait(wait).await,
        }
    }

    async fn acquire(&self) -> Lock {
        self.ask(self.wait.up_to(PATIENCE)).await.unwrap()
    }
}

async fn finish(lock: &Lock, hold: Duration) {
    sleep(hold).await;
    match lock.release().await {
        // If the next holder has released the key too, a release whose answer was lost does not know itself.
        Err(error) if !error.is_lost() => panic!("{error}"),
        _ => {}
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Waiter(u32);

impl Waiter {
    const NEWCOMER: Self = Self(u32::MAX);
}

/// The times at which the table applied acquires and releases.
#[derive(Debug, Default)]
struct Journal(Mutex<Vec<(SystemTime, Waiter, bool)>>);

#[derive(Debug)]
struct Observer {
    waiter: Waiter,
    journal: Arc<Journal>,
    clock: Host,
}

impl Intercept for Observer {
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        // The writes of a transaction are all for the same.
        let purpose = match request.pointer("/TransactItems/0/Update") {
            Some(update) => purpose_of("UpdateItem", update),
            None => purpose_of(operation, request),
        };
        let is_acquire = purpose == Some(Purpose::Acquire);
        if answer.status == 200 && (is_acquire || purpose == Some(Purpose::Release)) {
            self.journal.0.lock().unwrap().push((self.clock.now(), self.waiter, is_acquire));
        }
    }
}

/// How the waiters of a run shared the key.
pub(crate) struct Shares {
    pub(crate) served: u32,
    pub(crate) total: Duration,
    pub(crate) longest_wait: Duration,
    pub(crate) requests: u64,
    /// The requests of the waiter that sent most.
    pub(crate) most_requests: u64,
    /// The longest time in which the key was free and somebody waited.
    pub(crate) stall: Duration,
    /// The waiters in the order in which they held the key, and when, counted from the start.
    pub(crate) turns: Vec<(u32, Duration, Duration)>,
}

impl Shares {
    fn of(journal: &[(SystemTime, Waiter, bool)], start: SystemTime, apart: Duration, requests: &[u64]) -> Self {
        let (mut turns, mut gaps) = (Vec::new(), Vec::new());
        // When each waiter has acquired, and since when what nobody has is free.
        let (mut acquired, mut free, mut released) = (HashMap::new(), VecDeque::new(), Duration::ZERO);
        for (at, Waiter(number), is_acquire) in journal {
            let at = at.duration_since(start).unwrap_or_default();
            if *is_acquire {
                acquired.insert(*number, at);
                gaps.extend(free.pop_front().map(|since| at.saturating_sub(since)));
            } else {
                turns.push((*number, acquired.remove(number).unwrap_or_default(), at));
                free.push_back(at);
                released = at;
            }
        }
        turns.sort_by_key(|(_, from, _)| *from);
        let waits = turns.iter().map(|(number, from, _)| from.saturating_sub(apart * *number));
        Self {
            served: u32::try_from(turns.len()).unwrap(),
            total: released,
            longest_wait: waits.max().unwrap_or_default(),
            requests: requests.iter().sum(),
            most_requests: requests.iter().copied().max().unwrap_or_default(),
            stall: gaps.iter().max().copied().unwrap_or_default(),
            turns,
        }
    }

    /// Returns the requests for each acquisition, with its release.
    #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
    pub(crate) fn requests_each(&self) -> f64 {
        self.requests as f64 / f64::from(self.served)
    }
}
