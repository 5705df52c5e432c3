//! The key of an input: missing, prefixed, plain or hashed.

use std::env;
use std::process::Command;

use futures_util::future::join_all;
use lambda_lock::idempotency::{OnMissingKey, RecordFormat, StoredError};
use lambda_lock::{ErrorKind, Idempotency, OnError, Run};
use lambda_lock_tests::invocation::{Counter, FUNCTION};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

use crate::{
    FORMATS, Order, Orders, TOO_LONG, decline, environment, is_declined, ms, order, order_without_id, orders, place,
    refused, string_in,
};

#[tokio::test]
async fn rejects_an_input_without_a_key_without_a_request() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let error = refused(place(&orders(&locks), &order_without_id(), &runs).await);
    assert_eq!(error.kind(), ErrorKind::KeyMissing, "{error}");
    assert!(error.to_string().contains("no idempotency key"), "{error}");
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

#[tokio::test]
async fn run_unprotected_runs_each_input_without_a_key_without_a_request() {
    let (_world, host, locks) = environment().await;
    let orders: Orders<(u32, bool, u64)> =
        Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone()).cache(10);
    let runs = Counter::default();
    for index in 1..=3 {
        let body = async |run: &Run| Ok((runs.count(), run.lock().is_enforced(), run.lock().fence()));
        assert_eq!(orders.run(&order_without_id(), body).await.unwrap(), (index, false, 0));
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn an_unprotected_run_that_fails_sends_nothing() {
    let (_world, host, locks) = environment().await;
    for policy in [OnError::Release, OnError::Keep, OnError::Store(StoredError::new("Declined", "no"))] {
        let orders: Orders<u32> =
            Idempotency::new(locks.clone(), OnMissingKey::RunUnprotected, |order: &Order| order.id.clone());
        let orders = orders.on_error(move |_| policy.clone());
        assert!(is_declined(&decline(&orders, &order_without_id(), &Counter::default()).await));
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn unprotected_runs_run_at_the_same_time() {
    let (_world, _host, locks) = environment().await;
    let orders: Orders<()> = Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone());
    let both = Barrier::new(2);
    let calls = [0, 1].map(|_| async {
        orders
            .run(&order_without_id(), async |_| {
                both.wait().await;
                Ok(())
            })
            .await
    });
    for outcome in timeout(TOO_LONG, join_all(calls)).await.expect("they ran at the same time") {
        outcome.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_is_empty_or_consists_of_nulls_is_missing() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    for key in [json!(null), json!(""), json!([]), json!([null, null]), json!({}), json!({ "id": null })] {
        for format in [RecordFormat::Plain, RecordFormat::Hashed] {
            let keyed = |on_missing_key| {
                let key = key.clone();
                let orders: Orders<u32> = Idempotency::new(locks.clone(), on_missing_key, move |_| Some(key.clone()));
                orders.format(format).prefix("orders")
            };
            let error = refused(place(&keyed(OnMissingKey::Reject), &order("a"), &runs).await);
            assert_eq!(error.kind(), ErrorKind::KeyMissing, "{key} {error}");
            let before = runs.get();
            place(&keyed(OnMissingKey::RunUnprotected), &order("a"), &runs).await.unwrap();
            assert_eq!(runs.get(), before + 1, "{key}");
        }
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_number_sign_separates_the_prefix_from_the_key() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&locks).prefix("orders"), &order("a"), &runs).await.unwrap();
    place(&orders(&locks).prefix(""), &order("a"), &runs).await.unwrap();
    assert_eq!(runs.get(), 2);
    assert!(world.row("orders#a").await.is_some());
    assert!(world.row("a").await.is_some());
    assert!(world.row("#a").await.is_none());
}

#[tokio::test]
async fn the_prefix_of_the_locks_precedes_the_prefix_of_the_record() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).key_prefix("app/").build().unwrap();
    place(&orders(&locks).prefix("orders"), &order("a"), &Counter::default()).await.unwrap();
    assert!(world.row("app/orders#a").await.is_some());
}

#[tokio::test]
async fn outside_lambda_the_prefix_is_empty() {
    let (world, _host, locks) = environment().await;
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    assert!(world.row("a").await.is_some());
}

