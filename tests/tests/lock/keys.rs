//! Keys: which are distinct, which are rejected, and how they share a table with other entities.

use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::{ErrorKind, Lock};
use lambda_lock_tests::{Row, World};

use crate::{LEASE, assert_contains, text, transact};

#[tokio::test]
async fn similar_keys_do_not_interfere() {
    let world = World::new().await;
    let (plain, prefixed) = (world.default_locks(), world.locks(&world.host().build()));
    let prefixed = prefixed.key_prefix("prefix#").build().unwrap();
    let long = "k".repeat(2047);
    let long = [format!("{long}1"), format!("{long}2")];
    // They differ in case, in blanks, in the place of a separator, in the composition of é, or in the last of 2,048
    // bytes.
    let keys = ["job", "Job", "JOB", " job", "job ", "a#bc", "a#b#c", "ab#c", "é", "e\u{301}", "\0", "🔒"];
    let keys = keys.into_iter().chain(long.iter().map(String::as_str));
    let mut held = Vec::new();
    for key in keys {
        held.push(plain.acquire(key).await.unwrap_or_else(|error| panic!("{key:?}: {error}")));
        assert!(plain.try_acquire(key).await.unwrap().is_none());
    }
    held.push(prefixed.acquire("job").await.unwrap());
    let row = world.row("prefix#job").await.unwrap();
    assert_eq!(row["owner"], text(held.last().unwrap().owner()));
    join_all(held.iter().map(Lock::release)).await.into_iter().for_each(Result::unwrap);
}

#[tokio::test]
async fn rejects_an_empty_key_and_a_key_above_2048_bytes_without_a_request() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).key_prefix("app#").build().unwrap();
    let longest = "k".repeat(2044);
    locks.acquire(&longest).await.unwrap().release().await.unwrap();
    assert_eq!(host.requests(), 2);
    for (key, parts) in [(longest + "k", &["2049 bytes", "2048"]), (String::new(), &["key", "empty"])] {
        for error in [
            locks.acquire(&key).await.unwrap_err(),
            locks.try_acquire(&key).await.unwrap_err(),
            locks.get(&key).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_contains(&error, parts);
        }
    }
    assert_eq!(host.requests(), 2);
}

#[tokio::test]
async fn a_key_in_the_sort_key_has_a_row_of_its_own() {
    let world = World::without_table();
    let host = world.host().build();
    let settings =
        |partition: &str| world.locks(&host).partition_key("PK").key_in_sort_key("SK", partition).key_prefix("job#");
    let (locks, others) = (settings("locks").build().unwrap(), settings("others").build().unwrap());
    locks.create_table().await.unwrap();
    let lock = locks.acquire("report").await.unwrap();
    assert!(locks.try_acquire("report").await.unwrap().is_none());
    // The same key in another partition.
    let other = others.acquire("report").await.unwrap();
    assert!(locks.get("report").await.unwrap().unwrap().is_current());
    let listed = locks.list().next_page().await.unwrap().unwrap();
    assert_eq!(listed.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["report"]);
    let write = Row::from([("PK".to_owned(), text("a")), ("SK".to_owned(), text("b"))]);
    transact(&world, lock.condition_check().unwrap(), write).await.unwrap();
    lock.release().await.unwrap();
    other.release().await.unwrap();
    let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
    let of = |row: &Row, name: &str| row[name].as_s().unwrap().clone();
    let mut keys: Vec<_> = rows.iter().map(|row| format!("{} {}", of(row, "PK"), of(row, "SK"))).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a b", "locks job#report", "others job#report"]);
    host.advance_clock(Duration::from_hours(48));
    assert_eq!(locks.delete_expired().await.unwrap(), 1);
    assert!(locks.get("report").await.unwrap().is_none() && others.get("report").await.unwrap().is_some());
}

#[tokio::test]
async fn locks_in_a_single_table_design_do_not_modify_other_entities() {
    let world = World::without_table();
    let locks = world.locks(&world.host().build()).partition_key("PK").sort_key("SK", "LOCK").key_prefix("job#");
    let locks = locks.build().unwrap();
    locks.create_table().await.unwrap();
    let entity = |pk: &str, sk: &str| Row::from([("PK".to_owned(), text(pk)), ("SK".to_owned(), text(sk))]);
    let neighbours = [entity("job#report", "META"), entity("report", "LOCK"), entity("job#", "LOCK")];
    for neighbour in &neighbours {
        world.put_row(neighbour.clone()).await;
    }
    let lock = locks.acquire("report").await.unwrap();
    assert!(locks.try_acquire("report").await.unwrap().is_none());
    assert!(locks.get("report").await.unwrap().unwrap().is_current());
    lock.renew(LEASE).await.unwrap();
    transact(&world, lock.condition_check().unwrap(), entity("job#report", "RESULT")).await.unwrap();
    lock.release().await.unwrap();
    let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
    assert_eq!(rows.len(), 5);
    for neighbour in neighbours {
        assert!(rows.contains(&neighbour));
    }
    assert!(rows.iter().any(|row| row["PK"] == text("job#report") && row["SK"] == text("LOCK")));
}
