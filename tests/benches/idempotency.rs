//! The cost of idempotency: a replay compared with a bare `GetItem`, and a first run compared with its two writes.

mod measure;

use std::collections::HashMap;
use std::convert::Infallible;
use std::env;
use std::hint::black_box;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure as OnRefusal};
use lambda_lock::embedded::{DynamoDb, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Idempotency, Locks};
use serde_json::Value;
use tokio::runtime::Builder;

use measure::canned::canned;
use measure::{compare, print_header};

const TABLE: &str = "locks";

fn main() {
    // `cargo test` runs benchmarks with `--test`: then two pairs are enough.
    let pairs = if env::args().any(|argument| argument == "--test") { 2 } else { 5_000 };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sides = Sides::new().await;
        print_header();
        compare("replay, and a bare GetItem", async || sides.replay().await, async || sides.get_item().await, pairs)
            .await;
        let canned = Sides::canned();
        let name = "replay, and a bare GetItem, canned answers";
        compare(name, async || canned.replay().await, async || canned.get_item().await, pairs).await;
        compare("first run, and its two writes", async || sides.run().await, async || sides.two_writes().await, pairs)
            .await;
    });
}

/// Idempotency and the bare SDK, on the same client.
struct Sides {
    client: Client,
    runs: Idempotency<String, String, Infallible>,
    /// The requests of a run.
    writes: Vec<Value>,
}

fn runs(client: Client) -> Idempotency<String, String, Infallible> {
    let locks = Locks::builder(client, TABLE).holder("the benchmark").build().unwrap();
    Idempotency::new(locks, OnMissingKey::Reject, |key: &String| Some(key.clone()))
}

/// The item of a record, in an answer that begins with this text.
macro_rules! record {
    ($start:literal) => {
        concat!(
            "{",
            $start,
            r#""Item":{"id":{"S":"stored"},"status":{"S":"COMPLETED"},"holder":{"S":"the benchmark"},
                "owner":{"S":"0123456789abcdef0123456789abcdef"},"released":{"N":"1790000000000000"},
                "fence":{"N":"1790000000000000"},"acquired_at":{"N":"1790000000000"},"sequence":{"N":"0"},
                "in_progress_expiration":{"N":"1790000031000"},"expiration":{"N":"253402300799"},
                "data":{"S":"\"a result of some forty characters, in JSON\""}}}"#
        )
    };
}
const RECORD: &str = record!("");
const RECORD_OF_REFUSAL: &str =
    record!(r#""__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","#);

#[derive(Clone, Debug, Default)]
struct Sent(Arc<Mutex<Vec<Value>>>);

impl Intercept for Sent {
    fn request(&self, _: &str, request: &mut Value) {
        self.0.lock().unwrap().push(request.clone());
    }
}

impl Sides {
    async fn new() -> Self {
        let engine = DynamoDb::new().unwrap();
        Locks::builder(engine.client(), TABLE).build().unwrap().create_table().await.unwrap();
        let sent = Sent::default();
        let observed = Self {
            client: engine.client(),
            runs: runs(engine.host().intercept(sent.clone()).build().client()),
            writes: Vec::new(),
        };
        observed.once("stored").await;
        let writes = sent.0.lock().unwrap().clone();
        let client = engine.client();
        Self { runs: runs(client.clone()), client, writes }
    }

    /// Uses a DynamoDB with prepared answers, which has the record.
    fn canned() -> Self {
        let client =
            canned(
                |request| {
                    if request.contains("UpdateExpression") { (400, RECORD_OF_REFUSAL) } else { (200, RECORD) }
                },
            );
        Self { runs: runs(client.client()), client: client.client(), writes: Vec::new() }
    }

    async fn once(&self, key: &str) {
        let body = async |_: &lambda_lock::Run| Ok("a result of some forty characters, in JSON".to_owned());
        black_box(self.runs.run(&key.to_owned(), body).await.unwrap());
    }

    async fn run(&self) {
        self.once(&format!("{:032x}", fastrand::u128(..))).await;
    }

    async fn replay(&self) {
        self.once("stored").await;
    }

    async fn get_item(&self) {
        let key = AttributeValue::S("stored".to_owned());
        let read = self.client.get_item().table_name(TABLE).key("id", key).consistent_read(true).send().await.unwrap();
        black_box(serde_json::from_str::<String>(read.item.unwrap()["data"].as_s().unwrap()).unwrap());
    }

    async fn two_writes(&self) {
        let [key, owner] = [(); 2].map(|()| AttributeValue::S(format!("{:032x}", fastrand::u128(..))));
        for write in &self.writes {
            let attribute = |(name, value): (&String, &Value)| {
                let (kind, text) = value.as_object().unwrap().iter().next().unwrap();
                let text = text.as_str().unwrap().to_owned();
                (name.clone(), if kind == "S" { AttributeValue::S(text) } else { AttributeValue::N(text) })
            };
            let mut values: HashMap<_, _> =
                write["ExpressionAttributeValues"].as_object().unwrap().iter().map(attribute).collect();
            values.insert(":owner".to_owned(), owner.clone());
            let names = write["ExpressionAttributeNames"].as_object().unwrap();
            let names = names.iter().map(|(name, to)| (name.clone(), to.as_str().unwrap().to_owned())).collect();
            let written = self
                .client
                .update_item()
                .table_name(TABLE)
                .key("id", key.clone())
                .condition_expression(write["ConditionExpression"].as_str().unwrap())
                .update_expression(write["UpdateExpression"].as_str().unwrap())
                .set_expression_attribute_names(Some(names))
                .set_expression_attribute_values(Some(values))
                .set_return_values(write["ReturnValues"].as_str().map(ReturnValue::from))
                .return_values_on_condition_check_failure(OnRefusal::AllOld)
                .send()
                .await
                .unwrap();
            black_box(written);
        }
    }
}
