//! Rates: at most N calls in a period.

mod bounds;
mod calls;
mod hot;
mod late;
mod layer;
mod pause;
mod rows;
mod weight;

use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::{Error, Locks, Rate};
use lambda_lock_tests::ms;

const KEY: &str = "bank-api";
const SECOND: Duration = Duration::from_secs(1);

async fn engine() -> DynamoDb {
    with_table(DynamoDb::new().unwrap()).await
}

async fn with_table(engine: DynamoDb) -> DynamoDb {
    Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
    engine
}

fn since(engine: &DynamoDb, started: SystemTime) -> Duration {
    engine.now().duration_since(started).unwrap()
}

/// Ten calls a second, on this host.
fn ten_a_second(host: &Host) -> Rate {
    Locks::builder(host.client(), "locks").build().unwrap().rate(KEY, 10, SECOND)
}

#[track_caller]
fn assert_refused(passed: Result<(), Error>) {
    let error = passed.unwrap_err();
    assert!(error.is_held(), "{error}");
}
