//! `Locks::list`: the rows of a table, page by page.

use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::{AttributeValue, ScalarAttributeType};
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{ErrorKind, Holder};
use lambda_lock_tests::invocation::{Counter, millis};
use lambda_lock_tests::{Row, Undated, World};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{completed, in_progress, listed, locks_on, ms, number, s, text, world_with_keys, world_without_ttl};

#[tokio::test]
async fn a_list_has_rows_that_are_held_released_crashed_or_completed() {
    let world = world_without_ttl().await;
    let (host, locks) = locks_on(&world, world.host());
    let held = locks.acquire("held").holder("a holder").data("not read").await.unwrap();
    locks.acquire("released").await.unwrap().release().await.unwrap();
    let kept = locks.acquire("kept").min_hold(s(60)).await.unwrap();
    kept.release().await.unwrap();
    let crashed = locks_on(&world, world.host().clock_behind(s(60)).intercept(Undated))
        .1
        .acquire("crashed")
        .lease(s(10))
        .await
        .unwrap();
    completed(&locks).run(&"completed".to_owned(), async |_| Ok("not read".to_owned())).await.unwrap();
    world.put_row(in_progress("of another library", millis(host.now() + s(60)))).await;

    let requests = host.requests();
    let listed = listed(&locks).await;
    assert_eq!(host.requests() - requests, 1);
    let state = |key: &str| {
        let holder = listed[key].as_ref().unwrap();
        (holder.is_current(), holder.has_released(), holder.is_completed())
    };
    assert_eq!(listed.len(), 6);
    assert_eq!(state("held"), (true, false, false));
    assert_eq!(state("released"), (false, true, false));
    assert_eq!(state("kept"), (true, true, false));
    assert_eq!(state("crashed"), (false, false, false));
    assert_eq!(state("completed"), (true, true, true));
    assert_eq!(state("of another library"), (true, false, false));
    let holder = listed["held"].as_ref().unwrap();
    assert_eq!((holder.name(), holder.owner()), (Some("a holder"), Some(held.owner())));
    assert_eq!((holder.fence(), holder.since()), (Some(held.fence()), Some(held.acquired_at())));
    assert_eq!(holder.until(), held.expires_at() + s(1));
    assert!(listed.values().all(|holder| holder.as_ref().unwrap().data().is_none()));
    // `get` agrees on each row.
    for (key, listed) in &listed {
        let (listed, read) = (listed.as_ref().unwrap(), locks.get(key).await.unwrap().unwrap());
        let of = |holder: &Holder| (holder.owner().map(str::to_owned), holder.until(), holder.has_released());
        assert_eq!(of(listed), of(&read));
    }
    held.release().await.unwrap();
    drop(crashed);
}

#[tokio::test]
async fn get_and_list_return_the_length_of_the_queue() {
    let world = World::new().await;
    let locks = world.default_locks();
    let read = async || locks.get("nightly").await.unwrap().unwrap().waiters();
    let waiters = async || (read().await, listed(&locks).await["nightly"].as_ref().unwrap().waiters());
    let lock = locks.acquire("nightly").await.unwrap();
    assert_eq!(waiters().await, (0, 0));
    let mut waiting = Vec::new();
    for length in 1..=2 {
        let acquire = locks.acquire("nightly").wait(s(30));
        waiting.push(tokio::spawn(async { acquire.await?.release().await }));
        while read().await < length {
            sleep(ms(1)).await;
        }
    }
    assert_eq!(waiters().await, (2, 2));
    let error = locks.acquire("nightly").await.unwrap_err();
    assert_eq!(error.holder().unwrap().waiters(), 2, "as a refusal says");
    lock.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    assert_eq!(waiters().await, (0, 0), "all have been served");
}

/// Denies access to the first read of an item.
#[derive(Debug, Default)]
struct DenyOnce(Counter);

impl Intercept for DenyOnce {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "GetItem" && self.0.count() == 1 {
            answer.status = 400;
            answer.body = json!({ "__type": "com.amazon.coral.service#AccessDeniedException", "Message": "no" });
        }
    }
}

#[tokio::test]
async fn a_page_whose_semaphore_cannot_be_read_is_an_error_and_can_be_read_again() {
    let world = World::new().await;
    let permit = world.default_locks().semaphore("bank", 2).acquire().await.unwrap();
    let (_, locks) = locks_on(&world, world.host().intercept(DenyOnce::default()));
    let mut list = locks.list();
    assert_eq!(list.next_page().await.unwrap_err().kind(), ErrorKind::AccessDenied);
    let rows = list.next_page().await.unwrap().unwrap();
    assert!(rows[0].holder.as_ref().unwrap().is_current());
    permit.release().await.unwrap();
}

