//! Leases of more than a day.

use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;

use crate::{ARN, CLOCK_SKEW, host, number};

const LONGEST: Duration = hours(366 * 24);
/// The default.
const RETENTION: Duration = Duration::from_hours(24);

const fn hours(hours: u64) -> Duration {
    Duration::from_hours(hours)
}

#[tokio::test]
async fn a_lock_can_be_held_for_366_days() {
    let world = World::new().await;
    let (first, locks) = host(&world);
    let lock = locks.acquire("job").identity(ARN).lease(LONGEST).await.unwrap();
    assert!(lock.remaining() > hours(366 * 24 - 1));
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    assert!(number(&row, "expiration") * 1000 >= millis(lock.expires_at() + CLOCK_SKEW + RETENTION));
    first.advance_clock(hours(366 * 24 - 1));
    assert!(lock.is_valid());
    let (second, others) = host(&world);
    second.advance_clock(hours(366 * 24 - 1));
    assert!(others.try_acquire("job").await.unwrap().is_none());
    lock.renew(LONGEST).await.unwrap();
    lock.keep();
    second.advance_clock(hours(366 * 24 - 2));
    let lock = others.acquire("job").identity(ARN).lease(LONGEST).take_over().await.unwrap();
    assert!(lock.remaining() > hours(366 * 24 - 1));
}

#[tokio::test]
async fn a_long_hold_leaves_no_hold_time_to_waiters() {
    let world = World::new().await;
    let (first, locks) = host(&world);
    let lock = locks.acquire("job").lease(LONGEST).await.unwrap();
    first.advance_clock(LONGEST / 2);
    lock.release().await.unwrap();
    let next = locks.acquire("job").await.unwrap();
    next.release().await.unwrap();
    let hold: f64 = world.row("job").await.unwrap()["hold"].as_n().unwrap().parse().unwrap();
    assert!(hold < 60_000.0, "{hold}");
}

#[tokio::test]
async fn a_deadline_is_at_most_a_day_away_without_a_lease() {
    let world = World::new().await;
    let (first, locks) = host(&world);
    let deadline = first.now() + Duration::from_hours(25);
    assert_eq!(locks.acquire("job").deadline(deadline).await.unwrap_err().kind(), ErrorKind::Invalid);
    let lock = locks.acquire("job").deadline(deadline).lease(Duration::from_hours(24)).await.unwrap();
    lock.release().await.unwrap();
}
