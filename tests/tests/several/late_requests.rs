//! Transactions that arrive after their sender has stopped waiting for them, or twice.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::ErrorKind;
use lambda_lock::embedded::Faults;
use lambda_lock_tests::invocation::{TRIES, all_tries_from};
use lambda_lock_tests::{Late, Refuse, Repeats, World};

use crate::{KEYS, assert_free, eagerly, lose_answers, ms, rows, text};

#[tokio::test]
async fn a_late_duplicate_is_refused_by_its_fence_alone() {
    let world = World::new().await;
    let repeats = Repeats::transactions();
    let host = world.host().intercept(repeats.clone()).build();
    let set = world.locks(&host).build().unwrap().acquire_all(KEYS).await.unwrap();
    set.release().await.unwrap();
    // Only the fences are left of the acquisition.
    for row in rows(&world).await.map(Option::unwrap) {
        let mut row = row;
        row.insert("owner".to_owned(), text("another"));
        row.insert("in_progress_expiration".to_owned(), AttributeValue::N("1".to_owned()));
        world.put_row(row).await;
    }
    assert!(!repeats.deliver(&world, 0).await);
    world.delete_row(KEYS[0]).await;
    assert!(!repeats.deliver(&world, 0).await, "one fence is left");
    world.delete_row(KEYS[1]).await;
    assert!(repeats.deliver(&world, 0).await, "no fence is left");
}

#[tokio::test]
async fn a_late_attempt_of_a_refused_acquire_takes_no_key() {
    const WITHDRAWAL: u64 = 2;
    // The acquire leaves its number with the first key, and releases what it has of all. If the first key has no row, the acquire
    // has none of them, but it needs another request, which writes that row.
    for key in KEYS {
        let world = World::new().await;
        let holder = world.default_locks().acquire(key).await.unwrap();
        // The clock is ahead: the release below seems to be earlier than the request.
        let late = Late::transactions(1..=1);
        let host = world.host().clock_ahead(ms(900)).intercept(late.clone()).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        assert!(locks.acquire_all(KEYS).await.unwrap_err().is_held());
        assert_eq!(host.requests(), 2 + WITHDRAWAL);
        holder.release().await.unwrap();

        assert!(!late.deliver(&world).await, "{key}");
        locks.flush(Duration::from_mins(1)).await.unwrap();
        assert_eq!(host.requests(), 2 + WITHDRAWAL);
        assert_free(&world).await;
    }
}

#[tokio::test]
async fn a_withdrawal_after_a_late_attempt_was_applied_releases_every_key() {
    let world = World::new().await;
    let late = Late::transactions(all_tries_from(1));
    // The attempt arrives while the withdrawal is under way.
    let slow = Faults::seeded(1).latency(ms(100)..ms(100));
    let host = world.host().intercept(late.clone()).faults(slow).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.acquire_all(KEYS).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(late.deliver(&world).await);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_free(&world).await;
}

/// An attempt was applied, and its answer was lost. The row of the first key changes before each request of the withdrawal.
#[tokio::test]
async fn a_withdrawal_that_is_refused_each_time_ends() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(all_tries_from(1))).intercept(Refuse::writes_from(4)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.acquire_all(KEYS).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(locks.flush(Duration::from_mins(1)).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(host.requests(), TRIES + 3);
}

/// The withdrawal begins with the number of the second attempt, which has taken nothing.
#[tokio::test]
async fn a_withdrawal_after_two_attempts_releases_what_the_first_one_took() {
    let world = World::new().await;
    let late = Late::transactions(all_tries_from(4));
    let host = world.host().intercept(lose_answers(all_tries_from(1))).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let error = locks.acquire_all(KEYS).wait(eagerly().max_attempts(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_free(&world).await;
    assert!(!late.deliver(&world).await);
}
