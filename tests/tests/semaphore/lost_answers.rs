//! Acquires whose answer was lost.

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{LoseAnswers, TRIES, all_tries_from};

use crate::{AFTER_THE_LEASE, KEY, LEASE, acquire_all, owners, permits, row};

#[tokio::test]
async fn an_acquire_recognises_that_it_has_replaced_a_permit() {
    let world = World::new().await;
    let crashed = acquire_all(&world.default_locks(), 2).await;
    let lost = LoseAnswers::to("UpdateItem", 2..=2);
    let host = world.host().later(AFTER_THE_LEASE).intercept(lost).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = locks.semaphore(KEY, 2).acquire().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert_eq!(held.fence(), crashed[1].fence() + 1);
    assert_eq!(permits(&row(&world).await), owners([&held]));
}

#[tokio::test]
async fn a_withdrawal_with_a_lost_answer_frees_the_permit() {
    // The fourth request gives the numbers up, and the next one frees the permit that the acquire has taken.
    for lost in [4, 5] {
        let world = World::new().await;
        let host = world.host().intercept(LoseAnswers::to("UpdateItem", all_tries_from(1)));
        let host = host.intercept(LoseAnswers::to("UpdateItem", lost..=lost)).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        assert_eq!(locks.semaphore(KEY, 1).acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
        locks.flush(LEASE).await.unwrap();
        assert_eq!(host.requests(), TRIES + 3);
        assert!(permits(&row(&world).await).is_empty());
        locks.semaphore(KEY, 1).acquire().await.unwrap().release().await.unwrap();
    }
}
