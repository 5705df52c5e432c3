//! Keys that are asked for more often than a partition of DynamoDB can answer.

use std::convert::Infallible;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{ErrorKind, Idempotency, Locks};
use tokio::time::sleep;

/// A lock's row costs one unit for each request.
const UNITS: u32 = 10;

/// Asks for a key that is held until it is throttled. Returns how many requests were answered.
async fn refusals(locks: &Locks) -> u32 {
    for answered in 0..1000 {
        match locks.try_acquire("job").await {
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Throttled => return answered,
            other => panic!("{other:?}"),
        }
    }
    panic!("nothing was throttled");
}

#[tokio::test(start_paused = true)]
async fn a_partition_answers_its_units_and_more_after_a_while() {
    let dynamodb = DynamoDb::new().unwrap();
    Locks::builder(dynamodb.client(), "locks").build().unwrap().create_table().await.unwrap();
    let host = dynamodb.limit_partitions(UNITS).host().build();
    let config = host.client().config().to_builder().retry_config(RetryConfig::disabled()).build();
    let locks = Locks::builder(Client::from_conf(config), "locks").build().unwrap();
    locks.acquire("job").lease(Duration::from_hours(24)).await.unwrap().keep();
    sleep(Duration::from_secs(1)).await;
    // Refused writes cost as much as others.
    assert_eq!(refusals(&locks).await, UNITS);
    // Throttled ones cost nothing.
    assert_eq!(refusals(&locks).await, 0);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(refusals(&locks).await, UNITS / 2);
    // The reserve is that of one second.
    sleep(Duration::from_hours(1)).await;
    assert_eq!(refusals(&locks).await, UNITS);
    // Other keys have their own limit.
    locks.acquire("other").await.unwrap().release().await.unwrap();
}

/// What a partition of DynamoDB takes in a second.
const CEILING: u32 = 1000;

/// What the clock of the host moves between two operations. The next acquire would ask twice at the same moment as the release.
const BETWEEN: Duration = Duration::from_micros(10);

/// Returns how often an operation on one key can be done before it is throttled, with the units of one second.
async fn times(locks: &Locks, host: &Host, operation: impl AsyncFn() -> bool) -> u32 {
    // The reserve is full.
    locks.acquire("another").await.unwrap().release().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    let mut now = host.now();
    let mut times = 0;
    loop {
        // Without a latency, only the pause after a throttle takes time.
        if !operation().await || host.now() > now {
            return times;
        }
        times += 1;
        host.advance_clock(BETWEEN);
        now = host.now();
    }
}

#[tokio::test(start_paused = true)]
async fn the_ceilings_of_one_key_are_those_of_the_guide() {
    let dynamodb = DynamoDb::new().unwrap().limit_partitions(CEILING);
    let host = dynamodb.host().build();
    // A name of 30 bytes.
    let locks = Locks::builder(host.client(), "locks").holder("report/2026-11-23/[1]/abcdefghij").build().unwrap();
    locks.create_table().await.unwrap();
    let lock = async || locks.acquire("lock").await.unwrap().release().await.is_ok();
    assert_eq!(times(&locks, &host, lock).await, 500);
    let two = async || match locks.acquire_all(["one", "two"]).await {
        Ok(lock) => lock.release().await.is_ok(),
        Err(error) => error.kind() != ErrorKind::Throttled,
    };
    assert_eq!(times(&locks, &host, two).await, 250);
    for (held, at_least) in [(10, 160), (100, 30)] {
        let semaphore = locks.semaphore(format!("{held} permits"), held);
        for _ in 1..held {
            semaphore.acquire().lease(Duration::from_hours(1)).await.unwrap().keep();
        }
        let permit = async || semaphore.acquire().await.unwrap().release().await.is_ok();
        let times = times(&locks, &host, permit).await;
        assert!(times >= at_least, "{held} permits: {times}");
    }
    // The last one overdraws the reserve.
    for (kilobytes, expected) in [(100, 10), (390, 3)] {
        let result = "x".repeat(kilobytes * 1024 - 2);
        let once = Idempotency::<usize, String, Infallible>::new(locks.clone(), OnMissingKey::Reject, |kilobytes| {
            Some(format!("{kilobytes} KB"))
        });
        let replay = async || once.run(&kilobytes, async |_| Ok(result.clone())).await.is_ok();
        assert!(replay().await);
        assert_eq!(times(&locks, &host, replay).await, expected);
    }
}
