//! `HandlerError`: why an idempotent run, or a handler under a middleware, failed.

use std::error::Error as StdError;
use std::fmt;

use super::policy::StoredError;
use crate::error::Error;

/// Why protected work failed: because of the lock or the record, or in the handler.
///
/// ```
/// # use lambda_lock::{Error, HandlerError};
/// fn is_worth_a_retry(error: &HandlerError<std::io::Error>) -> bool {
///     matches!(error, HandlerError::Lock(lock) if lock.is_held())
/// }
/// ```
///
/// Lambda reports the error type `LockHeld`, `LockLost`, `LockUnavailable`, `LockThrottled`, `LockConflict`,
/// `LockAccessDenied`, `LockTableNotFound`, `LockMalformedRow`, `LockWrongKind`, `LockInvalid`, `LockNotSent`, `LockRejected`
/// or, with coalescing, `LockRunAgain`; with idempotency also `IdempotencyInProgress`, `IdempotencyMismatch`,
/// `IdempotencyUnfinished`, `IdempotencyKeyMissing` or `IdempotencyUnusableResult`. For the handler's own error, new or
/// replayed, it reports the type of that error.
///
/// `lambda_runtime` logs the error of an invocation with `Debug`. The `Debug` of this type is that of the error inside, so
/// your own error is logged as your type prints it.
#[non_exhaustive]
pub enum HandlerError<E> {
    /// The lock could not be acquired, or was lost while the handler ran.
    Lock(Error),
    /// The handler's own error.
    Handler(E),
    /// The stored error of the first run.
    Replayed(StoredError),
}

impl<E: fmt::Display> fmt::Display for HandlerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Handler(error) => error.fmt(f),
            Self::Replayed(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for HandlerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Handler(error) => error.fmt(f),
            Self::Replayed(error) => error.fmt(f),
        }
    }
}

impl<E: StdError> StdError for HandlerError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Lock(error) => error.source(),
            Self::Handler(error) => error.source(),
            Self::Replayed(_) => None,
        }
    }
}
