//! Conditions and updates as values. No part depends on the order in which it was added, because their texts are
//! [written](super::rendered) once, when the request is built.

use std::borrow::Cow;
use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::names::DATA;
use crate::clock::micros;
use crate::holder::Data;

/// An attribute of a row, or an entry of an attribute that is a map.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) name: Name,
    pub(super) entry: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub(super) enum Name {
    Fixed(&'static str),
    /// Known at run time only. The placeholder in the text, after `#`, comes first.
    Named(Box<(Cow<'static, str>, String)>),
}

impl Path {
    /// An attribute whose name is known at run time only.
    pub(super) fn named(placeholder: impl Into<Cow<'static, str>>, attribute: impl Into<String>) -> Self {
        Self { name: Name::Named(Box::new((placeholder.into(), attribute.into()))), entry: None }
    }

    pub(super) fn entry(mut self, name: &'static str) -> Self {
        self.entry = Some(name);
        self
    }
}

impl From<&'static str> for Path {
    fn from(attribute: &'static str) -> Self {
        Self { name: Name::Fixed(attribute), entry: None }
    }
}

/// A value, with the name that stands for it in the text.
#[derive(Clone, Debug)]
pub(super) struct Value<'a>(pub(super) &'static str, pub(super) Literal<'a>);

/// A value that becomes an `AttributeValue` when it is rendered, because texts name most values more than once.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal<'a> {
    Text(&'a str),
    Number(u64),
    /// A time of a hold, in milliseconds with a fraction.
    HoldTime(Duration),
    Any(Box<AttributeValue>),
}

pub(super) fn text<'a>(name: &'static str, value: &'a str) -> Value<'a> {
    Value(name, Literal::Text(value))
}

pub(super) fn count(name: &'static str, value: impl Into<u64>) -> Value<'static> {
    Value(name, Literal::Number(value.into()))
}

pub(super) fn hold_time(name: &'static str, time: Duration) -> Value<'static> {
    Value(name, Literal::HoldTime(time))
}

pub(super) fn value(name: &'static str, value: AttributeValue) -> Value<'static> {
    Value(name, Literal::Any(Box::new(value)))
}

impl Literal<'_> {
    pub(super) fn to_attribute(&self) -> AttributeValue {
        match self {
            Self::Text(text) => string(text),
            Self::Number(value) => number(*value),
            Self::HoldTime(time) => hold_number(*time),
            Self::Any(value) => AttributeValue::clone(value),
        }
    }
}

pub(super) fn string(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(super) fn number(value: impl Into<u64>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

fn hold_number(duration: Duration) -> AttributeValue {
    let micros = micros(duration.saturating_add(Duration::from_nanos(500)));
    AttributeValue::N(format!("{}.{:03}", micros / 1000, micros % 1000))
}

/// A condition on a row.
#[derive(Clone, Debug)]
pub(super) enum Condition<'a> {
    /// With the operator as DynamoDB writes it. False if the attribute is missing.
    Compare(Path, &'static str, Operand<'a>),
    Between(Path, Value<'a>, Value<'a>),
    BeginsWith(Path, Value<'a>),
    Exists(Path),
    Missing(Path),
    /// True if an attribute of the condition is missing.
    Not(Box<Condition<'a>>),
    All(Vec<Condition<'a>>),
    Any(Vec<Condition<'a>>),
}

#[derive(Clone, Debug)]
pub(super) enum Operand<'a> {
    Value(Value<'a>),
    Path(Path),
}

impl<'a> From<Value<'a>> for Operand<'a> {
    fn from(value: Value<'a>) -> Self {
        Self::Value(value)
    }
}

impl From<&'static str> for Operand<'_> {
    fn from(attribute: &'static str) -> Self {
        Self::Path(attribute.into())
    }
}

/// The conditions on one attribute.
pub(super) trait Attribute: Into<Path> {
    fn is<'a>(self, other: impl Into<Operand<'a>>) -> Condition<'a> {
        Condition::Compare(self.into(), "=", other.into())
    }

    fn below<'a>(self, other: impl Into<Operand<'a>>) -> Condition<'a> {
        Condition::Compare(self.into(), "<", other.into())
    }

    fn at_most<'a>(self, other: impl Into<Operand<'a>>) -> Condition<'a> {
        Condition::Compare(self.into(), "<=", other.into())
    }

    fn above<'a>(self, other: impl Into<Operand<'a>>) -> Condition<'a> {
        Condition::Compare(self.into(), ">", other.into())
    }

    fn at_least<'a>(self, other: impl Into<Operand<'a>>) -> Condition<'a> {
        Condition::Compare(self.into(), ">=", other.into())
    }

    fn between<'a>(self, least: Value<'a>, most: Value<'a>) -> Condition<'a> {
        Condition::Between(self.into(), least, most)
    }

    fn begins_with(self, start: Value<'_>) -> Condition<'_> {
        Condition::BeginsWith(self.into(), start)
    }

    fn exists(self) -> Condition<'static> {
        Condition::Exists(self.into())
    }

    fn missing(self) -> Condition<'static> {
        Condition::Missing(self.into())
    }
}

