//! `order-api`.

use std::time::Duration;

use aws_lambda_events::lambda_function_urls::LambdaFunctionUrlResponse;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_example::{Order, Orders, Simulation, order_api};
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock::http::Caller;
use lambda_lock_tests::invocation::{LoseAnswers, over_http};
use lambda_lock_tests::{Row, World};
use serde_json::{Value, json};

use super::{PREFIX, rows};

/// The fields of the event that a function URL sends for a posted order.
fn posted(key: &str, body: &Value) -> Value {
    json!({
        "version": "2.0",
        "rawPath": "/orders",
        "headers": { "content-type": "application/json", "host": "shop.example", "idempotency-key": key },
        "requestContext": { "http": { "method": "POST", "path": "/orders" }, "timeEpoch": 0 },
        "body": body.to_string(),
        "isBase64Encoded": false,
    })
}

fn tea(quantity: u32) -> Value {
    json!({ "item": "tea", "quantity": quantity })
}

async fn send(world: &World, host: &Host, request: Value) -> LambdaFunctionUrlResponse {
    send_as(Caller::shared(), world, host, request).await
}

async fn send_as(caller: Caller, world: &World, host: &Host, request: Value) -> LambdaFunctionUrlResponse {
    send_with(Simulation::On, caller, world, host, request).await
}

async fn send_with(
    simulation: Simulation,
    caller: Caller,
    world: &World,
    host: &Host,
    request: Value,
) -> LambdaFunctionUrlResponse {
    let locks = world.locks_with_quick_retries(host).key_prefix(PREFIX).build().unwrap();
    let retries = RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
    let client = Client::from_conf(host.client().config().to_builder().retry_config(retries).build());
    let function = order_api(locks, Orders::new(client, &world.table, PREFIX), caller, simulation);
    serde_json::from_value(over_http(host, function, &request).await).unwrap()
}

fn header<'a>(response: &'a LambdaFunctionUrlResponse, name: &str) -> Option<&'a str> {
    response.headers.get(name).map(|value| value.to_str().unwrap())
}

async fn orders(world: &World) -> Vec<Row> {
    rows(world, "order#").await
}

const PROBLEM: &str = "application/problem+json";

/// The detail of an answer without an order.
fn message(response: &LambdaFunctionUrlResponse) -> String {
    let body: Value = serde_json::from_str(response.body.as_deref().unwrap()).unwrap();
    assert_eq!((header(response, "content-type"), &body["status"]), (Some(PROBLEM), &json!(response.status_code)));
    body["detail"].as_str().unwrap().to_owned()
}

/// Rejects the transaction that writes an order, with this answer of DynamoDB.
#[derive(Debug)]
struct NoOrders(Value);

impl NoOrders {
    /// An answer with this error, and a message that clients must not see.
    fn with(error: &str) -> Self {
        Self(json!({ "__type": error, "message": "secret" }))
    }
}

impl Intercept for NoOrders {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "TransactWriteItems" {
            request["TransactItems"] = json!([]);
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "TransactWriteItems" {
            answer.status = 400;
            answer.body = self.0.clone();
        }
    }
}

#[tokio::test]
async fn an_order_sent_again_gets_the_same_answer_marked_as_replayed() {
    let world = World::new().await;
    let host = world.host().build();
    let first = send(&world, &host, posted("key-1", &tea(2))).await;
    assert_eq!((first.status_code, header(&first, "idempotency-replayed")), (201, None));
    let order: Order = serde_json::from_str(first.body.as_deref().unwrap()).unwrap();
    assert_eq!((order.item.as_str(), order.quantity.get()), ("tea", 2));

    let again = send(&world, &host, posted("key-1", &tea(2))).await;
    assert_eq!((again.status_code, header(&again, "idempotency-replayed")), (201, Some("true")));
    assert_eq!((&again.body, header(&again, "content-type")), (&first.body, Some("application/json")));
    let rows = orders(&world).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["id"], AttributeValue::S(format!("{PREFIX}order#{}", order.id)));
}

#[tokio::test]
async fn two_keys_are_two_orders() {
    let world = World::new().await;
    let host = world.host().build();
    // The second is longer than a key of the table can be.
    for key in ["key-1".to_owned(), "key".repeat(1000)] {
        assert_eq!(send(&world, &host, posted(&key, &tea(2))).await.status_code, 201);
    }
    assert_eq!(orders(&world).await.len(), 2);
}

/// The request of this IAM user.
fn signed_by(user: &str, mut request: Value) -> Value {
    request["requestContext"]["authorizer"] = json!({ "iam": { "userId": user } });
    request
}

#[tokio::test]
async fn two_callers_can_use_one_key() {
    let world = World::new().await;
    let host = world.host().build();
    let send = |request| send_as(Caller::iam_principal(), &world, &host, request);
    for (user, replayed) in [("AIDA1", None), ("AIDA2", None), ("AIDA1", Some("true"))] {
        let answer = send(signed_by(user, posted("key-1", &tea(2)))).await;
        assert_eq!((answer.status_code, header(&answer, "idempotency-replayed")), (201, replayed), "{user}");
    }
    assert_eq!(send(posted("key-1", &tea(2))).await.status_code, 403);
    assert_eq!(orders(&world).await.len(), 2);
}

