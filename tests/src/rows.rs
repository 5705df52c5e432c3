//! Rows of any content, as strategies of proptest, and what a row means: a second implementation, independent of the one
//! under test.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use crate::Row;

/// The latest time of a row, in milliseconds.
const LATEST: i128 = 253_402_300_799_999;

/// A string.
#[must_use]
pub fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

/// A number, written as it is displayed.
#[expect(clippy::needless_pass_by_value, reason = "`map` passes values")]
pub fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// Times around `now`, which is in seconds, in seconds and in milliseconds, and numbers that are no valid times. None is so
/// close to now that the duration of a test matters.
pub fn any_number(now: u64) -> impl Strategy<Value = AttributeValue> + Clone {
    let times = prop_oneof![now - 500..now - 200, now + 200..now + 500];
    let odd = ["0", "-0", "-1", "0.5", "-0.5", "1e3", "1.5E+12", "9.9e125", "-9.9e125", "1e-30"];
    // Around the bounds of valid numbers.
    let bounds = ["253402300799999", "253402300800000", "253402300799", "253402300800", "18446744073709551616"];
    let bounds = bounds.into_iter().chain(["9223372036854775806", "9223372036854775807", "9223372036854775808"]);
    prop_oneof![
        4 => times.clone().prop_map(number),
        4 => times.clone().prop_map(|time| number(time * 1000)),
        1 => times.prop_map(|time| number(format!("{time}000.75"))),
        1 => any::<i64>().prop_map(number),
        1 => any::<u64>().prop_map(number),
        1 => select(odd.into_iter().chain(bounds).collect::<Vec<_>>()).prop_map(number),
    ]
}

/// Values of all types. Texts are often those of a row.
pub fn any_value(now: u64) -> impl Strategy<Value = AttributeValue> + Clone {
    let texts = ["", "INPROGRESS", "COMPLETED", "SEMAPHORE", "inprogress", "EXPIRED", "1800000000000", "🔒\0"];
    let flat = prop_oneof![
        any_number(now),
        select(texts.to_vec()).prop_map(text),
        any::<bool>().prop_map(AttributeValue::Bool),
        Just(AttributeValue::Null(true)),
        vec(any::<u8>(), 0..9).prop_map(|bytes| AttributeValue::B(Blob::new(bytes))),
        any_number(now).prop_map(|one| AttributeValue::Ns(vec![one.as_n().unwrap().clone()])),
        Just(AttributeValue::Ss(vec!["INPROGRESS".to_owned()])),
        Just(AttributeValue::Bs(vec![Blob::new([0]), Blob::new([])])),
        (1000..9000_usize).prop_map(|length| AttributeValue::S("🔒\n".repeat(length))),
    ];
    flat.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(AttributeValue::L),
            btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|map| AttributeValue::M(map.into_iter().collect())),
        ]
    })
}

/// The attributes of a key's row without its key. Most are present and valid.
pub fn any_row(now: u64) -> impl Strategy<Value = Row> {
    let mostly = move |name: &'static str, usual: BoxedStrategy<AttributeValue>| {
        let value = prop_oneof![12 => usual.prop_map(Some), 3 => Just(None), 1 => any_value(now).prop_map(Some)];
        value.prop_map(move |value| Some((name.to_owned(), value?)))
    };
    let times = any_number(now).boxed();
    let fence = prop_oneof![4 => (1..i64::MAX / 2).prop_map(number), 1 => any_number(now)];
    let attributes = [
        mostly("status", select(&["INPROGRESS", "INPROGRESS", "COMPLETED"][..]).prop_map(text).boxed()),
        mostly("in_progress_expiration", times.clone()),
        mostly("expiration", times.clone()),
        mostly("owner", "[0-9a-f]{32}".prop_map(AttributeValue::S).boxed()),
        mostly("released", fence.clone().boxed()),
        mostly("fence", fence.boxed()),
        mostly("holder", Just(text("someone")).boxed()),
        mostly("acquired_at", Just(number(now * 1000)).boxed()),
        mostly("data", any_value(now).boxed()),
    ];
    attributes.prop_map(|attributes| attributes.into_iter().flatten().collect())
}

/// What a row means for who acquires its key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It can be taken.
    Free,
    /// Somebody has it.
    Held,
    /// It is not the row of a key.
    Malformed,
}

