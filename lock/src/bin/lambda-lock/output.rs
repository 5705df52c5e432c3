//! Standard output and standard error, without characters that mislead the reader.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use crate::failure::{BROKEN_OUTPUT, Failure};

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
    print(format!("{}\n", printable(text)).as_bytes())
}

/// Writes one line to standard error, which may be closed.
pub(crate) fn say(message: impl Display) {
    let message = printable(&message.to_string());
    let _stderr_may_be_closed = writeln!(io::stderr(), "lambda-lock: {message}");
}

/// Standard error for the log. The log repeats text of other hosts, such as the name of a holder.
#[derive(Debug)]
pub(crate) struct Log;

impl Write for Log {
    /// Takes a whole line: `tracing_subscriber` writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        writeln!(io::stderr(), "{}", printable(text.strip_suffix('\n').unwrap_or(&text)))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces each misleading character.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if misleads(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Returns whether a character steers the terminal, ends the line, changes the text direction, or is invisible: control
/// characters, the separators of lines and paragraphs, the annotation characters, and `Default_Ignorable_Code_Point` of
/// Unicode 17, which includes the direction marks.
pub(crate) fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}
