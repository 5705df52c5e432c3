//! Errors as Lambda reports them: with a stable `errorType`.

use lambda_runtime::Diagnostic;

use crate::error::{Error, ErrorKind};
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
        ErrorKind::Held => "LockHeld",
        ErrorKind::Lost => "LockLost",
        ErrorKind::TicketForeign
        | ErrorKind::TicketEnded
        | ErrorKind::TicketReleased
        | ErrorKind::TicketUsed
        | ErrorKind::TicketUnknown => "LockTicketRefused",
        ErrorKind::Throttled => "LockThrottled",
        ErrorKind::Unavailable => "LockUnavailable",
        ErrorKind::Conflict => "LockConflict",
        ErrorKind::AccessDenied => "LockAccessDenied",
        ErrorKind::TableNotFound => "LockTableNotFound",
        ErrorKind::MalformedRow => "LockMalformedRow",
        ErrorKind::WrongKind => "LockWrongKind",
        ErrorKind::Invalid => "LockInvalid",
        ErrorKind::NotSent => "LockNotSent",
        ErrorKind::Rejected => "LockRejected",
        ErrorKind::InProgress => "IdempotencyInProgress",
        ErrorKind::Unfinished => "IdempotencyUnfinished",
        ErrorKind::Mismatch => "IdempotencyMismatch",
        ErrorKind::KeyMissing => "IdempotencyKeyMissing",
        ErrorKind::UnusableResult => "IdempotencyUnusableResult",
    }
}
