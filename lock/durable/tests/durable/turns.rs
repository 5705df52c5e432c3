//! Several executions, which wait for each other in virtual time.

use std::time::Duration;

use aws_durable_execution_sdk::DurableContext;
use futures_util::future::join_all;
use lambda_lock::Locks;
use lambda_lock_durable::{DurableLock, LockContext as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::service::{Ended, Service};
use crate::{KEY, LEASE, Table};

const HOLD: Duration = Duration::from_secs(20);
/// How late an invocation begins after its wait.
const COLD_START: Duration = Duration::from_millis(150);

fn arn(number: u32) -> String {
    format!("arn:aws:lambda:eu-west-1:123456789012:function:deploy:1/durable-execution/e{number}/1")
}

/// Executes a function that holds what it takes for 20 s, in a step or across a wait.
async fn execute(
    service: &Service,
    locks: &Locks,
    number: u32,
    takes: fn(&DurableContext, &Locks) -> DurableLock,
    is_suspended: bool,
) -> Ended {
    let locks = locks.clone();
    service
        .execute(&arn(number), COLD_START, move |_: Value, ctx| {
            let locks = locks.clone();
            async move {
                let lock = takes(&ctx, &locks).lease(LEASE).wait_up_to(Duration::from_hours(1));
                let fence = lock.run(move |held| async move {
                    if is_suspended {
                        held.wait(HOLD).await?;
                    }
                    let work = move |fences: lambda_lock_durable::Fences| async move {
                        if !is_suspended {
                            sleep(HOLD).await;
                        }
                        Ok(fences.fence())
                    };
                    Ok(held.step("work", work).await?)
                });
                Ok(json!(fence.await?))
            }
        })
        .await
}

async fn table_and_service() -> (Table, Service) {
    let table = Table::new().await;
    let service = Service::new(&table.engine);
    (table, service)
}

#[tokio::test(start_paused = true)]
async fn executions_take_turns_with_few_suspensions() {
    let kinds: [fn(&DurableContext, &Locks) -> DurableLock; 2] =
        [|ctx, locks| ctx.lock(locks, KEY), |ctx, locks| ctx.permit(locks, KEY, 1)];
    for takes in kinds {
        let (table, service) = table_and_service().await;
        // The first hold tells how long holds take.
        execute(&service, &table.locks, 0, takes, false).await;
        let (started, requests) = (table.engine.now(), table.host.requests());
        let ended = join_all((1..=6).map(|number| execute(&service, &table.locks, number, takes, false))).await;
        let took = table.engine.now().duration_since(started).unwrap();
        for execution in &ended {
            assert_eq!(execution.response["Status"], "SUCCEEDED", "{execution:?}");
        }
        let waits: usize = (1..=6).map(|number| service.waits(&arn(number))).sum();
        let invocations: u32 = ended.iter().map(|execution| execution.invocations).sum();
        let requests = table.host.requests() - requests;
        println!("{waits} waits, {invocations} invocations, {requests} requests, {took:?}");
        assert!(waits <= 12, "{waits} waits");
        assert!(took <= 6 * HOLD.mul_f64(1.15), "{took:?}");
        assert!(!table.is_held().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspended_execution_keeps_its_lock() {
    let (table, service) = table_and_service().await;
    let takes = |ctx: &DurableContext, locks: &Locks| ctx.lock(locks, KEY);
    let started = table.engine.now();
    let ended = join_all((1..=2).map(|number| execute(&service, &table.locks, number, takes, true))).await;
    let took = table.engine.now().duration_since(started).unwrap();
    assert!(took >= 2 * HOLD, "they held it at the same time");
    for execution in ended {
        assert_eq!(execution.response["Status"], "SUCCEEDED", "{execution:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_stopped_execution_can_be_freed_by_its_arn() {
    let (table, service) = table_and_service().await;
    let (locks, arn) = (table.locks.clone(), arn(1));
    let execution = service.execute(&arn, COLD_START, move |_: Value, ctx: DurableContext| {
        let locks = locks.clone();
        async move {
            let lock = ctx.lock(&locks, KEY).owner_from(ctx.execution_arn()).lease(LEASE);
            let done = lock.run(|held| async move {
                held.wait(Duration::from_hours(24)).await?;
                Ok(())
            });
            done.await?;
            Ok(Value::Null)
        }
    });
    // It is stopped while it is suspended: it is never invoked again.
    assert!(tokio::time::timeout(Duration::from_hours(1), execution).await.is_err());
    assert!(table.is_held().await);
    assert!(table.locks.release_identity(KEY, &arn).await.unwrap());
    assert!(!table.is_held().await);
}
