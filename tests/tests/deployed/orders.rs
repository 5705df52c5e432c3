//! The function `order-api`: each order is placed once.

use http::StatusCode;
use lambda_example::Order;
use serde_json::{Value, json};

use crate::local_aws::credentials;
use crate::stack::Stack;
use crate::{GATHERING, STACK};

pub(crate) async fn an_order_sent_three_times_is_placed_once(stack: &Stack) {
    let body = json!({ "item": "tea", "quantity": 2, "checking_ms": GATHERING.as_millis() });
    let (first, second) = tokio::join!(stack.order(Some("key-1"), &body), stack.order(Some("key-1"), &body));
    let (placed, refused) = if first.status == StatusCode::CREATED { (first, second) } else { (second, first) };
    assert_eq!((placed.status, refused.status), (StatusCode::CREATED, StatusCode::CONFLICT));
    assert_eq!(placed.headers.get("idempotency-replayed"), None);
    assert_eq!(refused.headers["content-type"], "application/problem+json");
    // At most half of the age of the first request, whose lease is 9 s.
    let seconds: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds), "{seconds}");

    let replayed = stack.order(Some("key-1"), &body).await;
    assert_eq!((replayed.status, &replayed.body), (StatusCode::CREATED, &placed.body));
    assert_eq!(replayed.headers["idempotency-replayed"], "true");

    let other = stack.order(Some("key-1"), &json!({ "item": "tea", "quantity": 3 })).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(stack.order(None, &body).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(stack.order(Some("key-2"), &json!("no order")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(stack.unsigned_order(&body).await.status, StatusCode::FORBIDDEN);

    let order: Order = serde_json::from_slice(&placed.body).unwrap();
    assert_eq!(stack.ids_of_orders().await, [format!("{STACK}-order-api#order#{}", order.id)]);
}

/// The stack must not have the parameter `Simulation`.
pub(crate) async fn a_caller_cannot_choose_how_long_an_order_takes(stack: &Stack, name: &str) {
    let body = json!({ "item": "tea", "quantity": 1, "checking_ms": u64::MAX });
    let answer = stack.order_by(&credentials(), &stack.http_api(name).await, "slow", &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.body);
}

pub(crate) async fn the_api_limits_and_logs_its_requests(stack: &Stack) {
    let host = stack.http_api(STACK).await;
    let stage = stack.api_gateway(&format!("/v2/apis/{}/stages/$default", host.split('.').next().unwrap())).await;
    let limits = &stage["defaultRouteSettings"];
    let [rate, burst] = ["ThrottlingRateLimit", "ThrottlingBurstLimit"].map(|limit| &limits[limit]);
    assert!(!rate.is_null() && rate == burst, "{stage}");
    let log = stage["accessLogSettings"]["destinationArn"].as_str().unwrap();
    assert!(log.contains(&format!("/aws/vendedlogs/{STACK}-order-api")), "{stage}");
    let line = stage["accessLogSettings"]["format"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(line).is_ok_and(|line| line["status"] == "$context.status"), "{line}");
}

pub(crate) async fn the_signer_of_a_request_is_its_caller(stack: &Stack, name: &str) {
    let (api, body) = (stack.http_api(name).await, json!({ "item": "tea", "quantity": 1 }));
    let (one, other) = (credentials(), stack.new_user("another").await);
    for (signer, is_replay) in [(&one, false), (&one, true), (&other, false), (&other, true)] {
        let answer = stack.order_by(signer, &api, "key-1", &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.body);
        assert_eq!(answer.headers.contains_key("idempotency-replayed"), is_replay);
    }
}
