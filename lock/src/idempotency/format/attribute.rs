//! Results as DynamoDB values, as the AWS SDK for JavaScript's `marshall` writes them, and values as results.
//!
//! `serde_dynamo` is no alternative: it reads a set as an array and bytes as numbers, rounds long integers, and writes a
//! number as a map if a dependency enables `arbitrary_precision`.

use std::collections::HashMap;
use std::fmt::Display;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Number, Value};

use super::json::javascript_number;

/// DynamoDB has no number but zero that is nearer to zero.
const MIN_NUMBER: f64 = 1e-130;
/// The digits that DynamoDB keeps of a number.
const MAX_DIGITS: usize = 38;

/// Returns the DynamoDB value of a result.
pub(super) fn to_native(result: &Value) -> Result<AttributeValue, String> {
    Ok(match result {
        Value::Null => AttributeValue::Null(true),
        Value::Bool(value) => AttributeValue::Bool(*value),
        Value::Number(number) => {
            // With `arbitrary_precision` the text has more digits than the float, which may even be 0.
            let (float, text) = (javascript_number(number)?, number.to_string());
            match significant(&text) {
                1.. if float.abs() < MIN_NUMBER => {
                    return Err("DynamoDB has no number nearer to zero than 1e-130: return 0 or a string".into());
                }
                digits if digits > MAX_DIGITS => {
                    return Err(format!(
                        "a number has {digits} digits, and DynamoDB keeps {MAX_DIGITS}: round it or return a string"
                    ));
                }
                _ => AttributeValue::N(text),
            }
        }
        Value::String(text) => AttributeValue::S(text.clone()),
        Value::Array(values) => AttributeValue::L(values.iter().map(to_native).collect::<Result<_, _>>()?),
        Value::Object(object) if object.contains_key("") => {
            return Err("an object has an empty key, which DynamoDB does not allow: rename it".into());
        }
        Value::Object(object) => {
            let entries = object.iter().map(|(name, value)| Ok((name.clone(), to_native(value)?)));
            AttributeValue::M(entries.collect::<Result<HashMap<_, _>, String>>()?)
        }
    })
}

/// Returns the result that a DynamoDB value stands for.
pub(super) fn from_native(data: &AttributeValue) -> Result<Value, String> {
    let type_name = match data {
        AttributeValue::Null(_) => return Ok(Value::Null),
        AttributeValue::Bool(value) => return Ok(Value::Bool(*value)),
        AttributeValue::N(digits) => return number(digits),
        AttributeValue::S(text) => return Ok(Value::String(text.clone())),
        AttributeValue::L(values) => return values.iter().map(from_native).collect(),
        AttributeValue::M(object) => {
            return object.iter().map(|(name, value)| Ok((name.clone(), from_native(value)?))).collect();
        }
        AttributeValue::B(_) => "B (bytes)",
        AttributeValue::Bs(_) => "BS (a set of bytes)",
        AttributeValue::Ns(_) => "NS (a set of numbers)",
        AttributeValue::Ss(_) => "SS (a set of strings)",
        _ => "unknown to this version",
    };
    Err(format!(
        "the stored result contains a value of DynamoDB's type {type_name}, which JSON lacks: let the function that wrote \
         it return JSON"
    ))
}

/// Returns the result that JSON text stands for. An integer that would be rounded is an error.
pub(super) fn from_text(json: &str) -> Result<Value, String> {
    let value = serde_json::from_str(json).map_err(|why| {
        format!("the stored result is not JSON ({why}): read it in the format in which it was written")
    })?;
    for digits in integers(json).filter(|digits| !is_kept(digits)) {
        number(digits)?;
    }
    Ok(value)
}

/// Returns the depth of the nested lists and maps.
pub(super) fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(values) => values.iter().map(depth).max(),
        Value::Object(object) => object.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or(0)
}

fn number(digits: &str) -> Result<Value, String> {
    if let Ok(integer) = digits.parse::<i64>() {
        return Ok(integer.into());
    }
    if let Ok(integer) = digits.parse::<u64>() {
        return Ok(integer.into());
    }
    let float = digits.parse().ok().filter(|float| keeps_digits(float, digits));
    float.and_then(Number::from_f64).map(Value::Number).ok_or_else(|| {
        "the stored result contains a number that neither 64 bits nor a float can hold: let the function that wrote it \
         return a string"
            .into()
    })
}

