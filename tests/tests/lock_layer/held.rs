//! An invocation that finds its key held.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lambda_lock::LockLayer;
use lambda_lock::embedded::Host;
use lambda_lock_tests::invocation::{Counter, reported};
use lambda_runtime::{Error, LambdaEvent};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, TOO_LONG, done, environment, hold_elsewhere, invocation, quick_backoff, with_request_id};

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
async fn on_held_does_not_answer_the_retry_of_a_crashed_invocation() {
    for permits in [None, Some(2)] {
        let (world, crashing, locks) = environment().await;
        let layer = |locks| {
            let layer = LockLayer::new(locks).on_held(|_| "skipped");
            if let Some(permits) = permits { layer.at_most(permits) } else { layer }
        };
        // The handlers are still at work when their host crashes, so nothing releases their locks.
        let at_work = Counter::default();
        let service = layer(locks).layer(service_fn({
            let at_work = at_work.clone();
            move |_: LambdaEvent<()>| {
                at_work.count();
                pending::<Result<&str, Error>>()
            }
        }));
        let ids = ["request-1", "request-2"].into_iter().take(permits.map_or(1, |_| 2));
        let mut crashed: Vec<_> =
            ids.map(|id| Box::pin(service.clone().oneshot(with_request_id(id, invocation(&crashing, ()))))).collect();
        while at_work.get() < u32::try_from(crashed.len()).unwrap() {
            for call in &mut crashed {
                assert!(timeout(Duration::from_millis(1), call).await.is_err());
            }
        }
        crashing.crash();

        let call = async |id: &str, host: &Host| {
            let service = layer(world.locks(host).build().unwrap()).layer(service_fn(done::<()>));
            service.oneshot(with_request_id(id, invocation(host, ()))).await
        };
        let host = world.host().build();
        assert_eq!(reported(call("request-1", &host).await.unwrap_err()).0, "LockHeld");
        assert_eq!(call("request-10", &host).await.unwrap(), "skipped");
        // The lease has ended with the deadline, and a second later for others.
        let after_the_lease = world.host().later(Duration::from_mins(1)).build();
        assert_eq!(call("request-1", &after_the_lease).await.unwrap(), "done");
    }
}

#[tokio::test]
async fn on_held_answers_an_invocation_that_is_delivered_again_within_its_minimum_hold() {
    let (_world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).min_hold(Duration::from_mins(1)).on_held(|_| "skipped");
    let service = layer.layer(service_fn(done::<()>));
    for answer in ["done", "skipped"] {
        assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), answer);
    }
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
