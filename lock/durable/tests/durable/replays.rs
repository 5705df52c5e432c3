//! Executions whose invocations end before their results are recorded.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_durable_execution_sdk::test_util::LocalRunner;
use aws_durable_execution_sdk::{BoxError, DurableContext};
use lambda_lock::Locks;
use lambda_lock_durable::{DurableLock, LockContext as _};

use crate::{KEY, LEASE, Table};

const KINDS: [fn(&DurableContext, &Locks) -> DurableLock; 3] = [
    |ctx, locks| ctx.lock(locks, KEY),
    |ctx, locks| ctx.permit(locks, KEY, 2),
    |ctx, locks| ctx.lock_all(locks, [KEY, "other"]),
];

/// The results of each checkpoint are lost once, and then the next four at once: the work has larger fences each time, and
/// the key is free at the end.
#[tokio::test(start_paused = true)]
async fn a_lost_result_of_any_operation_costs_a_larger_fence_only() {
    for kind in KINDS {
        for lost in 0..16 {
            for count in [1, 4] {
                let table = Table::new().await;
                let (locks, fences) = (table.locks.clone(), Arc::new(Mutex::new(Vec::new())));
                let seen = Arc::clone(&fences);
                let handler = move |_: u32, ctx: DurableContext| {
                    let (locks, fences) = (locks.clone(), Arc::clone(&fences));
                    async move {
                        // A clock of milliseconds tells one invocation from the next.
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        let lock = kind(&ctx, &locks).lease(LEASE).wait_up_to(Duration::from_mins(1));
                        let done = lock.run(|held| async move {
                            for name in ["first", "second"] {
                                let fences = Arc::clone(&fences);
                                let work = |own: lambda_lock_durable::Fences| async move {
                                    fences.lock().unwrap().push(own.fence());
                                    Ok(())
                                };
                                held.step(name, work).await?;
                                held.wait(Duration::from_secs(5)).await?;
                            }
                            Ok(())
                        });
                        done.await?;
                        Ok::<_, BoxError>(())
                    }
                };
                let runner = LocalRunner::new().fail_checkpoints_after_retryable(lost, count);
                let result = runner.run(handler, 0).await;
                assert!(result.is_success(), "{lost}: {:?} {:?}", result.error_type(), result.error_message());
                let fences = seen.lock().unwrap().clone();
                assert!(fences.len() >= 2 && fences.is_sorted_by(|one, next| one < next), "{lost}: {fences:?}");
                assert!(!table.is_held().await, "{lost}: the key is held");
            }
        }
    }
}
