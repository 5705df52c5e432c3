//! The release after a handler returned, failed, panicked or was dropped.

use std::future::{Ready, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lambda_lock::embedded::{Faults, Host, Intercept};
use lambda_lock::{LockLayer, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{millis, reported};
use lambda_runtime::{Error, LambdaEvent};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, OutOfPaper, TOO_LONG, done, environment, invocation, invocation_with, is_free};

async fn becomes_free(world: &World, key: &str) -> bool {
    let free = async {
        while !is_free(world, key).await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TOO_LONG, free).await.is_ok()
}

#[tokio::test]
async fn a_failed_handler_does_not_keep_the_key_for_the_minimum_hold() {
    let (world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).min_hold(Duration::from_mins(1));
    let failing = |_: LambdaEvent<()>| async { Err::<(), Error>("out of paper".into()) };
    assert!(layer.layer(service_fn(failing)).oneshot(invocation(&host, ())).await.is_err());
    assert!(is_free(&world, FUNCTION).await);
}

/// The message of a call that panics.
async fn panic_of<T>(call: impl Future<Output = T> + Send + 'static) -> &'static str
where
    T: Send + 'static,
{
    let Err(error) = tokio::spawn(call).await else { panic!("it did not panic") };
    error.into_panic().downcast_ref::<&str>().unwrap()
}

#[tokio::test]
async fn the_lock_is_released_when_the_handler_panics_in_its_future() {
    async fn panics(_: LambdaEvent<()>) -> Result<(), Error> {
        tokio::task::yield_now().await;
        panic!("in the future")
    }
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(panics));
    assert_eq!(panic_of(service.oneshot(invocation(&host, ()))).await, "in the future");
    assert!(is_free(&world, FUNCTION).await);
}

#[tokio::test]
async fn the_lock_is_released_when_the_handler_panics_in_its_call() {
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks)
        .layer(service_fn(|_: LambdaEvent<()>| -> Ready<Result<(), Error>> { panic!("in the call") }));
    assert_eq!(panic_of(service.oneshot(invocation(&host, ()))).await, "in the call");
    assert!(is_free(&world, FUNCTION).await);
}

/// Sends every write after the first to a table that does not exist.
#[derive(Debug, Default)]
struct MisplacesReleases(AtomicU32);

impl Intercept for MisplacesReleases {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" && self.0.fetch_add(1, Ordering::Relaxed) > 0 {
            request["TableName"] = "elsewhere".into();
        }
    }
}

/// A function whose releases fail.
async fn environment_without_release() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().intercept(MisplacesReleases::default()).build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

#[tokio::test]
async fn a_failed_release_does_not_replace_the_handlers_answer() {
    let (world, host, locks) = environment_without_release().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "done");
    assert!(!is_free(&world, FUNCTION).await, "the release did fail");
}

#[tokio::test]
async fn a_failed_release_does_not_replace_the_handlers_error() {
    let (world, host, locks) = environment_without_release().await;
    let service = LockLayer::new(locks).layer(service_fn(|_: LambdaEvent<()>| async { Err::<(), _>(OutOfPaper) }));
    assert_eq!(reported(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "OutOfPaper");
    assert!(!is_free(&world, FUNCTION).await, "the release did fail");
}

#[tokio::test]
async fn a_failed_release_does_not_replace_the_handlers_panic() {
    let (world, host, locks) = environment_without_release().await;
    let service = LockLayer::new(locks)
        .layer(service_fn(|_: LambdaEvent<()>| -> Ready<Result<(), Error>> { panic!("the handler's") }));
    assert_eq!(panic_of(service.oneshot(invocation(&host, ()))).await, "the handler's");
    assert!(!is_free(&world, FUNCTION).await, "the release did fail");
}

#[tokio::test]
async fn an_unanswered_release_does_not_delay_the_answer_past_the_deadline() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn({
        let host = host.clone();
        move |_: LambdaEvent<()>| {
            // From here on, no request is answered.
            host.crash();
            async { Ok::<_, Error>("done") }
        }
    }));
    let event = invocation_with(&host, (), Duration::from_secs(1));
    let deadline = event.context.deadline;
    assert_eq!(service.oneshot(event).await.unwrap(), "done");
    assert!(millis(host.now()) < deadline);
}

#[tokio::test]
async fn a_call_dropped_while_its_handler_runs_releases_in_the_background() {
    let (world, host, locks) = environment().await;
    let started = Arc::new(Semaphore::new(0));
    let service = LockLayer::new(locks).layer(service_fn({
        let started = Arc::clone(&started);
        move |_: LambdaEvent<()>| {
            started.add_permits(1);
            pending::<Result<(), Error>>()
        }
    }));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    started.acquire().await.unwrap().forget();
    assert!(!is_free(&world, FUNCTION).await);
    call.abort();
    assert!(becomes_free(&world, FUNCTION).await);
}

#[tokio::test]
async fn a_call_dropped_during_its_request_releases_in_the_background() {
    let world = World::new().await;
    let slow = Duration::from_millis(300);
    let host = world.host().faults(Faults::seeded(1).latency(slow..slow)).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap()).layer(service_fn(done::<()>));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    // The request has arrived, and its answer is under way.
    while world.default_locks().get(FUNCTION).await.unwrap().is_none() {
        sleep(Duration::from_millis(5)).await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert!(becomes_free(&world, FUNCTION).await);
}
