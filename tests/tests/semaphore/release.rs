//! Releases: tombstones, and the minimum hold.

use std::collections::VecDeque;
use std::env;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use lambda_lock::ErrorKind;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{Late, World};
use serde_json::Value;

use crate::rows::size_of_all;
use crate::{
    AFTER_THE_LEASE, KEY, acquire_all, after_the_lease, digits, owners, permits, release_all, row, text, tombstones,
};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test]
async fn a_release_frees_only_its_own_permit() {
    let world = World::new().await;
    let mut held = acquire_all(&world.default_locks(), 3).await;
    let released = held.remove(1);
    released.release().await.unwrap();
    released.release().await.unwrap();
    let row = row(&world).await;
    assert_eq!(permits(&row), owners(&held));
    assert_eq!(tombstones(&row), owners([&released]));
    assert!(!released.is_valid());
}

#[tokio::test]
async fn a_dropped_permit_is_released_in_the_background() {
    let world = World::new().await;
    let locks = world.default_locks();
    drop(acquire_all(&locks, 2).await);
    locks.flush(Duration::from_mins(1)).await;
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn the_row_keeps_a_limited_number_of_tombstones() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let held = acquire_all(&locks, 1).await;
    for _ in 0..60 {
        locks.semaphore(KEY, 2).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(host.requests(), 1 + 2 * 60);
    let row = row(&world).await;
    assert_eq!(permits(&row), owners(&held));
    assert!((16..=17).contains(&tombstones(&row).len()), "{row:?}");
}

/// Replaces the permits of a full semaphore, `at_once` of them at a time, and checks the row after each round.
/// `LOCK_PAIRS=100000` makes more pairs of a release and an acquire.
async fn replaces_permits_in_a_bounded_row(at_once: usize, most_tombstones: usize, pairs_for_a_removal: u64) {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let mut held = VecDeque::from(acquire_all(&locks, 100).await);
    let pairs = env::var("LOCK_PAIRS").map_or(400, |pairs| pairs.parse().unwrap());
    for _ in 0..pairs / at_once {
        join_all(held.drain(..at_once).map(|permit| async move { permit.release().await.unwrap() })).await;
        let acquired = join_all((0..at_once).map(|_| locks.semaphore(KEY, 100).acquire().into_future())).await;
        held.extend(acquired.into_iter().map(Result::unwrap));
        let row = row(&world).await;
        assert_eq!(permits(&row), owners(&held));
        let (tombstones, bytes) = (tombstones(&row).len(), size_of_all(&row));
        assert!(tombstones <= most_tombstones, "{tombstones} tombstones");
        assert!(bytes <= 64 * 1024, "{bytes} bytes");
    }
    let pairs = u64::try_from(pairs).unwrap();
    let removals = host.requests() - 100 - 2 * pairs;
    assert!(removals <= 5 + pairs / pairs_for_a_removal, "{removals} requests removed tombstones");
}

#[tokio::test]
async fn a_full_row_whose_permits_are_replaced_one_by_one_does_not_grow() {
    replaces_permits_in_a_bounded_row(1, 64, 30).await;
}

#[tokio::test]
async fn a_full_row_whose_permits_are_replaced_ten_at_a_time_does_not_grow() {
    replaces_permits_in_a_bounded_row(10, 100, 5).await;
}

#[tokio::test]
async fn a_release_removes_tombstones_that_are_older_than_a_minute() {
    let world = World::new().await;
    release_all(acquire_all(&world.default_locks(), 5).await).await;
    let last = acquire_all(&world.default_locks(), 1).await;
    release_all(last).await;
    assert_eq!(tombstones(&row(&world).await).len(), 6);

    let host = world.host().clock_ahead(Duration::from_secs(59)).build();
    let younger = world.locks(&host).build().unwrap().semaphore(KEY, 1).acquire().await.unwrap();
    younger.release().await.unwrap();
    assert_eq!(tombstones(&row(&world).await).len(), 7);
    let host = world.host().clock_ahead(Duration::from_secs(62)).build();
    let older = world.locks(&host).build().unwrap().semaphore(KEY, 1).acquire().await.unwrap();
    older.release().await.unwrap();
    assert_eq!(tombstones(&row(&world).await), owners([&younger, &older]));
}

#[tokio::test]
async fn an_identity_releases_the_permit_that_has_replaced_its_own_old_tombstone() {
    let world = World::new().await;
    let bank = |ahead| world.locks(&world.host().clock_ahead(ahead).build()).build().unwrap().semaphore(KEY, 1);
    for later in [Duration::ZERO, HOUR] {
        let permit = bank(later).acquire().owner_from("workflow").await.unwrap();
        permit.release().await.unwrap();
        assert!(permits(&row(&world).await).is_empty());
    }
}

#[tokio::test]
async fn a_tombstone_that_became_a_permit_again_is_not_removed() {
    let world = World::new().await;
    let late = Late::updates(1..=1);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let released = locks.semaphore(KEY, 3).acquire().lease(HOUR).await.unwrap();
    released.release().await.unwrap();
    let ahead = Duration::from_secs(62);
    let two = [(); 2].map(|()| world.host().clock_ahead(ahead).build());
    let [first, second] = two.map(|host| (world.locks(&host).build().unwrap(), host));
    let (one, other) = (first.0.semaphore(KEY, 3), second.0.semaphore(KEY, 3));
    let (one, other) = (one.acquire().await.unwrap(), other.acquire().await.unwrap());
    one.release().await.unwrap();
    assert_eq!(tombstones(&row(&world).await), owners([&one]));
    // The duplicate takes a permit until the end of its lease.
    assert!(late.deliver(&world).await);
    assert_eq!(permits(&row(&world).await), owners([&released, &other]));

    let sent = second.1.requests();
    other.release().await.unwrap();
    assert_eq!(second.1.requests(), sent + 2);
    assert_eq!(permits(&row(&world).await), owners([&released]));
}

/// Removes the tombstones from the row in the refusal of an update.
#[derive(Debug)]
struct WithoutTombstones;

impl Intercept for WithoutTombstones {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if let Some(item) = answer.body.get_mut("Item").and_then(Value::as_object_mut) {
            item.retain(|_, value| value["M"].get("released_at").is_none());
        }
    }
}

