//! The policies that a user of idempotency chooses.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// The policy for an input without a key.
///
/// ```
/// # use lambda_lock::idempotency::OnMissingKey;
/// # use lambda_lock::{Idempotency, Locks};
/// # fn example(locks: Locks) -> Idempotency<Option<String>, (), ()> {
/// Idempotency::new(locks, OnMissingKey::RunUnprotected, |header: &Option<String>| header.clone())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// The work runs without protection: a duplicate runs again.
    RunUnprotected,
    /// The work does not run, and the call fails with an error of kind
    /// [`KeyMissing`](crate::ErrorKind::KeyMissing).
    Reject,
}

/// The policy for the record after the handler returned an error.
///
/// ```
/// # use lambda_lock::idempotency::StoredError;
/// # use lambda_lock::{Idempotency, OnError};
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
    /// The record is released: a retry runs at once. The default.
    Release,
    /// The record stays in progress until its lease ends; then [`OnUnfinished`] applies. The error is returned even if a
    /// transaction that [completes](crate::Run::complete_in) the record was committed and its answer was lost. The next
    /// call then gets the result.
    Keep,
    /// The error is stored as the outcome, and replayed for the window. If it has more than 390 KiB, the record is
    /// released instead, with a warning. The same applies to the [formats](crate::idempotency::RecordFormat) of
    /// Powertools, which would replay the error as a success.
    Store(StoredError),
}

/// The policy for an unfinished run, which neither completed nor released its record: it timed out, crashed or panicked,
/// or its result could not be stored.
///
/// ```
/// # use lambda_lock::{Idempotency, OnUnfinished};
/// # fn example(transfers: Idempotency<String, (), ()>) -> Idempotency<String, (), ()> {
/// transfers.on_unfinished(OnUnfinished::Reject)
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnfinished {
    /// The next call after the lease runs again.
    #[default]
    RunAgain,
    /// Calls fail until the window has passed since the run began, with an error of kind
    /// [`Unfinished`](crate::ErrorKind::Unfinished): for work that must never run twice. A run also counts as begun if
    /// its request arrived after the sender had stopped waiting.
    ///
    /// Before the window ends, find out whether the work was done. If it was not, release the record with
    /// [`Locks::force_release`](crate::Locks::force_release) (`lambda-lock release`), and the next call runs. If it was, store
    /// its result with [`Locks::force_complete`](crate::Locks::force_complete) (`lambda-lock complete`), and the next call gets
    /// it. Do not delete the row: a request of the dead run that arrives late could then begin it again. The
    /// [runbook](crate::docs::operate::runbook#a-run-did-not-finish) has the steps.
    Reject,
}

/// The policy for a result that cannot be stored.
///
/// ```
/// # use lambda_lock::idempotency::OnUnstorableResult;
/// # use lambda_lock::Idempotency;
/// # fn example(exports: Idempotency<String, (), ()>) -> Idempotency<String, (), ()> {
/// exports.on_unstorable_result(OnUnstorableResult::CompleteWithoutResult)
/// # }
/// ```
///
/// A result cannot be stored if it
///
/// - has more than 390 KiB, of the 400 that DynamoDB allows for a row,
/// - cannot be written as JSON: for example, it contains a float that is NaN or infinite, or a map whose keys are not
///   strings,
/// - is nested more than 127 levels deep, the most that `serde_json` reads,
/// - or cannot be stored in the [format](crate::idempotency::RecordFormat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnstorableResult {
    /// The call fails with an error of kind [`UnusableResult`](crate::ErrorKind::UnusableResult). The run counts as
    /// [unfinished](OnUnfinished).
    #[default]
    Fail,
    /// The record is completed without the result. The call returns the result, and a duplicate does not run. A duplicate
    /// gets the result that JSON's `null` stands for (`()`, `None`), or an error of kind
    /// [`UnusableResult`](crate::ErrorKind::UnusableResult).
    CompleteWithoutResult,
}

/// An error that a record stores and replays.
///
/// ```
/// let declined = lambda_lock::idempotency::StoredError::new("Declined", "the card was declined");
/// assert_eq!(declined.to_string(), "Declined: the card was declined");
/// ```
#[derive(Clone, Deserialize, PartialEq, Eq, Serialize)]
pub struct StoredError {
    #[serde(rename = "type")]
    error_type: String,
    message: String,
}

impl StoredError {
    /// Creates an error with this type, which becomes Lambda's `errorType`, and this message. Both are stored unchanged.
    pub fn new(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), message: message.into() }
    }

    /// Returns the JSON text that the record stores.
    pub(super) fn to_json(&self) -> String {
        json!(self).to_string()
    }

    /// Returns the type.
    #[must_use]
    pub fn error_type(&self) -> &str {
        &self.error_type
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Omits the message, which may be confidential: `lambda_runtime` logs the `Debug` form of a replayed error.
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
