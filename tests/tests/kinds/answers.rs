//! Requests that DynamoDB applied although their answer was lost.

use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::HideRows;

use crate::subject::Subject;
use crate::{LEASE, acquired, assert_free, assert_held, assert_withdrawn, rows};

pub(crate) async fn an_acquire_whose_answer_was_lost_succeeds<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(1..=1)).build();
    let mut held: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    assert_eq!(host.requests(), 2);
    assert_held::<S>(&world).await;
    held.renew(2 * LEASE).await.unwrap();
    held.release().await.unwrap();
    assert_free::<S>(&world).await;
}

pub(crate) async fn an_acquire_whose_answer_was_lost_knows_the_hold_time_of_the_row<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(3..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    for seconds in [8, 2] {
        let mut held: S = acquired(&locks).await;
        host.advance_clock(Duration::from_secs(seconds));
        held.release().await.unwrap();
    }
    assert_eq!(host.requests(), 5);
    // The mean of 8 s and 2 s, and not one of them.
    let mean = locks.get(S::KEYS[0]).await.unwrap().unwrap().hold_time().unwrap();
    assert!((4.9..7.5).contains(&mean.as_secs_f64()), "{mean:?}");
}

pub(crate) async fn a_renewal_whose_answer_was_lost_succeeds<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(2..=2)).build();
    let mut held: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    held.renew(3 * LEASE).await.unwrap();
    assert_eq!(host.requests(), 3);
    for key in S::KEYS {
        let until = world.default_locks().get(*key).await.unwrap().unwrap().until();
        assert!(until > host.now() + 2 * LEASE, "{key}: {until:?}");
    }
    held.release().await.unwrap();
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_release_whose_answer_was_lost_succeeds<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(2..=2)).build();
    let mut held: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    held.release().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_refusal_without_its_row_names_the_cause<S: Subject>() {
    let world = World::new().await;
    let mut held: S = acquired(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    let host = world.host().intercept(HideRows).build();
    let locks = world.locks(&host).build().unwrap();
    let Err(error) = S::acquire(&locks, LEASE).await else { panic!("it was granted") };
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(!error.is_retryable());
    for part in [S::KEYS[0], "no item", "ReturnValuesOnConditionCheckFailure", "another endpoint"] {
        assert!(error.to_string().contains(part), "`{part}` is not in {error}");
    }
    assert_eq!(host.requests(), 1);
    assert_eq!(rows::<S>(&world).await, before);
    held.release().await.unwrap();
    // Nothing is refused.
    acquired::<S>(&locks).await.release().await.unwrap();
}

pub(crate) async fn an_acquire_that_was_not_answered_frees_the_key<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(1..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_release_that_was_not_answered_is_repeated_after_the_next_acquire<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(2..=4)).build();
    let mut held: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let mut next: S = acquired(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    held.release().await.unwrap();
    assert_eq!(rows::<S>(&world).await, before);
    next.release().await.unwrap();
}
