//! Requests for a permit that arrive after their sender has stopped waiting for them.

use std::time::Duration;

use lambda_lock::embedded::Faults;
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::invocation::{LoseAnswers, millis};
use lambda_lock_tests::{Late, World};
use tokio::time::sleep;

use crate::{DAY, KEY, LEASE, RETENTION, acquire_all, after_the_lease, late_replacement, number, owners, permits, row};

#[tokio::test]
async fn a_late_duplicate_of_an_acquire_does_not_take_another_permit() {
    for is_released in [false, true] {
        let world = World::new().await;
        let late = Late::updates(1..=1);
        let host = world.host().intercept(late.clone()).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let held = acquire_all(&locks, 1).await;
        if is_released {
            held[0].release().await.unwrap();
        }
        let before = row(&world).await;
        assert!(!late.deliver(&world).await);
        assert_eq!(row(&world).await, before);
    }
}

/// Nobody is left to give its number up.
#[tokio::test]
async fn after_its_process_died_a_stale_attempt_takes_only_a_free_permit() {
    for others in [1, 2] {
        let world = World::new().await;
        let late = Late::updates(1..=3);
        let host = world.host().intercept(late.clone()).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let died = locks.semaphore(KEY, 2).acquire();
        assert_eq!(died.await.unwrap_err().kind(), ErrorKind::Unavailable);
        host.crash();
        let held = acquire_all(&world.default_locks(), others).await;

        assert_eq!(late.deliver(&world).await, others == 1);
        assert_eq!(permits(&row(&world).await).len(), 2);
        let next = after_the_lease(&world).1.semaphore(KEY, 2).acquire().await.unwrap();
        assert_eq!(permits(&row(&world).await), owners([&next]));
        drop(held);
    }
}

#[tokio::test]
async fn after_a_release_a_stale_replacement_takes_nothing() {
    let world = World::new().await;
    let locks = world.default_locks();
    let acquire = |locks: &Locks| locks.semaphore(KEY, 1).acquire().lease(LEASE).identity("run 1");
    let first = acquire(&locks).await.unwrap();
    let replacement = late_replacement(&world, Some("run 1")).await;
    first.release().await.unwrap();
    let before = row(&world).await;
    assert!(!replacement.deliver(&world).await);
    assert_eq!(row(&world).await, before);
    acquire(&after_the_lease(&world).1).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_withdrawal_leaves_done_what_its_identity_has_released() {
    let world = World::new().await;
    let acquire = |locks: &Locks| locks.semaphore(KEY, 1).acquire().lease(LEASE).identity("run 1");
    // The first try of the acquire is late, and the answers to the release are lost.
    let late = Late::updates(1..=1);
    let host = world.host().intercept(late.clone()).intercept(LoseAnswers::to("UpdateItem", 3..=5)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let released = acquire(&locks).await.unwrap();
    assert_eq!(released.release().await.unwrap_err().kind(), ErrorKind::Unavailable);

    let withdrawn = Late::updates(1..=3);
    let host = world.host().intercept(withdrawn.clone()).build();
    let others = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(acquire(&others).await.unwrap_err().kind(), ErrorKind::Unavailable);
    others.flush(Duration::from_mins(1)).await.unwrap();

    let before = row(&world).await;
    released.release().await.unwrap();
    assert!(!late.deliver(&world).await);
    assert!(!withdrawn.deliver(&world).await);
    assert_eq!(permits(&row(&world).await), permits(&before));
    acquire(&world.default_locks()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_late_attempt_of_a_refused_acquire_takes_no_permit() {
    let world = World::new().await;
    let held = acquire_all(&world.default_locks(), 2).await;
    let late = Late::updates(1..=1);
    let host = world.host().clock_ahead(Duration::from_millis(900)).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(locks.semaphore(KEY, 2).try_acquire().await.unwrap().is_none());
    assert_eq!(host.requests(), 3, "two attempts and the withdrawal");
    held[0].release().await.unwrap();

    assert!(!late.deliver(&world).await);
    assert_eq!(permits(&row(&world).await), owners([&held[1]]));
    let next = world.default_locks().semaphore(KEY, 2).try_acquire().await.unwrap();
    next.expect("there is room").release().await.unwrap();
}

#[tokio::test]
async fn a_late_attempt_finds_the_withdrawal_in_a_new_row() {
    let world = World::new().await;
    // Three tries of the acquire.
    let late = Late::updates(1..=3);
    let host = world.host().intercept(late.clone()).build();
    let started = host.now();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.semaphore(KEY, 1).acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(host.requests(), 5, "three tries, a withdrawal that finds no row, and one that writes it");
    let withdrawn = row(&world).await;
    assert!(permits(&withdrawn).is_empty());
    assert!(number(&withdrawn, "expiration") * 1000 >= millis(started + DAY + RETENTION));
    assert!(!late.deliver(&world).await);

    let next = world.default_locks().semaphore(KEY, 1).acquire().await.unwrap();
    assert!(next.fence() > 1_000_000_000_000_000, "the clock in microseconds");
    assert!(!late.deliver(&world).await);
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn an_acquire_without_an_answer_frees_the_permit_that_it_took() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.semaphore(KEY, 1).acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(host.requests(), 5, "three tries, the withdrawal and the release");
    assert!(permits(&row(&world).await).is_empty());
    world.default_locks().semaphore(KEY, 1).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_grant_answered_after_its_lease_is_withdrawn() {
    let world = World::new().await;
    let latency = Duration::from_millis(5);
    let host = world.host().faults(Faults::seeded(1).latency(latency..latency)).build();
    let locks = world.locks(&host).build().unwrap();
    let acquired = locks.semaphore(KEY, 1).acquire().lease(Duration::from_millis(1)).await;
    assert_eq!(acquired.unwrap_err().kind(), ErrorKind::Unavailable);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn a_late_attempt_that_was_withdrawn_takes_nothing_however_many_have_acquired_since() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let late = Late::updates(1..=3);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let never_answered = locks.semaphore(KEY, 1).acquire().lease(DAY);
    assert_eq!(never_answered.await.unwrap_err().kind(), ErrorKind::Unavailable);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    let others = world.default_locks();
    for _ in 0..20 {
        others.semaphore(KEY, 1).acquire().lease(DAY).await.unwrap().release().await.unwrap();
        sleep(Duration::from_millis(150)).await;
    }
    for _ in 0..3 {
        assert!(!late.deliver(&world).await);
    }
    assert!(permits(&row(&world).await).is_empty());
}
