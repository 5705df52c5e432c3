//! The function `order-api` under duplicate requests, and in environments that crash before and after the order is
//! written.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anstream::println;
use aws_lambda_events::lambda_function_urls::LambdaFunctionUrlResponse;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_example::{Orders, Simulation, order_api};
use lambda_http::Adapter;
use lambda_http::request::LambdaRequest;
use lambda_lock::Locks;
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock::http::Caller;
use lambda_runtime::{Error, LambdaEvent};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;
use tower::ServiceExt;

use super::{Cloud, context};
use crate::scene::{Scene, expect, table};

pub(crate) const SCENES: &[Scene] = &[
    Scene {
        name: "retry",
        title: "A client sends an order again",
        world: "A client orders tea from order-api twice at once, because its first request took long, and once more \
                later. Then it uses the same Idempotency-Key for five teas.",
        should: "One order. The request that comes while the first one runs gets 409, the later one gets the stored \
                 answer of the first one, and the other order gets 422, because the key belongs to the first order.",
        guide: "recipes/http",
        play: |cloud| Box::pin(retry(Shop::new(cloud))),
    },
    Scene {
        name: "crash-before",
        title: "An environment crashes before it writes the order",
        world: "It dies while it checks the stock, 1.5 s before its deadline. The client retries every half second.",
        should: "The client gets 409 until the lease and 1 s of clock skew have passed. Then the order is placed, once.",
        guide: "reference/idempotency",
        play: |cloud| Box::pin(crash_before_the_write(Shop::new(cloud))),
    },
    Scene {
        name: "crash-after",
        title: "An environment crashes after it wrote the order",
        world: "It dies after DynamoDB has committed the order, and before it answers. The client retries.",
        should: "The retry gets the answer that was committed together with the order, and no second order is placed.",
        guide: "reference/idempotency",
        play: |cloud| Box::pin(crash_after_the_write(Shop::new(cloud))),
    },
];

async fn retry(shop: Shop<'_>) -> Result<String, Error> {
    let send = |number, quantity| shop.request(number, "tea", quantity, 300).send(shop.cloud.host());
    let (first, second) = tokio::join!(send(1, 2), send(2, 2));
    let later = send(3, 2).await;
    let other = send(4, 5).await;
    let replies = [first?, second?, later?, other?];
    print(false, &replies);

    let mut statuses = replies.each_ref().map(|reply| reply.response.status_code);
    statuses[..2].sort_unstable();
    expect(statuses == [201, 409, 201, 422], format!("the answers' statuses were {statuses:?}"))?;
    let placed: Vec<_> = replies.iter().filter(|reply| reply.response.status_code == 201).collect();
    let replays: Vec<_> = placed.iter().map(|reply| reply.is_replay()).collect();
    expect(replays == [false, true], "the later answer is not the only replay")?;
    expect(placed[0].response.body == placed[1].response.body, "the replayed answer differs from the first")?;
    shop.expect_one_order_of("tea").await
}

/// Longer than the time after which the environment crashes.
const CHECKING_MS: u64 = 1000;

async fn crash_before_the_write(shop: Shop<'_>) -> Result<String, Error> {
    let host = shop.cloud.host();
    let doomed = shop.request(1, "coffee", 1, CHECKING_MS).timeout(Duration::from_secs(2)).send(host.clone());
    let work = tokio::spawn(doomed);
    sleep(Duration::from_millis(500)).await;
    host.crash();
    work.abort();

    let crashed = host.now();
    let mut replies = Vec::new();
    for number in 2..20 {
        let reply = shop.request(number, "coffee", 1, CHECKING_MS).send(shop.cloud.host()).await?;
        let is_in_progress = reply.response.status_code == 409;
        replies.push(reply);
        if !is_in_progress {
            break;
        }
        sleep(Duration::from_millis(500)).await;
    }
    print(true, &replies);
    let after = elapsed(&host, crashed).saturating_sub(Duration::from_millis(CHECKING_MS)).as_secs_f64();
    expect(
        after > 2.3,
        format!("an order was begun {after:.1} s after the crash, before the lease and the skew had passed"),
    )?;
    expect(replies.iter().any(|reply| reply.response.status_code == 201), "the order was not placed")?;
    shop.expect_one_order_of("coffee").await
}

async fn crash_after_the_write(shop: Shop<'_>) -> Result<String, Error> {
    let written = Arc::new(Notify::new());
    let host = shop.cloud.new_host().intercept(Written(Arc::clone(&written))).build();
    let work = tokio::spawn(shop.request(1, "cocoa", 3, 0).send(host.clone()));
    written.notified().await;
    host.crash();
    work.abort();

    let replies = [shop.request(2, "cocoa", 3, 0).send(shop.cloud.host()).await?];
    print(true, &replies);
    expect(replies[0].is_replay(), "the order was written without its answer")?;
    shop.expect_one_order_of("cocoa").await
}

