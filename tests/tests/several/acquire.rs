//! Acquiring several keys: requests, refusals, and the rows.

use lambda_lock::ErrorKind;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;
use serde_json::{Value, json};

use crate::{CLOCK_SKEW, KEYS, LEASE, assert_contains, assert_held_by, rows, text};

/// While the first one runs, another one gets none of them, and learns who holds them.
#[tokio::test]
async fn a_refusal_takes_no_key_and_names_every_key_in_the_way() {
    let world = World::new().await;
    let (locks, host) = (world.default_locks(), world.host().build());
    let first = locks.acquire("a").holder("importer").lease(LEASE).await.unwrap();
    let last = locks.acquire("c").holder("reporter").lease(2 * LEASE).await.unwrap();
    let error = world.locks(&host).build().unwrap().acquire_all(["a", "b", "c"]).await.unwrap_err();
    assert_eq!(host.requests(), 1);
    assert!(error.is_held());
    // The caller has to wait for the lease that ends last.
    assert_eq!((error.key(), error.table()), ("c", world.table.as_str()));
    assert_eq!(error.holder().unwrap().owner(), Some(last.owner()));
    let holders: Vec<_> = error.holders().map(|(key, holder)| (key, holder.owner(), millis(holder.until()))).collect();
    let held_by = |lock: &lambda_lock::Lock| millis(lock.expires_at() + CLOCK_SKEW);
    assert_eq!(holders, [("c", Some(last.owner()), held_by(&last)), ("a", Some(first.owner()), held_by(&first))]);
    assert_contains(
        &error,
        &["key `c` in table", &world.table, "is held by reporter until 20", "key `a` is held by importer until 20"],
    );
    assert!(world.row("b").await.is_none());
    first.release().await.unwrap();
    last.release().await.unwrap();
}

#[tokio::test]
async fn the_order_of_keys_does_not_matter() {
    let world = World::new().await;
    let set = world.default_locks().acquire_all(["b", "c", "a"]).await.unwrap();
    assert_eq!(set.keys(), ["a", "b", "c"]);
    assert_held_by(&world, &set).await;
    assert_eq!(set.fence_of("d"), None);
    assert_contains(&world.default_locks().acquire_all(["c", "a"]).await.unwrap_err(), &["`a`", "`c`"]);
    set.release().await.unwrap();
}

#[tokio::test]
async fn a_hundred_keys_are_acquired_with_one_request() {
    let world = World::new().await;
    let host = world.host().build();
    let keys: Vec<_> = (0..100).map(|number| format!("{number:0>2000}")).collect();
    let locks = world.locks(&host).build().unwrap();
    let set = locks.acquire_all(&keys).await.unwrap();
    assert_eq!(host.requests(), 1);
    assert_eq!(set.keys().len(), 100);
    let error = locks.acquire_all(&keys).await.unwrap_err();
    assert_eq!(error.holders().count(), 100);
    set.renew(LEASE).await.unwrap();
    set.release().await.unwrap();
    assert_eq!(host.requests(), 4);
}

#[tokio::test]
async fn rejects_keys_outside_their_bounds_without_a_request() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).key_prefix("app#").build().unwrap();
    let many: Vec<_> = (0..101).map(|number| number.to_string()).collect();
    let none = Vec::<String>::new();
    for (keys, expected) in [
        (none, &["number of keys is 0", "between 1 and 100"][..]),
        (many, &["number of keys is 101", "between 1 and 100"]),
        (vec!["a".to_owned(), "b".to_owned(), "a".to_owned()], &["`a`", "twice"]),
        (vec!["a".to_owned(), String::new()], &["the key is empty"]),
        (vec!["a".to_owned(), "b".repeat(2045)], &["2049 bytes", "2048"]),
    ] {
        let error = locks.acquire_all(keys).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_contains(&error, expected);
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_set_of_one_key_is_a_lock() {
    let world = World::new().await;
    let locks = world.locks(&world.host().build()).key_prefix("app#").build().unwrap();
    let set = locks.acquire_all(["job"]).await.unwrap();
    assert_eq!(world.row("app#job").await.unwrap()["owner"], text(set.owner()));
    assert_contains(&locks.acquire("job").await.unwrap_err(), &["key `app#job` in table", "is held by"]);
    set.release().await.unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_malformed_row_fails_the_acquire_and_is_named() {
    let world = World::new().await;
    world.put_row([("id".to_owned(), text(KEYS[1])), ("status".to_owned(), text("busy"))].into()).await;
    let row = world.row(KEYS[1]).await;
    let error = world.default_locks().acquire_all(KEYS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MalformedRow);
    assert_eq!(error.key(), KEYS[1]);
    assert_eq!(rows(&world).await, [None, row]);
}

/// Throttles the second key of each transaction that is refused.
#[derive(Debug)]
struct ThrottleSecond;

impl Intercept for ThrottleSecond {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if let Some(reasons) = answer.body.get_mut("CancellationReasons") {
            reasons[1] = json!({ "Code": "ThrottlingError", "Message": "simulated" });
        }
    }
}

#[tokio::test]
async fn a_refusal_by_a_holder_counts_more_than_the_throttling_of_another_key() {
    let world = World::new().await;
    let other = world.default_locks().acquire(KEYS[0]).await.unwrap();
    let host = world.host().intercept(ThrottleSecond).build();
    let error = world.locks(&host).build().unwrap().acquire_all(KEYS).await.unwrap_err();
    assert!(error.is_held(), "{error}");
    assert_eq!(error.holder().unwrap().owner(), Some(other.owner()));
}
