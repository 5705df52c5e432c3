//! A lock in the contexts that its body runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_durable_execution_sdk::DurableContext;
use lambda_lock_durable::Held;

use crate::{KINDS, Table, run};

/// What the items have written, in order.
type Written = Arc<Mutex<Vec<u32>>>;

/// Writes each item under the lock, one after the other. Item 2 is not written at its first attempt.
async fn write_all(held: &Held, items: Vec<u32>, written: Written) -> Result<Vec<u32>, lambda_lock_durable::Error> {
    let lock = held.clone();
    let map = held.context().map(items, move |ctx: DurableContext, item, _| {
        let (held, written) = (lock.within(&ctx), Arc::clone(&written));
        async move {
            let step = held.context().step(move |step| async move {
                if item == 2 && step.attempt() == 1 {
                    return Err("throttled".into());
                }
                Ok(())
            });
            step.name("prepare").await?;
            let write = move |_| async move {
                written.lock().unwrap().push(item);
                Ok(10 * item)
            };
            Ok(held.step("write", write).await?)
        }
    });
    Ok(map.max_concurrency(1).await?)
}

#[tokio::test(start_paused = true)]
async fn the_items_of_a_map_have_their_own_steps_on_each_replay() {
    for kind in KINDS {
        // With item 2, the map is replayed while it runs: an item that is done does not run again.
        for items in [vec![1, 3], vec![1, 2, 3]] {
            let table = Table::new().await;
            let (locks, written) = (table.locks.clone(), Written::default());
            let (all, seen) = (items.clone(), Arc::clone(&written));
            let result = run(move |ctx| {
                let (locks, items, written) = (locks.clone(), all.clone(), Arc::clone(&seen));
                async move {
                    let lock = kind(&ctx, &locks).run(move |held| async move {
                        let written = write_all(&held, items, written).await?;
                        // The map is finished: its items do not run in the next invocation.
                        held.wait(Duration::from_mins(1)).await?;
                        let last = held.step("last", |_| async { Ok(0) }).await?;
                        Ok(format!("{written:?} {last}"))
                    });
                    Ok(lock.await?)
                }
            })
            .await;
            let expected = format!("{:?} 0", items.iter().map(|item| 10 * item).collect::<Vec<_>>());
            assert_eq!(result.output(), Some(&expected), "{:?}", result.error_message());
            assert_eq!(*written.lock().unwrap(), items);
            assert!(!table.is_held().await);
        }
    }
}
