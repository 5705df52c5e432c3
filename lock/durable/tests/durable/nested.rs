//! Locks under locks.

use std::time::Duration;

use aws_durable_execution_sdk::BoxError;
use lambda_lock::Locks;
use lambda_lock_durable::{Error, Held, LockContext as _, retry_take_over};

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

/// Runs a body under an outer lock, and returns the kind of the error that it passes on.
async fn kind_under_a_lock<F, Fut>(body: F) -> Option<String>
where
    F: Fn(Held, Locks) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let table = Table::new().await;
    let locks = table.locks.clone();
    let result = run(move |ctx| {
        let (locks, body) = (locks.clone(), body.clone());
        async move {
            let outer = ctx.lock(&locks, KEY).identity("one").run(move |held| body(held, locks));
            let error: Error = outer.await.unwrap_err();
            Ok(format!("{:?}", error.kind()))
        }
    });
    result.await.output().cloned()
}

/// Frees the key of the outer lock under the inner one, and goes on with a step of the outer one.
async fn lose_outer(outer: Held, held: Held, locks: Locks) -> Result<(), BoxError> {
    let freed = held.context().step(move |_| async move { Ok(locks.release_identity(KEY, "one").await?) });
    freed.await?;
    Ok(outer.within(held.context()).step("work", |_| async { Ok(()) }).await?)
}

/// Passes on the error of the inner lock, which is not lost itself.
fn passed_on(inner: Result<(), Error>) -> Result<(), BoxError> {
    let error = inner.unwrap_err();
    assert!(!error.is_lost(), "{error}");
    Err(error.into())
}

#[tokio::test(start_paused = true)]
async fn a_loss_of_the_outer_lock_under_an_inner_one_is_the_outer_ones() {
    let kind = kind_under_a_lock(|outer, locks| async move {
        let inner = outer.context().lock(&locks, "inner").identity("one");
        passed_on(inner.run(move |held| lose_outer(outer, held, locks)).await)
    });
    assert_eq!(kind.await.as_deref(), Some("Lost"));
}

#[tokio::test(start_paused = true)]
async fn in_a_step_the_loss_names_the_outer_lock() {
    let kind = kind_under_a_lock(|outer, locks| async move {
        let inner = outer.context().lock(&locks, "inner").identity("one");
        let inner = inner.run(move |held| async move {
            let step = held.context().step(move |_| async move {
                locks.release_identity(KEY, "one").await?;
                outer.take_over().await?;
                Ok(())
            });
            Ok(step.retry_strategy(retry_take_over).await?)
        });
        passed_on(inner.await)
    });
    assert_eq!(kind.await.as_deref(), Some("Lost"));
}

#[tokio::test(start_paused = true)]
async fn in_a_child_context_the_loss_names_the_outer_lock() {
    let kind = kind_under_a_lock(|outer, locks| async move {
        let child = outer.context().clone().run_in_child_context(move |ctx| async move {
            let inner = ctx.lock(&locks, "inner").identity("one");
            Ok::<(), BoxError>(inner.run(move |held| lose_outer(outer, held, locks)).await?)
        });
        Ok(child.await?)
    });
    assert_eq!(kind.await.as_deref(), Some("Lost"));
}
