//! A run that completes in the caller's own transaction.

use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::{OnMissingKey, OnUnstorableResult};
use lambda_lock::{ErrorKind, HandlerError, Idempotency, Locks, OnError, Run};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, LoseAnswers, millis};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::{
    AFTER_THE_LEASE, Declined, Deep, MOST, Order, Orders, TOO_LONG, WINDOW, commit, crash, environment,
    give_to_another, is_committed, is_declined, large, later, ms, number_in, order, order_without_id, orders, place,
    refusing, storing, string_in,
};

#[tokio::test]
async fn a_transaction_commits_the_result_and_the_business_write_together() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let before = millis(host.now() + WINDOW);
    let body = async |run: &Run| commit(&world, &host, run, runs.count(), None).await;
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 1);
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 2);
    assert!(is_committed(&world).await);
    let row = world.row("a").await.unwrap();
    assert_eq!((string_in(&row, "status"), string_in(&row, "data")), ("COMPLETED", "1"));
    let after = millis(host.now() + WINDOW);
    assert!((before..after + 1000).contains(&(number_in(&row, "expiration") * 1000)));
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_cancelled_transaction_writes_neither_and_a_retry_runs_at_once() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let body = async |run: &Run| commit(&world, &host, run, runs.count(), Some("attribute_exists(id)")).await;
    assert!(is_declined(&orders.run(&order("a"), body).await));
    assert!(!is_committed(&world).await);
    assert!(!world.row("a").await.unwrap().contains_key("data"));
    let body = async |run: &Run| commit(&world, &host, run, runs.count(), None).await;
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 2);
    assert!(is_committed(&world).await);
}

/// A host that receives no answer to a transaction.
fn host_without_answers(world: &World) -> (Host, Locks) {
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=u32::MAX)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    (host, locks)
}

#[tokio::test]
async fn a_committed_transaction_without_an_answer_returns_its_result() {
    let world = World::new().await;
    let (host, locks) = host_without_answers(&world);
    for (id, settings) in [("a", orders(&locks)), ("b", storing(&locks)), ("c", refusing(&locks))] {
        let runs = Counter::default();
        let body = async |run: &Run| commit(&world, &host, run, 16 + runs.count(), None).await;
        assert_eq!(settings.run(&order(id), body).await.unwrap(), 17, "{id}");
        let row = world.row(id).await.unwrap();
        assert_eq!((string_in(&row, "status"), string_in(&row, "data")), ("COMPLETED", "17"));
        assert!(!row.contains_key("error"));
        assert_eq!(place(&settings, &order(id), &runs).await.unwrap(), 17, "{id}");
    }
}

#[tokio::test]
async fn another_result_is_stored_unless_the_transaction_was_committed() {
    let (world, host, locks) = environment().await;
    let orders = orders(&locks);
    for (id, condition, expected) in [("a", Some("attribute_exists(id)"), 18), ("b", None, 17)] {
        let body = async |run: &Run| {
            let is_ok = commit(&world, &host, run, 17, condition).await.is_ok();
            assert_eq!(is_ok, condition.is_none());
            Ok(18)
        };
        assert_eq!(orders.run(&order(id), body).await.unwrap(), expected, "{id}");
        assert_eq!(place(&orders, &order(id), &Counter::default()).await.unwrap(), expected, "{id}");
    }
}

#[tokio::test]
async fn another_result_that_cannot_be_stored_is_treated_as_any_other() {
    let (world, host, locks) = environment().await;
    let exports: Orders<f32> = orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
    for (id, condition, expected) in [("a", Some("attribute_exists(id)"), "NaN"), ("b", None, "17")] {
        let body = async |run: &Run| {
            let _ = commit(&world, &host, run, 17, condition).await;
            Ok(f32::NAN)
        };
        assert_eq!(exports.run(&order(id), body).await.unwrap().to_string(), expected, "{id}");
        let row = world.row(id).await.unwrap();
        assert_eq!((string_in(&row, "status"), row.contains_key("data")), ("COMPLETED", condition.is_none()));
    }
    let exports = exports.on_unstorable_result(OnUnstorableResult::Fail);
    let body = async |run: &Run| {
        let _ = commit(&world, &host, run, 17, Some("attribute_not_exists(id)")).await;
        Ok(f32::NAN)
    };
    let Err(HandlerError::Lock(error)) = exports.run(&order("c"), body).await else { panic!("it is stored") };
    assert_eq!(error.kind(), ErrorKind::UnusableResult, "{error}");
}

#[tokio::test]
async fn another_result_that_was_stored_without_an_answer_is_no_replay() {
    let world = World::new().await;
    // The first request is the acquire, the second one the completion.
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let replays = Counter::default();
    let orders: Orders<u32> = orders(&locks).on_replay({
        let replays = replays.clone();
        move |_, _| {
            replays.count();
        }
    });
    let body = async |run: &Run| {
        assert!(commit(&world, &host, run, 17, Some("attribute_exists(id)")).await.is_err());
        Ok(18)
    };
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 18);
    assert_eq!(replays.get(), 0);
    assert_eq!(place(&orders, &order("a"), &Counter::default()).await.unwrap(), 18);
    assert_eq!(replays.get(), 1);
}

#[tokio::test]
async fn a_committed_result_of_another_type_leaves_the_handlers_own() {
    let (world, host, locks) = environment().await;
    let orders: Orders<String> = orders(&locks);
    let body = async |run: &Run| {
        commit(&world, &host, run, 17, None).await?;
        Ok("placed".to_owned())
    };
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), "placed");
    assert_eq!(string_in(&world.row("a").await.unwrap(), "data"), "17");
}

