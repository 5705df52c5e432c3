//! Renewals of a permit, and its condition check.

use std::time::Duration;

use aws_sdk_dynamodb::types::{ConditionCheck, Put, TransactWriteItem};
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::{Row, World};

use crate::{CLOCK_SKEW, DAY, KEY, LEASE, RETENTION, acquire_all, after_the_lease, number, owners, permits, row, text};

/// The stored end of the permit's lease, in milliseconds.
fn lease_end(row: &Row, owner: &str) -> u64 {
    number(row[&format!("permit:{owner}")].as_m().unwrap(), "end")
}

#[tokio::test]
async fn a_renewal_moves_only_its_own_lease() {
    let world = World::new().await;
    let host = world.host().build();
    let held = acquire_all(&world.locks(&host).build().unwrap(), 2).await;
    let before = row(&world).await;
    held[0].renew(Duration::from_hours(2)).await.unwrap();
    assert_eq!(host.requests(), 3);
    let after = row(&world).await;
    assert_eq!(lease_end(&after, held[0].owner()), millis(held[0].expires_at() + CLOCK_SKEW));
    assert_eq!(lease_end(&after, held[1].owner()), lease_end(&before, held[1].owner()));
    assert_eq!(after["fence"], before["fence"]);
    let next = after_the_lease(&world).1.semaphore(KEY, 2).acquire().await.unwrap();
    assert_eq!(permits(&row(&world).await), owners([&held[0], &next]));
}

#[tokio::test]
async fn the_ttl_is_after_every_lease_and_the_retention() {
    let world = World::new().await;
    let host = world.host().build();
    let bank = world.locks(&host).build().unwrap().semaphore(KEY, 3);
    let check = async |what: &str| {
        let row = row(&world).await;
        let ends = permits(&row).into_iter().map(|owner| lease_end(&row, &owner));
        let most = ends.max().unwrap_or_else(|| millis(host.now()));
        let ttl = number(&row, "expiration") * 1000;
        assert!(ttl >= most + u64::try_from(RETENTION.as_millis()).unwrap(), "{what}: {ttl} {most}");
        assert!(ttl <= millis(host.now() + DAY + CLOCK_SKEW + RETENTION + Duration::from_secs(2)), "{what}: {ttl}");
    };
    let long = bank.acquire().lease(DAY).await.unwrap();
    check("a long lease").await;
    let short = bank.acquire().lease(Duration::from_millis(500)).await.unwrap();
    check("a short lease").await;
    let renewed = bank.acquire().await.unwrap();
    renewed.renew(Duration::from_secs(1)).await.unwrap();
    check("a short renewal").await;
    renewed.renew(DAY).await.unwrap();
    check("a long renewal").await;
    for permit in [short, renewed, long] {
        permit.release().await.unwrap();
        check("a release").await;
    }
}

/// Writes another row in a transaction with `check`.
async fn transact(world: &World, check: ConditionCheck) -> bool {
    let row = Row::from([("id".to_owned(), text("business"))]);
    let put = Put::builder().table_name(&world.table).set_item(Some(row)).build().unwrap();
    let sent = world
        .client()
        .transact_write_items()
        .transact_items(TransactWriteItem::builder().condition_check(check).build())
        .transact_items(TransactWriteItem::builder().put(put).build())
        .send();
    Box::pin(sent).await.is_ok()
}

#[tokio::test]
async fn a_condition_check_holds_while_the_permit_is_held() {
    let world = World::new().await;
    let locks = world.default_locks();
    let held = acquire_all(&locks, 2).await;
    assert!(transact(&world, held[0].condition_check().unwrap()).await);
    held[0].release().await.unwrap();
    assert!(!transact(&world, held[0].condition_check().unwrap()).await, "released");
    assert!(transact(&world, held[1].condition_check().unwrap()).await);
    after_the_lease(&world).1.semaphore(KEY, 1).acquire().await.unwrap().release().await.unwrap();
    assert!(!transact(&world, held[1].condition_check().unwrap()).await, "replaced");

    let (host, later) = after_the_lease(&world);
    let own = later.semaphore(KEY, 2).acquire().await.unwrap();
    host.advance_clock(LEASE + CLOCK_SKEW + CLOCK_SKEW);
    assert!(!transact(&world, own.condition_check().unwrap()).await, "after its lease");
}
