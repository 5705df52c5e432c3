//! The middlewares for `lambda_runtime` handlers. Feature `lambda`.

mod idempotent_layer;
mod lock_layer;
mod sqs_consumer;

use std::time::SystemTime;

use lambda_runtime::{Context, Diagnostic};

use crate::clock::since_epoch;
use crate::error::{Error, Kind};
use crate::idempotency::HandlerError;
use crate::idempotency::Invocation;
use crate::limits::MAX_LEASE;
use crate::lock::Locks;

pub use idempotent_layer::{IdempotentLayer, IdempotentService};
pub use lock_layer::{HandlerEvent, LockLayer, LockService, LockedEvent, OnUnavailable};
pub use sqs_consumer::{Message, SqsConsumer, SqsConsumerService};

/// For people: the function, the request, the log stream to look into.
fn holder(context: &Context) -> String {
    let config = &context.env_config;
    [&config.function_name, &context.request_id, &config.log_stream].map(String::as_str).join(" ").trim().to_owned()
}

/// The invocation's deadline. What is not one: the zero of a context made by hand, as in tests, and the early 1970 of
/// `cargo lambda watch`.
fn deadline(context: &Context, locks: &Locks) -> Option<SystemTime> {
    let earliest = locks.0.clock.now().wall.saturating_sub(MAX_LEASE);
    Some(context.deadline()).filter(|deadline| since_epoch(*deadline) > earliest)
}

fn caller(context: &Context, locks: &Locks) -> Invocation {
    Invocation {
        function: context.env_config.function_name.clone(),
        holder: Some(holder(context)),
        deadline: deadline(context, locks),
    }
}

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
        Kind::Throttled => "LockThrottled",
        Kind::Unavailable => "LockUnavailable",
        Kind::Conflict => "LockConflict",
        Kind::AccessDenied => "LockAccessDenied",
        Kind::TableNotFound => "LockTableNotFound",
        Kind::MalformedRow(_) => "LockMalformedRow",
        Kind::Invalid(_) => "LockInvalid",
        Kind::NotSent => "LockNotSent",
        Kind::Rejected => "LockRefused",
        Kind::Completed(_) => "IdempotencyCompleted",
        Kind::InProgress(_) => "IdempotencyInProgress",
        Kind::Unfinished(_) => "IdempotencyUnfinished",
        Kind::Mismatch(_) => "IdempotencyMismatch",
        Kind::KeyMissing => "IdempotencyKeyMissing",
        Kind::UnusableResult(_) => "IdempotencyUnusableResult",
    }
}