#[tokio::test]
async fn a_key_that_is_not_ascii_is_a_bad_request() {
    let world = World::new().await;
    let host = world.host().build();
    let refused = send(&world, &host, posted("Schlüssel", &tea(2))).await;
    assert_eq!(refused.status_code, 400);
    let expected =
        "Send one header Idempotency-Key with a string in double quotes, of visible ASCII characters and spaces.";
    assert_eq!(message(&refused), expected);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn rejects_an_oversized_order_before_its_key_is_used() {
    const LARGEST: usize = 4096;
    let world = World::new().await;
    let host = world.host().build();
    let of_bytes = |bytes: usize| {
        let rest = json!({ "item": "tea", "note": "", "quantity": 2 }).to_string().len();
        json!({ "item": "tea", "note": "n".repeat(bytes - rest), "quantity": 2 })
    };
    for bytes in [LARGEST + 1, 1_000_000] {
        let refused = send(&world, &host, posted("key-1", &of_bytes(bytes))).await;
        assert_eq!(refused.status_code, 413);
        assert_eq!(message(&refused), "the order has more than 4096 bytes");
    }
    assert_eq!(host.requests(), 0);
    assert_eq!(send(&world, &host, posted("key-1", &of_bytes(LARGEST))).await.status_code, 201);
    assert_eq!(orders(&world).await.len(), 1);
}

#[tokio::test]
async fn rejects_an_item_that_is_too_long_before_its_key_is_used() {
    let world = World::new().await;
    let host = world.host().build();
    // Each character is twelve bytes of JSON if it is escaped.
    let of_characters = |characters: usize| {
        let mut request = posted("key-1", &Value::Null);
        request["body"] = format!(r#"{{"item": "{}", "quantity": 2}}"#, r"\ud83c\udf75".repeat(characters)).into();
        request
    };
    for characters in [201, 300] {
        let refused = send(&world, &host, of_characters(characters)).await;
        assert_eq!(refused.status_code, 400);
        let expected = format!("the item has {characters} characters: send one with 1 to 200");
        assert_eq!(message(&refused), expected);
    }
    assert_eq!(host.requests(), 0);
    assert_eq!(send(&world, &host, of_characters(200)).await.status_code, 201);
}

#[tokio::test]
async fn a_caller_cannot_choose_how_long_an_order_takes() {
    let world = World::new().await;
    let host = world.host().build();
    let mut slow = tea(2);
    slow["checking_ms"] = u64::MAX.into();
    let request = posted("key-1", &slow);
    let placed = send_with(Simulation::Off, Caller::shared(), &world, &host, request).await;
    assert_eq!(placed.status_code, 201);
}

#[tokio::test]
async fn rejects_what_is_no_posted_order_before_its_key_is_used() {
    let world = World::new().await;
    let host = world.host().build();
    let mut elsewhere = posted("key-1", &tea(2));
    elsewhere["rawPath"] = "/".into();
    let mut read = posted("key-1", &tea(2));
    read["requestContext"]["http"]["method"] = "GET".into();
    let mut encoded = posted("key-1", &tea(2));
    encoded["isBase64Encoded"] = true.into();
    encoded["body"] = "eyJpdGVtIjoidGVhIiwicXVhbnRpdHkiOjJ9".into();
    let mut plain = posted("key-1", &tea(2));
    plain["headers"]["content-type"] = "text/plain".into();
    let nothing = json!({ "item": "", "quantity": 2 });
    let bodies = [json!({ "item": "tea" }), tea(0), json!("tea"), nothing].map(|body| (posted("key-1", &body), 400));
    for (request, status) in [(elsewhere, 404), (read, 405), (encoded, 415), (plain, 415)].into_iter().chain(bodies) {
        assert_eq!(send(&world, &host, request.clone()).await.status_code, status, "{request}");
    }
    assert_eq!(host.requests(), 0);
    assert_eq!(send(&world, &host, posted("key-1", &tea(2))).await.status_code, 201);
}

#[tokio::test]
async fn an_order_with_a_lost_answer_of_the_table_is_placed() {
    let world = World::new().await;
    // All answers to the three tries of the SDK.
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=3)).build();
    let placed = send(&world, &host, posted("key-1", &tea(2))).await;
    assert_eq!(placed.status_code, 201);
    let order: Order = serde_json::from_str(placed.body.as_deref().unwrap()).unwrap();
    let rows = orders(&world).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["id"], AttributeValue::S(format!("{PREFIX}order#{}", order.id)));
}

#[tokio::test]
async fn a_failed_order_does_not_show_its_cause_and_can_be_sent_again() {
    let world = World::new().await;
    let failing = world.host().intercept(NoOrders::with("AccessDeniedException")).build();
    let failed = send(&world, &failing, posted("key-1", &tea(2))).await;
    assert_eq!((failed.status_code, header(&failed, "retry-after")), (500, None));
    assert_eq!(message(&failed), "the order failed");

    let host = world.host().build();
    let again = send(&world, &host, posted("key-1", &tea(2))).await;
    assert_eq!((again.status_code, header(&again, "idempotency-replayed")), (201, None));
}

#[tokio::test]
async fn an_order_that_the_table_throttles_can_be_sent_again() {
    let world = World::new().await;
    let cancelled = |reason: &str| {
        let reasons = json!([{ "Code": "None" }, { "Code": reason }]);
        NoOrders(json!({ "__type": "TransactionCanceledException", "CancellationReasons": reasons }))
    };
    for refusal in [
        NoOrders::with("ThrottlingException"),
        NoOrders::with("TransactionInProgressException"),
        cancelled("TransactionConflict"),
        cancelled("ThrottlingError"),
    ] {
        let printed = format!("{refusal:?}");
        let refused = send(&world, &world.host().intercept(refusal).build(), posted("key-1", &tea(2))).await;
        assert_eq!((refused.status_code, header(&refused, "retry-after")), (503, Some("1")), "{printed}");
        assert_eq!(message(&refused), "try again with the same key");
    }
    let larger = world.host().intercept(cancelled("ValidationError")).build();
    assert_eq!(send(&world, &larger, posted("key-1", &tea(2))).await.status_code, 500);
    assert_eq!(send(&world, &world.host().build(), posted("key-1", &tea(2))).await.status_code, 201);
}
