//! A later acquire of the same identity takes the lock over.

use lambda_lock::Wait;
use lambda_lock_tests::World;

use crate::{ARN, CLOCK_SKEW, LEASE, by, host};

#[tokio::test]
async fn a_lock_that_was_released_early_is_not_taken_over() {
    let world = World::new().await;
    let (_, locks) = host(&world);
    by(&locks, ARN).min_hold(LEASE).await.unwrap().release().await.unwrap();
    assert!(by(&host(&world).1, ARN).await.unwrap_err().is_held());
}

#[tokio::test]
async fn an_identity_finds_its_lock_with_its_first_attempt_while_it_waits() {
    let world = World::new().await;
    let (_, locks) = host(&world);
    let crashed = by(&locks, ARN).await.unwrap();
    let (second, others) = host(&world);
    let lock = by(&others, ARN).wait(Wait::in_turn()).await.unwrap();
    assert_eq!(second.requests(), 2);
    assert!(lock.fence() > crashed.fence());
    lock.release().await.unwrap();
    drop(crashed);
}

#[tokio::test]
async fn a_long_identity_is_a_digest_in_the_row() {
    for bytes in [256, 257, 1024] {
        let world = World::new().await;
        let (_, locks) = host(&world);
        let (_, others) = host(&world);
        let (identity, similar) = ("i".repeat(bytes), "i".repeat(bytes - 1) + "j");
        let lock = by(&locks, &identity).await.unwrap();
        let holder = locks.get("job").await.unwrap().unwrap();
        let shown = holder.identity().unwrap();
        assert_eq!(shown == identity, bytes == 256, "{shown}");
        assert!(shown.len() <= 256, "{shown}");
        assert!(by(&others, &similar).await.unwrap_err().is_held());
        let taken_over = by(&others, &identity).await.unwrap();
        assert!(taken_over.fence() > lock.fence());
        taken_over.release().await.unwrap();
    }
}

#[tokio::test]
async fn what_an_identity_has_released_or_lost_it_does_not_free() {
    for permits in [false, true] {
        let world = World::new().await;
        let (host, locks) = host(&world);
        let asking = || {
            let acquire =
                if permits { locks.semaphore("job", 1).acquire() } else { locks.acquire("job").min_hold(LEASE) };
            acquire.lease(LEASE).identity(ARN)
        };
        asking().await.unwrap().release().await.unwrap();
        // The key is held until the end of the minimum hold. Nothing is left of the permit.
        assert!(!locks.release_identity("job", ARN).await.unwrap());
        host.advance_clock(LEASE + CLOCK_SKEW);
        let _crashed = asking().await.unwrap();
        host.advance_clock(LEASE + CLOCK_SKEW);
        assert!(!locks.release_identity("job", ARN).await.unwrap());
    }
}
