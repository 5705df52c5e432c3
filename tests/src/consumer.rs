//! What the histories of queues and of streams share: what a sender writes, one invocation and its handlers, and how Lambda waits
//! for an answer.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use lambda_lock::Run;
use lambda_lock::embedded::Host;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::history::frame::{self, History};
use crate::history::stage::millis;
use crate::history::{Counted, Mutation, Outcome};
use crate::idempotency_history::ledger::{Call, Execution, Kept};
use crate::idempotency_history::{Counts, Failure, Then};

/// What a sender writes for a job: in one of so many items, no JSON, and in another one, poison, which always fails.
pub(crate) fn body_of(job: &str, one_in: u8, random: &mut Rng) -> String {
    match random.u8(0..one_in) {
        0 => format!("{{ {job}, which is not JSON"),
        1 => json!({ "job": job, "poison": true }).to_string(),
        _ => json!({ "job": job }).to_string(),
    }
}

/// How often each outcome of a consumer and of its records occurred.
#[derive(Clone, Copy, Debug)]
pub struct WithWork<C> {
    /// The counts of the records of idempotency.
    pub work: Counts,
    /// The counts of the consumer itself.
    pub own: C,
}

impl<C: Counted> Counted for WithWork<C> {
    fn named(&self) -> Vec<(&'static str, usize)> {
        let Counts { runs, taken_over, crashed, requests, .. } = self.work;
        let work = [("runs", runs), ("taken_over", taken_over), ("runs_crashed", crashed), ("requests", requests)];
        work.into_iter().chain(self.own.named()).collect()
    }
}

/// Runs the history of a seed, with the protocol or with a mutation of it. `own` reads what its scene has counted.
pub(crate) fn run<S: Scene, C>(
    seed: u64,
    mutation: Option<Mutation>,
    own: impl FnOnce(&S) -> C,
) -> Outcome<WithWork<C>> {
    let (scene, Outcome { log, violations, counts: work, twisted }) = frame::play::<S>(seed, mutation);
    Outcome { log, violations, counts: WithWork { work, own: own(&scene) }, twisted }
}

/// The history of a consumer.
pub(crate) trait Scene: History<Kept = Kept> {
    /// Checks that no item runs before an earlier one of its lane has ended.
    fn check_order(&self, name: &str);

    /// Counts an invocation that crashed.
    fn count_crash(&self);
}

/// The handlers of one invocation.
pub(crate) struct Invocation<S> {
    pub(crate) name: String,
    pub(crate) scene: Arc<S>,
    /// Only poison fails.
    pub(crate) is_good: bool,
    pub(crate) began: SystemTime,
    pub(crate) time_left: Duration,
    random: Mutex<Rng>,
    /// With the names of the items that ran.
    pub(crate) calls: Mutex<Vec<(String, Call)>>,
}

impl<S: Scene> Invocation<S> {
    pub(crate) fn new(scene: &Arc<S>, name: String, time_left: Duration, is_good: bool, random: Rng) -> Arc<Self> {
        let (scene, random, began) = (Arc::clone(scene), Mutex::new(random), scene.stage().engine.now());
        Arc::new(Self { name, scene, is_good, began, time_left, random, calls: Mutex::default() })
    }

    /// The handler of one item.
    pub(crate) async fn handle(self: Arc<Self>, item: String, body: Value, run: Run) -> Result<u64, Failure> {
        let scene = &self.scene;
        let call =
            Call::new(&format!("{}, {item}", self.name), run.lock().key().to_owned(), Arc::clone(scene.ledger()));
        self.calls.lock().unwrap().push((item.clone(), call.clone()));
        let execution = call.began(&run, self.time_left + scene.stage().largest_step());
        scene.check_order(&item);
        work(execution, self.is_good, body["poison"] == true, &self.random).await
    }

    /// Returns `true` if so much of the time was left, after what the steps of clocks may have taken.
    pub(crate) fn has_left(&self, left: Duration) -> bool {
        let stage = self.scene.stage();
        stage.engine.now() + stage.largest_step() + left < self.began + self.time_left
    }

    /// Returns `true` if the outcome of each run was stored before its lease ended, which it does a second before the deadline.
    pub(crate) fn is_in_time(&self) -> bool {
        self.has_left(Duration::from_millis(1200))
    }

    /// Returns `true` if there was time to start each item. `min_remaining_time` is another second, and the host's clock drifts. A
    /// request that is throttled says nothing about its record.
    pub(crate) fn had_time(&self) -> bool {
        !self.scene.stage().is_throttled() && self.has_left(Duration::from_millis(2500))
    }

    /// Waits for an answer as Lambda does: until the deadline, or until the host crashes. Without an answer, the host has
    /// crashed.
    pub(crate) async fn wait<A>(
        &self,
        host: &Host,
        answer: impl Future<Output = A>,
        crash: Option<Duration>,
    ) -> Option<A> {
        let mut answer = Box::pin(answer);
        if let Ok(answer) = timeout(crash.unwrap_or(self.time_left), &mut answer).await {
            return Some(answer);
        }
        host.crash();
        drop(answer);
        let ledger = self.scene.ledger();
        if crash.is_none() {
            ledger.violated(format!("{} did not answer before its deadline", self.name));
        }
        ledger.note(&format!("{} crashed", self.name));
        self.scene.count_crash();
        for (_, call) in &*self.calls.lock().unwrap() {
            call.gone("crashed");
        }
        None
    }
}

/// Does the work of one item, which takes a while, and fails or panics at times. With `is_good`, only poison fails.
async fn work(execution: Execution, is_good: bool, is_poison: bool, random: &Mutex<Rng>) -> Result<u64, Failure> {
    let number = execution.number;
    let (work, fails, panics) = {
        let mut random = random.lock().unwrap();
        // Most items take a while. Some do not end in time.
        let most = if is_good || random.u8(0..8) > 0 { 500 } else { 8000 };
        let (fails, panics) = (random.u8(0..7) == 0, random.u8(0..14) == 0);
        (millis(&mut random, 0..=most), fails && !is_good, panics && !is_good)
    };
    sleep(work / 2).await;
    let count = execution.read_counter();
    sleep(work / 2).await;
    execution.write_counter(count + 1);
    if fails || is_poison {
        return Err(execution.failed(Then::GiveUp));
    }
    if panics {
        // Without the message that `panic!` prints.
        std::panic::resume_unwind(Box::new("the handler panics"));
    }
    execution.answered();
    Ok(number)
}