#[tokio::test]
async fn a_committed_transaction_without_an_answer_is_replayed_when_errors_keep() {
    let world = World::new().await;
    let (host, locks) = host_without_answers(&world);
    let (orders, runs) = (orders(&locks).on_error(|_| OnError::Keep), Counter::default());
    let body = async |run: &Run| commit(&world, &host, run, 17, None).await;
    assert!(is_declined(&orders.run(&order("a"), body).await));
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 17);
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_transaction_committed_before_the_lease_ended_returns_its_result() {
    let (world, host, locks) = environment().await;
    let orders: Orders<u32> = orders(&locks).lease(ms(500));
    let body = async |run: &Run| {
        commit(&world, &host, run, 17, None).await?;
        pending().await
    };
    assert_eq!(timeout(TOO_LONG, orders.run(&order("a"), body)).await.unwrap().unwrap(), 17);
}

#[tokio::test]
async fn a_panic_after_the_commit_leaves_the_record_completed() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let order = order("a");
    let run = orders.run(&order, async |run: &Run| {
        commit(&world, &host, run, 17, None).await.unwrap();
        panic!("after the transaction")
    });
    assert!(AssertUnwindSafe(run).catch_unwind().await.is_err());
    assert_eq!(place(&orders, &order, &runs).await.unwrap(), 17);
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_crash_after_the_commit_is_replayed_and_a_crash_before_it_runs_again() {
    let (world, host, locks) = environment().await;
    let (orders, order, runs) = (orders(&locks), order("a"), Counter::default());
    crash(&host, &orders, &order).await;
    let second = world.host().later(AFTER_THE_LEASE).build();
    let theirs: Orders<u32> = self::orders(&world.locks(&second).build().unwrap());
    let committed = Notify::new();
    let run = theirs.run(&order, async |run: &Run| {
        commit(&world, &second, run, 17, None).await.unwrap();
        second.crash();
        committed.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = committed.notified() => {}
    }
    assert_eq!(place(&self::orders(&later(&world, Duration::ZERO)), &order, &runs).await.unwrap(), 17);
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_transaction_of_a_run_without_its_record_is_cancelled() {
    let (world, host, locks) = environment().await;
    let mut theirs = None;
    let body = async |run: &Run| {
        theirs = Some(give_to_another(&world, "a").await);
        commit(&world, &host, run, 17, None).await
    };
    assert!(is_declined(&orders::<u32>(&locks).run(&order("a"), body).await));
    assert!(!is_committed(&world).await);
    assert_eq!(world.row("a").await, theirs);
}

#[tokio::test]
async fn a_second_completion_of_a_run_is_cancelled() {
    let (world, host, locks) = environment().await;
    let body = async |run: &Run| {
        commit(&world, &host, run, 17, None).await.unwrap();
        assert_eq!(commit(&world, &host, run, 18, None).await, Err(Declined));
        Ok(17)
    };
    assert_eq!(orders::<u32>(&locks).run(&order("a"), body).await.unwrap(), 17);
    assert_eq!(string_in(&world.row("a").await.unwrap(), "data"), "17");
}

#[tokio::test]
async fn a_transaction_of_an_unprotected_run_is_committed() {
    let (world, host, locks) = environment().await;
    let disabled = world.locks(&host).enabled(false).build().unwrap();
    let on_missing_key: Orders<u32> =
        Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone()).prefix("orders");
    for (orders, order) in [(orders(&disabled), order("a")), (on_missing_key, order_without_id())] {
        for result in [17, 18] {
            let body = async |run: &Run| commit(&world, &host, run, result, None).await;
            assert_eq!(orders.run(&order, body).await.unwrap(), result);
        }
        assert!(is_committed(&world).await);
        world.delete_row("the order itself").await;
    }
    assert_eq!(host.requests(), 4);
    assert!(world.row("a").await.is_none());
}

#[tokio::test]
async fn complete_in_rejects_an_oversized_result() {
    let (_world, _host, locks) = environment().await;
    let exports: Orders<String> = orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
    let body = async |run: &Run| {
        let error = run.complete_in(&large(MOST + 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnusableResult, "{error}");
        Ok("small".to_owned())
    };
    exports.run(&order("a"), body).await.unwrap();
    // The failed attempt has no effect: the run completes as usual.
    assert_eq!(exports.run(&order("a"), async |_| panic!("it runs again")).await.unwrap(), "small");
}

#[tokio::test]
async fn complete_in_rejects_a_result_that_cannot_be_stored() {
    let (_world, _host, locks) = environment().await;
    let orders: Orders<u32> = orders(&locks);
    let body = async |run: &Run| {
        let why = run.complete_in(&f32::NAN).unwrap_err();
        assert!(why.kind() == ErrorKind::UnusableResult && why.to_string().contains("finite"), "{why}");
        let why = run.complete_in(&Deep::of(128)).unwrap_err();
        assert!(why.kind() == ErrorKind::UnusableResult && why.to_string().contains("127 levels"), "{why}");
        Ok(17)
    };
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 17);
    assert_eq!(orders.run(&order("a"), async |_| panic!("it runs again")).await.unwrap(), 17);
}

#[tokio::test]
async fn without_transactions_complete_in_is_refused_and_the_result_stored() {
    let world = World::across_regions().await;
    let locks = world.locks(&world.host().build()).multi_region_strong_consistency(true).build().unwrap();
    let (orders, runs) = (orders(&locks), Counter::default());
    let body = async |run: &Run| {
        let error = run.complete_in(&1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        for part in ["`a`", &world.table, "multi-Region strong consistency", "return the result"] {
            assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
        }
        Ok::<_, Declined>(1)
    };
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 1);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(runs.get(), 0);
}
