//! Renewing a lease.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::ErrorKind;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::all_tries_from;

use crate::{CLOCK_SKEW, LEASE, lose_answers};

#[tokio::test]
async fn a_renewal_can_shorten_the_lease() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    lock.renew(Duration::from_secs(5)).await.unwrap();
    assert!(lock.remaining() <= Duration::from_secs(5));
    let later = world.host().later(Duration::from_secs(5) + 2 * CLOCK_SKEW).build();
    assert!(world.locks(&later).build().unwrap().try_acquire("job").await.unwrap().is_some());
}

/// Somebody has edited the row.
#[tokio::test]
async fn a_lock_whose_lease_has_ended_in_its_row_cannot_be_renewed() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let mut row = world.row("job").await.unwrap();
    row.insert("in_progress_expiration".to_owned(), AttributeValue::N("1".to_owned()));
    world.put_row(row.clone()).await;
    assert!(lock.is_valid(), "it does not know yet");
    assert!(lock.renew(LEASE).await.unwrap_err().is_lost());
    assert_eq!(world.row("job").await.unwrap(), row);
}

#[tokio::test]
async fn a_renewal_during_the_release_does_not_reacquire_the_key() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    for _ in 0..20 {
        let lock = locks.acquire("job").await.unwrap();
        let (_renewed, released) = tokio::join!(lock.renew(Duration::from_hours(1)), lock.release());
        released.unwrap();
        assert!(!world.default_locks().get("job").await.unwrap().unwrap().is_current());
    }
}

#[tokio::test]
async fn an_unanswered_renewal_to_a_shorter_lease_shortens_the_lock() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(all_tries_from(2))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = locks.acquire("job").lease(Duration::from_mins(1)).await.unwrap();
    assert_eq!(lock.renew(Duration::from_secs(5)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(lock.remaining() <= Duration::from_secs(5));
    lock.release().await.unwrap();
}
