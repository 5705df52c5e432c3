//! The fences of several keys, and the condition checks that protect a transaction.

use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use lambda_lock::{ErrorKind, Lock};
use lambda_lock_tests::{Row, World};

use crate::{CLOCK_SKEW, KEYS, LEASE, assert_contains, assert_held_by, ms, text};

#[tokio::test]
async fn the_fence_of_each_key_is_larger_although_one_was_acquired_more_often() {
    let world = World::new().await;
    let (locks, others) =
        (world.default_locks(), world.locks(&world.host().clock_behind(ms(400)).build()).build().unwrap());
    let mut last = KEYS.map(|_| None);
    for locks in [&locks, &others, &locks] {
        for _ in 0..5 {
            let lock = others.acquire(KEYS[0]).await.unwrap();
            last[0] = Some(lock.fence());
            lock.release().await.unwrap();
        }
        let set = locks.acquire_all(KEYS).await.unwrap();
        let fences = KEYS.map(|key| set.fence_of(key));
        assert!(last.iter().zip(&fences).all(|(last, fence)| last < fence), "{last:?}, {fences:?}");
        last = fences;
        set.release().await.unwrap();
    }
}

/// Writes a free row with this fence, as another program can.
async fn put_fence(world: &World, key: &str, fence: u64) {
    let number = |value: u64| AttributeValue::N(value.to_string());
    let row = [
        ("id", text(key)),
        ("status", text("INPROGRESS")),
        ("owner", text("another")),
        ("in_progress_expiration", number(1)),
        ("expiration", number(1)),
        ("fence", number(fence)),
    ];
    world.put_row(row.map(|(name, value)| (name.to_owned(), value)).into()).await;
}

#[tokio::test]
async fn a_fence_ahead_of_the_clock_costs_one_more_request() {
    let world = World::new().await;
    let ahead = u64::try_from(i64::MAX).unwrap() / 2;
    put_fence(&world, KEYS[1], ahead).await;
    let host = world.host().build();
    let set = world.locks(&host).build().unwrap().acquire_all(KEYS).await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_eq!(KEYS.map(|key| set.fence_of(key)), [Some(ahead + 1); 2]);
    assert_held_by(&world, &set).await;
    set.release().await.unwrap();
}

#[tokio::test]
async fn a_fence_ahead_of_the_clock_beside_a_held_key_costs_no_request() {
    let world = World::new().await;
    put_fence(&world, KEYS[1], u64::try_from(i64::MAX).unwrap() / 2).await;
    let other = world.default_locks().acquire(KEYS[0]).await.unwrap();
    let host = world.host().build();
    let error = world.locks(&host).build().unwrap().acquire_all(KEYS).await.unwrap_err();
    assert!(error.is_held(), "{error}");
    assert_eq!(host.requests(), 1);
    other.release().await.unwrap();
}

#[tokio::test]
async fn rejects_a_fence_that_cannot_grow() {
    let world = World::new().await;
    for fence in [0, 1] {
        put_fence(&world, KEYS[0], u64::try_from(i64::MAX).unwrap() + fence).await;
        let error = world.default_locks().acquire_all(KEYS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error}");
        assert_contains(&error, &[KEYS[0], "`fence` or `withdrawn` has reached its largest value"]);
        assert!(world.row(KEYS[1]).await.is_none());
    }
}

fn report() -> Row {
    Row::from([("id".to_owned(), text("report"))])
}

/// Writes a row in a transaction with the checks of the set. Returns whether it was applied.
async fn is_written(world: &World, set: &Lock) -> bool {
    let checks = set.condition_checks().unwrap().into_iter();
    let checks = checks.map(|check| TransactWriteItem::builder().condition_check(check).build());
    let put = Put::builder().table_name(&world.table).set_item(Some(report())).build().unwrap();
    let transaction = world
        .client()
        .transact_write_items()
        .set_transact_items(Some(checks.collect()))
        .transact_items(TransactWriteItem::builder().put(put).build())
        .send();
    Box::pin(transaction).await.is_ok()
}

#[tokio::test]
async fn a_transaction_with_the_condition_checks_is_applied_only_while_every_key_is_held() {
    let world = World::new().await;
    let theirs = world.host().build();
    let set = world.default_locks().acquire_all(KEYS).await.unwrap();
    assert_eq!(set.condition_checks().unwrap().len(), 2);
    assert!(is_written(&world, &set).await);
    world.delete_row("report").await;
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    let taken = world.locks(&theirs).build().unwrap().acquire(KEYS[1]).await.unwrap();
    assert!(!is_written(&world, &set).await);
    assert!(world.row("report").await.is_none());
    taken.release().await.unwrap();
}

#[tokio::test]
async fn an_identity_takes_its_set_back_although_a_fence_is_ahead_of_the_clock() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().clock_ahead(ms(100)).build());
    let first = world.locks(&ours).build().unwrap().acquire_all(KEYS).identity("execution").await.unwrap();
    let ahead = 2 * first.fence_of(KEYS[0]).unwrap();
    let mut row = world.row(KEYS[0]).await.unwrap();
    row.insert("fence".to_owned(), AttributeValue::N(ahead.to_string()));
    world.put_row(row).await;
    let again = world.locks(&theirs).build().unwrap().acquire_all(KEYS).identity("execution").await.unwrap();
    assert_eq!((theirs.requests(), again.fence_of(KEYS[0])), (2, Some(ahead + 1)));
    again.release().await.unwrap();
}
