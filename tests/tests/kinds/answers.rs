//! Requests that DynamoDB applied although their answer was lost.

use std::ops::RangeInclusive;
use std::time::Duration;

use lambda_lock::embedded::{Host, Intercept};
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{HideRows, TRIES, all_tries_from};
use serde_json::Value;

use crate::subject::Subject;
use crate::{LEASE, acquired, assert_free, assert_held_by, assert_withdrawn, at_pauses, rows};

/// Removes the tokens of transactions, as if DynamoDB had forgotten them after ten minutes.
#[derive(Debug)]
struct ForgetTokens;

impl Intercept for ForgetTokens {
    fn request(&self, _: &str, request: &mut Value) {
        request.as_object_mut().unwrap().remove("ClientRequestToken");
    }
}

/// A world, and locks of a host in it that loses these answers.
async fn losing<S: Subject>(which: RangeInclusive<u32>) -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(which)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    (world, host, locks)
}

/// The same twice: in the second world, DynamoDB does not know a transaction that the SDK repeats.
async fn losing_twice<S: Subject>(which: RangeInclusive<u32>) -> [(World, Host, Locks); 2] {
    let world = World::new().await;
    let host = world.host().intercept(ForgetTokens).intercept(S::lose_answers(which.clone())).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    [losing::<S>(which).await, (world, host, locks)]
}

pub(crate) async fn an_acquire_whose_answer_was_lost_succeeds<S: Subject>() {
    for (world, host, locks) in losing_twice::<S>(1..=1).await {
        let mut held: S = acquired(&locks).await;
        assert_eq!(host.requests(), 2);
        assert_held_by(&world, &held).await;
        held.renew(2 * LEASE).await.unwrap();
        held.release().await.unwrap();
        assert_free::<S>(&world).await;
    }
}

pub(crate) async fn an_acquire_without_any_answer_succeeds_at_the_next_attempt<S: Subject>() {
    let (world, host, locks) = losing::<S>(all_tries_from(1)).await;
    let waited = S::wait(&locks, LEASE, at_pauses(Duration::from_millis(2), LEASE)).await;
    let mut held = waited.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(host.requests(), TRIES + 1);
    // The lease is the one that the first request wrote.
    assert_held_by(&world, &held).await;
    held.release().await.unwrap();
}

pub(crate) async fn an_acquire_whose_answer_was_lost_knows_the_hold_time_of_the_row<S: Subject>() {
    let (_world, host, locks) = losing::<S>(3..=3).await;
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
    for (world, host, locks) in losing_twice::<S>(2..=2).await {
        let mut held: S = acquired(&locks).await;
        held.renew(3 * LEASE).await.unwrap();
        assert_eq!(host.requests(), 3);
        assert!(held.expires_at() > host.now() + 2 * LEASE);
        assert_held_by(&world, &held).await;
        held.release().await.unwrap();
        assert_free::<S>(&world).await;
    }
}

pub(crate) async fn a_renewal_after_an_unanswered_renewal_succeeds<S: Subject>() {
    let (world, _, locks) = losing::<S>(all_tries_from(2)).await;
    let mut held: S = acquired(&locks).await;
    let end = held.expires_at();
    assert_eq!(held.renew(2 * LEASE).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(held.expires_at(), end);
    held.renew(3 * LEASE).await.unwrap();
    assert_held_by(&world, &held).await;
    held.release().await.unwrap();
}

pub(crate) async fn a_release_whose_answer_was_lost_succeeds<S: Subject>() {
    for (world, host, locks) in losing_twice::<S>(2..=2).await {
        let mut held: S = acquired(&locks).await;
        held.release().await.unwrap();
        assert_eq!(host.requests(), 3);
        assert_free::<S>(&world).await;
    }
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
    let (world, host, locks) = losing::<S>(all_tries_from(1)).await;
    assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
    assert_eq!(host.requests(), TRIES + 2, "it gives its number up, and frees what it has");
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_release_that_was_not_answered_is_repeated_after_the_next_acquire<S: Subject>() {
    let (world, host, locks) = losing::<S>(all_tries_from(2)).await;
    let mut held: S = acquired(&locks).await;
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let mut next: S = acquired(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    held.release().await.unwrap();
    assert_eq!(host.requests(), 1 + TRIES + 1);
    assert_eq!(rows::<S>(&world).await, before);
    next.release().await.unwrap();
}
