//! Requests that arrive after their sender has stopped waiting for them.

use std::ops::RangeInclusive;
use std::time::Duration;

use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock::{Error, ErrorKind, Locks};
use lambda_lock_tests::invocation::{Counter, TRIES, all_tries_from, millis};
use lambda_lock_tests::request::{Purpose, purpose_of};
use lambda_lock_tests::{Late, StepsClock, Undated, World};
use serde_json::{Value, json};
use tokio::join;
use tokio::time::sleep;

use crate::subject::Subject;
use crate::{
    AFTER_THE_LEASE, LEASE, RETENTION, acquired, ahead, assert_free, assert_held_by, assert_refused, assert_withdrawn,
    at_pauses, rows,
};

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
    let (world, late) = (World::new().await, S::hold_back(all_tries_from(1)));
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
    assert_eq!(host.requests(), TRIES + 2, "its withdrawal finds no row, and writes one");
    assert!(!late.deliver(&world).await);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_late_attempt_of_a_refused_acquire_takes_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=1));
    let mut holder: S = acquired(&world.default_locks()).await;
    // The clock is ahead: the release below seems to be earlier than the request.
    let host = world.host().clock_ahead(Duration::from_millis(900)).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_refused::<S>(&locks).await;
    // The withdrawal is sent before the acquire fails. That of a set also frees the keys that the first try may have taken.
    let requests = if S::KEYS.len() == 1 { 2 + 1 } else { 2 + 2 };
    assert_eq!(host.requests(), requests);
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(host.requests(), requests);
    holder.release().await.unwrap();
    assert!(!late.deliver(&world).await);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_refusal_with_every_attempt_answered_sends_nothing_more<S: Subject>() {
    let world = World::new().await;
    let mut holder: S = acquired(&world.default_locks()).await;
    let (host, locks) = crate::host(&world);
    assert_refused::<S>(&locks).await;
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(host.requests(), 1);
    holder.release().await.unwrap();
}

pub(crate) async fn a_late_request_of_an_acquire_changes_nothing_after_its_release<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=2));
    let mut held: S = acquired(&an_hour_ahead(&world, &late)).await;
    held.release().await.unwrap();
    assert_late_requests_change_nothing::<S>(&world, &late).await;
}

pub(crate) async fn a_late_request_of_an_acquire_changes_nothing_after_its_withdrawal<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(all_tries_from(1)));
    let locks = an_hour_ahead(&world, &late);
    assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
    assert_late_requests_change_nothing::<S>(&world, &late).await;
}

pub(crate) async fn a_late_request_of_an_acquire_changes_nothing_after_it_was_freed_by_others<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=2));
    let _held: S = acquired(&an_hour_ahead(&world, &late)).await;
    free_by_force::<S>(&world.default_locks()).await;
    assert_late_requests_change_nothing::<S>(&world, &late).await;
}

/// Locks of a host some of whose requests are late, and whose clock is ahead of all others. No time in a row tells that a
/// request is late.
fn an_hour_ahead(world: &World, late: &Late) -> Locks {
    let host = world.host().later(Duration::from_hours(1)).intercept(late.clone()).build();
    world.locks_with_quick_retries(&host).build().unwrap()
}

/// Asserts that two late requests of an acquire that has ended change nothing: now, and after the next holder.
async fn assert_late_requests_change_nothing<S: Subject>(world: &World, late: &Late) {
    for _ in 0..2 {
        let before = rows::<S>(world).await;
        assert!(!late.deliver(world).await);
        assert_eq!(rows::<S>(world).await, before);
        assert_free::<S>(world).await;
    }
}

pub(crate) async fn a_late_duplicate_of_a_renewal_changes_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(2..=3));
    let host = world.host().intercept(late.clone()).build();
    let mut held: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    let end = held.expires_at();
    held.renew(2 * LEASE).await.unwrap();
    // The row has the end again that the late request has seen.
    while held.expires_at() != end {
        held.renew(end.duration_since(host.now()).unwrap()).await.unwrap();
    }
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
    assert_held_by(&world, &next).await;
    next.release().await.unwrap();
}

