//! Results as JSON values. A float that is not finite is an error: JSON has none, and `serde_json` silently writes null
//! instead.

use std::fmt;

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::Value;

/// Returns a result as JSON.
pub(crate) fn to_json<T: Serialize>(result: &T) -> Result<Value, String> {
    let value = serde_json::to_value(result).map_err(|why| format!("the result cannot be written as JSON ({why})"))?;
    // A float that is not finite became null. Most results have no null and are not serialized a second time.
    if has_null(&value) && result.serialize(Finite).is_err() {
        return Err(
            "the result has a float that is not finite (NaN or an infinity), which JSON lacks: return an `Option` \
                    or a string instead"
                .to_owned(),
        );
    }
    Ok(value)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(object) => object.values().any(has_null),
        _ => false,
    }
}

/// A serializer that writes nothing and fails at the first float that is not finite.
#[derive(Clone, Copy)]
struct Finite;

#[derive(Debug)]
struct NotFinite;

type Checked<T = ()> = Result<T, NotFinite>;

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a float is not finite")
    }
}

impl std::error::Error for NotFinite {}

impl Error for NotFinite {
    /// Called by an adapter that wraps the error.
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Methods for values without floats.
macro_rules! without_floats {
    ($($method:ident($($type:ty),*))*) => {
        $(fn $method(self, $(_: $type),*) -> Checked { Ok(()) })*
    };
}

/// Methods for values that contain values.
macro_rules! of_values {
    ($($method:ident($($type:ty),*) -> $compound:ident)*) => {
        $(
            type $compound = Self;

            fn $method(self, $(_: $type),*) -> Checked<Self> { Ok(self) }
        )*
    };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = NotFinite;

    without_floats! {
        serialize_bool(bool)
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) serialize_i128(i128)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) serialize_u128(u128)
        serialize_char(char) serialize_str(&str) serialize_bytes(&[u8])
        serialize_none() serialize_unit()
        serialize_unit_struct(&'static str) serialize_unit_variant(&'static str, u32, &'static str)
    }

    of_values! {
        serialize_seq(Option<usize>) -> SerializeSeq
        serialize_tuple(usize) -> SerializeTuple
        serialize_tuple_struct(&'static str, usize) -> SerializeTupleStruct
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> SerializeTupleVariant
        serialize_map(Option<usize>) -> SerializeMap
        serialize_struct(&'static str, usize) -> SerializeStruct
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> SerializeStructVariant
    }

    fn serialize_f32(self, float: f32) -> Checked {
        self.serialize_f64(float.into())
    }

    fn serialize_f64(self, float: f64) -> Checked {
        if float.is_finite() { Ok(()) } else { Err(NotFinite) }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Checked {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Checked {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(self)
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Checked {
        Ok(())
    }
}

macro_rules! each_value {
    ($($compound:ident: $($method:ident($($name:ty)?))+;)*) => {
        $(impl $compound for Finite {
            type Ok = ();
            type Error = NotFinite;

            $(fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Checked {
                value.serialize(*self)
            })+

            fn end(self) -> Checked {
                Ok(())
            }
        })*
    };
}

each_value! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key() serialize_value();
    SerializeStruct: serialize_field(&'static str);
    SerializeStructVariant: serialize_field(&'static str);
}
