//! Releases: what they leave in the row, and the minimum hold.

use std::collections::VecDeque;
use std::env;
use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{Late, World};

use crate::rows::size_of_all;
use crate::{AFTER_THE_LEASE, KEY, LEASE, acquire_all, after_the_lease, owners, permits, release_all, row};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test]
async fn a_release_frees_only_its_own_permit() {
    let world = World::new().await;
    let mut held = acquire_all(&world.default_locks(), 3).await;
    let released = held.remove(1);
    released.release().await.unwrap();
    released.release().await.unwrap();
    let row = row(&world).await;
    assert_eq!(permits(&row), owners(&held));
    assert!(!released.is_valid());
}

#[tokio::test]
async fn a_dropped_permit_is_released_in_the_background() {
    let world = World::new().await;
    let locks = world.default_locks();
    drop(acquire_all(&locks, 2).await);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
}

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
async fn a_repeated_release_is_done() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    release_all(acquire_all(&locks, 1).await).await;
    assert_eq!(host.requests(), 3);
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn a_least_hold_counts_until_its_end() {
    let world = World::new().await;
    let host = world.host().build();
    let bank = world.locks(&host).build().unwrap().semaphore(KEY, 2);
    let held = bank.acquire().min_hold(HOUR).await.unwrap();
    let other = bank.acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert!(!held.is_valid());
    assert_eq!(permits(&row(&world).await), owners([&held, &other]));
    let error = bank.acquire().await.unwrap_err();
    let permit = error.holder().unwrap().permits().iter().find(|permit| permit.owner() == Some(held.owner())).unwrap();
    assert!(permit.is_current() && permit.has_released());
    assert!(permit.until() >= host.now() + HOUR - Duration::from_mins(1));

    // After an hour, both have ended.
    let host = world.host().later(HOUR + AFTER_THE_LEASE).build();
    let next = world.locks(&host).build().unwrap().semaphore(KEY, 2).acquire().await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn a_least_hold_that_was_cleared_frees_the_permit() {
    let world = World::new().await;
    let bank = world.default_locks().semaphore(KEY, 1);
    let held = bank.acquire().min_hold(HOUR).await.unwrap();
    held.clear_min_hold();
    held.release().await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn a_repeated_release_with_a_least_hold_is_done() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let bank = world.locks_with_quick_retries(&host).build().unwrap().semaphore(KEY, 1);
    let held = bank.acquire().min_hold(HOUR).await.unwrap();
    held.release().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert_eq!(permits(&row(&world).await), owners([&held]));
}

/// A released permit whose first release, with a minimum hold, was not answered and has not arrived.
async fn released_late(world: &World, least: Duration) -> (lambda_lock::Lock, Late) {
    let late = Late::updates(2..=4);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = locks.semaphore(KEY, 1).acquire().min_hold(least).await.unwrap();
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    (held, late)
}

#[tokio::test]
async fn a_late_release_changes_nothing() {
    let world = World::new().await;
    let (held, late) = released_late(&world, HOUR).await;
    held.clear_min_hold();
    held.release().await.unwrap();
    let before = row(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(row(&world).await, before);
}

#[tokio::test]
async fn a_second_release_replaces_the_least_hold_of_the_first() {
    let world = World::new().await;
    let (held, late) = released_late(&world, HOUR).await;
    assert!(late.deliver(&world).await);
    assert_eq!(permits(&row(&world).await), owners([&held]));
    held.clear_min_hold();
    held.release().await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn a_release_whose_least_hold_was_replaced_is_done() {
    let world = World::new().await;
    let (held, late) = released_late(&world, Duration::from_secs(40)).await;
    assert!(late.deliver(&world).await);
    let host = world.host().later(Duration::from_secs(50)).build();
    let next = world.locks(&host).build().unwrap().semaphore(KEY, 1).acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn a_release_after_the_permit_was_replaced_is_lost() {
    let world = World::new().await;
    let host = world.host().build();
    let held = acquire_all(&world.locks(&host).build().unwrap(), 1).await;
    let next = after_the_lease(&world).1.semaphore(KEY, 1).acquire().await.unwrap();
    let error = held[0].release().await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(host.requests(), 2);
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn a_release_without_its_row_is_lost() {
    let world = World::new().await;
    let held = acquire_all(&world.default_locks(), 1).await;
    world.delete_row(KEY).await;
    assert!(held[0].release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_release_without_an_answer_can_be_repeated() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=4)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = acquire_all(&locks, 1).await;
    assert_eq!(held[0].release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!held[0].is_valid());
    held[0].release().await.unwrap();
    assert_eq!(host.requests(), 5);
}

/// The first try of the acquire has not arrived, so the first release gives its number up. The row refuses a second release with
/// that number, which is then sent without it.
#[tokio::test]
async fn a_second_release_ends_the_least_hold_of_one_that_gave_up_a_late_attempt() {
    let world = World::new().await;
    let late = Late::updates(1..=1);
    let host = world.host().intercept(late.clone()).intercept(LoseAnswers::to("UpdateItem", 3..=5)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = locks.semaphore(KEY, 1).acquire().min_hold(HOUR).await.unwrap();
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(permits(&row(&world).await), owners([&held]));
    held.clear_min_hold();
    held.release().await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
    assert!(!late.deliver(&world).await);
}

/// The SDK repeats the release, and the row shows that it was applied.
#[tokio::test]
async fn a_repeated_release_that_gave_up_a_late_attempt_is_sent_no_third_time() {
    let world = World::new().await;
    let host = world.host().intercept(Late::updates(1..=1)).intercept(LoseAnswers::to("UpdateItem", 3..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = locks.semaphore(KEY, 1).acquire().min_hold(HOUR).await.unwrap();
    held.release().await.unwrap();
    assert_eq!(host.requests(), 4);
}
