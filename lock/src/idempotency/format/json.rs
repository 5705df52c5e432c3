//! The JSON text that is hashed, as Python and JavaScript write it.
//!
//! The key is all that finds a record. Rust therefore shares records with a function in Python or TypeScript only if both
//! hash the same bytes: the text of `json.dumps(x, sort_keys=True)`, or of `JSON.stringify(deepSort(x))`. A text that
//! differs in one byte gives another key, and the work is done twice. If a [`Value`] does not determine the text that the
//! other language writes, the result is an error instead of a hash.
//!
//! The references are `_generate_hash` in Powertools for Python 3.37 (`utilities/idempotency/persistence/base.py`), and
//! `getHashedIdempotencyKey` and `deepSort` in Powertools for TypeScript 2.35 (`packages/idempotency`).
//!
//! Floats are exact only if `serde_json` reads them to the last bit, which takes its feature `float_roundtrip`.

use serde_json::{Map, Number, Value};

/// JavaScript's `Number.MAX_SAFE_INTEGER`. Above it, several integers are one number in JavaScript.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;
/// 2⁶³. From here on, a parser without a larger integer type may have turned an integer into a float.
const MAY_BE_AN_INTEGER: f64 = 9_223_372_036_854_775_808.0;

/// How JSON text is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Without spaces, with keys sorted by code point and numbers as in Python.
    Compact,
    /// As `json.dumps(x, sort_keys=True)`.
    Python,
    /// As `JSON.stringify(deepSort(x))`.
    JavaScript,
}

impl Dialect {
    /// Returns the text of this value.
    pub(super) fn text(self, value: &Value) -> Result<String, String> {
        let mut json = String::new();
        self.write(value, &mut json)?;
        Ok(json)
    }

    fn write(self, value: &Value, json: &mut String) -> Result<(), String> {
        let (comma, colon) = if self == Self::Python { (", ", ": ") } else { (",", ":") };
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

    /// Escapes as `serde_json` does, which is how `JSON.stringify` does it. Python also escapes everything outside of
    /// printable ASCII.
    fn write_string(self, text: &str, json: &mut String) {
        for character in Value::from(text).to_string().chars() {
            if self == Self::Python && character > '~' {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let escape = format!("\\u{unit:04x}");
                    json.push_str(&escape);
                }
            } else {
                json.push(character);
            }
        }
    }

    fn number(self, number: &Number) -> Result<String, String> {
        if self == Self::JavaScript {
            return Ok(match javascript_number(number)? {
                0.0 => "0".into(), // also -0.0
                float => shortest(float, float.abs() < 1e-6),
            });
        }
        // By value and not by `is_f64`: a dependency may enable `arbitrary_precision`, which must make no difference.
        if let Some(integer) = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)) {
            return Ok(integer.to_string());
        }
        match number.as_f64() {
            Some(float) if self == Self::Python && float == 0.0 && float.is_sign_negative() => {
                Err("the float -0.0 may have been the integer -0, which Python writes without its sign: pass 0".into())
            }
            Some(float) if float.abs() < MAY_BE_AN_INTEGER => Ok(python_float(float)),
            _ => {
                Err("a number of 2^63 or more that is not a 64-bit integer may have lost its last digits and may then \
                 equal another number: pass it as a string"
                    .into())
            }
        }
    }

    fn sorted(self, object: &Map<String, Value>) -> Result<Vec<(&String, &Value)>, String> {
        let mut entries: Vec<_> = object.iter().collect();
        if self != Self::JavaScript {
            // Rust compares UTF-8 bytes. That is the order of the code points, which Python uses.
            entries.sort_unstable_by_key(|(name, _)| *name);
            return Ok(entries);
        }
        if object.contains_key("__proto__") {
            return Err(
                "Powertools for TypeScript does not hash the value of the key `__proto__`, so values that differ \
                 only there would share a key: rename the key"
                    .into(),
            );
        }
        entries.sort_by_cached_key(|(name, _)| javascript_order(name));
        if entries.windows(2).any(|pair| javascript_order(pair[0].0) == javascript_order(pair[1].0)) {
            return Err(
                "two keys of an object are equal when case is ignored, and Powertools for TypeScript hashes them \
                 in the order of the event, which is not known here: rename one of them"
                    .into(),
            );
        }
        Ok(entries)
    }
}

/// The order of the keys of a JavaScript object: array indices first, by number. The rest follows in the order of
/// `deepSort`: in lower case, by UTF-16 code units.
fn javascript_order(name: &str) -> (bool, u32, Vec<u16>) {
    match name.parse::<u32>() {
        Ok(index) if index < u32::MAX && index.to_string() == name => (false, index, Vec::new()),
        _ => (true, 0, name.to_lowercase().encode_utf16().collect()),
    }
}

/// Returns the number that JavaScript reads, unless it is rounded.
pub(super) fn javascript_number(number: &Number) -> Result<f64, String> {
    number.as_f64().filter(|float| float.abs() <= MAX_SAFE_INTEGER).ok_or_else(|| {
        "a number beyond 2^53 - 1 loses its last digits in JavaScript and may then equal another number: pass it as a \
         string"
            .into()
    })
}

/// Writes a float as Python's `repr` does.
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

