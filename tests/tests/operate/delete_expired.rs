//! `Locks::delete_expired`: which rows it deletes, and which it leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock::embedded::{Answer, Faults, Intercept};
use lambda_lock_tests::{Row, World};
use serde_json::{Value, json};

use crate::{completed, in_progress, locks_on, number, s, text};

/// The default retention.
const DAY: Duration = Duration::from_hours(24);
const LEASE: Duration = s(10);
/// The default clock skew, twice: that of the stored lease, and that of the deletion.
const SKEWS: Duration = s(2);

/// The keys of all rows.
async fn keys(world: &World) -> BTreeSet<String> {
    let rows =
        world.client().scan().table_name(&world.table).consistent_read(true).send().await.unwrap().items.unwrap();
    rows.into_iter().map(|row| row["id"].as_s().unwrap().clone()).collect()
}

/// A row of another kind, with the attribute of TTL.
fn foreign(id: &str) -> Row {
    Row::from([("id".to_owned(), text(id)), ("expiration".to_owned(), number(1))])
}

#[tokio::test]
async fn rows_are_deleted_when_their_time_has_passed_and_not_before() {
    let world = World::across_regions().await;
    let (host, locks) = locks_on(&world, world.host());
    locks.acquire("released").lease(LEASE).await.unwrap().release().await.unwrap();
    locks.acquire("crashed").lease(LEASE).await.unwrap().keep();
    locks.semaphore("permits", 2).acquire().lease(LEASE).await.unwrap().release().await.unwrap();
    completed(&locks)
        .lease(LEASE)
        .window(DAY)
        .run(&"record".to_owned(), async |_| Ok("done".to_owned()))
        .await
        .unwrap();
    let all = keys(&world).await;
    assert_eq!(all.len(), 4);
    host.advance_clock(DAY);
    assert_eq!(locks.delete_expired().await.unwrap(), 0);
    assert_eq!(keys(&world).await, all);
    host.advance_clock(LEASE + SKEWS + s(3));
    let deleted = locks.delete_expired().await.unwrap();
    // The longest lease of a permit is a day.
    assert_eq!((deleted, keys(&world).await), (3, ["permits".to_owned()].into()));
    host.advance_clock(DAY);
    assert_eq!(locks.delete_expired().await.unwrap(), 1);
    assert!(keys(&world).await.is_empty());
}

#[tokio::test]
async fn a_clock_that_is_ahead_by_the_skew_deletes_nothing_early() {
    let world = World::new().await;
    locks_on(&world, world.host()).1.acquire("job").lease(LEASE).await.unwrap().release().await.unwrap();
    let row = world.row("job").await.unwrap();
    let expiration: u64 = row["expiration"].as_n().unwrap().parse().unwrap();
    let (host, locks) = locks_on(&world, world.host());
    let until = s(expiration).saturating_sub(host.now().duration_since(std::time::UNIX_EPOCH).unwrap());
    host.advance_clock(until + s(1));
    assert_eq!(locks.delete_expired().await.unwrap(), 0, "the skew is not over");
    host.advance_clock(s(2));
    assert_eq!(locks.delete_expired().await.unwrap(), 1);
}

#[tokio::test]
async fn a_wrong_clock_deletes_nothing() {
    let world = World::new().await;
    locks_on(&world, world.host()).1.acquire("job").lease(LEASE).await.unwrap().release().await.unwrap();
    let wrong = locks_on(&world, world.host().clock_ahead(2 * DAY)).1;
    assert_eq!(wrong.delete_expired().await.unwrap_err().kind(), ErrorKind::ClockSkew);
    assert!(world.row("job").await.is_some());
}

