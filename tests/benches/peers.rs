//! This crate's lock beside that of `dynamodb-lease`, both with a lease of 2 s and otherwise their defaults, on the
//! embedded engine, where each request takes 5 ms. In real time, because the other crate reads the system's clock: about a minute.
//!
//! `--test` makes few runs. Ratios count; times are those of this machine.

use std::borrow::Borrow;
use std::future::Future;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TimeToLiveSpecification,
};
use dynamodb_lease::{Client, Lease};
use futures_util::future::join_all;
use lambda_lock::embedded::{DynamoDb, Faults, Host};
use lambda_lock::{Lock, Locks};
use lambda_lock_tests::invocation::LoseAnswers;
use tokio::time::sleep;

const KEY: &str = "report";
const HOLD: Duration = Duration::from_millis(20);
/// The shortest that `dynamodb-lease` allows. Its default is a minute.
const LEASE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_mins(2);

/// The lock of one process.
trait Peer {
    type Held;

    fn over(host: &Host) -> impl Future<Output = Self>;
    fn try_acquire(&self) -> impl Future<Output = Option<Self::Held>>;
    fn acquire(&self) -> impl Future<Output = Self::Held>;
    fn release(held: Self::Held) -> impl Future<Output = ()>;
}

impl Peer for Locks {
    type Held = Lock;

    async fn over(host: &Host) -> Self {
        Self::builder(host.client(), "locks").lease(LEASE).build().unwrap()
    }

    async fn try_acquire(&self) -> Option<Lock> {
        self.try_acquire(KEY).await.unwrap()
    }

    async fn acquire(&self) -> Lock {
        self.acquire(KEY).wait(WAIT).await.unwrap()
    }

    async fn release(held: Lock) {
        held.release().await.unwrap();
    }
}

impl Peer for Client {
    type Held = Lease;

    async fn over(host: &Host) -> Self {
        let lease = u32::try_from(LEASE.as_secs()).unwrap();
        Self::builder().lease_ttl_seconds(lease).build_and_check_db(host.client()).await.unwrap()
    }

    async fn try_acquire(&self) -> Option<Lease> {
        self.try_acquire(KEY).await.unwrap()
    }

    async fn acquire(&self) -> Lease {
        self.acquire_timeout(KEY, WAIT).await.unwrap()
    }

    async fn release(held: Lease) {
        held.release().await.unwrap();
    }
}

/// What one crate needs.
struct Needed {
    acquire_and_release: f64,
    refusal: f64,
    /// The time of all rounds, as a multiple of holds and requests without contention.
    contended: f64,
    /// The requests of each acquisition in it.
    requests: f64,
    after_a_lost_answer: Duration,
    after_a_crash: Duration,
}

impl Needed {
    async fn by<P: Peer>(rounds: u32) -> Self {
        let engine = engine().await;
        let first = host(&engine, None);
        let one = P::over(&first).await;
        let before = count(&[&first]);
        P::release(one.try_acquire().await.unwrap()).await;
        let acquire_and_release = count(&[&first]) - before;

        let held = one.try_acquire().await.unwrap();
        let refused = host(&engine, None);
        let other = P::over(&refused).await;
        let before = count(&[&refused]);
        assert!(other.try_acquire().await.is_none());
        let refusal = count(&[&refused]) - before;
        P::release(held).await;

        let (contended, requests) = contend::<P>(&engine, 8, rounds).await;
        Self {
            acquire_and_release,
            refusal,
            contended,
            requests,
            after_a_lost_answer: after_a_lost_answer::<P>(&engine).await,
            after_a_crash: after_a_crash::<P>(&engine).await,
        }
    }
}

/// Returns an engine with the tables of both.
async fn engine() -> DynamoDb {
    let engine = DynamoDb::new().unwrap();
    let client = engine.client();
    Locks::builder(client.clone(), "locks").build().unwrap().create_table().await.unwrap();
    let id =
        AttributeDefinition::builder().attribute_name("key").attribute_type(ScalarAttributeType::S).build().unwrap();
    let key = KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash).build().unwrap();
    let table = client.create_table().table_name("leases").billing_mode(BillingMode::PayPerRequest);
    table.attribute_definitions(id).key_schema(key).send().await.unwrap();
    let expiry = TimeToLiveSpecification::builder().attribute_name("lease_expiry").enabled(true).build().unwrap();
    client.update_time_to_live().table_name("leases").time_to_live_specification(expiry).send().await.unwrap();
    engine
}

