//! Work that runs under the locks on several keys.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use lambda_lock_tests::World;

use crate::{CLOCK_SKEW, KEYS, LEASE, assert_free, ms};

#[tokio::test]
async fn run_releases_when_the_body_returns_fails_or_panics() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let fence = locks.acquire_all(KEYS).run(async |set| set.fence_of(KEYS[0])).await.unwrap();
    assert!(fence.is_some());
    assert_eq!(host.requests(), 2);
    let failed: Result<(), &str> = locks.acquire_all(KEYS).run(async |_| Err("broken")).await.unwrap();
    assert_eq!(failed, Err("broken"));
    let panicking = locks.acquire_all(KEYS).run(async |_| panic!("on purpose"));
    let panic = AssertUnwindSafe(panicking).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    assert_eq!(host.requests(), 6);
    assert_free(&world).await;
}

#[tokio::test]
async fn run_skips_the_body_when_a_key_is_held() {
    let world = World::new().await;
    let lock = world.default_locks().acquire(KEYS[1]).await.unwrap();
    let ran = AtomicBool::new(false);
    let refused = world.default_locks().acquire_all(KEYS).run(async |_| ran.store(true, Ordering::Relaxed)).await;
    assert!(refused.unwrap_err().is_held());
    assert!(!ran.into_inner());
    lock.release().await.unwrap();
}

#[tokio::test]
async fn run_cancels_a_body_that_outlives_the_lease_and_releases() {
    let world = World::new().await;
    let running = world.default_locks().acquire_all(KEYS).lease(ms(100)).run(async |set| {
        set.until_lost().await;
        std::future::pending::<()>().await;
    });
    assert!(running.await.unwrap_err().is_lost());
    assert_free(&world).await;
}

#[tokio::test]
async fn run_cancels_a_body_whose_renewal_finds_a_key_lost_and_frees_the_others() {
    let world = World::new().await;
    let theirs = world.host().build();
    let others = world.locks(&theirs).build().unwrap();
    let running = world.default_locks().acquire_all(KEYS).run(async |set| {
        theirs.advance_clock(LEASE + CLOCK_SKEW);
        let _next = others.acquire(KEYS[1]).await.unwrap();
        assert!(set.renew(LEASE).await.unwrap_err().is_lost());
        std::future::pending::<()>().await;
    });
    assert!(Box::pin(running).await.unwrap_err().is_lost());
    assert!(world.default_locks().try_acquire(KEYS[0]).await.unwrap().is_some());
}
