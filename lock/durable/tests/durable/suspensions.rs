//! Executions that hold a lock while they are suspended, in environments that are frozen meanwhile and in others.

use std::time::Duration;

use aws_durable_execution_sdk::DurableContext;
use lambda_lock::Locks;
use lambda_lock_durable::ErrorKind;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::service::{Ended, Service};
use crate::turns::arn;
use crate::{KEY, KINDS, LEASE, Table, Takes};

/// Waits under a lock, by itself or by its context, and returns what the next step returns.
async fn after_a_wait(
    service: &Service,
    locks: &Locks,
    takes: Takes,
    lease: Duration,
    wait: Duration,
    renews: bool,
) -> Ended {
    let locks = locks.clone();
    let arn = arn(1);
    let execution = service.execute(&arn, Duration::ZERO, move |_: Value, ctx| {
        let locks = locks.clone();
        async move {
            let lock = takes(&ctx, &locks).lease(lease).run(move |held| async move {
                held.step("before", |_| async { Ok(()) }).await?;
                if renews {
                    held.wait(wait).await?;
                } else {
                    held.context().wait(wait).await?;
                }
                Ok(held.step("after", |_| async { Ok(()) }).await?)
            });
            Ok(json!(format!("{:?}", lock.await.map_err(|error| error.kind()))))
        }
    });
    let ended = execution.await;
    assert_eq!(ended.response["Status"], "SUCCEEDED", "{ended:?}");
    assert!(ended.invocations > 1, "it was not suspended");
    ended
}

/// Returns what the function returned.
fn result(ended: &Ended) -> Value {
    serde_json::from_str(ended.response["Result"].as_str().unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_the_lock_renews_it_and_a_wait_of_the_context_does_not() {
    for takes in KINDS {
        for is_frozen in [false, true] {
            // A wait of several leases, and one that is longer than a lease of a permit or a set may be.
            for wait in [3 * LEASE, Duration::from_hours(30)] {
                for (renews, expected) in [(true, Ok(())), (false, Err(ErrorKind::Lost))] {
                    let table = Table::new().await;
                    let service = if is_frozen {
                        Service::frozen(&table.engine, &table.host)
                    } else {
                        Service::new(&table.engine)
                    };
                    let after = after_a_wait(&service, &table.locks, takes, LEASE, wait, renews).await;
                    assert_eq!(result(&after), format!("{expected:?}"), "{is_frozen} {wait:?} {renews}");
                    assert!(!table.is_held().await);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_under_the_longest_lease_is_few_waits() {
    let day = Duration::from_hours(24);
    for (takes, longest) in KINDS.into_iter().zip([366 * day, day, day]) {
        let table = Table::new().await;
        let service = Service::new(&table.engine);
        let after = after_a_wait(&service, &table.locks, takes, longest, longest, true).await;
        assert_eq!(result(&after), "Ok(())");
        assert_eq!(service.waits(&arn(1)), 2);
        assert!(!table.is_held().await);
    }
}

/// Executes a function that is stopped: it is not invoked again after its wait.
async fn stop(table: &Table, service: &Service, takes: Takes) {
    let (locks, arn) = (table.locks.clone(), arn(1));
    let execution = service.execute(&arn, Duration::ZERO, move |_: Value, ctx: DurableContext| {
        let locks = locks.clone();
        async move {
            let lock = takes(&ctx, &locks).identity(ctx.execution_arn()).lease(LEASE);
            let done = lock.run(|held| async move {
                held.wait(Duration::from_hours(2)).await?;
                Ok(())
            });
            Ok(json!(done.await?))
        }
    });
    assert!(tokio::time::timeout(Duration::from_hours(1), execution).await.is_err());
    assert!(table.is_held().await);
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_stopped_execution_can_be_freed_by_its_arn() {
    for takes in KINDS {
        let table = Table::new().await;
        stop(&table, &Service::new(&table.engine), takes).await;
        assert!(table.locks.release_identity(KEY, &arn(1)).await.unwrap());
        assert!(!table.is_held().await);
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_execution_stops_its_lease_ends_for_the_waiter() {
    for takes in KINDS {
        let table = Table::new().await;
        let service = Service::new(&table.engine);
        stop(&table, &service, takes).await;
        let started = table.engine.now();
        let (locks, arn) = (table.locks.clone(), arn(2));
        let execution = service.execute(&arn, Duration::ZERO, move |_: Value, ctx: DurableContext| {
            let locks = locks.clone();
            async move {
                let lock = takes(&ctx, &locks).wait_up_to(Duration::from_hours(4));
                let work = lock.run(|held| async move {
                    let work = held.step("work", |_| async {
                        sleep(Duration::from_secs(1)).await;
                        Ok(())
                    });
                    Ok(work.await?)
                });
                Ok(json!(work.await?))
            }
        });
        let ended = execution.await;
        assert_eq!(ended.response["Status"], "SUCCEEDED", "{ended:?}");
        // The first of the two hours has passed.
        let took = table.engine.now().duration_since(started).unwrap();
        let left = Duration::from_hours(1) + LEASE;
        assert!((left..left + Duration::from_mins(1)).contains(&took), "{took:?}");
    }
}
