//! One run: waiters, their holds, and what goes wrong.

use std::collections::{HashMap, VecDeque};
use std::env;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use lambda_lock::embedded::{Answer, Faults, Host, Intercept};
use lambda_lock::{Error, Lock, Locks, Wait};
use lambda_lock_tests::request::{Purpose, purpose_of};
use lambda_lock_tests::{World, median};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The latency of a request, there and back, without the time that the table takes.
const REQUEST: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_mins(5);
const KEY: &str = "job";

/// What waiters wait for.
#[derive(Clone, Copy, PartialEq)]
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

/// How waiters wait.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Lock(Wait),
    /// A conditional write with the bare SDK, every 50 ms.
    Polling,
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

    pub(crate) fn draw(self, random: &mut Rng) -> Duration {
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

    /// Returns the shortest total of so many holds with this time of a request: rounds × (hold + 2 requests).
    pub(crate) fn ideal(&self, served: u32, request: Duration) -> Duration {
        (self.hold.mean() + 2 * request) * served.div_ceil(self.contended.capacity())
    }

    pub(crate) fn play(self, way: Way, seed: u64) -> Shares {
        seed_thread(seed);
        runtime().block_on(self.contend(way, Rng::with_seed(seed)))
    }

    async fn contend(self, way: Way, mut random: Rng) -> Shares {
        // A waiter may die after its request has taken the key. The lease is then a stall.
        let lease = if self.fault == Fault::Killed { Duration::from_secs(1) } else { Duration::from_mins(1) };
        let stage = Stage::set(lease, self.contended).await;
        if self.is_known {
            let first = stage.contender(way, Fault::None, &mut random, None);
            for _ in 0..20 {
                first.work(self.hold.draw(&mut random)).await;
            }
        }
        let newcomers = (self.fault == Fault::Newcomers).then(|| {
            let newcomer = stage.contender(way, self.fault, &mut random, Some(Waiter::NEWCOMER));
            tokio::spawn(newcomer.barge(self.hold, random.fork()))
        });
        let mut contenders = Vec::new();
        for number in 0..self.waiters {
            let waiter = stage.contender(way, self.fault, &mut random, Some(Waiter(number)));
            let (hold, arrival) =
                (self.hold.draw(&mut random), self.apart * number + self.apart.mul_f64(0.1 * random.f64()));
            let death = self.hold.mean().mul_f64(0.5 + 2.0 * random.f64());
            let dies = self.fault == Fault::Killed && random.u8(0..8) == 0;
            contenders.push((waiter, hold, arrival, dies.then_some(death)));
        }
        if let (Fault::DeadPermit(lease), Contended::Permits(permits)) = (self.fault, self.contended) {
            let dead = stage.contender(way, Fault::None, &mut random, None);
            let permit = dead.locks.semaphore(KEY, permits).acquire().lease(lease).await.unwrap();
            dead.host.crash();
            drop(permit);
        }
        if !is_virtual() {
            // DynamoDB Local opens some of a hundred connections at once a second later.
            for (waiter, ..) in &contenders {
                waiter.locks.warm_up().await;
            }
        }
        let start = stage.now();
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

pub(crate) fn is_virtual() -> bool {
    env::var_os("LOCK_TEST_ENDPOINT").is_none()
}

/// Returns the time of a request without contention: half of an acquire and a release, as the median of some. The first
/// ones warm the table up.
pub(crate) fn request_time() -> Duration {
    static MEASURED: LazyLock<Duration> = LazyLock::new(|| {
        runtime().block_on(async {
            let stage = Stage::set(Duration::from_mins(1), Contended::Key).await;
            let contender = stage.contender(Way::Lock(Wait::in_turn()), Fault::None, &mut Rng::with_seed(0), None);
            let mut times = Vec::new();
            for _ in 0..1000 {
                let started = stage.now();
                contender.locks.acquire(KEY).await.unwrap().release().await.unwrap();
                times.push(stage.now().duration_since(started).unwrap_or_default().as_secs_f64() / 2.0);
            }
            Duration::from_secs_f64(median(times.split_off(900)))
        })
    });
    if is_virtual() { REQUEST } else { *MEASURED }
}

/// Sets the seed of the thread's generator, which also draws the name of the table. In real time, each run has a new table.
pub(crate) fn seed_thread(seed: u64) {
    if is_virtual() {
        fastrand::seed(seed);
    }
}

/// A single thread, in virtual time on the embedded engine.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(is_virtual()).build().unwrap()
}

/// The table, and a clock that is right.
pub(crate) struct Stage {
    world: World,
    journal: Arc<Journal>,
    clock: Host,
    lease: Duration,
    contended: Contended,
}

/// A network without faults. In real time, timers round up, by half a millisecond on average.
fn faults(seed: u64) -> Faults {
    let latency = if is_virtual() { REQUEST / 2 } else { Duration::from_millis(2) };
    Faults::seeded(seed).latency(latency..latency)
}

impl Stage {
    /// A host of its own.
    pub(crate) fn host(&self) -> (Host, Locks) {
        let host = self.world.host().faults(faults(7)).build();
        let locks = self.world.locks(&host).build().unwrap();
        (host, locks)
    }

    pub(crate) async fn set(lease: Duration, contended: Contended) -> Self {
        let world = World::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).await;
        let clock = world.host().build();
        Self { journal: Arc::new(Journal::default()), world, clock, lease, contended }
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.clock.now()
    }

    pub(crate) fn contender(&self, way: Way, fault: Fault, random: &mut Rng, waiter: Option<Waiter>) -> Contender {
        self.contender_for(self.contended, way, fault, random, waiter)
    }

    pub(crate) fn contender_for(
        &self,
        contended: Contended,
        way: Way,
        fault: Fault,
        random: &mut Rng,
        waiter: Option<Waiter>,
    ) -> Contender {
        let mut faults = faults(random.u64(..));
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
        Contender { contended, way, table: self.world.table.clone(), client: host.client(), host, locks }
    }
}

