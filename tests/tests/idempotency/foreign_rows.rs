//! Rows that are no record of this crate.

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::{ErrorKind, HandlerError};
use lambda_lock_tests::{Row, World};

use crate::{Declined, Orders, completed, environment, number, order, orders, refused, row, seconds, text, validated};

/// The outcome of a run on this row, which the run does not modify.
async fn outcome_with(world: &World, orders: &Orders<u32>, foreign: Row) -> Result<u32, HandlerError<Declined>> {
    world.put_row(foreign.clone()).await;
    let outcome = orders.run(&order("a"), async |_| panic!("it runs")).await;
    assert_eq!(world.row("a").await, Some(foreign));
    outcome
}

#[tokio::test]
async fn a_malformed_record_is_an_error_and_is_not_modified() {
    let (world, host, locks) = environment().await;
    let orders = orders(&locks);
    let soon = number((seconds(&host) + 60) * 1000);
    for (attribute, value) in [
        ("status", text("EXPIRED")),
        ("status", text("completed")),
        ("status", number(1)),
        ("expiration", text("soon")),
        ("expiration", number(u64::MAX)),
        ("error", number(1)),
        ("fence", text("1")),
        ("fence", number(-1)),
        ("owner", number(1)),
        ("holder", number(1)),
        ("acquired_at", text("now")),
        ("in_progress_expiration", text("soon")),
    ] {
        let foreign = completed(&host, [(attribute, value)]);
        let error = refused(outcome_with(&world, &orders, foreign.clone()).await);
        assert!(
            error.kind() == ErrorKind::MalformedRow && error.to_string().contains(attribute),
            "{foreign:?}: {error}"
        );
    }
    for missing in ["status", "expiration"] {
        let mut foreign = completed(&host, []);
        foreign.remove(missing);
        let error = refused(outcome_with(&world, &orders, foreign).await);
        assert!(error.kind() == ErrorKind::MalformedRow && error.to_string().contains(missing), "{error}");
    }
    let running = row([("id", text("a")), ("status", text("INPROGRESS")), ("in_progress_expiration", soon)]);
    assert_eq!(refused(outcome_with(&world, &orders, running).await).kind(), ErrorKind::InProgress);
    let endless = row([("id", text("a")), ("status", text("INPROGRESS"))]);
    assert_eq!(refused(outcome_with(&world, &orders, endless).await).kind(), ErrorKind::MalformedRow);
}

#[tokio::test]
async fn an_expired_malformed_record_is_not_taken_over() {
    let (world, host, locks) = environment().await;
    let orders = orders(&locks);
    let over = number(seconds(&host) - 60);
    for (attribute, value) in [("status", text("EXPIRED")), ("status", number(1)), ("fence", number(1_u64 << 63))] {
        let foreign = completed(&host, [("expiration", over.clone()), (attribute, value)]);
        assert_eq!(refused(outcome_with(&world, &orders, foreign).await).kind(), ErrorKind::MalformedRow);
    }
}

#[tokio::test]
async fn an_unreadable_result_or_error_is_an_error_without_its_content() {
    let (world, host, locks) = environment().await;
    let orders = orders(&locks);
    for (attribute, value) in [
        ("data", text("{4111")),
        ("data", text("\"4111\"")),
        ("data", text("")),
        ("data", AttributeValue::B(b"4111".to_vec().into())),
        ("data", AttributeValue::Ss(vec!["4111".to_owned()])),
        ("error", text("{4111")),
        ("error", text(r#"{"type": "Declined"}"#)),
        ("error", text("")),
    ] {
        let error = refused(outcome_with(&world, &orders, completed(&host, [(attribute, value)])).await);
        assert_eq!(error.kind(), ErrorKind::UnusableResult, "{error}");
        assert!(!error.to_string().contains("4111"), "{error}");
    }
}

#[tokio::test]
async fn a_stored_validation_of_another_type_is_ignored() {
    let (world, host, locks) = environment().await;
    let foreign = completed(&host, [("validation", number(5))]);
    for orders in [validated(&locks), orders(&locks)] {
        assert_eq!(outcome_with(&world, &orders, foreign.clone()).await.unwrap(), 17);
    }
}