/// Notifies when DynamoDB has committed a transaction.
#[derive(Debug)]
struct Written(Arc<Notify>);

impl Intercept for Written {
    fn answer(&self, operation: &str, _: &Value, _: &mut Answer) {
        if operation == "TransactWriteItems" {
            self.0.notify_one();
        }
    }
}

/// The function's tables and the prefix of its rows.
struct Shop<'a> {
    cloud: &'a Cloud,
    prefix: String,
}

impl<'a> Shop<'a> {
    fn new(cloud: &'a Cloud) -> Self {
        Self { cloud, prefix: cloud.new_prefix("order-api") }
    }

    /// Returns a request whose key is the item.
    fn request(&self, number: usize, item: &str, quantity: u32, checking_ms: u64) -> Request {
        Request {
            number,
            table: self.cloud.table.clone(),
            data_table: self.cloud.data_table.clone(),
            prefix: self.prefix.clone(),
            key: format!("order of {item}"),
            body: json!({ "item": item, "quantity": quantity, "checking_ms": checking_ms }).to_string(),
            timeout: Duration::from_secs(10),
        }
    }

    async fn expect_one_order_of(&self, item: &str) -> Result<String, Error> {
        let orders: Result<Vec<_>, _> = self
            .cloud
            .host()
            .client()
            .scan()
            .table_name(&self.cloud.data_table)
            .consistent_read(true)
            .filter_expression("begins_with(id, :orders) AND #item = :item")
            .expression_attribute_names("#item", "item")
            .expression_attribute_values(":orders", AttributeValue::S(format!("{}order#", self.prefix)))
            .expression_attribute_values(":item", AttributeValue::S(item.to_owned()))
            .into_paginator()
            .items()
            .send()
            .collect()
            .await;
        let orders = orders?.len();
        expect(orders == 1, format!("{orders} orders of {item} were written, not 1"))?;
        Ok(format!("The table has one order of {item}."))
    }
}

/// One request to its own environment.
struct Request {
    number: usize,
    table: String,
    data_table: String,
    prefix: String,
    key: String,
    body: String,
    timeout: Duration,
}

impl Request {
    fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    async fn send(self, host: Host) -> Result<Reply, Error> {
        let Self { number, table, data_table, prefix, key, body, timeout } = self;
        let started = host.now();
        let locks = Locks::builder(host.client(), table).key_prefix(&prefix).build()?;
        let orders = Orders::new(host.client(), data_table, prefix);
        let function = order_api(locks, orders, Caller::shared(), Simulation::On);
        let request = json!({
            "rawPath": "/orders",
            "headers": { "content-type": "application/json", "idempotency-key": key },
            "requestContext": { "http": { "method": "POST" }, "timeEpoch": super::since_epoch_ms(started) },
            "body": body,
            "isBase64Encoded": false,
        });
        let request: LambdaRequest = serde_json::from_str(&request.to_string())?;
        let event = LambdaEvent::new(request, context("order-api", number, started + timeout));
        let response = Adapter::from(function).oneshot(event).await?;
        let response = serde_json::from_value(serde_json::to_value(response)?)?;
        Ok(Reply { number, response, requests: host.requests(), took: elapsed(&host, started) })
    }
}

fn elapsed(host: &Host, since: SystemTime) -> Duration {
    host.now().duration_since(since).unwrap_or_default()
}

/// The answer to a request.
struct Reply {
    number: usize,
    response: LambdaFunctionUrlResponse,
    requests: u64,
    took: Duration,
}

impl Reply {
    fn is_replay(&self) -> bool {
        self.response.headers.contains_key("idempotency-replayed")
    }

    /// Returns the order, or the title of a problem.
    fn summary(&self) -> String {
        let body: Value = serde_json::from_str(self.response.body.as_deref().unwrap_or_default()).unwrap_or_default();
        match (body["title"].as_str(), body["id"].as_str()) {
            (Some(title), _) => title.to_owned(),
            (None, Some(id)) => {
                let end = id.get(id.len().saturating_sub(4)..).unwrap_or(id);
                format!("order …{end}: {} {}", body["quantity"], body["item"])
            }
            (None, None) => body.to_string(),
        }
    }
}

/// Prints the replies, below a row for the first request if its environment crashed.
fn print(first_crashed: bool, replies: &[Reply]) {
    let mut table = table(["request", "status", "answer", "stored", "requests", "ms"]);
    if first_crashed {
        table.add_row(["1", "", "none: its environment crashed"]);
    }
    for reply in replies {
        let Reply { number, response, requests, took } = reply;
        let replayed = if reply.is_replay() { "yes" } else { "" };
        table.add_row([
            number.to_string(),
            response.status_code.to_string(),
            reply.summary(),
            replayed.to_owned(),
            requests.to_string(),
            took.as_millis().to_string(),
        ]);
    }
    println!("{table}");
}
