//! Why a handler failed, for logs and for Lambda.

use std::error::Error as StdError;
use std::fmt;
use std::iter::successors;

use lambda_runtime::{Diagnostic, Error};

/// An error of a handler with its causes, in one line.
///
/// `lambda_runtime` logs an error's `Debug` output, and names the error after its Rust type. A boxed error would have
/// the name of the box. So `Debug` prints the line, and the name is explicit.
pub struct Failure {
    name: &'static str,
    line: String,
    is_temporary: bool,
}

impl Failure {
    pub(crate) fn new(name: &'static str, error: impl Into<Error>) -> Self {
        Self { name, line: line(&*error.into()), is_temporary: false }
    }

    /// Marks a failure after which the same call can succeed without a change.
    pub(crate) fn temporary_if(self, is_temporary: bool) -> Self {
        Self { is_temporary, ..self }
    }

    pub(crate) fn is_temporary(&self) -> bool {
        self.is_temporary
    }
}

/// Returns an error with its causes, in one line. An error of the AWS SDK leaves out its cause: "service error".
pub(crate) fn line(error: &(dyn StdError + 'static)) -> String {
    successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl StdError for Failure {}

impl From<Failure> for Diagnostic {
    fn from(failure: Failure) -> Self {
        Self { error_type: failure.name.to_owned(), error_message: failure.line }
    }
}
