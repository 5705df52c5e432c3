//! The effect of an error on the record: the record is released, is kept, or stores the error.

use std::time::Duration;

use lambda_lock::idempotency::StoredError;
use lambda_lock::{ErrorKind, OnError};
use lambda_lock_tests::invocation::{Counter, reported};
use tokio::time::sleep;

use crate::{
    AFTER_THE_LEASE, AFTER_THE_WINDOW, ALMOST_THE_WINDOW, Order, decline, environment, is_declined, later, ms, order,
    orders, place, refused, replayed_error, storing,
};

#[tokio::test]
async fn an_error_releases_the_record_and_a_retry_runs_at_once() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (orders(&locks), Counter::default());
    assert!(is_declined(&decline(&mine, &order("a"), &runs).await));
    assert_eq!(host.requests(), 2);
    let elsewhere = orders(&later(&world, Duration::ZERO));
    assert_eq!(place(&elsewhere, &order("a"), &runs).await.unwrap(), 2);
    assert_eq!(place(&mine, &order("a"), &runs).await.unwrap(), 2);
}

#[tokio::test]
async fn an_error_that_keeps_the_record_delays_a_retry_until_the_lease_ends() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (orders(&locks).on_error(|_| OnError::Keep), Counter::default());
    assert!(is_declined(&decline(&mine, &order("a"), &runs).await));
    sleep(ms(20)).await;
    assert_eq!(host.requests(), 1);
    assert_eq!(refused(place(&mine, &order("a"), &runs).await).kind(), ErrorKind::InProgress);
    assert_eq!(place(&orders(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 2);
}

#[tokio::test]
async fn a_stored_error_is_replayed_with_its_type_and_message() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (storing(&locks), Counter::default());
    assert!(is_declined(&decline(&mine, &order("a"), &runs).await), "the first caller gets the handler's own");
    assert_eq!(host.requests(), 2);
    let elsewhere = storing(&later(&world, ALMOST_THE_WINDOW));
    for orders in [&mine, &elsewhere] {
        let outcome = place(orders, &order("a"), &runs).await;
        let Err(error) = outcome else { panic!("{outcome:?}") };
        let expected = ("CardDeclined".to_owned(), "the card \"x\" was declined".to_owned());
        assert_eq!(reported(error), expected);
    }
    assert_eq!((runs.get(), host.requests()), (1, 3));
}

#[tokio::test]
async fn a_stored_error_is_replayed_until_its_window_ends() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    decline(&storing(&locks), &order("a"), &runs).await.unwrap_err();
    assert_eq!(place(&storing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 2);
    let row = world.row("a").await.unwrap();
    assert!(!row.contains_key("error"), "{row:?}");
}

#[tokio::test]
async fn a_stored_error_is_validated_like_a_result() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (storing(&locks).validate(|order| order.amount), Counter::default());
    decline(&orders, &order("a"), &runs).await.unwrap_err();
    assert_eq!(refused(place(&orders, &Order { amount: 6, ..order("a") }, &runs).await).kind(), ErrorKind::Mismatch);
    assert_eq!(replayed_error(place(&orders, &order("a"), &runs).await).error_type(), "CardDeclined");
}

#[tokio::test]
async fn a_stored_error_is_replayed_from_the_cache() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (storing(&locks).cache(10), Counter::default());
    decline(&orders, &order("a"), &runs).await.unwrap_err();
    let error = replayed_error(place(&orders, &order("a"), &runs).await);
    assert_eq!(error, StoredError::new("CardDeclined", "the card \"x\" was declined"));
    assert_eq!(error.to_string(), "CardDeclined: the card \"x\" was declined");
    assert_eq!((runs.get(), host.requests()), (1, 2));
}

#[tokio::test]
async fn an_oversized_error_releases_the_record() {
    let (_world, _host, locks) = environment().await;
    let orders = orders(&locks).on_error(|_| OnError::Store(StoredError::new("Declined", "x".repeat(500_000))));
    let runs = Counter::default();
    for _ in 0..2 {
        assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
    }
    assert_eq!(runs.get(), 2);
}