pub(crate) async fn a_late_attempt_of_an_unanswered_release_changes_nothing<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(all_tries_from(2)));
    let mut held: S = held_with(&world, &late).await;
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    held.release().await.unwrap();
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    assert_free::<S>(&world).await;
}

/// Longer than any row stays after its last request.
const FROZEN: Duration = Duration::from_hours(100);

/// Answers the first withdrawal as if a row had come meanwhile.
#[derive(Debug, Default)]
struct RefusesWithdrawal(Counter);

impl Intercept for RefusesWithdrawal {
    fn request(&self, operation: &str, request: &mut Value) {
        if purpose_of(operation, request) == Some(Purpose::Withdraw) && self.0.count() == 1 {
            let condition = request["ConditionExpression"].as_str().unwrap();
            request["ConditionExpression"] = format!("({condition}) AND attribute_exists(id)").into();
        }
    }

    fn answer(&self, _: &str, request: &Value, answer: &mut Answer) {
        let condition = request["ConditionExpression"].as_str().unwrap_or_default();
        if condition.ends_with(" AND attribute_exists(id)") {
            let is_semaphore = request.to_string().contains("SEMAPHORE");
            answer.body["Item"] = if is_semaphore {
                json!({ "status": { "S": "SEMAPHORE" }, "permits": { "N": "0" } })
            } else {
                json!({ "status": { "S": "INPROGRESS" }, "in_progress_expiration": { "N": "1" } })
            };
        }
    }
}

pub(crate) async fn a_withdrawal_is_dated_after_each_request_in_which_its_process_was_frozen<S: Subject>() {
    // The tries of the acquire are lost. The withdrawal learns that there is no row, and creates one. If that is refused, it asks
    // once more.
    for (refuses, requests) in [(false, TRIES + 2), (true, TRIES + 3)] {
        let world = World::new().await;
        let mut host = world.host().intercept(S::hold_back(all_tries_from(1)));
        if refuses {
            host = host.intercept(RefusesWithdrawal::default());
        }
        let last_but_one = requests - 1;
        let host = StepsClock::host(host, last_but_one, |host| host.advance_clock(FROZEN));
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
        assert_eq!(host.requests(), requests);
        let row = world.row(S::KEYS[0]).await.unwrap();
        let expiration: u64 = row["expiration"].as_n().unwrap().parse().unwrap();
        assert!(expiration * 1000 >= millis(host.now() + RETENTION) - 60_000, "{row:?}");
    }
}

pub(crate) async fn a_grant_whose_process_was_frozen_beyond_its_lease_is_freed<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let host = StepsClock::host(world.host(), 1, |host| host.advance_clock(LEASE + Duration::from_millis(100)));
    let Err(error) = S::acquire(&world.locks(&host).build().unwrap(), LEASE).await else { panic!("it was granted") };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // Before the error is returned, its number is given up, and it is freed.
    assert_eq!(host.requests(), 3);
    for key in S::KEYS {
        assert!(world.default_locks().get(*key).await.unwrap().unwrap().has_released(), "{key}");
    }
}

/// The first attempt is granted after its lease, and freed. The second one has the lock.
pub(crate) async fn after_a_late_grant_a_forced_release_loses_the_lock<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let host = StepsClock::host(world.host(), 1, |host| host.advance_clock(LEASE + Duration::from_millis(100)));
    let wait = at_pauses(Duration::from_secs(1), 2 * LEASE);
    let held = S::wait(&world.locks(&host).build().unwrap(), LEASE, wait).await;
    let mut held = held.unwrap_or_else(|error| panic!("{error}"));
    free_by_force::<S>(&world.default_locks()).await;
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

