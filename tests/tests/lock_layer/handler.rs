//! The lock that a handler gets with its event.

use std::sync::Arc;

use lambda_lock::{LockLayer, WithLock};
use lambda_lock_tests::invocation::reported;
use lambda_runtime::{Error, LambdaEvent};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};

use crate::{FUNCTION, done, environment, invocation, number, row, row_during};

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
