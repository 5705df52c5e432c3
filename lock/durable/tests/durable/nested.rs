//! Locks under locks.

use std::time::Duration;

use aws_durable_execution_sdk::BoxError;
use lambda_lock_durable::{Error, LockContext as _, retry_take_over};

use crate::{KEY, LEASE, Table, run};

#[tokio::test(start_paused = true)]
async fn a_refusal_of_an_inner_lock_is_not_the_outer_ones() {
    let table = Table::new().await;
    let holder = table.locks.acquire("inner").lease(LEASE).await.unwrap();
    let locks = table.locks.clone();
    let result = run(move |ctx| {
        let locks = locks.clone();
        async move {
            let outer = ctx.lock(&locks, KEY).identity("one").run({
                let locks = locks.clone();
                move |held| async move {
                    let inner = held.context().lock(&locks, "inner").identity("one").wait_up_to(Duration::ZERO);
                    Ok(inner.run(|_| async { Ok(()) }).await?)
                }
            });
            let error: Error = outer.await.unwrap_err();
            ctx.wait(Duration::from_secs(1)).await?;
            Ok(format!("{} {:?} {:?}", error.is_held(), error.kind(), error.error_type()))
        }
    })
    .await;
    let expected = r#"false Operation Some("LockHeld")"#;
    assert_eq!(result.output().map(String::as_str), Some(expected), "{:?}", result.error_message());
    assert!(!table.is_held().await);
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_loss_of_the_outer_lock_under_an_inner_one_is_the_outer_ones() {
    let table = Table::new().await;
    let locks = table.locks.clone();
    let result = run(move |ctx| {
        let locks = locks.clone();
        async move {
            let outer = ctx.lock(&locks, KEY).identity("one").run({
                let locks = locks.clone();
                move |outer| async move {
                    let inner = outer.context().lock(&locks, "inner").identity("one");
                    let inner: Result<(), Error> = inner
                        .run(move |held| async move {
                            let freed = held
                                .context()
                                .step(move |_| async move { Ok(locks.release_identity(KEY, "one").await?) });
                            freed.await?;
                            Ok(outer.within(held.context()).step("work", |_| async { Ok(()) }).await?)
                        })
                        .await;
                    let error = inner.unwrap_err();
                    if error.is_lost() {
                        return Err("the inner lock is not lost".into());
                    }
                    Err::<(), _>(error.into())
                }
            });
            let error: Error = outer.await.unwrap_err();
            Ok(format!("{:?}", error.kind()))
        }
    })
    .await;
    assert_eq!(result.output().map(String::as_str), Some("Lost"), "{:?}", result.error_message());
}

#[tokio::test(start_paused = true)]
async fn in_a_step_the_loss_names_the_outer_lock() {
    let table = Table::new().await;
    let locks = table.locks.clone();
    let result = run(move |ctx| {
        let locks = locks.clone();
        async move {
            let outer = ctx.lock(&locks, KEY).identity("one").run({
                let locks = locks.clone();
                move |outer| async move {
                    let inner = outer.context().lock(&locks, "inner").identity("one");
                    let inner: Result<(), Error> = inner
                        .run(move |held| async move {
                            let step = held.context().step(move |_| async move {
                                locks.release_identity(KEY, "one").await?;
                                outer.take_over().await?;
                                Ok(())
                            });
                            Ok(step.retry_strategy(retry_take_over).await?)
                        })
                        .await;
                    let error = inner.unwrap_err();
                    if error.is_lost() {
                        return Err("the inner lock is not lost".into());
                    }
                    Err::<(), _>(error.into())
                }
            });
            let error: Error = outer.await.unwrap_err();
            Ok(format!("{:?}", error.kind()))
        }
    })
    .await;
    assert_eq!(result.output().map(String::as_str), Some("Lost"), "{:?}", result.error_message());
}

#[tokio::test(start_paused = true)]
async fn in_a_child_context_the_loss_names_the_outer_lock() {
    let table = Table::new().await;
    let locks = table.locks.clone();
    let result = run(move |ctx| {
        let locks = locks.clone();
        async move {
            let outer = ctx.lock(&locks, KEY).identity("one").run({
                let locks = locks.clone();
                move |outer| async move {
                    let child = outer.context().clone().run_in_child_context(move |ctx| async move {
                        let inner = ctx.lock(&locks, "inner").identity("one").run(move |held| async move {
                            let freed = held
                                .context()
                                .step(move |_| async move { Ok(locks.release_identity(KEY, "one").await?) });
                            freed.await?;
                            Ok(outer.within(held.context()).step("work", |_| async { Ok(()) }).await?)
                        });
                        Ok::<(), BoxError>(inner.await?)
                    });
                    Ok(child.await?)
                }
            });
            let error: Error = outer.await.unwrap_err();
            Ok(format!("{:?}", error.kind()))
        }
    })
    .await;
    assert_eq!(result.output().map(String::as_str), Some("Lost"), "{:?}", result.error_message());
}