#[tokio::test]
async fn inside_lambda_the_prefix_is_the_functions_name() {
    if env::var_os("AWS_LAMBDA_FUNCTION_NAME").is_none() {
        // Runs this test again, in a process with the variables of Lambda.
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "key::inside_lambda_the_prefix_is_the_functions_name"]);
        let output = test.env("AWS_LAMBDA_FUNCTION_NAME", FUNCTION).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let (world, _host, locks) = environment().await;
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    assert!(world.row("orders#a").await.is_some());
}

#[tokio::test]
async fn a_row_stores_a_hashed_key_only_as_its_digest() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let orders = orders(&locks)
        .format(RecordFormat::Hashed)
        .prefix("orders")
        .validate(|order| json!([order.amount, "the payload's secret"]));
    place(&orders, &order("the key's secret"), &runs).await.unwrap();
    place(&orders, &order("the key's secret"), &runs).await.unwrap();
    assert_eq!(runs.get(), 1);
    let scan = world.client().scan().table_name(&world.table).send().await.unwrap();
    let [row] = scan.items() else { panic!("{scan:?}") };
    let digest = string_in(row, "id").strip_prefix("orders#").unwrap();
    assert!(digest.len() == 64 && digest.chars().all(|digit| digit.is_ascii_hexdigit()), "{digest}");
    assert!(!format!("{row:?}").contains("secret"), "{row:?}");
}

#[tokio::test]
async fn a_hashed_key_is_any_json_of_any_length_in_any_order_of_fields() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let long = "x".repeat(100_000);
    let keyed = |key: Value| {
        let orders: Orders<u32> =
            Idempotency::new(locks.clone(), OnMissingKey::Reject, move |_: &Order| Some(key.clone()));
        orders.format(RecordFormat::Hashed)
    };
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(place(&keyed(json!([long, 1])), &order("-"), &runs).await.unwrap(), 1);
    assert_eq!(place(&keyed(json!([long, 1])), &order("-"), &runs).await.unwrap(), 1);
    assert_eq!(place(&keyed(json!([long, 2])), &order("-"), &runs).await.unwrap(), 2);
    assert_eq!(place(&keyed(parse(r#"{"a": 1, "b": {"c": 2, "d": 3}}"#)), &order("-"), &runs).await.unwrap(), 3);
    assert_eq!(place(&keyed(parse(r#"{"b":{"d":3,"c":2},"a":1}"#)), &order("-"), &runs).await.unwrap(), 3);
    assert_eq!(place(&keyed(json!("1")), &order("-"), &runs).await.unwrap(), 4);
    assert_eq!(place(&keyed(json!(1)), &order("-"), &runs).await.unwrap(), 5);
    let scan = world.client().scan().table_name(&world.table).send().await.unwrap();
    assert_eq!(scan.items().len(), 5);
}

#[tokio::test]
async fn rejects_a_plain_key_above_2048_bytes_without_a_request() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let orders = orders(&locks).prefix("orders");
    let longest = "x".repeat(2048 - "orders#".len());
    assert_eq!(place(&orders, &order(&longest), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), 2);
    let error = refused(place(&orders, &order(&format!("{longest}x")), &runs).await);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("2049") && error.to_string().contains("hash"), "{error}");
    assert_eq!((runs.get(), host.requests()), (1, 2));
}

#[tokio::test]
async fn rejects_a_plain_key_that_is_not_a_string_without_a_request() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let orders: Orders<u32> = Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| Some(order.amount));
    let error = refused(place(&orders, &order("a"), &runs).await);
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("string"), "{error}");
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

#[tokio::test]
async fn an_unprotected_run_has_no_lease() {
    let (_world, _host, locks) = environment().await;
    let keyless: Orders<u32> = Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone());
    let slow = async |_: &Run| {
        sleep(ms(50)).await;
        Ok(17)
    };
    assert_eq!(keyless.lease(ms(10)).run(&order_without_id(), slow).await.unwrap(), 17);
}

#[tokio::test]
async fn rejects_a_number_sign_in_the_prefix_of_plain_keys() {
    let (_world, host, locks) = environment().await;
    let error = refused(place(&orders(&locks).prefix("orders#refunds"), &order("7"), &Counter::default()).await);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for part in ["`orders#refunds`", "`#`", "RecordFormat::Hashed"] {
        assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
    }
    assert_eq!(host.requests(), 0);
    for format in &FORMATS[1..] {
        let hashed = orders(&locks).format(*format).prefix("orders#refunds");
        place(&hashed, &order("7"), &Counter::default()).await.unwrap();
    }
}
