//! How keys are hashed and results are stored: our own way, or that of Powertools for AWS Lambda.
//!
//! A record is found by its key alone. So Rust shares records with a function in Python or TypeScript only where it
//! hashes, to the byte, what the other one hashes: the text of `json.dumps(x, sort_keys=True)`, or of
//! `JSON.stringify(deepSort(x))`. A text that is nearly right gives another key, and the work is done twice. Where a
//! [`Value`] no longer tells what the other one would write, there is an error and no hash.
//!
//! The formats are those of `_generate_hash` and `is_missing_idempotency_key` in Powertools for Python 3.37
//! (`utilities/idempotency/persistence/base.py`), and of `getHashedIdempotencyKey` and `deepSort` in Powertools for
//! TypeScript 2.35 (`packages/idempotency`), which stores a result as `marshall` of the AWS SDK for JavaScript does.
//!
//! Floats are exact only if `serde_json` reads them to the last bit, which takes its feature `float_roundtrip`.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use serde_json::{Map, Number, Value};
use sha2::{Digest, Sha256};

/// JavaScript's `Number.MAX_SAFE_INTEGER`: of the integers above, several are one number there.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;
/// 2⁶³: from here on a parser may have made a float of an integer, for want of an integer type.
const PERHAPS_AN_INTEGER: f64 = 9_223_372_036_854_775_808.0;
/// Nearer to zero DynamoDB has zero alone.
const DYNAMODB_MIN: f64 = 1e-130;
/// What DynamoDB keeps of a number.
const DYNAMODB_DIGITS: usize = 38;

/// Of lists and maps in each other: DynamoDB's 32 levels, the attribute itself being one.
const DYNAMODB_LEVELS: usize = 31;
/// What `serde_json` reads.
const JSON_LEVELS: usize = 127;

/// How the key of a record is derived and its result stored.
///
/// Functions that share records use one format: none finds what another wrote. A Powertools format shares them with
/// functions in that language that have the same key prefix, and leave the hash function as it is. Powertools for Java
/// and for .NET hash in other ways, which have no format here.
///
/// | | key, after the prefix | payload hash | result |
/// | --- | --- | --- | --- |
/// | [`Plain`](Self::Plain) | the string itself | SHA-256, hex | JSON text |
/// | [`Hashed`](Self::Hashed) | SHA-256, hex | SHA-256, hex | JSON text |
/// | [`PowertoolsPython`](Self::PowertoolsPython) | MD5, hex | MD5, hex | JSON text |
/// | [`PowertoolsTypeScript`](Self::PowertoolsTypeScript) | MD5, Base64 | MD5, Base64 | DynamoDB value |
///
/// What is hashed is JSON text, in which `5` and `5.0` may differ: take it from the event's JSON as it came, not from
/// a struct with floats. Where the text is in doubt, there is an error before any request is sent: in every format for a
/// float of 2⁶³ or more, which may be what is left of a longer integer; in some for what they name. A string in place of
/// a number is never in doubt.
///
/// A stored result is read as it was written. If it has an integer in it that neither 64 bits nor a float can hold, as
/// Python and JavaScript write them, it is not rounded: the duplicate gets an error that
/// [`is_unusable_result`](crate::Error::is_unusable_result).
///
/// ```
/// # use lambda_lock::{Idempotency, RecordFormat};
/// # fn example(orders: Idempotency<String, (), ()>) -> Idempotency<String, (), ()> {
/// // Shares its records with Python's `@idempotent_function(key_prefix="orders", …)`.
/// orders.format(RecordFormat::PowertoolsPython).prefix("orders")
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordFormat {
    /// The key is a string and stands in the table as it is, for all to read. With the prefix it has at most 2,048
    /// bytes.
    #[default]
    Plain,
    /// The key is hashed, for its length or its privacy, and may be any JSON. The order of object keys makes no
    /// difference; the string `"1"`, the integer `1` and the float `1.0` are three keys.
    Hashed,
    /// As Powertools for Python with its defaults: `json.dumps(x, sort_keys=True)`.
    ///
    /// The float `-0.0` cannot be hashed: Python may have had the integer `-0`, and writes that without its sign.
    /// Python replays the results `0`, `false`, `""`, `[]` and `{}` as `None`.
    PowertoolsPython,
    /// As Powertools for TypeScript with its defaults: `JSON.stringify(deepSort(x))`.
    ///
    /// - Numbers beyond 2⁵³ − 1 can be neither hashed nor stored: JavaScript loses their last digits, and two keys
    ///   would be one. A stored `1.0` comes back as `1`.
    /// - An object cannot be hashed with two keys that are equal when case is ignored, whose order is then that of the
    ///   event, or with the key `__proto__`, which is left out there.
    /// - A number nearer to zero than 10⁻¹³⁰ or with more than 38 digits cannot be stored, nor an object with an empty key,
    ///   nor more than 31 levels of nesting: DynamoDB has none of them.
    PowertoolsTypeScript,
}

