//! One table, three languages: the same function in Rust and in Powertools for AWS Lambda, for Python and for TypeScript.
//!
//! `.ci/run interop` installs what these tests need, and runs them. Time is real: a test that needs the end of a lease or
//! of a window uses a host with a wrong clock.

mod ended;
mod in_progress;
mod keys;
mod results;

use std::collections::BTreeMap;
use std::time::Duration;

use lambda_lock::Idempotency;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock_tests::invocation::reported;
use lambda_lock_tests::powertools::{Language, Powertools};
use lambda_lock_tests::{Row, Undated, World};
use lambda_runtime::Diagnostic;
use serde_json::{Value, json};

/// The default on both sides. For Powertools without a Lambda context, it is also the lease.
const WINDOW: Duration = Duration::from_hours(1);
/// When every clock shows that the window has ended. It ends at a whole second, rounded up, and Powertools wants it to
/// be before now.
const AFTER_THE_WINDOW: Duration = WINDOW.saturating_add(Duration::from_secs(2));

/// When no clock shows that the window has ended, even on a slow machine.
const WITHIN_THE_WINDOW: Duration = WINDOW.saturating_sub(MARGIN);

const MARGIN: Duration = Duration::from_secs(20);

/// The Lambda context of Powertools, for a lease as long as ours.
const LEASE_IN_CONTEXT: [&str; 2] = ["--remaining-ms", "30000"];

/// The two functions, on their own table.
struct Sides {
    powertools: Powertools,
    language: Language,
    world: World,
}

/// The function in Rust. An order says what to do with it. `tests/interop` has the functions in the other languages.
type Orders = Idempotency<Value, Value, Failed>;

#[derive(Debug)]
struct Failed;

impl From<Failed> for Diagnostic {
    fn from(_: Failed) -> Self {
        Self { error_type: "OrderFailed".to_owned(), error_message: "as the order says".to_owned() }
    }
}

async fn with_each_language(test: impl AsyncFn(Sides)) {
    let powertools = Powertools::find().unwrap_or_else(|missing| panic!("{missing}"));
    for language in Language::ALL {
        eprintln!("{language:?}");
        Box::pin(test(Sides { powertools: powertools.clone(), language, world: World::new().await })).await;
    }
}

impl Sides {
    fn ours(&self) -> Orders {
        self.ours_on(&self.world.host().build())
    }

    fn ours_on(&self, host: &Host) -> Orders {
        let locks = self.world.locks(host).build().unwrap();
        Idempotency::new(locks, OnMissingKey::Reject, |order: &Value| Some(order["id"].clone()))
            .format(self.language.format())
            .prefix("orders")
    }

    /// Our function at a later time, on a host whose clock is ahead.
    fn ours_later(&self, by: Duration) -> Orders {
        self.ours_on(&self.world.host().later(by).build())
    }

    /// Our function at an earlier time, on a host whose clock is behind, and that cannot tell.
    fn ours_earlier(&self, by: Duration) -> Orders {
        self.ours_on(&self.world.host().clock_behind(by).intercept(Undated).build())
    }

    /// Places these orders with Powertools.
    async fn theirs(&self, options: &[&str], orders: &[Value]) -> Vec<Value> {
        self.powertools.place(self.language, &self.world, options, orders).await
    }

    /// Leaves a record of Powertools in progress, whose process ended.
    async fn crash_theirs(&self, options: &[&str], id: &str) {
        assert_eq!(self.theirs(options, &[json!({"id": id, "crash": true})]).await, [json!({"ran": true})]);
    }

    /// All rows of the table, by their keys.
    async fn rows(&self) -> BTreeMap<String, Row> {
        let scan = self.world.client().scan().table_name(&self.world.table).consistent_read(true);
        let rows = scan.send().await.unwrap().items.unwrap();
        rows.into_iter().map(|row| (row["id"].as_s().unwrap().clone(), row)).collect()
    }
}

/// Places an order with our function.
async fn place(orders: &Orders, order: &Value) -> Value {
    let mut ran = false;
    let outcome = orders
        .run(order, async |_| {
            ran = true;
            if order["fail"] == true { Err(Failed) } else { Ok(order["result"].clone()) }
        })
        .await;
    match outcome {
        Ok(result) => json!({"ran": ran, "result": result}),
        Err(error) => json!({"ran": ran, "error": reported(error).0}),
    }
}

async fn place_all(ours: &Orders, orders: &[Value]) -> Vec<Value> {
    let mut answers = Vec::new();
    for order in orders {
        answers.push(place(ours, order).await);
    }
    answers
}

fn order(id: &str, result: &str) -> Value {
    json!({"id": id, "amount": 5, "result": result})
}

fn ran(result: &Value) -> Value {
    json!({"ran": true, "result": result})
}

fn replayed(result: &Value) -> Value {
    json!({"ran": false, "result": result})
}

fn refused(error: &str) -> Value {
    json!({"ran": false, "error": error})
}

/// The same orders, with another result.
fn again(orders: &[Value]) -> Vec<Value> {
    let mut orders = orders.to_vec();
    for order in &mut orders {
        order["result"] = json!("another result");
    }
    orders
}
