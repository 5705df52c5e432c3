//! The texts of conditions and updates, with a placeholder for each value, and for each name that may not stand in a text.

use std::borrow::Cow;
use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use super::expression::{Condition, Literal, Name, Operand, Path, To, Update, Value};
use super::names::RESERVED_WORDS;

/// The texts of an update and its condition, with the meanings of their placeholders.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub(super) update: Option<String>,
    pub(super) condition: Option<String>,
    pub(super) names: Option<HashMap<String, String>>,
    pub(super) values: Option<HashMap<String, AttributeValue>>,
}

impl Rendered {
    pub(super) fn of_update(update: &Update<'_>) -> Self {
        let mut placeholders = Placeholders::new();
        let mut text = String::with_capacity(256);
        for (index, (path, to)) in update.set.iter().enumerate() {
            text.push_str(if index == 0 { "SET " } else { ", " });
            placeholders.write_assignment(path, to, &mut text);
        }
        for (index, path) in update.remove.iter().enumerate() {
            text.push_str(if index == 0 { " REMOVE " } else { ", " });
            placeholders.write_path(path, &mut text);
        }
        let condition = update.condition.as_ref().map(|condition| placeholders.condition(condition));
        Self { update: Some(text).filter(|text| !text.is_empty()), condition, ..placeholders.meanings() }
    }

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
        if RESERVED_WORDS.contains(&name) || name.contains(':') {
            write_placeholder(&mut self.names, '#', name.trim_end_matches(':'), name, text);
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
    use super::super::expression::{Attribute as _, Update, all, any, count, not, text};
    use super::super::names::{FENCE, OWNER};
    use super::Rendered;

    #[test]
    fn a_name_with_a_colon_has_a_placeholder() {
        let rendered = Rendered::of(&"note:".exists());
        assert_eq!(rendered.condition.as_deref(), Some("attribute_exists(#note)"));
        assert_eq!(rendered.names.unwrap().get("#note").map(String::as_str), Some("note:"));
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
}
