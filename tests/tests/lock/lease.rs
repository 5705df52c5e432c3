//! The lease: its length, its end, and what a crashed holder leaves.

use std::time::{Duration, SystemTime};

use lambda_lock::Attempt;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;

use crate::{LEASE, ms};

#[tokio::test]
async fn the_lease_of_an_acquire_ends_after_its_length_or_at_its_deadline() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).lease(Duration::from_mins(5)).build().unwrap();
    let lock = locks.acquire("by default").await.unwrap();
    assert_eq!(lock.expires_at(), lock.acquired_at() + Duration::from_mins(5));
    let lock = locks.acquire("by length").lease(Duration::from_mins(2)).await.unwrap();
    assert_eq!(lock.expires_at(), lock.acquired_at() + Duration::from_mins(2));
    let deadline = host.now() + Duration::from_mins(9);
    let lock = locks.acquire("by its end").deadline(deadline).await.unwrap();
    assert_eq!(millis(lock.expires_at()), millis(deadline));
    let lock = locks.acquire("by length again").deadline(deadline).lease(Duration::from_mins(1)).await.unwrap();
    assert_eq!(lock.expires_at(), lock.acquired_at() + Duration::from_mins(1));
    let lock = locks.acquire("by its end again").deadline(deadline).lease(Duration::from_hours(1)).await.unwrap();
    assert_eq!(millis(lock.expires_at()), millis(deadline));
}

/// `cargo lambda watch` gives a function such a deadline.
#[tokio::test]
async fn a_deadline_long_past_leaves_the_default_lease() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let epoch = SystemTime::UNIX_EPOCH;
    for past in [epoch - ms(1), epoch, epoch + Duration::from_hours(1), host.now() - Duration::from_hours(25)] {
        let lock = locks.acquire("job").deadline(past).wait(Duration::from_secs(1)).await.unwrap();
        assert_eq!(lock.expires_at(), lock.acquired_at() + LEASE, "of a lock");
        lock.release().await.unwrap();
        let set = locks.acquire_all(["job", "other"]).deadline(past).await.unwrap();
        assert_eq!(set.expires_at(), set.acquired_at() + LEASE, "of several keys");
        set.release().await.unwrap();
        let permit = locks.semaphore("bank-api", 1).acquire().deadline(past).await.unwrap();
        assert_eq!(permit.expires_at(), permit.acquired_at() + LEASE, "of a permit");
        permit.release().await.unwrap();
        let lock = match locks.acquire("job").deadline(past).attempt_in_turn(None).await.unwrap() {
            Attempt::Acquired(lock) => lock,
            waiting @ Attempt::Waiting(_) => panic!("{waiting:?}"),
        };
        assert_eq!(lock.expires_at(), lock.acquired_at() + LEASE, "of an attempt");
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn lost_resolves_when_the_lease_ends_and_not_earlier() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire("job").lease(ms(100)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), lock.until_lost()).await.unwrap();
    assert!(host.now() >= lock.expires_at());
    assert!(!lock.is_valid());
    let lock = locks.acquire("another job").await.unwrap();
    tokio::time::timeout(ms(100), lock.until_lost()).await.unwrap_err();
    assert_eq!(host.requests(), 2, "it is a question of time");
    // The same happens after a sandbox was frozen.
    host.advance_clock(LEASE);
    tokio::time::timeout(Duration::from_secs(5), lock.until_lost()).await.unwrap();
}
