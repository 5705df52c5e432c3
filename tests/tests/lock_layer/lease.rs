//! The lease of an invocation, and the handler that outlives it.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lambda_lock::LockLayer;
use lambda_lock::embedded::Host;
use lambda_lock_tests::invocation::reported;
use lambda_runtime::{Error, LambdaEvent};
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    FUNCTION, OutOfPaper, TOO_LONG, done, environment, invocation, invocation_with, is_free, lease_millis, number,
    row_during,
};

#[tokio::test]
async fn the_row_stores_the_deadline_plus_the_clock_skew() {
    for is_lease_longer in [false, true] {
        let (world, host, locks) = environment().await;
        let event = invocation_with(&host, (), Duration::from_mins(14));
        let end = event.context.deadline + 1_000;
        let layer = LockLayer::new(locks);
        let layer = if is_lease_longer { layer.lease(Duration::from_hours(1)) } else { layer };
        let row = row_during(world, layer, event).await;
        assert_eq!(number(&row, "in_progress_expiration"), end);
        assert!(number(&row, "expiration") * 1_000 > end);
    }
}

#[tokio::test]
async fn a_lease_shorter_than_the_time_left_is_used() {
    let (world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).lease(Duration::from_secs(5));
    assert_eq!(lease_millis(&row_during(world, layer, invocation(&host, ())).await), 5_000 + 1_000);
}

#[tokio::test]
async fn an_invocation_past_its_deadline_fails_without_a_request() {
    let (_world, host, locks) = environment().await;
    let event = invocation(&host, ());
    host.advance_clock(Duration::from_secs(31));
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    let (kind, message) = reported(service.oneshot(event).await.unwrap_err());
    assert_eq!(kind, "LockInvalid");
    assert!(message.contains("deadline") && message.contains("has passed"), "{message}");
    assert_eq!(host.requests(), 0);
}

/// Stores how many requests were sent when it is dropped.
struct NoteOnDrop(Arc<AtomicU64>, Host);

impl Drop for NoteOnDrop {
    fn drop(&mut self) {
        self.0.store(self.1.requests(), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_handler_that_outlives_its_lease_is_cancelled_before_the_release() {
    let (world, host, locks) = environment().await;
    let requests_when_cancelled = Arc::new(AtomicU64::new(0));
    let service = LockLayer::new(locks).lease(Duration::from_millis(300)).layer(service_fn({
        let note = (Arc::clone(&requests_when_cancelled), host.clone());
        move |_: LambdaEvent<()>| {
            let note = NoteOnDrop(Arc::clone(&note.0), note.1.clone());
            async move {
                let () = pending().await;
                drop(note);
                Ok::<_, Error>(())
            }
        }
    }));
    let call = timeout(TOO_LONG, service.oneshot(invocation(&host, ())));
    assert_eq!(reported(call.await.expect("it was cancelled").unwrap_err()).0, "LockLost");
    assert_eq!(requests_when_cancelled.load(Ordering::Relaxed), 1, "cancelled after the acquire, before the release");
    assert_eq!(host.requests(), 2);
    assert!(is_free(&world, FUNCTION).await);
}

#[tokio::test]
async fn a_handler_that_fails_after_its_lease_fails_with_its_own_error() {
    let (_world, host, locks) = environment().await;
    let layer = LockLayer::new(locks.clone()).min_hold(Duration::from_mins(10));
    let service = layer.layer(service_fn({
        let host = host.clone();
        move |_: LambdaEvent<()>| {
            host.advance_clock(Duration::from_mins(1));
            async { Err::<(), _>(OutOfPaper) }
        }
    }));
    assert_eq!(reported(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "OutOfPaper");
    assert!(locks.try_acquire(FUNCTION).await.unwrap().is_some(), "its minimum hold is over, too");
}
