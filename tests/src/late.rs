use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use aws_sdk_dynamodb::types::{AttributeValue, ConditionCheck, TransactWriteItem};
use lambda_lock::embedded::{Answer, Host, HostBuilder, Intercept};
use serde_json::{Value, json};

use crate::World;
use crate::invocation::{Counter, is_write};

/// Holds back some of a host's writes, which the host sees as server errors. They arrive when the test delivers them.
#[derive(Clone, Debug)]
pub struct Late {
    operation: &'static str,
    which: RangeInclusive<u32>,
    sent: Arc<AtomicU32>,
    held_back: Arc<Mutex<Vec<Value>>>,
}

impl Late {
    /// Holds back these updates of the host, counted from 1. Each attempt of the SDK counts.
    #[must_use]
    pub fn updates(which: RangeInclusive<u32>) -> Self {
        Self::of("UpdateItem", which)
    }

    /// Holds back these transactions of the host, counted in the same way.
    #[must_use]
    pub fn transactions(which: RangeInclusive<u32>) -> Self {
        Self::of(TRANSACTION, which)
    }

    fn of(operation: &'static str, which: RangeInclusive<u32>) -> Self {
        Self { operation, which, sent: Arc::default(), held_back: Arc::default() }
    }

    /// Delivers the first write that is held back, and returns whether it was applied.
    pub async fn deliver(&self, world: &World) -> bool {
        let request = self.held_back.lock().unwrap().remove(0);
        deliver(world, self.operation, request).await
    }
}

/// Keeps a host's writes, so that a test can deliver them again.
#[derive(Clone, Debug)]
pub struct Repeats {
    operation: &'static str,
    sent: Arc<Mutex<Vec<Value>>>,
}

impl Repeats {
    /// Keeps the updates of the host.
    #[must_use]
    pub fn updates() -> Self {
        Self { operation: "UpdateItem", sent: Arc::default() }
    }

    /// Keeps the transactions of the host.
    #[must_use]
    pub fn transactions() -> Self {
        Self { operation: TRANSACTION, sent: Arc::default() }
    }

    /// Delivers the write with this index again, and returns whether it was applied. DynamoDB does not recognise a transaction
    /// by its token.
    pub async fn deliver(&self, world: &World, index: usize) -> bool {
        let request = self.sent.lock().unwrap()[index].clone();
        deliver(world, self.operation, request).await
    }
}

impl Intercept for Repeats {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == self.operation {
            self.sent.lock().unwrap().push(request.clone());
        }
    }
}

const TRANSACTION: &str = "TransactWriteItems";

async fn deliver(world: &World, operation: &str, mut request: Value) -> bool {
    request.as_object_mut().unwrap().remove("ClientRequestToken");
    let client = world.host().intercept(Replace(request)).build().client();
    let key = AttributeValue::S("replaced".to_owned());
    if operation == TRANSACTION {
        let check = ConditionCheck::builder().table_name(&world.table).key("id", key).condition_expression("replaced");
        let item = TransactWriteItem::builder().condition_check(check.build().unwrap()).build();
        Box::pin(client.transact_write_items().transact_items(item).send()).await.is_ok()
    } else {
        Box::pin(client.update_item().table_name(&world.table).key("id", key).send()).await.is_ok()
    }
}

/// The update of a request, or the first update of a transaction.
fn update(request: &Value) -> &Value {
    request.pointer("/TransactItems/0/Update").unwrap_or(request)
}

/// The same, to change it.
pub(crate) fn update_mut(request: &mut Value) -> &mut Value {
    match request.pointer("/TransactItems/0/Update") {
        Some(_) => &mut request["TransactItems"][0]["Update"],
        None => request,
    }
}

/// A condition that no row meets. It uses a name that the expressions of the update define.
fn never(update: &Value) -> String {
    let names = update["ExpressionAttributeNames"].as_object().unwrap();
    let name = names.keys().next().unwrap();
    format!("attribute_exists({name}) AND attribute_not_exists({name})")
}

/// The end of the condition of a write that is held back.
fn held_back(update: &Value) -> String {
    format!(" AND {}", never(update))
}

impl Intercept for Late {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == self.operation && self.which.contains(&(self.sent.fetch_add(1, Ordering::Relaxed) + 1)) {
            self.held_back.lock().unwrap().push(request.clone());
            let update = update_mut(request);
            let condition = update["ConditionExpression"].as_str().unwrap();
            update["ConditionExpression"] = json!(format!("({condition}){}", held_back(update)));
        }
    }

    fn answer(&self, _: &str, request: &Value, answer: &mut Answer) {
        let update = update(request);
        if update["ConditionExpression"].as_str().is_some_and(|condition| condition.ends_with(&held_back(update))) {
            (answer.status, answer.body) = (500, json!({}));
        }
    }
}

/// Refuses the writes of a host, as if other clients changed the row before each of them. Of a transaction, it refuses the first
/// update.
#[derive(Debug)]
pub struct Refuse {
    from: u32,
    sent: Counter,
}

impl Refuse {
    /// Refuses this write and all later ones, counted from 1. Each attempt of the SDK counts.
    #[must_use]
    pub fn writes_from(from: u32) -> Self {
        Self { from, sent: Counter::default() }
    }
}

impl Intercept for Refuse {
    fn request(&self, operation: &str, request: &mut Value) {
        if is_write(operation) && self.sent.count() >= self.from {
            let update = update_mut(request);
            let condition = update["ConditionExpression"].as_str().unwrap();
            // `Late` knows its own requests by the end of the condition, so this goes to the start.
            update["ConditionExpression"] = json!(format!("{} AND ({condition})", never(update)));
        }
    }
}

/// Replaces each request with another one.
#[derive(Debug)]
struct Replace(Value);

impl Intercept for Replace {
    fn request(&self, _: &str, request: &mut Value) {
        request.clone_from(&self.0);
    }
}

/// Steps the clock of a host while one of its requests is under way, as if its process was frozen or its clock was set.
#[derive(Clone, Debug)]
pub struct StepsClock {
    which: u64,
    step: fn(&Host),
    sent: Counter,
    host: Arc<OnceLock<Host>>,
}

impl StepsClock {
    /// Builds a host whose clock steps in this request, counted from 1. Each attempt of the SDK counts.
    pub fn host(builder: HostBuilder, which: u64, step: fn(&Host)) -> Host {
        let steps = Self { which, step, sent: Counter::default(), host: Arc::default() };
        let host = builder.intercept(steps.clone()).build();
        steps.host.set(host.clone()).unwrap();
        host
    }
}

impl Intercept for StepsClock {
    fn request(&self, _: &str, _: &mut Value) {
        if u64::from(self.sent.count()) == self.which {
            (self.step)(self.host.get().unwrap());
        }
    }
}

/// Takes the time out of all answers, as a proxy may, so that the client cannot tell that its clock is wrong.
#[derive(Clone, Copy, Debug)]
pub struct Undated;

impl Intercept for Undated {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        answer.date = None;
    }
}
