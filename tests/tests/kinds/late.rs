//! Requests that arrive after their sender has stopped waiting for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock::embedded::{Host, Intercept};
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::request::{Purpose, purpose_of};
use lambda_lock_tests::{Late, World};
use serde_json::Value;

use crate::subject::{Ability, Subject, is_excepted};
use crate::{LEASE, acquired, assert_free, assert_held, rows};

/// Acquires on a host of which these writes are held back.
async fn held_with<S: Subject>(world: &World, late: &Late) -> S {
    let host = world.host().intercept(late.clone()).build();
    acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await
}

pub(crate) async fn a_late_duplicate_of_an_acquire_takes_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=2));
    let mut held: S = held_with(&world, &late).await;
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    held.release().await.unwrap();
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_late_attempt_of_an_unanswered_acquire_takes_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=3));
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let Err(error) = S::acquire(&locks, LEASE).await else { panic!("it was granted") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(locks.flush(Duration::from_mins(1)).await);
    assert!(!late.deliver(&world).await);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_late_attempt_of_a_refused_acquire_takes_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=1));
    let mut holder: S = acquired(&world.default_locks()).await;
    // The clock is ahead: the release below seems to be earlier than the request.
    let host = world.host().clock_ahead(Duration::from_millis(900)).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    crate::assert_refused::<S>(&locks).await;
    assert!(locks.flush(Duration::from_mins(1)).await);
    holder.release().await.unwrap();
    assert!(!late.deliver(&world).await);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_late_duplicate_of_a_renewal_changes_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(2..=3));
    let mut held: S = held_with(&world, &late).await;
    held.renew(2 * LEASE).await.unwrap();
    held.renew(3 * LEASE).await.unwrap();
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    held.release().await.unwrap();
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_late_duplicate_of_a_release_frees_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(2..=2));
    let mut held: S = held_with(&world, &late).await;
    held.release().await.unwrap();
    let mut next: S = acquired(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    assert_held::<S>(&world).await;
    next.release().await.unwrap();
}

pub(crate) async fn a_late_attempt_of_an_unanswered_release_changes_nothing<S: Subject>() {
    if is_excepted::<S>(Ability::RepeatRelease) {
        return;
    }
    let (world, late) = (World::new().await, S::hold_back(2..=4));
    let mut held: S = held_with(&world, &late).await;
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    held.release().await.unwrap();
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_late_renewal_changes_nothing_after_a_resumption<S: Subject>() {
    late_after_a_resumption::<S>(false).await;
}

pub(crate) async fn a_late_release_frees_nothing_after_a_resumption<S: Subject>() {
    late_after_a_resumption::<S>(true).await;
}

async fn late_after_a_resumption<S: Subject>(releases: bool) {
    if is_excepted::<S>(Ability::HandOver) {
        return;
    }
    let (world, late) = (World::new().await, S::hold_back(2..=4));
    let mut held: S = held_with(&world, &late).await;
    let unanswered = if releases { held.release().await } else { held.renew(2 * LEASE).await };
    assert_eq!(unanswered.unwrap_err().kind(), ErrorKind::Unavailable);
    let resumed = world.default_locks().resume(&held.into_ticket()).await.unwrap();
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    resumed.release().await.unwrap();
    assert!(!late.deliver(&world).await);
    assert_free::<S>(&world).await;
}

const FROZEN: Duration = Duration::from_hours(100);

/// Freezes the host while its first withdrawal is under way, which another writer of the row prevents.
#[derive(Clone, Debug, Default)]
struct Frozen {
    host: Arc<OnceLock<Host>>,
    has_been: Arc<AtomicBool>,
}

impl Intercept for Frozen {
    fn request(&self, operation: &str, request: &mut Value) {
        if purpose_of(operation, request) == Some(Purpose::Withdraw) && !self.has_been.swap(true, Ordering::Relaxed) {
            let condition = request["ConditionExpression"].as_str().unwrap();
            let name = request["ExpressionAttributeNames"].as_object().unwrap().keys().next().unwrap();
            let condition = format!("({condition}) AND NOT (attribute_exists({name}) OR attribute_not_exists({name}))");
            request["ConditionExpression"] = condition.into();
            self.host.get().unwrap().advance_clock(FROZEN);
        }
    }
}

pub(crate) async fn a_withdrawal_of_a_frozen_process_is_dated_by_its_last_request<S: Subject>() {
    let (world, frozen) = (World::new().await, Frozen::default());
    let host = world.host().intercept(S::hold_back(1..=3)).intercept(frozen.clone()).build();
    frozen.host.set(host.clone()).unwrap();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let Err(error) = S::acquire(&locks, LEASE).await else { panic!("it was granted") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(locks.flush(Duration::from_mins(1)).await);
    let row = world.row(S::KEYS[0]).await.unwrap();
    let expiration: u64 = row["expiration"].as_n().unwrap().parse().unwrap();
    assert!(frozen.has_been.load(Ordering::Relaxed));
    assert!(expiration * 1000 >= millis(host.now() + Duration::from_mins(15)), "{row:?}");
}
