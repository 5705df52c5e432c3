//! A key is a lock, a record, or a semaphore.

use std::convert::Infallible;
use std::time::Duration;

use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, ErrorKind, HandlerError, Idempotency};
use lambda_lock_tests::World;

use crate::{KEY, acquire_all, assert_contains, release_all};

fn assert_wrong_kind(error: &Error, is: &str, not: &str) {
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    assert_eq!(error.key(), KEY);
    assert_contains(error, &["key `bank-api` in table `locks-", &format!("is {is}, not {not}: use another key")]);
}

#[tokio::test]
async fn a_lock_on_a_semaphore_is_refused_without_waiting() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let held = acquire_all(&locks, 1).await;
    let waiting = || locks.acquire(KEY).wait(Duration::from_hours(1));
    assert_wrong_kind(&waiting().await.unwrap_err(), "a semaphore", "a lock");
    release_all(held).await;
    // The row stays until TTL deletes it.
    assert_wrong_kind(&waiting().await.unwrap_err(), "a semaphore", "a lock");
    assert_eq!(host.requests(), 4);
    world.delete_row(KEY).await;
    locks.acquire(KEY).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_semaphore_on_a_lock_is_refused_without_waiting() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let held = locks.acquire(KEY).await.unwrap();
    let before = world.row(KEY).await;
    let waiting = || locks.semaphore(KEY, 5).acquire().wait(Duration::from_hours(1));
    assert_wrong_kind(&waiting().await.unwrap_err(), "a lock or a record of idempotency", "a semaphore");
    assert_eq!(world.row(KEY).await, before);
    held.release().await.unwrap();
    assert_wrong_kind(&waiting().await.unwrap_err(), "a lock or a record of idempotency", "a semaphore");
    assert_eq!(host.requests(), 4);
    world.delete_row(KEY).await;
    waiting().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_semaphore_and_a_record_refuse_each_other() {
    let world = World::new().await;
    let locks = world.default_locks();
    let orders: Idempotency<String, u32, Infallible> =
        Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &String| Some(order.clone()));
    release_all(acquire_all(&locks, 1).await).await;
    let refused = orders.run(&KEY.to_owned(), async |_| Ok(1)).await.unwrap_err();
    let HandlerError::Lock(refused) = refused else { panic!("{refused:?}") };
    assert_wrong_kind(&refused, "a semaphore", "a record of idempotency");

    world.delete_row(KEY).await;
    assert_eq!(orders.run(&KEY.to_owned(), async |_| Ok(1)).await.unwrap(), 1);
    let error = locks.semaphore(KEY, 5).acquire().await.unwrap_err();
    assert_wrong_kind(&error, "a lock or a record of idempotency", "a semaphore");
}

#[tokio::test]
async fn a_lock_whose_key_became_a_semaphore_is_lost() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire(KEY).await.unwrap();
    world.delete_row(KEY).await;
    let held = acquire_all(&locks, 1).await;
    assert!(lock.release().await.unwrap_err().is_lost());
    let other = locks.acquire("other").await.unwrap();
    other.release().await.unwrap();
    world.delete_row(KEY).await;
    let _lock = locks.acquire(KEY).await.unwrap();
    assert!(held[0].renew(Duration::from_secs(5)).await.unwrap_err().is_lost());
}

#[tokio::test]
async fn several_keys_of_which_one_is_a_semaphore_are_refused() {
    let world = World::new().await;
    let locks = world.default_locks();
    release_all(acquire_all(&locks, 1).await).await;
    let error = locks.acquire_all(["account", KEY]).await.unwrap_err();
    assert_wrong_kind(&error, "a semaphore", "a lock");
    assert!(world.row("account").await.is_none());
}
