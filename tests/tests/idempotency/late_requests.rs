//! Requests of a run that are unanswered, throttled or late.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{ErrorKind, HandlerError, Idempotency, Locks, OnUnfinished};
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::request::{Purpose, purpose_of};
use lambda_lock_tests::{Late, World};
use serde_json::{Value, json};

fn once(locks: Locks) -> Idempotency<String, u32, Infallible> {
    Idempotency::new(locks, OnMissingKey::Reject, |key: &String| Some(key.clone()))
}

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

#[tokio::test]
async fn a_withdrawal_does_not_extend_an_unfinished_run_of_powertools() {
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
    let refused = once(locks).on_unfinished(OnUnfinished::Reject).run(&"order".to_owned(), async |_| Ok(1)).await;
    assert!(matches!(refused, Err(HandlerError::Lock(error)) if error.kind() == ErrorKind::Unfinished));
    let row = world.row("order").await.unwrap();
    assert!(row.contains_key("withdrawn"));
    assert_eq!(row["expiration"], number(now / 1000 + 3600));
}

/// Throttles the first completions.
#[derive(Debug)]
struct Throttle(AtomicU32);

impl Intercept for Throttle {
    fn request(&self, operation: &str, request: &mut Value) {
        if is_completion(operation, request) && self.0.load(Ordering::Relaxed) > 0 {
            // The table does not apply it.
            request["TableName"] = "no-such-table".into();
        }
    }

    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        let left = |left: u32| left.checked_sub(1);
        if is_completion(operation, request) && self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
        {
            (answer.status, answer.body) = (400, json!({ "__type": "ThrottlingException" }));
        }
    }
}

fn is_completion(operation: &str, request: &Value) -> bool {
    purpose_of(operation, request) == Some(Purpose::Complete)
}

#[tokio::test]
async fn a_throttled_completion_is_retried_until_the_result_is_stored() {
    let world = World::new().await;
    let host = world.host().intercept(Throttle(AtomicU32::new(9))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let order = "order".to_owned();
    assert_eq!(once(locks).run(&order, async |_| Ok(1)).await.unwrap(), 1);
    // The acquire, then three completions of three attempts each, then the completion that is stored.
    assert_eq!(host.requests(), 1 + 9 + 1);
    assert_eq!(once(world.default_locks()).run(&order, async |_| Ok(2)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_completion_is_retried_only_within_the_lease() {
    let world = World::new().await;
    let host = world.host().intercept(Throttle(AtomicU32::new(u32::MAX))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let started = host.now();
    let lease = Duration::from_millis(600);
    assert_eq!(once(locks).lease(lease).run(&"order".to_owned(), async |_| Ok(1)).await.unwrap(), 1);
    let took = host.now().duration_since(started).unwrap();
    assert!(took > lease / 2 && took < lease, "{took:?}");
}
