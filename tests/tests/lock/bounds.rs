//! The largest row: a lock that was acquired can be renewed and released.

use std::io::Error;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{ErrorKind, Idempotency, LocksBuilder};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::all_tries_from;

use crate::{LEASE, assert_contains, lose_answers, text};

/// The bounds of names and of what is in a row, in bytes.
const HOLDER: usize = 1024;
const KEY: usize = 2048;
/// The longest identity that is written as it is.
const IDENTITY: usize = 256;
const DATA: usize = 390 * 1024;
const ATTRIBUTES: usize = 2 * 1024;
const PERMIT_DATA: usize = 200 * 1024;

fn name(first: char, bytes: usize) -> String {
    first.to_string().repeat(bytes)
}

/// Locks with the longest holder in the longest rows.
fn longest(builder: LocksBuilder) -> LocksBuilder {
    builder.key_prefix(name('p', KEY - 1)).holder(name('o', HOLDER))
}

#[tokio::test]
async fn the_name_of_a_holder_has_one_bound_for_all() {
    let world = World::without_table();
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let (most, more) = (name('h', HOLDER), name('h', HOLDER + 1));
    world.locks(&host).holder(&most).build().unwrap();
    for error in [
        world.locks(&host).holder(&more).build().unwrap_err(),
        locks.acquire("job").holder(&more).await.unwrap_err(),
        locks.acquire_all(["a", "b"]).holder(&more).await.unwrap_err(),
        locks.semaphore("bank-api", 2).acquire().holder(&more).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_contains(&error, &["name of the holder", "1025 bytes", "more than 1024", "shorten it", "hhhh"]);
    }
    let disabled = world.locks(&host).enabled(false).build().unwrap();
    assert_eq!(disabled.acquire("job").holder(&more).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_lock_at_all_bounds_is_renewed_and_released() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = longest(world.locks(&host)).build().unwrap();
    // An earlier acquire of another identity is withdrawn, and leaves its number in the row.
    locks.acquire("k").identity(name('e', IDENTITY)).await.unwrap().release().await.unwrap();
    let unanswered = world.host().intercept(lose_answers(all_tries_from(1))).build();
    let other = longest(world.locks_with_quick_retries(&unanswered)).build().unwrap();
    let blocked = locks.acquire("k").identity(name('i', IDENTITY)).await.unwrap();
    other.acquire("k").identity(name('w', IDENTITY)).await.unwrap_err();
    other.flush(crate::LEASE * 2).await.unwrap();
    blocked.release().await.unwrap();
    let row = world.row(&(name('p', KEY - 1) + "k")).await.unwrap();
    assert!(row["withdrawn"].is_n(), "withdrawn");

    let attribute = text(&name('a', ATTRIBUTES - "note".len()));
    let acquire = || {
        let acquire = locks.acquire("k").identity(name('i', IDENTITY)).holder(name('h', HOLDER));
        acquire.attribute("note", attribute.clone())
    };
    let lock = acquire().data(name('d', DATA)).await.unwrap();
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
    let lock = acquire().await.unwrap();
    lock.set_data(name('e', DATA));
    lock.renew(LEASE).await.unwrap();
    lock.set_data(name('f', DATA));
    lock.release().await.unwrap();

    let row = world.row(&(name('p', KEY - 1) + "k")).await.unwrap();
    assert_eq!((&row["released"], &row["data"]), (&row["fence"], &text(&name('f', DATA))));

    // A takeover leaves one more time.
    let lock = acquire().await.unwrap();
    let fence = lock.fence();
    lock.keep();
    acquire().take_over_from(fence).await.unwrap().release().await.unwrap();

    let once = Idempotency::new(locks.clone(), OnMissingKey::Reject, |key: &String| Some(key.clone()));
    let result = name('r', DATA - "\"\"".len());
    once.run(&"k".to_owned(), async |_| Ok::<_, Error>(result.clone())).await.unwrap();
    let row = world.row(&(name('p', KEY - 1) + "k")).await.unwrap();
    assert_eq!(row["status"], text("COMPLETED"));
    assert_eq!(row["data"].as_s().unwrap().len(), DATA);
}

#[tokio::test]
async fn the_attributes_of_an_acquire_have_a_bound() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let most = ATTRIBUTES / 2 - "note1".len();
    let acquire = |second| locks.acquire("job").attribute("note1", text(&name('x', most))).attribute("note2", second);
    let error = acquire(text(&name('x', most + 1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_contains(&error, &["attributes", "2049 bytes", "more than 2048", "as data"]);
    assert_eq!(host.requests(), 0);
    acquire(text(&name('x', most))).await.unwrap().release().await.unwrap();
    // A set has the size of its members.
    assert_eq!(acquire(AttributeValue::Ss(vec![name('x', most)])).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn permits_at_all_bounds_are_released() {
    const PERMITS: u32 = 100;
    let world = World::new().await;
    let locks = longest(world.locks(&world.host().build())).build().unwrap();
    let acquire = || locks.semaphore("k", PERMITS).acquire().holder(name('h', HOLDER));
    let mut permits = vec![acquire().data(name('d', PERMIT_DATA)).await.unwrap()];
    for _ in 1..PERMITS {
        permits.push(acquire().await.unwrap());
    }
    for permit in &permits {
        permit.renew(LEASE).await.unwrap();
    }
    permits[0].set_data(name('e', PERMIT_DATA));
    for permit in permits {
        permit.release().await.unwrap();
    }
}
