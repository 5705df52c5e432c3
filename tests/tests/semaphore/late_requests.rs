//! Requests for a permit that arrive after their sender has stopped waiting for them.

use std::time::Duration;

use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::invocation::{LoseAnswers, all_tries_from};
use lambda_lock_tests::{Late, World};
use tokio::time::sleep;

use crate::{DAY, KEY, LEASE, acquire_all, after_the_lease, late_replacement, owners, permits, row};

/// Nobody is left to give its number up.
#[tokio::test]
async fn after_its_process_died_a_stale_attempt_takes_only_a_free_permit() {
    for others in [1, 2] {
        let world = World::new().await;
        let late = Late::updates(all_tries_from(1));
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
    let host = world.host().intercept(late.clone()).intercept(LoseAnswers::to("UpdateItem", all_tries_from(3))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let released = acquire(&locks).await.unwrap();
    assert_eq!(released.release().await.unwrap_err().kind(), ErrorKind::Unavailable);

    let withdrawn = Late::updates(all_tries_from(1));
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
async fn a_late_attempt_that_was_withdrawn_takes_nothing_however_many_have_acquired_since() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let late = Late::updates(all_tries_from(1));
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
