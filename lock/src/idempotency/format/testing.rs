//! Helpers for the format tests.

use std::fmt::Debug;

use serde_json::Value;

pub(super) fn parse(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

/// Whether a dependency or the command line, as in `--features serde_json/arbitrary_precision`, has enabled that feature.
pub(super) fn has_arbitrary_precision() -> bool {
    parse("18446744073709551617").to_string().ends_with("17")
}

/// Asserts that the error has this reason and does not show the value, which contains `secret` or 77.
pub(super) fn assert_refused<T: Debug>(result: Result<T, String>, reason: &str) {
    let why = result.expect_err(reason);
    assert!(why.contains(reason) && !why.contains("secret") && !why.contains("77"), "{why}");
}