impl<T: Into<Path>> Attribute for T {}

pub(super) fn all<const N: usize>(conditions: [Condition<'_>; N]) -> Condition<'_> {
    Condition::All(conditions.into())
}

pub(super) fn any<const N: usize>(conditions: [Condition<'_>; N]) -> Condition<'_> {
    Condition::Any(conditions.into())
}

pub(super) fn not(condition: Condition<'_>) -> Condition<'_> {
    Condition::Not(Box::new(condition))
}

impl Condition<'_> {
    /// Returns `true` if a key without a row meets the condition.
    fn is_met_without_row(&self) -> bool {
        match self {
            Self::Compare(..) | Self::Between(..) | Self::BeginsWith(..) | Self::Exists(_) => false,
            Self::Missing(_) => true,
            Self::Not(condition) => !condition.is_met_without_row(),
            Self::All(conditions) => conditions.iter().all(Self::is_met_without_row),
            Self::Any(conditions) => conditions.iter().any(Self::is_met_without_row),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        match self {
            Self::All(mut conditions) => {
                conditions.push(other);
                Self::All(conditions)
            }
            first => Self::All(vec![first, other]),
        }
    }
}

/// The new value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum To<'a> {
    Value(Value<'a>),
    /// The attribute's value, or this value if the attribute is missing.
    Default(Value<'a>),
    /// The attribute's value, or the value of this other attribute if the attribute is missing.
    Or(Path),
    /// The value of this attribute, or the first value if it is missing, and the second value more.
    Plus(Path, Box<[Value<'a>; 2]>),
    /// The attribute's value less this value.
    Minus(Value<'a>),
}

impl<'a> To<'a> {
    pub(super) fn plus(of: impl Into<Path>, start: Value<'a>, more: Value<'a>) -> Self {
        Self::Plus(of.into(), Box::new([start, more]))
    }

    /// One more than the value of this attribute, or than this value if the attribute is missing.
    pub(super) fn next(of: impl Into<Path>, start: Value<'a>) -> Self {
        Self::plus(of, start, count("one", 1_u8))
    }
}

impl<'a> From<Value<'a>> for To<'a> {
    fn from(value: Value<'a>) -> Self {
        Self::Value(value)
    }
}

/// A conditional update of one row.
#[derive(Clone, Debug)]
#[must_use = "an update does nothing until it is written"]
pub(super) struct Update<'a> {
    pub(super) key: &'a str,
    pub(super) set: Vec<(Path, To<'a>)>,
    pub(super) remove: Vec<Path>,
    pub(super) condition: Option<Condition<'a>>,
    pub(super) returns: Option<ReturnValue>,
}

impl<'a> Update<'a> {
    pub(super) fn new(key: &'a str) -> Self {
        Self { key, set: Vec::with_capacity(8), remove: Vec::new(), condition: None, returns: None }
    }

    pub(super) fn set(mut self, path: impl Into<Path>, to: impl Into<To<'a>>) -> Self {
        self.set.push((path.into(), to.into()));
        self
    }

    /// Sets the data, if there is any.
    pub(super) fn set_data(self, data: Option<&Data>) -> Self {
        match data {
            Some(Data(data)) => self.set(DATA, value("data", data.clone())),
            None => self,
        }
    }

    pub(super) fn remove(mut self, path: impl Into<Path>) -> Self {
        self.remove.push(path.into());
        self
    }

    /// Adds a condition to the conditions that were added before.
    pub(super) fn when(mut self, condition: Condition<'a>) -> Self {
        self.condition = Some(match self.condition {
            Some(before) => before.and(condition),
            None => condition,
        });
        self
    }

    /// Adds a condition, if there is one.
    pub(super) fn when_some(self, condition: Option<Condition<'a>>) -> Self {
        match condition {
            Some(condition) => self.when(condition),
            None => self,
        }
    }

    /// Returns `true` if only a row can refuse the update.
    pub(super) fn is_refused_by_rows_only(&self) -> bool {
        self.condition.as_ref().is_none_or(Condition::is_met_without_row)
    }

    pub(super) fn returning(mut self, row: ReturnValue) -> Self {
        self.returns = Some(row);
        self
    }
}
