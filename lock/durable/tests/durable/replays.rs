//! Executions whose invocations end before their results are recorded.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_durable_execution_sdk::DurableContext;
use aws_durable_execution_sdk::test_util::LocalRunner;
use lambda_lock::Locks;
use lambda_lock_durable::{Error, Fences};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::service::{Losses, Service};
use crate::turns::{arn, execute};
use crate::{KINDS, LEASE, Table, Takes};

/// The checkpoints of [`two_steps`]: one for a wait and the two ends of the child context, two for each step.
const CHECKPOINTS: usize = 18;

/// Takes a lock for two steps, with a wait after each.
async fn two_steps(ctx: DurableContext, locks: Locks, takes: Takes, fences: Arc<Mutex<Vec<u64>>>) -> Result<(), Error> {
    // A clock of milliseconds tells one invocation from the next.
    sleep(Duration::from_millis(5)).await;
    let lock = takes(&ctx, &locks).lease(LEASE).wait_up_to(Duration::from_mins(10));
    lock.run(|held| async move {
        for name in ["first", "second"] {
            let fences = Arc::clone(&fences);
            let work = |own: Fences| async move {
                fences.lock().unwrap().push(own.fence());
                Ok(())
            };
            held.step(name, work).await?;
            held.wait(Duration::from_secs(5)).await?;
        }
        Ok(())
    })
    .await
}

fn assert_increasing(fences: &[u64], context: &str) {
    assert!(fences.len() >= 2 && fences.is_sorted_by(|one, next| one < next), "{context}: {fences:?}");
}

/// The results of each checkpoint are lost once, and then the next four at once: the work has larger fences each time, and
/// the key is free at the end.
#[tokio::test(start_paused = true)]
async fn a_lost_result_of_any_operation_costs_a_larger_fence_only() {
    for takes in KINDS {
        let mut undisturbed = 0;
        for (lost, count) in [(0, 0)].into_iter().chain((0..CHECKPOINTS).flat_map(|lost| [(lost, 1), (lost, 4)])) {
            let table = Table::new().await;
            let (locks, fences) = (table.locks.clone(), Arc::default());
            let seen = Arc::clone(&fences);
            let handler = move |_: u32, ctx: DurableContext| {
                let steps = two_steps(ctx, locks.clone(), takes, Arc::clone(&fences));
                async { Ok(steps.await?) }
            };
            let result = LocalRunner::new().fail_checkpoints_after_retryable(lost, count).run(handler, 0).await;
            assert!(result.is_success(), "{lost}: {:?} {:?}", result.error_type(), result.error_message());
            if count == 0 {
                undisturbed = result.invocation_count();
            }
            assert_eq!(result.invocation_count(), undisturbed + count, "{lost}: each loss ends an invocation");
            assert_increasing(&seen.lock().unwrap(), &lost.to_string());
            assert!(!table.is_held().await, "{lost}: the key is held");
        }
    }
}

/// Executes [`two_steps`] while another execution has the lock for 20 s. Returns the number of waits.
async fn after_a_holder(takes: Takes, losses: Losses) -> usize {
    let table = Table::new().await;
    let (holders, service) = (Service::new(&table.engine), Service::new(&table.engine));
    service.lose(losses);
    let (locks, fences) = (table.locks.clone(), Arc::default());
    let seen = Arc::clone(&fences);
    let own = arn(1);
    let execution = async {
        sleep(Duration::from_secs(1)).await;
        let execution = service.execute(&own, Duration::ZERO, move |_: Value, ctx| {
            let steps = two_steps(ctx, locks.clone(), takes, Arc::clone(&fences));
            async { Ok(json!(steps.await?)) }
        });
        execution.await
    };
    let (holder, ended) = tokio::join!(execute(&holders, &table.locks, 2, takes), execution);
    for ended in [&holder, &ended] {
        assert_eq!(ended.response["Status"], "SUCCEEDED", "{losses:?}: {ended:?}");
    }
    let waits = service.waits(&own);
    assert!(waits > 2, "it did not wait for the holder");
    let expected = 1 + waits + losses.count as usize;
    assert_eq!(ended.invocations as usize, expected, "{losses:?}: each wait and each loss ends an invocation");
    assert_increasing(&seen.lock().unwrap(), &format!("{losses:?}"));
    assert!(!table.is_held().await, "{losses:?}: the key is held");
    waits
}

/// The same while another execution has the key at first, in virtual time. A checkpoint is lost before it arrives, or its
/// answer is lost.
#[tokio::test(start_paused = true)]
async fn a_lost_result_of_a_wait_for_the_turn_costs_a_larger_fence_only() {
    for takes in KINDS {
        let waits = after_a_holder(takes, Losses::default()).await;
        // Each wait for the turn is followed by an attempt, which is a step.
        let checkpoints = CHECKPOINTS + 3 * (waits - 2);
        for are_applied in [false, true] {
            for skip in 0..u32::try_from(checkpoints).unwrap() {
                after_a_holder(takes, Losses { skip, count: 1, are_applied }).await;
            }
        }
    }
}
