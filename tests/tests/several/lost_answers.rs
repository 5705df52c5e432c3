//! Transactions that DynamoDB applied although their answer was lost.

use lambda_lock::{Backoff, ErrorKind, Jitter};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::all_tries_from;

use crate::{KEYS, assert_free, assert_held_by, lose_answers};

#[tokio::test]
async fn an_acquire_that_finds_its_own_effect_partly_lost_starts_again() {
    for lost in KEYS {
        let world = World::new().await;
        let host = world.host().intercept(lose_answers(all_tries_from(1))).build();
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
async fn a_release_without_any_answer_succeeds_after_the_next_acquire() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(all_tries_from(2))).build();
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