impl RecordFormat {
    /// What follows the prefix and `#` in the record's id.
    pub(crate) fn key(self, key: &Value) -> Result<String, String> {
        match key {
            Value::String(text) if self == Self::Plain => Ok(text.clone()),
            _ if self == Self::Plain => {
                Err("a plain key must be a string: make it one, or choose `RecordFormat::Hashed`".into())
            }
            _ => self.digest(key),
        }
    }

    /// The hash of a payload, which a replay must have too.
    pub(crate) fn digest(self, payload: &Value) -> Result<String, String> {
        let mut json = String::new();
        self.write(payload, &mut json)?;
        Ok(match self {
            Self::Plain | Self::Hashed => hex(&Sha256::digest(json)),
            Self::PowertoolsPython => hex(&Md5::digest(json)),
            Self::PowertoolsTypeScript => STANDARD.encode(Md5::digest(json)),
        })
    }

    /// Powertools would replay a stored error as a success.
    pub(super) fn keeps_errors(self) -> bool {
        matches!(self, Self::Plain | Self::Hashed)
    }

    /// The attribute that keeps a result.
    pub(crate) fn store(self, result: &Value) -> Result<AttributeValue, String> {
        let (most, why) = match self {
            Self::PowertoolsTypeScript => (DYNAMODB_LEVELS, "DynamoDB allows no more"),
            _ => (JSON_LEVELS, "it could not be read again"),
        };
        match self {
            _ if depth(result) > most => Err(format!("the result is nested more than {most} levels deep, and {why}")),
            Self::PowertoolsTypeScript => native(result),
            _ => Ok(AttributeValue::S(result.to_string())),
        }
    }

    /// The result that an attribute keeps; null where there is none, as there is for JavaScript's `undefined`.
    pub(crate) fn load(self, data: Option<&AttributeValue>) -> Result<Value, String> {
        match data {
            None => Ok(Value::Null),
            Some(AttributeValue::S(json)) if self != Self::PowertoolsTypeScript => {
                let value = serde_json::from_str(json).map_err(|why| {
                    format!("the stored result is not JSON ({why}): read it in the format it was written in")
                })?;
                for digits in integers(json).filter(|digits| !is_kept(digits)) {
                    from_native_number(digits)?;
                }
                Ok(value)
            }
            Some(data) => from_native(data),
        }
    }

    /// Appends the JSON that is hashed.
    fn write(self, value: &Value, json: &mut String) -> Result<(), String> {
        let (comma, colon) = if self == Self::PowertoolsPython { (", ", ": ") } else { (",", ":") };
        match value {
            Value::Null | Value::Bool(_) => json.push_str(&value.to_string()),
            Value::Number(number) => json.push_str(&self.number(number)?),
            Value::String(text) => self.write_string(text, json),
            Value::Array(values) => {
                json.push('[');
                for (index, value) in values.iter().enumerate() {
                    json.push_str(if index == 0 { "" } else { comma });
                    self.write(value, json)?;
                }
                json.push(']');
            }
            Value::Object(object) => {
                json.push('{');
                for (index, (name, value)) in self.sorted(object)?.into_iter().enumerate() {
                    json.push_str(if index == 0 { "" } else { comma });
                    self.write_string(name, json);
                    json.push_str(colon);
                    self.write(value, json)?;
                }
                json.push('}');
            }
        }
        Ok(())
    }

