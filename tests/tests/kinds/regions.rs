//! A table with multi-Region strong consistency: each host is in a region.

use lambda_lock::Locks;
use lambda_lock::embedded::{Faults, HostBuilder};
use lambda_lock_tests::World;

use crate::subject::Subject;
use crate::{LEASE, acquired, assert_free, assert_held_by};

fn locks(world: &World, host: HostBuilder) -> Locks {
    world.locks_with_quick_retries(&host.build()).multi_region_strong_consistency(true).build().unwrap()
}

pub(crate) async fn a_key_that_is_held_in_one_region_is_refused_in_others<S: Subject>() {
    let world = World::across_regions().await;
    let mut held: S = acquired(&locks(&world, world.host())).await;
    held.renew(2 * LEASE).await.unwrap();
    assert_held_by(&world, &held).await;
    held.release().await.unwrap();
    assert_free::<S>(&world).await;
}

pub(crate) async fn writes_that_conflict_with_another_region_are_repeated<S: Subject>() {
    let mut acquired = 0;
    for seed in 0..8 {
        let world = World::across_regions().await;
        let faults = Faults::seeded(seed).replicated_write_conflicts(0.5);
        let locks = locks(&world, world.host().faults(faults));
        // Without a wait, all tries of the SDK may conflict: those of about one in eight.
        let Ok(mut held) = S::acquire(&locks, LEASE).await else { continue };
        acquired += 1;
        held.renew(2 * LEASE).await.unwrap();
        held.release().await.unwrap();
        assert_free::<S>(&world).await;
    }
    // Without the repetitions, it would be about half of them.
    assert!(acquired >= 7, "{acquired}");
}
