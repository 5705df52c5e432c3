//! Acquiring a key: what it costs, and how others read it.

use std::time::Duration;

use lambda_lock::Data;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;

use crate::{CLOCK_SKEW, LEASE, ms};

#[tokio::test]
async fn each_call_sends_one_request_and_holding_a_lock_sends_none() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let (locks, others) = (world.locks(&ours).build().unwrap(), world.locks(&theirs).build().unwrap());
    assert_eq!(ours.requests(), 0);
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(ours.requests(), 1, "acquire");
    others.acquire("job").await.unwrap_err();
    assert_eq!(theirs.requests(), 1, "a refused acquire");
    assert!(others.try_acquire("job").await.unwrap().is_none());
    assert_eq!(theirs.requests(), 2, "a refused try_acquire");
    lock.renew(ms(50)).await.unwrap();
    assert_eq!(ours.requests(), 2, "renew");
    tokio::time::timeout(Duration::from_secs(5), lock.until_lost()).await.unwrap();
    assert_eq!(ours.requests(), 2, "a whole lease");
    lock.release().await.unwrap();
    assert_eq!(ours.requests(), 3, "release");
    lock.release().await.unwrap();
    assert_eq!(ours.requests(), 3, "a second release");
    locks.get("job").await.unwrap().unwrap();
    assert_eq!(ours.requests(), 4, "get");
    let lock = locks.try_acquire("job").await.unwrap().unwrap();
    assert_eq!(ours.requests(), 5, "try_acquire");
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_is_valid_until_its_lease_ends_or_it_is_released() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).key_prefix("app#").build().unwrap();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.key(), "job");
    assert_eq!(lock.expires_at(), lock.acquired_at() + LEASE);
    assert!(lock.owner().len() == 32 && lock.owner().chars().all(|c| c.is_ascii_hexdigit()));
    assert!(lock.is_valid() && lock.is_enforced());
    assert!(lock.remaining() > LEASE / 2 && lock.remaining() <= LEASE);
    host.advance_clock(LEASE);
    assert!(!lock.is_valid() && lock.remaining().is_zero());
    let lock = locks.acquire("another").await.unwrap();
    lock.release().await.unwrap();
    assert!(!lock.is_valid() && lock.remaining().is_zero());
}

#[tokio::test]
async fn one_client_holds_many_keys_and_clones_exclude_each_other() {
    let world = World::new().await;
    let locks = world.default_locks();
    let clone = locks.clone();
    let report = locks.acquire("report").await.unwrap();
    let import = clone.acquire("import").await.unwrap();
    assert!(clone.try_acquire("report").await.unwrap().is_none());
    report.release().await.unwrap();
    import.release().await.unwrap();
}

#[tokio::test]
async fn get_reads_the_holder_of_a_key() {
    let world = World::new().await;
    let host = world.host().build();
    let readers = world.locks(&host).build().unwrap();
    assert!(readers.get("job").await.unwrap().is_none(), "a missing row reads as free");
    let locks = world.default_locks();
    let lock = locks.acquire("job").holder("reporter 17").data("page 3").await.unwrap();
    let holder = readers.get("job").await.unwrap().unwrap();
    assert!(holder.is_current());
    assert_eq!(holder.name(), Some("reporter 17"));
    assert_eq!(holder.owner(), Some(lock.owner()));
    assert_eq!(holder.fence(), Some(lock.fence()));
    assert_eq!(holder.data().and_then(Data::as_str), Some("page 3"));
    assert_eq!(millis(holder.since().unwrap()), millis(lock.acquired_at()));
    assert_eq!(millis(holder.until()), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
    let holder = readers.get("job").await.unwrap().unwrap();
    assert!(!holder.is_current());
    assert_eq!(holder.owner(), Some(lock.owner()), "the last holder");
    let lock = locks.acquire("job").await.unwrap();
    host.advance_clock(LEASE + CLOCK_SKEW);
    assert!(!readers.get("job").await.unwrap().unwrap().is_current(), "the lease has ended");
    drop(lock);
}
