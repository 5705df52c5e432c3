//! What a durable execution holds, and when it is freed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_durable_execution_sdk::{BoxError, Branch, DurableContext};
use lambda_lock::Locks;
use lambda_lock_durable::{Error, ErrorKind, LockContext as _};

use crate::{KEY, KINDS, LEASE, Table, run};

#[tokio::test(start_paused = true)]
async fn a_lock_is_held_across_suspensions_and_freed_at_the_end() {
    for kind in KINDS {
        let table = Table::new().await;
        let (locks, observer) = (table.locks.clone(), table.locks.clone());
        let result = run(move |ctx| {
            let (locks, observer) = (locks.clone(), observer.clone());
            async move {
                let lock = kind(&ctx, &locks).lease(LEASE);
                let text = lock.run(|held| async move {
                    let first = held.step("first", |fences| async move { Ok(fences.fence()) }).await?;
                    held.wait(Duration::from_hours(1)).await?;
                    held.context().wait(Duration::from_secs(1)).await?;
                    let holder = observer.get(KEY).await?.ok_or("no row")?;
                    let second = held.step("second", |fences| async move { Ok(fences.fence()) }).await?;
                    Ok(format!("{} {}", holder.is_current(), second > first))
                });
                Ok(text.await?)
            }
        })
        .await;
        assert_eq!(result.output().map(String::as_str), Some("true true"), "{:?}", result.error_message());
        assert!(result.invocation_count() > 2, "it was not suspended");
        assert!(!table.is_held().await);
        let waits = result.operations().iter().filter(|operation| operation.op_type() == "Wait").count();
        assert_eq!(waits, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_freed_after_an_error_of_the_body() {
    for kind in KINDS {
        let table = Table::new().await;
        let locks = table.locks.clone();
        let result = run(move |ctx| {
            let locks = locks.clone();
            async move {
                let failed: Result<String, Error> =
                    kind(&ctx, &locks).run(|_| async { Err(BoxError::from("no space")) }).await;
                ctx.wait(Duration::from_secs(1)).await?;
                let error = failed.unwrap_err();
                assert_eq!((error.kind(), error.error_type()), (ErrorKind::Operation, None));
                Ok(format!("{:#}", std::error::Error::source(&error).unwrap()))
            }
        })
        .await;
        assert!(result.output().unwrap().contains("no space"), "{:?}", result.output());
        assert!(!table.is_held().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_the_same_on_replay() {
    for (kind, is_semaphore) in KINDS.into_iter().zip([false, true, false]) {
        let table = Table::new().await;
        let other = table.locks.acquire_all([KEY, "other"]).lease(LEASE);
        let permit = table.locks.semaphore(KEY, 1).acquire().lease(LEASE);
        let (set, permit) =
            if is_semaphore { (None, Some(permit.await.unwrap())) } else { (Some(other.await.unwrap()), None) };
        let locks = table.locks.clone();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let refusals = Arc::clone(&seen);
        let result = run(move |ctx| {
            let (locks, refusals) = (locks.clone(), Arc::clone(&refusals));
            async move {
                let lock = kind(&ctx, &locks).wait_up_to(Duration::ZERO);
                let refused: Result<(), Error> = lock.run(|_| async { Ok(()) }).await;
                let error = refused.unwrap_err();
                refusals.lock().unwrap().push((
                    error.is_held(),
                    error.error_type().unwrap().to_owned(),
                    error.to_string(),
                ));
                ctx.wait(Duration::from_secs(1)).await?;
                Ok("refused".to_owned())
            }
        })
        .await;
        assert!(result.is_success(), "{:?}", result.error_message());
        assert!(table.is_held().await, "it freed the key of another");
        let seen = seen.lock().unwrap();
        assert!(seen.len() > 1, "it was not replayed");
        assert!(seen[0].0 && seen[0].1 == "LockHeld", "{seen:?}");
        assert!(seen.iter().all(|refusal| *refusal == seen[0]), "{seen:?}");
        drop((set, permit));
    }
}

#[tokio::test(start_paused = true)]
async fn branches_of_one_execution_exclude_each_other() {
    let table = Table::new().await;
    let (locks, inside) = (table.locks.clone(), Arc::new(AtomicU32::new(0)));
    let most = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&most);
    let result = run(move |ctx| {
        let (locks, inside, most) = (locks.clone(), Arc::clone(&inside), Arc::clone(&most));
        async move {
            let branch = |name: &str| {
                let (locks, inside, most) = (locks.clone(), Arc::clone(&inside), Arc::clone(&most));
                Branch::new(name, move |ctx: DurableContext| async move {
                    let lock = ctx.lock(&locks, KEY).lease(LEASE);
                    lock.run(|held| async move {
                        held.step("work", move |_| async move {
                            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            tokio::time::sleep(Duration::from_secs(1)).await;
                            inside.fetch_sub(1, Ordering::SeqCst);
                            Ok(1_u32)
                        })
                        .await?;
                        Ok(())
                    })
                    .await?;
                    Ok(())
                })
            };
            ctx.parallel([branch("one"), branch("two")]).await?;
            Ok("both".to_owned())
        }
    })
    .await;
    assert_eq!(result.output().map(String::as_str), Some("both"), "{:?}", result.error_message());
    assert_eq!(seen.load(Ordering::SeqCst), 1, "both branches were inside");
    assert!(!table.is_held().await);
}

/// The next environment's clock is behind that of the last by all that a table allows.
#[tokio::test(start_paused = true)]
async fn a_step_whose_clock_is_behind_has_a_larger_fence() {
    let skew = Duration::from_mins(5);
    for takes in KINDS {
        let table = Table::new().await;
        let locks = Locks::builder(table.host.client(), "locks").clock_skew(skew).build().unwrap();
        let host = table.host.clone();
        let result = run(move |ctx| {
            let (locks, host) = (locks.clone(), host.clone());
            async move {
                let fences = takes(&ctx, &locks).lease(LEASE).run(move |held| async move {
                    let first = held.step("first", |fences| async move { Ok(fences.fence()) }).await?;
                    let elsewhere = held.context().step(move |_| async move {
                        host.set_clock_back(skew);
                        Ok(())
                    });
                    elsewhere.await?;
                    let second = held.step("second", |fences| async move { Ok(fences.fence()) }).await?;
                    Ok(second > first)
                });
                Ok(format!("{:?}", fences.await.map_err(|error| error.kind())))
            }
        })
        .await;
        assert_eq!(result.output().map(String::as_str), Some("Ok(true)"), "{:?}", result.error_message());
        assert!(!table.is_held().await);
    }
}