    /// `serde_json` escapes what `JSON.stringify` does, and as it does. So does Python, which then leaves nothing that
    /// is not printable ASCII.
    fn write_string(self, text: &str, json: &mut String) {
        for character in Value::from(text).to_string().chars() {
            if self == Self::PowertoolsPython && character > '~' {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    json.push_str("\\u");
                    json.push_str(&hex(&unit.to_be_bytes()));
                }
            } else {
                json.push(character);
            }
        }
    }

    fn number(self, number: &Number) -> Result<String, String> {
        if self == Self::PowertoolsTypeScript {
            return Ok(match javascript_number(number)? {
                0.0 => "0".into(), // also the negative one
                float => shortest(float, float.abs() < 1e-6),
            });
        }
        // By value, not by `is_f64`, so that `arbitrary_precision` in someone else's dependency makes no difference.
        if let Some(integer) = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)) {
            return Ok(integer.to_string());
        }
        match number.as_f64() {
            Some(float) if self == Self::PowertoolsPython && float == 0.0 && float.is_sign_negative() => {
                Err("the float -0.0 may have been the integer -0, which Python writes without its sign: pass 0".into())
            }
            Some(float) if float.abs() < PERHAPS_AN_INTEGER => Ok(python_float(float)),
            _ => Err(
                "a number of 2^63 or more that is no 64-bit integer may have lost its last digits, and then be the \
                same as another one: pass it as a string"
                    .into(),
            ),
        }
    }

    fn sorted(self, object: &Map<String, Value>) -> Result<Vec<(&String, &Value)>, String> {
        let mut entries: Vec<_> = object.iter().collect();
        if self != Self::PowertoolsTypeScript {
            // Strings compare by their bytes, and UTF-8 has the order of the code points, which is Python's.
            entries.sort_unstable_by_key(|(name, _)| *name);
            return Ok(entries);
        }
        if object.contains_key("__proto__") {
            return Err(
                "Powertools for TypeScript does not hash what is under the key `__proto__`, so that what differs \
                only there would be the same: rename the key"
                    .into(),
            );
        }
        entries.sort_by_cached_key(|(name, _)| javascript_order(name));
        if entries.windows(2).any(|pair| javascript_order(pair[0].0) == javascript_order(pair[1].0)) {
            return Err(
                "two keys of an object are equal when case is ignored, and Powertools for TypeScript hashes them \
                in the order of the event, which is not known here: rename one"
                    .into(),
            );
        }
        Ok(entries)
    }
}