/// The meaning of a row at this time since the epoch.
#[expect(clippy::cast_precision_loss, reason = "values with a fraction are not near a bound")]
#[must_use]
pub fn verdict(row: &Row, now: Duration) -> Verdict {
    // Whether an attribute is a number of at most `most`; `None` if it is missing.
    let is_at_most = |name: &str, most: i128| {
        row.get(name).map(|value| match value.as_n().map(|text| (text.parse::<i128>(), text.parse::<f64>())) {
            Ok((Ok(whole), _)) => whole <= most,
            Ok((_, Ok(real))) => real <= most as f64,
            _ => false,
        })
    };
    let is_within = |name: &str, most: i128| {
        let negative = row.get(name).is_some_and(|value| value.as_n().is_ok_and(|n| n.parse::<f64>().unwrap() < 0.0));
        is_at_most(name, most).unwrap_or(true) && !negative
    };
    let status = row.get("status").and_then(|status| status.as_s().ok()).map_or("", String::as_str);
    let micros: i128 = now.as_micros().try_into().unwrap();
    let (end, now) = match (status, row.contains_key("in_progress_expiration")) {
        ("INPROGRESS", true) => ("in_progress_expiration", now.as_millis()),
        ("INPROGRESS", false) | ("COMPLETED", _) => ("expiration", now.as_secs().into()),
        _ => return Verdict::Malformed,
    };
    let is_free = is_at_most(end, now.try_into().unwrap()) == Some(true);
    // A free row is taken as it is, unless its numbers are ahead of the clock. Then an attempt is refused first, and reads the
    // row.
    let is_number = |name: &str| row.get(name).is_some_and(AttributeValue::is_n);
    let is_ahead =
        ["fence", "withdrawn"].iter().any(|name| is_number(name) && is_at_most(name, micros - 1) == Some(false));
    if is_free && !is_ahead {
        return Verdict::Free;
    }
    // A larger fence must follow that of a free row. That of a held row may be the largest, or 2^63.
    let fence = is_within("fence", i128::from(i64::MAX) + if is_free { -1 } else { 1 });
    // What is no number gives up nothing.
    let withdrawn = !is_number("withdrawn") || is_within("withdrawn", i128::from(i64::MAX) - i128::from(is_free));
    let strings = ["owner", "holder"].into_iter().chain((status == "COMPLETED").then_some("error"));
    let strings = strings.into_iter().all(|name| row.get(name).is_none_or(AttributeValue::is_s));
    let times = [("in_progress_expiration", LATEST), ("acquired_at", LATEST), ("expiration", LATEST / 1000)];
    let times = times.iter().all(|(name, latest)| is_within(name, *latest));
    if !(fence && withdrawn && strings && times && row.contains_key(end)) {
        return Verdict::Malformed;
    }
    if is_free { Verdict::Free } else { Verdict::Held }
}

// As text

/// The row as the JSON of DynamoDB, with its attributes in order: what a failed case prints, and a corpus keeps.
#[must_use]
pub fn to_json(row: &Row) -> Value {
    let sorted: BTreeMap<_, _> = row.iter().collect();
    sorted.into_iter().map(|(name, value)| (name.clone(), value_to_json(value))).collect::<Map<_, _>>().into()
}

fn value_to_json(value: &AttributeValue) -> Value {
    let hex = |bytes: &Blob| bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(digits) => json!({ "N": digits }),
        AttributeValue::B(bytes) => json!({ "B": hex(bytes) }),
        AttributeValue::Bool(is) => json!({ "BOOL": is }),
        AttributeValue::Null(_) => json!({ "NULL": true }),
        AttributeValue::L(list) => json!({ "L": list.iter().map(value_to_json).collect::<Vec<_>>() }),
        AttributeValue::M(map) => json!({ "M": to_json(map) }),
        AttributeValue::Ss(texts) => json!({ "SS": texts }),
        AttributeValue::Ns(digits) => json!({ "NS": digits }),
        AttributeValue::Bs(all) => json!({ "BS": all.iter().map(hex).collect::<Vec<_>>() }),
        other => panic!("{other:?}"),
    }
}

/// Reads what [`to_json`] writes. Bytes are in hexadecimal digits.
#[must_use]
pub fn from_json(row: &Value) -> Row {
    row.as_object().unwrap().iter().map(|(name, value)| (name.clone(), value_from_json(value))).collect()
}

fn value_from_json(value: &Value) -> AttributeValue {
    let string = |value: &Value| value.as_str().unwrap().to_owned();
    let strings = |value: &Value| value.as_array().unwrap().iter().map(string).collect::<Vec<_>>();
    let bytes = |hex: String| {
        let pairs = (0..hex.len()).step_by(2);
        Blob::new(pairs.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect::<Vec<_>>())
    };
    let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "S" => AttributeValue::S(string(value)),
        "N" => AttributeValue::N(string(value)),
        "B" => AttributeValue::B(bytes(string(value))),
        "BOOL" => AttributeValue::Bool(value.as_bool().unwrap()),
        "NULL" => AttributeValue::Null(true),
        "L" => AttributeValue::L(value.as_array().unwrap().iter().map(value_from_json).collect()),
        "M" => AttributeValue::M(from_json(value)),
        "SS" => AttributeValue::Ss(strings(value)),
        "NS" => AttributeValue::Ns(strings(value)),
        "BS" => AttributeValue::Bs(strings(value).into_iter().map(bytes).collect()),
        other => panic!("the type {other}"),
    }
}
