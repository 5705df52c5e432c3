//! Histories of rates: callers on hosts with wrong clocks and bad networks share a few keys, wait, give up and crash. A seed
//! determines each history, which runs in paused time. A ledger sees every request as it is applied, and every call that passes.

mod mutations;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock::{Error, ErrorKind, Rate};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::guarantee::{READABLE, SERVED, TIMES};
use crate::history::book::{Book, Observe};
use crate::history::frame::{self, History, Set};
use crate::history::stage::{Network, Stage, millis};
use crate::history::{Mutation, Outcome, counts};
use crate::request::expression::Operand;
use crate::request::{DUE, Purpose, Request};
pub use mutations::MUTATIONS;

const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// How late a call may pass at least.
const LATE: Duration = Duration::from_millis(100);

counts! {
    /// Calls that passed.
    passed,
    /// Calls of them that had to wait.
    waited,
    /// Calls that were refused.
    refused,
    /// Calls that followed others.
    followed,
    /// Calls that began anew after a quiet time.
    begun,
    /// Callers that crashed or gave up.
    gone,
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

/// How often a key may be called.
#[derive(Clone, Copy, Debug)]
struct Pace {
    calls: u32,
    period: Duration,
    burst: u32,
}

impl Pace {
    fn draw(random: &mut Rng) -> Self {
        let burst = if random.bool() { 1 } else { random.u32(2..=6) };
        Self { calls: random.u32(2..=10), period: millis(random, 500..=2000), burst }
    }

    fn interval(&self) -> Duration {
        Duration::from_micros(self.period.as_micros().div_ceil(self.calls.into()).try_into().unwrap())
    }

    fn tolerance(&self) -> Duration {
        self.interval() * (self.burst - 1)
    }
}

type Scene = Set<Kept>;

impl History for Scene {
    /// Longer than any row of a rate says something.
    const LATEST_ARRIVAL: Duration = Duration::from_mins(1);

    fn set(_: u64, stage: Stage, random: &mut Rng) -> Self {
        let paces = (0..random.usize(1..=2)).map(|key| (format!("key {key}"), Pace::draw(random))).collect();
        Self::new(stage, Kept { paces, ..Kept::default() }, ())
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        caller(scene, number, random)
    }

    async fn sweep(&self) {
        self.ledger.sweep(Duration::from_secs(3), |counts| &mut counts.swept).await;
    }

    /// After the faults, a caller with a good network passes each key several times. When it comes back at the time that a refusal
    /// has named, it passes.
    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        for key in scene.keys() {
            let name = format!("last caller of {key}");
            let host = scene.host_of(random, Network::Good, &name);
            let rate = scene.rate(&host, &key);
            let (mut passed, mut refused) = (0, 0);
            for _ in 0..100 {
                match rate.pass().await {
                    Ok(()) => {
                        scene.ledger.passed(&name, Duration::ZERO);
                        (passed, refused) = (passed + 1, 0);
                    }
                    Err(error) if error.kind() == ErrorKind::Held => {
                        refused += 1;
                        let until = error.holder().unwrap().until();
                        // The clock may drift.
                        while let Ok(left) = until.duration_since(host.now()) {
                            sleep(left.max(Duration::from_millis(1))).await;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Throttled => sleep(Duration::from_secs(1)).await,
                    // Such as one that was told to come now, and again finds calls that are due.
                    Err(_) => break,
                }
                // The clock may step back during the sleep.
                if passed == 10 || refused > if scene.stage.largest_step().is_zero() { 1 } else { 5 } {
                    break;
                }
            }
            if passed < 10 {
                scene.ledger.violated(format!(
                    "{SERVED}: {name} passed {passed} times only, and came {refused} times too early"
                ));
            }
        }
    }
}

impl Scene {
    fn keys(&self) -> Vec<String> {
        self.ledger.state().paces.keys().cloned().collect()
    }

    /// The host of a caller with this name.
    fn host_of(&self, random: &mut Rng, network: Network, name: &str) -> Host {
        self.stage.host(random, network, Observer { ledger: Arc::clone(&self.ledger), host: name.to_owned() })
    }

    fn rate(&self, host: &Host, key: &str) -> Rate {
        let Pace { calls, period, burst } = self.ledger.state().paces[key];
        self.stage.locks(host).rate(key, calls, period).burst(burst)
    }
}

/// A caller: one host after another, with one call after another.
async fn caller(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let keys = scene.keys();
    let mut name = format!("caller {number}");
    let network = Network::draw(&mut random);
    let mut host = scene.host_of(&mut random, network, &name);
    let mut rates: HashMap<_, _> = keys.iter().map(|key| (key, scene.rate(&host, key))).collect();
    for step in 0..random.usize(6..=16) {
        let pause = match random.u8(0..30) {
            0 => 1_000_000..=1_500_000,
            1..=5 => 1000..=4000,
            _ => 0..=200,
        };
        sleep(millis(&mut random, pause)).await;
        let key = random.choice(&keys).unwrap();
        let wait = if random.bool() { Duration::ZERO } else { millis(&mut random, 100..=4000) };
        let call = rates[key].pass_within(wait.min(LONGEST_WAIT));
        let limit = if random.u8(0..10) == 0 { millis(&mut random, 0..=2000) } else { Duration::from_mins(5) };
        let sent = host.now();
        match timeout(limit, call).await {
            Ok(Ok(())) => scene.ledger.passed(&name, host.now().duration_since(sent).unwrap_or_default()),
            Ok(Err(error)) => scene.ledger.refused(&name, &error),
            Err(_) => {
                scene.ledger.gone(&name);
                if random.bool() {
                    host.crash();
                    name = format!("caller {number} after step {step}");
                    host = scene.host_of(&mut random, Network::Bad, &name);
                    rates = keys.iter().map(|key| (key, scene.rate(&host, key))).collect();
                }
            }
        }
    }
}

type Ledger = Book<Kept>;

#[derive(Default)]
struct Kept {
    paces: BTreeMap<String, Pace>,
    /// When the next call of each key is due.
    due: HashMap<String, Duration>,
    /// The times that each host was given, by its calls that have not passed, and until when each may pass.
    given: HashMap<String, Vec<(Duration, Duration)>>,
}

impl Ledger {
    fn time(&self) -> Duration {
        self.engine.now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
    }

    /// A clock is wrong by up to half the skew, and a deadline has whole milliseconds.
    fn clock_error(&self) -> Duration {
        self.clock_skew / 2 + Duration::from_millis(1)
    }

    /// A call of this host passes now.
    fn passed(&self, host: &str, took: Duration) {
        let (now, mut page) = (self.time() + self.clock_error(), self.state());
        page.counts.passed += 1;
        page.counts.waited += usize::from(took > Duration::from_millis(100));
        self.log(&mut page, &format!("{host} passes"));
        let given = page.given.entry(host.to_owned()).or_default();
        match given.iter().position(|(time, latest)| *time <= now && now <= *latest) {
            Some(own) => drop(given.swap_remove(own)),
            None => self.broke(&mut page, format!("{TIMES}: {host} passes before it, too late, or without one")),
        }
    }

    fn refused(&self, host: &str, error: &Error) {
        let mut page = self.state();
        self.log(&mut page, &format!("{host}: {}", error.kind()));
        match error.kind() {
            ErrorKind::Held => page.counts.refused += 1,
            ErrorKind::Throttled | ErrorKind::Unavailable | ErrorKind::Conflict => {}
            _ => self.broke(&mut page, format!("{READABLE}: {error}")),
        }
    }

    fn gone(&self, host: &str) {
        let mut page = self.state();
        page.counts.gone += 1;
        self.log(&mut page, &format!("{host} is gone"));
    }

    fn applied(&self, host: &str, request: &Value, answer: &Answer) {
        let request = Request::parse("UpdateItem", request);
        let Some(call) = request.update().filter(|update| update.purpose == Purpose::Call) else { return };
        let mut state = self.state();
        let Some(pace) = state.paces.get(&call.key).copied() else { return };
        // The answer has the row before.
        let due = call.sets(DUE).unwrap().number_in(&answer.body["Attributes"]).unwrap();
        let (due, interval) = (Duration::from_micros(due), pace.interval());
        // The clock of the host, as the request has it.
        let sent = match call.sets(DUE) {
            Some(Operand::Plus(last, _)) => {
                state.counts.followed += 1;
                let Operand::IfNotExists(_, now) = &**last else { panic!("{last:?}") };
                now.number_in(&Value::Null).unwrap()
            }
            begun => {
                state.counts.begun += 1;
                begun.unwrap().number_in(&Value::Null).unwrap() - u64::try_from(interval.as_micros()).unwrap()
            }
        };
        let sent = Duration::from_micros(sent);
        self.log(&mut state, &format!("  {host} calls {}: due {due:?}, sent {sent:?}", call.key));
        let last = state.due.insert(call.key.clone(), due);
        let broken = if last.is_some_and(|last| due < last + interval) {
            Some(format!("{TIMES}: that of {host} for {} is too near to the one before", call.key))
        } else if due < sent + interval {
            Some(format!("{TIMES}: that of {host} for {} was over when it asked", call.key))
        } else if due > sent + interval + pace.tolerance() + LONGEST_WAIT {
            Some(format!("{TIMES}: {host} for {} has to wait longer than it may", call.key))
        } else {
            None
        };
        if let Some(what) = broken {
            self.broke(&mut state, what);
        }
        let time = due.saturating_sub(interval + pace.tolerance());
        // By the clock of the host, and then by this one, which is later than it is by the error.
        let latest = time.max(sent) + interval.max(LATE) + 2 * self.clock_error();
        state.given.entry(host.to_owned()).or_default().push((time, latest));
    }
}

impl Observe for Kept {
    type Counts = Counts;
}

/// Shows the requests of a host to the ledger.
#[derive(Debug)]
struct Observer {
    ledger: Arc<Ledger>,
    host: String,
}

impl Intercept for Observer {
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        self.ledger.state().counts.requests += 1;
        if operation == "UpdateItem" && answer.status == 200 {
            self.ledger.applied(&self.host, request, answer);
        }
    }
}
