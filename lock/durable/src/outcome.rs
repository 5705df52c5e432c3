//! The results of operations, as the history has them. Refusals are values in it, so they are the same on replay.

use std::any::Any;

use aws_durable_execution_sdk::{BoxError, OperationError};
use serde::{Deserialize, Serialize};

use crate::error::{Cause, Error};
use crate::refusal::Refusal;

/// The result of an operation.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Outcome<T> {
    Done(T),
    Refused(Refusal),
    /// Another lock refused, and the work passed that on.
    Passed(Refusal),
    Panicked(String),
}

impl<T> Outcome<T> {
    pub(crate) fn into_result(self) -> Result<T, Error> {
        Err(match self {
            Self::Done(value) => return Ok(value),
            Self::Refused(refusal) => refusal.into(),
            Self::Passed(refusal) => {
                let mark = refusal.mark();
                Cause::Passed(refusal, mark).into()
            }
            Self::Panicked(message) => Cause::Panicked(message).into(),
        })
    }

    /// Returns what the work under a lock returned. A refusal that it passes on becomes a value.
    pub(crate) fn of(lock: &str, result: Result<T, BoxError>) -> Result<Self, BoxError> {
        let error = match result {
            Ok(value) => return Ok(Self::Done(value)),
            Err(error) => error,
        };
        let refusal = match error.downcast::<Error>().map(|error| *error.0) {
            Ok(Cause::Refused(refusal, _) | Cause::Passed(refusal, _)) => refusal,
            Ok(Cause::Panicked(message)) => return Ok(Self::Panicked(message)),
            Ok(Cause::Operation(error)) => Refusal::of_operation(&error).ok_or(error)?,
            Err(error) => {
                let error = *error.downcast::<OperationError>()?;
                Refusal::of_operation(&error).ok_or(error)?
            }
        };
        Ok(if refusal.lock == lock { Self::Refused(refusal) } else { Self::Passed(refusal) })
    }

    /// Returns what a panic says.
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::Panicked(text.unwrap_or("no message").to_owned())
    }
}
