//! How keys and payloads are hashed and results are stored: in this crate's own format, or in that of Powertools for AWS
//! Lambda.

mod attribute;
mod finite;
mod json;
mod record_format;
#[cfg(test)]
mod testing;

pub(super) use finite::to_json;
pub use record_format::RecordFormat;
#[cfg(feature = "http")]
pub(crate) use record_format::hex;
pub(crate) use record_format::is_missing;
