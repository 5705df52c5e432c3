//! How long a lease can be, and what happens at its end.

use std::time::Duration;

use lambda_lock::{Error, ErrorKind};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;

use crate::subject::Subject;
use crate::{
    AFTER_THE_LEASE, CLOCK_SKEW, LEASE, RETENTION, acquired, ahead, assert_free, assert_held_by, assert_refused, host,
    rows,
};

/// Two leases, each with the bound that it does not keep.
fn beyond<S: Subject>() -> [(Duration, &'static str); 2] {
    let (longest, text) = S::LONGEST;
    [(Duration::ZERO, "1ms"), (longest + Duration::from_millis(1), text)]
}

fn assert_names_the_bound(error: &Error, bound: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("lease") && error.to_string().contains(bound), "{error}");
}

pub(crate) async fn a_lease_beyond_its_bounds_is_refused<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    for (lease, bound) in beyond::<S>() {
        let Err(error) = S::acquire(&locks, lease).await else { panic!("{lease:?} was granted") };
        assert_names_the_bound(&error, bound);
    }
    assert_eq!(host.requests(), 0);
}

pub(crate) async fn a_renewal_beyond_its_bounds_is_refused<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let mut held: S = acquired(&locks).await;
    for (lease, bound) in beyond::<S>() {
        assert_names_the_bound(&held.renew(lease).await.unwrap_err(), bound);
    }
    assert_eq!(host.requests(), 1);
    held.release().await.unwrap();
}

pub(crate) async fn the_longest_lease_is_granted<S: Subject>() {
    let (world, (longest, _)) = (World::new().await, S::LONGEST);
    let mut held = S::acquire(&world.default_locks(), longest).await.unwrap_or_else(|error| panic!("{error}"));
    assert_refused::<S>(&ahead(&world, longest.saturating_sub(Duration::from_mins(1)))).await;
    held.renew(longest).await.unwrap();
    held.release().await.unwrap();
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_row_stays_for_the_retention_after_its_lease<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let mut held: S = acquired(&locks).await;
    let assert_kept = async |lease: Duration| {
        // By a reader's clock, the lease ends with the skew.
        let end = host.now() + lease + CLOCK_SKEW - Duration::from_mins(1);
        for (key, row) in S::KEYS.iter().zip(rows::<S>(&world).await) {
            let until = locks.get(*key).await.unwrap().unwrap().until();
            let expiration: u64 = row.unwrap()["expiration"].as_n().unwrap().parse().unwrap();
            assert!(until > end, "{key}: {until:?}");
            assert!(expiration * 1000 >= millis(until + RETENTION), "{key}: {expiration}");
        }
    };
    assert_kept(LEASE).await;
    let (longest, _) = S::LONGEST;
    held.renew(longest).await.unwrap();
    assert_kept(longest).await;
    held.release().await.unwrap();
}

pub(crate) async fn a_lock_is_lost_after_its_lease<S: Subject>() {
    for (renews, is_known) in [(false, false), (false, true), (true, false), (true, true)] {
        let world = World::new().await;
        let (host, locks) = host(&world);
        let mut held: S = acquired(&locks).await;
        if is_known {
            host.advance_clock(AFTER_THE_LEASE);
        }
        let mut next: S = acquired(&ahead(&world, AFTER_THE_LEASE)).await;
        let before = rows::<S>(&world).await;
        let answer = if renews { held.renew(LEASE).await } else { held.release().await };
        assert_eq!(host.requests(), if renews && is_known { 1 } else { 2 });
        if renews || S::REPORTS_LATE_RELEASE {
            let error = answer.unwrap_err();
            assert!(error.is_lost(), "{error}");
        }
        assert_eq!(rows::<S>(&world).await, before);
        next.release().await.unwrap();
    }
}

pub(crate) async fn a_released_lock_cannot_be_renewed<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let mut held: S = acquired(&locks).await;
    held.release().await.unwrap();
    let error = held.renew(LEASE).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(S::KEYS.iter().all(|key| error.to_string().contains(&format!("`{key}`"))), "{error}");
    assert_eq!(host.requests(), 2);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_release_without_its_row_is_lost<S: Subject>() {
    let world = World::new().await;
    let mut held: S = acquired(&world.default_locks()).await;
    for key in S::KEYS {
        world.delete_row(key).await;
    }
    let answer = held.release().await;
    if S::REPORTS_LATE_RELEASE {
        let error = answer.unwrap_err();
        assert!(error.is_lost() && error.holders().count() == 0, "{error}");
        assert!(S::KEYS.iter().all(|key| error.to_string().contains(&format!("`{key}`"))), "{error}");
    }
    assert!(rows::<S>(&world).await.iter().all(Option::is_none));
}

pub(crate) async fn an_expired_lock_that_nobody_took_can_be_released<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let mut held: S = acquired(&locks).await;
    host.advance_clock(LEASE);
    held.release().await.unwrap();
    // The key is free by the clock of the releaser, too.
    acquired::<S>(&locks).await.release().await.unwrap();
}

pub(crate) async fn a_renewal_keeps_others_out_for_longer<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let mut held: S = acquired(&locks).await;
    held.renew(2 * LEASE).await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_held_by(&world, &held).await;
    assert_refused::<S>(&ahead(&world, AFTER_THE_LEASE)).await;
    let mut next: S = acquired(&ahead(&world, LEASE + AFTER_THE_LEASE)).await;
    next.release().await.unwrap();
}
