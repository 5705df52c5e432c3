//! Duplicates whose validated fields differ from those of the first run.

use lambda_lock::ErrorKind;
use lambda_lock_tests::invocation::Counter;
use serde_json::json;

use crate::{
    AFTER_THE_WINDOW, Order, decline, eagerly, environment, order, orders, place, refused, string_in, validated,
};

#[tokio::test]
async fn a_duplicate_with_matching_fields_gets_the_result() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    for _ in 0..2 {
        assert_eq!(place(&validated(&locks), &order("a"), &runs).await.unwrap(), 1);
    }
    assert!(!string_in(&world.row("a").await.unwrap(), "validation").is_empty());
}

#[tokio::test]
async fn a_duplicate_with_different_fields_is_a_mismatch() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    place(&validated(&locks), &order("a"), &runs).await.unwrap();
    let before = world.row("a").await;
    let error = refused(place(&validated(&locks), &Order { amount: 6, ..order("a") }, &runs).await);
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert_eq!(error.key(), "a");
    assert_eq!((runs.get(), host.requests()), (1, 3));
    assert_eq!(world.row("a").await, before);
}

#[tokio::test]
async fn a_duplicate_with_different_fields_is_a_mismatch_during_the_first_run() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    validated(&locks)
        .run(&order("a"), async |_| {
            // If it waited, it would use its whole budget.
            let waiting = validated(&locks).wait(eagerly());
            let error = refused(place(&waiting, &Order { amount: 6, ..order("a") }, &runs).await);
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert_eq!(host.requests(), 2);
            Ok(1)
        })
        .await
        .unwrap();
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_record_of_a_deployment_without_validation_is_replayed_to_one_that_validates() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&locks), &order("a"), &runs).await.unwrap();
    for validating in [validated(&locks), validated(&locks).cache(1)] {
        for _ in 0..2 {
            assert_eq!(place(&validating, &order("a"), &runs).await.unwrap(), 1);
        }
    }
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn a_run_of_a_deployment_without_validation_is_in_progress_for_one_that_validates() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    orders(&locks)
        .run(&order("a"), async |_| {
            assert_eq!(refused(place(&validated(&locks), &order("a"), &runs).await).kind(), ErrorKind::InProgress);
            Ok(1)
        })
        .await
        .unwrap();
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_record_with_validation_is_replayed_to_a_caller_that_does_not_validate() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&validated(&locks), &order("a"), &runs).await.unwrap();
    assert_eq!(place(&orders(&locks), &Order { amount: 6, ..order("a") }, &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_key_accepts_different_fields_after_its_window_or_a_failure() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (validated(&locks), Counter::default());
    decline(&orders, &order("a"), &runs).await.unwrap_err();
    let other = Order { amount: 6, ..order("a") };
    assert_eq!(place(&orders, &other, &runs).await.unwrap(), 2);
    let digest = world.row("a").await.unwrap()["validation"].clone();
    host.advance_clock(AFTER_THE_WINDOW);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 3);
    assert_ne!(world.row("a").await.unwrap()["validation"], digest);
    assert_eq!(refused(place(&orders, &other, &runs).await).kind(), ErrorKind::Mismatch);
}

#[tokio::test]
async fn several_fields_can_be_validated() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    let with = |currency: &'static str| orders(&locks).validate(move |order| json!([order.amount, currency]));
    place(&with("EUR"), &order("a"), &runs).await.unwrap();
    assert_eq!(place(&with("EUR"), &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(refused(place(&with("USD"), &order("a"), &runs).await).kind(), ErrorKind::Mismatch);
}
