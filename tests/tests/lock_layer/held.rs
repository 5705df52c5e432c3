//! An invocation that finds its key held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lambda_lock::LockLayer;
use lambda_lock_tests::invocation::reported;
use lambda_runtime::{Error, LambdaEvent};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, TOO_LONG, done, environment, hold_elsewhere, invocation, invocation_with, quick_backoff};

// behaviours 20, 77
#[tokio::test]
async fn an_invocation_with_a_held_key_fails_and_names_the_holder() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let ran = Arc::new(AtomicBool::new(false));
    let service = LockLayer::new(locks).layer(service_fn({
        let ran = Arc::clone(&ran);
        move |_: LambdaEvent<()>| {
            ran.store(true, Ordering::Relaxed);
            async { Ok::<_, Error>(()) }
        }
    }));
    let (kind, message) = reported(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("another environment"), "{message}");
    assert!(!ran.load(Ordering::Relaxed));
}

// behaviours 20, 21
#[tokio::test]
async fn on_held_answers_an_invocation_with_a_held_key() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks)
        .on_held(|held| format!("skipped for {}", held.holder().unwrap().name().unwrap()))
        .layer(service_fn(|_: LambdaEvent<()>| async { Ok::<_, Error>("ran".to_owned()) }));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "skipped for another environment");
}

#[tokio::test]
async fn a_waiting_invocation_runs_after_the_release() {
    let (world, host, locks) = environment().await;
    let other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).wait(quick_backoff()).layer(service_fn(done::<()>));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    // A second request: the first was refused.
    while host.requests() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    other.release().await.unwrap();
    assert_eq!(timeout(TOO_LONG, call).await.unwrap().unwrap().unwrap(), "done");
}

// behaviour 34
#[tokio::test]
async fn an_invocation_whose_wait_ends_fails_as_held() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service =
        LockLayer::new(locks).wait(quick_backoff().up_to(Duration::from_millis(100))).layer(service_fn(done::<()>));
    let (kind, message) = reported(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("another environment") && message.contains("attempts"), "{message}");
}

#[tokio::test]
async fn a_wait_ends_before_the_invocations_deadline() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service =
        LockLayer::new(locks).wait(quick_backoff().up_to(Duration::from_hours(1))).layer(service_fn(done::<()>));
    let call = service.oneshot(invocation_with(&host, (), Duration::from_millis(500)));
    let error = timeout(TOO_LONG, call).await.expect("the wait ended").unwrap_err();
    assert_eq!(reported(error).0, "LockHeld");
}

// behaviour 34
#[tokio::test]
async fn a_wait_that_is_frozen_past_the_deadline_fails_as_held() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).wait(quick_backoff()).layer(service_fn(done::<()>));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    while host.requests() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    // The environment was frozen.
    host.advance_clock(Duration::from_secs(31));
    let (kind, message) = reported(timeout(TOO_LONG, call).await.unwrap().unwrap().unwrap_err());
    assert_eq!(kind, "LockHeld", "{message}");
}
