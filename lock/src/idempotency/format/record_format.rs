//! `RecordFormat`: how a record's key and payload are hashed, and how its result is stored and loaded.

use aws_sdk_dynamodb::types::AttributeValue;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::attribute::{depth, from_native, from_text, to_native};
use super::json::Dialect;

/// Levels of nested lists and maps: DynamoDB allows 32, and the attribute itself is one.
const DYNAMODB_LEVELS: usize = 31;
/// Levels of nested lists and maps that `serde_json` reads.
const JSON_LEVELS: usize = 127;

/// The format of a record's key, payload hash and result.
///
/// ```
/// # use lambda_lock::idempotency::RecordFormat;
/// # use lambda_lock::Idempotency;
/// # fn example(orders: Idempotency<String, (), ()>) -> Idempotency<String, (), ()> {
/// // Shares its records with Python's `@idempotent_function(key_prefix="orders", …)`.
/// orders.format(RecordFormat::PowertoolsPython).prefix("orders")
/// # }
/// ```
///
/// Functions that share records must use the same format: none finds a record written in another one. A Powertools format
/// shares records with functions in that language that have the same key prefix and the default hash function. There is
/// no format for Powertools for Java and for .NET, which hash in other ways.
///
/// | | key, after the prefix | payload hash | result |
/// | --- | --- | --- | --- |
/// | [`Plain`](Self::Plain) | the string itself | SHA-256, hex | JSON text |
/// | [`Hashed`](Self::Hashed) | SHA-256, hex | SHA-256, hex | JSON text |
/// | [`PowertoolsPython`](Self::PowertoolsPython) | MD5, hex | MD5, hex | JSON text |
/// | [`PowertoolsTypeScript`](Self::PowertoolsTypeScript) | MD5, Base64 | MD5, Base64 | DynamoDB value |
///
/// The hash is of JSON text, in which `5` and `5.0` may differ: take keys from the event's JSON, not from a struct with
/// floats. If the text is ambiguous, the call fails before any request is sent. Every format rejects a float of 2⁶³ or
/// more, which may have been a longer integer. Some formats reject further values, listed below. A string instead of a
/// number is never ambiguous.
///
/// A stored result is loaded as it was written. An integer that neither 64 bits nor a float can hold, as Python and
/// JavaScript may write one, is not rounded: the duplicate gets an error of kind
/// [`UnusableResult`](crate::ErrorKind::UnusableResult).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordFormat {
    /// The key is a string, which the table shows unchanged. With the prefix it has at most 2,048 bytes.
    #[default]
    Plain,
    /// The key is any JSON value and is hashed, for length or privacy. The order of object keys makes no difference. The
    /// string `"1"`, the integer `1` and the float `1.0` are three keys.
    Hashed,
    /// The format of Powertools for Python with its defaults: `json.dumps(x, sort_keys=True)`.
    ///
    /// The float `-0.0` cannot be hashed: it may have been the integer `-0`, which Python writes without its sign.
    /// Python replays the results `0`, `false`, `""`, `[]` and `{}` as `None`.
    PowertoolsPython,
    /// The format of Powertools for TypeScript with its defaults: `JSON.stringify(deepSort(x))`.
    ///
    /// - A number beyond 2⁵³ − 1 can be neither hashed nor stored: JavaScript loses its last digits, and two keys could
    ///   become one. A stored `1.0` is loaded as `1`.
    /// - An object cannot be hashed if two of its keys are equal when case is ignored, because their order is then that
    ///   of the event. Nor can an object with the key `__proto__`, which TypeScript leaves out.
    /// - DynamoDB has no number nearer to zero than 10⁻¹³⁰, no number with more than 38 digits, no object with an empty
    ///   key, and no more than 31 levels of nesting. Such a result cannot be stored.
    PowertoolsTypeScript,
}

impl RecordFormat {
    /// Returns what follows the prefix and `#` in the record's key.
    pub(crate) fn key(self, key: &Value) -> Result<String, String> {
        match key {
            Value::String(text) if self == Self::Plain => Ok(text.clone()),
            _ if self == Self::Plain => {
                Err("a plain key must be a string: pass a string, or choose `RecordFormat::Hashed`".into())
            }
            _ => self.digest(key),
        }
    }

    /// Returns the hash of a payload, which the payload of a duplicate must have too.
    pub(crate) fn digest(self, payload: &Value) -> Result<String, String> {
        let json = self.dialect().text(payload)?;
        Ok(match self {
            Self::Plain | Self::Hashed => hex(&Sha256::digest(json)),
            Self::PowertoolsPython => hex(&Md5::digest(json)),
            Self::PowertoolsTypeScript => STANDARD.encode(Md5::digest(json)),
        })
    }

    fn dialect(self) -> Dialect {
        match self {
            Self::Plain | Self::Hashed => Dialect::Compact,
            Self::PowertoolsPython => Dialect::Python,
            Self::PowertoolsTypeScript => Dialect::JavaScript,
        }
    }

    /// Whether a record can store an error. Powertools would replay it as a success.
    pub(crate) fn stores_errors(self) -> bool {
        matches!(self, Self::Plain | Self::Hashed)
    }