/// Writes the fewest digits that identify this float, and of those the nearest to it.
///
/// If two are equally near, Python and JavaScript take the even one. Rust takes the upper one, but the even one when it
/// is given the number of digits.
fn shortest(float: f64, exponential: bool) -> String {
    let upper = if exponential { format!("{float:e}") } else { float.to_string() };
    let decimals = upper.split_once('.').map_or(0, |(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
    let even = if exponential { format!("{float:.decimals$e}") } else { format!("{float:.decimals$}") };
    // Below a power of two, floats are closer together. The nearest of so few digits may then be another float.
    if even.parse() == Ok(float) { even } else { upper }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{assert_refused, parse};
    use super::Dialect::{Compact, JavaScript, Python};

    // Expected: `json.dumps` of Python 3.11
    #[test]
    fn floats_are_written_as_in_python() {
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
            // Two candidates are equally near and the even one is right; in the last two, a nearer one is another float.
            (20_715_712_101_689.0 + 5.0 / 16.0, "20715712101689.312"),
            (2f64.powi(-25), "2.9802322387695312e-08"),
            (2f64.powi(-44), "5.684341886080802e-14"),
        ] {
            assert_eq!(Python.text(&json!(float)).as_deref(), Ok(expected));
            assert_eq!(Compact.text(&json!(float)).as_deref(), Ok(expected));
        }
    }

    // Expected: `JSON.stringify` of Node.js 20
    #[test]
    fn numbers_are_written_as_in_javascript() {
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
            assert_eq!(JavaScript.text(&number).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn an_integer_keeps_all_its_digits_or_is_rejected() {
        for dialect in [Compact, Python] {
            for digits in ["18446744073709551615", "-9223372036854775808", "9007199254740993"] {
                assert_eq!(dialect.text(&parse(digits)).as_deref(), Ok(digits));
            }
            for digits in ["18446744073709551616", "-9223372036854775809", "1e19", "[{\"a\":77777777777777777777777}]"]
            {
                assert_refused(dialect.text(&parse(digits)), "pass it as a string");
            }
        }
        for digits in
            ["9007199254740992", "-9007199254740992", "18446744073709551615", "1e19", "77777777777777777777777"]
        {
            assert_refused(JavaScript.text(&parse(digits)), "pass it as a string");
        }
    }

    #[test]
    fn python_rejects_a_negative_zero() {
        for zero in ["-0", "-0.0"] {
            // With `arbitrary_precision`, serde_json distinguishes the integer from the float.
            if parse(zero).as_i64().is_none() {
                assert_refused(Python.text(&parse(zero)), "pass 0");
            }
        }
    }

    // Without its feature `float_roundtrip`, `serde_json` reads some of these as a neighbouring float.
    #[test]
    fn serde_json_reads_floats_to_the_last_bit() {
        for json in ["0.3333333333333333", "7.52316384526264e-37", "690721278285288.1", "5.17526350329881e-172"] {
            assert_eq!(parse(json).as_f64(), json.parse().ok(), "{json}");
        }
    }

    // Expected: both languages
    #[test]
    fn strings_are_escaped_as_in_each_language() {
        let string = json!("\"\\/\u{8}\u{c}\n\r\t\0\u{1f} ~\u{7f}\u{80}é\u{2028}\u{ffff}😀");
        let python = r#""\"\\/\b\f\n\r\t\u0000\u001f ~\u007f\u0080\u00e9\u2028\uffff\ud83d\ude00""#;
        let javascript = "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f ~\u{7f}\u{80}é\u{2028}\u{ffff}😀\"";
        assert_eq!(Python.text(&string).as_deref(), Ok(python));
        assert_eq!(JavaScript.text(&string).as_deref(), Ok(javascript));
        assert_eq!(Compact.text(&string).as_deref(), Ok(javascript));
    }

    // Expected: both languages
    #[test]
    fn object_keys_are_sorted_as_in_each_language() {
        let object = parse(r#"{"é":1,"\uffff":2,"😀":3,"a":4,"Z":5,"_":6,"10":7,"9":8,"":9}"#);
        let python = r#"{"": 9, "10": 7, "9": 8, "Z": 5, "_": 6, "a": 4, "\u00e9": 1, "\uffff": 2, "\ud83d\ude00": 3}"#;
        let javascript = "{\"9\":8,\"10\":7,\"\":9,\"_\":6,\"a\":4,\"Z\":5,\"é\":1,\"😀\":3,\"\u{ffff}\":2}";
        assert_eq!(Python.text(&object).as_deref(), Ok(python));
        assert_eq!(JavaScript.text(&object).as_deref(), Ok(javascript));
        let object =
            parse(r#"{"b":1,"10":2,"9":3,"09":4,"-1":5,"4294967294":6,"4294967295":7,"A":8,"ΑΣΑ":10,"ας":11,"+1":12}"#);
        let javascript =
            r#"{"9":3,"10":2,"4294967294":6,"+1":12,"-1":5,"09":4,"4294967295":7,"A":8,"b":1,"ας":11,"ΑΣΑ":10}"#;
        assert_eq!(JavaScript.text(&object).as_deref(), Ok(javascript));
    }

    // Expected: both languages
    #[test]
    fn containers_are_spaced_as_in_each_language() {
        let nested = parse(r#"[[],{},[[{}]],{"b":[true,null],"a":[]}]"#);
        assert_eq!(Python.text(&nested).as_deref(), Ok(r#"[[], {}, [[{}]], {"a": [], "b": [true, null]}]"#));
        assert_eq!(JavaScript.text(&nested).as_deref(), Ok(r#"[[],{},[[{}]],{"a":[],"b":[true,null]}]"#));
    }

    #[test]
    fn javascript_rejects_keys_whose_order_depends_on_the_event() {
        for object in [json!({"secret": 1, "SECRET": 2}), json!([{"ÉA": 1, "z": 2, "éa": 3}])] {
            assert_refused(JavaScript.text(&object), "case is ignored");
            assert!(Python.text(&object).is_ok() && Compact.text(&object).is_ok());
        }
        assert_refused(JavaScript.text(&json!({"a": {"__proto__": {"secret": 1}}})), "`__proto__`");
    }
}
