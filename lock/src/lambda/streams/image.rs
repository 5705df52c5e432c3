//! How an image of an item is read as the handler's type.
//!
//! `serde_dynamo` is no alternative: it rounds long integers, knows neither 128 bits nor bytes as a `Vec<u8>`, and its errors
//! name no attribute. Items and their attributes are its types, because the event has them.

use std::any::{Any, type_name};
use std::collections::{HashMap, hash_map};
use std::error::Error;
use std::fmt::{self, Display};
use std::iter::Enumerate;
use std::str::FromStr;
use std::vec;

use serde::de::value::{MapAccessDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_dynamo::{AttributeValue, Item};

use crate::idempotency::keeps_digits;
use crate::text::printable;

type Result<T> = std::result::Result<T, Unreadable>;

/// Reads an image as it is for an [`Item`], and attribute by attribute for any other type.
pub(super) fn read<B: DeserializeOwned + 'static>(which: &str, image: Item) -> std::result::Result<B, String> {
    let mut image = Some(image);
    // `Item` reads JSON in which each value has its type. A deserializer does not know for whom it reads.
    let same = (&mut image as &mut dyn Any).downcast_mut::<Option<B>>();
    if let Some(image) = same.and_then(Option::take) {
        return Ok(image);
    }
    let attributes = AttributeValue::M(image.unwrap_or_default().into_inner());
    B::deserialize(Attribute(attributes)).map_err(|why| {
        let wanted = type_name::<B>();
        format!(
            "the {which} image cannot be read as {wanted}, because {why}: give the handler a type that reads every image, \
             such as `serde_dynamo::Item`"
        )
    })
}

/// Why an image cannot be read. Never with a value, which would be in the log.
#[derive(Debug)]
struct Unreadable {
    /// The steps to the attribute, the innermost first.
    path: Vec<Step>,
    /// The kind of the attribute. `None` is the image itself.
    kind: Option<&'static str>,
    why: String,
}

#[derive(Debug)]
enum Step {
    Name(String),
    Index(usize),
}

impl Unreadable {
    fn new(why: impl Into<String>) -> Self {
        Self { path: Vec::new(), kind: None, why: why.into() }
    }

    fn should_be(expected: &dyn Expected) -> Self {
        Self::new(format!("should be {expected}"))
    }

    /// Says that the value at this step is the one, or is around it.
    fn at(mut self, step: Step, kind: &'static str) -> Self {
        self.path.push(step);
        self.kind.get_or_insert(kind);
        self
    }
}

impl Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.kind else { return write!(f, "the image {}", self.why) };
        let mut path = String::new();
        for step in self.path.iter().rev() {
            match step {
                Step::Name(name) if path.is_empty() => path.push_str(name),
                Step::Name(name) => path.extend([".", name]),
                Step::Index(index) => path.extend(["[", &index.to_string(), "]"]),
            }
        }
        write!(f, "the attribute `{}`, which is {kind}, {}", printable(&path), self.why)
    }
}

impl Error for Unreadable {}

impl serde::de::Error for Unreadable {
    /// Without the message, because it may show the value.
    fn custom<T: Display>(_: T) -> Self {
        Self::new("is refused by its type")
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::should_be(expected)
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::should_be(expected)
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::should_be(expected)
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::new(format!("should be one of {expected:?}"))
    }

    fn unknown_field(name: &str, _: &'static [&'static str]) -> Self {
        Self::new(format!("has the unknown attribute `{}`", printable(name)))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::new(format!("lacks `{name}`"))
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::new(format!("has `{name}` twice"))
    }
}

fn kind(value: &AttributeValue) -> &'static str {
    match value {
        AttributeValue::S(_) => "a string (S)",
        AttributeValue::N(_) => "a number (N)",
        AttributeValue::B(_) => "bytes (B)",
        AttributeValue::Bool(_) => "a Boolean (BOOL)",
        AttributeValue::Null(_) => "NULL",
        AttributeValue::M(_) => "a map (M)",
        AttributeValue::L(_) => "a list (L)",
        AttributeValue::Ss(_) => "a set of strings (SS)",
        AttributeValue::Ns(_) => "a set of numbers (NS)",
        AttributeValue::Bs(_) => "a set of bytes (BS)",
    }
}

