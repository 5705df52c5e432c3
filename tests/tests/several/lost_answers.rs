//! Transactions that DynamoDB applied although their answer was lost.

use std::time::Duration;

use lambda_lock::embedded::Intercept;
use lambda_lock::{Backoff, ErrorKind, Jitter};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;
use serde_json::Value;

use crate::{CLOCK_SKEW, KEYS, LEASE, assert_free, assert_held_by, eagerly, lose_answers, number, rows};

/// Removes the tokens, as if DynamoDB had forgotten them after ten minutes.
#[derive(Debug)]
struct ForgetTokens;

impl Intercept for ForgetTokens {
    fn request(&self, _: &str, request: &mut Value) {
        request.as_object_mut().unwrap().remove("ClientRequestToken");
    }
}

#[tokio::test]
async fn an_acquire_with_a_lost_answer_succeeds() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=1)).build();
    let set = world.locks_with_quick_retries(&host).build().unwrap().acquire_all(KEYS).await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_held_by(&world, &set).await;
    set.release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_with_a_lost_answer_succeeds_when_its_token_is_forgotten() {
    let world = World::new().await;
    let host = world.host().intercept(ForgetTokens).intercept(lose_answers(1..=1)).build();
    let set = world.locks_with_quick_retries(&host).build().unwrap().acquire_all(KEYS).await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_held_by(&world, &set).await;
    set.release().await.unwrap();
    assert_free(&world).await;
}

#[tokio::test]
async fn an_acquire_without_any_answer_succeeds_at_the_next_attempt() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let set = locks.acquire_all(KEYS).wait(eagerly()).await.unwrap();
    assert_eq!(host.requests(), 4);
    assert_held_by(&world, &set).await;
    // The lease is the one that the first request wrote.
    for row in rows(&world).await.map(Option::unwrap) {
        assert_eq!(number(&row, "in_progress_expiration"), millis(set.expires_at() + CLOCK_SKEW));
    }
    set.release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_that_finds_its_own_effect_partly_lost_starts_again() {
    for lost in KEYS {
        let world = World::new().await;
        let host = world.host().intercept(lose_answers(1..=3)).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let slowly = Backoff::new().base(crate::ms(200)).jitter(Jitter::None);
        let acquiring = tokio::spawn(locks.acquire_all(KEYS).wait(slowly).into_future());
        while world.row(lost).await.is_none() {
            tokio::time::sleep(crate::ms(5)).await;
        }
        // An operator frees one of the keys.
        let operator = world.default_locks();
        let seen = operator.get(lost).await.unwrap().unwrap();
        assert!(operator.force_release(lost, &seen).await.unwrap());
        let set = acquiring.await.unwrap().unwrap();
        assert_held_by(&world, &set).await;
        set.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_acquire_that_fails_without_an_answer_releases_the_keys() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let error = locks.acquire_all(KEYS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    crate::assert_contains(&error, &["keys `account#1`, `account#2` in table"]);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(host.requests(), 3 + 2, "it releases the keys, and leaves its number with one");
    assert_free(&world).await;
}

#[tokio::test]
async fn a_renewal_with_a_lost_answer_succeeds() {
    for forgets in [false, true] {
        let world = World::new().await;
        let host = world.host();
        let host = if forgets { host.intercept(ForgetTokens) } else { host };
        let host = host.intercept(lose_answers(2..=2)).build();
        let set = world.locks_with_quick_retries(&host).build().unwrap().acquire_all(KEYS).await.unwrap();
        set.renew(10 * LEASE).await.unwrap();
        assert_eq!(host.requests(), 3);
        assert!(set.remaining() > 9 * LEASE);
        for row in rows(&world).await.map(Option::unwrap) {
            assert_eq!(number(&row, "in_progress_expiration"), millis(set.expires_at() + CLOCK_SKEW));
        }
        set.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_release_with_a_lost_answer_succeeds() {
    for forgets in [false, true] {
        let world = World::new().await;
        let host = world.host();
        let host = if forgets { host.intercept(ForgetTokens) } else { host };
        let host = host.intercept(lose_answers(2..=2)).build();
        let set = world.locks_with_quick_retries(&host).build().unwrap().acquire_all(KEYS).await.unwrap();
        set.release().await.unwrap();
        assert_eq!(host.requests(), 3);
        assert_free(&world).await;
    }
}

#[tokio::test]
async fn a_release_without_any_answer_succeeds_after_the_next_acquire() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let set = world.locks_with_quick_retries(&host).build().unwrap().acquire_all(KEYS).await.unwrap();
    let error = set.release().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && !set.is_valid());
    // One key has another holder already. The other one is free.
    let next = world.default_locks().acquire(KEYS[0]).await.unwrap();
    let row = world.row(KEYS[0]).await;
    set.release().await.unwrap();
    assert_eq!(world.row(KEYS[0]).await, row);
    next.release().await.unwrap();
    assert_free(&world).await;
}
