//! From which record Lambda delivers again, and which records then run.

use std::collections::HashMap;
use std::future::ready;
use std::time::Duration;

use lambda_lock::OnError;
use lambda_lock::idempotency::StoredError;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, invocation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tower::{Layer, ServiceExt, service_fn};

use crate::{Consumer, Till, again_from, batch, by_payment, deliver, environment, record, records};

#[tokio::test]
async fn an_empty_batch_sends_nothing() {
    let (_world, host, consumer, till) = environment().await;
    assert_eq!(deliver(&consumer, &till, &host, []).await, None);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_batch_sends_two_requests_for_each_record() {
    let (_world, host, consumer, till) = environment().await;
    let three = records([("a", "Done"), ("b", "Done"), ("a", "Done")]);
    assert_eq!(deliver(&consumer, &till, &host, three).await, None);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    assert_eq!(host.requests(), 6);
}

#[tokio::test]
async fn the_answer_names_the_first_record_that_is_not_done() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment().await;
        let five = records([("a", "Done"), ("b", failing), ("c", "Done"), ("d", failing), ("e", "Done")]);
        assert_eq!(deliver(&consumer, &till, &host, five).await.as_deref(), Some("2"));
        assert_eq!(till.ran_in_any_order(), ["1", "2", "3", "4", "5"]);
    }
}

#[tokio::test]
async fn records_that_are_done_behind_a_failure_do_not_run_again() {
    let (world, host, consumer, till) = environment().await;
    let first = records([("a", "Done"), ("b", "Declined"), ("c", "Done"), ("d", "Declined"), ("e", "Done")]);
    assert_eq!(deliver(&consumer, &till, &host, first).await.as_deref(), Some("2"));
    // Lambda delivers again from the second record, with what has arrived since.
    let elsewhere = world.host().build();
    let consumer = StreamConsumer::by_event_id(world.locks(&elsewhere).build().unwrap());
    let again = [("2", "b"), ("3", "c"), ("4", "d"), ("5", "e"), ("6", "f")];
    let again = again.map(|(number, key)| record(number, key, "Done"));
    assert_eq!(deliver(&consumer, &till, &elsewhere, again).await, None);
    let mut ran = till.ran().split_off(5);
    ran.sort();
    assert_eq!(ran, ["2", "4", "6"]);
    assert_eq!(elsewhere.requests(), 3 * 2 + 2);
}

#[tokio::test]
async fn the_answer_has_the_form_that_lambda_expects() {
    let (_world, host, consumer, till) = environment().await;
    let service = consumer.fail_if_all_failed(false).layer(service_fn(move |record| till.clone().pay(record)));
    let two = records([("a", "Declined"), ("b", "Declined")]);
    let answer = service.clone().oneshot(invocation(&host, batch(two))).await.unwrap();
    let expected = json!({ "batchItemFailures": [{ "itemIdentifier": "1" }] });
    assert_eq!(serde_json::to_value(answer).unwrap(), expected);
    let answer = service.oneshot(invocation(&host, batch(records([("a", "Done")])))).await.unwrap();
    assert_eq!(serde_json::to_value(answer).unwrap(), json!({ "batchItemFailures": [] }));
}

#[tokio::test]
async fn a_record_without_a_sequence_number_returns_the_whole_batch() {
    let (_world, host, consumer, till) = environment().await;
    let mut nameless = record("2", "b", "Done");
    nameless.kinesis.sequence_number.clear();
    let batch = || vec![record("1", "a", "Done"), nameless.clone(), record("3", "c", "Declined")];
    // Lambda takes an empty identifier as the failure of the whole batch.
    assert_eq!(deliver(&consumer, &till, &host, batch()).await.as_deref(), Some(""));
    assert_eq!(till.ran_in_any_order(), ["1", "3"]);
    // The first record that is not done is enough for the others to come again.
    let failing_first = [record("4", "d", "Declined"), nameless.clone()];
    assert_eq!(deliver(&consumer, &till, &host, failing_first).await.as_deref(), Some("4"));
}

