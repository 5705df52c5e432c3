//! A key has one kind, until its row is deleted.

use std::time::Duration;

use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::all_tries_from;

use crate::subject::Subject;
use crate::{LEASE, assert_free, assert_withdrawn, host, rows};

/// Acquires and releases one of the keys as a kind that the subject does not know.
async fn use_as_another_kind<S: Subject>(locks: &Locks) {
    let acquire = if S::IS_PERMIT { locks.acquire(S::KEYS[0]) } else { locks.semaphore(S::KEYS[0], 1).acquire() };
    acquire.await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_row_of_another_kind_is_refused<S: Subject>() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    use_as_another_kind::<S>(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    let is = if S::IS_PERMIT { "a lock or a record of idempotency" } else { "a semaphore" };
    let refused = format!("key `{}` in table `{}` is {is}, not {}: use another key", S::KEYS[0], world.table, S::NAME);
    for wait in [None, Some(Duration::from_hours(1).into())] {
        let refusal = match wait {
            None => S::acquire(&locks, LEASE).await,
            Some(wait) => S::wait(&locks, LEASE, wait).await,
        };
        let Err(error) = refusal else { panic!("it was granted") };
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
        assert!(error.to_string().contains(&refused), "`{error}` lacks `{refused}`");
    }
    assert_eq!(host.requests(), 2);
    assert_eq!(rows::<S>(&world).await, before);
    world.delete_row(S::KEYS[0]).await;
    assert_free::<S>(&world).await;
}

/// The acquire is not answered, so that its withdrawal does not know the kind of the row.
pub(crate) async fn a_withdrawal_leaves_a_row_of_another_kind_as_it_is<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(all_tries_from(1)));
    use_as_another_kind::<S>(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    let locks = world.locks_with_quick_retries(&world.host().intercept(late.clone()).build()).build().unwrap();
    assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
    assert_eq!(rows::<S>(&world).await, before);
    assert!(!late.deliver(&world).await);
}
