//! Runs that crash, panic, are dropped, or outlive their lease.

use std::future::pending;
use std::time::Duration;

use lambda_lock::{ErrorKind, Run};
use lambda_lock_tests::drop_midway;
use lambda_lock_tests::invocation::{Counter, millis};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::{
    AFTER_THE_LEASE, CLOCK_SKEW, Declined, LEASE, Orders, TOO_LONG, crash, eagerly, environment, is_declined, later,
    ms, order, orders, panic_of, place, refused,
};

#[tokio::test]
async fn a_panic_releases_the_record_and_is_resumed() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    assert_eq!(panic_of(&orders, &order("a")).await, "the work's own");
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_dropped_run_releases_the_record_in_the_background() {
    let (_world, _host, locks) = environment().await;
    let orders = orders(&locks);
    drop_midway(&orders, &order("a"), || {}).await;
    let waiting = orders.wait(eagerly().up_to(LEASE / 3));
    assert_eq!(place(&waiting, &order("a"), &Counter::default()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_run_that_outlives_its_lease_is_cancelled_and_can_be_retried() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).lease(ms(300)), Counter::default());
    let overrun = timeout(TOO_LONG, orders.run(&order("a"), async |_| pending().await)).await.expect("it is cancelled");
    assert!(refused(overrun).is_lost());
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_run_that_returns_after_its_lease_has_lost_its_lock_and_is_not_repeated() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let overrun = orders
        .run(&order("a"), async |_| {
            // As one that blocks its thread.
            host.advance_clock(AFTER_THE_LEASE);
            Ok(runs.count())
        })
        .await;
    assert!(refused(overrun).is_lost());
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(runs.count(), 2, "only one run was counted before");
}

#[tokio::test]
async fn a_run_that_thaws_after_its_lease_and_returns_is_not_repeated() {
    let (_world, host, locks) = environment().await;
    let (orders, runs, order) = (orders(&locks), Counter::default(), order("a"));
    let (frozen, thawed) = (Notify::new(), Notify::new());
    let run = orders.run(&order, async |_| {
        let run = runs.count();
        frozen.notify_one();
        thawed.notified().await;
        Ok(run)
    });
    let freeze = async {
        frozen.notified().await;
        host.advance_clock(AFTER_THE_LEASE);
        thawed.notify_one();
    };
    let (overrun, ()) = tokio::join!(run, freeze);
    assert!(refused(overrun).is_lost());
    assert_eq!(place(&orders, &order, &runs).await.unwrap(), 1);
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn a_run_that_fails_after_its_lease_can_be_retried() {
    let (_world, host, locks) = environment().await;
    let overrun = orders(&locks)
        .run(&order("a"), async |_| {
            host.advance_clock(AFTER_THE_LEASE);
            Err::<u32, _>(Declined)
        })
        .await;
    assert!(is_declined(&overrun), "{overrun:?}");
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_run_that_renews_its_lock_stores_its_result() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).lease(ms(1000)), Counter::default());
    let outcome = orders
        .run(&order("a"), async |run: &Run| {
            run.lock().renew(LEASE).await.unwrap();
            sleep(ms(1100)).await;
            Ok(runs.count())
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_crashed_run_runs_again_when_its_lease_has_ended() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    crash(&host, &orders(&locks), &order("a")).await;
    for early in [Duration::ZERO, LEASE + CLOCK_SKEW / 2] {
        let error = refused(place(&orders(&later(&world, early)), &order("a"), &runs).await);
        assert_eq!(error.kind(), ErrorKind::InProgress, "{error}");
    }
    assert_eq!(place(&orders(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_deadline_sets_the_end_of_the_lease() {
    let (_world, host, locks) = environment().await;
    let deadline = host.now() + Duration::from_secs(10);
    let orders: Orders<u64> = orders(&locks).deadline(deadline);
    let end = orders.run(&order("a"), async |run: &Run| Ok(millis(run.lock().expires_at()))).await;
    assert_eq!(end.unwrap(), millis(deadline));
}
