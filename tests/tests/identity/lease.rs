//! Leases of more than a day.

use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;

use crate::host;

const LONGEST: Duration = Duration::from_hours(366 * 24);

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
