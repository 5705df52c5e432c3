//! Locks that are lost while their execution goes on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_durable_execution_sdk::DurableContext;
use lambda_lock_durable::{Error, ErrorKind, Held, LockContext as _, retry_take_over};
use tokio::task::yield_now;

use crate::{KEY, KINDS, Table, run};

#[tokio::test(start_paused = true)]
async fn a_step_ends_with_its_lease() {
    let table = Table::new().await;
    let locks = table.locks.clone();
    let result = run(move |ctx| {
        let locks = locks.clone();
        async move {
            let lock = ctx.lock(&locks, KEY).lease(Duration::from_secs(30));
            let lost = lock.run(|held| async move {
                Ok(held
                    .step("slow", |_| async {
                        tokio::time::sleep(Duration::from_secs(31)).await;
                        Ok("done".to_owned())
                    })
                    .await?)
            });
            let error = lost.await.unwrap_err();
            Ok(format!("{:?}: {error}", error.kind()))
        }
    })
    .await;
    assert_eq!(
        result.output().map(String::as_str),
        Some("Lost: the lease for deploy ended before the step did: choose a longer lease")
    );
}

#[tokio::test(start_paused = true)]
async fn a_step_that_blocks_its_thread_until_its_lease_has_ended_fails() {
    for kind in KINDS {
        let table = Table::new().await;
        let (locks, host) = (table.locks.clone(), table.host.clone());
        let result = run(move |ctx| {
            let (locks, host) = (locks.clone(), host.clone());
            async move {
                let lost = kind(&ctx, &locks).lease(Duration::from_secs(30)).run(|held| async move {
                    let blocks = move |_| async move {
                        host.advance_clock(Duration::from_secs(31));
                        Ok("done".to_owned())
                    };
                    Ok(held.step("blocks", blocks).await?)
                });
                Ok(format!("{:?}", lost.await.map_err(|error| error.kind())))
            }
        })
        .await;
        assert_eq!(result.output().map(String::as_str), Some("Err(Lost)"), "{:?}", result.error_message());
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_part_of_a_step_that_thaws_after_its_lease_does_not_run() {
    for kind in KINDS {
        let table = Table::new().await;
        let (locks, host) = (table.locks.clone(), table.host.clone());
        let went_on = Arc::<AtomicU32>::default();
        let counter = Arc::clone(&went_on);
        let result = run(move |ctx| {
            let (locks, host, went_on) = (locks.clone(), host.clone(), Arc::clone(&counter));
            async move {
                let lost = kind(&ctx, &locks).lease(Duration::from_secs(30)).run(|held| async move {
                    let work = move |_| async move {
                        // The step asks the clock now, and again after a second.
                        yield_now().await;
                        host.advance_clock(Duration::from_secs(31));
                        yield_now().await;
                        went_on.fetch_add(1, Ordering::Relaxed);
                        Ok("done".to_owned())
                    };
                    Ok(held.step("thaws", work).await?)
                });
                Ok(format!("{:?}", lost.await.map_err(|error| error.kind())))
            }
        })
        .await;
        assert_eq!(result.output().map(String::as_str), Some("Err(Lost)"), "{:?}", result.error_message());
        assert_eq!(went_on.load(Ordering::Relaxed), 0);
    }
}

/// Frees the key, as an operator does.
async fn free(table: &Table) {
    let seen = table.locks.get(KEY).await.unwrap().unwrap();
    table.locks.force_release(KEY, &seen).await.unwrap();
}

/// Runs a body whose lock is freed before it, and returns the kinds that the function sees on each replay, and how often the
/// work of the body was tried.
async fn without_a_lock<F, Fut>(body: F) -> (Vec<Option<ErrorKind>>, u32)
where
    F: Fn(Held, Arc<AtomicU32>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Error>> + Send + 'static,
{
    let table = Arc::new(Table::new().await);
    let (seen, tries) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicU32>::default());
    let (kinds, counter) = (Arc::clone(&seen), Arc::clone(&tries));
    let result = run(move |ctx| {
        let (body, table, kinds, tries) = (body.clone(), Arc::clone(&table), Arc::clone(&kinds), Arc::clone(&counter));
        async move {
            let lost = ctx.lock(&table.locks, KEY).run({
                let table = Arc::clone(&table);
                move |held| async move {
                    let freed = held.context().step(move |_| async move {
                        free(&table).await;
                        Ok(())
                    });
                    freed.await?;
                    Ok(body(held, tries).await?)
                }
            });
            let lost: Result<(), Error> = lost.await;
            kinds.lock().unwrap().push(lost.err().map(|error| error.kind()));
            ctx.wait(Duration::from_secs(1)).await?;
            Ok(String::new())
        }
    })
    .await;
    assert!(result.is_success(), "{:?}", result.error_message());
    let seen = seen.lock().unwrap().clone();
    (seen, tries.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_lost_takeover_in_a_step_is_not_repeated() {
    let seen = without_a_lock(|held, tries| async move {
        let lock = held.clone();
        let step = held.context().step(move |_| async move {
            tries.fetch_add(1, Ordering::SeqCst);
            lock.take_over().await?;
            Ok(())
        });
        Ok(step.retry_strategy(retry_take_over).await?)
    });
    assert_eq!(seen.await, (vec![Some(ErrorKind::Lost); 2], 1));
}

#[tokio::test(start_paused = true)]
async fn a_loss_in_an_item_of_a_map_is_that_of_the_lock() {
    let seen = without_a_lock(|held, tries| async move {
        let lock = held.clone();
        let map = held.context().map([1, 2], move |ctx: DurableContext, _, _| {
            let (held, tries) = (lock.within(&ctx), Arc::clone(&tries));
            async move {
                tries.fetch_add(1, Ordering::SeqCst);
                Ok(held.step("write", |_| async { Ok(()) }).await?)
            }
        });
        map.max_concurrency(1).await?;
        Ok(())
    });
    let (kinds, _) = seen.await;
    assert_eq!(kinds, vec![Some(ErrorKind::Lost); 2]);
}
