//! Acquiring permits: their number, refusals, fences, waiting and data.

use std::time::Duration;

use lambda_lock::{Data, ErrorKind};
use lambda_lock_tests::World;

use crate::{CLOCK_SKEW, KEY, LEASE, acquire_all, assert_contains, owners, permits, row, text};

#[tokio::test]
async fn n_holders_have_a_key_at_a_time_with_one_request_each() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let held = acquire_all(&locks, 3).await;
    assert_eq!(host.requests(), 3);
    assert_eq!(permits(&row(&world).await), owners(&held));
    assert!(held.iter().all(|permit| permit.is_valid() && permit.is_enforced() && permit.key() == KEY));

    assert!(locks.semaphore(KEY, 3).try_acquire().await.unwrap().is_none());
    assert_eq!(host.requests(), 4, "a refusal is one request");
    held[1].release().await.unwrap();
    assert_eq!(host.requests(), 5, "a release is one request");
    let next = locks.semaphore(KEY, 3).acquire().await.unwrap();
    assert_eq!(host.requests(), 6);
    assert_eq!(permits(&row(&world).await), owners([&held[0], &held[2], &next]));
}

#[tokio::test]
async fn a_refusal_names_all_holders_and_the_lease_that_ends_first() {
    let world = World::new().await;
    let locks = world.default_locks();
    let bank = locks.semaphore(KEY, 3);
    let mut held = Vec::new();
    for (name, seconds) in [("long", 90), ("short", 20), ("middle", 50)] {
        held.push(bank.acquire().holder(name).lease(Duration::from_secs(seconds)).await.unwrap());
    }
    let error = bank.acquire().await.unwrap_err();
    assert!(error.is_held());
    let holder = error.holder().unwrap();
    let names: Vec<_> = holder.permits().iter().map(|permit| permit.name().unwrap()).collect();
    assert_eq!(names, ["short", "middle", "long"]);
    for (permit, lock) in holder.permits().iter().zip([&held[1], &held[2], &held[0]]) {
        assert_eq!((permit.owner(), permit.fence()), (Some(lock.owner()), Some(lock.fence())));
        assert_eq!(permit.until(), lock.expires_at() + CLOCK_SKEW);
        let since = permit.since().unwrap();
        assert!(lock.acquired_at().duration_since(since).unwrap() < Duration::from_millis(1));
        assert!(permit.is_current() && !permit.has_released() && permit.permits().is_empty());
    }
    assert_eq!(holder.name(), Some("short"));
    assert_eq!((holder.owner(), holder.fence()), (Some(held[1].owner()), Some(held[1].fence())));
    assert_eq!(holder.until(), held[1].expires_at() + CLOCK_SKEW);
    assert!(holder.is_current());
    let until = holder.to_string();
    let until = until.strip_prefix("short, middle, long; the first lease ends at ").unwrap();
    assert_contains(
        &error,
        &["key `bank-api` in table", "is held by short, middle, long; the first lease ends at", until],
    );
}

#[tokio::test]
async fn a_number_of_permits_out_of_bounds_sends_nothing() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    for (permits, shown) in [(0, "0 permits"), (101, "101 permits"), (u32::MAX, "4294967295 permits")] {
        let error = locks.semaphore(KEY, permits).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_contains(&error, &["`bank-api`", shown, "1 to 100"]);
    }
    let error = locks.semaphore(KEY, 1).acquire().data("x".repeat(200 * 1024 + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_contains(&error, &["204801 bytes", "more than 204800"]);
    for name in ["permits", "permit:x", "fence:x"] {
        let error = locks.semaphore(KEY, 1).acquire().attribute(name, text("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_contains(&error, &[name]);
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn the_number_of_each_caller_counts() {
    let world = World::new().await;
    let locks = world.default_locks();
    let mut held = acquire_all(&locks, 2).await;
    assert!(locks.semaphore(KEY, 1).try_acquire().await.unwrap().is_none());
    assert!(locks.semaphore(KEY, 2).try_acquire().await.unwrap().is_none());
    held.push(locks.semaphore(KEY, 3).acquire().await.unwrap());
    held.pop().unwrap().release().await.unwrap();
    held.pop().unwrap().release().await.unwrap();
    assert!(locks.semaphore(KEY, 1).try_acquire().await.unwrap().is_none());
    held.pop().unwrap().release().await.unwrap();
    locks.semaphore(KEY, 1).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lock_on_the_key_is_no_full_semaphore() {
    let world = World::new().await;
    let lock = world.default_locks().acquire(KEY).await.unwrap();
    let error = world.default_locks().semaphore(KEY, 1).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    lock.release().await.unwrap();
}

#[tokio::test]
async fn permits_share_the_data_of_the_row() {
    let world = World::new().await;
    let bank = world.default_locks().semaphore(KEY, 2);
    let first = bank.acquire().data("first").attribute("team", text("payments")).await.unwrap();
    let second = bank.acquire().await.unwrap();
    assert_eq!(second.data().and_then(Data::as_str), Some("first"));
    second.set_data("second");
    second.release().await.unwrap();
    first.set_data("third");
    first.renew(LEASE).await.unwrap();
    first.release().await.unwrap();
    let third = bank.acquire().await.unwrap();
    assert_eq!(third.data().and_then(Data::as_str), Some("third"));
    assert_eq!(row(&world).await["team"], text("payments"));
}
