//! The function `order-api`: each order is placed once.

use http::StatusCode;
use lambda_example::Order;
use serde_json::json;

use crate::stack::Stack;
use crate::{GATHERING, STACK};

// behaviours 60, 63, 66, 69
pub(crate) async fn an_order_sent_three_times_is_placed_once(stack: &Stack) {
    let body = json!({ "item": "tea", "quantity": 2, "checking_ms": GATHERING.as_millis() });
    let (first, second) = tokio::join!(stack.order(Some("key-1"), &body), stack.order(Some("key-1"), &body));
    let (placed, refused) = if first.status == StatusCode::CREATED { (first, second) } else { (second, first) };
    assert_eq!((placed.status, refused.status), (StatusCode::CREATED, StatusCode::CONFLICT));
    assert_eq!(placed.headers.get("idempotency-replayed"), None);
    assert_eq!(refused.headers["retry-after"], "1");

    let replayed = stack.order(Some("key-1"), &body).await;
    assert_eq!((replayed.status, &replayed.body), (StatusCode::CREATED, &placed.body));
    assert_eq!(replayed.headers["idempotency-replayed"], "true");

    let other = stack.order(Some("key-1"), &json!({ "item": "tea", "quantity": 3 })).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(stack.order(None, &body).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(stack.unsigned_order(&body).await.status, StatusCode::FORBIDDEN);

    let order: Order = serde_json::from_slice(&placed.body).unwrap();
    assert_eq!(stack.ids_of_orders().await, [format!("{STACK}-order-api#order#{}", order.id)]);
}
