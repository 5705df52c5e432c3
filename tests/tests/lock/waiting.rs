//! Waiting for a key that another holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{Backoff, ErrorKind, Jitter, Wait};
use lambda_lock_tests::World;
use serde_json::{Value, json};

use crate::{assert_contains, eagerly, ms};

/// Rejects all writes with this status and code, and a message.
#[derive(Debug)]
pub(crate) struct Refuse(pub(crate) u16, pub(crate) &'static str);

impl Intercept for Refuse {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" {
            // The table does not apply it.
            request["TableName"] = "no-such-table".into();
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "UpdateItem" {
            answer.status = self.0;
            let code = format!("com.amazonaws.dynamodb.v20120810#{}", self.1);
            answer.body = json!({ "__type": code, "message": "said by DynamoDB" });
        }
    }
}

#[tokio::test]
async fn a_wait_does_not_sleep_past_the_end_of_the_holders_lease() {
    let world = World::new().await;
    let ours = world.host().build();
    let locks = world.locks(&ours).clock_skew(Duration::ZERO).build().unwrap();
    let _crashed = locks.acquire("job").lease(ms(500)).await.unwrap();
    let host = world.host().build();
    // Without the end of the lease it would sleep for an hour after the second attempt.
    let hours =
        Wait::backoff(Backoff::new().base(ms(20)).factor(1e9).cap(Duration::from_hours(1)).jitter(Jitter::None));
    let next = world.locks(&host).build().unwrap().acquire("job").wait(hours.up_to(Duration::from_hours(1)));
    let next = tokio::time::timeout(Duration::from_secs(10), next.into_future()).await.unwrap().unwrap();
    assert!(host.requests() <= 3);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_makes_a_last_attempt_at_its_end_and_names_the_holder() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let started = host.now();
    let slowly = Wait::backoff(Backoff::new().base(Duration::from_secs(5)).jitter(Jitter::None)).up_to(ms(400));
    let error = world.locks(&host).build().unwrap().acquire("job").wait(slowly).await.unwrap_err();
    let took = host.now().duration_since(started).unwrap();
    assert!(error.is_held());
    assert_eq!(error.holder().unwrap().owner(), Some(lock.owner()));
    assert_eq!(error.attempts(), 2, "the first, and the last when the time is up");
    assert_eq!(host.requests(), 2);
    assert_contains(&error, &["after 2 attempts"]);
    assert!((ms(400)..Duration::from_secs(4)).contains(&took), "{took:?}");
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_of_zero_sends_one_request() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let not_at_all = Wait::in_turn().up_to(Duration::ZERO);
    let error = world.locks(&host).build().unwrap().acquire("job").wait(not_at_all).await.unwrap_err();
    assert!(error.is_held());
    assert_eq!((error.attempts(), host.requests()), (1, 1));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_ends_shortly_before_the_deadline() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let deadline = host.now() + Duration::from_secs(1);
    let locks = world.locks(&host).build().unwrap();
    let error = locks.acquire("job").deadline(deadline).wait(eagerly()).await.unwrap_err();
    assert!(error.is_held());
    assert!((deadline - ms(100)..deadline).contains(&host.now()));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_retries_transient_errors_and_no_others() {
    let world = World::new().await;
    let cases: [(u16, &str, ErrorKind, u32); 14] = [
        (400, "ProvisionedThroughputExceededException", ErrorKind::Throttled, 3),
        (400, "RequestLimitExceeded", ErrorKind::Throttled, 3),
        (400, "ThrottlingException", ErrorKind::Throttled, 3),
        (500, "InternalServerError", ErrorKind::Unavailable, 3),
        (503, "ServiceUnavailable", ErrorKind::Unavailable, 3),
        (400, "TransactionConflictException", ErrorKind::Conflict, 3),
        (400, "ReplicatedWriteConflictException", ErrorKind::Conflict, 3),
        (400, "AccessDeniedException", ErrorKind::AccessDenied, 1),
        (400, "UnrecognizedClientException", ErrorKind::AccessDenied, 1),
        (400, "ExpiredTokenException", ErrorKind::AccessDenied, 1),
        (400, "ResourceNotFoundException", ErrorKind::TableNotFound, 1),
        (400, "ValidationException", ErrorKind::Rejected, 1),
        (400, "ItemCollectionSizeLimitExceededException", ErrorKind::Rejected, 1),
        (400, "SomethingNew", ErrorKind::Rejected, 1),
    ];
    for (status, code, kind, attempts) in cases {
        let host = world.host().intercept(Refuse(status, code)).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let error = locks.acquire("job").wait(eagerly().max_attempts(3)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code}: {error:?}");
        assert_eq!(error.attempts(), attempts, "{code}");
        assert!(std::error::Error::source(&error).is_some(), "{code}");
        if attempts == 1 {
            assert_eq!(host.requests(), 1, "{code}");
        }
    }
}

#[tokio::test]
async fn a_wait_decides_when_to_ask_after_a_conflict_with_another_region() {
    let world = World::new().await;
    let host = world.host().intercept(Refuse(400, "ReplicatedWriteConflictException")).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    locks.acquire("job").wait(eagerly().max_attempts(3)).await.unwrap_err();
    assert_eq!(host.requests(), 2 + 3, "the SDK repeats only the last attempt");
}

#[tokio::test]
async fn fifty_workers_under_one_lock_lose_no_count() {
    let world = World::new().await;
    let counter = Arc::new(AtomicU64::new(0));
    let workers = (0..50).map(|_| {
        let (locks, counter) = (world.default_locks(), Arc::clone(&counter));
        tokio::spawn(async move {
            for _ in 0..10 {
                let lock = locks.acquire("counter").wait(eagerly()).await.unwrap();
                let seen = counter.load(Ordering::Relaxed);
                tokio::time::sleep(ms(1)).await;
                counter.store(seen + 1, Ordering::Relaxed);
                lock.release().await.unwrap();
            }
        })
    });
    join_all(workers).await.into_iter().for_each(Result::unwrap);
    assert_eq!(counter.load(Ordering::Relaxed), 500);
}

#[tokio::test]
async fn delays_out_of_bounds_are_invalid_unless_there_is_one_attempt() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    for backoff in [Backoff::new().base(Duration::ZERO), Backoff::new().cap(Duration::from_hours(25))] {
        let wait = Wait::backoff(backoff);
        let error = locks.acquire("job").wait(wait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(host.requests(), 0);
        let lock = world.default_locks().acquire("job").wait(wait.up_to(Duration::ZERO)).await.unwrap();
        lock.release().await.unwrap();
    }
}
