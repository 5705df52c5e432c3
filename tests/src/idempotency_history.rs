//! Histories of idempotent work: several hosts with wrong clocks and bad networks get the same few inputs again and
//! again, crash, overrun, are cancelled and come back. A seed determines each history, which runs in paused time. A
//! ledger sees every request as it is applied, every run of the work and every answer. It reports at the end whether
//! the guarantees held.

pub(crate) mod ledger;
pub(crate) mod mutations;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use fastrand::Rng;
use futures_util::FutureExt;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::{OnMissingKey, StoredError};
use lambda_lock::{HandlerError, Idempotency, IdempotencyLayer, OnError, OnUnfinished, Run, WithRun};
use lambda_runtime::{Diagnostic, LambdaEvent};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, service_fn};

use crate::history::frame::{self, History, Set};
use crate::history::stage::{Network, Stage, TABLE, backoff, millis};
use crate::history::{Mutation, Outcome, counts};
use crate::invocation::invocation_with;
use ledger::{Call, Execution, Kept};
pub use mutations::MUTATIONS;

/// How late a request can arrive, also for queues and streams. Some windows are shorter, some longer.
pub(crate) const LATEST_ARRIVAL: Duration = Duration::from_secs(20);

counts! {
    /// Runs of the work.
    runs,
    /// Runs after an unfinished run of the same key.
    taken_over,
    /// Answers that came from another run.
    replayed,
    /// Answers from another run that were stored errors.
    replayed_errors,
    /// Answers from another run that sent no request.
    cached,
    /// Refusals because of a run in progress.
    in_progress,
    /// Refusals because of a run that did not finish.
    unfinished,
    /// Runs whose handler failed.
    failed,
    /// Runs that were cancelled at the end of their lease.
    overran,
    /// Runs whose host crashed, whose invocation was cancelled, or that panicked.
    crashed,
    /// Outcomes stored.
    completed,
    /// Outcomes stored in a transaction of the handler.
    committed,
    /// Runs that had another result after a failed transaction.
    fell_back,
    /// Transactions that DynamoDB cancelled.
    transactions_cancelled,
    /// Runs after the window of an earlier one of the same key.
    windows_ended,
    /// Rows deleted by TTL.
    swept,
    /// Requests that arrived.
    requests,
}

/// Runs the history of a seed, with the protocol or with a mutation of it.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>) -> Outcome<Counts> {
    frame::run::<Scene>(seed, mutation)
}

type Scene = Set<Kept, Own>;

struct Own {
    /// By key.
    terms: Vec<Terms>,
}

/// Settings of all calls with a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) window: Duration,
    pub(crate) reject_unfinished: bool,
    /// The work is a write into the same table, committed together with the result.
    pub(crate) transactional: bool,
}

impl Terms {
    fn draw(random: &mut Rng, clock_skew: Duration) -> Self {
        let shortest = Duration::from_secs(1) + 2 * clock_skew;
        Self {
            window: match random.u8(0..4) {
                0 | 1 => shortest + millis(random, 0..=4000),
                2 => LATEST_ARRIVAL + millis(random, 1000..=20_000),
                _ => Duration::from_hours(1),
            },
            reject_unfinished: random.u8(0..3) == 0,
            transactional: random.bool(),
        }
    }
}

fn key(number: usize) -> String {
    format!("key {number}")
}

fn business(key: &str) -> AttributeValue {
    AttributeValue::S(format!("business of {key}"))
}

impl History for Scene {
    const LATEST_ARRIVAL: Duration = LATEST_ARRIVAL;

    fn set(_: u64, stage: Stage, random: &mut Rng) -> Self {
        // A run that nothing prevents sends two requests.
        let stage = stage.with_write_units(|drawn| drawn.div_ceil(3));
        let terms: Vec<_> = (0..random.usize(1..=3)).map(|_| Terms::draw(random, stage.longest_skew())).collect();
        let of_keys = terms.iter().enumerate().map(|(number, terms)| (key(number), *terms)).collect();
        Self::new(stage, Kept::of(of_keys), Own { terms })
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        worker(scene, number, random)
    }

    async fn sweep(&self) {
        self.ledger.sweep(Duration::from_secs(7), |counts| &mut counts.swept).await;
    }

