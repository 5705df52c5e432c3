//! The clock skew, and the fences that need no clock.

use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock::embedded::HostBuilder;
use lambda_lock_tests::World;

use crate::late::free_by_force;
use crate::subject::Subject;
use crate::{AFTER_THE_LEASE, LEASE, acquired, ahead, assert_free, assert_refused, host};

/// DynamoDB tells whole seconds, so a clock that is wrong may seem better by so much.
const SECOND: Duration = Duration::from_secs(1);

pub(crate) async fn others_wait_until_the_lease_and_the_skew_are_over<S: Subject>() {
    /// Half of it is longer than the test.
    const SKEW: Duration = Duration::from_mins(2);
    let world = World::new().await;
    // The skew of the holder counts.
    let _crashed: S = acquired(&world.locks(&world.host().build()).clock_skew(SKEW).build().unwrap()).await;
    assert_refused::<S>(&ahead(&world, LEASE.saturating_sub(SKEW / 2))).await;
    assert_refused::<S>(&ahead(&world, LEASE + SKEW / 2)).await;
    let mut next: S = acquired(&ahead(&world, LEASE + SKEW + Duration::from_millis(100))).await;
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
    last = next.fences();
    // DynamoDB deletes a row no earlier than its retention after its lease, of which the shortest is 15 minutes.
    for key in S::KEYS {
        world.delete_row(key).await;
    }
    let later = Duration::from_hours(1) + 2 * AFTER_THE_LEASE + Duration::from_mins(15);
    let behind = world.host().later(later).clock_behind(Duration::from_millis(400)).build();
    let next: S = acquired(&world.locks(&behind).build().unwrap()).await;
    assert!(last.iter().zip(next.fences()).all(|(last, fence)| *last < fence));
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

/// Asserts that each of two hosts acquires with two requests at most.
async fn assert_refused_at_most_once<S: Subject>(world: &World) {
    for _ in 0..2 {
        let (host, locks) = host(world);
        let mut held: S = acquired(&locks).await;
        assert!(host.requests() <= 2, "{} requests", host.requests());
        held.release().await.unwrap();
    }
}

/// Its clock shows that the lease has ended.
pub(crate) async fn an_acquire_by_a_clock_ahead_leaves_the_key_to_its_holder<S: Subject>() {
    let world = World::new().await;
    let _held: S = acquired(&world.default_locks()).await;
    assert_clock_is_found_wrong::<S>(&world, world.host().clock_ahead(AFTER_THE_LEASE + SECOND)).await;
    assert_refused::<S>(&world.default_locks()).await;
    acquired::<S>(&ahead(&world, AFTER_THE_LEASE + 2 * SECOND)).await.release().await.unwrap();
}

/// The answer to a transaction shows no row, so the keys stay held for the lease: they may have been another holder's.
pub(crate) async fn an_acquire_by_a_wrong_clock_leaves_a_free_key_free<S: Subject>() {
    let world = World::new().await;
    for host in [world.host().clock_ahead(Duration::from_hours(1)), world.host().clock_behind(Duration::from_hours(1))]
    {
        assert_clock_is_found_wrong::<S>(&world, host).await;
        let later = if S::OPERATION == "UpdateItem" { Duration::ZERO } else { AFTER_THE_LEASE + SECOND };
        acquired::<S>(&ahead(&world, later)).await.release().await.unwrap();
    }
}

/// An acquire fails and says by how much the clock is wrong.
async fn assert_clock_is_found_wrong<S: Subject>(world: &World, host: HostBuilder) {
    let locks = world.locks(&host.build()).build().unwrap();
    let Err(error) = S::acquire(&locks, LEASE).await else { panic!("it was granted") };
    assert_eq!(error.kind(), ErrorKind::ClockSkew, "{error}");
    assert!(error.to_string().starts_with("this host's clock is at least "), "{error}");
}

pub(crate) async fn a_renewal_by_a_wrong_clock_loses_the_lock<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let mut held: S = acquired(&locks).await;
    host.set_clock_back(Duration::from_hours(1));
    assert_eq!(held.renew(LEASE).await.unwrap_err().kind(), ErrorKind::ClockSkew);
    held.release().await.unwrap();
    assert_free::<S>(&world).await;
}