#[tokio::test]
async fn a_record_with_a_stored_error_is_not_done_and_does_not_run_again() {
    let (world, host, _, till) = environment().await;
    let once = by_payment(&world.locks(&host).build().unwrap());
    let once = once.on_error(|_| OnError::Store(StoredError::new("Declined", "for good")));
    let consumer = StreamConsumer::new(once);
    for _ in 0..2 {
        assert_eq!(deliver(&consumer, &till, &host, records([("a", "Declined")])).await.as_deref(), Some("1"));
    }
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn nothing_is_done_without_a_table() {
    let world = World::without_table();
    let host = world.host().build();
    let consumer = StreamConsumer::by_event_id(world.locks(&host).build().unwrap());
    let till = Till::default();
    let two = records([("a", "Done"), ("b", "Done")]);
    assert_eq!(deliver(&consumer, &till, &host, two).await.as_deref(), Some("1"));
    assert!(till.ran().is_empty());
}

#[tokio::test]
async fn disabled_locks_run_every_record_without_a_request() {
    let (world, host, _, till) = environment().await;
    let consumer = StreamConsumer::by_event_id(world.locks(&host).enabled(false).build().unwrap());
    for _ in 0..2 {
        let two = records([("a", "Done"), ("b", "Declined")]);
        assert_eq!(deliver(&consumer, &till, &host, two).await.as_deref(), Some("2"));
    }
    assert_eq!(till.ran_in_any_order(), ["1", "1", "2", "2"]);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_record_that_is_done_with_an_unreadable_result_is_done() {
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let text: Consumer<crate::Payment, String> = StreamConsumer::by_event_id(locks.clone());
    let handler = service_fn(async |_: KinesisRecord<crate::Payment>| Ok("a result of yesterday".to_owned()));
    let one = || invocation(&host, batch(records([("a", "Done")])));
    assert_eq!(again_from(&text, handler, one()).await, None);
    let number: Consumer<crate::Payment, u32> = StreamConsumer::by_event_id(locks);
    let handler = service_fn(async |_: KinesisRecord<crate::Payment>| panic!("it runs again"));
    assert_eq!(again_from(&number, handler, one()).await, None);
}

#[tokio::test]
async fn a_window_outside_its_bounds_fails_each_record_without_a_request() {
    let (_world, host, consumer, till) = environment().await;
    for window in [Duration::ZERO, Duration::from_hours(367 * 24)] {
        let consumer = consumer.clone().window(window);
        assert_eq!(deliver(&consumer, &till, &host, records([("a", "Done")])).await.as_deref(), Some("1"));
    }
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

/// Delivers a record twice to a handler with this result. Both deliveries are done, and the handler runs once.
async fn assert_done_with<T: Clone + DeserializeOwned + Send + Serialize + Sync + 'static>(result: T) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer: Consumer<crate::Payment, T> = StreamConsumer::by_event_id(world.locks(&host).build().unwrap());
    let runs = Counter::default();
    for _ in 0..2 {
        let (result, runs) = (result.clone(), runs.clone());
        let handler = service_fn(move |_: KinesisRecord<crate::Payment>| {
            runs.count();
            ready(Ok(result.clone()))
        });
        let event = invocation(&host, batch(records([("a", "Done")])));
        assert_eq!(again_from(&consumer, handler, event).await, None);
    }
    assert_eq!(runs.get(), 1);
    assert_eq!(world.row(&crate::row_of("1")).await.unwrap()["status"].as_s().unwrap(), "COMPLETED");
}

#[tokio::test]
async fn a_record_is_done_whatever_its_result() {
    assert_done_with(f64::NAN).await;
    assert_done_with("x".repeat(390 * 1024)).await;
    assert_done_with(HashMap::from([((1, 2), 3)])).await;
}
