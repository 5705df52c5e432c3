//! Conditions and updates as values. They are rendered once, when the request is built, so no part depends on the order in
//! which it was added.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};

use super::names::{DATA, RESERVED_WORDS};
use crate::clock::micros;
use crate::holder::Data;

/// An attribute of a row, or an entry of an attribute that is a map.
#[derive(Clone, Debug)]
pub(super) struct Path {
    name: Name,
    entry: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum Name {
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
pub(super) struct Value<'a>(&'static str, Literal<'a>);

/// A value that becomes an `AttributeValue` when it is rendered, because texts name most values more than once.
#[derive(Clone, Debug, PartialEq)]
enum Literal<'a> {
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
    fn to_attribute(&self) -> AttributeValue {
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
    set: Vec<(Path, To<'a>)>,
    remove: Vec<Path>,
    condition: Option<Condition<'a>>,
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

    pub(super) fn render(&self) -> Rendered {
        let mut placeholders = Placeholders::new();
        let mut update = String::with_capacity(256);
        for (index, (path, to)) in self.set.iter().enumerate() {
            update.push_str(if index == 0 { "SET " } else { ", " });
            placeholders.write_assignment(path, to, &mut update);
        }
        for (index, path) in self.remove.iter().enumerate() {
            update.push_str(if index == 0 { " REMOVE " } else { ", " });
            placeholders.write_path(path, &mut update);
        }
        let condition = self.condition.as_ref().map(|condition| placeholders.condition(condition));
        Rendered { update: Some(update).filter(|update| !update.is_empty()), condition, ..placeholders.meanings() }
    }
}

/// The texts of an update and its condition, with the meanings of their placeholders.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub(super) update: Option<String>,
    pub(super) condition: Option<String>,
    pub(super) names: Option<HashMap<String, String>>,
    pub(super) values: Option<HashMap<String, AttributeValue>>,
}

impl Rendered {
    pub(super) fn of(condition: &Condition<'_>) -> Self {
        Self::of_list(&[], condition).1
    }

    /// Returns a list of attributes, beside the condition.
    pub(super) fn of_list(paths: &[Path], condition: &Condition<'_>) -> (String, Self) {
        let (mut placeholders, mut list) = (Placeholders::new(), String::new());
        for path in paths {
            if !list.is_empty() {
                list.push_str(", ");
            }
            placeholders.write_path(path, &mut list);
        }
        let condition = Some(placeholders.condition(condition));
        (list, Self { condition, ..placeholders.meanings() })
    }
}

/// The placeholders of an expression, without their signs, with their meanings. An expression has few, but names most of them
/// more than once: comparing a dozen texts is faster than hashing one.
struct Placeholders<'e> {
    names: Vec<(Cow<'e, str>, &'e str)>,
    values: Vec<(Cow<'e, str>, &'e Literal<'e>)>,
}

impl<'e> Placeholders<'e> {
    /// Has room for the names and values of most requests.
    fn new() -> Self {
        Self { names: Vec::with_capacity(14), values: Vec::with_capacity(14) }
    }

    /// Returns the names and values for a request, or `None` instead of an empty map.
    fn meanings(self) -> Rendered {
        let names = self.names.into_iter().map(|(name, attribute)| (signed('#', &name), attribute.to_owned()));
        let values = self.values.into_iter().map(|(name, value)| (signed(':', &name), value.to_attribute()));
        let (names, values): (HashMap<_, _>, HashMap<_, _>) = (names.collect(), values.collect());
        Rendered {
            names: Some(names).filter(|names| !names.is_empty()),
            values: Some(values).filter(|values| !values.is_empty()),
            ..Rendered::default()
        }
    }

    fn condition(&mut self, condition: &'e Condition<'_>) -> String {
        let mut text = String::with_capacity(512);
        self.write_condition(condition, &mut text);
        text
    }

    fn write_assignment(&mut self, path: &'e Path, to: &'e To<'_>, text: &mut String) {
        self.write_path(path, text);
        text.push_str(" = ");
        match to {
            To::Value(value) => self.write_value(value, text),
            To::Default(value) => self.write_default(path, value, text),
            To::Or(other) => {
                text.push_str("if_not_exists(");
                self.write_path(path, text);
                text.push_str(", ");
                self.write_path(other, text);
                text.push(')');
            }
            To::Plus(of, values) => {
                let [start, more] = &**values;
                self.write_default(of, start, text);
                text.push_str(" + ");
                self.write_value(more, text);
            }
            To::Minus(value) => {
                self.write_path(path, text);
                text.push_str(" - ");
                self.write_value(value, text);
            }
        }
    }

    fn write_default(&mut self, path: &'e Path, value: &'e Value<'_>, text: &mut String) {
        text.push_str("if_not_exists(");
        self.write_path(path, text);
        text.push_str(", ");
        self.write_value(value, text);
        text.push(')');
    }

    fn write_condition(&mut self, condition: &'e Condition<'_>, text: &mut String) {
        match condition {
            Condition::Compare(path, operator, operand) => {
                self.write_path(path, text);
                text.extend([" ", operator, " "]);
                match operand {
                    Operand::Value(value) => self.write_value(value, text),
                    Operand::Path(path) => self.write_path(path, text),
                }
            }
            Condition::Between(path, least, most) => {
                self.write_path(path, text);
                text.push_str(" BETWEEN ");
                self.write_value(least, text);
                text.push_str(" AND ");
                self.write_value(most, text);
            }
            Condition::BeginsWith(path, start) => {
                text.push_str("begins_with(");
                self.write_path(path, text);
                text.push_str(", ");
                self.write_value(start, text);
                text.push(')');
            }
            Condition::Exists(path) => self.write_function("attribute_exists(", path, text),
            Condition::Missing(path) => self.write_function("attribute_not_exists(", path, text),
            Condition::Not(condition) => {
                text.push_str("NOT ");
                self.write_term(condition, text);
            }
            Condition::All(conditions) => self.write_joined(conditions, " AND ", text),
            Condition::Any(conditions) => self.write_joined(conditions, " OR ", text),
        }
    }

    fn write_function(&mut self, function: &str, path: &'e Path, text: &mut String) {
        text.push_str(function);
        self.write_path(path, text);
        text.push(')');
    }

    fn write_joined(&mut self, conditions: &'e [Condition<'_>], operator: &str, text: &mut String) {
        for (index, condition) in conditions.iter().enumerate() {
            if index > 0 {
                text.push_str(operator);
            }
            self.write_term(condition, text);
        }
    }

    /// Writes a condition that is a part of a larger one.
    fn write_term(&mut self, condition: &'e Condition<'_>, text: &mut String) {
        let is_compound = matches!(condition, Condition::All(_) | Condition::Any(_));
        if is_compound {
            text.push('(');
        }
        self.write_condition(condition, text);
        if is_compound {
            text.push(')');
        }
    }

    fn write_path(&mut self, Path { name, entry }: &'e Path, text: &mut String) {
        match name {
            Name::Fixed(name) => self.write_name(name, text),
            Name::Named(named) => write_placeholder(&mut self.names, '#', &named.0, &*named.1, text),
        }
        if let Some(entry) = entry {
            text.push('.');
            self.write_name(entry, text);
        }
    }

    /// Writes the name itself if it may stand in an expression: each placeholder makes the request longer.
    fn write_name(&mut self, name: &'static str, text: &mut String) {
        if RESERVED_WORDS.contains(&name) {
            write_placeholder(&mut self.names, '#', name, name, text);
        } else {
            text.push_str(name);
        }
    }

    fn write_value(&mut self, Value(name, value): &'e Value<'_>, text: &mut String) {
        write_placeholder(&mut self.values, ':', name, value, text);
    }
}

fn signed(sign: char, placeholder: &str) -> String {
    let mut signed = String::with_capacity(1 + placeholder.len());
    signed.push(sign);
    signed.push_str(placeholder);
    signed
}

/// Writes the placeholder of a name or a value: the wished text, with a number if the text stands for something else already.
fn write_placeholder<'e, T: PartialEq>(
    placeholders: &mut Vec<(Cow<'e, str>, T)>,
    sign: char,
    wished: &'e str,
    meaning: T,
    text: &mut String,
) {
    let (mut placeholder, mut number) = (Cow::Borrowed(wished), 1_u32);
    let is_known = loop {
        match placeholders.iter().find(|(other, _)| *other == placeholder) {
            Some((_, other)) if *other == meaning => break true,
            Some(_) => number += 1,
            None => break false,
        }
        placeholder = Cow::Owned(format!("{wished}{number}"));
    };
    text.push(sign);
    text.push_str(&placeholder);
    if !is_known {
        placeholders.push((placeholder, meaning));
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::{EXPIRATION, FENCE, LEASE_END, OWNER, STATUS, permit};
    use super::*;

    fn rendered(condition: &Condition<'_>) -> (String, Rendered) {
        let mut rendered = Rendered::of(condition);
        (rendered.condition.take().unwrap_or_default(), rendered)
    }

    #[test]
    fn conditions_within_conditions_have_parentheses() {
        let (text, _) = rendered(&any([
            OWNER.missing(),
            all([STATUS.is(text("completed", "COMPLETED")), not(any([FENCE.exists(), OWNER.exists()]))]),
        ]));
        assert_eq!(
            text,
            "attribute_not_exists(#owner) OR (#status = :completed AND NOT (attribute_exists(fence) OR \
             attribute_exists(#owner)))"
        );
    }

    #[test]
    fn one_name_for_two_values_becomes_two_placeholders() {
        let (text, rendered) = rendered(&all([FENCE.above(count("n", 1_u8)), FENCE.below(count("n", 2_u8))]));
        assert_eq!(text, "fence > :n AND fence < :n2");
        assert_eq!(rendered.values.unwrap().get(":n2"), Some(&number(2_u8)));
    }

    #[test]
    fn a_value_that_occurs_twice_has_one_placeholder() {
        let values: [fn() -> Value<'static>; 4] = [
            || text("v", "COMPLETED"),
            || count("v", 7_u8),
            || hold_time("v", Duration::from_millis(7)),
            || value("v", AttributeValue::Bool(true)),
        ];
        for value in values {
            let (text, rendered) = rendered(&all([STATUS.is(value()), OWNER.above(value())]));
            assert_eq!(text, "#status = :v AND #owner > :v");
            assert_eq!(rendered.values.unwrap().get(":v"), Some(&value().1.to_attribute()));
        }
    }

    #[test]
    fn an_entry_of_a_map_has_two_names() {
        let path = || Path::named("permit", "permit:0f");
        let (text, rendered) =
            rendered(&all([path().entry(permit::LEASE_END).exists(), Path::named("end", LEASE_END).exists()]));
        assert_eq!(text, "attribute_exists(#permit.#end) AND attribute_exists(#end2)");
        assert_eq!(rendered.names.unwrap().get("#end2").map(String::as_str), Some(LEASE_END));
    }

    #[test]
    fn a_key_without_a_row_meets_what_a_missing_attribute_meets() {
        let one = || count("one", 1_u8);
        let (met, unmet) = (|| OWNER.missing(), || OWNER.exists());
        for (condition, is_met) in [
            (met(), true),
            (unmet(), false),
            (OWNER.is(text("owner", "me")), false),
            (FENCE.below(one()), false),
            (FENCE.at_most(one()), false),
            (FENCE.above(one()), false),
            (FENCE.at_least(one()), false),
            (FENCE.between(one(), one()), false),
            (OWNER.begins_with(text("start", "m")), false),
            (not(FENCE.below(one())), true),
            (not(met()), false),
            (all([met(), met()]), true),
            (all([met(), unmet()]), false),
            (any([unmet(), met()]), true),
            (any([unmet(), unmet()]), false),
        ] {
            let update = Update::new("key").when(condition.clone());
            assert_eq!(update.is_refused_by_rows_only(), is_met, "{condition:?}");
        }
        assert!(Update::new("key").is_refused_by_rows_only());
    }

    #[test]
    fn the_order_of_parts_does_not_matter() {
        let update = Update::new("key").when(OWNER.exists()).remove(DATA).set(EXPIRATION, count("end", 7_u8));
        let update = update.when(FENCE.exists()).set(FENCE, To::next(FENCE, count("now", 9_u8))).render();
        assert_eq!(
            update.update.as_deref(),
            Some("SET expiration = :end, fence = if_not_exists(fence, :now) + :one REMOVE #data")
        );
        assert_eq!(update.condition.as_deref(), Some("attribute_exists(#owner) AND attribute_exists(fence)"));
    }
}
