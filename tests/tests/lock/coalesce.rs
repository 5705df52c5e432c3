//! `Locks::coalesce`: work that is left to the holder.

use std::time::Duration;

use lambda_lock::{Error, ErrorKind, Holder, Locks};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{Late, Repeats, World};

use crate::eagerly;

const KEY: &str = "search-index";

async fn holder(locks: &Locks) -> Holder {
    locks.get(KEY).await.unwrap().unwrap()
}

/// A refused acquire leaves its work to the holder.
async fn leave(locks: &Locks) -> Result<bool, Error> {
    let error = locks.acquire(KEY).await.unwrap_err();
    locks.coalesce(KEY, error.holder().unwrap()).await
}

#[tokio::test]
async fn the_release_of_a_holder_says_whether_work_was_left_to_it() {
    let world = World::new().await;
    let locks = world.default_locks();
    let first = locks.acquire(KEY).await.unwrap();
    assert!(leave(&locks).await.unwrap());
    assert!(leave(&locks).await.unwrap());
    assert!(first.release_coalescing().await.unwrap());
    // Not to the next one.
    let second = locks.acquire(KEY).await.unwrap();
    assert!(!second.release_coalescing().await.unwrap());
}

/// Each client gives up the same number as the one before, or a larger or smaller one.
#[tokio::test]
async fn work_is_left_after_other_clients_gave_up_any_number() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let locks = world.default_locks();
    let first = locks.acquire(KEY).await.unwrap();
    let mut refused = Vec::new();
    for ahead in [0, 0, 900, 0] {
        let host = world.host().clock_ahead(Duration::from_millis(ahead)).build();
        let other = world.locks(&host).build().unwrap();
        let refusal = other.acquire(KEY).await.unwrap_err();
        refused.push((other, refusal));
    }
    for (other, refusal) in refused {
        assert!(other.coalesce(KEY, refusal.holder().unwrap()).await.unwrap());
    }
    assert!(first.release_coalescing().await.unwrap());
}

#[tokio::test]
async fn a_renewal_keeps_the_work_that_was_left() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire(KEY).await.unwrap();
    assert!(leave(&locks).await.unwrap());
    lock.renew(Duration::from_mins(1)).await.unwrap();
    assert!(lock.release_coalescing().await.unwrap());
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_reports_the_work_left_to_it() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire(KEY).await.unwrap();
    assert!(leave(&world.default_locks()).await.unwrap());
    assert!(lock.release_coalescing().await.unwrap());
}

#[tokio::test]
async fn no_work_is_left_to_a_holder_that_has_gone() {
    let world = World::new().await;
    let (host, after) = (world.host().build(), world.host().later(Duration::from_mins(1)).build());
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire(KEY).await.unwrap();
    let seen = holder(&locks).await;
    // Its lease has ended, by the clock of the one that asks.
    assert!(!world.locks(&after).build().unwrap().coalesce(KEY, &seen).await.unwrap());
    lock.release().await.unwrap();
    assert!(!locks.coalesce(KEY, &seen).await.unwrap());
    // Another one has the key.
    let next = locks.acquire(KEY).await.unwrap();
    let before = world.row(KEY).await;
    assert!(!locks.coalesce(KEY, &seen).await.unwrap());
    assert_eq!(world.row(KEY).await, before);
    assert!(!next.release_coalescing().await.unwrap());
    world.delete_row(KEY).await;
    assert!(!locks.coalesce(KEY, &seen).await.unwrap());
    assert_eq!(world.row(KEY).await, None);
}

#[tokio::test]
async fn coalescing_with_a_minimum_hold_or_a_permit_leaves_no_work() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    locks.acquire(KEY).min_hold(Duration::from_mins(1)).await.unwrap().release().await.unwrap();
    let _permit = locks.semaphore("bank", 1).acquire().await.unwrap();
    let (kept, permits) = (holder(&locks).await, locks.get("bank").await.unwrap().unwrap());
    let requests = host.requests();
    assert!(kept.is_current() && !locks.coalesce(KEY, &kept).await.unwrap());
    assert!(!locks.coalesce("bank", &permits).await.unwrap());
    assert_eq!(host.requests(), requests);
}

#[tokio::test]
async fn a_request_that_arrives_late_leaves_nothing_to_a_later_holder() {
    let world = World::new().await;
    let locks = world.default_locks();
    let first = locks.acquire(KEY).await.unwrap();
    let seen = holder(&locks).await;
    let late = Late::updates(1..=20);
    let host = world.host().intercept(late.clone()).build();
    world.locks_with_quick_retries(&host).build().unwrap().coalesce(KEY, &seen).await.unwrap_err();
    first.release().await.unwrap();
    let second = locks.acquire(KEY).await.unwrap();
    assert!(!late.deliver(&world).await);
    assert!(!second.release_coalescing().await.unwrap());
}

