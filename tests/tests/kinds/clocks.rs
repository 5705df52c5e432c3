//! The clock skew, and the fences that need no clock.

use std::time::Duration;

use lambda_lock::Locks;
use lambda_lock_tests::World;

use crate::late::free_by_force;
use crate::subject::Subject;
use crate::{AFTER_THE_LEASE, LEASE, acquired, ahead, assert_free, assert_refused, host};

pub(crate) async fn others_wait_until_the_lease_and_the_skew_are_over<S: Subject>() {
    /// Half of it is longer than the test.
    const SKEW: Duration = Duration::from_mins(2);
    let world = World::new().await;
    let ahead = |by| -> Locks {
        let host = world.host().clock_ahead(by).build();
        world.locks(&host).clock_skew(SKEW).build().unwrap()
    };
    let _crashed: S = acquired(&ahead(Duration::ZERO)).await;
    assert_refused::<S>(&ahead(LEASE.saturating_sub(SKEW / 2))).await;
    assert_refused::<S>(&ahead(LEASE + SKEW / 2)).await;
    let mut next: S = acquired(&ahead(LEASE + SKEW + Duration::from_millis(100))).await;
    next.release().await.unwrap();
}

pub(crate) async fn each_acquisition_has_a_larger_fence<S: Subject>() {
    let world = World::new().await;
    let mut last = Vec::new();
    for _ in 0..3 {
        let mut held: S = acquired(&world.default_locks()).await;
        let fences = held.fences();
        assert!(last.iter().zip(&fences).all(|(last, fence)| last < fence), "{last:?}, {fences:?}");
        last = fences;
        held.release().await.unwrap();
    }
    // A crash is no exception, and neither is a clock behind.
    let _crashed: S = acquired(&ahead(&world, Duration::from_hours(1))).await;
    let next: S = acquired(&ahead(&world, Duration::from_hours(1) + AFTER_THE_LEASE)).await;
    assert!(last.iter().zip(next.fences()).all(|(last, fence)| last + 1 < fence));
}

pub(crate) async fn a_free_key_refuses_an_acquire_at_most_once_after_it_was_freed_by_others<S: Subject>() {
    let world = World::new().await;
    let _held: S = acquired(&world.default_locks()).await;
    free_by_force::<S>(&world.default_locks()).await;
    assert_refused_at_most_once::<S>(&world).await;
}

pub(crate) async fn after_a_clock_an_hour_ahead_an_acquire_needs_two_attempts<S: Subject>() {
    let world = World::new().await;
    let mut held: S = acquired(&ahead(&world, Duration::from_hours(1))).await;
    held.release().await.unwrap();
    assert_refused_at_most_once::<S>(&world).await;
}

pub(crate) async fn a_ticket_frees_what_a_clock_an_hour_ahead_has_acquired<S: Subject>() {
    let world = World::new().await;
    let held: S = acquired(&ahead(&world, Duration::from_hours(1))).await;
    world.default_locks().release_ticket(&held.into_ticket()).await.unwrap();
    assert_free::<S>(&world).await;
}

/// Asserts that each of two hosts acquires with two requests at most.
async fn assert_refused_at_most_once<S: Subject>(world: &World) {
    for _ in 0..2 {
        let (host, locks) = host(world);
        let mut held: S = acquired(&locks).await;
        assert!(host.requests() <= 2, "{} requests", host.requests());
        held.release().await.unwrap();
    }
}
