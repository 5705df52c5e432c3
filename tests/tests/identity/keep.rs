//! A lock that its process keeps for another one.

use std::time::Duration;

use lambda_lock::embedded::{Faults, Host};
use lambda_lock::{Acquire, Data, ErrorKind, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::LoseAnswers;

use crate::{ARN, LEASE, by, host, ms};

/// Asserts that the hosts have sent so many requests in all.
#[track_caller]
fn assert_requests(hosts: &[&Host], expected: u64) {
    let sent: u64 = hosts.iter().map(|host| host.requests()).sum();
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn three_steps_take_four_requests() {
    for (claim, acquire, requests) in [
        ("a key", (|locks| locks.acquire("job")) as fn(&Locks) -> Acquire, 4),
        ("a permit", |locks| locks.semaphore("job", 2).acquire(), 6),
        ("several keys", |locks| locks.acquire_all(["job", "other job"]), 6),
    ] {
        let world = World::new().await;
        let [(one, first), (two, second), (three, third)] = [host(&world), host(&world), host(&world)];
        let lock = acquire(&first).lease(LEASE).identity(ARN).await.unwrap();
        let fence = lock.fence();
        lock.keep();
        let lock = acquire(&second).lease(LEASE).identity(ARN).take_over_from(fence).await.unwrap();
        assert!(lock.fence() > fence, "{claim}");
        let fence = lock.fence();
        lock.keep();
        let lock = acquire(&third).lease(LEASE).identity(ARN).take_over_from(fence).await.unwrap();
        lock.release().await.unwrap();
        assert_requests(&[&one, &two, &three], requests);
        for key in ["job", "other job"] {
            assert!(third.get(key).await.unwrap().is_none_or(|holder| !holder.is_current()), "{claim}");
        }
    }
}

#[tokio::test]
async fn a_later_step_has_the_data_and_the_new_lease() {
    let world = World::new().await;
    let lock = by(&world.default_locks(), ARN).data("page 7").await.unwrap();
    lock.set_data("page 8");
    lock.renew(LEASE).await.unwrap();
    lock.set_data("never written");
    lock.keep();
    let (second, locks) = host(&world);
    second.advance_clock(LEASE / 2);
    let lock = by(&locks, ARN).lease(2 * LEASE).take_over().await.unwrap();
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 8"));
    assert!(lock.remaining() > LEASE);
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_minimum_hold_ends_with_the_step_that_has_set_it() {
    let world = World::new().await;
    let locks = world.default_locks();
    by(&locks, ARN).min_hold(LEASE / 2).await.unwrap().keep();
    by(&locks, ARN).take_over().await.unwrap().release().await.unwrap();
    let lock = locks.try_acquire("job").await.unwrap().expect("the key is free");
    lock.release().await.unwrap();
    by(&locks, ARN).await.unwrap().keep();
    by(&locks, ARN).min_hold(LEASE / 2).take_over().await.unwrap().release().await.unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
}

/// With and without a fence, and if the identity frees it: the hold lasts from the first step to the last.
#[tokio::test]
async fn waiters_learn_how_long_all_steps_take() {
    for (last, permits) in
        ["take over", "take over from", "release identity"].into_iter().flat_map(|last| [(last, false), (last, true)])
    {
        let world = World::new().await;
        let (host, locks) = host(&world);
        let acquire = || {
            let acquire = if permits { locks.semaphore("job", 1).acquire() } else { locks.acquire("job") };
            acquire.lease(LEASE).identity(ARN)
        };
        acquire().await.unwrap().keep();
        host.advance_clock(ms(6000));
        let lock = acquire().take_over().await.unwrap();
        let fence = lock.fence();
        lock.keep();
        host.advance_clock(ms(2000));
        match last {
            "take over" => acquire().take_over().await.unwrap().release().await.unwrap(),
            "take over from" => acquire().take_over_from(fence).await.unwrap().release().await.unwrap(),
            _ => assert!(locks.release_identity("job", ARN).await.unwrap()),
        }
        let mean = locks.get("job").await.unwrap().unwrap().hold_time().unwrap();
        assert!((ms(8000)..ms(9000)).contains(&mean), "{last}, {permits}: {mean:?}");
    }
}

#[tokio::test]
async fn a_takeover_from_a_fence_gets_the_work_that_was_left() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = by(&locks, ARN).await.unwrap();
    let fence = lock.fence();
    lock.keep();
    let refusal = locks.acquire("job").await.unwrap_err();
    assert!(locks.coalesce("job", refusal.holder().unwrap()).await.unwrap());
    let (later, locks) = host(&world);
    let lock = by(&locks, ARN).take_over_from(fence).await.unwrap();
    // The refusal shows that work was left.
    assert_requests(&[&later], 2);
    assert!(lock.release_coalescing().await.unwrap());
}

#[tokio::test]
async fn a_random_identity_opens_its_lock_and_no_other() {
    let world = World::new().await;
    let locks = world.default_locks();
    let kept = async |key: &str| {
        let lock = locks.acquire(key).lease(LEASE).random_identity().await.unwrap();
        let identity = lock.identity().unwrap().to_owned();
        lock.keep();
        identity
    };
    let (one, other) = (kept("job").await, kept("other job").await);
    assert_ne!(one, other);
    assert!(one.len() >= 32, "{one}");
    assert!(!locks.release_identity("job", &other).await.unwrap());
    let lock = by(&locks, &one).take_over().await.unwrap();
    assert_eq!(lock.identity(), Some(&*one));
    lock.release().await.unwrap();
    assert!(locks.release_identity("other job", &other).await.unwrap());
}

#[tokio::test]
async fn a_lock_without_an_identity_has_none_and_a_long_one_names_the_same() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.identity(), None);
    lock.release().await.unwrap();
    let long = "i".repeat(1000);
    let lock = by(&locks, &long).await.unwrap();
    let shown = lock.identity().unwrap().to_owned();
    assert!(shown.starts_with("sha256:"), "{shown}");
    lock.keep();
    assert!(locks.release_identity("job", &shown).await.unwrap());
}