/// Reads the value of an attribute.
struct Attribute(AttributeValue);

impl Attribute {
    /// Reads a number as this type, unless the type would round a whole number.
    fn number<T: FromStr + Display>(digits: &str) -> Result<T> {
        let number = digits.parse().ok().filter(|number| keeps_digits(number, digits));
        number.ok_or_else(|| Unreadable::new("does not fit into its type without rounding"))
    }
}

/// Methods for numbers whose type decides how the digits are read.
macro_rules! numbers {
    ($($method:ident $visit:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.0 {
                AttributeValue::N(digits) => visitor.$visit(Self::number(&digits)?),
                _ => self.deserialize_any(visitor),
            }
        })*
    };
}

/// Methods for text, which also keeps all digits of a number.
macro_rules! texts {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.0 {
                AttributeValue::N(digits) => visitor.visit_string(digits),
                _ => self.deserialize_any(visitor),
            }
        })*
    };
}

/// Methods for sequences, which may be the bytes of a `Vec<u8>`.
macro_rules! sequences {
    ($($method:ident($($length:ty)?))*) => {
        $(fn $method<V: Visitor<'de>>(self, $(_: $length,)? visitor: V) -> Result<V::Value> {
            match self.0 {
                AttributeValue::B(bytes) => {
                    let mut bytes = SeqDeserializer::new(bytes.into_iter());
                    let read = visitor.visit_seq(&mut bytes)?;
                    bytes.end().map(|()| read)
                }
                _ => self.deserialize_any(visitor),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Attribute {
    type Error = Unreadable;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            AttributeValue::S(text) => visitor.visit_string(text),
            AttributeValue::N(digits) => {
                if let Ok(number) = digits.parse::<i64>() {
                    visitor.visit_i64(number)
                } else if let Ok(number) = digits.parse::<u64>() {
                    visitor.visit_u64(number)
                } else {
                    visitor.visit_f64(Self::number(&digits)?)
                }
            }
            AttributeValue::B(bytes) => visitor.visit_byte_buf(bytes),
            AttributeValue::Bool(value) => visitor.visit_bool(value),
            AttributeValue::Null(_) => visitor.visit_unit(),
            AttributeValue::M(attributes) => visitor.visit_map(Attributes::of(attributes)),
            AttributeValue::L(values) => Elements::read(values, |value| value, visitor),
            AttributeValue::Ss(texts) => Elements::read(texts, AttributeValue::S, visitor),
            AttributeValue::Ns(numbers) => Elements::read(numbers, AttributeValue::N, visitor),
            AttributeValue::Bs(bytes) => Elements::read(bytes, AttributeValue::B, visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            AttributeValue::Null(_) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match self.0 {
            AttributeValue::S(text) => visitor.visit_enum(text.into_deserializer()),
            AttributeValue::M(map) if map.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(Attributes::of(map)))
            }
            _ => Err(Unreadable::new("should be the name of a variant, or a map with this name alone")),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    /// An attribute that nobody reads need not be readable.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    numbers! {
        deserialize_f32 visit_f32
        deserialize_f64 visit_f64
        deserialize_i128 visit_i128
        deserialize_u128 visit_u128
    }

    texts! { deserialize_str deserialize_string }

    sequences! { deserialize_seq() deserialize_tuple(usize) }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 char bytes byte_buf unit unit_struct tuple_struct map struct identifier
    }
}

/// The attributes of an item or of a map.
struct Attributes {
    rest: hash_map::IntoIter<String, AttributeValue>,
    value: Option<(String, AttributeValue)>,
}

impl Attributes {
    fn of(attributes: HashMap<String, AttributeValue>) -> Self {
        Self { rest: attributes.into_iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Attributes {
    type Error = Unreadable;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.value = self.rest.next();
        self.value.as_ref().map(|(name, _)| seed.deserialize(Name(name.clone()))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        let (name, value) = self.value.take().ok_or_else(|| Unreadable::custom("a value before its name"))?;
        let kind = kind(&value);
        seed.deserialize(Attribute(value)).map_err(|why| why.at(Step::Name(name), kind))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// The values of a list or of a set, with their indices.
struct Elements<T> {
    rest: Enumerate<vec::IntoIter<T>>,
    value: fn(T) -> AttributeValue,
}

impl<T> Elements<T> {
    /// Reads all values: a type that takes fewer would lose the others.
    fn read<'de, V: Visitor<'de>>(values: Vec<T>, value: fn(T) -> AttributeValue, visitor: V) -> Result<V::Value> {
        let mut elements = Self { rest: values.into_iter().enumerate(), value };
        let read = visitor.visit_seq(&mut elements)?;
        if elements.rest.len() > 0 { Err(Unreadable::new("has more values than its type")) } else { Ok(read) }
    }
}

impl<'de, T> SeqAccess<'de> for Elements<T> {
    type Error = Unreadable;

    fn next_element_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<Option<V::Value>> {
        let Some((index, value)) = self.rest.next() else { return Ok(None) };
        let value = (self.value)(value);
        let kind = kind(&value);
        seed.deserialize(Attribute(value)).map(Some).map_err(|why| why.at(Step::Index(index), kind))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// Reads the name of an attribute: a text, or what else may be the key of a map.
struct Name(String);

/// Methods for numbers, whose digits are the name.
macro_rules! numbers_of_names {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            Attribute(AttributeValue::N(self.0)).$method(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Name {
    type Error = Unreadable;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_string(self.0)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0.parse() {
            Ok(value) => visitor.visit_bool(value),
            Err(_) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        Attribute(AttributeValue::S(self.0)).deserialize_enum(name, variants, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    numbers_of_names! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    forward_to_deserialize_any! {
        f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde::de::IgnoredAny;
    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    use super::*;

    fn item(attributes: Value) -> Item {
        serde_json::from_value(attributes).unwrap()
    }

    fn read<B: DeserializeOwned + 'static>(attributes: Value) -> std::result::Result<B, String> {
        super::read("new", item(attributes))
    }

    /// Reads the attribute `a`.
    fn one<B: DeserializeOwned + 'static>(value: Value) -> std::result::Result<B, String> {
        #[derive(Deserialize)]
        struct One<B> {
            a: B,
        }
        read::<One<B>>([("a".to_owned(), value)].into_iter().collect()).map(|one| one.a)
    }

    #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
    enum Shape {
        Point,
        Circle(f64),
        Square { side: u32 },
        Line(i8, i8),
    }

    #[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
    enum Color {
        Red,
    }

    #[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
    struct Id(u64);

    #[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
    struct Everything {
        text: String,
        letter: char,
        flag: bool,
        signed: i64,
        unsigned: u64,
        fraction: f64,
        small: f32,
        nothing: (),
        none: Option<u8>,
        some: Option<u8>,
        list: Vec<Value>,
        pair: (String, u8),
        shapes: Vec<Shape>,
        by_number: BTreeMap<i32, bool>,
        by_flag: BTreeMap<bool, u8>,
        by_id: BTreeMap<Id, u8>,
        by_color: BTreeMap<Color, u8>,
        any: Value,
    }

    #[test]
    fn a_type_that_is_written_as_an_item_is_read_again() {
        let everything = Everything {
            text: "a".to_owned(),
            letter: 'é',
            flag: true,
            signed: i64::MIN,
            unsigned: u64::MAX,
            fraction: 0.1 + 0.2,
            small: 1.5,
            some: Some(7),
            list: vec![json!(1), json!("b"), json!(null), json!({ "c": [1.5, -2] })],
            pair: ("left".to_owned(), 2),
            shapes: vec![Shape::Point, Shape::Circle(0.5), Shape::Square { side: 4 }, Shape::Line(-1, 1)],
            by_number: [(-3, true)].into(),
            by_flag: [(true, 1), (false, 0)].into(),
            by_id: [(Id(17), 1)].into(),
            by_color: [(Color::Red, 1)].into(),
            any: json!({ "list": [18_446_744_073_709_551_615_u64, 1e22], "null": null }),
            ..Everything::default()
        };
        let item: Item = serde_dynamo::to_item(&everything).unwrap();
        assert_eq!(serde_dynamo::from_item::<_, Everything>(item.clone()).unwrap(), everything);
        assert_eq!(super::read::<Everything>("new", item).unwrap(), everything);
    }

    #[test]
    fn a_set_is_a_sequence_and_bytes_are_either() {
        assert_eq!(one::<BTreeSet<String>>(json!({ "SS": ["b", "a"] })).unwrap(), ["a", "b"].map(str::to_owned).into());
        assert_eq!(one::<Vec<u64>>(json!({ "NS": ["2", "1"] })).unwrap(), [2, 1]);
        assert_eq!(one::<Vec<u8>>(json!({ "B": "AP8=" })).unwrap(), [0, 255]);
        assert_eq!(one::<[u8; 2]>(json!({ "B": "AP8=" })).unwrap(), [0, 255]);
        assert_eq!(one::<Vec<Vec<u8>>>(json!({ "BS": ["AP8=", "AQ=="] })).unwrap(), [vec![0, 255], vec![1]]);
    }

    #[test]
    fn no_value_of_a_sequence_is_left_out() {
        for error in [
            one::<[u8; 2]>(json!({ "B": "AP8A" })).unwrap_err(),
            one::<(u8, u8)>(json!({ "NS": ["1", "2", "3"] })).unwrap_err(),
            one::<(u8, u8)>(json!({ "L": [{ "N": "1" }] })).unwrap_err(),
        ] {
            assert!(error.contains("the attribute `a`, which is "), "{error}");
        }
    }

    #[test]
    fn a_long_number_is_kept_by_128_bits_and_by_text() {
        let digits = "-99999999999999999999999999999999999999";
        assert_eq!(one::<i128>(json!({ "N": digits })).unwrap().to_string(), digits);
        assert_eq!(one::<u128>(json!({ "N": &digits[1..] })).unwrap().to_string(), digits[1..]);
        for digits in [digits, "0.12345678901234567890123456789012345678"] {
            assert_eq!(one::<String>(json!({ "N": digits })).unwrap(), digits);
            assert_eq!(one::<Vec<String>>(json!({ "NS": [digits] })).unwrap(), [digits]);
        }
    }

    #[test]
    fn a_whole_number_is_never_rounded_and_a_fraction_is_the_nearest_float() {
        let long = || json!({ "N": "12345678901234567890123" });
        for unreadable in [
            one::<f64>(long()).err(),
            one::<f64>(json!({ "N": "9007199254740993" })).err(),
            one::<f32>(json!({ "N": "16777217" })).err(),
            one::<u64>(long()).err(),
            one::<i32>(json!({ "N": "2147483648" })).err(),
            one::<Value>(long()).err(),
            one::<Value>(json!({ "NS": ["1", "12345678901234567890123"] })).err(),
            one::<Value>(json!({ "N": "-9223372036854775809" })).err(),
            read::<HashMap<String, Value>>(json!({ "a": long() })).err(),
            one::<i128>(json!({ "N": "1.5" })).err(),
            one::<f32>(json!({ "N": "1E+100" })).err(),
        ] {
            let why = unreadable.unwrap();
            assert!(why.contains("`a`") || why.contains("`a[1]`"), "{why}");
            assert!(!why.contains("123456") && !why.contains("547"), "{why}");
        }
        // 2^80, which a float has exactly, and a number whose digits a float shows.
        for digits in ["1208925819614629174706176", "100000000000000000000000"] {
            let float = one::<f64>(json!({ "N": digits })).unwrap();
            assert_eq!(one::<Value>(json!({ "N": digits })), Ok(json!(float)));
            assert_eq!(digits.parse(), Ok(float));
        }
        let third = "33.333333333333333333333333333333333333";
        for float in
            [one::<f64>(json!({ "N": third })), one::<Value>(json!({ "N": third })).map(|n| n.as_f64().unwrap())]
        {
            assert_eq!(float.unwrap().to_bits(), (100.0_f64 / 3.0).to_bits());
        }
    }

    #[test]
    fn an_attribute_that_nobody_reads_does_not_matter() {
        #[derive(Deserialize)]
        struct Nothing {}
        let others = json!({ "B": { "B": "AP8=" }, "n": { "N": "12345678901234567890123" }, "s": { "BS": ["AQ=="] } });
        assert!(read::<Nothing>(others.clone()).is_ok());
        assert!(read::<IgnoredAny>(others).is_ok());
    }

    #[test]
    fn an_enum_of_any_item_reads_bytes() {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Image {
            Shape { side: u32 },
            Other(IgnoredAny),
        }
        let image = json!({ "photo": { "B": "AP8=" }, "side": { "N": "3" } });
        assert!(matches!(read(image).unwrap(), Image::Shape { side: 3 }));
        assert!(matches!(read(json!({ "photo": { "B": "AP8=" } })).unwrap(), Image::Other(IgnoredAny)));
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        #[expect(dead_code, reason = "only read")]
        lines: Vec<Line>,
    }

    #[derive(Debug, Deserialize)]
    struct Line {
        #[expect(dead_code, reason = "only read")]
        shape: Shape,
    }

    #[derive(Debug, Deserialize)]
    #[serde(try_from = "String")]
    struct Email;
    impl TryFrom<String> for Email {
        type Error = String;
        fn try_from(text: String) -> std::result::Result<Self, String> {
            if text.contains('@') { Ok(Self) } else { Err(text) }
        }
    }

    #[test]
    fn an_error_names_the_attribute_and_its_kind_and_no_value() {
        let photo = one::<Value>(json!({ "B": "AP8=" })).unwrap_err();
        assert!(
            photo.starts_with("the new image cannot be read as ")
                && photo.contains("One<serde_json::value::Value>, because the attribute `a`, which is bytes (B), should be any valid JSON value: ")
                && photo.ends_with("such as `serde_dynamo::Item`"),
            "{photo}"
        );
        let line = |line: Value| json!({ "lines": { "L": [{ "M": {} }, { "M": line }] } });
        let shape = |shape: Value| {
            let good = json!({ "M": { "shape": { "S": "Point" } } });
            json!({ "lines": { "L": [good, { "M": { "shape": shape } }] } })
        };
        for (image, why) in [
            (json!({}), "the image lacks `lines`"),
            (json!({ "secret": { "S": "x" } }), "the image has the unknown attribute `secret`"),
            (json!({ "lines": { "S": "secret" } }), "`lines`, which is a string (S), should be a sequence"),
            (line(json!({})), "`lines[0]`, which is a map (M), lacks `shape`"),
            (shape(json!({ "S": "secret" })), r#"`lines[1].shape`, which is a string (S), should be one of ["Point","#),
            (shape(json!({ "N": "77" })), "`lines[1].shape`, which is a number (N), should be the name of a variant"),
            (
                shape(json!({ "M": { "Square": { "M": { "side": { "S": "secret" } } } } })),
                "`lines[1].shape.Square.side`, which is a string (S), should be u32",
            ),
        ] {
            let error = read::<Order>(image).unwrap_err();
            assert!(error.contains(why), "{error}");
            assert!(!error.contains("\"secret\"") && !error.contains("77"), "{error}");
        }
        let email = one::<Email>(json!({ "S": "someone" })).unwrap_err();
        assert!(email.contains("`a`, which is a string (S), is refused by its type") && !email.contains("someone"));
    }
}
