//! Recipes: the newest wins, two limits, a circuit breaker, a key that is closed for maintenance.

use std::time::Duration;

use lambda_lock::{Error, Locks};
use lambda_lock_tests::{Row, World};

use crate::{assert_contains, text, transact};

/// A price that is written under the lock.
fn price(cents: &str) -> Row {
    Row::from([("id".to_owned(), text("price")), ("cents".to_owned(), text(cents))])
}

#[tokio::test]
async fn after_a_newer_acquire_the_older_holders_transaction_is_refused() {
    let world = World::new().await;
    let import = |locks: &Locks| locks.acquire("prices").identity("import");
    let older = import(&world.default_locks()).await.unwrap();
    let newer = import(&world.default_locks()).await.unwrap();
    // Nothing stops the older one, and a receiver sees its smaller fence.
    assert!(older.is_valid() && older.fence() < newer.fence());
    let refused = transact(&world, older.condition_check().unwrap(), price("100")).await;
    assert_eq!(refused, Err(Some("ConditionalCheckFailed".to_owned())));
    transact(&world, newer.condition_check().unwrap(), price("120")).await.unwrap();
    assert_eq!(world.row("price").await, Some(price("120")));
    assert!(older.release().await.unwrap_err().is_lost());
    newer.release().await.unwrap();
}

/// Runs for each tenant at most twice at a time, and for all tenants together at most three times.
async fn convert(locks: &Locks, tenant: &str) -> Result<(), Error> {
    let (own, all) = (locks.semaphore(format!("videos#{tenant}"), 2), locks.semaphore("videos", 3));
    // Boxed: a future within a future is large.
    Box::pin(own.acquire().run(async |_| Box::pin(all.acquire().run(async |_| {})).await)).await?
}

#[tokio::test]
async fn a_full_total_leaves_no_permit_of_the_tenant_behind() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let others = world.default_locks().semaphore("videos", 3);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(others.acquire().await.unwrap());
    }
    let error = convert(&locks, "a").await.unwrap_err();
    assert!(error.is_held());
    assert_contains(&error, &["key `videos` in table"]);
    // The permit of the tenant, the refusal, and the release.
    assert_eq!(host.requests(), 3);
    assert!(locks.get("videos#a").await.unwrap().unwrap().permits().is_empty());
    for permit in held {
        permit.release().await.unwrap();
    }
    convert(&locks, "a").await.unwrap();
}

#[tokio::test]
async fn while_a_key_is_closed_a_refusal_names_the_operator() {
    let world = World::new().await;
    let operator = world.default_locks();
    let closing = operator.acquire("import").identity("maintenance by Kim").lease(Duration::from_hours(2));
    closing.await.unwrap().keep();
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    host.advance_clock(Duration::from_mins(119));
    let error = locks.acquire("import").run(async |_| {}).await.unwrap_err();
    assert!(error.is_held());
    assert_contains(&error, &["key `import` in table", "is held by ", " for `maintenance by Kim` until "]);
    assert!(operator.release_identity("import", "maintenance by Kim").await.unwrap());
    locks.acquire("import").run(async |_| {}).await.unwrap();
}
