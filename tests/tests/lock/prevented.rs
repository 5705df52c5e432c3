//! Requests of a holder that DynamoDB does not apply, because it throttles them or another request on the row is in
//! progress: what the suite of all kinds (`tests/tests/kinds/prevented.rs`) does not show.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lambda_lock::embedded::{DynamoDb, Host, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, ErrorKind, Idempotency, Lock, Locks};
use lambda_lock_tests::invocation::{Cause, Prevents, all_tries_from};
use lambda_lock_tests::{Late, World};
use serde_json::Value;

use crate::{LEASE, ms};

const KEYS: [&str; 2] = ["job", "other job"];

/// What a holder holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Lock,
    Set,
    Permit,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Lock, Self::Set, Self::Permit];

    /// What can prevent its writes.
    fn causes(self) -> impl Iterator<Item = Cause> {
        Cause::of(if self == Self::Set { "TransactWriteItems" } else { "UpdateItem" })
    }

    async fn acquire(self, locks: &Locks) -> Result<Lock, Error> {
        let acquire = match self {
            Self::Lock => locks.acquire(KEYS[0]),
            Self::Set => locks.acquire_all(KEYS),
            Self::Permit => locks.semaphore(KEYS[0], 1).acquire(),
        };
        acquire.lease(LEASE).await
    }
}

/// A host with these writes prevented, and its locks. The SDK makes its own tries almost without a pause.
fn prevented(world: &World, prevents: Prevents) -> (Host, Locks) {
    let host = world.host().intercept(prevents).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    (host, locks)
}

#[tokio::test]
async fn the_completion_of_a_record_is_repeated() {
    World::skip_waits();
    for cause in Cause::ALL {
        let world = World::new().await;
        let (_, locks) = prevented(&world, Prevents::writes(cause, 2..=7));
        let orders = Idempotency::new(locks, OnMissingKey::Reject, |order: &u32| Some(order.to_string()));
        for result in [1, 2] {
            assert_eq!(orders.run(&7, async |_| Ok::<_, &str>(result)).await.unwrap(), 1, "{cause:?}");
        }
    }
}

/// Collects the tokens of transactions.
#[derive(Clone, Debug, Default)]
struct Tokens(Arc<Mutex<Vec<String>>>);

impl Intercept for Tokens {
    fn request(&self, _: &str, request: &mut Value) {
        self.0.lock().unwrap().extend(request["ClientRequestToken"].as_str().map(str::to_owned));
    }
}

#[tokio::test]
async fn a_withdrawal_is_repeated_with_another_token_each_time() {
    World::skip_waits();
    for kind in Kind::ALL {
        for cause in kind.causes() {
            let world = World::new().await;
            let late = if kind == Kind::Set {
                Late::transactions(all_tries_from(1))
            } else {
                Late::updates(all_tries_from(1))
            };
            let tokens = Tokens::default();
            let prevents = Prevents::writes(cause, 4..=7);
            let host = world.host().intercept(tokens.clone()).intercept(late.clone()).intercept(prevents).build();
            let locks = world.locks_with_quick_retries(&host).build().unwrap();
            assert_eq!(kind.acquire(&locks).await.unwrap_err().kind(), ErrorKind::Unavailable);
            locks.flush(Duration::from_mins(1)).await.unwrap();
            assert!(!late.deliver(&world).await, "{kind:?}, {cause:?}");
            kind.acquire(&world.default_locks()).await.unwrap().release().await.unwrap();

            let tokens = tokens.0.lock().unwrap();
            if kind == Kind::Set {
                // The first request was sent three times.
                let different: HashSet<_> = tokens.iter().collect();
                assert_eq!(different.len(), tokens.len() - 2, "{tokens:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_holder_is_given_up_after_ten_seconds() {
    for kind in Kind::ALL {
        for cause in kind.causes() {
            let engine = DynamoDb::new().unwrap();
            let host = engine.host().intercept(Prevents::writes(cause, 2..=u32::MAX)).build();
            let locks = Locks::builder(host.client(), "locks").build().unwrap();
            locks.create_table().await.unwrap();
            let held = kind.acquire(&locks).await.unwrap();
            for renews in [true, false] {
                let before = engine.now();
                let answer = if renews { held.renew(2 * LEASE).await } else { held.release().await };
                let error = answer.unwrap_err();
                let kind = if cause == Cause::Throttling { ErrorKind::Throttled } else { ErrorKind::Conflict };
                assert_eq!(error.kind(), kind, "{error}");
                let elapsed = engine.now().duration_since(before).unwrap();
                assert!(
                    elapsed >= Duration::from_secs(10) && elapsed < Duration::from_secs(10) + ms(10),
                    "{elapsed:?}"
                );
            }
            std::mem::forget(held);
        }
    }
}

/// Cancels transactions without a reason.
#[derive(Debug)]
struct NoReason;

impl Intercept for NoReason {
    fn answer(&self, operation: &str, _: &Value, answer: &mut lambda_lock::embedded::Answer) {
        if operation == "TransactWriteItems" && answer.body["CancellationReasons"].is_array() {
            for reason in answer.body["CancellationReasons"].as_array_mut().unwrap() {
                *reason = serde_json::json!({ "Code": "None" });
            }
        }
    }
}

#[tokio::test]
async fn a_transaction_that_was_cancelled_without_a_reason_does_not_count_as_done() {
    let world = World::new().await;
    let host = world.host().intercept(Prevents::writes(Cause::Conflict, 2..=5)).intercept(NoReason).build();
    let locks = world.locks(&host).build().unwrap();
    let set = locks.acquire_all(KEYS).await.unwrap();
    set.renew(2 * LEASE).await.unwrap();
    assert_eq!(host.requests(), 6);
    let until = world.default_locks().get(KEYS[0]).await.unwrap().unwrap().until();
    assert!(until > set.acquired_at() + 2 * LEASE);
    set.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_less_often_after_conflicts_than_while_it_is_throttled() {
    let mut requests = Vec::new();
    fastrand::seed(7);
    for cause in [Cause::Conflict, Cause::Throttling] {
        let world = World::in_virtual_time().await;
        let (host, locks) = prevented(&world, Prevents::writes(cause, 2..=u32::MAX));
        let lock = locks.acquire(KEYS[0]).await.unwrap();
        assert!(lock.release().await.is_err());
        requests.push(host.requests());
    }
    // In ten seconds. The delay grows to 500 ms, but that of a throttled request stays at 20 ms, and is half of it on average.
    assert!(requests[0] < 65 && (900..1100).contains(&requests[1]), "{requests:?}");
}
