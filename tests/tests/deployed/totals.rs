//! The function `order-totals`: each order is counted once.
//!
//! `MiniStack` delivers the records of the table's stream, by the filter of the mapping. It ignores the answer to a batch:
//! it neither delivers again from the number that the answer names, nor bisects, nor counts retries. So this test
//! delivers again itself.

use std::time::Duration;

use serde_json::{Value, json};

use crate::stack::{Stack, in_stack};
use crate::{REGION, loop_until};

/// Needs the placed order of two items, and no other.
pub(crate) async fn a_placed_order_is_counted_once(stack: &Stack) {
    let counted = loop_until(Duration::from_mins(1), async || stack.total("tea").await).await;
    assert_eq!(counted, [1, 2]);
    // The total did not invoke the function. The log has its lines a moment later.
    let runs = async || {
        let lines = stack.log("order-totals").await;
        let runs = lines.iter().filter(|line| line["fields"]["message"] == "counted").count();
        (runs > 0).then_some(runs)
    };
    assert_eq!(loop_until(Duration::from_secs(10), runs).await, 1);
}

pub(crate) async fn a_record_delivered_again_is_not_counted_again(stack: &Stack) {
    let [first, poison, last] = [record(1, Some(3)), record(2, None), record(3, Some(4))];
    let from_poison = json!({ "batchItemFailures": [{ "itemIdentifier": "2" }] });
    assert_eq!(stack.records(&json!([first, poison, last])).await, from_poison);
    assert_eq!(stack.records(&json!([poison, last])).await, from_poison);
    assert_eq!(stack.records(&json!([first, last])).await, json!({ "batchItemFailures": [] }));
    assert_eq!(stack.total("coffee").await, Some([2, 7]));
}

/// The record of an order of coffee as Lambda sends it. Without a quantity, it cannot be read.
fn record(number: u32, quantity: Option<u32>) -> Value {
    let id = json!({ "S": format!("{}#order#{number}", in_stack("order-api")) });
    let mut image = json!({ "id": id, "item": { "S": "coffee" } });
    if let Some(quantity) = quantity {
        image["quantity"] = json!({ "N": quantity.to_string() });
    }
    json!({
        "awsRegion": REGION,
        "dynamodb": { "Keys": { "id": id }, "NewImage": image, "SequenceNumber": number.to_string(), "SizeBytes": 64 },
        "eventID": format!("event-{number}"),
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": format!("arn:aws:dynamodb:{REGION}:000000000000:table/orders/stream/1"),
    })
}