    /// At the end, hosts with good networks get an answer for each key, and the business writes are counted.
    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        let mut unfinished = Vec::new();
        for (number, terms) in scene.terms.iter().enumerate() {
            let ask = async |how: &str, random: &mut Rng| {
                let function = scene.function(random, Network::Good);
                let call = Call::new(&format!("{how} for {}", key(number)), key(number), Arc::clone(&scene.ledger));
                function.call(scene, number, &call, Plan::IMMEDIATE, random.fork()).await;
                call
            };
            let last = ask("last call", random).await;
            if last.was_unfinished() {
                unfinished.push(number);
            } else {
                last.must_have_answered("(vi) a good host got no answer");
                ask("repeated call", random).await.must_have_answered("(vi) the answer was not repeated");
            }
            if terms.transactional {
                scene.ledger.count_business(&key(number), scene.business_writes(number).await);
            }
        }
        // An unfinished run is not refused forever.
        sleep(Duration::from_hours(2)).await;
        for number in unfinished {
            let call =
                Call::new(&format!("call for {} hours later", key(number)), key(number), Arc::clone(&scene.ledger));
            scene.function(random, Network::Good).call(scene, number, &call, Plan::IMMEDIATE, random.fork()).await;
            call.must_have_answered("(vi) a good host got no answer after the window");
        }
        scene.ledger.check_ends();
    }
}

impl Scene {
    fn function(&self, random: &mut Rng, network: Network) -> Function {
        let host = self.host(random, network);
        let cache = if random.bool() { 10 } else { 0 };
        let locks = self.stage.locks(&host);
        let orders = self.terms.iter().map(|terms| {
            let of_order = |order: &Order| Some(order.key.clone());
            let of_event = |event: &LambdaEvent<Order>| Some(event.payload.key.clone());
            Orders {
                by_order: terms.apply(Idempotency::new(locks.clone(), OnMissingKey::Reject, of_order), cache),
                by_event: terms.apply(Idempotency::new(locks.clone(), OnMissingKey::Reject, of_event), cache),
            }
        });
        Function { orders: orders.collect(), host }
    }

    async fn business_writes(&self, number: usize) -> u64 {
        let read = self.stage.engine.client().get_item().table_name(TABLE).consistent_read(true);
        let row = read.key("id", business(&key(number))).send().await.unwrap().item;
        row.map_or(0, |row| row["writes"].as_n().unwrap().parse().unwrap())
    }
}

/// The input of a call.
#[derive(Clone, Debug)]
struct Order {
    key: String,
}

/// The handler's error.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    execution: u64,
    then: Then,
}

