//! The lock that a handler gets with its event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lambda_lock::{LockLayer, WithLock};
use lambda_lock_tests::invocation::reported;
use lambda_runtime::{Error, LambdaEvent};
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{FUNCTION, done, environment, invocation, is_free, lease_millis, number, row, row_during};

#[tokio::test]
async fn a_handler_with_lock_gets_the_lock_of_its_event() {
    let (world, host, locks) = environment().await;
    let world = Arc::new(world);
    let service = LockLayer::new(locks).layer(service_fn({
        let world = Arc::clone(&world);
        move |WithLock { input, lock, .. }: WithLock<LambdaEvent<&'static str>>| {
            let world = Arc::clone(&world);
            async move {
                let row = row(&world, FUNCTION).await;
                assert_eq!(lock.owner(), row["owner"].as_s().unwrap());
                assert_eq!(lock.fence(), number(&row, "fence"));
                assert_eq!(lock.key(), FUNCTION);
                assert!(lock.is_valid() && lock.is_enforced());
                Ok::<_, Error>(format!("{} of {}", input.payload, input.context.request_id))
            }
        }
    }));
    assert_eq!(service.oneshot(invocation(&host, "payload")).await.unwrap(), "payload of request-1");
}

#[tokio::test]
async fn each_run_in_an_environment_has_a_new_owner_and_a_larger_fence() {
    let (_world, host, locks) = environment().await;
    let mut service =
        LockLayer::new(locks).layer(service_fn(async |WithLock { lock, .. }: WithLock<LambdaEvent<()>>| {
            Ok::<_, Error>((lock.fence(), lock.owner().to_owned()))
        }));
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(service.ready().await.unwrap().call(invocation(&host, ())).await.unwrap());
    }
    assert!(runs.is_sorted_by(|(fence, owner), (next, next_owner)| fence < next && owner != next_owner), "{runs:?}");
}

#[tokio::test]
async fn a_handler_can_renew_its_lock() {
    let (world, host, locks) = environment().await;
    let world = Arc::new(world);
    let service = LockLayer::new(locks).lease(Duration::from_secs(5)).layer(service_fn({
        let world = Arc::clone(&world);
        move |WithLock { lock, .. }: WithLock<LambdaEvent<()>>| {
            let world = Arc::clone(&world);
            async move {
                lock.renew(Duration::from_secs(20)).await.unwrap();
                Ok::<_, Error>((lock.remaining(), lease_millis(&row(&world, FUNCTION).await)))
            }
        }
    }));
    let (remaining, lease) = service.oneshot(invocation(&host, ())).await.unwrap();
    assert!(remaining > Duration::from_secs(10), "{remaining:?}");
    assert!(lease >= 20_000 + 1_000, "{lease}");
    assert!(is_free(&world, FUNCTION).await);
}

#[tokio::test]
async fn a_renewal_by_a_handler_after_its_lease_fails() {
    let (_world, host, locks) = environment().await;
    let is_lost = Arc::new(AtomicBool::new(false));
    let service = LockLayer::new(locks).layer(service_fn({
        let (host, is_lost) = (host.clone(), Arc::clone(&is_lost));
        move |WithLock { lock, .. }: WithLock<LambdaEvent<()>>| {
            let (host, is_lost) = (host.clone(), Arc::clone(&is_lost));
            async move {
                host.advance_clock(Duration::from_secs(31));
                let error = lock.renew(Duration::from_secs(20)).await.unwrap_err();
                is_lost.store(error.is_lost(), Ordering::Relaxed);
                Ok::<_, Error>(())
            }
        }
    }));
    assert_eq!(reported(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockLost");
    assert!(is_lost.load(Ordering::Relaxed));
}

#[tokio::test]
async fn data_of_a_handler_passes_to_the_next_run() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(async |WithLock { lock, .. }: WithLock<LambdaEvent<()>>| {
        let page = lock.data().and_then(|data| data.as_str()).map_or(0, |page| page.parse().unwrap());
        lock.set_data((page + 1).to_string());
        Ok::<u32, Error>(page)
    }));
    for expected in 0..3 {
        assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn the_row_names_the_function_the_request_and_the_log_stream() {
    let (world, host, locks) = environment().await;
    let row = row_during(world, LockLayer::new(locks), invocation(&host, ())).await;
    assert_eq!(row["holder"].as_s().unwrap(), "report request-1 stream-1");
}

#[tokio::test]
async fn an_invocation_of_a_durable_execution_is_refused_before_its_entry_runs() {
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks).on_held(|_| "skipped").layer(service_fn(done::<Value>));
    let of_execution = json!({ "DurableExecutionArn": "arn", "CheckpointToken": "token" });
    let (error_type, message) = reported(service.clone().oneshot(invocation(&host, of_execution)).await.unwrap_err());
    assert_eq!(error_type, "LockInvalid");
    assert!(message.contains("durable execution") && message.contains("lambda-lock-durable"), "{message}");
    assert_eq!(host.requests(), 0);
    assert!(world.row(FUNCTION).await.is_none());
    let of_another_function = json!({ "CheckpointToken": "token" });
    assert_eq!(service.oneshot(invocation(&host, of_another_function)).await.unwrap(), "done");
}

#[tokio::test]
async fn disabled_locks_run_a_durable_execution() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let of_execution: LambdaEvent<Value> =
        invocation(&host, json!({ "DurableExecutionArn": "arn", "CheckpointToken": "token" }));
    assert_eq!(LockLayer::new(locks).layer(service_fn(done)).oneshot(of_execution).await.unwrap(), "done");
}
