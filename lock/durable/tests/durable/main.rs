//! Durable functions that hold locks, on the embedded engine and in paused time.

mod held;
mod replays;
mod service;
mod turns;

use std::time::{Duration, SystemTime};

use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Faults, Host};

const KEY: &str = "deploy";
const LEASE: Duration = Duration::from_mins(10);

/// An engine in virtual time, whose requests take 5 ms.
struct Table {
    engine: DynamoDb,
    host: Host,
    locks: Locks,
}

impl Table {
    async fn new() -> Self {
        fastrand::seed(7);
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let latency = Duration::from_micros(2500);
        let host = engine.host().faults(Faults::seeded(7).latency(latency..latency)).build();
        let locks = Locks::builder(host.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        Self { engine, host, locks }
    }

    /// Returns `true` if the key, or a permit, is held.
    async fn is_held(&self) -> bool {
        self.locks.get(KEY).await.unwrap().is_some_and(|holder| holder.is_current() && !holder.has_released())
    }
}
