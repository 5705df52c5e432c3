//! Releasing a lock: on time, late, by a drop, and with a minimum hold.

use std::time::Duration;

use lambda_lock::Data;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;

use crate::{CLOCK_SKEW, LEASE};

#[tokio::test]
async fn a_dropped_lock_leaves_its_data_to_the_next_holder() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    lock.set_data("page 7");
    drop(lock);
    locks.flush(LEASE).await.unwrap();
    assert_eq!(locks.acquire("job").await.unwrap().data(), Some(&Data::from("page 7")));
}

#[tokio::test]
async fn a_lock_dropped_outside_a_runtime_stays_until_its_lease_ends() {
    let world = World::new().await;
    let host = world.host().build();
    let lock = world.default_locks().acquire("job").await.unwrap();
    std::thread::spawn(move || drop(lock)).join().unwrap();
    let locks = world.locks(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    host.advance_clock(LEASE + CLOCK_SKEW);
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_lock_released_early_keeps_the_key_for_its_minimum_hold() {
    let world = World::new().await;
    let theirs = world.host().build();
    let others = world.locks(&theirs).build().unwrap();
    let hold = Duration::from_mins(10);
    let lock = world.default_locks().acquire("job").min_hold(hold).await.unwrap();
    lock.release().await.unwrap();
    assert!(!lock.is_valid());
    let error = others.acquire("job").await.unwrap_err();
    assert_eq!(millis(error.holder().unwrap().until()), millis(lock.acquired_at() + hold + CLOCK_SKEW));
    theirs.advance_clock(hold / 2);
    assert!(others.try_acquire("job").await.unwrap().is_none());
    theirs.advance_clock(hold / 2 + CLOCK_SKEW);
    assert!(others.try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_minimum_hold_ends_by_itself_and_does_not_outlive_a_crash() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let (locks, others) = (world.locks(&ours).build().unwrap(), world.locks(&theirs).build().unwrap());
    let lock = locks.acquire("over").min_hold(Duration::from_secs(10)).await.unwrap();
    ours.advance_clock(Duration::from_secs(11));
    theirs.advance_clock(Duration::from_secs(12));
    lock.release().await.unwrap();
    assert!(others.try_acquire("over").await.unwrap().is_some());
    let _crashed = locks.acquire("crashed").min_hold(Duration::from_hours(1)).await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    assert!(others.try_acquire("crashed").await.unwrap().is_some());
}
