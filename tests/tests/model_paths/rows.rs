//! Rows of the model and of the engine, in the same words.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock_model::walk::{self, Value};
use lambda_lock_tests::Row;

use crate::lab::TICK;

/// The attributes that the model does not have: the key, names and data for people, and hints for waiters.
const NOT_IN_THE_MODEL: [&str; 6] = ["id", "holder", "data", "hold", "hold_deviation", "traceparent"];

/// A row in words.
pub(crate) type InWords = BTreeMap<String, String>;

/// What the times and the owners of a path are in the model.
#[derive(Debug, Default)]
pub(crate) struct Scale {
    /// When the path began, since the epoch.
    pub(crate) start: Duration,
    /// The nonces of the acquires, and whose they are.
    pub(crate) owners: BTreeMap<String, usize>,
}

impl Scale {
    /// Returns the row of the model.
    pub(crate) fn of_model(row: &walk::Row) -> InWords {
        let words = |value: &Value| match *value {
            Value::Text(text) => text.to_owned(),
            Value::Owner(client) => format!("client {client}"),
            Value::Tick(tick) => format!("tick {tick}"),
            Value::Count(count) => count.to_string(),
            Value::Fence { tick, more } => format!("tick {tick}, and {more}"),
        };
        row.iter().map(|(name, value)| ((*name).to_owned(), words(value))).collect()
    }

    /// Returns the row of the engine.
    pub(crate) fn of_engine(&self, row: &Row) -> InWords {
        let known = row.iter().filter(|(name, _)| !NOT_IN_THE_MODEL.contains(&name.as_str()));
        known.map(|(name, value)| (name.clone(), self.words(name, value))).collect()
    }

    fn words(&self, name: &str, value: &AttributeValue) -> String {
        match (name, value) {
            ("owner" | "released" | "withdrawn", AttributeValue::S(owner)) => match self.owners.get(owner) {
                Some(client) => format!("client {client}"),
                None => format!("the unknown {owner}"),
            },
            ("acquired_at" | "in_progress_expiration", AttributeValue::N(digits)) => self.tick(digits, 1_000_000),
            ("expiration", AttributeValue::N(digits)) => self.tick(digits, 1_000_000_000),
            ("fence", AttributeValue::N(digits)) => {
                digits.parse().map_or_else(|_| digits.clone(), |fence| self.fence(fence))
            }
            (_, AttributeValue::N(text) | AttributeValue::S(text)) => text.clone(),
            (_, other) => format!("{other:?}"),
        }
    }

    /// Returns a fence as the clock at which the row was new, in microseconds, and the acquisitions since.
    pub(crate) fn fence(&self, fence: u64) -> String {
        let since = u128::from(fence).saturating_sub(self.start.as_micros());
        format!("tick {}, and {}", since / TICK.as_micros(), since % TICK.as_micros())
    }

    /// Returns a time as its tick, if it is one exactly.
    fn tick(&self, digits: &str, nanoseconds: u128) -> String {
        let since =
            digits.parse::<u128>().ok().and_then(|time| (time * nanoseconds).checked_sub(self.start.as_nanos()));
        match since {
            Some(since) if since % TICK.as_nanos() == 0 => format!("tick {}", since / TICK.as_nanos()),
            _ => digits.to_owned(),
        }
    }
}
