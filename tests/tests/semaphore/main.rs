//! Semaphores: up to N holders of a key at a time.

mod acquire;
mod late_requests;
mod layer;
mod lost_answers;
mod moments;
mod operate;
mod release;
mod renew;
mod replace;
mod rows;
mod turns;

use std::collections::BTreeSet;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::Host;
use lambda_lock::{ErrorKind, Lock, Locks};
use lambda_lock_tests::rows::text;
use lambda_lock_tests::{Late, Row, World, assert_contains};

const KEY: &str = "bank-api";
/// The defaults.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_hours(24);
const DAY: Duration = Duration::from_hours(24);
/// After the default lease and the skew.
const AFTER_THE_LEASE: Duration = Duration::from_secs(32);

/// A host whose clock has passed the end of leases that others take now.
fn after_the_lease(world: &World) -> (Host, Locks) {
    let host = world.host().later(AFTER_THE_LEASE).build();
    let locks = world.locks(&host).build().unwrap();
    (host, locks)
}

/// An acquire that has seen a permit whose lease has ended, and crashed. Its second request, which replaces the permit, is
/// late.
async fn late_replacement(world: &World, identity: Option<&str>) -> Late {
    let late = Late::updates(2..=20);
    let host = world.host().later(AFTER_THE_LEASE).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let acquire = locks.semaphore(KEY, 1).acquire().lease(LEASE);
    let acquire = if let Some(identity) = identity { acquire.identity(identity) } else { acquire };
    assert_eq!(acquire.await.unwrap_err().kind(), ErrorKind::Unavailable);
    host.crash();
    late
}

/// Acquires permits with the names `holder 0`, `holder 1` and so on.
async fn acquire_all(locks: &Locks, permits: u32) -> Vec<Lock> {
    let mut held = Vec::new();
    for number in 0..permits {
        held.push(locks.semaphore(KEY, permits).acquire().holder(format!("holder {number}")).await.unwrap());
    }
    held
}

async fn row(world: &World) -> Row {
    world.row(KEY).await.unwrap()
}

fn number(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}

fn digits(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// The owners of the permits in the row. The count in the row agrees with them, and each has its fence.
fn permits(row: &Row) -> BTreeSet<String> {
    let of = |prefix| row.keys().filter_map(move |name| name.strip_prefix(prefix)).map(str::to_owned).collect();
    let (owners, fences): (BTreeSet<String>, BTreeSet<String>) = (of("permit:"), of("fence:"));
    assert_eq!(number(row, "permits"), owners.len() as u64, "{row:?}");
    assert_eq!(fences, owners);
    owners
}

fn owners<'a>(locks: impl IntoIterator<Item = &'a Lock>) -> BTreeSet<String> {
    locks.into_iter().map(|lock| lock.owner().to_owned()).collect()
}

async fn release_all(locks: Vec<Lock>) {
    for lock in locks {
        lock.release().await.unwrap();
    }
}
