//! The function `order-api`: each order is placed once.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};
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

/// The keys, and the requests of each one that are sent at once and later.
const KEYS: usize = 200;
const AT_ONCE: usize = 3;
const LATER: usize = 2;

pub(crate) async fn a_thousand_requests_place_two_hundred_orders(stack: &Stack) {
    let before = stack.ids_of_orders().await.len();
    let api = &stack.http_api(STACK).await;
    // The requests of one key alternate between the function URL and API Gateway.
    let send = async |key: usize, nth: usize| {
        let (name, body) = (format!("\"order {key}\""), json!({ "item": format!("item {key}"), "quantity": 1 }));
        let answer = match nth % 2 {
            0 => stack.order(Some(&name), &body).await,
            _ => stack.order_through(api, &name, &body).await,
        };
        let is_replay = answer.headers.contains_key("idempotency-replayed");
        (key, answer.status, answer.headers["content-type"].clone(), answer.body, is_replay)
    };
    let wave = async |requests: usize| -> Vec<_> {
        let requests = (0..KEYS * requests).map(|index| send(index / requests, index % requests));
        stream::iter(requests).buffer_unordered(8).collect().await
    };

    let mut placed = BTreeMap::new();
    let mut first_answers = 0;
    let at_once = wave(AT_ONCE).await;
    assert_eq!(at_once.len(), KEYS * AT_ONCE);
    for (key, status, content_type, body, is_replay) in at_once {
        if status == StatusCode::CONFLICT {
            assert_eq!(content_type, "application/problem+json");
            continue;
        }
        assert_eq!((status, content_type.to_str().unwrap()), (StatusCode::CREATED, "application/json"), "{body:?}");
        first_answers += usize::from(!is_replay);
        assert_eq!(placed.entry(key).or_insert_with(|| body.clone()), &body);
    }
    assert_eq!((placed.len(), first_answers), (KEYS, KEYS));

    let later = wave(LATER).await;
    assert_eq!(later.len(), KEYS * LATER);
    for (key, status, content_type, body, is_replay) in later {
        assert_eq!((status, content_type.to_str().unwrap()), (StatusCode::CREATED, "application/json"), "{body:?}");
        assert!(is_replay && body == placed[&key], "{key}: {body:?}");
    }
    assert_eq!(stack.ids_of_orders().await.len(), before + KEYS);
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
