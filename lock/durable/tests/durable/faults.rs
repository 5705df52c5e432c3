//! Tables that do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_durable_execution_sdk::test_util::LocalRunner;
use aws_durable_execution_sdk::{BoxError, DurableContext};
use lambda_lock::Locks;
use lambda_lock_durable::{Error, Held, LockContext as _, retry_take_over};
use serde_json::{Value, json};

use crate::outage::Outage;
use crate::service::Service;
use crate::turns::arn;
use crate::{KEY, KINDS, LEASE, Table, run};

const LONG: Duration = Duration::from_hours(10);

/// A use of the lock. It counts how often its work begins.
type Uses = fn(Held, Arc<AtomicU32>) -> futures_util::future::BoxFuture<'static, Result<(), Error>>;

const USES: [Uses; 3] = [
    |held, begun| {
        Box::pin(async move {
            let work = move |_| async move {
                begun.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            held.step("work", work).await
        })
    },
    |held, begun| {
        Box::pin(async move {
            held.wait(Duration::from_secs(5)).await?;
            begun.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    },
    |held, begun| {
        Box::pin(async move {
            let lock = held.clone();
            let step = held.context().step(move |_| async move {
                lock.take_over().await?;
                begun.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            Ok(step.retry_strategy(retry_take_over).await?)
        })
    },
];

/// Uses a lock in an outage that begins after the acquire. Returns what the function returned, and how often the work began.
async fn in_an_outage(uses: Uses, time: Duration) -> (Value, u32) {
    let table = Table::new().await;
    let service = Service::new(&table.engine);
    let begun = Arc::new(AtomicU32::new(0));
    let (locks, outage, counter) = (table.locks.clone(), table.outage.clone(), Arc::clone(&begun));
    let arn = arn(1);
    let ended = service.execute(&arn, Duration::ZERO, move |_: Value, ctx| {
        let (locks, outage, begun) = (locks.clone(), outage.clone(), Arc::clone(&counter));
        async move {
            let lock = ctx.lock(&locks, KEY).run(move |held| async move {
                start(&held, outage, time).await?;
                Ok(uses(held, begun).await?)
            });
            let answer: Result<(), Error> = lock.await;
            ctx.wait(Duration::from_secs(1)).await?;
            Ok(match answer {
                Ok(()) => json!("done"),
                Err(error) => json!([format!("{:?}", error.kind()), error.error_type()]),
            })
        }
    });
    let ended = ended.await;
    assert_eq!(ended.response["Status"], "SUCCEEDED", "{ended:?}");
    let result = serde_json::from_str(ended.response["Result"].as_str().unwrap()).unwrap();
    (result, begun.load(Ordering::SeqCst))
}

async fn start(held: &Held, outage: Outage, time: Duration) -> Result<(), BoxError> {
    let started = held.context().step(move |_| async move {
        outage.start(time);
        Ok(())
    });
    Ok(started.await?)
}

#[tokio::test(start_paused = true)]
async fn a_takeover_that_is_not_answered_is_repeated() {
    for uses in USES {
        let (result, begun) = in_an_outage(uses, Duration::from_secs(8)).await;
        assert_eq!(result, json!("done"));
        assert!(begun >= 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_that_is_never_answered_is_an_error_of_the_lock() {
    for uses in USES {
        let (result, begun) = in_an_outage(uses, LONG).await;
        assert_eq!((result, begun), (json!(["Lock", "LockUnavailable"]), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_work_is_not_repeated_whatever_it_is() {
    for kind in KINDS {
        let table = Table::new().await;
        let ledger = table.locks.acquire("ledger").lease(LEASE).await.unwrap();
        let (locks, charges) = (table.locks.clone(), Arc::new(AtomicU32::new(0)));
        let counter = Arc::clone(&charges);
        let result = run(move |ctx| {
            let (locks, charges) = (locks.clone(), Arc::clone(&counter));
            async move {
                let lock = kind(&ctx, &locks).run(move |held| async move {
                    let pay = move |_| async move {
                        charges.fetch_add(1, Ordering::SeqCst);
                        locks.acquire("ledger").await?.release().await?;
                        Ok(())
                    };
                    Ok(held.step("pay", pay).await?)
                });
                let error = lock.await.unwrap_err();
                Ok(format!("{:?}", error.kind()))
            }
        })
        .await;
        assert_eq!(result.output().map(String::as_str), Some("Operation"), "{:?}", result.error_message());
        assert_eq!(charges.load(Ordering::SeqCst), 1);
        ledger.release().await.unwrap();
    }
}

/// The result of the acquire is lost, and the next invocation runs on a host whose clock is behind.
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_result_was_lost_is_taken_over_by_a_clock_that_is_behind() {
    for kind in KINDS {
        let table = Table::new().await;
        let late = table.engine.host().clock_behind(Duration::from_millis(400)).build();
        let late = Locks::builder(late.client(), "locks").build().unwrap();
        let (locks, invocations) = (table.locks.clone(), Arc::new(AtomicU32::new(0)));
        let handler = move |_: u32, ctx: DurableContext| {
            let is_first = invocations.fetch_add(1, Ordering::SeqCst) == 0;
            let locks = if is_first { locks.clone() } else { late.clone() };
            async move {
                let acquired: Result<(), Error> =
                    kind(&ctx, &locks).wait_up_to(Duration::ZERO).run(|_| async { Ok(()) }).await;
                Ok::<_, BoxError>(acquired.is_ok())
            }
        };
        // The child context, the identity, and the start of the acquire come before its result.
        let result = LocalRunner::new().fail_checkpoints_after_retryable(4, 1).run(handler, 0).await;
        assert_eq!((result.output(), result.invocation_count()), (Some(&true), 2), "{:?}", result.error_message());
        assert!(!table.is_held().await && !table.has_holder("other").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_freed_keeps_no_other_key_held() {
    let table = Table::new().await;
    let (locks, outage) = (table.locks.clone(), table.outage.clone());
    let result = run(move |ctx| {
        let (locks, outage) = (locks.clone(), outage.clone());
        async move {
            let lock = ctx.lock_all(&locks, [KEY, "other"]).run(move |_| async move {
                outage.start_of("GetItem", KEY, Duration::from_mins(5));
                Ok("done".to_owned())
            });
            Ok(lock.await?)
        }
    })
    .await;
    assert_eq!(result.output().map(String::as_str), Some("done"), "{:?}", result.error_message());
    assert!(!table.has_holder("other").await);
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert!(table.is_held().await, "its release was answered");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_answered_is_repeated() {
    for kind in KINDS {
        let table = Table::new().await;
        let service = Service::new(&table.engine);
        let (locks, outage) = (table.locks.clone(), table.outage.clone());
        let arn = arn(1);
        let ended = service.execute(&arn, Duration::ZERO, move |_: Value, ctx| {
            let (locks, outage) = (locks.clone(), outage.clone());
            async move {
                let lock = kind(&ctx, &locks).run(move |held| async move {
                    start(&held, outage, Duration::from_secs(8)).await?;
                    Ok(())
                });
                Ok(json!(lock.await?))
            }
        });
        let ended = ended.await;
        assert_eq!(ended.response["Status"], "SUCCEEDED", "{ended:?}");
        assert!(ended.invocations > 1, "the outage was over");
        assert!(!table.is_held().await && !table.has_holder("other").await);
    }
}
