//! Durable functions that hold locks, on the embedded engine and in paused time.

mod faults;
mod held;
mod lost;
mod names;
mod nested;
mod outage;
mod panics;
mod replays;
mod service;
mod suspensions;
mod turns;
mod within;

use std::time::{Duration, SystemTime};

use aws_durable_execution_sdk::test_util::{LocalRunner, TestResult};
use aws_durable_execution_sdk::{BoxError, DurableContext};
use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Faults, Host};
use lambda_lock_durable::{DurableLock, LockContext as _};

use crate::outage::Outage;

const KEY: &str = "deploy";
const LEASE: Duration = Duration::from_mins(10);

/// What an execution takes.
type Takes = fn(&DurableContext, &Locks) -> DurableLock;

const KINDS: [Takes; 3] = [
    |ctx, locks| ctx.lock(locks, KEY),
    |ctx, locks| ctx.permit(locks, KEY, 1),
    |ctx, locks| ctx.lock_all(locks, [KEY, "other"]),
];

/// An engine in virtual time, whose requests take 5 ms.
struct Table {
    engine: DynamoDb,
    host: Host,
    locks: Locks,
    outage: Outage,
}

impl Table {
    async fn new() -> Self {
        fastrand::seed(7);
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let latency = Duration::from_micros(2500);
        let outage = Outage::of(&engine);
        let network = Faults::seeded(7).latency(latency..latency);
        let host = engine.host().faults(network).intercept(outage.clone()).build();
        let locks = Locks::builder(host.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        Self { engine, host, locks, outage }
    }

    /// Returns `true` if the key, or a permit, is held.
    async fn is_held(&self) -> bool {
        self.has_holder(KEY).await
    }

    async fn has_holder(&self, key: &str) -> bool {
        self.locks.get(key).await.unwrap().is_some_and(|holder| holder.is_current() && !holder.has_released())
    }
}

/// Runs a function with the SDK's runner, in which waits take no time.
async fn run<F, Fut>(handler: F) -> TestResult<String>
where
    F: Fn(DurableContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<String, BoxError>> + Send,
{
    LocalRunner::new().run(move |_: u32, ctx| handler(ctx), 0).await
}