#[tokio::test]
async fn a_takeover_needs_an_identity_of_its_own() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    for acquire in [locks.acquire("job"), locks.acquire("job").random_identity()] {
        let error = acquire.take_over_from(1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("set `identity`"), "{error}");
    }
    assert_requests(&[&host], 0);
}

#[tokio::test]
async fn an_identity_frees_several_keys_and_says_whether_it_held_any() {
    let world = World::new().await;
    let locks = world.default_locks();
    let keys = ["a", "b", "c"];
    assert!(!locks.release_identity_all(keys, ARN).await.unwrap());
    locks.acquire_all(["a", "b"]).lease(LEASE).identity(ARN).await.unwrap().keep();
    let other = locks.acquire("c").lease(LEASE).identity("another").await.unwrap();
    assert!(locks.release_identity_all(keys, ARN).await.unwrap());
    assert!(other.renew(LEASE).await.is_ok());
    locks.acquire_all(["a", "b"]).await.unwrap().release().await.unwrap();
    for (keys, part) in [(&[][..], "keys is 0"), (&["a", "a"], "twice")] {
        let error = locks.release_identity_all(keys.iter().copied(), ARN).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn the_release_of_several_keys_goes_on_after_a_failure() {
    let world = World::new().await;
    world.default_locks().acquire_all(["a", "b"]).lease(LEASE).identity(ARN).await.unwrap().keep();
    let mut row = world.row("a").await.unwrap();
    row.insert("fence".to_owned(), aws_sdk_dynamodb::types::AttributeValue::S("no number".to_owned()));
    world.put_row(row).await;
    let locks = world.default_locks();
    let error = locks.release_identity_all(["a", "b"], ARN).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::MalformedRow, "a"));
    locks.acquire("b").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn disabled_locks_keep_and_take_over_without_a_request() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).enabled(false).build().unwrap();
    by(&locks, ARN).await.unwrap().keep();
    let lock = by(&locks, ARN).take_over_from(0).await.unwrap();
    assert!(!lock.is_enforced());
    lock.release().await.unwrap();
    assert!(!locks.release_identity("job", ARN).await.unwrap());
    assert_requests(&[&host], 0);
}

#[tokio::test]
async fn waiters_learn_it_also_if_an_answer_was_lost() {
    for acquire in [|locks: &Locks| locks.acquire("job"), |locks: &Locks| locks.semaphore("job", 1).acquire()] {
        let world = World::new().await;
        acquire(&world.default_locks()).lease(LEASE).identity(ARN).await.unwrap().keep();
        let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
        host.advance_clock(ms(8000));
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let lock = acquire(&locks).lease(LEASE).identity(ARN).take_over().await.unwrap();
        assert_requests(&[&host], 3);
        lock.release().await.unwrap();
        let mean = locks.get("job").await.unwrap().unwrap().hold_time().unwrap();
        assert!((ms(8000)..ms(9000)).contains(&mean), "{mean:?}");
    }
}

#[tokio::test]
async fn a_takeover_that_is_dropped_leaves_the_lock_to_its_identity() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    by(&world.default_locks(), ARN).await.unwrap().keep();
    let slow = world.host().faults(Faults::seeded(1).latency(ms(50)..ms(50))).build();
    let locks = world.locks(&slow).build().unwrap();
    let dropped = tokio::time::timeout(ms(60), by(&locks, ARN).take_over()).await;
    assert!(dropped.is_err(), "it was answered");
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_none());
    by(&world.default_locks(), ARN).take_over().await.unwrap().release().await.unwrap();
}
