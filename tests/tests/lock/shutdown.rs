//! The release of all locks before the process ends.

use std::future::pending;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lambda_lock::{ErrorKind, Lock, Locks};
use lambda_lock_tests::{Late, World};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::ms;

const LIMIT: Duration = Duration::from_secs(20);

async fn is_free(world: &World, key: &str) -> bool {
    let lock = world.default_locks().try_acquire(key).await.unwrap();
    let is_free = lock.is_some();
    if let Some(lock) = lock {
        lock.release().await.unwrap();
    }
    is_free
}

#[tokio::test]
async fn release_all_frees_every_lock_permit_and_set_with_one_request_each() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire("job").min_hold(Duration::from_hours(1)).await.unwrap();
    let set = locks.acquire_all(["a", "b"]).await.unwrap();
    let permit = locks.semaphore("bank", 1).acquire().await.unwrap();
    let before = host.requests();

    locks.clone().release_all(LIMIT).await.unwrap();
    assert_eq!(host.requests(), before + 3);
    assert!(!lock.is_valid() && !set.is_valid() && !permit.is_valid());
    lock.until_lost().await;
    for key in ["job", "a", "b"] {
        assert!(is_free(&world, key).await, "{key}");
    }
    assert!(world.default_locks().semaphore("bank", 1).try_acquire().await.unwrap().is_some());
    assert!(lock.renew(Duration::from_secs(30)).await.unwrap_err().is_lost());
    // Nothing is left to release.
    lock.release().await.unwrap();
    drop((lock, set, permit));
    locks.flush(LIMIT).await.unwrap();
    assert_eq!(host.requests(), before + 3);
}

/// Sets a flag when it is dropped.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn release_all_cancels_work_and_then_its_lock_is_released_once() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let (begun, is_cancelled) = (Notify::new(), AtomicBool::new(false));
    let work = locks.acquire("job").run(async |_| {
        let _flag = Flag(&is_cancelled);
        begun.notify_one();
        pending::<()>().await;
    });
    let released = async {
        begun.notified().await;
        locks.release_all(LIMIT).await
    };
    let both = timeout(LIMIT, async { tokio::join!(work, released) });
    let (outcome, released) = both.await.expect("the work ends before its lease");
    assert!(outcome.unwrap_err().is_lost());
    released.unwrap();
    assert!(is_cancelled.into_inner());
    assert_eq!(host.requests(), 2);
    assert!(is_free(&world, "job").await);
}

#[tokio::test]
async fn a_lock_whose_work_does_not_stop_stays_held_and_is_reported() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let begun = Notify::new();
    let mut work = pin!(locks.acquire("job").run(async |_| {
        begun.notify_one();
        pending::<()>().await;
    }));
    tokio::select! {
        outcome = &mut work => panic!("{outcome:?}"),
        () = begun.notified() => {}
    }
    // Nothing polls the work, as if it blocked its thread.
    assert_eq!(locks.release_all(ms(1)).await.unwrap_err().key(), "job");
    assert_eq!(host.requests(), 1);
}

#[tokio::test]
async fn release_all_does_not_wait_for_work_that_is_done() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    lock.while_held(async {}).await.unwrap();
    locks.release_all(Duration::from_secs(2)).await.unwrap();
    assert!(is_free(&world, "job").await);
}

#[tokio::test]
async fn work_that_has_not_begun_does_not_begin_after_release_all() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    locks.release_all(LIMIT).await.unwrap();
    let began = AtomicBool::new(false);
    let work = async { began.store(true, Ordering::Relaxed) };
    assert!(lock.while_held(work).await.unwrap_err().is_lost());
    assert!(!began.into_inner());
}

/// Returns locks that hold a key of a table that does not answer any more.
async fn held_in_silence(world: &World) -> (Locks, Lock) {
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire("job").await.unwrap();
    host.crash();
    tokio::time::pause();
    (locks, lock)
}

#[tokio::test]
async fn release_all_ends_with_its_limit_and_names_what_was_not_answered() {
    let world = World::new().await;
    let (locks, lock) = held_in_silence(&world).await;
    // The second one names what is still held.
    for _ in 0..2 {
        let released = async { locks.release_all(ms(500)).await };
        let error = timeout(ms(501), released).await.expect("the limit ends it").unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.key() == "job", "{error:?}");
        assert!(!lock.is_valid());
    }
}

#[tokio::test]
async fn flush_ends_with_its_limit() {
    let world = World::new().await;
    let (locks, lock) = held_in_silence(&world).await;
    drop(lock);
    let flushed = timeout(ms(501), locks.flush(ms(500))).await.expect("the limit ends it");
    assert!(flushed.is_err());
}

/// Drops a lock whose releases, counted from 1, are answered with server errors.
async fn dropped(world: &World, failing: RangeInclusive<u32>) -> Locks {
    tokio::time::pause();
    let host = world.host().intercept(Late::updates(failing.start() + 1..=failing.end().saturating_add(1))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    drop(locks.acquire("job").await.unwrap());
    locks
}

/// The SDK gives up after three attempts.
#[tokio::test]
async fn a_release_in_the_background_is_repeated_until_dynamodb_answers() {
    let world = World::in_virtual_time().await;
    let locks = dropped(&world, 1..=10).await;
    locks.flush(LIMIT).await.unwrap();
    assert!(is_free(&world, "job").await);
}

#[tokio::test]
async fn flush_names_the_release_that_failed_once() {
    let world = World::in_virtual_time().await;
    let locks = dropped(&world, 1..=u32::MAX).await;
    let error = locks.flush(LIMIT).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.key() == "job", "{error:?}");
    locks.flush(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_kept_lock_outlives_release_all() {
    let world = World::new().await;
    let locks = world.default_locks();
    locks.acquire("job").identity("run 1").await.unwrap().keep();
    locks.release_all(LIMIT).await.unwrap();
    assert!(!is_free(&world, "job").await);
    assert!(world.default_locks().release_identity("job", "run 1").await.unwrap());
}
