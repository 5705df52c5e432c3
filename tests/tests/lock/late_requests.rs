//! Requests that arrive after their sender has stopped waiting for them. On the embedded engine, or on the DynamoDB that
//! `LOCK_TEST_ENDPOINT` names.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{Data, HandlerError, Idempotency, Locks, OnMissingKey, OnTimeout};
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::{Late, World};
use serde_json::{Value, json};

/// The default.
const CLOCK_SKEW: Duration = Duration::from_secs(1);

// behaviours 15, 76
#[tokio::test]
async fn a_renewal_that_arrives_after_a_later_one_does_not_move_the_end_back() {
    let world = World::new().await;
    let late = Late::updates(2..=2);
    let host = world.host().intercept(late.clone()).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = lock.acquire("job").lease(Duration::from_mins(1)).await.unwrap();
    let deadline = lock.expires_at();
    lock.renew(Duration::from_secs(5)).await.unwrap();
    while lock.expires_at() != deadline {
        lock.renew(deadline.duration_since(host.now()).unwrap()).await.unwrap();
    }

    assert!(!late.deliver(&world).await);
    let row = world.row("job").await.unwrap();
    assert_eq!(row["in_progress_expiration"].as_n().unwrap(), &millis(deadline + CLOCK_SKEW).to_string());
    lock.release().await.unwrap();
}

// behaviours 40, 58, 76
#[tokio::test]
async fn a_release_that_arrives_after_a_later_one_changes_nothing() {
    let world = World::new().await;
    let late = Late::updates(2..=4);
    let host = world.host().intercept(late.clone()).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = lock.acquire("job").hold_at_least(Duration::from_hours(1)).await.unwrap();
    lock.set_data("first");
    assert!(lock.release().await.unwrap_err().is_unavailable());
    lock.set_data("second");
    lock.clear_hold_at_least();
    lock.release().await.unwrap();
    let row = world.row("job").await;

    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("job").await, row);
    let next = world.default_locks().try_acquire("job").await.unwrap().unwrap();
    assert_eq!(next.data().and_then(Data::as_str), Some("second"));
    next.release().await.unwrap();
}

// behaviours 40, 58, 76
#[tokio::test]
async fn a_second_release_replaces_a_first_one_that_was_applied_without_an_answer() {
    let world = World::new().await;
    let late = Late::updates(2..=4);
    let host = world.host().intercept(late.clone()).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = lock.acquire("job").hold_at_least(Duration::from_hours(1)).await.unwrap();
    lock.set_data("first");
    assert!(lock.release().await.unwrap_err().is_unavailable());
    assert!(late.deliver(&world).await);
    lock.set_data("second");
    lock.clear_hold_at_least();
    lock.release().await.unwrap();
    let next = world.default_locks().try_acquire("job").await.unwrap().unwrap();
    assert_eq!(next.data().and_then(Data::as_str), Some("second"));
    next.release().await.unwrap();
}

// behaviours 35, 76
#[tokio::test]
async fn an_attempt_that_arrives_after_its_acquire_was_refused_does_not_take_the_key_for_nobody() {
    let world = World::new().await;
    let holder = world.default_locks().acquire("job").await.unwrap();
    // Its clock is ahead, so that the release below seems to be earlier than its request.
    let late = Late::updates(1..=1);
    let host = world.host().clock_ahead(Duration::from_millis(900)).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    holder.release().await.unwrap();

    assert!(!late.deliver(&world).await);
    let next = world.default_locks().try_acquire("job").await.unwrap().expect("nobody holds it");
    next.release().await.unwrap();
}

