//! A warning for programs whose panics abort: only a panic that unwinds lets a lock be released.

#[cfg(feature = "lambda")]
use std::sync::Once;

/// The warning for this build, or `None` if its panics unwind.
pub(crate) const WARNING: Option<&str> = warning(cfg!(panic = "abort"));

const fn warning(aborts: bool) -> Option<&'static str> {
    if aborts {
        Some(
            "a panic ends this process (`panic = \"abort\"`): its locks stay until their leases end, and its whole batch \
             returns to the queue: set `panic = \"unwind\"` in `[profile.release]` of the workspace's Cargo.toml, because \
             cargo-lambda and `sam build` default to \"abort\"",
        )
    } else {
        None
    }
}

/// Warns once per process, even if it has several layers.
#[cfg(feature = "lambda")]
pub(crate) fn warn_if_they_abort() {
    static ONCE: Once = Once::new();
    if let Some(warning) = WARNING {
        ONCE.call_once(|| tracing::warn!("{warning}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_build_whose_panics_abort_has_a_warning_and_it_names_the_remedy() {
        let text = warning(true).unwrap();
        for part in ["`panic = \"unwind\"`", "`[profile.release]`", "cargo-lambda"] {
            assert!(text.contains(part), "`{text}` lacks `{part}`");
        }
        assert_eq!(warning(false), None);
    }
}
