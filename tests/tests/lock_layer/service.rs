//! The layer as a tower service: readiness, requests and concurrent calls.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::{LockLayer, WithLock};
use lambda_runtime::{Diagnostic, Error, LambdaEvent};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{
    FUNCTION, TOO_LONG, done, environment, hold_elsewhere, invocation, is_free, quick_backoff, with_request_id,
};

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

/// A service that panics if it is called without having been polled ready.
#[derive(Debug, Default)]
struct NeedsReadiness {
    ready: bool,
}

impl Clone for NeedsReadiness {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<LambdaEvent<()>> for NeedsReadiness {
    type Response = &'static str;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: LambdaEvent<()>) -> Self::Future {
        assert!(self.ready, "called without having been ready");
        self.ready = false;
        std::future::ready(Ok("done"))
    }
}

#[tokio::test]
async fn the_service_calls_the_handler_that_it_polled_ready() {
    let (_world, host, locks) = environment().await;
    let mut service = LockLayer::new(locks).layer(NeedsReadiness::default());
    for _ in 0..2 {
        assert_eq!(service.ready().await.unwrap().call(invocation(&host, ())).await.unwrap(), "done");
    }
}

/// The bounds of `Runtime::run_concurrent`.
fn assert_fit_for_run_concurrent<P, S>(service: S) -> S
where
    S: Service<LambdaEvent<P>, Future: Send, Error: Into<Diagnostic>> + Clone + Send + 'static,
{
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_of_twenty_concurrent_calls_runs() {
    let (_world, host, locks) = environment().await;
    let (go, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let handler = service_fn({
        let (go, runs) = (Arc::clone(&go), Arc::clone(&runs));
        move |_: LambdaEvent<()>| {
            let (go, runs) = (Arc::clone(&go), Arc::clone(&runs));
            async move {
                // Not an atomic addition: two concurrent runs could count as one.
                let before = runs.load(Ordering::Relaxed);
                go.acquire().await.unwrap().forget();
                runs.store(before + 1, Ordering::Relaxed);
                Ok::<_, Error>("ran")
            }
        }
    });
    let service = assert_fit_for_run_concurrent(LockLayer::new(locks).on_held(|_| "skipped").layer(handler));
    let mut calls = JoinSet::new();
    for number in 0..20 {
        calls.spawn(service.clone().oneshot(with_request_id(&number.to_string(), invocation(&host, ()))));
    }
    for _ in 0..19 {
        let answer = timeout(TOO_LONG, calls.join_next()).await.expect("nineteen do not wait for the one");
        assert_eq!(answer.unwrap().unwrap().unwrap(), "skipped");
    }
    go.add_permits(1);
    assert_eq!(calls.join_next().await.unwrap().unwrap().unwrap(), "ran");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_waiting_calls_run_one_after_the_other() {
    let (_world, host, locks) = environment().await;
    let runs = Arc::new(AtomicU32::new(0));
    let handler = service_fn({
        let runs = Arc::clone(&runs);
        move |_: LambdaEvent<()>| {
            let runs = Arc::clone(&runs);
            async move {
                // Not an atomic addition: two concurrent runs would count as one.
                let before = runs.load(Ordering::Relaxed);
                sleep(Duration::from_millis(2)).await;
                runs.store(before + 1, Ordering::Relaxed);
                Ok::<_, Error>(())
            }
        }
    });
    let service = assert_fit_for_run_concurrent(LockLayer::new(locks).wait(quick_backoff()).layer(handler));
    let calls = (0..20).map(|_| tokio::spawn(service.clone().oneshot(invocation(&host, ()))));
    for answer in join_all(calls).await {
        answer.unwrap().unwrap();
    }
    assert_eq!(runs.load(Ordering::Relaxed), 20);
}
