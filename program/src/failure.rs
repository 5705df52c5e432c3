//! The exit codes, and the sentence that explains each.

use std::error::Error as StdError;
use std::fmt::Display;

use aws_sdk_dynamodb::error::ErrorMetadata;
use lambda_lock::{Error, ErrorKind};

/// The command line is wrong. Clap has the same code.
pub(crate) const USAGE: u8 = 2;
/// No row has the key: `EX_NOINPUT` of sysexits.h.
pub(crate) const NO_ROW: u8 = 66;
/// No usable answer: `EX_UNAVAILABLE` of sysexits.h.
pub(crate) const UNAVAILABLE: u8 = 69;
/// `EX_IOERR`.
pub(crate) const BROKEN_OUTPUT: u8 = 74;
/// Another holder has the key: `EX_TEMPFAIL`.
pub(crate) const HELD: u8 = 75;
/// The lock was lost.
pub(crate) const LOST: u8 = 76;
/// The user has to correct something first: `EX_CONFIG`.
pub(crate) const CONFIGURATION: u8 = 78;

/// An exit code, and the reason in one sentence. An empty sentence is not printed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn of_the_system(error: impl Display) -> Self {
        Self::new(BROKEN_OUTPUT, format!("the operating system refused a request: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Held => HELD,
            ErrorKind::Lost => LOST,
            ErrorKind::Throttled | ErrorKind::Unavailable | ErrorKind::Conflict => UNAVAILABLE,
            _ => CONFIGURATION,
        };
        Self::new(code, sentence(&error))
    }
}

/// Returns the error with its root cause, which the error's own text leaves out.
pub(crate) fn sentence(error: &Error) -> String {
    if error.kind() == ErrorKind::TableNotFound {
        return format!(
            "table `{}` not found in this account and region: create it with `lambda-lock create-table`, or check --table, \
             --region and --endpoint-url, or wait while it is being created",
            error.table()
        );
    }
    let text = error.to_string();
    match error.source().map(cause) {
        Some(cause) if !text.contains(&cause) => format!("{text} ({cause})"),
        _ => text,
    }
}

/// Returns the root cause of an error, in one line.
pub(crate) fn cause(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let answered = last.downcast_ref::<ErrorMetadata>().and_then(ErrorMetadata::message);
    let text = answered.map_or_else(|| last.to_string(), str::to_owned);
    // The credentials chain lists its attempts on the lines after this one.
    text.lines().next().unwrap_or_default().trim_end_matches(" Attempted:").trim_end_matches('.').to_owned()
}
