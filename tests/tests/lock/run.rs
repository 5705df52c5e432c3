//! Work that runs under a lock.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use lambda_lock::Error;
use lambda_lock::embedded::Host;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{all_tries_from, keep_warnings, logged};
use tokio::sync::Notify;

use crate::{LEASE, lose_answers, ms};

#[tokio::test]
async fn run_releases_when_the_body_returns_or_fails() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let fence = locks.acquire("job").run(async |lock| lock.fence()).await.unwrap();
    assert_eq!(host.requests(), 2);
    let failed: Result<(), &str> = locks.acquire("job").run(async |_| Err("broken")).await.unwrap();
    assert_eq!(failed, Err("broken"));
    assert_eq!(host.requests(), 4);
    assert!(locks.acquire("job").await.unwrap().fence() > fence);
}

#[tokio::test]
async fn run_releases_when_the_body_panics_and_resumes_the_panic() {
    let world = World::new().await;
    let locks = world.default_locks();
    let panicking = locks.acquire("job").run(async |_| panic!("on purpose"));
    let panic = AssertUnwindSafe(panicking).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_failed_release_does_not_hide_the_result_of_the_body() {
    keep_warnings();
    let world = World::new().await;
    let key = format!("not released by {}", world.table);
    let host = world.host().intercept(lose_answers(all_tries_from(2))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.acquire(&key).run(async |_| "done").await.unwrap(), "done");
    let warnings = logged(&key);
    assert!(warnings.iter().any(|line| line.contains("release failed")), "{warnings:?}");
}

#[tokio::test]
async fn a_body_that_returns_after_its_lease_is_lost() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    // As one that blocks its thread: it has no await point at which it could be cancelled.
    let running = locks.acquire("job").run(async |_| host.advance_clock(LEASE));
    assert!(running.await.unwrap_err().is_lost());
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_body_that_releases_its_lock_goes_on_after_its_lease() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let running = locks.acquire("job").run(async |lock| {
        lock.release().await.unwrap();
        host.advance_clock(LEASE);
        tokio::time::sleep(ms(50)).await;
        "done"
    });
    assert_eq!(running.await.unwrap(), "done");
}

#[tokio::test]
async fn a_body_that_renews_its_lock_is_not_cancelled() {
    let world = World::new().await;
    let running = world.default_locks().acquire("job").lease(ms(400)).run(async |lock| {
        lock.renew(LEASE).await?;
        tokio::time::sleep(ms(600)).await;
        Ok::<_, Error>("done")
    });
    assert_eq!(Box::pin(running).await.unwrap().unwrap(), "done");
}

/// Work of two steps, and a process that is frozen between them until after the lease.
#[derive(Default)]
struct TwoSteps {
    frozen: Notify,
    thawed: Notify,
    went_on: AtomicBool,
}

impl TwoSteps {
    async fn run(&self) {
        self.frozen.notify_one();
        self.thawed.notified().await;
        self.went_on.store(true, Ordering::Relaxed);
    }

    /// Freezes the process during this work. Only the wall clock goes on.
    async fn freeze<T>(&self, host: &Host, work: impl Future<Output = T>) -> T {
        let freeze = async {
            self.frozen.notified().await;
            host.advance_clock(LEASE);
            self.thawed.notify_one();
        };
        tokio::join!(work, freeze).0
    }
}

#[tokio::test]
async fn the_next_step_of_work_that_thaws_after_its_lease_does_not_run() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let steps = [(); 4].map(|()| TwoSteps::default());
    let one = locks.acquire("one").run(async |_| steps[0].run().await);
    assert!(Box::pin(steps[0].freeze(&host, one)).await.unwrap_err().is_lost());
    let set = locks.acquire_all(["two", "three"]).run(async |_| steps[1].run().await);
    assert!(Box::pin(steps[1].freeze(&host, set)).await.unwrap_err().is_lost());
    let permit = locks.semaphore("four", 1).acquire().run(async |_| steps[2].run().await);
    assert!(Box::pin(steps[2].freeze(&host, permit)).await.unwrap_err().is_lost());
    let lock = locks.acquire("five").await.unwrap();
    assert!(steps[3].freeze(&host, lock.while_held(steps[3].run())).await.unwrap_err().is_lost());
    assert!(!steps.iter().any(|steps| steps.went_on.load(Ordering::Relaxed)));
    lock.release().await.unwrap();
}

#[tokio::test]
async fn work_that_has_not_begun_does_not_begin_after_its_lease() {
    let world = World::new().await;
    let host = world.host().build();
    let lock = world.locks(&host).build().unwrap().acquire("job").await.unwrap();
    host.advance_clock(LEASE);
    let began = AtomicBool::new(false);
    let work = async { began.store(true, Ordering::Relaxed) };
    assert!(lock.while_held(work).await.unwrap_err().is_lost());
    assert!(!began.into_inner());
    lock.release().await.unwrap();
}
