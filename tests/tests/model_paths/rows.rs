//! Rows of the model and of the engine, in the same words.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock_model::walk::{self, Value, permit_of};
use lambda_lock_tests::Row;

/// The attributes that the model does not have: the key, names and data for people, and hints for waiters.
const NOT_IN_THE_MODEL: [&str; 7] = ["id", "holder", "data", "hold", "hold_deviation", "tail_until", "traceparent"];

/// The beginnings of the names of a permit and of its fence. The nonce of the owner follows.
pub(crate) const PERMIT: &str = "permit:";
const PERMIT_FENCE: &str = "fence:";

/// A row in words.
pub(crate) type InWords = BTreeMap<String, String>;

/// What the times and the owners of a path are in the model.
#[derive(Debug)]
pub(crate) struct Scale {
    pub(crate) tick: Duration,
    /// When the path began, since the epoch.
    pub(crate) start: Duration,
    /// How much longer rows stay than in the model.
    pub(crate) kept_longer: Duration,
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
            Value::Permit { lease_end, sequence } => format!("until tick {lease_end}, number {sequence}"),
        };
        row.iter().map(|(name, value)| (name.clone(), words(value))).collect()
    }

    /// Returns the row of the engine.
    pub(crate) fn of_engine(&self, row: &Row) -> InWords {
        let known = row.iter().filter(|(name, _)| !NOT_IN_THE_MODEL.contains(&name.as_str()));
        let known = known.filter(|(name, _)| !name.starts_with(PERMIT_FENCE));
        let in_words = |(name, value): (&String, &AttributeValue)| match (name.strip_prefix(PERMIT), value) {
            (Some(owner), AttributeValue::M(permit)) => {
                let name = self.owners.get(owner).map_or_else(|| name.clone(), |client| permit_of(*client));
                (name, self.permit(permit, row.contains_key(&format!("{PERMIT_FENCE}{owner}"))))
            }
            _ => (name.clone(), self.words(name, value)),
        };
        known.map(in_words).collect()
    }

    /// Returns the fences of the permits that are held, by client.
    pub(crate) fn permit_fences(&self, row: &Row) -> BTreeMap<usize, String> {
        let fence = |(name, value): (&String, &AttributeValue)| {
            let client = self.owners.get(name.strip_prefix(PERMIT_FENCE)?)?;
            Some((*client, self.words("fence", value)))
        };
        row.iter().filter_map(fence).collect()
    }

    /// Returns a permit or a tombstone. The model does not have the name of the holder and the times of the acquire and the
    /// release, which are for people.
    fn permit(&self, permit: &Row, has_fence: bool) -> String {
        let number = |name| permit.get(name).and_then(|value| value.as_n().ok());
        match (number("end"), number("sequence"), number("released_at"), has_fence) {
            (Some(end), Some(sequence), None, true) => {
                format!("until {}, number {sequence}", self.tick(end, 1_000_000))
            }
            (None, None, Some(_), false) => "released".to_owned(),
            _ => format!("{permit:?}, with a fence: {has_fence}"),
        }
    }

    fn words(&self, name: &str, value: &AttributeValue) -> String {
        match (name, value) {
            ("owner" | "released" | "withdrawn", AttributeValue::S(owner)) => match self.owners.get(owner) {
                Some(client) => format!("client {client}"),
                None => format!("the unknown {owner}"),
            },
            ("acquired_at" | "in_progress_expiration" | "freed_at", AttributeValue::N(digits)) => {
                self.tick(digits, 1_000_000)
            }
            ("expiration", AttributeValue::N(digits)) => self.expiration(digits),
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
        format!("tick {}, and {}", since / self.tick.as_micros(), since % self.tick.as_micros())
    }

    /// Returns the time of an expiration in the model, as a tick.
    fn expiration(&self, digits: &str) -> String {
        match digits.parse::<u64>() {
            Ok(time) => self.tick(&time.saturating_sub(self.kept_longer.as_secs()).to_string(), 1_000_000_000),
            Err(_) => digits.to_owned(),
        }
    }

    /// Returns a time as its tick, if it is one exactly.
    fn tick(&self, digits: &str, nanoseconds: u128) -> String {
        let since =
            digits.parse::<u128>().ok().and_then(|time| (time * nanoseconds).checked_sub(self.start.as_nanos()));
        match since {
            Some(since) if since % self.tick.as_nanos() == 0 => format!("tick {}", since / self.tick.as_nanos()),
            _ => digits.to_owned(),
        }
    }
}
