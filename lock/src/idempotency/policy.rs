//! The choices that idempotency leaves to its user.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// What to do with an input that has no key.
///
/// ```
/// # use lambda_lock::{Idempotency, Locks, OnMissingKey};
/// # fn example(locks: Locks) -> Idempotency<Option<String>, (), ()> {
/// Idempotency::new(locks, OnMissingKey::RunUnprotected, |header: &Option<String>| header.clone())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissingKey {
    /// The work runs without protection: a duplicate runs again.
    RunUnprotected,
    /// The work does not run; the error [`is_key_missing`](crate::Error::is_key_missing).
    Reject,
}

/// What becomes of the record when the handler returned an error.
///
/// ```
/// # use lambda_lock::{Idempotency, OnError, StoredError};
/// # enum Failure { Declined, Unreachable }
/// # fn example(payments: Idempotency<String, (), Failure>) -> Idempotency<String, (), Failure> {
/// payments.on_error(|error| match error {
///     Failure::Declined => OnError::Store(StoredError::new("Declined", "the card was declined")),
///     Failure::Unreachable => OnError::Release,
/// })
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// It is given up: a retry runs again, at once. The default.
    Release,
    /// It stays in progress until its lease ends, then as after a [timeout](OnTimeout). The error is returned even if a
    /// transaction that [completes](crate::Run::complete_in) the record was committed and its answer lost; the next call
    /// then gets the result.
    Keep,
    /// The error is stored as the outcome, and replayed for the window. If it has more than 390 KiB, or the
    /// [format](crate::RecordFormat) is one of Powertools', which would replay it as a success, the record is given up
    /// instead, with a warning.
    Store(StoredError),
}

/// What becomes of a record whose run began and was neither completed nor given up: it timed out, crashed, panicked, or
/// its result could not be stored.
///
/// ```
/// # use lambda_lock::{Idempotency, OnTimeout};
/// # fn example(transfers: Idempotency<String, (), ()>) -> Idempotency<String, (), ()> {
/// transfers.on_timeout(OnTimeout::Reject)
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnTimeout {
    /// The next call after the lease runs again.
    #[default]
    RunAgain,
    /// Calls are refused until the window has passed since the run began, with an error that
    /// [`is_unfinished`](crate::Error::is_unfinished): for work that must never be done twice. That includes a run whose
    /// request to begin got lost on the way, if it arrived after its sender had given up. Deleting the row lets it run.
    Reject,
}

/// What becomes of a result that cannot be stored.
///
/// - It has more than 390 KiB, of the 400 that DynamoDB allows for a row.
/// - It has no form as JSON: it has a float in it that is NaN or an infinity, say, or a map whose keys are no strings.
/// - It is nested more than 127 levels deep, which is as deep as `serde_json` reads.
/// - The [format](crate::RecordFormat) has no form for it.
///
/// ```
/// # use lambda_lock::{Idempotency, OnUnstorableResult};
/// # fn example(exports: Idempotency<String, (), ()>) -> Idempotency<String, (), ()> {
/// exports.on_unstorable_result(OnUnstorableResult::CompleteWithoutResult)
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnstorableResult {
    /// The call fails with an error that [`is_unusable_result`](crate::Error::is_unusable_result); the record is left as after a
    /// [timeout](OnTimeout).
    #[default]
    Fail,
    /// The record is completed without it: the call returns the result, and a duplicate does not run. What it gets is
    /// the result that JSON's `null` stands for (`()`, `None`), or an error that [`is_unusable_result`](crate::Error::is_unusable_result).
    CompleteWithoutResult,
}

/// An error as a record keeps it, to be replayed.
///
/// ```
/// let declined = lambda_lock::StoredError::new("Declined", "the card was declined");
/// assert_eq!(declined.to_string(), "Declined: the card was declined");
/// ```
#[derive(Clone, Deserialize, PartialEq, Eq, Serialize)]
pub struct StoredError {
    #[serde(rename = "type")]
    error_type: String,
    message: String,
}

impl StoredError {
    /// An error of this type, as Lambda's `errorType` has it, with this message. Both are stored as they are.
    pub fn new(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), message: message.into() }
    }

    /// As the record has it.
    pub(super) fn to_json(&self) -> String {
        json!(self).to_string()
    }

    /// The type.
    #[must_use]
    pub fn error_type(&self) -> &str {
        &self.error_type
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Without the message, which is stored like a result: `lambda_runtime` logs a replayed error by its `Debug`.
impl fmt::Debug for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredError").field("error_type", &self.error_type).finish_non_exhaustive()
    }
}

impl fmt::Display for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error_type, self.message)
    }
}
