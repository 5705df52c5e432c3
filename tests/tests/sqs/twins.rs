//! Messages of one batch with the same key: an outcome does not depend on what shares a batch.

use lambda_lock::idempotency::StoredError;
use lambda_lock::{OnError, SqsConsumer};
use serde_json::json;

use crate::{by_payment, deliver, environment, message, message_with_body, ordered};

#[tokio::test]
async fn messages_with_one_key_and_different_fields_are_no_twins() {
    let (world, host, _, till) = environment().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).validate(|message| message.body.amount);
    let consumer = SqsConsumer::new(once).concurrency(1);
    let paying = |id, amount| message_with_body(id, &json!({ "id": "17", "amount": amount }).to_string());
    let messages = [paying("1", 5), paying("2", 6), paying("3", 5)];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2"]);
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn a_twin_of_a_message_that_is_not_done_runs_itself() {
    for failing in ["Declined", "Panic"] {
        let (world, host, _, till) = environment().await;
        let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
        let twin = |id, then| message_with_body(id, &json!({ "id": "17", "then": then }).to_string());
        let messages = [message("0", "Done"), twin("1", failing), twin("2", "Done"), twin("3", failing)];
        assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1"]);
        assert_eq!(till.ran_in_any_order(), ["0", "1", "2"]);
    }
}

#[tokio::test]
async fn a_message_that_is_in_the_batch_twice_runs_once() {
    for (then, failed) in [("Done", vec![]), ("Declined", vec!["1", "1"])] {
        let (world, host, _, till) = environment().await;
        let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
        let messages = ["1", "0", "1"].map(|id| message(id, if id == "0" { "Done" } else { then }));
        assert_eq!(deliver(&consumer, &till, &host, messages).await, failed);
        assert_eq!(till.ran_in_any_order(), ["0", "1"]);
        assert_eq!(host.requests(), 4);
    }
}

#[tokio::test]
async fn each_twin_gets_the_stored_error_of_the_first() {
    let (world, host, _, till) = environment().await;
    let once = by_payment(&world.locks(&host).build().unwrap());
    let consumer = SqsConsumer::new(once.on_error(|_| OnError::Store(StoredError::new("Declined", "by the bank"))));
    let twin = |id, then| message_with_body(id, &json!({ "id": "17", "then": then }).to_string());
    let messages = [twin("1", "Declined"), twin("2", "Done"), message("3", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2"]);
    assert_eq!(till.ran_in_any_order(), ["1", "3"]);
}

#[tokio::test]
async fn twins_in_two_groups_run_once() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    let of = |id, group| {
        let mut message = ordered(id, group, "Done");
        message.body = Some(json!({ "id": "17" }).to_string());
        message
    };
    let failed = deliver(&consumer, &till, &host, [of("1", "a"), of("2", "b")]).await;
    assert_eq!(till.ran().len(), 1);
    assert!(!failed.contains(&till.ran()[0]), "{failed:?}");
    assert!(deliver(&consumer, &till, &host, [of("1", "a"), of("2", "b")]).await.is_empty());
    assert_eq!(till.ran().len(), 1);
}
