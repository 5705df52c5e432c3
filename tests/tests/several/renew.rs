//! Renewing the lease of several keys.

use lambda_lock::Lock;
use lambda_lock::embedded::Host;
use lambda_lock_tests::World;

use crate::{CLOCK_SKEW, KEYS, LEASE, assert_contains, eagerly, rows};

/// Returns a set whose second key was given to another holder, and its host.
async fn partly_lost(world: &World) -> (Host, Lock) {
    let (ours, theirs) = (world.host().build(), world.host().build());
    let set = world.locks(&ours).build().unwrap().acquire_all(KEYS).await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    let next = world.locks(&theirs).holder("the next").build().unwrap().acquire(KEYS[1]).await.unwrap();
    let before = rows(world).await;
    let error = set.renew(LEASE).await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(error.holder().unwrap().owner(), Some(next.owner()));
    assert_contains(&error, &["the lock on key `account#2`", "was lost to the next"]);
    assert_eq!(rows(world).await, before);
    assert!(!set.is_valid());
    set.until_lost().await;
    assert!(set.renew(LEASE).await.unwrap_err().is_lost());
    assert_eq!(ours.requests(), 2);
    next.release().await.unwrap();
    (ours, set)
}

#[tokio::test]
async fn after_one_key_is_lost_the_release_frees_the_rest() {
    let world = World::new().await;
    let (host, set) = partly_lost(&world).await;
    assert!(set.release().await.unwrap_err().is_lost());
    assert_eq!(host.requests(), 4);
    assert!(world.default_locks().try_acquire(KEYS[0]).await.unwrap().is_some());
}

#[tokio::test]
async fn a_set_that_was_lost_in_part_is_released_when_it_is_dropped() {
    let world = World::new().await;
    let (host, set) = partly_lost(&world).await;
    drop(set);
    let waiting = world.default_locks().acquire(KEYS[0]).wait(eagerly().up_to(LEASE / 3));
    waiting.await.unwrap().release().await.unwrap();
    assert_eq!(host.requests(), 4);
}