#[tokio::test]
async fn a_list_has_only_the_rows_of_its_locks() {
    let world = world_with_keys(&[("PK", ScalarAttributeType::S), ("SK", ScalarAttributeType::S)]).await;
    let host = world.host().build();
    let settings = || world.locks(&host).partition_key("PK").sort_key("SK", "LOCK").key_prefix("app#");
    let locks = settings().build().unwrap();
    let _lock = locks.acquire("ours").await.unwrap();
    let others = [settings().key_prefix("other#"), settings().sort_key("SK", "ANOTHER"), settings().key_prefix("ap")];
    let mut held = Vec::new();
    for other in others {
        held.push(other.build().unwrap().acquire("theirs").await.unwrap());
    }
    let foreign = |pk: &str, sk: &str, status: Option<AttributeValue>| {
        let keys = Row::from([("PK".to_owned(), text(pk)), ("SK".to_owned(), text(sk))]);
        keys.into_iter().chain(status.map(|status| ("status".to_owned(), status))).collect::<Row>()
    };
    // Orders without a status, with a status of their own, and with a number as status.
    world.put_row(foreign("app#order", "LOCK", None)).await;
    world.put_row(foreign("app#shipped", "LOCK", Some(text("SHIPPED")))).await;
    world.put_row(foreign("app#counted", "LOCK", Some(number(1)))).await;
    world.put_row(foreign("app#item", "ITEM", Some(text("INPROGRESS")))).await;

    let listed = listed(&locks).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["ours"]);
    let mut list = locks.list();
    list.next_page().await.unwrap();
    assert_eq!(list.rows_read(), 8);
    for lock in held {
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_malformed_row_is_listed_as_an_error() {
    let world = world_without_ttl().await;
    let locks = world.default_locks();
    let _lock = locks.acquire("well").await.unwrap();
    let mut fenceless = in_progress("not a number", 1);
    fenceless.insert("fence".to_owned(), text("x"));
    world.put_row(fenceless).await;
    let mut endless = in_progress("endless", 1);
    endless.insert("status".to_owned(), text("COMPLETED"));
    world.put_row(endless).await;
    // A row in progress without an end is no lock row.
    let job = Row::from([("id".to_owned(), text("job")), ("status".to_owned(), text("INPROGRESS"))]);
    world.put_row(job).await;
    let listed = listed(&locks).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["endless", "not a number", "well"]);
    assert!(listed["well"].is_ok());
    for (key, says) in [("endless", "`expiration`"), ("not a number", "`fence` is not a number")] {
        let error = listed[key].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MalformedRow);
        assert_eq!(error.key(), key);
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Keeps each scan, and the size of its answer.
#[derive(Clone, Debug, Default)]
struct Scans(Arc<Mutex<Vec<(Value, usize)>>>);

impl Intercept for Scans {
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        if operation == "Scan" {
            self.0.lock().unwrap().push((request.clone(), answer.body.to_string().len()));
        }
    }
}

/// How many rows are read twice: the embedded engine also counts the row that no longer fits into a page.
fn counted_twice(pages: usize) -> u64 {
    let is_embedded = std::env::var("LOCK_TEST_ENDPOINT").is_err();
    if is_embedded { pages as u64 - 1 } else { 0 }
}

#[tokio::test]
async fn a_list_spans_several_pages_and_does_not_read_data() {
    let world = world_without_ttl().await;
    let scans = Scans::default();
    let (_, locks) = locks_on(&world, world.host().intercept(scans.clone()));
    // 2.5 MiB in total; a page reads 1 MiB.
    let large = "x".repeat(256 * 1024);
    for index in 0..10 {
        locks.acquire(format!("large {index}")).data(large.clone()).await.unwrap().release().await.unwrap();
    }
    let (mut list, mut keys, mut pages) = (locks.list(), Vec::new(), Vec::new());
    while let Some(page) = list.next_page().await.unwrap() {
        pages.push(list.rows_read());
        keys.extend(page.into_iter().map(|row| row.key));
    }
    keys.sort();
    assert_eq!(keys, (0..10).map(|index| format!("large {index}")).collect::<Vec<_>>());
    assert!(pages.len() >= 3, "{pages:?}");
    assert!(pages.is_sorted(), "{pages:?}");
    assert_eq!(pages.last(), Some(&(10 + counted_twice(pages.len()))));
    let scans = scans.0.lock().unwrap();
    assert_eq!(scans.len(), pages.len());
    for (request, bytes) in &*scans {
        assert_eq!(request["ConsistentRead"], true);
        assert!(*bytes < 10_000, "{bytes} bytes");
    }
}

/// Fails all scans after the first until its flag is set.
#[derive(Clone, Debug, Default)]
struct Outage(Arc<Mutex<(u32, bool)>>);

impl Intercept for Outage {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        let mut state = self.0.lock().unwrap();
        if operation == "Scan" {
            state.0 += 1;
            if state.0 > 1 && !state.1 {
                answer.status = 400;
                answer.body = json!({ "__type": "AccessDeniedException" });
            }
        }
    }
}

#[tokio::test]
async fn a_page_can_be_requested_again_after_an_error() {
    let world = world_without_ttl().await;
    let outage = Outage::default();
    let (_, locks) = locks_on(&world, world.host().intercept(outage.clone()));
    let large = "x".repeat(380 * 1024);
    for index in 0..5 {
        locks.acquire(format!("{index}")).data(large.clone()).await.unwrap().release().await.unwrap();
    }
    let mut list = locks.list();
    let mut keys: Vec<_> = list.next_page().await.unwrap().unwrap().into_iter().map(|row| row.key).collect();
    let read = list.rows_read();
    assert!(read < 5);
    for _ in 0..2 {
        assert_eq!(list.next_page().await.unwrap_err().kind(), ErrorKind::AccessDenied);
        assert_eq!(list.rows_read(), read);
    }
    outage.0.lock().unwrap().1 = true;
    let mut pages = 1;
    while let Some(page) = list.next_page().await.unwrap() {
        pages += 1;
        keys.extend(page.into_iter().map(|row| row.key));
    }
    keys.sort();
    assert_eq!(keys, ["0", "1", "2", "3", "4"]);
    assert_eq!(list.rows_read(), 5 + counted_twice(pages));
}

#[tokio::test]
async fn a_list_of_an_empty_table_is_empty_and_of_a_missing_table_an_error() {
    let world = World::new().await;
    assert!(listed(&world.default_locks()).await.is_empty());
    let missing = World::without_table();
    assert_eq!(missing.default_locks().list().next_page().await.unwrap_err().kind(), ErrorKind::TableNotFound);
}