    /// Returns the attribute that stores a result.
    pub(crate) fn store(self, result: &Value) -> Result<AttributeValue, String> {
        let (most, why) = match self {
            Self::PowertoolsTypeScript => (DYNAMODB_LEVELS, "DynamoDB allows no more"),
            _ => (JSON_LEVELS, "it could not be loaded again"),
        };
        match self {
            _ if depth(result) > most => Err(format!("the result is nested more than {most} levels deep: {why}")),
            Self::PowertoolsTypeScript => to_native(result),
            _ => Ok(AttributeValue::S(result.to_string())),
        }
    }

    /// Returns the result that an attribute stores; null without an attribute, which is JavaScript's `undefined`.
    pub(crate) fn load(self, data: Option<&AttributeValue>) -> Result<Value, String> {
        match data {
            None => Ok(Value::Null),
            Some(AttributeValue::S(json)) if self != Self::PowertoolsTypeScript => from_text(json),
            Some(data) => from_native(data),
        }
    }
}

/// Returns whether a key counts as missing: it is null or empty, or contains only nulls. Unrelated events would share such
/// a key. Like `is_missing_idempotency_key` in Powertools for Python.
pub(crate) fn is_missing(key: &Value) -> bool {
    match key {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.iter().all(Value::is_null),
        Value::Object(object) => object.values().all(Value::is_null),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::super::testing::{assert_refused, has_arbitrary_precision, parse};
    use super::RecordFormat::{Hashed, Plain, PowertoolsPython, PowertoolsTypeScript};
    use super::*;

    const ALL: [RecordFormat; 4] = [Plain, Hashed, PowertoolsPython, PowertoolsTypeScript];

    // Expected: the two libraries, and Python's hashlib
    #[test]
    fn hashes_equal_those_of_powertools() {
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

    #[test]
    fn a_plain_key_is_an_unchanged_string() {
        assert_eq!(Plain.key(&json!("order#é 7")).as_deref(), Ok("order#é 7"));
        for key in [json!(77), json!(true), json!(["secret"]), json!({"id": "secret"})] {
            assert_refused(Plain.key(&key), "`RecordFormat::Hashed`");
        }
    }

    #[test]
    fn plain_and_hashed_hash_payloads_alike() {
        let payload = json!({"amount": 5, "to": ["é", null]});
        assert_eq!(Plain.digest(&payload), Hashed.digest(&payload));
        assert_eq!(Plain.digest(&Value::Null), Hashed.digest(&Value::Null));
    }

    #[test]
    fn a_hashed_key_depends_on_types_but_not_on_the_order_of_object_keys() {
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

    #[test]
    fn an_empty_key_is_missing() {
        for key in [json!(null), json!(""), json!([]), json!({}), json!([null, null]), json!({"secret": null})] {
            assert!(is_missing(&key), "{key}");
        }
        for key in [json!(0), json!(false), json!([0]), json!({"a": null, "b": ""})] {
            assert!(!is_missing(&key), "{key}");
        }
    }

    #[test]
    fn a_result_nested_too_deep_to_be_read_is_rejected() {
        let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        for format in ALL {
            let most = if format == PowertoolsTypeScript { 31 } else { 127 };
            let stored = format.store(&nested(most)).unwrap();
            assert_eq!(format.load(Some(&stored)), Ok(nested(most)), "{format:?}");
            assert_refused(format.store(&nested(most + 1)).map(drop), &format!("{most} levels"));
        }
    }

    #[test]
    fn stored_text_with_an_integer_that_would_be_rounded_is_rejected() {
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
                // A float represents the first of these exactly; the others are floats.
                "1000000000000000000000",
                "1e+30",
                "123456789012345678901.0",
                // Digits in strings.
                r#"{"123456789012345678901": "123456789012345678901", "\"": "\\", "-": "\", 123456789012345678901"}"#,
            ] {
                assert_eq!(load(format, json), Ok(parse(json)), "{json}");
            }
        }
    }

    #[test]
    fn results_are_stored_as_in_each_library() {
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

    #[test]
    fn a_loaded_result_equals_the_stored_one() {
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

    #[test]
    fn text_stored_by_python_is_read() {
        let data = AttributeValue::S(r#"{"a": [1, 2.5, "\u00e9"], "b": 1, "z": null}"#.to_owned());
        assert_eq!(PowertoolsPython.load(Some(&data)), Ok(json!({"a": [1, 2.5, "é"], "b": 1, "z": null})));
        assert_eq!(
            PowertoolsTypeScript.load(Some(&data)),
            Ok(json!(r#"{"a": [1, 2.5, "\u00e9"], "b": 1, "z": null}"#))
        );
    }

    #[test]
    fn a_missing_result_is_null() {
        for format in ALL {
            assert_eq!(format.load(None), Ok(Value::Null));
        }
    }

    #[test]
    fn stored_text_that_is_not_json_is_rejected() {
        for data in ["secret", "", "[77", "NaN"] {
            for format in [Plain, Hashed, PowertoolsPython] {
                assert_refused(format.load(Some(&AttributeValue::S(data.to_owned()))), "is not JSON");
            }
        }
    }

    #[test]
    fn an_error_names_a_stored_type_that_json_lacks() {
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
}
