//! Keys that are asked for more often than a partition of DynamoDB can answer.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::{ErrorKind, Locks};
use tokio::time::sleep;

/// A lock's row costs one unit for each request.
const UNITS: u32 = 10;

async fn limited() -> (DynamoDb, Locks) {
    let dynamodb = DynamoDb::new().unwrap();
    Locks::builder(dynamodb.client(), "locks").build().unwrap().create_table().await.unwrap();
    let dynamodb = dynamodb.limit_partitions(UNITS);
    let locks = without_retries(&dynamodb.host().build());
    (dynamodb, locks)
}

fn without_retries(host: &Host) -> Locks {
    let config = host.client().config().to_builder().retry_config(RetryConfig::disabled()).build();
    Locks::builder(Client::from_conf(config), "locks").build().unwrap()
}

/// Asks for a key that is held until it is throttled. Returns how many requests were answered.
async fn refusals(locks: &Locks, key: &str) -> u32 {
    for answered in 0..1000 {
        match locks.try_acquire(key).await {
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Throttled => return answered,
            other => panic!("{other:?}"),
        }
    }
    panic!("nothing was throttled");
}

/// Acquires a key whose row has so many bytes of data, and keeps it.
async fn keep(locks: &Locks, key: &str, bytes: usize) {
    let lock = locks.acquire(key).lease(Duration::from_hours(24)).data("x".repeat(bytes)).await.unwrap();
    drop(lock.into_ticket());
    sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_answers_its_units_and_more_after_a_while() {
    let (_, locks) = limited().await;
    keep(&locks, "job", 0).await;
    // Refused writes cost as much as others.
    assert_eq!(refusals(&locks, "job").await, UNITS);
    // Throttled ones cost nothing.
    assert_eq!(refusals(&locks, "job").await, 0);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(refusals(&locks, "job").await, UNITS / 2);
    // The reserve is that of one second.
    sleep(Duration::from_hours(1)).await;
    assert_eq!(refusals(&locks, "job").await, UNITS);
    // Other keys have their own limit.
    locks.acquire("other").await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_write_costs_a_unit_for_each_kilobyte_of_its_row() {
    let (_, locks) = limited().await;
    keep(&locks, "job", 4 * 1024).await;
    assert_eq!(refusals(&locks, "job").await, UNITS / 5);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_on_a_partition_that_is_exhausted_is_cancelled() {
    let (_, locks) = limited().await;
    keep(&locks, "job", 0).await;
    assert_eq!(refusals(&locks, "job").await, UNITS);
    let error = locks.acquire_all(["job", "other"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Throttled);
}