/// One that wants the key, on a host of its own.
pub(crate) struct Contender {
    contended: Contended,
    way: Way,
    host: Host,
    table: String,
    client: Client,
    locks: Locks,
}

impl Contender {
    pub(crate) async fn work(&self, hold: Duration) {
        self.finish(self.acquire().await, hold).await;
    }

    /// Dies after this time if it still waits then.
    async fn die_waiting(&self, death: Duration, hold: Duration) {
        match timeout(death, self.acquire()).await {
            Ok(key) => self.finish(key, hold).await,
            Err(_) => self.host.crash(),
        }
    }

    /// Asks again and again, and never waits.
    async fn barge(self, hold: Hold, mut random: Rng) {
        loop {
            sleep(Hold::Exponential(Duration::from_millis(100)).draw(&mut random)).await;
            if let Ok(held) = self.ask(None).await {
                self.finish(Some(held), hold.draw(&mut random)).await;
            }
        }
    }

    pub(crate) async fn ask(&self, wait: Option<Wait>) -> Result<Lock, Error> {
        let wait = wait.unwrap_or(Wait::in_turn().max_attempts(1));
        match self.contended {
            Contended::Key => self.locks.acquire(KEY).wait(wait).await,
            Contended::Permits(permits) => self.locks.semaphore(KEY, permits).acquire().wait(wait).await,
            Contended::Keys(keys) => self.locks.acquire_all(keys.iter().copied()).wait(wait).await,
        }
    }

    /// Acquires the key. With the bare SDK, there is nothing to return.
    pub(crate) async fn acquire(&self) -> Option<Lock> {
        match self.way {
            Way::Lock(wait) => Some(self.ask(Some(wait.up_to(PATIENCE))).await.unwrap()),
            Way::Polling => {
                while !self.try_bare().await {
                    sleep(Duration::from_millis(50)).await;
                }
                None
            }
        }
    }

