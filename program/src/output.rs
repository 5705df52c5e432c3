//! Standard output and standard error, without characters that mislead the reader.

use std::fmt::{Display, Write as _};
use std::io::{self, ErrorKind, Write};

use serde_json::Value;

use crate::failure::{BROKEN_OUTPUT, Failure};
use lambda_lock::text::misleads;
pub(crate) use lambda_lock::text::{escaped, printable, printable_up_to, shortened};

/// Writes to standard output. A reader that has gone, such as `head`, ends the program quietly.
pub(crate) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::new(0, ""),
        _ => Failure::new(BROKEN_OUTPUT, format!("cannot write to standard output: {error}")),
    })
}

/// Writes one line to standard output.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    print(format!("{}\n", escaped(text)).as_bytes())
}

/// Returns a line of JSON. Within it, misleading characters occur only in strings, where JSON has an escape for each.
pub(crate) fn json_line(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        if misleads(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _infallible = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text + "\n"
}

/// Writes one line to standard error, which may be closed.
pub(crate) fn say(message: impl Display) {
    let message = message.to_string();
    let _stderr_may_be_closed = writeln!(io::stderr(), "lambda-lock: {}", escaped(&message));
}

/// Standard error for the log. The log repeats text of other hosts, such as the name of a holder.
#[derive(Debug)]
pub(crate) struct Log;

impl Write for Log {
    /// Takes a whole line: `tracing_subscriber` writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        writeln!(io::stderr(), "{}", escaped(text.strip_suffix('\n').unwrap_or(&text)))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