impl From<Failure> for Diagnostic {
    fn from(failure: Failure) -> Self {
        Self { error_type: "Failure".to_owned(), error_message: failure.execution.to_string() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    GiveUp,
    Keep,
    Store,
}

impl Terms {
    fn apply<I>(&self, idempotency: Idempotency<I, u64, Failure>, cache: usize) -> Idempotency<I, u64, Failure> {
        idempotency
            .prefix("")
            .window(self.window)
            .on_unfinished(if self.reject_unfinished { OnUnfinished::Reject } else { OnUnfinished::RunAgain })
            .cache(cache)
            .on_error(|failure: &Failure| match failure.then {
                Then::GiveUp => OnError::Release,
                Then::Keep => OnError::Keep,
                Then::Store => OnError::Store(StoredError::new("Failure", failure.execution.to_string())),
            })
    }
}

/// A host with the settings and caches that its invocations share.
#[derive(Debug)]
struct Function {
    host: Host,
    /// By key.
    orders: Vec<Orders>,
}

#[derive(Debug)]
struct Orders {
    by_order: Idempotency<Order, u64, Failure>,
    by_event: Idempotency<LambdaEvent<Order>, u64, Failure>,
}

/// The plan of one run of the work.
#[derive(Clone, Copy, Debug)]
struct Plan {
    before: Duration,
    during: Duration,
    after: Duration,
    ending: Ending,
    /// The transaction fails because of its own condition.
    declined: bool,
    /// After a failed transaction, the work has another result instead of an error.
    falls_back: bool,
    /// The process is frozen before it sends the transaction, and sends it even after its lease.
    frozen: Option<Duration>,
    lease: Duration,
    /// How long to wait for a run in progress.
    wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Answer,
    Fail(Then),
    Panic,
}

impl Plan {
    const IMMEDIATE: Self = Self {
        before: Duration::ZERO,
        during: Duration::ZERO,
        after: Duration::ZERO,
        ending: Ending::Answer,
        declined: false,
        falls_back: false,
        frozen: None,
        lease: Duration::from_secs(2),
        wait: Duration::from_mins(2),
    };

    fn draw(random: &mut Rng) -> Self {
        let lease = millis(random, 300..=2500);
        // Most runs finish in time. Some last until the end of the lease, or overrun it.
        let work = lease.mul_f64(if random.u8(0..4) == 0 { 0.7 + random.f64() } else { random.f64() / 2.0 });
        let (one, other) = (random.f64(), random.f64());
        Self {
            before: work.mul_f64(one.min(other)),
            during: work.mul_f64((one - other).abs()),
            after: work.mul_f64(1.0 - one.max(other)),
            ending: match random.u8(0..12) {
                0 => Ending::Fail(Then::GiveUp),
                1 => Ending::Fail(if random.bool() { Then::Keep } else { Then::Store }),
                2 => Ending::Panic,
                _ => Ending::Answer,
            },
            declined: random.u8(0..3) == 0,
            falls_back: random.u8(0..4) > 0,
            frozen: (random.u8(0..6) == 0).then(|| millis(random, 0..=4000)),
            lease,
            wait: if random.u8(0..3) == 0 { millis(random, 0..=6000) } else { Duration::ZERO },
        }
    }
}

/// A worker: one host after another, with one call after another.
async fn worker(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let network = Network::draw(&mut random);
    let mut function = scene.function(&mut random, network);
    for step in 0..random.usize(3..=7) {
        // Occasional pauses let windows end, and let rows expire and be deleted.
        let pause = match random.u8(0..20) {
            0 => 60_000..=150_000,
            1..=4 => 1000..=8000,
            _ => 0..=300,
        };
        sleep(millis(&mut random, pause)).await;
        let key_number = random.usize(0..scene.terms.len());
        let call = |name: String| Call::new(&name, key(key_number), Arc::clone(&scene.ledger));
        let first = call(format!("worker {number} step {step}"));
        // Occasionally a concurrent duplicate in the same environment.
        let twin = (random.u8(0..5) == 0).then(|| call(format!("worker {number} step {step} twin")));
        let (plan, twins_plan) = (Plan::draw(&mut random), Plan::draw(&mut random));
        let (seed, twins_seed) = (random.fork(), random.fork());
        let calls = async {
            let twin = async {
                if let Some(twin) = &twin {
                    function.call(&scene, key_number, twin, twins_plan, twins_seed).await;
                }
            };
            tokio::join!(function.call(&scene, key_number, &first, plan, seed), twin);
        };
        let mut calls = Box::pin(calls);
        let (is_crash, limit) = match random.u8(0..10) {
            // The host crashes at this point, and another one replaces it.
            0 | 1 => (true, millis(&mut random, 0..=2500)),
            // The invocation is cancelled, and the host continues.
            2 => (false, millis(&mut random, 0..=1500)),
            _ => {
                calls.await;
                continue;
            }
        };
        if timeout(limit, &mut calls).await.is_ok() {
            continue;
        }
        if is_crash {
            function.host.crash();
        }
        drop(calls);
        let mut was_under_way = false;
        for call in [Some(&first), twin.as_ref()].into_iter().flatten() {
            call.gone(if is_crash { "crashed" } else { "was cancelled" });
            was_under_way |= is_crash && call.crashed();
        }
        if was_under_way {
            tokio::spawn(successor(Arc::clone(&scene), key_number, random.fork()));
        }
        if is_crash {
            function = scene.function(&mut random, network);
        }
    }
}

/// A host with a good network that repeats the call of a crashed host.
async fn successor(scene: Arc<Scene>, key_number: usize, mut random: Rng) {
    let function = scene.function(&mut random, Network::Good);
    let name = format!("successor {:08x}", random.u32(..));
    let call = Call::new(&name, key(key_number), Arc::clone(&scene.ledger));
    function.call(&scene, key_number, &call, Plan::IMMEDIATE, random.fork()).await;
    // A transaction that is throttled fails its run.
    if !call.was_unfinished() && !scene.stage.is_throttled() {
        call.must_have_answered("(vi) the key of a crashed run got no answer");
    }
}

impl Function {
    /// Calls the work through `run` or through the layer, and reports the answer to the ledger.
    async fn call(&self, scene: &Arc<Scene>, key_number: usize, call: &Call, plan: Plan, mut random: Rng) {
        let (order, orders) = (Order { key: key(key_number) }, &self.orders[key_number]);
        let (requests, client) = (self.host.requests(), self.host.client());
        let terms = scene.terms[key_number];
        // Boxed because the future is large.
        let answer: Pin<Box<dyn Future<Output = Answer> + Send>> = if random.bool() {
            let (call, orders) = (call.clone(), orders.by_order.clone().lease(plan.lease).wait(backoff(plan.wait)));
            Box::pin(
                async move { orders.run(&order, async |run| work(call, client, run.clone(), terms, plan).await).await },
            )
        } else {
            let orders = orders.by_event.clone().wait(backoff(plan.wait));
            // Lambda's deadline is the end of the lease, or leaves time for a wait before it.
            let (time_left, orders) = match plan.wait {
                Duration::ZERO => (plan.lease, orders),
                wait => (wait + plan.lease, orders.lease(plan.lease)),
            };
            let handler = service_fn({
                let call = call.clone();
                move |WithRun { run, .. }: WithRun<LambdaEvent<Order>>| {
                    work(call.clone(), client.clone(), run, terms, plan)
                }
            });
            IdempotencyLayer::new(orders).layer(handler).call(invocation_with(&self.host, order, time_left))
        };
        let answer = AssertUnwindSafe(answer).catch_unwind().await;
        match answer {
            Ok(answer) => call.answered(answer, self.host.requests() == requests),
            Err(_) => call.gone("panicked"),
        }
    }
}

/// Added to the number of a run, this is its result after a failed transaction.
pub(crate) const FALLBACK: u64 = 1_000_000;

/// The work: increments an unprotected counter, and in a transaction another one in DynamoDB.
async fn work(call: Call, client: Client, run: Run, terms: Terms, plan: Plan) -> Result<u64, Failure> {
    let execution = call.began(&run, plan.lease);
    let number = execution.number;
    sleep(plan.before).await;
    let count = execution.read_counter();
    sleep(plan.during).await;
    execution.write_counter(count + 1);
    match plan.ending {
        Ending::Fail(then) => return Err(execution.failed(then)),
        // Without the message that `panic!` prints.
        Ending::Panic if !terms.transactional => resume_unwind(Box::new("the work panics")),
        Ending::Answer | Ending::Panic => {}
    }
    if terms.transactional {
        let completion = run.complete_in(&number).unwrap();
        execution.completing();
        let transaction = Box::pin(commit(client, call.key.clone(), completion, plan.declined));
        let committed = match plan.frozen {
            None => transaction.await,
            Some(frozen) => {
                let thawed = async move {
                    sleep(frozen).await;
                    transaction.await
                };
                tokio::spawn(thawed).await.unwrap()
            }
        };
        if committed.is_err() && plan.falls_back {
            let number = execution.number;
            execution.answered_otherwise();
            return Ok(FALLBACK + number);
        }
        if committed.is_err() {
            return Err(execution.failed(Then::GiveUp));
        }
    }
    sleep(plan.after).await;
    if plan.ending == Ending::Panic {
        resume_unwind(Box::new("the work panics"));
    }
    execution.answered();
    Ok(number)
}

async fn commit(client: Client, key: String, completion: TransactWriteItem, declined: bool) -> Result<(), ()> {
    let write = Update::builder()
        .table_name(TABLE)
        .key("id", business(&key))
        .update_expression("ADD writes :one")
        .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
        .set_condition_expression(declined.then(|| "attribute_exists(nothing)".to_owned()))
        .build()
        .unwrap();
    let transaction = client.transact_write_items().transact_items(completion);
    let transaction = transaction.transact_items(TransactWriteItem::builder().update(write).build());
    transaction.send().await.map(drop).map_err(drop)
}

/// The outcome of a call.
pub(crate) type Answer = Result<u64, HandlerError<Failure>>;

impl Execution {
    pub(crate) fn failed(self, then: Then) -> Failure {
        let execution = self.number;
        self.ended_with_failure(then);
        Failure { execution, then }
    }
}
