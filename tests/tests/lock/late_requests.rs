//! Requests that arrive after their sender has stopped waiting for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{Data, ErrorKind};
use lambda_lock_tests::invocation::{all_tries_from, millis};
use lambda_lock_tests::{Late, Refuse, StepsClock, World};
use serde_json::{Value, json};

use crate::{RETENTION, number};

#[tokio::test]
async fn a_second_release_replaces_an_unanswered_first_release() {
    let (world, late) = (World::new().await, Late::updates(all_tries_from(2)));
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = locks.acquire("job").min_hold(Duration::from_hours(1)).await.unwrap();
    lock.set_data("first");
    assert_eq!(lock.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(late.deliver(&world).await);
    lock.set_data("second");
    lock.clear_min_hold();
    lock.release().await.unwrap();
    let next = world.default_locks().try_acquire("job").await.unwrap().unwrap();
    assert_eq!(next.data().and_then(Data::as_str), Some("second"));
    next.release().await.unwrap();
}

/// Applies the first update, and loses the body of its answer.
#[derive(Debug, Default)]
struct LoseBody(AtomicBool);

impl Intercept for LoseBody {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "UpdateItem" && !self.0.swap(true, Ordering::Relaxed) {
            answer.body = json!("lost");
        }
    }
}

#[tokio::test]
async fn an_acquire_with_an_unreadable_answer_is_sent_again_and_finds_its_own_row() {
    let world = World::new().await;
    let host = world.host().intercept(LoseBody::default()).build();
    let lock = world.locks(&host).build().unwrap().acquire("job").await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_eq!(world.row("job").await.unwrap()["owner"], crate::text(lock.owner()));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_row_that_rejects_a_late_attempt_is_kept_for_the_retention() {
    let world = World::new().await;
    let crashed = world.default_locks().acquire("job").await.unwrap();
    let late = Late::updates(all_tries_from(1));
    let host = world.host().later(Duration::from_hours(23)).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.try_acquire("job").await.unwrap_err().kind(), ErrorKind::Unavailable);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    let row = world.row("job").await.unwrap();
    let expiration: u64 = row["expiration"].as_n().unwrap().parse().unwrap();
    assert!(expiration * 1000 >= millis(host.now() + Duration::from_hours(23)), "{expiration}");
    assert!(!late.deliver(&world).await);
    crashed.release().await.unwrap();
}

#[tokio::test]
async fn after_the_clock_was_set_back_a_stale_duplicate_takes_nothing() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let late = Late::updates(1..=1);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = locks.acquire("job").await.unwrap();
    lock.release().await.unwrap();
    host.set_clock_back(host.now().duration_since(lock.acquired_at()).unwrap());
    let next = locks.acquire("job").await.unwrap();
    assert_eq!(millis(next.acquired_at()), millis(lock.acquired_at()));
    next.release().await.unwrap();

    let row = world.row("job").await;
    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("job").await, row);
}

/// A row with a larger number refuses the late attempt, too.
#[tokio::test]
async fn a_withdrawal_from_a_row_with_a_larger_number_sends_one_request() {
    let world = World::new().await;
    let ahead = world.host().later(Duration::from_mins(1)).build();
    let holder = world.locks(&ahead).build().unwrap().acquire("job").await.unwrap();
    let host = world.host().intercept(Late::updates(1..=1)).intercept(Refuse::writes_from(3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(host.requests(), 2 + 1);
    holder.release().await.unwrap();
}

/// The acquire sends the withdrawal, and once more in the background.
#[tokio::test]
async fn a_withdrawal_whose_row_changes_each_time_ends_after_three_requests() {
    let world = World::new().await;
    let holder = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().intercept(Late::updates(1..=1)).intercept(Refuse::writes_from(3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    assert_eq!(locks.flush(Duration::from_mins(1)).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(host.requests(), 2 + 2 * 3);
    holder.release().await.unwrap();
}

/// The first request finds that the row would be deleted too early, and the second one that it would not.
#[tokio::test]
async fn a_withdrawal_during_which_the_clock_is_set_back_leaves_a_ttl_that_is_late_enough() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let holder = world.default_locks().acquire("job").await.unwrap();
    let second = Duration::from_secs(1);
    // The requests come after this whole second, in any order of milliseconds.
    let now = world.host().build().now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    tokio::time::sleep(second.saturating_sub(Duration::from_nanos(now.subsec_nanos().into()))).await;
    let late_enough = now.as_secs() + 2 + RETENTION.as_secs();
    let mut row = world.row("job").await.unwrap();
    row.insert("expiration".to_owned(), AttributeValue::N(late_enough.to_string()));
    world.put_row(row).await;

    let host = world.host().clock_ahead(second).intercept(Late::updates(1..=1));
    let host = StepsClock::host(host, 3, |host| host.set_clock_back(Duration::from_secs(1)));
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(host.requests(), 2 + 2);
    assert_eq!(number(&world.row("job").await.unwrap(), "expiration"), late_enough);
    holder.release().await.unwrap();
}
