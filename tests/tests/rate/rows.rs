//! The row of a rate, and what reads it.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::{Undated, World};

use crate::{KEY, SECOND};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test]
async fn a_row_has_one_number_beside_its_key_and_its_ttl() {
    let world = World::new().await;
    let locks = world.default_locks();
    locks.rate(KEY, 10, SECOND).pass().await.unwrap();
    let row = world.row(KEY).await.unwrap();
    let mut names: Vec<_> = row.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["due", "expiration", "id", "status"]);
    let number = |name: &str| row[name].as_n().unwrap().parse::<u64>().unwrap();
    // A day after the call is due, with the clock skew.
    assert!((86_400..=86_403).contains(&(number("expiration") - number("due") / 1_000_000)), "{row:?}");
}

#[tokio::test]
async fn a_reader_sees_until_when_no_call_is_due() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    locks.rate(KEY, 1, HOUR).pass().await.unwrap();
    let holder = locks.get(KEY).await.unwrap().unwrap();
    assert!(holder.is_rate() && holder.is_current() && !holder.is_semaphore() && !holder.is_completed());
    let until = holder.until().duration_since(host.now()).unwrap();
    // The row has whole milliseconds, rounded up.
    let latest = HOUR + Duration::from_millis(1);
    assert!(until <= latest && until + Duration::from_secs(10) >= HOUR, "{until:?}");
    let listed = locks.list().next_page().await.unwrap().unwrap().remove(0).holder.unwrap();
    assert!(listed.is_rate() && listed.until() == holder.until());
    host.advance_clock(HOUR);
    assert!(!locks.get(KEY).await.unwrap().unwrap().is_current());
}

#[tokio::test]
async fn a_release_by_force_lets_the_next_call_pass() {
    let world = World::new().await;
    let (host, behind) = (world.host().build(), world.host().clock_behind(SECOND).build());
    let (locks, next) = (world.locks(&host).build().unwrap(), world.locks(&behind).build().unwrap());
    let (wrong, bank) = (locks.rate(KEY, 1, 24 * HOUR), next.rate(KEY, 1, HOUR));
    for is_refusal in [false, true] {
        wrong.pass().await.unwrap();
        let error = bank.pass_within(HOUR).await.unwrap_err();
        let seen = if is_refusal { error.holder().cloned() } else { locks.get(KEY).await.unwrap() };
        let seen = seen.unwrap();
        assert!(!locks.release_identity(KEY, "an execution").await.unwrap());
        // Twice, as if the first answer was lost.
        for _ in 0..2 {
            assert!(locks.force_release(KEY, &seen).await.unwrap());
        }
        assert!(!locks.get(KEY).await.unwrap().unwrap().is_current());
        bank.pass().await.unwrap();
        bank.pass().await.unwrap_err();
        let before = world.row(KEY).await;
        assert!(!locks.force_release(KEY, &seen).await.unwrap(), "a call has passed since");
        assert_eq!(world.row(KEY).await, before);
        host.advance_clock(HOUR);
        behind.advance_clock(HOUR);
    }
}

#[tokio::test]
async fn an_old_row_is_deleted_and_a_new_one_is_not() {
    let world = World::new().await;
    let (host, old) =
        (world.host().build(), world.host().clock_behind(Duration::from_hours(50)).intercept(Undated).build());
    let locks = world.locks(&host).build().unwrap();
    world.locks(&old).build().unwrap().rate("old", 1, SECOND).pass().await.unwrap();
    locks.rate("new", 1, SECOND).pass().await.unwrap();
    assert_eq!(locks.delete_expired().await.unwrap(), 1);
    assert!(world.row("old").await.is_none() && world.row("new").await.is_some());
}

#[tokio::test]
async fn a_key_of_another_kind_is_refused_and_stays() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("lock").await.unwrap();
    let permit = locks.semaphore("semaphore", 2).acquire().await.unwrap();
    locks.rate("rate", 1, HOUR).pass().await.unwrap();
    let rows = async || [world.row("lock").await, world.row("semaphore").await, world.row("rate").await];
    let before = rows().await;
    for (error, expected) in [
        (locks.rate("lock", 1, SECOND).pass().await.unwrap_err(), "is a lock or a record of idempotency, not a rate"),
        (
            locks.rate("lock", 1, SECOND).pause_for(HOUR).await.unwrap_err(),
            "is a lock or a record of idempotency, not a rate",
        ),
        (locks.rate("semaphore", 1, SECOND).pass().await.unwrap_err(), "is a semaphore, not a rate"),
        (locks.acquire("rate").await.unwrap_err(), "is a rate, not a lock"),
        (locks.semaphore("rate", 2).acquire().await.unwrap_err(), "is a rate, not a semaphore"),
        (locks.acquire_all(["rate", "other"]).await.unwrap_err(), "is a rate, not a lock"),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(rows().await, before);
    lock.release().await.unwrap();
    permit.release().await.unwrap();
}

#[tokio::test]
async fn a_row_with_another_value_is_malformed_and_stays() {
    let world = World::new().await;
    let locks: Locks = world.default_locks();
    for due in [
        Some(AttributeValue::S("soon".to_owned())),
        Some(AttributeValue::N("-1".to_owned())),
        Some(AttributeValue::N("1e100".to_owned())),
        None,
    ] {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let mut row =
            [("id", text(KEY)), ("status", text("RATE"))].map(|(name, value)| (name.to_owned(), value)).to_vec();
        row.extend(due.map(|due| ("due".to_owned(), due)));
        let row: lambda_lock_tests::Row = row.into_iter().collect();
        world.put_row(row).await;
        let before = world.row(KEY).await;
        let error = locks.rate(KEY, 10, SECOND).pass().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error}");
        assert!(error.to_string().contains("`due`"), "{error}");
        assert_eq!(world.row(KEY).await, before);
    }
}
