//! A later acquire of the same identity takes the lock over.

use std::time::Duration;

use aws_sdk_dynamodb::types::TransactWriteItem;
use lambda_lock::embedded::Host;
use lambda_lock::{Lock, Locks, Wait};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{keep_log, logged};

use crate::{ARN, CLOCK_SKEW, LEASE, by, host};

async fn checked(host: &Host, lock: &Lock) -> bool {
    let check = TransactWriteItem::builder().condition_check(lock.condition_check().unwrap()).build();
    host.client().transact_write_items().transact_items(check).send().await.is_ok()
}

#[tokio::test]
async fn the_earlier_of_two_live_invocations_finds_its_lock_lost_at_its_next_request() {
    let world = World::new().await;
    let (first, earlier) = host(&world);
    let (second, locks) = host(&world);
    let old = by(&earlier, ARN).await.unwrap();
    let new = by(&locks, ARN).await.unwrap();
    // Nothing tells the earlier one.
    assert!(old.is_valid() && new.is_valid());
    assert!(old.fence() < new.fence());
    assert!(!checked(&first, &old).await);
    assert!(checked(&second, &new).await);
    let error = old.renew(LEASE).await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(error.holder().unwrap().owner(), Some(new.owner()));
    assert!(!old.is_valid());
    let row = world.row("job").await;
    assert!(old.release().await.unwrap_err().is_lost());
    drop(old);
    earlier.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(world.row("job").await, row);
    new.release().await.unwrap();
}

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
async fn a_takeover_by_the_identity_logs_no_warning() {
    keep_log();
    let world = World::new().await;
    let (_, locks) = host(&world);
    let (_, others) = host(&world);
    let key = format!("key-{:016x}", fastrand::u64(..));
    let acquire = |locks: &Locks| locks.acquire(&key).lease(LEASE).identity(ARN);
    let old = acquire(&locks).await.unwrap();
    let new = acquire(&others).await.unwrap();
    let lines = logged(&key);
    assert!(lines.iter().any(|line| line.contains("DEBUG") && line.contains("same identity")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("WARN") || line.contains("taken over")), "{lines:?}");
    new.release().await.unwrap();
    drop(old);
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
