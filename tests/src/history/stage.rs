//! The stage of every history: a DynamoDB, hosts with wrong clocks and bad networks, and a journal.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use fastrand::Rng;
use lambda_lock::embedded::{DynamoDb, Faults, Host, Intercept};
use lambda_lock::{Backoff, Locks, LocksBuilder, Wait};
use tokio::time::sleep;

use super::twist::{Tally, Twisted, Twists};
use super::{Mutation, Outcome};

pub(crate) const TABLE: &str = "locks";
/// The shortest valid retention without the clock skew.
pub(crate) const RETENTION: Duration = Duration::from_mins(15);
/// The usual delay of a late request.
const SOON: Duration = Duration::from_secs(2);
pub(crate) const LATENCY: Duration = Duration::from_millis(40);
/// The cap of every backoff.
pub(crate) const CAP: Duration = Duration::from_millis(500);
/// How much longer than its budget an acquire takes at most: the longest lease, and 1 s for a withdrawal.
pub(crate) const REQUEST: Duration = Duration::from_millis(2500 + 1000 + 10);

/// Runs a history in paused time. The seed also determines the thread's generator, which the SDK's retries and our
/// jitter use.
pub(crate) fn play<T>(seed: u64, history: impl Future<Output = T>) -> T {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(history)
}

/// The DynamoDB and the settings of a history.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) engine: DynamoDb,
    pub(crate) clock_skew: Duration,
    pub(crate) mutation: Option<Mutation>,
    /// How late a request can arrive.
    latest_arrival: Duration,
    twists: Twists,
    tally: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Network {
    /// Everything arrives within the latency.
    Good,
    /// Requests and answers are lost, refused, delayed and repeated.
    Bad,
    /// Like the bad one, but no request arrives again after its answer.
    Once,
    /// Like the bad one, and a request can take as long as a lease.
    Slow,
}

impl Network {
    /// Returns a bad or a slow network.
    pub(crate) fn draw(random: &mut Rng) -> Self {
        if random.u8(0..4) == 0 { Self::Slow } else { Self::Bad }
    }
}

impl Stage {
    /// An engine with an empty lock table, a clock skew, and the twists of a seed.
    pub(crate) async fn set(seed: u64, random: &mut Rng, latest_arrival: Duration, mutation: Option<Mutation>) -> Self {
        let (twists, tally) = (Twists::of(seed), Tally::default());
        let mut engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        if let Some(write_units) = twists.write_units {
            engine = engine.limit_partitions(write_units);
        }
        let clock_skew = millis(random, 100..=1000);
        Locks::builder(engine.client(), TABLE).build().unwrap().create_table().await.unwrap();
        Self { engine, clock_skew, mutation, latest_arrival, twists, tally }
    }

    /// The same, with fewer write units than were drawn for partitions that are throttled: each has few requests.
    pub(crate) fn with_write_units(self, fewer: impl FnOnce(u32) -> u32) -> Self {
        match self.twists.write_units {
            Some(drawn) => Self { engine: self.engine.limit_partitions(fewer(drawn)), ..self },
            None => self,
        }
    }

    /// Panics if the seed throttles partitions.
    pub(crate) fn without_twists(self) -> Self {
        assert!(!self.is_throttled(), "another seed");
        Self { twists: Twists::default(), ..self }
    }

    pub(crate) fn is_throttled(&self) -> bool {
        self.twists.write_units.is_some()
    }

    /// The longest clock skew in the settings of a deployment.
    pub(crate) fn longest_skew(&self) -> Duration {
        self.clock_skew + self.twists.longer_skew.unwrap_or_default()
    }

    /// By how much the clock of a host can step: a time left that was read before can differ by this much.
    pub(crate) fn largest_step(&self) -> Duration {
        if self.twists.steps { self.clock_skew } else { Duration::ZERO }
    }

    /// How much longer something can take because of the twists.
    pub(crate) fn slack(&self) -> Duration {
        self.twists.slack()
    }

    /// How often the twists have occurred.
    pub(crate) fn twisted(&self) -> Twisted {
        self.tally.sum()
    }