fn host(engine: &DynamoDb, intercept: Option<LoseAnswers>) -> Host {
    let each_way = Duration::from_micros(2500);
    let host = engine.host().faults(Faults::seeded(1).latency(each_way..each_way));
    match intercept {
        Some(intercept) => host.intercept(intercept).build(),
        None => host.build(),
    }
}

/// Returns how many requests these hosts have sent.
fn count<H: Borrow<Host>>(hosts: &[H]) -> f64 {
    hosts.iter().map(|host| f64::from(u32::try_from(host.borrow().requests()).unwrap())).sum()
}

/// Lets processes hold the key in turn.
async fn contend<P: Peer>(engine: &DynamoDb, processes: u32, rounds: u32) -> (f64, f64) {
    let hosts: Vec<_> = (0..processes).map(|_| host(engine, None)).collect();
    let peers = join_all(hosts.iter().map(P::over)).await;
    let before = count(&hosts);
    let start = now();
    join_all(peers.iter().map(async |peer| {
        for _ in 0..rounds {
            let held = peer.acquire().await;
            sleep(HOLD).await;
            P::release(held).await;
        }
    }))
    .await;
    let took = start.elapsed();
    let after = count(&hosts);
    let acquisitions = processes * rounds;
    let alone = (HOLD + Duration::from_millis(10)) * acquisitions;
    (took.as_secs_f64() / alone.as_secs_f64(), (after - before) / f64::from(acquisitions))
}

/// Returns when a process has the key, if the answer to its first request is lost.
async fn after_a_lost_answer<P: Peer>(engine: &DynamoDb) -> Duration {
    // Each writes with another operation.
    let lose = |operation| host(engine, Some(LoseAnswers::to(operation, 1..=1)));
    let mut longest = Duration::ZERO;
    for host in [lose("UpdateItem"), lose("PutItem")] {
        let peer = P::over(&host).await;
        let start = now();
        let held = peer.acquire().await;
        longest = longest.max(start.elapsed());
        P::release(held).await;
    }
    longest
}

/// Returns when another process has the key of a process that crashed after it had acquired it.
async fn after_a_crash<P: Peer>(engine: &DynamoDb) -> Duration {
    let crashes = host(engine, None);
    let held = P::over(&crashes).await.acquire().await;
    let start = now();
    crashes.crash();
    let other = host(engine, None);
    let next = P::over(&other).await.acquire().await;
    let took = start.elapsed();
    P::release(next).await;
    drop(held);
    took
}

/// Returns the real time, which this benchmark measures.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let trial = std::env::args().any(|argument| argument == "--test");
    let rounds = if trial { 1 } else { 5 };
    let (ours, theirs) = (Needed::by::<Locks>(rounds).await, Needed::by::<Client>(rounds).await);
    println!("{:<48}{:>14}{:>16}{:>8}", "", "lambda-lock", "dynamodb-lease", "ratio");
    let row = |what: &str, unit: &str, ours: f64, theirs: f64| {
        println!(
            "{what:<48}{:>14}{:>16}{:>8.2}",
            format!("{ours:.2}{unit}"),
            format!("{theirs:.2}{unit}"),
            theirs / ours
        );
    };
    row("acquire and release, requests", "", ours.acquire_and_release, theirs.acquire_and_release);
    row("refusal, requests", "", ours.refusal, theirs.refusal);
    row("8 processes, multiple of hold + 2 requests", "", ours.contended, theirs.contended);
    row("8 processes, requests of each acquisition", "", ours.requests, theirs.requests);
    let seconds = Duration::as_secs_f64;
    row(
        "the answer is lost, lease 2 s",
        " s",
        seconds(&ours.after_a_lost_answer),
        seconds(&theirs.after_a_lost_answer),
    );
    row("the holder crashes, lease 2 s", " s", seconds(&ours.after_a_crash), seconds(&theirs.after_a_crash));
}
