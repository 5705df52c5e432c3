//! Which messages go back to the queue, and which are done.

use std::collections::HashMap;
use std::future::ready;
use std::time::Duration;

use lambda_lock::idempotency::StoredError;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{OnError, SqsConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, invocation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    Consumer, Declined, Payment, Then, Till, batch, by_payment, deliver, environment, failures, message,
    message_with_body, row_of,
};

#[tokio::test]
async fn an_empty_batch_sends_nothing() {
    let (_world, host, consumer, till) = environment().await;
    assert!(deliver(&consumer, &till, &host, []).await.is_empty());
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_batch_sends_two_requests_for_each_message() {
    let (_world, host, consumer, till) = environment().await;
    assert!(deliver(&consumer, &till, &host, ["1", "2", "3"].map(|id| message(id, "Done"))).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    assert_eq!(host.requests(), 6);
}

#[tokio::test]
async fn only_failed_messages_go_back_in_the_order_of_the_batch() {
    let (_world, host, consumer, till) = environment().await;
    let thens = ["Declined", "Done", "Panic", "Done", "Declined"];
    let messages = thens.into_iter().zip('1'..).map(|(then, id)| message(&id.to_string(), then));
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "3", "5"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn the_answer_has_the_form_that_lambda_expects() {
    let (_world, host, consumer, till) = environment().await;
    let service = consumer.layer(service_fn(move |message| till.clone().pay(message)));
    let messages = [message("1", "Declined"), message("2", "Done")];
    let answer = service.oneshot(invocation(&host, batch(messages))).await.unwrap();
    let expected = json!({ "batchItemFailures": [{ "itemIdentifier": "1" }] });
    assert_eq!(serde_json::to_value(answer).unwrap(), expected);
}

#[tokio::test]
async fn a_message_that_is_done_does_not_run_again_and_sends_one_request() {
    let (world, host, consumer, till) = environment().await;
    let messages = || [message("1", "Done"), message("2", "Declined")];
    assert_eq!(deliver(&consumer, &till, &host, messages()).await, ["2"]);
    let elsewhere = world.host().build();
    let consumer = SqsConsumer::by_message_id(world.locks(&elsewhere).build().unwrap());
    assert_eq!(deliver(&consumer, &till, &elsewhere, messages()).await, ["2"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "2"]);
    assert_eq!(elsewhere.requests(), 1 + 2);
}

#[tokio::test]
async fn a_failed_message_runs_again() {
    let (_world, host, consumer, till) = environment().await;
    for then in ["Declined", "Panic"] {
        assert_eq!(deliver(&consumer, &till, &host, [message("1", then)]).await, ["1"]);
    }
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
    assert_eq!(till.ran().len(), 3);
}

#[tokio::test]
async fn a_message_with_a_stored_error_goes_back_without_a_run() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = by_payment(&locks).on_error(|Declined| OnError::Store(StoredError::new("Declined", "for good")));
    let consumer = SqsConsumer::new(once);
    for _ in 0..2 {
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Declined")]).await, ["1"]);
    }
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn only_messages_with_an_unreadable_body_go_back() {
    let (_world, host, consumer, till) = environment().await;
    let mut without_body = message("4", "Done");
    without_body.body = None;
    let messages = [
        message_with_body("1", "{\"id\": "),
        message("2", "Done"),
        message_with_body("3", "{\"id\": 3}"),
        without_body,
        message_with_body("5", ""),
        message("6", "Done"),
    ];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "3", "4", "5"]);
    assert_eq!(till.ran_in_any_order(), ["2", "6"]);
    assert_eq!(host.requests(), 4);
}

#[tokio::test]
async fn with_parser_parses_bodies_that_are_not_json() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer: Consumer = SqsConsumer::with_parser(by_payment(&locks), |text| match text.strip_prefix("pay ") {
        Some(id) => Ok(Payment { id: id.to_owned(), amount: 0, then: Then::Done }),
        None => Err("it is no payment"),
    });
    let messages = [message_with_body("1", "pay 17"), message_with_body("2", "refund 17")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2"]);
    assert!(world.row(&row_of("17")).await.is_some());
}

#[tokio::test]
async fn a_message_without_an_id_goes_back_under_an_empty_id() {
    let (_world, host, consumer, till) = environment().await;
    let mut nameless = message("1", "Done");
    nameless.message_id = None;
    let messages = [message("0", "Done"), nameless, message("2", "Declined"), message("3", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["", "2"]);
    assert_eq!(till.ran_in_any_order(), ["0", "2", "3"]);
}

#[tokio::test]
async fn every_message_goes_back_without_a_table() {
    let world = World::without_table();
    let host = world.host().build();
    let consumer = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    let till = Till::default();
    let messages = ["1", "2"].map(|id| message(id, "Done"));
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2"]);
    assert!(till.ran().is_empty());
}

#[tokio::test]
async fn disabled_locks_run_every_message_without_a_request() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_message_id(world.locks(&host).enabled(false).build().unwrap());
    for _ in 0..2 {
        let messages = [message("1", "Done"), message("2", "Declined")];
        assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2"]);
    }
    assert_eq!(till.ran_in_any_order(), ["1", "1", "2", "2"]);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn settings_outside_their_bounds_return_every_message_without_a_request() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = SqsConsumer::new(by_payment(&locks).window(Duration::ZERO));
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done")]).await, ["1"]);
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_message_that_is_done_with_an_unreadable_result_is_deleted() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let text: Consumer<String> = SqsConsumer::by_message_id(locks.clone());
    let handler = service_fn(async |_: SqsMessage<Payment>| Ok("a result of yesterday".to_owned()));
    assert!(failures(&text, handler, invocation(&host, batch([message("1", "Done")]))).await.is_empty());
    let number: Consumer<u32> = SqsConsumer::by_message_id(locks);
    let handler = service_fn(async |_: SqsMessage<Payment>| panic!("it runs again"));
    assert!(failures(&number, handler, invocation(&host, batch([message("1", "Done")]))).await.is_empty());
}

/// Delivers a message twice to a handler with this result. Both deliveries are done, and the handler runs once.
async fn assert_done_with<T: Clone + DeserializeOwned + Send + Serialize + Sync + 'static>(result: T) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer: Consumer<T> = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    let runs = Counter::default();
    for _ in 0..2 {
        let (result, runs) = (result.clone(), runs.clone());
        let handler = service_fn(move |_: SqsMessage<Payment>| {
            runs.count();
            ready(Ok(result.clone()))
        });
        assert!(failures(&consumer, handler, invocation(&host, batch([message("1", "Done")]))).await.is_empty());
    }
    assert_eq!(runs.get(), 1);
    assert_eq!(world.row(&row_of("1")).await.unwrap()["status"].as_s().unwrap(), "COMPLETED");
}

#[tokio::test]
async fn a_message_is_done_whatever_its_result() {
    assert_done_with(f64::NAN).await;
    assert_done_with("x".repeat(390 * 1024)).await;
    assert_done_with(HashMap::from([((1, 2), 3)])).await;
}
