//! Work that must not repeat: `OnUnfinished::Reject`.

use std::fmt::Debug;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use lambda_lock::embedded::{Faults, Host};
use lambda_lock::{ErrorKind, Locks, OnError, OnUnfinished};
use lambda_lock_tests::invocation::Counter;
use lambda_lock_tests::{World, drop_midway};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::{
    AFTER_THE_LEASE, AFTER_THE_WINDOW, ALMOST_THE_WINDOW, Declined, LEASE, Orders, TOO_LONG, crash, decline, eagerly,
    environment, is_declined, later, ms, number_in, order, orders, panic_of, place, refused, refusing, string_in,
};

#[tokio::test]
async fn a_crashed_run_is_in_progress_until_its_lease_ends_and_then_unfinished() {
    let (world, host, locks) = environment().await;
    // Longer than the retention of a lock's row.
    let window = Duration::from_hours(48);
    let (settings, runs) = (|locks: &Locks| refusing(locks).window(window), Counter::default());
    crash(&host, &settings(&locks), &order("a")).await;
    assert_eq!(
        refused(place(&settings(&later(&world, LEASE)), &order("a"), &runs).await).kind(),
        ErrorKind::InProgress
    );
    let crashed = world.row("a").await;
    for unfinished in [AFTER_THE_LEASE, Duration::from_hours(25), Duration::from_hours(47)] {
        let error = refused(place(&settings(&later(&world, unfinished)), &order("a"), &runs).await);
        assert_eq!(error.kind(), ErrorKind::Unfinished, "{error}");
        let holder = error.holder().unwrap();
        assert_eq!(holder.name(), Some(format!("process {}", std::process::id()).as_str()));
        assert!(error.to_string().contains("may have done its work"), "{error}");
    }
    assert_eq!((world.row("a").await, runs.get()), (crashed, 0));
    assert_eq!(place(&settings(&later(&world, window + ms(1_100))), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn an_unfinished_run_runs_again_after_the_window_although_its_row_remains() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    crash(&host, &refusing(&locks), &order("a")).await;
    let error = refused(place(&refusing(&later(&world, ALMOST_THE_WINDOW)), &order("a"), &runs).await);
    assert_eq!(error.kind(), ErrorKind::Unfinished, "{error}");
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_run_is_unfinished_after_a_panic() {
    let (world, host, locks) = environment().await;
    assert_eq!(panic_of(&refusing(&locks), &order("a")).await, "the work's own");
    assert_unfinished(&world, &host).await;
}

#[tokio::test]
async fn a_run_is_unfinished_after_a_drop() {
    let (world, host, locks) = environment().await;
    drop_midway(&refusing(&locks), &order("a"), || {}).await;
    assert_unfinished(&world, &host).await;
}

#[tokio::test]
async fn a_run_is_unfinished_after_it_outlives_its_lease() {
    let (world, host, locks) = environment().await;
    let orders = refusing(&locks).lease(ms(300));
    let overrun = timeout(TOO_LONG, orders.run(&order("a"), async |_| pending().await)).await.expect("it is cancelled");
    assert!(refused(overrun).is_lost());
    assert_unfinished(&world, &host).await;
}

#[tokio::test]
async fn a_run_is_unfinished_after_release_all() {
    let (world, host, locks) = environment().await;
    stop_midway(&refusing(&locks), &locks).await;
    assert_unfinished(&world, &host).await;
}

#[tokio::test]
async fn the_record_of_a_run_is_released_by_release_all() {
    let (_world, host, locks) = environment().await;
    stop_midway(&orders(&locks), &locks).await;
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap(), 1);
}

/// Begins a run, and releases all locks in it.
async fn stop_midway(orders: &Orders<u32>, locks: &Locks) {
    let (begun, input) = (Notify::new(), order("a"));
    let run = orders.run(&input, async |_| {
        begun.notify_one();
        pending().await
    });
    let released = async {
        begun.notified().await;
        locks.release_all(TOO_LONG).await
    };
    let both = timeout(TOO_LONG / 2, async { tokio::join!(run, released) });
    let (outcome, released) = both.await.expect("the run ends before its lease");
    assert!(refused(outcome).is_lost());
    released.unwrap();
}

#[tokio::test]
async fn release_all_waits_until_the_result_of_a_run_is_stored() {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(0).latency(ms(20)..ms(21))).build();
    let locks = world.locks(&host).build().unwrap();
    let (orders, done, input) = (orders(&locks), Notify::new(), order("a"));
    let run = orders.run(&input, async |_| {
        done.notify_one();
        Ok(1)
    });
    let stored = async {
        done.notified().await;
        locks.release_all(TOO_LONG).await.unwrap();
        world.row("a").await.unwrap()
    };
    let (result, row) = tokio::join!(run, stored);
    assert_eq!(result.unwrap(), 1);
    assert_eq!(string_in(&row, "status"), "COMPLETED");
}

#[tokio::test]
async fn a_run_is_unfinished_after_an_unstorable_result() {
    let (world, host, locks) = environment().await;
    let orders: Orders<String> = orders(&locks).on_unfinished(OnUnfinished::Reject);
    assert_eq!(
        refused(orders.run(&order("a"), async |_| Ok("x".repeat(500_000))).await).kind(),
        ErrorKind::UnusableResult
    );
    assert_unfinished(&world, &host).await;
}

#[tokio::test]
async fn a_run_is_unfinished_after_an_error_that_keeps_the_record() {
    let (world, host, locks) = environment().await;
    let orders = refusing(&locks).on_error(|_| OnError::Keep);
    assert!(is_declined(&decline(&orders, &order("a"), &Counter::default()).await));
    assert_unfinished(&world, &host).await;
}

/// Asserts that one request was sent, and that the run is unfinished after its lease.
async fn assert_unfinished(world: &World, host: &Host) {
    // Leaves time for requests in the background.
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 1);
    let error = refused(place(&refusing(&later(world, AFTER_THE_LEASE)), &order("a"), &Counter::default()).await);
    assert_eq!(error.kind(), ErrorKind::Unfinished, "{error}");
}

