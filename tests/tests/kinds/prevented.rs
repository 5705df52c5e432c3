//! Requests of a holder that DynamoDB does not apply, because it throttles them or another request on the row is in progress.

use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Cause, Prevents};

use crate::subject::Subject;
use crate::{LEASE, acquired, assert_free};

/// Acquires on a host of which the next six writes are prevented. The SDK makes its own tries almost without a pause.
async fn held_with<S: Subject>(world: &World, cause: Cause) -> S {
    let host = world.host().intercept(Prevents::writes(cause, 2..=7)).build();
    acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await
}

pub(crate) async fn a_prevented_renewal_is_repeated<S: Subject>() {
    World::skip_waits();
    for cause in Cause::of(S::OPERATION) {
        let world = World::new().await;
        let mut held: S = held_with(&world, cause).await;
        held.renew(2 * LEASE).await.unwrap_or_else(|error| panic!("{cause:?}: {error}"));
        held.release().await.unwrap();
        assert_free::<S>(&world).await;
    }
}

pub(crate) async fn a_prevented_release_is_repeated<S: Subject>() {
    World::skip_waits();
    for cause in Cause::of(S::OPERATION) {
        let world = World::new().await;
        let mut held: S = held_with(&world, cause).await;
        held.release().await.unwrap_or_else(|error| panic!("{cause:?}: {error}"));
        assert_free::<S>(&world).await;
    }
}
