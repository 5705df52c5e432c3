//! Fences, and the condition check that protects a transaction.

use lambda_lock::ErrorKind;
use lambda_lock_tests::{Row, World};

use crate::{CLOCK_SKEW, LEASE, assert_contains, text, transact};

fn report() -> Row {
    Row::from([("id".to_owned(), text("report")), ("text".to_owned(), text("all is well"))])
}

#[tokio::test]
async fn a_transaction_with_the_condition_check_of_a_lost_lock_writes_nothing() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let (locks, others) = (world.locks(&ours).build().unwrap(), world.locks(&theirs).build().unwrap());
    let released = locks.acquire("released").await.unwrap();
    released.release().await.unwrap();
    let taken = locks.acquire("taken").await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    let _next = others.acquire("taken").await.unwrap();
    let taken_check = taken.condition_check().unwrap();
    let expired = locks.acquire("expired").await.unwrap();
    ours.advance_clock(LEASE + CLOCK_SKEW);
    for check in [released.condition_check().unwrap(), taken_check, expired.condition_check().unwrap()] {
        let refused = transact(&world, check, report()).await;
        assert_eq!(refused, Err(Some("ConditionalCheckFailed".to_owned())));
        assert!(world.row("report").await.is_none());
    }
}

#[tokio::test]
async fn the_condition_check_of_disabled_locks_always_holds() {
    let world = World::new().await;
    let lock = world.locks(&world.host().build()).enabled(false).build().unwrap().acquire("job").await.unwrap();
    transact(&world, lock.condition_check().unwrap(), report()).await.unwrap();
    assert!(world.row("report").await.is_some());
}

#[tokio::test]
async fn a_condition_check_for_a_table_without_transactions_is_refused() {
    let world = World::across_regions().await;
    let locks = world.locks(&world.host().build()).multi_region_strong_consistency(true).build().unwrap();
    for lock in [locks.acquire("job").await.unwrap(), locks.semaphore("permit", 1).acquire().await.unwrap()] {
        let error = lock.condition_check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_contains(&error, &[lock.key(), &world.table, "multi-Region strong consistency", "the fence"]);
        lock.release().await.unwrap();
    }
}
