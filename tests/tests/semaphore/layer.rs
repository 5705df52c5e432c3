//! `LockLayer::at_most`.

use std::time::Duration;

use lambda_lock::LockLayer;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation_without_deadline, millis, reported};
use lambda_runtime::{Error, LambdaEvent};
use tower::{Layer, ServiceExt, service_fn};

use crate::{DAY, KEY, acquire_all, permits, row};

#[tokio::test]
async fn a_layer_runs_n_invocations_of_a_key_at_a_time() {
    let world = World::new().await;
    let host = world.host().build();
    let layer = LockLayer::new(world.locks(&host).build().unwrap()).key(KEY).at_most(3);
    let service = layer.layer(service_fn(async |_: LambdaEvent<()>| Ok::<_, Error>("done")));
    let invoke = || {
        let mut event = invocation_without_deadline("call", ());
        event.context.deadline = millis(host.now() + Duration::from_secs(30));
        service.clone().oneshot(event)
    };
    let held = acquire_all(&world.default_locks(), 2).await;
    assert_eq!(invoke().await.unwrap(), "done");
    assert_eq!(host.requests(), 2);
    let third = world.default_locks().semaphore(KEY, 3).acquire().lease(DAY).await.unwrap();
    let (kind, message) = reported(invoke().await.unwrap_err());
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("holder 0, holder 1, process"), "{message}");
    third.release().await.unwrap();
    assert_eq!(invoke().await.unwrap(), "done");
    assert_eq!(permits(&row(&world).await).len(), held.len());
}

#[tokio::test]
async fn a_layer_reports_a_wrong_kind_and_a_wrong_number() {
    let world = World::new().await;
    let _held = acquire_all(&world.default_locks(), 1).await;
    let handler = || service_fn(async |_: LambdaEvent<()>| Ok::<_, Error>(()));
    let event = || invocation_without_deadline("call", ());
    let lock = LockLayer::new(world.default_locks()).key(KEY).layer(handler());
    let (kind, message) = reported(lock.oneshot(event()).await.unwrap_err());
    assert_eq!(kind, "LockWrongKind");
    assert!(message.contains("is a semaphore, not a lock: use another key"), "{message}");
    let none = LockLayer::new(world.default_locks()).key(KEY).at_most(0).layer(handler());
    assert_eq!(reported(none.oneshot(event()).await.unwrap_err()).0, "LockInvalid");
}
