//! The table: rows in memory, and the requests that are applied to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::model::{Item, Reply, Request};
use serde_json::{Map, Value, json};

use crate::expression::{self, Condition, Update};
use crate::printed::Printed;

/// A request as the table reads it.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    pub(crate) key: String,
    pub(crate) condition: Condition,
    pub(crate) update: Update,
}

impl Parsed {
    pub(crate) fn of(request: &Request) -> Self {
        let mut json = Map::new();
        let texts = [("ConditionExpression", &request.condition), ("UpdateExpression", &request.update)];
        for (name, text) in texts {
            if let Some(text) = text {
                json.insert(name.to_owned(), text.as_str().into());
            }
        }
        json.insert("ExpressionAttributeNames".to_owned(), json!(request.names));
        let values = request.values.iter().map(|(name, value)| (name.clone(), to_json(value)));
        json.insert("ExpressionAttributeValues".to_owned(), values.collect::<Map<_, _>>().into());
        let json = Value::Object(json);
        let (condition, update) = (expression::condition(&json), expression::update(&json));
        Self { key: request.key.clone(), condition, update }
    }
}

/// The rows, by their keys.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub(crate) struct Table(BTreeMap<String, Arc<Printed<Value>>>);

impl Table {
    /// Applies all of these requests, or none of them.
    pub(crate) fn apply(&mut self, requests: &[Parsed]) -> Reply {
        let refused = |request: &Parsed| {
            let row = self.row(&request.key);
            let is_met = request.condition.holds(row.unwrap_or(&json!({})));
            (!is_met).then(|| row.map(to_item))
        };
        let refused: Vec<_> = requests.iter().map(refused).collect();
        if refused.iter().any(Option::is_some) {
            return Reply::Refused(refused);
        }
        let (mut before, mut after) = (None, Item::new());
        for request in requests {
            let row = self.row(&request.key).cloned();
            before = row.as_ref().map(to_item);
            let row = row.unwrap_or_else(|| json!({ "id": { "S": request.key } }));
            // DynamoDB rejects it, and so the crate must never send it.
            let row = request.update.applied_to(&row).unwrap_or_else(|| panic!("invalid: {request:?} for {row}"));
            after = to_item(&row);
            self.insert(&request.key, row);
        }
        Reply::Applied { before, after }
    }

    pub(crate) fn row(&self, key: &str) -> Option<&Value> {
        self.0.get(key).map(|row| &***row)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().map(|(key, row)| (key, &***row))
    }

    pub(crate) fn insert(&mut self, key: &str, row: Value) {
        self.0.insert(key.to_owned(), Arc::new(Printed::new(row)));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }
}

fn to_json(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(digits) => json!({ "N": digits }),
        AttributeValue::M(map) => {
            let map: Map<_, _> = map.iter().map(|(name, value)| (name.clone(), to_json(value))).collect();
            json!({ "M": map })
        }
        other => panic!("no request of the protocol has {other:?}"),
    }
}

pub(crate) fn to_item(row: &Value) -> Item {
    row.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), to_attribute(value))).collect()
}

fn to_attribute(value: &Value) -> AttributeValue {
    if let Some(text) = value["S"].as_str() {
        return AttributeValue::S(text.to_owned());
    }
    if let Some(digits) = value["N"].as_str() {
        return AttributeValue::N(digits.to_owned());
    }
    AttributeValue::M(to_item(&value["M"]))
}
