//! A handler that may run without its lock: the table is unreachable, or the locks are disabled.

use std::time::Duration;

use lambda_lock::embedded::{Answer, Faults, Host, Intercept};
use lambda_lock::lambda::OnUnavailable;
use lambda_lock::{LockLayer, Locks, WithLock};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::reported;
use lambda_runtime::{Error, LambdaEvent};
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, done, environment, hold_elsewhere, invocation, invocation_without_deadline};

/// A function without a network. Its lease is short, so that it fails soon.
async fn environment_without_network() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(1).lose_requests(1.0)).build();
    let locks = world.locks(&host).lease(Duration::from_millis(300)).build().unwrap();
    (world, host, locks)
}

#[tokio::test]
async fn an_invocation_fails_when_the_table_is_unreachable() {
    let (world, _host, locks) = environment_without_network().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    let (kind, message) = reported(service.oneshot(invocation_without_deadline(())).await.unwrap_err());
    assert_eq!(kind, "LockUnavailable");
    assert!(message.contains(&world.table), "{message}");
}

async fn unlocked(WithLock { lock, .. }: WithLock<LambdaEvent<()>>) -> Result<(bool, u64), Error> {
    Ok((lock.is_enforced(), lock.fence()))
}

#[tokio::test]
async fn an_invocation_can_run_unlocked_when_the_table_is_unreachable() {
    let (_world, _host, locks) = environment_without_network().await;
    let service = LockLayer::new(locks).on_unavailable(OnUnavailable::RunUnlocked).layer(service_fn(unlocked));
    assert_eq!(service.oneshot(invocation_without_deadline(())).await.unwrap(), (false, 0));
}

#[tokio::test]
async fn an_invocation_fails_when_the_table_throttles() {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(1).throttle(1.0)).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap()).layer(service_fn(done::<()>));
    assert_eq!(reported(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockThrottled");
}

#[tokio::test]
async fn an_invocation_can_run_unlocked_when_the_table_throttles() {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(1).throttle(1.0)).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap())
        .on_unavailable(OnUnavailable::RunUnlocked)
        .layer(service_fn(unlocked));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), (false, 0));
}

#[tokio::test]
async fn an_invocation_does_not_run_unlocked_when_the_key_is_held() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).on_unavailable(OnUnavailable::RunUnlocked).layer(service_fn(done::<()>));
    assert_eq!(reported(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockHeld");
}

#[derive(Debug)]
struct DeniesAccess;

impl Intercept for DeniesAccess {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        answer.status = 400;
        answer.body = serde_json::json!({ "__type": "AccessDeniedException", "message": "no" });
    }
}

#[tokio::test]
async fn an_invocation_does_not_run_unlocked_when_access_is_denied() {
    let world = World::new().await;
    let host = world.host().intercept(DeniesAccess).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap())
        .on_unavailable(OnUnavailable::RunUnlocked)
        .layer(service_fn(done::<()>));
    let (kind, message) = reported(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockAccessDenied");
    assert!(message.contains("dynamodb:UpdateItem"), "{message}");
}

#[tokio::test]
async fn an_invocation_does_not_run_unlocked_when_the_table_is_missing() {
    let world = World::without_table();
    let host = world.host().build();
    let service = LockLayer::new(world.locks(&host).build().unwrap())
        .on_unavailable(OnUnavailable::RunUnlocked)
        .layer(service_fn(done::<()>));
    let (kind, message) = reported(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockTableNotFound");
    assert!(message.contains(&world.table), "{message}");
}

#[tokio::test]
async fn a_handler_with_disabled_locks_runs_without_a_request() {
    let (world, host, _locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let service = LockLayer::new(locks).layer(service_fn(unlocked));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), (false, 0));
    assert_eq!(host.requests(), 0);
}
