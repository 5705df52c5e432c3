//! The layer as a tower service: readiness and requests.

use std::convert::Infallible;

use lambda_lock::{LockLayer, WithLock};
use lambda_lock_tests::invocation::OneByOne;
use lambda_runtime::{Error, LambdaEvent};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{FUNCTION, done, environment, hold_elsewhere, invocation, is_free};

async fn fence(WithLock { lock, .. }: WithLock<LambdaEvent<()>>) -> Result<u64, Error> {
    Ok(lock.fence())
}

#[tokio::test]
async fn a_run_sends_two_requests() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    service.oneshot(invocation(&host, ())).await.unwrap();
    assert_eq!(host.requests(), 2);
}

#[tokio::test]
async fn a_refusal_sends_one_request() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    service.oneshot(invocation(&host, ())).await.unwrap_err();
    assert_eq!(host.requests(), 1);
}

#[tokio::test]
async fn polling_readiness_does_not_acquire_the_lock() {
    let (world, host, locks) = environment().await;
    let mut service = LockLayer::new(locks).layer(service_fn(fence));
    let ready = service.ready().await.unwrap();
    assert_eq!(host.requests(), 0);
    // A runtime polls for readiness before it has an event, and may wait for hours.
    assert!(is_free(&world, FUNCTION).await);
    assert!(ready.call(invocation(&host, ())).await.unwrap() > 0);
}

#[tokio::test]
async fn the_service_calls_the_handler_that_it_polled_ready() {
    let (_world, host, locks) = environment().await;
    let handler = OneByOne::<LambdaEvent<()>, _, Infallible>::answering(|| Ok("done"));
    let mut service = LockLayer::new(locks).layer(handler);
    for _ in 0..2 {
        assert_eq!(service.ready().await.unwrap().call(invocation(&host, ())).await.unwrap(), "done");
    }
}
