//! Releases: what they leave in the row, and the minimum hold.

use std::collections::VecDeque;
use std::env;
use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::Locks;
use lambda_lock_tests::World;

use crate::rows::size_of_all;
use crate::{AFTER_THE_LEASE, KEY, LEASE, acquire_all, owners, permits, row};

/// Replaces the permits of a full semaphore, `at_once` of them at a time, and checks the row after each round.
/// `LOCK_PAIRS=100000` makes more pairs of a release and an acquire.
async fn replaces_permits_in_a_bounded_row(at_once: usize) {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let mut held = VecDeque::from(acquire_all(&locks, 100).await);
    let pairs = env::var("LOCK_PAIRS").map_or(400, |pairs| pairs.parse().unwrap());
    for _ in 0..pairs / at_once {
        join_all(held.drain(..at_once).map(|permit| async move { permit.release().await.unwrap() })).await;
        let acquired = join_all((0..at_once).map(|_| locks.semaphore(KEY, 100).acquire().into_future())).await;
        held.extend(acquired.into_iter().map(Result::unwrap));
        let row = row(&world).await;
        assert_eq!(permits(&row), owners(&held));
        let bytes = size_of_all(&row);
        assert!(bytes <= 16 * 1024, "{bytes} bytes");
    }
    assert_eq!(host.requests(), 100 + 2 * u64::try_from(pairs).unwrap());
}

#[tokio::test]
async fn a_full_row_whose_permits_are_replaced_one_by_one_does_not_grow() {
    replaces_permits_in_a_bounded_row(1).await;
}

#[tokio::test]
async fn a_full_row_whose_permits_are_replaced_ten_at_a_time_does_not_grow() {
    replaces_permits_in_a_bounded_row(10).await;
}

/// The most bytes that a row with ten permits in use may have, with names of 30 bytes.
const MOST_OF_TEN: usize = 2048;

#[tokio::test]
async fn the_row_of_ten_permits_stays_small_after_pairs_crashes_and_kept_permits() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let acquire = async |locks: &Locks| {
        let acquire = locks.semaphore(KEY, 10).acquire().holder("n".repeat(30)).lease(LEASE);
        acquire.await.unwrap()
    };
    let check = async || {
        let row = row(&world).await;
        assert_eq!(permits(&row).len(), 10);
        assert!(size_of_all(&row) <= MOST_OF_TEN, "{} bytes: {row:?}", size_of_all(&row));
    };
    for round in 0..20 {
        for _ in 0..20 {
            acquire(&locks).await.release().await.unwrap();
        }
        let crashing = world.host().later(AFTER_THE_LEASE * round).build();
        let crashed = world.locks(&crashing).build().unwrap();
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(acquire(&crashed).await);
            acquire(&locks).await.keep();
        }
        check().await;
        crashing.crash();
        host.advance_clock(AFTER_THE_LEASE);
    }
}

#[tokio::test]
async fn identities_that_never_release_leave_nothing_in_the_row() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    for number in 0..3000 {
        let identity = format!("{number:0>121}");
        let permit = locks.semaphore(KEY, 2).acquire().identity(identity).lease(LEASE).await.unwrap();
        permit.keep();
        if number % 2 == 1 {
            host.advance_clock(AFTER_THE_LEASE);
        }
    }
    let row = row(&world).await;
    assert_eq!(permits(&row).len(), 2);
    assert!(size_of_all(&row) <= 1024, "{} bytes", size_of_all(&row));
}

#[tokio::test]
async fn a_lock_whose_key_became_a_semaphore_is_lost() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire(KEY).await.unwrap();
    world.delete_row(KEY).await;
    let held = acquire_all(&locks, 1).await;
    assert!(lock.release().await.unwrap_err().is_lost());
    world.delete_row(KEY).await;
    let _lock = locks.acquire(KEY).await.unwrap();
    assert!(held[0].renew(Duration::from_secs(5)).await.unwrap_err().is_lost());
}
