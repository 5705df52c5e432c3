//! Requests that DynamoDB applied although their answer was lost.

use std::time::Duration;

use lambda_lock::{Data, ErrorKind};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;

use crate::{CLOCK_SKEW, LEASE, eagerly, lose_answers, number, text};

#[tokio::test]
async fn an_acquire_with_a_lost_answer_succeeds() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=1)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").data("page 1").await.unwrap();
    assert_eq!(host.requests(), 2);
    let row = world.row("job").await.unwrap();
    assert_eq!((&row["owner"], number(&row, "fence")), (&text(lock.owner()), lock.fence()));
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 1"));
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_none());
    lock.release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_without_any_answer_succeeds_at_the_next_attempt() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = locks.acquire("job").wait(eagerly()).await.unwrap();
    assert_eq!(host.requests(), 4);
    let row = world.row("job").await.unwrap();
    assert_eq!((&row["owner"], number(&row, "fence")), (&text(lock.owner()), lock.fence()));
    // The lease is the one that the first request wrote.
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_that_fails_without_an_answer_releases_the_key() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=3)).build();
    let error = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let lock = world.default_locks().acquire("job").wait(eagerly().up_to(LEASE / 3)).await.unwrap();
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_with_a_lost_answer_succeeds() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=2)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.renew(Duration::from_mins(10)).await.unwrap();
    assert_eq!(host.requests(), 3);
    assert!(lock.remaining() > Duration::from_mins(9));
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_after_an_unanswered_renewal_succeeds() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.renew(Duration::from_mins(10)).await.unwrap_err();
    lock.renew(Duration::from_mins(20)).await.unwrap();
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_release_with_a_lost_answer_succeeds() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=2)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.release().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_release_with_a_lost_answer_succeeds_after_the_next_acquire() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.release().await.unwrap_err();
    let next = world.default_locks().acquire("job").await.unwrap();
    let row = world.row("job").await;
    lock.release().await.unwrap();
    assert_eq!(world.row("job").await, row);
    next.release().await.unwrap();
}
