//! Requests that DynamoDB applied although their answer was lost.

use std::time::Duration;

use lambda_lock::{ErrorKind, Run};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, LoseAnswers, keep_log, logged};
use tokio::time::sleep;

use crate::{
    LEASE, decline, eagerly, environment, is_declined, later, ms, order, orders, place, refused, refusing,
    replayed_error, storing,
};

#[tokio::test]
async fn a_rejecting_run_that_begins_without_an_answer_can_be_retried() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=3)).build();
    let (orders, runs) = (refusing(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    let error = refused(place(&orders, &order("a"), &runs).await);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // A release in the background frees the key.
    let waiting = orders.wait(eagerly().up_to(LEASE / 3));
    assert_eq!(place(&waiting, &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_completion_with_a_lost_answer_succeeds() {
    keep_log();
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let (orders, runs) = (orders(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    let id = format!("recognised {}", world.table);
    assert_eq!(place(&orders, &order(&id), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), 3);
    assert_eq!(place(&orders, &order(&id), &runs).await.unwrap(), 1);
    assert!(logged(&id).iter().all(|line| !line.contains("WARN")), "{:?}", logged(&id));
}

#[tokio::test]
async fn a_stored_error_with_a_lost_answer_succeeds() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let (orders, runs) = (storing(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
    assert_eq!(replayed_error(place(&orders, &order("a"), &runs).await).error_type(), "CardDeclined");
}

#[tokio::test]
async fn an_unanswered_completion_returns_the_result_and_sends_no_release() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=u32::MAX)).build();
    let (mine, runs) = (orders(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    assert_eq!(place(&mine.lease(ms(300)), &order("a"), &runs).await.unwrap(), 1);
    let sent = host.requests();
    sleep(ms(50)).await;
    assert_eq!(host.requests(), sent, "no release");
    // The completion was applied.
    assert_eq!(place(&orders(&later(&world, Duration::ZERO)), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_silent_table_does_not_delay_the_result_past_the_lease() {
    let (_world, host, locks) = environment().await;
    let orders = orders(&locks).lease(ms(600));
    let outcome = orders
        .run(&order("a"), async |run: &Run| {
            host.crash();
            Ok(run.lock().expires_at())
        })
        .await;
    let end = outcome.unwrap();
    assert!(host.now() < end, "late by {:?}", host.now().duration_since(end));
}