    /// A host whose clock is wrong by up to half the skew, and drifts within that. The observer sees what really
    /// happens. The host sees what the mutation makes of it.
    pub(crate) fn host(&self, random: &mut Rng, network: Network, observer: impl Intercept + 'static) -> Host {
        let half = self.clock_skew / 2;
        let off = Duration::from_micros(random.u64(0..=u64::try_from(half.as_micros()).unwrap()));
        let host = self.engine.host().clock_drift((random.f64() - 0.5) / 25.0, half);
        let is_ahead = random.bool();
        let host = if is_ahead { host.clock_ahead(off) } else { host.clock_behind(off) };
        let latency = if network == Network::Slow { Duration::from_millis(1500) } else { LATENCY };
        let mut faults = Faults::seeded(random.u64(..)).latency(Duration::from_millis(1)..latency);
        if network != Network::Good {
            let chance = [0.0, 0.05, 0.15][random.usize(0..3)];
            faults = faults
                .lose_requests(chance)
                .lose_answers(chance)
                .throttle(chance / 2.0)
                .server_errors(chance / 2.0)
                .replicated_write_conflicts(self.twists.conflicts)
                .late(chance, SOON)
                .repeat(
                    if network == Network::Once { 0.0 } else { chance },
                    if random.bool() { self.latest_arrival } else { SOON },
                );
        }
        let host = host.faults(faults).intercept(observer).intercept(self.tally.clone());
        let host = match self.mutation {
            Some(mutation) => host.intercept(mutation).build(),
            None => host.build(),
        };
        if self.twists.steps {
            let off = i64::try_from(off.as_micros()).unwrap();
            self.tally.step(host.clone(), if is_ahead { off } else { -off }, half, Rng::new());
        }
        host
    }

    pub(crate) fn locks(&self, host: &Host) -> Locks {
        self.builder(host).build().unwrap()
    }

    /// The settings of one of the deployments.
    pub(crate) fn builder(&self, host: &Host) -> LocksBuilder {
        let client = match self.twists.conflicts {
            0.0 => host.client(),
            _ => Client::from_conf(host.client().config().to_builder().interceptor(self.tally.clone()).build()),
        };
        let locks = Locks::builder(client, TABLE)
            .clock_skew(self.clock_skew)
            // The default has the process id, which differs in every run.
            .holder("a host")
            // The shortest valid retention, so that rows are deleted during the history.
            .retention(RETENTION + 2 * self.clock_skew);
        match self.twists.longer_skew {
            // Functions of both deployments run at the same time.
            Some(longer) if fastrand::bool() => {
                self.tally.redeployed();
                let (skew, retention) = (self.clock_skew + longer, Duration::from_hours(1));
                locks.clock_skew(skew).retention(RETENTION + 2 * skew + retention).lease(Duration::from_secs(2))
            }
            _ => locks,
        }
    }
}

/// Runs so many workers.
pub(crate) async fn work<W>(workers: RangeInclusive<usize>, random: &mut Rng, worker: impl Fn(usize, Rng) -> W)
where
    W: Future<Output = ()> + Send + 'static,
{
    let workers: Vec<_> =
        (0..random.usize(workers)).map(|number| tokio::spawn(worker(number, random.fork()))).collect();
    for worker in workers {
        worker.await.unwrap();
    }
}

/// Waits until the last late request has arrived and the key of the last crashed holder was taken over.
pub(crate) async fn settle(latest_arrival: Duration) {
    sleep(latest_arrival + Duration::from_secs(20)).await;
}

pub(crate) fn backoff(budget: Duration) -> Wait {
    Waiting::Backoff.up_to(budget)
}

/// How an acquire waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    InTurn,
    Backoff,
}

impl Waiting {
    pub(crate) fn draw(random: &mut Rng) -> Self {
        if random.u8(0..3) == 0 { Self::InTurn } else { Self::Backoff }
    }

    pub(crate) fn up_to(self, budget: Duration) -> Wait {
        match self {
            Self::InTurn => Wait::in_turn().up_to(budget),
            Self::Backoff => Wait::backoff(Backoff::new().base(Duration::from_millis(50)).cap(CAP)).up_to(budget),
        }
    }

    /// The longest delay.
    pub(crate) fn cap(self) -> Duration {
        match self {
            Self::InTurn => Duration::from_secs(5),
            Self::Backoff => CAP,
        }
    }
}

pub(crate) fn millis(random: &mut Rng, range: RangeInclusive<u64>) -> Duration {
    // Real time does not consist of whole milliseconds.
    Duration::from_micros(random.u64(range.start() * 1000..=range.end() * 1000))
}

/// The events of a history, and its violations.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    log: Vec<String>,
    violations: Vec<String>,
}

impl Journal {
    pub(crate) fn log(&mut self, now: SystemTime, what: &str) {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        self.log.push(format!("{:>10.4} {what}", now.as_secs_f64() - f64::from(500_000 * 3600)));
    }

    pub(crate) fn broke(&mut self, now: SystemTime, what: String) {
        self.log(now, &format!("VIOLATION {what}"));
        self.violations.push(what);
    }

    pub(crate) fn outcome<C>(self, counts: C) -> Outcome<C> {
        Outcome { log: self.log, violations: self.violations, counts, twisted: Twisted::default() }
    }
}