#[tokio::test]
async fn a_takeover_gets_the_work_that_was_left_before_it() {
    let world = World::new().await;
    let locks = world.default_locks();
    for is_left in [true, false] {
        let acquire = || locks.acquire(KEY).identity("an execution");
        let earlier = acquire().await.unwrap();
        if is_left {
            assert!(leave(&locks).await.unwrap());
        }
        let later = acquire().await.unwrap();
        assert!(earlier.release_coalescing().await.unwrap_err().is_lost());
        assert_eq!(later.release_coalescing().await.unwrap(), is_left);
    }
}

#[tokio::test]
async fn a_lock_of_several_keys_cannot_know_what_was_left() {
    let world = World::new().await;
    let locks = world.default_locks();
    let both = locks.acquire_all([KEY, "other"]).await.unwrap();
    let error = both.release_coalescing().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(both.is_valid());
    both.release().await.unwrap();
}

#[tokio::test]
async fn the_release_of_an_identity_says_whether_work_was_left_to_it() {
    let world = World::new().await;
    let locks = world.default_locks();
    for lost in [0, 1] {
        for is_left in [true, false] {
            locks.acquire(KEY).identity("an execution").await.unwrap().keep();
            if is_left {
                assert!(leave(&locks).await.unwrap());
            }
            let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=lost)).build();
            let other = world.locks_with_quick_retries(&host).build().unwrap();
            assert_eq!(other.release_identity_coalescing(KEY, "an execution").await.unwrap(), is_left);
            assert!(!other.release_identity_coalescing(KEY, "an execution").await.unwrap(), "it holds nothing");
        }
    }
}

#[tokio::test]
async fn without_locking_no_work_is_left() {
    let world = World::new().await;
    let locks = world.default_locks();
    let _held = locks.acquire(KEY).await.unwrap();
    let seen = holder(&locks).await;
    let host = world.host().build();
    let disabled = world.locks(&host).enabled(false).build().unwrap();
    assert!(!disabled.coalesce(KEY, &seen).await.unwrap());
    assert!(!disabled.acquire(KEY).await.unwrap().release_coalescing().await.unwrap());
    assert_eq!(host.requests(), 0);
}

/// The clock of this host is ahead when the host sends its attempt, and right when the host leaves its work.
#[tokio::test]
async fn after_the_clock_was_set_back_a_repeated_attempt_takes_no_key() {
    let world = World::new().await;
    let holder = world.default_locks().acquire(KEY).await.unwrap();
    let ahead = Duration::from_millis(900);
    let repeats = Repeats::updates();
    let host = world.host().clock_ahead(ahead).intercept(repeats.clone()).build();
    let locks = world.locks(&host).build().unwrap();
    let refusal = locks.acquire(KEY).await.unwrap_err();
    host.set_clock_back(ahead);
    assert!(locks.coalesce(KEY, refusal.holder().unwrap()).await.unwrap());
    assert!(holder.release_coalescing().await.unwrap());
    assert!(!repeats.deliver(&world, 0).await);
}

/// A host with a fast clock has given up its numbers. The attempts of a waiter on another host then get larger numbers than its
/// clock shows.
#[tokio::test]
async fn no_repeated_attempt_of_a_waiter_that_was_skipped_takes_the_key() {
    World::skip_waits();
    for (attempts, repeated) in (1..=5).flat_map(|attempts| (0..attempts).map(move |repeated| (attempts, repeated))) {
        let world = World::new().await;
        let holder = world.default_locks().acquire(KEY).await.unwrap();
        let ahead = world.host().clock_ahead(Duration::from_millis(900)).intercept(Late::updates(1..=1)).build();
        let withdrawn = world.locks_with_quick_retries(&ahead).build().unwrap();
        assert!(withdrawn.try_acquire(KEY).await.unwrap().is_none());
        withdrawn.flush(Duration::from_mins(1)).await.unwrap();

        let repeats = Repeats::updates();
        let host = world.host().intercept(repeats.clone()).build();
        let locks = world.locks(&host).build().unwrap();
        let refusal = locks.acquire(KEY).wait(eagerly().max_attempts(attempts)).await.unwrap_err();
        assert_eq!(host.requests(), u64::from(attempts));
        assert!(locks.coalesce(KEY, refusal.holder().unwrap()).await.unwrap());
        assert!(holder.release_coalescing().await.unwrap());
        let index = usize::try_from(repeated).unwrap();
        assert!(!repeats.deliver(&world, index).await, "attempt {repeated} of {attempts} takes the key");
    }
}
