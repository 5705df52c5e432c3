//! Errors as Lambda reports them: with a stable `errorType`.

use lambda_runtime::Diagnostic;

use crate::error::{Error, Kind};
use crate::idempotency::HandlerError;

impl<E: Into<Diagnostic>> From<HandlerError<E>> for Diagnostic {
    fn from(error: HandlerError<E>) -> Self {
        match error {
            HandlerError::Lock(error) => error.into(),
            HandlerError::Handler(error) => error.into(),
            HandlerError::Replayed(error) => {
                Self { error_type: error.error_type().to_owned(), error_message: error.message().to_owned() }
            }
        }
    }
}

impl From<Error> for Diagnostic {
    fn from(error: Error) -> Self {
        Self { error_type: error_type(&error).to_owned(), error_message: error.to_string() }
    }
}

/// Returns the stable name that Lambda reports as `errorType`.
fn error_type(error: &Error) -> &'static str {
    match error.kind() {
        Kind::Held(_) => "LockHeld",
        Kind::Lost(_) => "LockLost",
        Kind::Ticket(_) => "LockTicketRefused",
        Kind::Throttled => "LockThrottled",
        Kind::Unavailable => "LockUnavailable",
        Kind::Conflict => "LockConflict",
        Kind::AccessDenied => "LockAccessDenied",
        Kind::TableNotFound => "LockTableNotFound",
        Kind::MalformedRow(_) => "LockMalformedRow",
        Kind::WrongUse { .. } => "LockWrongKind",
        Kind::Invalid(_) => "LockInvalid",
        Kind::NotSent => "LockNotSent",
        Kind::Rejected => "LockRefused",
        Kind::InProgress(_) => "IdempotencyInProgress",
        Kind::Unfinished(_) => "IdempotencyUnfinished",
        Kind::Mismatch(_) => "IdempotencyMismatch",
        Kind::KeyMissing => "IdempotencyKeyMissing",
        Kind::UnusableResult(_) => "IdempotencyUnusableResult",
    }
}
