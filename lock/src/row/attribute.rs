//! The values of attributes that any program may have written.

use aws_sdk_dynamodb::types::AttributeValue;

use super::table::Item;

pub(super) fn string_at(item: &mut Item, name: &str) -> Result<Option<String>, String> {
    match item.remove(name) {
        None => Ok(None),
        Some(AttributeValue::S(value)) => Ok(Some(value)),
        Some(_) => Err(format!("`{name}` is not a string")),
    }
}

/// Returns a number between 0 and `max`, without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the bounds are checked first"
)]
pub(super) fn number_at(item: &Item, name: &str, max: u64) -> Result<Option<u64>, String> {
    let text = match item.get(name) {
        None => return Ok(None),
        Some(AttributeValue::N(text)) => text,
        Some(_) => return Err(format!("`{name}` is not a number")),
    };
    let real = || text.parse::<f64>().ok().filter(|real| *real >= 0.0 && *real <= max as f64);
    match text.parse().ok().or_else(|| real().map(|real| real as u64)) {
        Some(value) if value <= max => Ok(Some(value)),
        _ => Err(format!("`{name}` is {text}, not between 0 and {max}")),
    }
}
