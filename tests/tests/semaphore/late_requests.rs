//! Requests for a permit that arrive after their sender has stopped waiting for them.

use std::time::Duration;

use lambda_lock::embedded::Faults;
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::invocation::{LoseAnswers, millis};
use lambda_lock_tests::{Late, World};

use crate::{
    AFTER_THE_LEASE, DAY, KEY, LEASE, RETENTION, acquire_all, after_the_lease, late_replacement, number, owners,
    permits, row, tombstones,
};

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

#[tokio::test]
async fn a_duplicate_without_its_tombstone_takes_only_a_free_permit_until_its_lease_ends() {
    for others in [1, 2] {
        let world = World::new().await;
        let late = Late::updates(1..=1);
        let host = world.host().intercept(late.clone()).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let first = locks.semaphore(KEY, 2).acquire().await.unwrap();
        first.release().await.unwrap();
        // Later releases remove the tombstone.
        let churn = world.default_locks().semaphore(KEY, 2);
        for _ in 0..20 {
            churn.acquire().await.unwrap().release().await.unwrap();
        }
        assert!(!tombstones(&row(&world).await).contains(first.owner()));
        let mut held = acquire_all(&world.default_locks(), others).await;

        assert_eq!(late.deliver(&world).await, others == 1);
        let is_there = permits(&row(&world).await).contains(first.owner());
        assert_eq!(is_there, others == 1);
        if is_there {
            let host = world.host().clock_ahead(AFTER_THE_LEASE).build();
            let next = world.locks(&host).build().unwrap().semaphore(KEY, 2).acquire().lease(DAY).await.unwrap();
            held.clear();
            assert!(permits(&row(&world).await).contains(next.owner()));
            assert!(!permits(&row(&world).await).contains(first.owner()));
        }
    }
}

/// The lease and the minimum hold have both ended by the clock of the acquire that replaces the permit.
#[tokio::test]
async fn a_permit_that_is_released_before_its_late_replacement_keeps_its_tombstone() {
    let world = World::new().await;
    let late = Late::updates(1..=1);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let first = locks.semaphore(KEY, 1).acquire().lease(LEASE).hold_at_least(LEASE).await.unwrap();
    let replacement = late_replacement(&world, None).await;
    first.release().await.unwrap();
    assert!(!replacement.deliver(&world).await);

    let (_, later) = after_the_lease(&world);
    let next = later.semaphore(KEY, 1).acquire().await.unwrap();
    assert_eq!(tombstones(&row(&world).await), owners([&first]));
    next.release().await.unwrap();
    assert!(!late.deliver(&world).await);
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn an_identity_that_has_released_its_permit_did_not_leave_it_to_its_next_acquire() {
    let world = World::new().await;
    let locks = world.default_locks();
    let acquire = |locks: &Locks| locks.semaphore(KEY, 1).acquire().lease(LEASE).owner_from("run 1");
    let first = acquire(&locks).hold_at_least(LEASE).await.unwrap();
    let replacement = late_replacement(&world, Some("run 1")).await;
    first.release().await.unwrap();
    let before = row(&world).await;
    assert!(!replacement.deliver(&world).await);
    assert_eq!(row(&world).await, before);
    acquire(&after_the_lease(&world).1).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_withdrawal_leaves_the_trace_of_what_its_identity_has_released() {
    let world = World::new().await;
    let acquire = |locks: &Locks| locks.semaphore(KEY, 1).acquire().lease(LEASE).owner_from("run 1");
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
    others.flush(Duration::from_mins(1)).await;

    let before = row(&world).await;
    assert_eq!(tombstones(&before).len(), 1);
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
    assert_eq!(host.requests(), 4, "two attempts, a refused release and the withdrawal");
    assert_eq!(tombstones(&row(&world).await).len(), 1);
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
    locks.flush(Duration::from_mins(1)).await;
    assert_eq!(host.requests(), 5, "three tries, a refused release and the withdrawal");
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
    locks.flush(Duration::from_mins(1)).await;
    assert_eq!(host.requests(), 4, "three tries and the release");
    assert!(permits(&row(&world).await).is_empty());
    world.default_locks().semaphore(KEY, 1).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_grant_that_is_answered_after_its_lease_is_no_permit() {
    let world = World::new().await;
    let latency = Duration::from_millis(5);
    let host = world.host().faults(Faults::seeded(1).latency(latency..latency)).build();
    let locks = world.locks(&host).build().unwrap();
    let acquired = locks.semaphore(KEY, 1).acquire().lease(Duration::from_millis(1)).await;
    assert_eq!(acquired.unwrap_err().kind(), ErrorKind::Unavailable);
    locks.flush(Duration::from_mins(1)).await;
    assert!(permits(&row(&world).await).is_empty());
}
