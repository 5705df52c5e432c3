//! From which record Lambda delivers again, and which records then run.

use lambda_lock_tests::invocation::invocation;
use serde_json::json;
use tower::{Layer, ServiceExt, service_fn};

use crate::{batch, deliver, environment, record, records};

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