    pub(crate) async fn finish(&self, acquired: Option<Lock>, hold: Duration) {
        sleep(hold).await;
        let released = match acquired {
            Some(lock) => lock.release().await,
            None => return self.release_bare().await,
        };
        match released {
            // If the next holder has released the key too, a release whose answer was lost does not know itself.
            Err(error) if !error.is_lost() => panic!("{error}"),
            _ => {}
        }
    }

    async fn release_bare(&self) {
        let request = self.client.update_item().table_name(&self.table).key("id", string(KEY));
        let request = request.update_expression("SET #end = :released").expression_attribute_names("#end", "end");
        request.expression_attribute_values(":released", number(Duration::ZERO)).send().await.unwrap();
    }

    /// One attempt of a lock that is written by hand.
    async fn try_bare(&self) -> bool {
        let now = self.host.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let request = self.client.update_item().table_name(&self.table).key("id", string(KEY));
        let answer = request
            .condition_expression("attribute_not_exists(#end) OR #end <= :now")
            .update_expression("SET #end = :bare_end")
            .expression_attribute_names("#end", "end")
            .expression_attribute_values(":now", number(now))
            .expression_attribute_values(":bare_end", number(now + Duration::from_secs(3)))
            .send();
        match answer.await {
            Ok(_) => true,
            Err(error)
                if error.as_service_error().is_some_and(UpdateItemError::is_conditional_check_failed_exception) =>
            {
                false
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn string(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(time: Duration) -> AttributeValue {
    AttributeValue::N(time.as_millis().to_string())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Waiter(u32);

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
        let is_bare = |name: &str| request["ExpressionAttributeValues"][name].is_object();
        let is_acquire = purpose == Some(Purpose::Acquire) || is_bare(":bare_end");
        let is_release = purpose == Some(Purpose::Release) || is_bare(":released");
        if answer.status == 200 && (is_acquire || is_release) {
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
    /// The mean and the longest time in which the key was free and somebody waited.
    pub(crate) mean_gap: Duration,
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
            mean_gap: gaps.iter().sum::<Duration>() / u32::try_from(gaps.len().max(1)).unwrap(),
            stall: gaps.iter().max().copied().unwrap_or_default(),
            turns,
        }
    }

    /// Returns the requests for each acquisition, with its release.
    #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
    pub(crate) fn requests_each(&self) -> f64 {
        self.requests as f64 / f64::from(self.served)
    }

    /// Returns how far from its own place a waiter was served at most.
    pub(crate) fn displacement(&self) -> usize {
        let off = |(place, (number, ..)): (usize, &(u32, _, _))| place.abs_diff(*number as usize);
        self.turns.iter().enumerate().map(off).max().unwrap_or_default()
    }
}

/// A holder with a lease of 2 s dies, which had all that is contended for, and one waiter comes. Returns how long after the
/// end of the lease, with the clock skew, the waiter has the key, and its requests.
pub(crate) fn die(contended: Contended, way: Way, is_known: bool, seed: u64) -> (Duration, u64) {
    seed_thread(seed);
    let mut random = Rng::with_seed(seed);
    runtime().block_on(async {
        let stage = Stage::set(Duration::from_secs(2), contended).await;
        let holder = stage.contender(way, Fault::None, &mut random, None);
        if is_known {
            for _ in 0..20 {
                holder.work(Duration::from_millis(20)).await;
            }
        }
        let end = stage.now() + Duration::from_secs(3);
        let mut held = Vec::new();
        for _ in 0..contended.capacity() {
            held.push(holder.acquire().await);
        }
        holder.host.crash();
        sleep(Duration::from_millis(random.u64(0..100))).await;
        let waiter = stage.contender(way, Fault::None, &mut random, None);
        let acquired = waiter.acquire().await;
        let late = stage.now().duration_since(end).unwrap_or_default();
        waiter.finish(acquired, Duration::from_millis(20)).await;
        drop(held);
        (late, waiter.host.requests())
    })
}
