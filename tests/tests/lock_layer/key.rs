//! The key of an event.

use std::sync::Arc;

use futures_util::future::join_all;
use lambda_lock::LockLayer;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{by_tenant, reported};
use lambda_runtime::{Error, LambdaEvent};
use tokio::sync::Barrier;
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, TOO_LONG, done, environment, hold_elsewhere, invocation};

#[tokio::test]
async fn the_default_key_is_the_name_of_the_function() {
    let (world, host, locks) = environment().await;
    let other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).layer(service_fn(done));
    assert_eq!(reported(service.clone().oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockHeld");
    other.release().await.unwrap();
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "done");
}

#[tokio::test]
async fn a_constant_key_is_the_same_for_all_events() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, "constant").await;
    let service = LockLayer::new(locks).key("constant").layer(service_fn(done));
    for payload in ["a", "b"] {
        assert_eq!(reported(service.clone().oneshot(invocation(&host, payload)).await.unwrap_err()).0, "LockHeld");
    }
}

#[tokio::test]
async fn events_with_different_keys_run_at_the_same_time() {
    let (_world, host, locks) = environment().await;
    // Both handlers wait for each other.
    let both = Arc::new(Barrier::new(2));
    let service = LockLayer::new(locks).key_from(|event: &LambdaEvent<&str>| event.payload.to_owned()).layer(
        service_fn(move |event: LambdaEvent<&'static str>| {
            let both = Arc::clone(&both);
            async move {
                both.wait().await;
                Ok::<_, Error>(event.payload)
            }
        }),
    );
    let calls = ["a", "A"].map(|key| service.clone().oneshot(invocation(&host, key)));
    let answers = timeout(TOO_LONG, join_all(calls)).await.expect("they ran at the same time");
    assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), ["a", "A"]);
}

#[tokio::test]
async fn rejects_an_empty_key_without_a_request() {
    let (_world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).key_from(|_| String::new());
    for layer in [layer.clone(), layer.per_tenant()] {
        let event = by_tenant("blue", invocation(&host, ()));
        let (kind, message) = reported(layer.layer(service_fn(done::<()>)).oneshot(event).await.unwrap_err());
        assert_eq!(kind, "LockInvalid");
        assert!(message.contains("the key is empty"), "{message}");
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn tenants_share_the_default_key_unless_it_is_per_tenant() {
    let (world, host, locks) = environment().await;
    let _theirs = hold_elsewhere(&world, FUNCTION).await;
    let shared = LockLayer::new(locks.clone()).layer(service_fn(done));
    let event = || by_tenant("blue", invocation(&host, ()));
    assert_eq!(reported(shared.oneshot(event()).await.unwrap_err()).0, "LockHeld");
    let service = LockLayer::new(locks).per_tenant().layer(service_fn(done));
    assert_eq!(service.clone().oneshot(event()).await.unwrap(), "done");
    assert!(world.row(&format!("{FUNCTION}#blue")).await.is_some());
    let _ours = hold_elsewhere(&world, &format!("{FUNCTION}#blue")).await;
    assert_eq!(reported(service.clone().oneshot(event()).await.unwrap_err()).0, "LockHeld");
    assert_eq!(service.oneshot(by_tenant("green", invocation(&host, ()))).await.unwrap(), "done");
}

#[tokio::test]
async fn the_keys_of_two_tenants_never_meet() {
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks)
        .key_from(|event: &LambdaEvent<&str>| event.payload.to_owned())
        .per_tenant()
        .layer(service_fn(done));
    let _theirs = hold_elsewhere(&world, "a#b#c").await;
    assert_eq!(service.clone().oneshot(by_tenant("b#c", invocation(&host, "a"))).await.unwrap(), "done");
    assert_eq!(reported(service.oneshot(by_tenant("c", invocation(&host, "a#b"))).await.unwrap_err()).0, "LockHeld");
    assert!(world.row("a#b%23c").await.is_some());
}

#[tokio::test]
async fn an_invocation_without_a_tenant_fails_without_a_request() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).per_tenant().layer(service_fn(done));
    for event in [invocation(&host, ()), by_tenant("", invocation(&host, ()))] {
        let (error_type, message) = reported(service.clone().oneshot(event).await.unwrap_err());
        assert_eq!(error_type, "LockInvalid");
        assert!(message.contains("no tenant id"), "{message}");
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn without_locking_an_invocation_needs_no_tenant() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let service = LockLayer::new(locks).per_tenant().layer(service_fn(done));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "done");
}
