//! The lease of an invocation, and the handler that outlives it.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{LockLayer, WithLock};
use lambda_lock_tests::invocation::reported;
use lambda_runtime::{Error, LambdaEvent};
use tokio::sync::Notify;
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    FUNCTION, OutOfPaper, TOO_LONG, done, environment, invocation, invocation_with, invocation_without_deadline,
    is_free, lease_millis, number, row_during,
};

#[tokio::test]
async fn the_row_stores_the_deadline_plus_the_clock_skew() {
    let (world, host, locks) = environment().await;
    let event = invocation_with(&host, (), Duration::from_mins(14));
    let end = event.context.deadline + 1_000;
    let row = row_during(world, LockLayer::new(locks), event).await;
    assert_eq!(number(&row, "in_progress_expiration"), end);
    assert!(number(&row, "expiration") * 1_000 > end);
}

#[tokio::test]
async fn the_lock_expires_at_the_deadline() {
    let (_world, host, locks) = environment().await;
    let service =
        LockLayer::new(locks).layer(service_fn(async |WithLock { input, lock, .. }: WithLock<LambdaEvent<()>>| {
            Ok::<_, Error>((lock.expires_at(), input.context.deadline()))
        }));
    let (expires_at, deadline) = service.oneshot(invocation(&host, ())).await.unwrap();
    assert_eq!(expires_at, deadline);
}

#[tokio::test]
async fn a_lease_shorter_than_the_time_left_is_used() {
    let (world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).lease(Duration::from_secs(5));
    assert_eq!(lease_millis(&row_during(world, layer, invocation(&host, ())).await), 5_000 + 1_000);
}

#[tokio::test]
async fn a_lease_longer_than_the_time_left_ends_at_the_deadline() {
    let (world, host, locks) = environment().await;
    let event = invocation(&host, ());
    let end = event.context.deadline + 1_000;
    let layer = LockLayer::new(locks).lease(Duration::from_mins(10));
    assert_eq!(number(&row_during(world, layer, event).await, "in_progress_expiration"), end);
}

#[tokio::test]
async fn a_context_without_a_deadline_gets_the_default_lease() {
    let (world, _host, locks) = environment().await;
    let row = row_during(world, LockLayer::new(locks), invocation_without_deadline(())).await;
    assert_eq!(lease_millis(&row), 30_000 + 1_000);
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
async fn a_handler_that_returns_after_its_lease_has_lost_its_lock() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn({
        let host = host.clone();
        move |_: LambdaEvent<()>| {
            let host = host.clone();
            // As one that blocks its thread.
            async move {
                host.advance_clock(Duration::from_mins(1));
                Ok::<_, Error>(())
            }
        }
    }));
    assert_eq!(reported(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockLost");
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

#[tokio::test]
async fn a_handler_is_cancelled_when_the_wall_clock_jumps_past_the_lease() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn({
        let host = host.clone();
        move |_: LambdaEvent<()>| {
            // The environment was frozen: only the wall clock advanced.
            host.advance_clock(Duration::from_mins(1));
            pending::<Result<(), Error>>()
        }
    }));
    let call = timeout(TOO_LONG / 2, service.oneshot(invocation(&host, ())));
    assert_eq!(reported(call.await.expect("it was cancelled").unwrap_err()).0, "LockLost");
}

#[tokio::test]
async fn the_next_step_of_a_handler_that_thaws_after_its_lease_does_not_run() {
    let (_world, host, locks) = environment().await;
    let (frozen, thawed, went_on) =
        (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let service = LockLayer::new(locks).layer(service_fn({
        let (frozen, thawed, went_on) = (Arc::clone(&frozen), Arc::clone(&thawed), Arc::clone(&went_on));
        move |_: LambdaEvent<()>| {
            let (frozen, thawed, went_on) = (Arc::clone(&frozen), Arc::clone(&thawed), Arc::clone(&went_on));
            async move {
                frozen.notify_one();
                thawed.notified().await;
                went_on.store(true, Ordering::Relaxed);
                Ok::<_, Error>(())
            }
        }
    }));
    let freeze = async {
        frozen.notified().await;
        host.advance_clock(Duration::from_mins(1));
        thawed.notify_one();
    };
    let (outcome, ()) = tokio::join!(service.oneshot(invocation(&host, ())), freeze);
    assert_eq!(reported(outcome.unwrap_err()).0, "LockLost");
    assert!(!went_on.load(Ordering::Relaxed));
}
