//! Checks of inputs. They run while the input is read, so that no lock is taken for an input that cannot be worked on.

use serde::de::{Deserialize, Deserializer, Error, Unexpected};

/// Reads a text that must not be empty.
pub(crate) fn non_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Err(D::Error::invalid_value(Unexpected::Str(&text), &"a text that is not empty"));
    }
    Ok(text)
}
