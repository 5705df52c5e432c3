//! A time in which the table answers nothing.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{Answer, DynamoDb, Intercept};
use serde_json::{Value, json};

/// Requests are applied, and their answers are lost.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    engine: DynamoDb,
    of: Arc<Mutex<Option<Affected>>>,
}

#[derive(Clone, Copy, Debug)]
struct Affected {
    until: SystemTime,
    /// An operation and a key, or all.
    only: Option<(&'static str, &'static str)>,
}

impl Outage {
    pub(crate) fn of(engine: &DynamoDb) -> Self {
        Self { engine: engine.clone(), of: Arc::default() }
    }

    /// Loses the answers from now on, for this time.
    pub(crate) fn start(&self, time: Duration) {
        *self.of.lock().unwrap() = Some(Affected { until: self.engine.now() + time, only: None });
    }

    /// Loses the answers to this operation on this key.
    pub(crate) fn start_of(&self, operation: &'static str, key: &'static str, time: Duration) {
        *self.of.lock().unwrap() = Some(Affected { until: self.engine.now() + time, only: Some((operation, key)) });
    }
}

impl Intercept for Outage {
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        let Some(affected) = *self.of.lock().unwrap() else { return };
        let is_affected = affected.only.is_none_or(|(only, key)| {
            operation == only && request["Key"].as_object().is_some_and(|of| of.values().any(|own| own["S"] == key))
        });
        if is_affected && self.engine.now() < affected.until {
            answer.status = 500;
            answer.body = json!({ "__type": "InternalServerError" });
        }
    }
}