pub(crate) async fn a_release_by_force_frees_no_later_acquisition<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    // The three attempts of the SDK. The acquire asks again with the same nonce.
    let host = world.host().intercept(S::lose_answers(all_tries_from(1))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let delay = 2 * AFTER_THE_LEASE;
    let wait = at_pauses(delay, 2 * delay);
    let tools = ahead(&world, Duration::from_millis(200));
    let others = async {
        sleep(LEASE / 5).await;
        let mut seen = Vec::new();
        for key in S::KEYS {
            seen.push(tools.get(*key).await.unwrap().unwrap());
        }
        sleep(AFTER_THE_LEASE).await;
        let mut next: S = acquired(&tools).await;
        next.release().await.unwrap();
        seen
    };
    let (waited, seen) = join!(S::wait(&locks, LEASE, wait), others);
    let mut held = waited.unwrap_or_else(|error| panic!("{error}"));
    for (key, seen) in S::KEYS.iter().zip(&seen) {
        let is_semaphore = !seen.permits().is_empty();
        assert_eq!(tools.force_release(*key, seen).await.unwrap(), is_semaphore);
    }
    held.renew(LEASE).await.unwrap();
    held.release().await.unwrap();
}

pub(crate) async fn free_by_force<S: Subject>(tools: &Locks) {
    for key in S::KEYS {
        let seen = tools.get(*key).await.unwrap().unwrap();
        assert!(tools.force_release(*key, &seen).await.unwrap());
    }
}

/// The first attempt takes the key, and its answers are lost. The operator frees it before the second one.
pub(crate) async fn an_acquire_that_was_freed_by_force_between_two_attempts_has_the_key<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let host = world.host().intercept(S::lose_answers(all_tries_from(1))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let pause = Duration::from_secs(1);
    let freed = async {
        sleep(pause / 2).await;
        free_by_force::<S>(&world.default_locks()).await;
    };
    let (waited, ()) = join!(S::wait(&locks, LEASE, at_pauses(pause, pause)), freed);
    let mut held = waited.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(host.requests(), TRIES + 2, "an operator's release refuses the second attempt once");
    held.renew(LEASE).await.unwrap();
    assert_held_by(&world, &held).await;
    held.release().await.unwrap();
}

/// The third attempt of the acquire learns that others have freed what the first one took. The second one is late.
pub(crate) async fn a_late_attempt_of_an_acquire_freed_by_force_takes_nothing_minutes_later<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    // The three tries of the first attempt are not answered, and those of the second one are late.
    let late = S::hold_back(all_tries_from(4));
    let host = world.host().intercept(S::lose_answers(all_tries_from(1))).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let pause = Duration::from_secs(45);
    let wait = at_pauses(pause, 2 * pause);
    let others = async {
        sleep(pause / 20).await;
        let tools = world.default_locks();
        free_by_force::<S>(&tools).await;
        acquired::<S>(&tools).await
    };
    let (waited, mut other) = join!(S::wait(&locks, LEASE, wait), others);
    let error = waited.err().unwrap();
    assert!(error.is_held(), "{error}");
    // The number that another acquire gives up takes the place of the one that this acquire has given up.
    let silent = world.host().intercept(S::hold_back(all_tries_from(1))).build();
    let locks = world.locks_with_quick_retries(&silent).build().unwrap();
    assert_withdrawn(&locks, S::acquire(&locks, LEASE).await).await;
    other.release().await.unwrap();
    assert!(!late.deliver(&world).await);
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_late_attempt_takes_nothing_after_a_withdrawal_by_a_clock_set_back<S: Subject>() {
    assert_withdrawn_by_a_clock_set_back(async |locks: &Locks| S::acquire(locks, LEASE).await).await;
}

