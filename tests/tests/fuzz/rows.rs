//! The strategy of rows: a row of a program with a few changes, an arbitrary one, or one that has mostly valid attributes.

use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock_tests::Row;
use lambda_lock_tests::request::ATTRIBUTES;
use lambda_lock_tests::rows::{any_row, any_value, text, to_json};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::templates::templates;
use crate::{CLOCK_SKEW, KEY, LEASE, SINCE_EPOCH};

/// Names that the crate gives to no attribute, and the beginnings of those that it gives to many.
const OTHER_NAMES: [&str; 6] = ["comment", "e mail", "permit:", "permit:nobody", "fence:nobody", "permit:#é\n"];

/// The names in the map of a permit.
const PERMIT_NAMES: [&str; 7] = ["no", "by", "since", "end", "sequence", "held_since", "nonce"];

/// The attributes that waiters change in the row of another holder.
pub(crate) const QUEUE: [&str; 5] = ["tail", "head", "tail_until", "reserved_until", "reserved_by"];

/// Returns `true` for a name that this crate gives to attributes.
pub(crate) fn is_ours(name: &str) -> bool {
    name == "id" || ATTRIBUTES.contains(&name) || name.starts_with("permit:") || name.starts_with("fence:")
}

/// A change of a row.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Sets or removes the attribute of this name.
    Set(&'static str, Option<AttributeValue>),
    /// Sets or removes an attribute that the row has.
    Has(Index, Option<AttributeValue>),
    /// Adds to a number that the row has, within a permit too.
    Add(Index, i64),
    /// Sets or removes a value within a permit.
    InPermit(Index, &'static str, Option<AttributeValue>),
    /// Replaces the row.
    Other(Row),
}

pub(crate) fn any_change() -> impl Strategy<Value = Change> + Clone {
    let now = SINCE_EPOCH.as_secs();
    let value = || prop_oneof![2 => any_value(now).prop_map(Some), 1 => Just(None)];
    let names = [&ATTRIBUTES[..], &OTHER_NAMES].concat();
    let add = prop_oneof![Just(1), Just(-1), Just(1000), -100_000..100_000_i64, any::<i32>().prop_map(i64::from)];
    prop_oneof![
        4 => (select(names), value()).prop_map(|(name, value)| Change::Set(name, value)),
        4 => (any::<Index>(), value()).prop_map(|(index, value)| Change::Has(index, value)),
        2 => (any::<Index>(), add).prop_map(|(index, by)| Change::Add(index, by)),
        2 => (any::<Index>(), select(&PERMIT_NAMES[..]), value())
            .prop_map(|(index, name, value)| Change::InPermit(index, name, value)),
    ]
}

impl Change {
    pub(crate) fn apply(&self, row: &mut Row) {
        let names = |row: &Row| {
            let mut names: Vec<String> = row.keys().filter(|name| *name != "id").cloned().collect();
            names.sort();
            names
        };
        let set = |row: &mut Row, name: &str, value: &Option<AttributeValue>| match value {
            Some(value) => drop(row.insert(name.to_owned(), value.clone())),
            None => drop(row.remove(name)),
        };
        match self {
            Self::Set(name, value) => set(row, name, value),
            Self::Has(index, value) => {
                let names = names(row);
                if !names.is_empty() {
                    set(row, &names[index.index(names.len())], value);
                }
            }
            Self::Add(index, by) => {
                let mut numbers: Vec<(&String, &mut String)> = Vec::new();
                for (name, value) in row.iter_mut() {
                    match value {
                        AttributeValue::N(digits) => numbers.push((name, digits)),
                        AttributeValue::M(map) => {
                            for (name, value) in map {
                                if let AttributeValue::N(digits) = value {
                                    numbers.push((name, digits));
                                }
                            }
                        }
                        _ => {}
                    }
                }
                numbers.sort();
                if !numbers.is_empty() {
                    let index = index.index(numbers.len());
                    let digits = &mut *numbers[index].1;
                    if let Ok(value) = digits.parse::<i128>() {
                        *digits = (value + i128::from(*by)).to_string();
                    }
                }
            }
            Self::InPermit(index, inner, value) => {
                let names: Vec<_> = names(row).into_iter().filter(|name| row[name].is_m()).collect();
                if !names.is_empty()
                    && let Some(AttributeValue::M(map)) = row.get_mut(&names[index.index(names.len())])
                {
                    set(map, inner, value);
                }
            }
            Self::Other(other) => row.clone_from(other),
        }
    }
}

/// Rows under [`KEY`].
pub(crate) fn any_lock_row() -> impl Strategy<Value = Row> {
    let now = SINCE_EPOCH.as_secs();
    let changed = (select(templates()), vec(any_change(), 0..4)).prop_map(|(mut row, changes)| {
        for change in &changes {
            change.apply(&mut row);
        }
        row
    });
    let arbitrary = btree_map("[a-z:]{1,9}", any_value(now), 0..6).prop_map(|row| row.into_iter().collect::<Row>());
    prop_oneof![12 => changed, 2 => any_row(now), 1 => arbitrary].prop_map(|mut row| {
        row.insert("id".to_owned(), text(KEY));
        row
    })
}

/// How long ago a row was left.
pub(crate) fn any_age() -> impl Strategy<Value = Duration> + Clone {
    let ages = AGES.into_iter().map(Just).collect::<Vec<_>>();
    proptest::strategy::Union::new(ages)
}

/// The ages that are tried with each kept row.
pub(crate) const KEPT_AGES: [Duration; 2] = [Duration::ZERO, Duration::from_hours(2)];

const AGES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(1),
    LEASE,
    LEASE.saturating_add(CLOCK_SKEW),
    Duration::from_hours(2),
    Duration::from_hours(24 * 400),
];

/// A row, printed as a line of `rows.jsonl`.
#[derive(Clone)]
pub(crate) struct Printed(pub(crate) Row);

impl fmt::Debug for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}\n", to_json(&self.0))
    }
}

/// Returns the names of attributes that differ.
pub(crate) fn differences(before: Option<&Row>, after: Option<&Row>) -> Vec<String> {
    let empty = Row::new();
    let [before, after] = [before, after].map(|row| row.unwrap_or(&empty));
    let mut names: Vec<_> =
        before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
    names.sort();
    names.dedup();
    names.into_iter().cloned().collect()
}

/// Returns the number of an attribute, if it is one.
pub(crate) fn number_of(row: &Row, name: &str) -> Option<f64> {
    row.get(name)?.as_n().ok()?.parse().ok()
}

/// The rows of `rows.jsonl`.
pub(crate) fn kept_rows() -> impl Iterator<Item = serde_json::Value> {
    include_str!("rows.jsonl").lines().map(|line| serde_json::from_str(line).unwrap())
}
