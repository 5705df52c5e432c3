//! What becomes of a lock when the work under it panics: it is released while the panic unwinds. Where panics abort,
//! nothing runs after them.

use std::sync::Once;

/// What there is to know of this build; `None` if its panics unwind.
pub(crate) const WARNING: Option<&str> = warning(cfg!(panic = "abort"));

const fn warning(aborts: bool) -> Option<&'static str> {
    if aborts {
        Some(
            "a panic ends this process (`panic = \"abort\"`): its lock stays until the lease ends, and a batch goes back as \
             a whole: set `panic = \"unwind\"` in `[profile.release]` of the workspace's Cargo.toml; without it, \
             cargo-lambda and `sam build` set \"abort\"",
        )
    } else {
        None
    }
}

/// Warns once in a process, however many layers it has.
#[cfg(feature = "lambda")]
pub(crate) fn warn_where_they_abort() {
    static ONCE: Once = Once::new();
    warn(&ONCE, WARNING);
}

#[cfg_attr(not(feature = "lambda"), expect(dead_code, reason = "layers alone warn"))]
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

    /// What is logged when this many layers are made.
    fn logged(layers: u32, aborts: bool) -> String {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let once = Once::new();
        tracing::subscriber::with_default(subscriber, || (0..layers).for_each(|_| warn(&once, warning(aborts))));
        let bytes = log.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    // behaviour 20
    #[test]
    fn where_panics_abort_the_first_layer_warns_and_says_the_way_out() {
        let log = logged(3, true);
        assert_eq!(log.lines().count(), 1, "{log}");
        for part in ["WARN", "`panic = \"unwind\"`", "`[profile.release]`", "cargo-lambda"] {
            assert!(log.contains(part), "`{log}` lacks `{part}`");
        }
    }

    // behaviour 20
    #[test]
    fn where_panics_unwind_no_layer_warns() {
        assert_eq!(logged(3, false), "");
        assert_eq!(WARNING, warning(cfg!(panic = "abort")));
    }
}
