//! Duplicates that arrive while the first run is in progress: refused or waiting.

use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::{ErrorKind, Run};
use lambda_lock_tests::invocation::{Counter, millis};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::{
    CLOCK_SKEW, Declined, TOO_LONG, crash, eagerly, environment, is_declined, later, ms, number_in, order, orders,
    place, refused, replayed_error, run_while_waited_for, storing,
};

#[tokio::test]
async fn a_duplicate_of_a_run_in_progress_is_refused_and_names_the_holder() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).holder("the first").build().unwrap();
    let other = world.host().build();
    let theirs = orders(&world.locks(&other).build().unwrap());
    let runs = Counter::default();
    orders(&locks)
        .run(&order("a"), async |run: &Run| {
            let error = refused(place(&theirs, &order("a"), &runs).await);
            assert_eq!(error.kind(), ErrorKind::InProgress, "{error}");
            let holder = error.holder().unwrap();
            assert_eq!((holder.name(), holder.fence()), (Some("the first"), Some(run.lock().fence())));
            assert!(holder.is_current() && !holder.is_completed());
            assert_eq!(holder.until(), run.lock().expires_at() + CLOCK_SKEW);
            assert!(error.to_string().contains("is in progress: the first until "), "{error}");
            Ok(runs.count())
        })
        .await
        .unwrap();
    assert_eq!((runs.get(), other.requests()), (1, 1));
}

#[tokio::test]
async fn one_of_fifty_duplicates_runs_and_the_others_are_refused() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let all_refused = Notify::new();
    let refusals = Counter::default();
    let calls = (0..50).map(|_| {
        let (orders, runs, refusals, all_refused) = (&orders, &runs, &refusals, &all_refused);
        async move {
            let outcome = orders
                .run(&order("a"), async |_| {
                    all_refused.notified().await;
                    Ok(runs.count())
                })
                .await;
            if outcome.is_err() && refusals.count() == 49 {
                all_refused.notify_one();
            }
            outcome
        }
    });
    let outcomes = timeout(TOO_LONG, join_all(calls)).await.unwrap();
    assert_eq!(runs.get(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, Ok(1))).count(), 1);
    assert!(
        outcomes.into_iter().filter(Result::is_err).all(|outcome| refused(outcome).kind() == ErrorKind::InProgress)
    );
}

#[tokio::test]
async fn one_of_sixty_waiting_duplicates_runs_and_all_get_its_result() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let settings: Vec<_> =
        [locks, later(&world, ms(3)), later(&world, ms(7))].iter().map(|locks| orders(locks).wait(eagerly())).collect();
    let calls = (0..60).map(|index| {
        let (orders, runs) = (&settings[index % 3], &runs);
        async move {
            orders
                .run(&order("a"), async |_| {
                    sleep(ms(30)).await;
                    Ok(runs.count())
                })
                .await
        }
    });
    for outcome in timeout(TOO_LONG, join_all(calls)).await.unwrap() {
        assert_eq!(outcome.unwrap(), 1);
    }
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn a_waiting_duplicate_runs_when_the_first_run_fails() {
    let (world, _host, locks) = environment().await;
    let other = world.host().build();
    let waiting = orders(&world.locks(&other).build().unwrap()).wait(eagerly());
    let (first, second) = run_while_waited_for(&orders(&locks), Err(Declined), &waiting, &other).await;
    assert!(is_declined(&first));
    assert_eq!(second.unwrap(), 1);
}

#[tokio::test]
async fn a_waiting_duplicate_runs_when_the_lease_of_a_crashed_run_ends() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).clock_skew(Duration::ZERO).build().unwrap();
    crash(&host, &orders(&locks).lease(ms(300)), &order("a")).await;
    let crashed = world.row("a").await.unwrap();
    let second = world.host().build();
    let other = world.locks(&second).clock_skew(Duration::ZERO).build().unwrap();
    let waiting = orders(&other).wait(eagerly());
    let outcome = timeout(TOO_LONG, place(&waiting, &order("a"), &Counter::default())).await.expect("the wait ends");
    assert_eq!(outcome.unwrap(), 1);
    assert!(millis(second.now()) >= number_in(&crashed, "in_progress_expiration"));
}

#[tokio::test]
async fn a_waiting_duplicate_gets_the_stored_error_of_the_first_run() {
    let (world, _host, locks) = environment().await;
    let other = world.host().build();
    let waiting = orders(&world.locks(&other).build().unwrap()).wait(eagerly());
    let (first, second) = run_while_waited_for(&storing(&locks), Err(Declined), &waiting, &other).await;
    assert!(is_declined(&first));
    assert_eq!(replayed_error(second).error_type(), "CardDeclined");
}

#[tokio::test]
async fn a_duplicate_whose_wait_ends_is_refused_with_its_attempts() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    orders(&locks)
        .run(&order("a"), async |_| {
            let waiting = orders(&locks).wait(eagerly().max_attempts(3));
            let error = refused(place(&waiting, &order("a"), &runs).await);
            assert_eq!(error.kind(), ErrorKind::InProgress, "{error}");
            assert_eq!(error.attempts(), 3);
            Ok(0)
        })
        .await
        .unwrap();
    assert_eq!(runs.get(), 0);
}
