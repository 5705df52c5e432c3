//! The function `order-totals` at a shard in this process: a crash in the middle of a batch, whose record in progress
//! the next delivery waits for, a record that is no order, and a batch that Lambda delivers once more.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anstream::println;
use aws_lambda_events::dynamodb::Event;
use lambda_example::{Totals, order_totals};
use lambda_lock::Locks;
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_runtime::{Error, LambdaEvent};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::ServiceExt;

use super::{Cloud, context};
use crate::scene::{Scene, expect, table};

/// The function's timeout.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The orders of the shard: the item and the quantity. One has no quantity.
const ORDERS: [(&str, Option<u32>); 6] =
    [("tea", Some(2)), ("tea", Some(3)), ("coffee", Some(1)), ("tea", None), ("tea", Some(4)), ("coffee", Some(5))];
/// The position of the order without a quantity.
const POISON: usize = 3;

pub(crate) const SCENES: &[Scene] = &[Scene {
    name: "stream",
    title: "A batch of a stream runs again after a crash",
    world: "order-totals counts a batch of six orders. Its environment dies when it begins the third one, so Lambda \
            delivers the whole batch again. The fourth order has no quantity, so it always fails. Then Lambda loses an \
            answer, and delivers everything once more.",
    should: "The orders before the crash are not counted again. The third one waits until the lease of the crashed \
             environment (2 s) and 1 s of clock skew have passed. Each answer says that Lambda may go on from the fourth.",
    guide: "recipes/streams",
    play: |cloud| Box::pin(batches(cloud)),
}];

async fn batches(cloud: &Cloud) -> Result<String, Error> {
    let shard = Shard { cloud, prefix: cloud.new_prefix("order-totals") };
    let begun = Arc::new(Notify::new());
    let host = cloud.new_host().intercept(Third(Arc::clone(&begun))).build();
    let work = tokio::spawn(shard.delivery(1, 0).to(host.clone()));
    begun.notified().await;
    host.crash();
    work.abort();

    let started = host.now();
    let mut answers = Vec::new();
    // The whole batch again; then from the record that the answer names; and once more, after Lambda lost the answer.
    for (number, from) in [(2, 0), (3, POISON), (4, 0)] {
        answers.push(shard.delivery(number, from).to(cloud.host()).await?);
    }
    let mut table = table(["delivery", "orders", "answer", "requests", "after the crash"]);
    table.add_row(["1", "1 to 6", "none: it crashed", "", ""]);
    for answer in &answers {
        let again = answer.again_from.as_ref().map_or("all done".to_owned(), |from| format!("again from {from}"));
        let records = format!("{} to {}", answer.from + 1, ORDERS.len());
        let after = format!("{} ms", answer.at.duration_since(started)?.as_millis());
        table.add_row([answer.number.to_string(), records, again, answer.requests.to_string(), after]);
    }
    println!("{table}");
    let poison = (POISON + 1).to_string();
    let all_named_poison = answers.iter().all(|answer| answer.again_from.as_ref() == Some(&poison));
    expect(all_named_poison, "an answer does not name the order without a quantity")?;
    let waited = answers[0].at.duration_since(started)?;
    expect(waited > Duration::from_millis(2900), format!("the next delivery waited {waited:?} for the crashed one"))?;
    // A record that was done before costs one request.
    let requests: Vec<_> = answers[1..].iter().map(|answer| answer.requests).collect();
    expect(requests == [2, 5], format!("the later deliveries sent {requests:?} requests"))?;
    for (item, orders, quantity) in [("tea", 3, 9), ("coffee", 2, 6)] {
        let row = cloud.row(format!("{}total#{item}", shard.prefix)).await?.unwrap_or_default();
        let count = |attribute: &str| row.get(attribute).and_then(|count| count.as_n().ok()?.parse::<u64>().ok());
        let found = [count("orders"), count("quantity")].map(Option::unwrap_or_default);
        expect(found == [orders, quantity], format!("{item} has the totals {found:?}, not {:?}", [orders, quantity]))?;
    }
    Ok("Each of the five good orders was counted once: 3 orders of tea, and 2 of coffee.".to_owned())
}

/// Notifies when the record of the third order is in progress.
#[derive(Debug)]
struct Third(Arc<Notify>);

impl Intercept for Third {
    fn answer(&self, operation: &str, request: &Value, _: &mut Answer) {
        let key = request["Key"]["id"]["S"].as_str().unwrap_or_default();
        if operation == "UpdateItem" && key.ends_with("event-3") {
            self.0.notify_one();
        }
    }
}

struct Shard<'a> {
    cloud: &'a Cloud,
    prefix: String,
}

impl Shard<'_> {
    /// Returns a delivery of the orders from a position on.
    fn delivery(&self, number: usize, from: usize) -> Delivery {
        let records: Vec<_> = (from..ORDERS.len()).map(|position| record(&self.prefix, position)).collect();
        let (table, data_table) = (self.cloud.table.clone(), self.cloud.data_table.clone());
        Delivery { number, from, records, table, data_table, prefix: self.prefix.clone() }
    }
}

/// Returns the record of an order as Lambda sends it. Its sequence number is its place in the shard.
fn record(shop: &str, position: usize) -> Value {
    let (item, quantity) = ORDERS[position];
    let number = (position + 1).to_string();
    let id = json!({ "S": format!("{shop}order#{number}") });
    let mut image = json!({ "id": id, "item": { "S": item } });
    if let Some(quantity) = quantity {
        image["quantity"] = json!({ "N": quantity.to_string() });
    }
    json!({
        "awsRegion": "us-east-1",
        "dynamodb": { "Keys": { "id": id }, "NewImage": image, "SequenceNumber": number, "SizeBytes": 64 },
        "eventID": format!("event-{number}"),
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/2026-11-22T00:00:00.000",
    })
}

/// One batch to its own environment.
struct Delivery {
    number: usize,
    from: usize,
    records: Vec<Value>,
    table: String,
    data_table: String,
    prefix: String,
}

/// The answer to a batch.
struct Answered {
    number: usize,
    from: usize,
    again_from: Option<String>,
    requests: u64,
    at: SystemTime,
}

impl Delivery {
    async fn to(self, host: Host) -> Result<Answered, Error> {
        let Self { number, from, records, table, data_table, prefix } = self;
        let locks = Locks::builder(host.client(), table).key_prefix(&prefix).build()?;
        let function = order_totals(locks, Totals::new(host.client(), data_table, prefix));
        let event: Event = serde_json::from_value(json!({ "Records": records }))?;
        let event = LambdaEvent::new(event, context("order-totals", number, host.now() + TIMEOUT));
        let again_from = match function.oneshot(event).await {
            Ok(answer) => answer.batch_item_failures.into_iter().next().and_then(|failure| failure.item_identifier),
            // Lambda delivers the whole batch of a failed invocation again.
            Err(_) => Some((from + 1).to_string()),
        };
        Ok(Answered { number, from, again_from, requests: host.requests(), at: host.now() })
    }
}
