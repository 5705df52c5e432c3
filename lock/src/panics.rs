//! A warning for programs whose panics abort: only a panic that unwinds lets a lock be released.

#[cfg(any(feature = "lambda", test))]
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
    warn(&ONCE, WARNING);
}

#[cfg(any(feature = "lambda", test))]
fn warn(once: &Once, warning: Option<&str>) {
    if let Some(warning) = warning {
        once.call_once(|| tracing::warn!("{warning}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log of the creation of this many layers.
    fn logged(layers: u32, aborts: bool) -> String {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let once = Once::new();
        tracing::subscriber::with_default(subscriber, || (0..layers).for_each(|_| warn(&once, warning(aborts))));
        let bytes = log.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_first_layer_warns_if_panics_abort_and_names_the_remedy() {
        let log = logged(3, true);
        assert_eq!(log.lines().count(), 1, "{log}");
        for part in ["WARN", "`panic = \"unwind\"`", "`[profile.release]`", "cargo-lambda"] {
            assert!(log.contains(part), "`{log}` lacks `{part}`");
        }
    }

    #[test]
    fn no_layer_warns_if_panics_unwind() {
        assert_eq!(logged(3, false), "");
        assert_eq!(WARNING, warning(cfg!(panic = "abort")));
    }
}
