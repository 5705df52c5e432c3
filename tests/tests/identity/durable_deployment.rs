//! The example function `durable-deployment`, on the service that runs the tests of durable locks.

use std::time::Duration;

use aws_durable_execution_sdk::DurableContext;
use futures_util::future::join;
use lambda_example::{Deployment, Done, Releases, Simulation, durable_deployment};
use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock_tests::engine_with_latency;
use lambda_lock_tests::invocation::LoseAnswers;
use serde_json::{Value, json};

use self::service::{Ended, Service};

#[allow(dead_code, reason = "these tests need less of it")]
#[path = "../../../lock/durable/tests/durable/service.rs"]
mod service;

const ROLL_OUT: Duration = Duration::from_mins(20);
const COLD_START: Duration = Duration::from_millis(150);

async fn table() -> (DynamoDb, Host, Locks) {
    let (engine, host) = engine_with_latency(None::<LoseAnswers>);
    let locks = Locks::builder(host.client(), "locks").key_prefix("ci#").build().unwrap();
    locks.create_table().await.unwrap();
    (engine, host, locks)
}

/// Executes the deployment of a version, whose rollout takes longer than the lease.
async fn deploy(service: &Service, host: &Host, locks: &Locks, version: &'static str, fails: bool) -> Ended {
    let releases = Releases::new(host.client(), "locks", "ci#");
    let locks = locks.clone();
    let arn = format!("arn:aws:lambda:eu-west-1:123456789012:function:deploy:1/durable-execution/{version}/1");
    let handler = move |_: Value, ctx: DurableContext| {
        let rolling_out_ms = u64::try_from(ROLL_OUT.as_millis()).unwrap();
        let input = Deployment { key: "shop".to_owned(), version: version.to_owned(), rolling_out_ms, fails };
        let deployed = durable_deployment(locks.clone(), releases.clone(), Simulation::On, input, ctx);
        async { Ok(json!(deployed.await?)) }
    };
    service.execute(&arn, COLD_START, handler).await
}

/// Returns the fence of a deployment that has released this version.
fn fence_of(ended: &Ended, expected: &str) -> u64 {
    assert_eq!(ended.response["Status"], "SUCCEEDED", "{ended:?}");
    match serde_json::from_str(ended.response["Result"].as_str().unwrap()).unwrap() {
        Done::Released { version, fence } if version == expected => fence,
        other => panic!("{other:?}"),
    }
}

async fn is_free(locks: &Locks) -> bool {
    locks.get("shop").await.unwrap().is_some_and(|holder| holder.has_released())
}

#[tokio::test(start_paused = true)]
async fn durable_deployments_of_a_service_run_one_after_the_other() {
    let (engine, host, locks) = table().await;
    let service = Service::new(&engine);
    let started = engine.now();
    let deploys = join(deploy(&service, &host, &locks, "1", false), deploy(&service, &host, &locks, "2", false)).await;
    let mut fences = [fence_of(&deploys.0, "1"), fence_of(&deploys.1, "2")];
    let took = engine.now().duration_since(started).unwrap();
    assert!((2 * ROLL_OUT..3 * ROLL_OUT).contains(&took), "{took:?}");
    fences.sort_unstable();
    assert!(fences[0] < fences[1]);
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_durable_deployment_that_fails_frees_its_service() {
    let (engine, host, locks) = table().await;
    let service = Service::new(&engine);
    let failed = deploy(&service, &host, &locks, "1", true).await;
    assert_eq!(failed.response["Status"], "FAILED", "{failed:?}");
    let message = failed.response["Error"]["ErrorMessage"].as_str().unwrap();
    assert!(message.contains("version 1 failed its tests"), "{message}");
    assert!(is_free(&locks).await);
    fence_of(&deploy(&service, &host, &locks, "2", false).await, "2");
}
