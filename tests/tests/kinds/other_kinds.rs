//! A key has one kind, until its row is deleted.

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;

use crate::subject::Subject;
use crate::{LEASE, assert_free, assert_withdrawn, rows};

pub(crate) async fn a_row_of_another_kind_is_refused<S: Subject>() {
    let world = World::new().await;
    let locks = world.default_locks();
    S::use_as_another_kind(&locks).await;
    let before = rows::<S>(&world).await;
    let Err(error) = S::acquire(&locks, LEASE).await else { panic!("it was granted") };
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    assert_eq!(rows::<S>(&world).await, before);
    world.delete_row(S::KEYS[0]).await;
    assert_free::<S>(&world).await;
}

/// The acquire is not answered, so that its withdrawal does not know the kind of the row.
pub(crate) async fn a_withdrawal_leaves_a_row_of_another_kind_as_it_is<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=3));
    S::use_as_another_kind(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    let locks = world.locks_with_quick_retries(&world.host().intercept(late.clone()).build()).build().unwrap();
    assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
    assert_eq!(rows::<S>(&world).await, before);
    assert!(!late.deliver(&world).await);
}