#[tokio::test]
async fn rows_in_use_and_rows_of_others_stay() {
    let world = World::new().await;
    let (host, _) = locks_on(&world, world.host());
    let locks = world.locks_with_quick_retries(&host).key_prefix("app#").build().unwrap();
    locks.acquire("held").lease(2 * DAY).await.unwrap().keep();
    locks.acquire("used").lease(LEASE).await.unwrap().release().await.unwrap();
    let orders = completed(&locks).window(3 * DAY);
    orders.run(&"window".to_owned(), async |_| Ok("done".to_owned())).await.unwrap();
    locks.acquire("old").lease(LEASE).await.unwrap().release().await.unwrap();
    // By hand: a lease goes on beyond the time of the row.
    let mut edited = in_progress("app#edited", 4_102_444_800_000);
    edited.insert("expiration".to_owned(), number(1));
    let mut other = in_progress("other#job", 1);
    other.insert("expiration".to_owned(), number(1));
    // Orders have these attributes, too.
    let mut order = foreign("app#order");
    order.extend([("status".to_owned(), text("COMPLETED")), ("owner".to_owned(), text("alice"))]);
    for row in [edited, other, foreign("app#foreign"), order] {
        world.put_row(row).await;
    }
    host.advance_clock(DAY + s(60));
    locks.acquire("used").lease(LEASE).await.unwrap().release().await.unwrap();
    assert_eq!(locks.delete_expired().await.unwrap(), 1);
    let left = ["app#edited", "app#foreign", "app#held", "app#order", "app#used", "app#window", "other#job"];
    assert_eq!(keys(&world).await, left.map(str::to_owned).into());
}

/// Answers a scan with this key, as one does that has read the row before a change.
#[derive(Debug)]
struct Outdated(&'static str);

impl Intercept for Outdated {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "Scan" {
            answer.body["Items"] = json!([{ "id": { "S": self.0 } }]);
        }
    }
}

#[tokio::test]
async fn a_row_that_is_used_again_before_its_deletion_stays() {
    let world = World::new().await;
    let (_, locks) = locks_on(&world, world.host().intercept(Outdated("job")));
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(locks.delete_expired().await.unwrap(), 0);
    lock.release().await.unwrap();
    assert_eq!(locks.delete_expired().await.unwrap(), 0);
    assert!(world.row("job").await.is_some());
}

#[tokio::test]
async fn a_row_that_another_region_writes_stays() {
    let world = World::across_regions().await;
    world.put_row(in_progress("job", 1).into_iter().chain(foreign("job")).collect()).await;
    let faults = Faults::seeded(1).replicated_write_conflicts(1.0);
    let (_, locks) = locks_on(&world, world.host().faults(faults));
    assert_eq!(locks.delete_expired().await.unwrap(), 0);
    assert!(world.row("job").await.is_some());
    assert_eq!(world.default_locks().delete_expired().await.unwrap(), 1);
}

/// Denies each deletion.
#[derive(Debug)]
struct Deny;

impl Intercept for Deny {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "DeleteItem" {
            answer.status = 400;
            answer.body = json!({ "__type": "AccessDeniedException" });
        }
    }
}

#[tokio::test]
async fn a_deletion_that_is_denied_is_an_error() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host().intercept(Deny));
    locks.acquire("job").lease(LEASE).await.unwrap().release().await.unwrap();
    host.advance_clock(2 * DAY);
    assert_eq!(locks.delete_expired().await.unwrap_err().kind(), ErrorKind::AccessDenied);
}

#[tokio::test]
async fn all_pages_are_read_and_an_error_is_returned() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    for index in 0..5 {
        let lock = locks.acquire(format!("{index}")).lease(LEASE).data("x".repeat(380 * 1024)).await.unwrap();
        lock.release().await.unwrap();
    }
    host.advance_clock(2 * DAY);
    let requests = host.requests();
    assert_eq!(locks.delete_expired().await.unwrap(), 5);
    assert!(host.requests() - requests >= 5 + 2, "more than one page");
    let missing = World::without_table();
    assert_eq!(missing.default_locks().delete_expired().await.unwrap_err().kind(), ErrorKind::TableNotFound);
}