#[tokio::test]
async fn a_repeated_release_is_done_even_without_its_tombstone() {
    for is_gone in [false, true] {
        let world = World::new().await;
        let mut host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2));
        if is_gone {
            host = host.intercept(WithoutTombstones);
        }
        let host = host.build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        release_all(acquire_all(&locks, 1).await).await;
        assert_eq!(host.requests(), 3);
        assert!(permits(&row(&world).await).is_empty());
    }
}

#[tokio::test]
async fn a_least_hold_counts_until_its_end() {
    let world = World::new().await;
    let host = world.host().build();
    let bank = world.locks(&host).build().unwrap().semaphore(KEY, 2);
    let held = bank.acquire().hold_at_least(HOUR).await.unwrap();
    let other = bank.acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert!(!held.is_valid());
    assert_eq!(permits(&row(&world).await), owners([&held, &other]));
    let error = bank.acquire().await.unwrap_err();
    let permit = error.holder().unwrap().permits().iter().find(|permit| permit.owner() == Some(held.owner())).unwrap();
    assert!(permit.is_current() && permit.has_released());
    assert!(permit.until() >= host.now() + HOUR - Duration::from_mins(1));

    // After an hour, both have ended.
    let host = world.host().clock_ahead(HOUR + AFTER_THE_LEASE).build();
    let next = world.locks(&host).build().unwrap().semaphore(KEY, 2).acquire().await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn a_least_hold_that_was_cleared_frees_the_permit() {
    let world = World::new().await;
    let bank = world.default_locks().semaphore(KEY, 1);
    let held = bank.acquire().hold_at_least(HOUR).await.unwrap();
    held.clear_hold_at_least();
    held.release().await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn a_repeated_release_with_a_least_hold_is_done() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let bank = world.locks_with_quick_retries(&host).build().unwrap().semaphore(KEY, 1);
    let held = bank.acquire().hold_at_least(HOUR).await.unwrap();
    held.release().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert_eq!(permits(&row(&world).await), owners([&held]));
}

/// A released permit whose first release, with a minimum hold, was not answered and has not arrived.
async fn released_late(world: &World, least: Duration) -> (lambda_lock::Lock, Late) {
    let late = Late::updates(2..=4);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = locks.semaphore(KEY, 1).acquire().hold_at_least(least).await.unwrap();
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    (held, late)
}

#[tokio::test]
async fn a_late_release_changes_nothing() {
    let world = World::new().await;
    let (held, late) = released_late(&world, HOUR).await;
    held.clear_hold_at_least();
    held.release().await.unwrap();
    let before = row(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(row(&world).await, before);
}

#[tokio::test]
async fn a_second_release_replaces_the_least_hold_of_the_first() {
    let world = World::new().await;
    let (held, late) = released_late(&world, HOUR).await;
    assert!(late.deliver(&world).await);
    assert_eq!(permits(&row(&world).await), owners([&held]));
    held.clear_hold_at_least();
    held.release().await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
}

#[tokio::test]
async fn a_release_whose_least_hold_was_replaced_is_done() {
    let world = World::new().await;
    let (held, late) = released_late(&world, Duration::from_secs(40)).await;
    assert!(late.deliver(&world).await);
    let host = world.host().clock_ahead(Duration::from_secs(50)).build();
    let next = world.locks(&host).build().unwrap().semaphore(KEY, 1).acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn a_release_after_the_permit_was_replaced_is_lost() {
    let world = World::new().await;
    let held = acquire_all(&world.default_locks(), 1).await;
    let next = after_the_lease(&world).1.semaphore(KEY, 1).acquire().await.unwrap();
    let error = held[0].release().await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn a_release_without_its_row_is_lost() {
    let world = World::new().await;
    let held = acquire_all(&world.default_locks(), 1).await;
    world.delete_row(KEY).await;
    assert!(held[0].release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_release_without_an_answer_can_be_repeated() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=4)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = acquire_all(&locks, 1).await;
    assert_eq!(held[0].release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!held[0].is_valid());
    held[0].release().await.unwrap();
    assert_eq!(host.requests(), 5);
}

#[tokio::test]
async fn a_release_without_an_answer_can_be_repeated_without_its_tombstone() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=4)).intercept(WithoutTombstones).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let held = acquire_all(&locks, 1).await;
    assert_eq!(held[0].release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    held[0].release().await.unwrap();
    assert!(permits(&row(&world).await).is_empty());
}

/// A row without permits, and with so many old tombstones, each of an identity.
async fn put_tombstones(world: &World, many: u64) {
    put_row_with(
        world,
        (0..many).map(|number| {
            let nonce = format!("{number:032}");
            let tombstone = [("released_at".to_owned(), digits(1000 + number)), ("nonce".to_owned(), text(&nonce))];
            (format!("permit:2#{number:02}#"), AttributeValue::M(tombstone.into()))
        }),
    )
    .await;
}

/// A row without permits, and with these tombstones.
async fn put_row_with(world: &World, tombstones: impl Iterator<Item = (String, AttributeValue)>) {
    let values = [("id", text(KEY)), ("status", text("SEMAPHORE")), ("permits", digits(0))];
    world.put_row(values.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(tombstones).collect()).await;
}

#[tokio::test]
async fn of_releases_that_leave_many_tombstones_one_in_eight_removes_more() {
    // The release itself removes 32 of them.
    for (many, requests) in [(63, 2), (64, 3), (65, 2), (71, 2), (72, 3)] {
        let world = World::new().await;
        put_tombstones(&world, many).await;
        let host = world.host().build();
        let permit = world.locks(&host).build().unwrap().semaphore(KEY, 1).acquire().await.unwrap();
        permit.release().await.unwrap();
        assert_eq!(host.requests(), requests, "{many} tombstones");
    }
}

#[tokio::test]
async fn a_release_of_a_permit_that_was_lost_is_one_request_whatever_it_would_remove() {
    let world = World::new().await;
    put_tombstones(&world, 3).await;
    let host = world.host().build();
    let lost = world.locks(&host).build().unwrap().semaphore(KEY, 1).acquire().await.unwrap();
    let (_, others) = after_the_lease(&world);
    let other = others.semaphore(KEY, 1).acquire().await.unwrap();
    let requests = host.requests();
    assert!(lost.release().await.unwrap_err().is_lost());
    assert_eq!(host.requests() - requests, 1);
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_release_removes_a_tombstone_whose_time_has_a_fraction() {
    let world = World::new().await;
    let tombstone = [("released_at".to_owned(), AttributeValue::N("1000.5".to_owned()))].into();
    put_row_with(&world, [("permit:0".to_owned(), AttributeValue::M(tombstone))].into_iter()).await;
    let host = world.host().build();
    let permit = world.locks(&host).build().unwrap().semaphore(KEY, 1).acquire().await.unwrap();
    let owner = owners([&permit]);
    permit.release().await.unwrap();
    assert_eq!((host.requests(), tombstones(&row(&world).await)), (2, owner));
}

#[tokio::test]
async fn a_resumed_permit_removes_the_tombstones_that_its_resumption_has_seen() {
    let world = World::new().await;
    put_tombstones(&world, 3).await;
    let locks = world.default_locks();
    let ticket = locks.semaphore(KEY, 1).acquire().await.unwrap().into_ticket();
    let resumed = locks.resume(&ticket).await.unwrap();
    resumed.release().await.unwrap();
    assert_eq!(tombstones(&row(&world).await), owners([&resumed]));
}