/// Whether a number that was read from these digits has them all. A fraction becomes the nearest float, as with every reader
/// of JSON. An integer may be an identifier and is not rounded.
fn keeps_digits(number: &impl Display, digits: &str) -> bool {
    let (shortest, exact) = (number.to_string(), format!("{number:.0}"));
    shortest == digits || exact == digits || is_fraction(digits) && !shortest.ends_with("inf")
}

/// Counts the significant digits of a number: those from the first to the last that is not 0.
fn significant(number: &str) -> usize {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').len()
}

/// Returns the integers in JSON text, outside of its strings, as they are written.
fn integers(json: &str) -> impl Iterator<Item = &str> {
    let mut is_escaped = false;
    let mut is_in_string = false;
    let is_separator = move |character: char| {
        let is_quote = character == '"' && !is_escaped;
        is_escaped = is_in_string && character == '\\' && !is_escaped;
        is_in_string ^= is_quote;
        is_in_string || !matches!(character, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')
    };
    json.split(is_separator).filter(|text| text.ends_with(|last: char| last.is_ascii_digit()) && !is_fraction(text))
}

/// Whether a number is written as a fraction or with an exponent.
fn is_fraction(number: &str) -> bool {
    number.contains(['.', 'e', 'E'])
}

/// Whether `serde_json` keeps all digits of an integer, which with `arbitrary_precision` it always does.
fn is_kept(digits: &str) -> bool {
    digits.parse::<i64>().is_ok()
        || digits.parse::<u64>().is_ok()
        || digits.parse::<Number>().is_ok_and(|number| number.to_string() == digits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{assert_refused, has_arbitrary_precision, parse};
    use super::*;

    #[test]
    fn a_number_that_dynamodb_cannot_keep_is_rejected() {
        for (number, digits) in [
            ("0", 0),
            ("-0.0", 0),
            ("1e-400", 1),
            ("-100", 1),
            ("0.00120", 2),
            ("1.7976931348623157e308", 17),
            ("0.12345678901234567890123456789012345678", 38),
            ("9.00000000000000000000000000000000000000000001e-7", 45),
        ] {
            assert_eq!(significant(number), digits, "{number}");
        }
        // With `arbitrary_precision` these keep their digits; without it they become the nearest float.
        for json in ["0.123456789012345678901234567890123456789", "1e-400", "9.000000000000000000000000000000000000001"]
        {
            let is_refused = to_native(&parse(json)).is_err();
            assert_eq!(is_refused, has_arbitrary_precision(), "{json}");
        }
    }

    #[test]
    fn a_result_that_typescript_cannot_store_is_rejected() {
        for number in [json!(9_007_199_254_740_992_u64), json!([-9_007_199_254_740_992_i64]), json!({"a": 1e16})] {
            assert_refused(to_native(&number), "2^53");
        }
        assert_refused(to_native(&json!([1e-131])), "1e-130");
        assert_refused(to_native(&json!([{"a": {"": "secret"}}])), "empty key");
        assert_eq!(to_native(&json!(1e-130)), Ok(AttributeValue::N("1e-130".to_owned())));
    }

    #[test]
    fn a_stored_number_keeps_its_digits_or_is_rejected() {
        let load = |digits: &str| from_native(&AttributeValue::N(digits.to_owned()));
        for (digits, expected) in [
            ("0", json!(0)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("18446744073709551615", json!(u64::MAX)),
            ("0.30000000000000004", json!(0.1 + 0.2)),
            ("1E-7", json!(1e-7)),
            ("1000000000000000000000", json!(1e21)),
            ("1208925819614629174706176", json!(2f64.powi(80))),
        ] {
            assert_eq!(load(digits), Ok(expected), "{digits}");
        }
        for digits in ["123456789012345678777", "-9223372036854775877", "1e999", "NaN", ""] {
            assert_refused(load(digits), "return a string");
        }
    }
}
