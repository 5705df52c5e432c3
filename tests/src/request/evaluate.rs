//! What DynamoDB makes of a condition and of an update, for a row in memory. A test compares it with the engines, with generated
//! rows and expressions.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use super::expression::{Comparison, Condition, Operand, Path, Update};

impl Condition {
    /// Whether this row meets the condition. A key without a row is an empty one.
    pub(crate) fn holds(&self, row: &Value) -> bool {
        let value_of = |operand: &Operand| operand.value_in(row);
        match self {
            Self::True => true,
            Self::Exists(path) => !path.of(row).is_null(),
            Self::Missing(path) => path.of(row).is_null(),
            Self::BeginsWith(path, start) => {
                let start = value_of(start);
                let text = path.of(row)["S"].as_str().zip(start["S"].as_str());
                text.is_some_and(|(text, start)| text.starts_with(start))
            }
            Self::Compare(path, comparison, operand) => compare(path.of(row), *comparison, &value_of(operand)),
            Self::Between(path, from, to) => {
                let value = path.of(row);
                compare(value, Comparison::GreaterOrEqual, &value_of(from))
                    && compare(value, Comparison::LessOrEqual, &value_of(to))
            }
            Self::Not(condition) => !condition.holds(row),
            Self::And(conditions) => conditions.iter().all(|condition| condition.holds(row)),
            Self::Or(conditions) => conditions.iter().any(|condition| condition.holds(row)),
        }
    }
}

/// A comparison with a missing attribute is false, except that it differs from any other, and from a missing one.
fn compare(left: &Value, comparison: Comparison, right: &Value) -> bool {
    let order = order_of(left, right);
    match comparison {
        Comparison::Equal => is_equal(left, right),
        Comparison::Unequal => !is_equal(left, right),
        Comparison::Less => order == Some(Ordering::Less),
        Comparison::LessOrEqual => order.is_some_and(Ordering::is_le),
        Comparison::Greater => order == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
    }
}

fn is_equal(left: &Value, right: &Value) -> bool {
    !left.is_null() && (left == right || order_of(left, right) == Some(Ordering::Equal))
}

/// The order of two numbers, or of two texts by their bytes.
fn order_of(left: &Value, right: &Value) -> Option<Ordering> {
    let number = |value: &Value| value["N"].as_str().and_then(|digits| digits.parse::<i128>().ok());
    match (number(left), number(right)) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => Some(left["S"].as_str()?.cmp(right["S"].as_str()?)),
    }
}

impl Operand {
    /// The value of this operand in an update of the row. Nothing if it refers to a missing attribute.
    fn value_in(&self, row: &Value) -> Value {
        match self {
            Self::Path(path) => path.of(row).clone(),
            Self::Value(value) => value.clone(),
            // DynamoDB Local rejects a default that refers to a missing attribute, even where the default is not needed.
            Self::IfNotExists(path, otherwise) => match (path.of(row), otherwise.value_in(row)) {
                (Value::Null, otherwise) => otherwise,
                (_, Value::Null) => Value::Null,
                (value, _) => value.clone(),
            },
            Self::Plus(left, right) => sum(&left.value_in(row), &right.value_in(row), 1),
            Self::Minus(left, right) => sum(&left.value_in(row), &right.value_in(row), -1),
        }
    }
}

fn sum(left: &Value, right: &Value, sign: i128) -> Value {
    let number = |value: &Value| value["N"].as_str().and_then(|digits| digits.parse::<i128>().ok());
    match (number(left), number(right)) {
        (Some(left), Some(right)) => json!({ "N": (left + sign * right).to_string() }),
        _ => Value::Null,
    }
}

impl Update {
    /// Returns the row after this update, or `None` if DynamoDB rejects it: an operand or the map of a path is missing.
    pub(crate) fn applied_to(&self, row: &Value) -> Option<Value> {
        let mut after = row.clone();
        let attributes = after.as_object_mut()?;
        // All operands are those of the row before.
        for (path, operand) in &self.set {
            let value = operand.value_in(row);
            if value.is_null() {
                return None;
            }
            place_of(attributes, path)?.insert(path.name().to_owned(), value);
        }
        for path in &self.remove {
            match &path.field {
                Some(_) => drop(place_of(attributes, path)?.remove(path.name())),
                None => drop(attributes.remove(&path.attribute)),
            }
        }
        Some(after)
    }
}

/// Returns what has the last name of a path: the row, or a map in it.
fn place_of<'a>(row: &'a mut Map<String, Value>, path: &Path) -> Option<&'a mut Map<String, Value>> {
    match path.field {
        Some(_) => row.get_mut(&path.attribute)?.get_mut("M")?.as_object_mut(),
        None => Some(row),
    }
}
