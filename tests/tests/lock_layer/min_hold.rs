//! The minimum hold, against a schedule that fires twice.

use std::time::Duration;

use lambda_lock::LockLayer;
use lambda_lock_tests::invocation::reported;
use lambda_runtime::{Error, LambdaEvent};
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, done, environment, invocation, is_free};

#[tokio::test]
async fn a_second_firing_within_the_minimum_hold_does_not_run() {
    let (world, host, locks) = environment().await;
    let hold = Duration::from_mins(1);
    let service = LockLayer::new(locks).min_hold(hold).layer(service_fn(done::<()>));
    assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), "done");
    let second = world.host().later(Duration::from_secs(5)).build();
    let elsewhere = world.locks(&second).build().unwrap();
    let service = LockLayer::new(elsewhere).min_hold(hold).layer(service_fn(done::<()>));
    assert_eq!(reported(service.oneshot(invocation(&second, ())).await.unwrap_err()).0, "LockHeld");
}

#[tokio::test]
async fn a_firing_after_the_minimum_hold_runs() {
    let (world, host, locks) = environment().await;
    let hold = Duration::from_mins(1);
    let service = LockLayer::new(locks).min_hold(hold).layer(service_fn(done::<()>));
    assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), "done");
    // The minute and the clock skew.
    let next = world.host().later(Duration::from_secs(61)).build();
    let elsewhere = world.locks(&next).build().unwrap();
    let service = LockLayer::new(elsewhere).min_hold(hold).layer(service_fn(done::<()>));
    assert_eq!(service.oneshot(invocation(&next, ())).await.unwrap(), "done");
}

#[tokio::test]
async fn a_failed_handler_does_not_keep_the_key_for_the_minimum_hold() {
    let (world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).min_hold(Duration::from_mins(1));
    let failing = |_: LambdaEvent<()>| async { Err::<(), Error>("out of paper".into()) };
    assert!(layer.layer(service_fn(failing)).oneshot(invocation(&host, ())).await.is_err());
    assert!(is_free(&world, FUNCTION).await);
}