/// Whether this is no key: null, empty, or with nothing but nulls in it, which unrelated events would share.
pub(super) fn is_missing(key: &Value) -> bool {
    match key {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.iter().all(Value::is_null),
        Value::Object(object) => object.values().all(Value::is_null),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// In a JavaScript object the indices of arrays come first, by number. The rest is in the order that `deepSort` gives
/// it: in lower case, by UTF-16 code units.
fn javascript_order(name: &str) -> (bool, u32, Vec<u16>) {
    match name.parse::<u32>() {
        Ok(index) if index < u32::MAX && index.to_string() == name => (false, index, Vec::new()),
        _ => (true, 0, name.to_lowercase().encode_utf16().collect()),
    }
}

fn javascript_number(number: &Number) -> Result<f64, String> {
    number.as_f64().filter(|float| float.abs() <= MAX_SAFE_INTEGER).ok_or_else(|| {
        "a number beyond 2^53 - 1 loses its last digits in JavaScript, and is then the same as another one: pass it as \
            a string"
            .into()
    })
}

/// As Python's `repr` writes it.
fn python_float(float: f64) -> String {
    if float != 0.0 && !(1e-4..1e16).contains(&float.abs()) {
        let text = shortest(float, true);
        return match text.split_once("e-") {
            Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
            None => text.replace('e', "e+"),
        };
    }
    let text = shortest(float, false);
    if text.contains('.') { text } else { text + ".0" }
}

/// The fewest digits that stand for this float alone, and of those the nearest. Where two are as near, Rust takes the
/// upper one, but Python and JavaScript the even one, as Rust itself does when it is told how many digits to write.
fn shortest(float: f64, exponential: bool) -> String {
    let upper = if exponential { format!("{float:e}") } else { float.to_string() };
    let decimals = upper.split_once('.').map_or(0, |(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
    let even = if exponential { format!("{float:.decimals$e}") } else { format!("{float:.decimals$}") };
    // Below a power of two floats are closer together, and the nearest of so few digits may belong to the next float.
    if even.parse() == Ok(float) { even } else { upper }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

/// Whether there is a null in it.
pub(super) fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(object) => object.values().any(has_null),
        _ => false,
    }
}

/// The integers in a text that is JSON, as it has them.
fn integers(json: &str) -> impl Iterator<Item = &str> {
    // Outside of its strings.
    let mut is_escaped = false;
    let mut is_in_string = false;
    let outside = move |character: char| {
        let is_quote = character == '"' && !is_escaped;
        is_escaped = is_in_string && character == '\\' && !is_escaped;
        is_in_string ^= is_quote;
        is_in_string || !matches!(character, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')
    };
    json.split(outside).filter(|text| text.ends_with(|last: char| last.is_ascii_digit()) && !is_fraction(text))
}

/// Whether it is written as one, or with an exponent.
fn is_fraction(number: &str) -> bool {
    number.contains(['.', 'e', 'E'])
}

/// Whether an integer has all its digits where `serde_json` has read it; with `arbitrary_precision` that is each.
fn is_kept(digits: &str) -> bool {
    digits.parse::<i64>().is_ok()
        || digits.parse::<u64>().is_ok()
        || digits.parse::<Number>().is_ok_and(|number| number.to_string() == digits)
}

fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(values) => values.iter().map(depth).max(),
        Value::Object(object) => object.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or(0)
}

/// By hand: `serde_dynamo` reads a set as an array and bytes as numbers, rounds long integers, and makes a map of a
/// number where some dependency switches `arbitrary_precision` on.
fn native(value: &Value) -> Result<AttributeValue, String> {
    Ok(match value {
        Value::Null => AttributeValue::Null(true),
        Value::Bool(value) => AttributeValue::Bool(*value),
        Value::Number(number) => {
            // With `arbitrary_precision` the text has more digits than the float, which may even be 0.
            let (float, text) = (javascript_number(number)?, number.to_string());
            match significant(&text) {
                1.. if float.abs() < DYNAMODB_MIN => {
                    return Err(
                        "DynamoDB has no number that is nearer to zero than 1e-130: return 0, or a string".into()
                    );
                }
                digits if digits > DYNAMODB_DIGITS => {
                    return Err(format!(
                        "a number has {digits} digits, and DynamoDB keeps {DYNAMODB_DIGITS}: round it, or return a string"
                    ));
                }
                _ => AttributeValue::N(text),
            }
        }
        Value::String(text) => AttributeValue::S(text.clone()),
        Value::Array(values) => AttributeValue::L(values.iter().map(native).collect::<Result<_, _>>()?),
        Value::Object(object) if object.contains_key("") => {
            return Err("an object has an empty key, and DynamoDB has none: rename it".into());
        }
        Value::Object(object) => {
            let entries = object.iter().map(|(name, value)| Ok((name.clone(), native(value)?)));
            AttributeValue::M(entries.collect::<Result<HashMap<_, _>, String>>()?)
        }
    })
}

/// How many digits of a number count: those between the first and the last that are not 0.
fn significant(number: &str) -> usize {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').len()
}

fn from_native(data: &AttributeValue) -> Result<Value, String> {
    let type_name = match data {
        AttributeValue::Null(_) => return Ok(Value::Null),
        AttributeValue::Bool(value) => return Ok(Value::Bool(*value)),
        AttributeValue::N(digits) => return from_native_number(digits),
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
        "the stored result has a value in it whose DynamoDB type is {type_name}, and JSON has none for it: let the \
        function that wrote it return JSON"
    ))
}

fn from_native_number(digits: &str) -> Result<Value, String> {
    if let Ok(integer) = digits.parse::<i64>() {
        return Ok(integer.into());
    }
    if let Ok(integer) = digits.parse::<u64>() {
        return Ok(integer.into());
    }
    // A fraction is rounded, as by every reader of JSON; an integer may be somebody's number.
    let is_kept = |float: &f64| is_fraction(digits) || float.to_string() == digits;
    digits.parse().ok().filter(is_kept).and_then(Number::from_f64).map(Value::Number).ok_or_else(|| {
        "the stored result has a number in it that neither 64 bits nor a float can hold: let the function that wrote \
            it return a string"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::RecordFormat::{Hashed, Plain, PowertoolsPython, PowertoolsTypeScript};
    use super::*;

    const ALL: [RecordFormat; 4] = [Plain, Hashed, PowertoolsPython, PowertoolsTypeScript];

    fn parse(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    /// Whether someone else's dependency has switched it on, as `--features serde_json/arbitrary_precision` does.
    fn has_arbitrary_precision() -> bool {
        parse("18446744073709551617").to_string().ends_with("17")
    }

    /// What is hashed.
    fn text(format: RecordFormat, value: &Value) -> Result<String, String> {
        let mut json = String::new();
        format.write(value, &mut json).map(|()| json)
    }

    /// That these are refused, for this reason, and without a word of what they are.
    fn assert_refused<T: std::fmt::Debug>(result: Result<T, String>, reason: &str) {
        let why = result.expect_err(reason);
        assert!(why.contains(reason) && !why.contains("secret") && !why.contains("77"), "{why}");
    }

    // behaviours 62, 63, 83; written by the two libraries, and by Python's hashlib
    #[test]
    fn hashes_are_those_of_powertools() {
        let nested = r#"{"b":[1,"é😀",null,{}],"a":{"Z":1.5,"y":-1e-7}}"#;
        for (format, json, hash) in [
            (PowertoolsPython, r#""abc""#, "ebd9f4c7b06cb0aaf5d13d80e49d8b90"),
            (PowertoolsPython, "5", "e4da3b7fbbce2345d7772b0674a318d5"),
            (PowertoolsPython, r#"{"user":"é","Amount":1.0,"b":[1,2]}"#, "207b0a780a9e6e3096af8c49005b8fa1"),
            (PowertoolsPython, nested, "c586e5948588502066f7c8022d45ec28"),
            (PowertoolsTypeScript, r#""abc""#, "69n0x7BssKr10T2A5J2LkA=="),
            (PowertoolsTypeScript, "5", "5No7f7vOI0XXdysGdKMY1Q=="),
            (PowertoolsTypeScript, r#"{"user":"é","Amount":1.0,"b":[1,2]}"#, "lF/7wt4B6jswMSiw+gQTcA=="),
            (PowertoolsTypeScript, nested, "DDOyC6Bcka5phJXmh0taow=="),
            (Hashed, r#""abc""#, "6cc43f858fbb763301637b5af970e2a46b46f461f27e5a0f41e009c59b827b25"),
            (Hashed, "5", "ef2d127de37b942baad06145e54b0c619a1f22327b2ebbcfbec78f5564afe39d"),
            (Hashed, nested, "42dbbf95077ac75735d0a5f6af51260ede9975cfb23d971d3c2bef7869bc62af"),
        ] {
            assert_eq!(format.key(&parse(json)).as_deref(), Ok(hash), "{format:?} {json}");
            assert_eq!(format.digest(&parse(json)).as_deref(), Ok(hash), "{format:?} {json}");
        }
    }

    // behaviour 62
    #[test]
    fn a_plain_key_stands_as_it_is_and_is_a_string() {
        assert_eq!(Plain.key(&json!("order#é 7")).as_deref(), Ok("order#é 7"));
        for key in [json!(77), json!(true), json!(["secret"]), json!({"id": "secret"})] {
            assert_refused(Plain.key(&key), "`RecordFormat::Hashed`");
        }
    }

    // behaviour 63
    #[test]
    fn a_plain_format_hashes_payloads_as_the_hashed_one_does() {
        let payload = json!({"amount": 5, "to": ["é", null]});
        assert_eq!(Plain.digest(&payload), Hashed.digest(&payload));
        assert_eq!(Plain.digest(&Value::Null), Hashed.digest(&Value::Null));
    }

    // behaviour 62
    #[test]
    fn a_hashed_key_tells_types_apart_but_not_the_order_of_an_objects_keys() {
        let keys =
            [json!("1"), json!(1), json!(1.0), json!([1]), json!(true), json!({"1": 1})].map(|key| Hashed.key(&key));
        for (index, key) in keys.iter().enumerate() {
            assert!(key.is_ok() && !keys[..index].contains(key), "{key:?}");
        }
        assert_eq!(
            Hashed.key(&parse(r#"{"a":1,"b":[{"c":2,"d":3}]}"#)),
            Hashed.key(&parse(r#"{"b":[{"d":3,"c":2}],"a":1}"#))
        );
    }

    // behaviour 61
    #[test]
    fn a_key_with_nothing_in_it_is_no_key() {
        for key in [json!(null), json!(""), json!([]), json!({}), json!([null, null]), json!({"secret": null})] {
            assert!(is_missing(&key), "{key}");
        }
        for key in [json!(0), json!(false), json!([0]), json!({"a": null, "b": ""})] {
            assert!(!is_missing(&key), "{key}");
        }
    }

    // behaviour 75
    #[test]
    fn a_result_is_nested_as_deep_as_it_can_be_read_and_no_deeper() {
        let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        for format in ALL {
            let most = if format == PowertoolsTypeScript { 31 } else { 127 };
            let stored = format.store(&nested(most)).unwrap();
            assert_eq!(format.load(Some(&stored)), Ok(nested(most)), "{format:?}");
            assert_refused(format.store(&nested(most + 1)).map(drop), &format!("{most} levels"));
        }
    }

    // behaviour 83
    #[test]
    fn text_with_an_integer_that_would_be_rounded_is_refused() {
        let load = |format: RecordFormat, json: &str| format.load(Some(&AttributeValue::S(json.to_owned())));
        for format in [Plain, Hashed, PowertoolsPython] {
            for json in [
                "18446744073709551617",
                "-9223372036854775809",
                "[1, {\"a\": 777777777777777777777777}]",
                r#"{"\\": "\"", "b":123456789012345678901}"#,
            ] {
                if has_arbitrary_precision() {
                    assert_eq!(load(format, json), Ok(parse(json)), "{json}");
                } else {
                    assert_refused(load(format, json), "64 bits");
                }
            }
            for json in [
                "18446744073709551615",
                "-9223372036854775808",
                // A float has this one to the last digit, and these are floats.
                "1000000000000000000000",
                "1e+30",
                "123456789012345678901.0",
                // Not a number.
                r#"{"123456789012345678901": "123456789012345678901", "\"": "\\", "-": "\", 123456789012345678901"}"#,
            ] {
                assert_eq!(load(format, json), Ok(parse(json)), "{json}");
            }
        }
    }

    // behaviour 83
    #[test]
    fn a_number_that_dynamodb_could_not_keep_is_refused() {
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
        // With `arbitrary_precision` these are numbers of their own, otherwise the nearest float.
        for json in ["0.123456789012345678901234567890123456789", "1e-400", "9.000000000000000000000000000000000000001"]
        {
            let is_refused = PowertoolsTypeScript.store(&parse(json)).is_err();
            assert_eq!(is_refused, has_arbitrary_precision(), "{json}");
        }
    }

    // behaviour 83; expected: `json.dumps` of Python 3.11
    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (float, expected) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (0.1 + 0.2, "0.30000000000000004"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (1e-100, "1e-100"),
            (5e-324, "5e-324"),
            (1e15, "1000000000000000.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1.5e18, "1.5e+18"),
            // Two candidates are as near, and the even one is taken; and one is nearer, but another float's.
            (20_715_712_101_689.0 + 5.0 / 16.0, "20715712101689.312"),
            (2f64.powi(-25), "2.9802322387695312e-08"),
            (2f64.powi(-44), "5.684341886080802e-14"),
        ] {
            assert_eq!(text(PowertoolsPython, &json!(float)).as_deref(), Ok(expected));
            assert_eq!(text(Hashed, &json!(float)).as_deref(), Ok(expected));
        }
    }

    // behaviour 83; expected: `JSON.stringify` of Node.js 20
    #[test]
    fn numbers_are_written_as_javascript_writes_them() {
        for (number, expected) in [
            (json!(0), "0"),
            (json!(-0.0), "0"),
            (json!(1.0), "1"),
            (json!(-1.5), "-1.5"),
            (json!(0.1), "0.1"),
            (json!(0.000_001), "0.000001"),
            (json!(1e-7), "1e-7"),
            (json!(-1.5e-7), "-1.5e-7"),
            (json!(5e-324), "5e-324"),
            (json!(1e15), "1000000000000000"),
            (json!(9_007_199_254_740_991_u64), "9007199254740991"),
            (json!(-9_007_199_254_740_991_i64), "-9007199254740991"),
            (json!(20_715_712_101_689.0 + 5.0 / 16.0), "20715712101689.312"),
            (json!(2f64.powi(-25)), "2.9802322387695312e-8"),
            (json!(2f64.powi(-44)), "5.684341886080802e-14"),
        ] {
            assert_eq!(text(PowertoolsTypeScript, &number).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn integers_keep_all_their_digits_or_are_refused() {
        for format in [Plain, Hashed, PowertoolsPython] {
            for digits in ["18446744073709551615", "-9223372036854775808", "9007199254740993"] {
                assert_eq!(text(format, &parse(digits)).as_deref(), Ok(digits));
            }
            for digits in ["18446744073709551616", "-9223372036854775809", "1e19", "[{\"a\":77777777777777777777777}]"]
            {
                assert_refused(format.digest(&parse(digits)), "pass it as a string");
            }
        }
        for digits in
            ["9007199254740992", "-9007199254740992", "18446744073709551615", "1e19", "77777777777777777777777"]
        {
            assert_refused(PowertoolsTypeScript.digest(&parse(digits)), "pass it as a string");
        }
    }

    #[test]
    fn a_negative_zero_is_refused_where_its_type_matters() {
        for zero in ["-0", "-0.0"] {
            // With `arbitrary_precision`, serde_json still knows the integer from the float.
            if parse(zero).as_i64().is_none() {
                assert_refused(PowertoolsPython.digest(&parse(zero)), "pass 0");
            }
        }
    }

    // `serde_json` without its feature `float_roundtrip` reads some of these as the float beside.
    #[test]
    fn floats_are_read_to_the_last_bit() {
        for json in ["0.3333333333333333", "7.52316384526264e-37", "690721278285288.1", "5.17526350329881e-172"] {
            assert_eq!(parse(json).as_f64(), json.parse().ok(), "{json}");
        }
    }

    // behaviour 83; expected: both languages
    #[test]
    fn strings_are_escaped_as_each_language_escapes_them() {
        let string = json!("\"\\/\u{8}\u{c}\n\r\t\0\u{1f} ~\u{7f}\u{80}é\u{2028}\u{ffff}😀");
        let python = r#""\"\\/\b\f\n\r\t\u0000\u001f ~\u007f\u0080\u00e9\u2028\uffff\ud83d\ude00""#;
        let javascript = "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f ~\u{7f}\u{80}é\u{2028}\u{ffff}😀\"";
        assert_eq!(text(PowertoolsPython, &string).as_deref(), Ok(python));
        assert_eq!(text(PowertoolsTypeScript, &string).as_deref(), Ok(javascript));
        assert_eq!(text(Hashed, &string).as_deref(), Ok(javascript));
    }

    // behaviour 83; expected: both languages
    #[test]
    fn object_keys_are_sorted_as_each_language_sorts_them() {
        let object = parse(r#"{"é":1,"\uffff":2,"😀":3,"a":4,"Z":5,"_":6,"10":7,"9":8,"":9}"#);
        let python = r#"{"": 9, "10": 7, "9": 8, "Z": 5, "_": 6, "a": 4, "\u00e9": 1, "\uffff": 2, "\ud83d\ude00": 3}"#;
        let javascript = "{\"9\":8,\"10\":7,\"\":9,\"_\":6,\"a\":4,\"Z\":5,\"é\":1,\"😀\":3,\"\u{ffff}\":2}";
        assert_eq!(text(PowertoolsPython, &object).as_deref(), Ok(python));
        assert_eq!(text(PowertoolsTypeScript, &object).as_deref(), Ok(javascript));
        let object =
            parse(r#"{"b":1,"10":2,"9":3,"09":4,"-1":5,"4294967294":6,"4294967295":7,"A":8,"ΑΣΑ":10,"ας":11,"+1":12}"#);
        let javascript =
            r#"{"9":3,"10":2,"4294967294":6,"+1":12,"-1":5,"09":4,"4294967295":7,"A":8,"b":1,"ας":11,"ΑΣΑ":10}"#;
        assert_eq!(text(PowertoolsTypeScript, &object).as_deref(), Ok(javascript));
    }

    // behaviour 83; expected: both languages
    #[test]
    fn nested_and_empty_containers_are_spaced_as_each_language_spaces_them() {
        let nested = parse(r#"[[],{},[[{}]],{"b":[true,null],"a":[]}]"#);
        assert_eq!(text(PowertoolsPython, &nested).as_deref(), Ok(r#"[[], {}, [[{}]], {"a": [], "b": [true, null]}]"#));
        assert_eq!(text(PowertoolsTypeScript, &nested).as_deref(), Ok(r#"[[],{},[[{}]],{"a":[],"b":[true,null]}]"#));
    }

    #[test]
    fn keys_whose_order_typescript_leaves_to_the_event_are_refused() {
        for object in [json!({"secret": 1, "SECRET": 2}), json!([{"ÉA": 1, "z": 2, "éa": 3}])] {
            assert_refused(PowertoolsTypeScript.digest(&object), "case is ignored");
            assert!(PowertoolsPython.digest(&object).is_ok() && Hashed.digest(&object).is_ok());
        }
        assert_refused(PowertoolsTypeScript.digest(&json!({"a": {"__proto__": {"secret": 1}}})), "`__proto__`");
    }

    // behaviours 60, 83
    #[test]
    fn results_are_stored_as_each_library_stores_them() {
        let result = parse(r#"{"b":1,"a":[1,2.5,"é"],"z":null,"t":true}"#);
        for format in [Plain, Hashed, PowertoolsPython] {
            let stored = format.store(&result).unwrap();
            assert_eq!(parse(stored.as_s().unwrap()), result);
        }
        let number = |digits: &str| AttributeValue::N(digits.to_owned());
        let list = AttributeValue::L(vec![number("1"), number("2.5"), AttributeValue::S("é".to_owned())]);
        let map = AttributeValue::M(HashMap::from([
            ("a".to_owned(), list),
            ("b".to_owned(), number("1")),
            ("z".to_owned(), AttributeValue::Null(true)),
            ("t".to_owned(), AttributeValue::Bool(true)),
        ]));
        assert_eq!(PowertoolsTypeScript.store(&result), Ok(map.clone()));
        for format in ALL {
            assert_eq!(format.load(Some(&map)).as_ref(), Ok(&result), "{format:?} reads native values");
        }
    }

    // behaviour 60
    #[test]
    fn what_is_stored_is_what_is_loaded() {
        for result in [
            json!(null),
            json!(""),
            json!("5"),
            json!("é\n"),
            json!(false),
            json!(-7),
            json!(0.1),
            json!(1e-7),
            json!([[], {}, [{"a": {"b": null}}]]),
        ] {
            for format in ALL {
                assert_eq!(format.load(Some(&format.store(&result).unwrap())).as_ref(), Ok(&result), "{format:?}");
            }
        }
        for format in [Plain, Hashed, PowertoolsPython] {
            let result = json!([u64::MAX, i64::MIN, 1e300, 5e-324, 1.0]);
            assert_eq!(format.load(Some(&format.store(&result).unwrap())), Ok(result));
        }
    }

    // behaviour 83
    #[test]
    fn text_that_python_stored_is_read() {
        let data = AttributeValue::S(r#"{"a": [1, 2.5, "\u00e9"], "b": 1, "z": null}"#.to_owned());
        assert_eq!(PowertoolsPython.load(Some(&data)), Ok(json!({"a": [1, 2.5, "é"], "b": 1, "z": null})));
        assert_eq!(
            PowertoolsTypeScript.load(Some(&data)),
            Ok(json!(r#"{"a": [1, 2.5, "\u00e9"], "b": 1, "z": null}"#))
        );
    }

    // behaviour 83
    #[test]
    fn a_result_that_is_not_there_is_null() {
        for format in ALL {
            assert_eq!(format.load(None), Ok(Value::Null));
        }
    }

    #[test]
    fn stored_text_that_is_not_json_is_refused() {
        for data in ["secret", "", "[77", "NaN"] {
            for format in [Plain, Hashed, PowertoolsPython] {
                assert_refused(format.load(Some(&AttributeValue::S(data.to_owned()))), "is not JSON");
            }
        }
    }

    #[test]
    fn stored_types_that_json_does_not_have_are_named() {
        let strings = || vec!["77".to_owned()];
        for (data, name) in [
            (AttributeValue::B(b"secret".to_vec().into()), "B (bytes)"),
            (AttributeValue::Bs(vec![b"secret".to_vec().into()]), "BS (a set of bytes)"),
            (AttributeValue::Ns(strings()), "NS (a set of numbers)"),
            (AttributeValue::Ss(strings()), "SS (a set of strings)"),
        ] {
            for format in ALL {
                assert_refused(format.load(Some(&data)), name);
                let inside =
                    AttributeValue::M(HashMap::from([("a".to_owned(), AttributeValue::L(vec![data.clone()]))]));
                assert_refused(format.load(Some(&inside)), name);
            }
        }
    }

    #[test]
    fn stored_numbers_keep_their_digits_or_are_refused() {
        let load = |digits: &str| PowertoolsTypeScript.load(Some(&AttributeValue::N(digits.to_owned())));
        for (digits, expected) in [
            ("0", json!(0)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("18446744073709551615", json!(u64::MAX)),
            ("0.30000000000000004", json!(0.1 + 0.2)),
            ("1E-7", json!(1e-7)),
            ("1000000000000000000000", json!(1e21)),
        ] {
            assert_eq!(load(digits), Ok(expected), "{digits}");
        }
        for digits in ["123456789012345678777", "-9223372036854775877", "1e999", "NaN", ""] {
            assert_refused(load(digits), "return a string");
        }
    }

    #[test]
    fn results_that_typescript_could_not_store_are_refused() {
        for number in [json!(9_007_199_254_740_992_u64), json!([-9_007_199_254_740_992_i64]), json!({"a": 1e16})] {
            assert_refused(PowertoolsTypeScript.store(&number), "2^53");
        }
        assert_refused(PowertoolsTypeScript.store(&json!([1e-131])), "1e-130");
        assert_refused(PowertoolsTypeScript.store(&json!([{"a": {"": "secret"}}])), "empty key");
        assert_eq!(PowertoolsTypeScript.store(&json!(1e-130)), Ok(AttributeValue::N("1e-130".to_owned())));
    }
}
