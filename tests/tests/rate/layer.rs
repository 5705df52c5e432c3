//! `LockLayer::at_rate`.

use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{LockLayer, WithLock};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with, reported};
use lambda_runtime::{Error, LambdaEvent};
use tower::{Layer, ServiceExt, service_fn};

use crate::{KEY, SECOND};

type Event = WithLock<LambdaEvent<()>>;

fn once_an_hour(host: &Host, world: &World) -> LockLayer<Event, &'static str> {
    LockLayer::new(world.locks(host).build().unwrap()).key(KEY).at_rate(1, Duration::from_hours(1))
}

async fn handler(event: Event) -> Result<&'static str, Error> {
    assert!(!event.lock.is_enforced());
    Ok("called")
}

#[tokio::test]
async fn an_invocation_that_comes_too_early_fails_or_is_answered() {
    let world = World::new().await;
    let host = world.host().build();
    let layer = once_an_hour(&host, &world);
    let answering = layer.clone().on_held(|_| "later").layer(service_fn(handler));
    let service = layer.layer(service_fn(handler));
    assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), "called");
    assert_eq!(host.requests(), 1);
    let (kind, message) = reported(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("is used up until"), "{message}");
    assert_eq!(answering.oneshot(invocation(&host, ())).await.unwrap(), "later");
}

#[tokio::test]
async fn an_invocation_waits_for_its_time_but_not_beyond_its_deadline() {
    let world = World::new().await;
    let host = world.host().build();
    let layer = LockLayer::new(world.locks(&host).build().unwrap()).key(KEY).at_rate(5, SECOND).wait(10 * SECOND);
    let service = layer.layer(service_fn(handler));
    let invoke = |left| service.clone().oneshot(invocation_with(&host, (), left));
    assert_eq!(invoke(30 * SECOND).await.unwrap(), "called");
    assert_eq!(invoke(30 * SECOND).await.unwrap(), "called");
    // 200 ms until its time, and 100 ms to answer.
    let soon = invoke(Duration::from_millis(150)).await;
    assert_eq!(reported(soon.unwrap_err()).0, "LockHeld");
}