/// The acquires differ in their nonce.
pub(crate) async fn assert_withdrawn_by_a_clock_set_back<S: Subject>(
    acquire: impl AsyncFn(&Locks) -> Result<S, Error>,
) {
    tokio::time::pause();
    for tries in LATE_TRIES {
        let set_back = |host: &Host| host.set_clock_back(Duration::from_millis(1700));
        let late = S::hold_back(tries.clone());
        let world = used_after_a_withdrawal(&late, Duration::from_millis(900), set_back, &acquire).await;
        assert!(!late.deliver(&world).await, "{tries:?}");
    }
}

/// All tries of an acquire are late; or the first one is applied, and the answer to it is lost.
const LATE_TRIES: [RangeInclusive<u32>; 2] = [1..=3, 2..=3];

/// Withdraws an acquire whose clock is ahead, and is set back before the withdrawal. Some of its tries are late. The next
/// acquire has the keys at once, and releases them.
async fn used_after_a_withdrawal<S: Subject>(
    late: &Late,
    ahead: Duration,
    set_back: fn(&Host),
    acquire: impl AsyncFn(&Locks) -> Result<S, Error>,
) -> World {
    let world = World::in_virtual_time().await;
    let host = world.host().clock_ahead(ahead).intercept(Undated);
    let host = host.intercept(S::lose_answers(all_tries_from(1))).intercept(late.clone());
    let host = StepsClock::host(host, TRIES, set_back);
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_withdrawn(&locks, acquire(&locks).await).await;
    let others = world.default_locks();
    acquire(&others).await.unwrap_or_else(|error| panic!("{error}")).release().await.unwrap();
    world
}

pub(crate) async fn a_withdrawal_by_a_clock_that_was_hours_ahead_blocks_nobody<S: Subject>() {
    tokio::time::pause();
    for tries in LATE_TRIES {
        let set_back = |host: &Host| host.set_clock_back(Duration::from_hours(2));
        let acquire = async |locks: &Locks| S::acquire(locks, LEASE).await;
        used_after_a_withdrawal(&S::hold_back(tries), Duration::from_hours(2), set_back, acquire).await;
    }
}

pub(crate) async fn a_release_after_an_attempt_by_a_clock_that_was_hours_ahead_blocks_nobody<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let host =
        world.host().clock_ahead(Duration::from_hours(2)).intercept(Undated).intercept(S::hold_back(all_tries_from(1)));
    let host = StepsClock::host(host, TRIES, |host| host.set_clock_back(Duration::from_hours(2)));
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let mut held = S::wait(&locks, LEASE, LEASE.into()).await.unwrap_or_else(|error| panic!("{error}"));
    held.release().await.unwrap();
    acquired::<S>(&world.default_locks()).await.release().await.unwrap();
}

/// The clock of the acquire is set back before its release.
pub(crate) async fn a_late_attempt_of_an_acquire_that_has_succeeded_takes_nothing_after_a_holder<S: Subject>() {
    tokio::time::pause();
    // The first attempt was applied, and the first try of the second one, which is the fourth request, is late; or all tries of
    // the first attempt are.
    for (tries, stepped) in [(4..=4, TRIES + 2), (all_tries_from(1), TRIES)] {
        let (world, late) = (World::in_virtual_time().await, S::hold_back(tries.clone()));
        let host = world.host().clock_ahead(Duration::from_millis(900));
        let host = host.intercept(S::lose_answers(all_tries_from(1))).intercept(late.clone());
        let host = StepsClock::host(host, stepped, |host| host.set_clock_back(Duration::from_millis(900)));
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let wait = at_pauses(Duration::from_millis(500), LEASE);
        let mut held = S::wait(&locks, LEASE, wait).await.unwrap_or_else(|error| panic!("{error}"));
        held.release().await.unwrap();
        // The step of the clock is no part of the hold.
        let row = world.row(S::KEYS[0]).await.unwrap();
        let took: f64 = row["hold"].as_n().unwrap().parse().unwrap();
        assert!(took < 100.0, "{took} ms");
        acquired::<S>(&world.default_locks()).await.release().await.unwrap();
        assert!(!late.deliver(&world).await, "{tries:?}");
    }
}