#[tokio::test]
async fn a_run_is_retried_after_an_error_that_releases_the_record() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    assert!(is_declined(&decline(&refusing(&locks), &order("a"), &runs).await));
    assert_eq!(place(&refusing(&locks), &order("a"), &runs).await.unwrap(), 2);
    decline(&refusing(&locks), &order("b"), &runs).await.unwrap_err();
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_LEASE)), &order("b"), &runs).await.unwrap(), 4);
}

#[tokio::test]
async fn a_completed_run_is_replayed_and_runs_again_after_the_window() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&refusing(&locks), &order("a"), &runs).await.unwrap();
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 2);
}

#[tokio::test]
async fn an_unfinished_run_runs_again_when_its_row_is_deleted() {
    let (world, host, locks) = environment().await;
    crash(&host, &refusing(&locks), &order("a")).await;
    world.delete_row("a").await;
    assert_eq!(place(&refusing(&later(&world, Duration::ZERO)), &order("a"), &Counter::default()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_wait_ends_when_the_run_becomes_unfinished() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).clock_skew(Duration::ZERO).build().unwrap();
    crash(&host, &refusing(&locks).lease(ms(300)), &order("a")).await;
    let other = world.locks(&world.host().build()).clock_skew(Duration::ZERO).build().unwrap();
    let runs = Counter::default();
    let waiting = refusing(&other).wait(eagerly());
    let error = refused(timeout(TOO_LONG / 2, place(&waiting, &order("a"), &runs)).await.expect("the wait ends"));
    assert_eq!(error.kind(), ErrorKind::Unfinished, "{error}");
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_renewed_run_stays_unfinished_for_the_window() {
    let (world, _host, locks) = environment().await;
    let window = Duration::from_hours(14 * 24);
    let refusing = |locks: &Locks| orders(locks).window(window).on_unfinished(OnUnfinished::Reject);
    let (mine, begun) = (refusing(&locks), Notify::new());
    let input = order("a");
    let run = mine.run(&input, async |run| {
        run.lock().renew(Duration::from_mins(1)).await.unwrap();
        begun.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = begun.notified() => {}
    }
    let row = world.row("a").await.unwrap();
    assert!(number_in(&row, "expiration") * 1000 >= number_in(&row, "acquired_at") + millis_of(window));
    let runs = Counter::default();
    let in_two_days = refusing(&later(&world, Duration::from_hours(48)));
    assert_eq!(refused(place(&in_two_days, &order("a"), &runs).await).kind(), ErrorKind::Unfinished);
    assert_eq!(runs.get(), 0);
}

fn millis_of(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}

/// A result whose serialisation panics.
#[derive(Debug, serde::Deserialize)]
struct Brittle;

impl serde::Serialize for Brittle {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("in the result")
    }
}

#[tokio::test]
async fn a_run_is_unfinished_after_a_panic_in_its_completion() {
    let (world, _host, locks) = environment().await;
    let brittle: Orders<Brittle> = orders(&locks).on_unfinished(OnUnfinished::Reject);
    let run = AssertUnwindSafe(async { brittle.run(&order("a"), async |_| Ok(Brittle)).await });
    assert!(run.catch_unwind().await.is_err());
    let policy: Orders<u32> =
        orders(&locks).on_unfinished(OnUnfinished::Reject).on_error(|Declined| panic!("in the policy"));
    let run = AssertUnwindSafe(async { policy.run(&order("b"), async |_| Err(Declined)).await });
    assert!(run.catch_unwind().await.is_err());
    let again: Orders<u32> = orders(&later(&world, AFTER_THE_LEASE)).on_unfinished(OnUnfinished::Reject);
    for id in ["a", "b"] {
        let runs = Counter::default();
        assert_eq!(refused(place(&again, &order(id), &runs).await).kind(), ErrorKind::Unfinished, "{id}");
    }
}
