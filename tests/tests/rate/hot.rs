//! A key that is called more often than a partition of DynamoDB can answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use lambda_lock::{ErrorKind, Locks};
use tokio::time::sleep;

use crate::{KEY, SECOND, engine, ms};

/// How many writes a partition takes in a second.
const CEILING: u32 = 200;
const SECONDS: u32 = 5;

/// Calls come at twice the ceiling, from a host each, and the rate is the ceiling.
#[tokio::test(start_paused = true)]
async fn at_twice_the_ceiling_four_fifths_of_it_pass() {
    let engine = engine().await.limit_partitions(CEILING);
    let passed = Arc::new(AtomicU32::new(0));
    let calls = (0..2 * CEILING * SECONDS).map(|number| {
        let (engine, passed) = (engine.clone(), Arc::clone(&passed));
        async move {
            sleep(SECOND * number / (2 * CEILING)).await;
            let locks = Locks::builder(engine.host().build().client(), "locks").build().unwrap();
            match locks.rate(KEY, CEILING, SECOND).pass_within(ms(500)).await {
                Ok(()) => {
                    passed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Held | ErrorKind::Throttled), "{error}"),
            }
        }
    });
    join_all(calls).await;
    let passed = passed.load(Ordering::Relaxed);
    // The partition has saved up a second of writes before.
    let most = CEILING * (SECONDS + 3);
    assert!((CEILING * SECONDS * 4 / 5..=most).contains(&passed), "{passed}");
}
