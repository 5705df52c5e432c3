//! Acquires whose answer was lost.

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::LoseAnswers;

use crate::{AFTER_THE_LEASE, KEY, LEASE, acquire_all, owners, permits, row};

#[tokio::test]
async fn an_acquire_recognises_its_own_permit() {
    let world = World::new().await;
    let others = acquire_all(&world.default_locks(), 2).await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = locks.semaphore(KEY, 3).acquire().data("data").await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_eq!(held.fence(), others[1].fence() + 1);
    assert_eq!(held.data().and_then(|data| data.as_str()), Some("data"));
    assert_eq!(permits(&row(&world).await), owners(others.iter().chain([&held])));
    held.release().await.unwrap();
    assert_eq!(host.requests(), 3);
}

#[tokio::test]
async fn an_acquire_recognises_that_it_has_replaced_a_permit() {
    let world = World::new().await;
    let crashed = acquire_all(&world.default_locks(), 2).await;
    let lost = LoseAnswers::to("UpdateItem", 2..=2);
    let host = world.host().clock_ahead(AFTER_THE_LEASE).intercept(lost).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = locks.semaphore(KEY, 2).acquire().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert_eq!(held.fence(), crashed[1].fence() + 1);
    assert_eq!(permits(&row(&world).await), owners([&held]));
}

#[tokio::test]
async fn a_withdrawal_recognises_that_it_has_freed_the_permit() {
    let world = World::new().await;
    // The three of the acquire, and the release of what it has taken.
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=4)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.semaphore(KEY, 1).acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(locks.flush(LEASE).await);
    assert_eq!(host.requests(), 5);
    assert!(permits(&row(&world).await).is_empty());
    locks.semaphore(KEY, 1).acquire().await.unwrap().release().await.unwrap();
}