// behaviours 67, 76
#[tokio::test]
async fn a_withdrawal_does_not_extend_the_window_of_a_result() {
    let world = World::new().await;
    let key = "order".to_owned();
    assert_eq!(once(world.default_locks()).run(&key, async |_| Ok(1)).await.unwrap(), 1);
    let expiration = world.row("order").await.unwrap()["expiration"].clone();
    let host = world.host().intercept(Late::updates(1..=1)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(once(locks).run(&key, async |_| Ok(2)).await.unwrap(), 1);
    let row = world.row("order").await.unwrap();
    assert!(row.contains_key("withdrawn"));
    assert_eq!(row["expiration"], expiration);
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

// behaviours 35, 76
#[tokio::test]
async fn an_acquire_that_cannot_read_its_answer_does_not_keep_the_key() {
    let world = World::new().await;
    let host = world.host().intercept(LoseBody::default()).build();
    let locks = world.locks(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.is_err());
    locks.flush().await;
    world.default_locks().try_acquire("job").await.unwrap().expect("nobody holds it").release().await.unwrap();
}

// behaviours 65, 83
#[tokio::test]
async fn a_withdrawal_does_not_extend_how_long_an_unfinished_run_of_powertools_is_refused() {
    let world = World::new().await;
    let now = millis(world.host().build().now());
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let number = |number: u64| AttributeValue::N(number.to_string());
    let row = [
        ("id", text("order")),
        ("status", text("INPROGRESS")),
        ("in_progress_expiration", number(now - 60_000)),
        ("expiration", number(now / 1000 + 3600)),
    ];
    world.put_row(row.map(|(name, value)| (name.to_owned(), value)).into()).await;
    let host = world.host().intercept(Late::updates(1..=1)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let refused = once(locks).on_timeout(OnTimeout::Reject).run(&"order".to_owned(), async |_| Ok(1)).await;
    assert!(matches!(refused, Err(HandlerError::Lock(error)) if error.is_unfinished()));
    let row = world.row("order").await.unwrap();
    assert!(row.contains_key("withdrawn"));
    assert_eq!(row["expiration"], number(now / 1000 + 3600));
}

// behaviours 31, 77
#[tokio::test]
async fn a_refusal_with_an_unanswered_attempt_costs_two_more_requests() {
    let world = World::new().await;
    let holder = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().intercept(Late::updates(1..=1)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    assert_eq!(host.requests(), 2 + 2);
    locks.flush().await;
    assert_eq!(host.requests(), 2 + 2);
    holder.release().await.unwrap();
}

// behaviours 35, 76
#[tokio::test]
async fn an_attempt_that_arrives_after_its_acquire_gave_up_does_not_take_a_key_that_has_no_row() {
    let world = World::new().await;
    let late = Late::updates(1..=3);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap_err().is_unavailable());
    locks.flush().await;

    assert!(!late.deliver(&world).await);
    let next = world.default_locks().try_acquire("job").await.unwrap().expect("nobody holds it");
    next.release().await.unwrap();
}

// behaviours 9, 35
#[tokio::test]
async fn a_row_that_refuses_a_late_attempt_is_kept_for_the_retention() {
    let world = World::new().await;
    let crashed = world.default_locks().acquire("job").await.unwrap();
    let late = Late::updates(1..=3);
    let host = world.host().clock_ahead(Duration::from_hours(23)).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap_err().is_unavailable());
    locks.flush().await;
    let row = world.row("job").await.unwrap();
    let expiration: u64 = row["expiration"].as_n().unwrap().parse().unwrap();
    assert!(expiration * 1000 >= millis(host.now() + Duration::from_hours(23)), "{expiration}");
    assert!(!late.deliver(&world).await);
    crashed.release().await.unwrap();
}

/// Throttles the first completions.
#[derive(Debug)]
struct Throttle(AtomicU32);

impl Intercept for Throttle {
    fn request(&self, _: &str, request: &mut Value) {
        if is_completion(request) && self.0.load(Ordering::Relaxed) > 0 {
            // So that it is not applied.
            request["TableName"] = "no-such-table".into();
        }
    }

    fn answer(&self, _: &str, request: &Value, answer: &mut Answer) {
        let left = |left: u32| left.checked_sub(1);
        if is_completion(request) && self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() {
            (answer.status, answer.body) = (400, json!({ "__type": "ThrottlingException" }));
        }
    }
}

fn is_completion(request: &Value) -> bool {
    request["UpdateExpression"].as_str().is_some_and(|update| update.contains("#status = :completed"))
}

fn once(locks: Locks) -> Idempotency<String, u32, Infallible> {
    Idempotency::new(locks, OnMissingKey::Reject, |key: &String| Some(key.clone()))
}

// behaviours 60, 76
#[tokio::test]
async fn a_completion_that_is_throttled_is_sent_again_until_the_result_is_stored() {
    let world = World::new().await;
    let host = world.host().intercept(Throttle(AtomicU32::new(9))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let order = "order".to_owned();
    assert_eq!(once(locks).run(&order, async |_| Ok(1)).await.unwrap(), 1);
    // The acquire, and three completions of three attempts each before the one that is stored.
    assert_eq!(host.requests(), 1 + 9 + 1);
    assert_eq!(once(world.default_locks()).run(&order, async |_| Ok(2)).await.unwrap(), 1);
}

// behaviours 65, 76
#[tokio::test]
async fn a_completion_is_sent_again_no_longer_than_the_lease() {
    let world = World::new().await;
    let host = world.host().intercept(Throttle(AtomicU32::new(u32::MAX))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let started = host.now();
    let lease = Duration::from_millis(600);
    assert_eq!(once(locks).lease(lease).run(&"order".to_owned(), async |_| Ok(1)).await.unwrap(), 1);
    let took = host.now().duration_since(started).unwrap();
    assert!(took > lease / 2 && took < lease, "{took:?}");
}

// behaviours 31, 77
#[tokio::test]
async fn a_refusal_whose_attempts_were_all_answered_is_followed_by_nothing() {
    let world = World::new().await;
    let holder = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    locks.flush().await;
    assert_eq!(host.requests(), 1);
    holder.release().await.unwrap();
}
