//! `order-totals`.

use std::sync::atomic::{AtomicUsize, Ordering};

use lambda_example::{Totals, order_totals};
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock_tests::invocation::{LoseAnswers, invocation};
use lambda_lock_tests::{Row, World};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{PREFIX, rows};

/// The record of an order as Lambda sends it. Without a quantity, it cannot be read.
fn placed(number: u32, name: &str, quantity: Option<u32>) -> Value {
    placed_of("tea", number, name, quantity)
}

fn placed_of(item: &str, number: u32, name: &str, quantity: Option<u32>) -> Value {
    let id = json!({ "S": format!("{PREFIX}order#{number}") });
    let mut image = json!({ "id": id, "item": { "S": item } });
    if let Some(quantity) = quantity {
        image["quantity"] = json!({ "N": quantity.to_string() });
    }
    json!({
        "awsRegion": "us-east-1",
        "dynamodb": { "Keys": { "id": id }, "NewImage": image, "SequenceNumber": number.to_string(), "SizeBytes": 64 },
        "eventID": format!("event-{number}"),
        "eventName": name,
        "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/1",
    })
}

/// Delivers the records as one batch, and returns the number that the answer names.
async fn count(world: &World, host: &Host, records: &[Value]) -> Option<String> {
    let locks = world.locks_with_quick_retries(host).key_prefix(PREFIX).build().unwrap();
    let function = order_totals(locks, Totals::new(host.client(), &world.table, PREFIX));
    let first = records[0]["dynamodb"]["SequenceNumber"].as_str().unwrap().to_owned();
    let event = serde_json::from_value(json!({ "Records": records })).unwrap();
    // Lambda delivers the whole batch of a failed invocation again.
    let Ok(mut answer) = function.oneshot(invocation(host, event)).await else { return Some(first) };
    assert!(answer.batch_item_failures.len() <= 1);
    answer.batch_item_failures.pop().map(|failure| failure.item_identifier.unwrap())
}

/// The number and the quantity of the orders.
async fn total(world: &World) -> [u32; 2] {
    counts(&world.row(&format!("{PREFIX}total#tea")).await.unwrap_or_default())
}

fn counts(row: &Row) -> [u32; 2] {
    ["orders", "quantity"].map(|count| row.get(count).map_or(0, |count| count.as_n().unwrap().parse().unwrap()))
}

#[tokio::test]
async fn an_order_is_counted_once_and_an_unreadable_one_is_named() {
    let world = World::new().await;
    let host = world.host().build();
    let batch = [placed(1, "INSERT", Some(2)), placed(2, "INSERT", None), placed(3, "INSERT", Some(4))];
    assert_eq!(count(&world, &host, &batch).await.as_deref(), Some("2"));
    assert_eq!(count(&world, &host, &batch[1..]).await.as_deref(), Some("2"));
    assert_eq!(count(&world, &host, &[placed(4, "MODIFY", Some(8)), placed(5, "INSERT", Some(1))]).await, None);
    assert_eq!(total(&world).await, [3, 7]);
}

#[tokio::test]
async fn orders_of_items_longer_than_a_key_are_counted_by_item() {
    let world = World::new().await;
    let host = world.host().build();
    let [cup, pot] = ["cup", "pot"].map(|end| format!("{}{end}", "é".repeat(64 * 1024)));
    let orders = [(&cup, 1), (&pot, 2), (&cup, 4)];
    let batch: Vec<_> =
        (1..).zip(orders).map(|(number, (item, quantity))| placed_of(item, number, "INSERT", Some(quantity))).collect();
    assert_eq!(count(&world, &host, &batch).await, None);
    let mut totals: Vec<_> = rows(&world, "hashed-total#").await.iter().map(counts).collect();
    totals.sort_unstable();
    assert_eq!(totals, [[1, 2], [2, 5]]);
}

#[tokio::test]
async fn an_order_with_a_lost_answer_of_the_table_is_counted_once() {
    let world = World::new().await;
    // All answers to the three tries of the SDK.
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=3)).build();
    for _ in 0..2 {
        assert_eq!(count(&world, &host, &[placed(1, "INSERT", Some(2))]).await, None);
    }
    assert_eq!(total(&world).await, [1, 2]);
}

/// Cancels the first transactions because of others on the same row.
#[derive(Debug)]
struct Conflicts(AtomicUsize);

impl Intercept for Conflicts {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "TransactWriteItems" && self.0.load(Ordering::Relaxed) > 0 {
            request["TransactItems"] = json!([]);
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "TransactWriteItems" && self.0.load(Ordering::Relaxed) > 0 {
            self.0.fetch_sub(1, Ordering::Relaxed);
            let reasons = json!([{ "Code": "TransactionConflict" }, { "Code": "None" }]);
            answer.status = 400;
            answer.body = json!({ "__type": "TransactionCanceledException", "CancellationReasons": reasons });
        }
    }
}

#[tokio::test]
async fn an_order_is_counted_after_two_conflicts_and_named_after_three() {
    for (conflicts, again, counted) in [(2, None, [1, 2]), (3, Some("1"), [0, 0])] {
        let world = World::new().await;
        let host = world.host().intercept(Conflicts(AtomicUsize::new(conflicts))).build();
        assert_eq!(count(&world, &host, &[placed(1, "INSERT", Some(2))]).await.as_deref(), again);
        assert_eq!(total(&world).await, counted);
    }
}
