//! This crate's lock beside that of `dynamodb-lease`, both with a lease of 2 s and otherwise their defaults, on the
//! embedded engine, where each request takes 5 ms. In real time, because the other crate reads the system's clock.
//!
//! `--test` makes few runs. Ratios count; times are those of this machine.

use std::future::Future;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TimeToLiveSpecification,
};
use dynamodb_lease::{Client, Lease};
use futures_util::future::join_all;
use lambda_lock::embedded::{DynamoDb, Faults, Host};
use lambda_lock::{Lock, Locks};
use tokio::time::sleep;

const KEY: &str = "report";
const PROCESSES: u32 = 8;
const HOLD: Duration = Duration::from_millis(20);
/// The shortest that `dynamodb-lease` allows. Its default is a minute.
const LEASE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_mins(2);

/// The lock of one process.
trait Peer {
    type Held;

    fn over(host: &Host) -> impl Future<Output = Self>;
    fn acquire(&self) -> impl Future<Output = Self::Held>;
    fn release(held: Self::Held) -> impl Future<Output = ()>;
}

impl Peer for Locks {
    type Held = Lock;

    async fn over(host: &Host) -> Self {
        Self::builder(host.client(), "locks").lease(LEASE).build().unwrap()
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

    async fn acquire(&self) -> Lease {
        self.acquire_timeout(KEY, WAIT).await.unwrap()
    }

    async fn release(held: Lease) {
        held.release().await.unwrap();
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

fn host(engine: &DynamoDb) -> Host {
    let each_way = Duration::from_micros(2500);
    engine.host().faults(Faults::seeded(1).latency(each_way..each_way)).build()
}

/// Returns how many requests these hosts have sent.
fn count(hosts: &[Host]) -> f64 {
    hosts.iter().map(|host| f64::from(u32::try_from(host.requests()).unwrap())).sum()
}

/// Lets processes hold the key in turn. Returns the time of all rounds, as a multiple of holds and requests without contention,
/// and the requests of each acquisition.
async fn contend<P: Peer>(rounds: u32) -> (f64, f64) {
    let engine = engine().await;
    let hosts: Vec<_> = (0..PROCESSES).map(|_| host(&engine)).collect();
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
    let acquisitions = PROCESSES * rounds;
    let alone = (HOLD + Duration::from_millis(10)) * acquisitions;
    (took.as_secs_f64() / alone.as_secs_f64(), (after - before) / f64::from(acquisitions))
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
    let (ours, theirs) = (contend::<Locks>(rounds).await, contend::<Client>(rounds).await);
    println!("{:<48}{:>14}{:>16}{:>8}", format!("{PROCESSES} processes"), "lambda-lock", "dynamodb-lease", "ratio");
    for (what, ours, theirs) in
        [("multiple of hold + 2 requests", ours.0, theirs.0), ("requests of each acquisition", ours.1, theirs.1)]
    {
        println!("{what:<48}{ours:>14.2}{theirs:>16.2}{:>8.2}", theirs / ours);
    }
}
