use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{Answer, Intercept};
use serde_json::{Value, json};

use crate::World;

/// Holds back some of a host's updates, which the host sees as server errors. They arrive when the test delivers them.
#[derive(Clone, Debug)]
pub struct Late {
    which: RangeInclusive<u32>,
    sent: Arc<AtomicU32>,
    held_back: Arc<Mutex<Vec<Value>>>,
}

impl Late {
    /// Holds back these updates of the host, counted from 1. Each attempt of the SDK counts.
    #[must_use]
    pub fn updates(which: RangeInclusive<u32>) -> Self {
        Self { which, sent: Arc::default(), held_back: Arc::default() }
    }

    /// Delivers the first update that is held back, and returns whether it was applied.
    pub async fn deliver(&self, world: &World) -> bool {
        let request = self.held_back.lock().unwrap().remove(0);
        let host = world.host().intercept(Replace(request)).build();
        let update = host.client().update_item().table_name(&world.table);
        Box::pin(update.key("id", AttributeValue::S("replaced".to_owned())).send()).await.is_ok()
    }
}

/// The end of a condition that no row meets.
fn held_back(name: &str) -> String {
    format!(" AND attribute_exists({name}) AND attribute_not_exists({name})")
}

/// Returns a name that the expressions of the request define.
fn a_name(request: &Value) -> String {
    request["ExpressionAttributeNames"].as_object().unwrap().keys().next().unwrap().clone()
}

impl Intercept for Late {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" && self.which.contains(&(self.sent.fetch_add(1, Ordering::Relaxed) + 1)) {
            self.held_back.lock().unwrap().push(request.clone());
            let condition = request["ConditionExpression"].as_str().unwrap();
            request["ConditionExpression"] = json!(format!("({condition}){}", held_back(&a_name(request))));
        }
    }

    fn answer(&self, _: &str, request: &Value, answer: &mut Answer) {
        let is_held_back = |condition: &str| condition.ends_with(&held_back(&a_name(request)));
        if request["ConditionExpression"].as_str().is_some_and(is_held_back) {
            (answer.status, answer.body) = (500, json!({}));
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
