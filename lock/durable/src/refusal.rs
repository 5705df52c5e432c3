//! An error of the lock, as the history of an execution has it.

use aws_durable_execution_sdk::{OperationError, TypedError};
use serde::{Deserialize, Serialize};

const LOST: &str = "LockLost";
const HELD: &str = "LockHeld";
/// Comes before the lock and the error's type in the history of a step or a branch that a refusal has failed.
const MARK: &str = "DurableLock.";

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Refusal {
    /// The [id](crate::claim::Claim::id) of the lock.
    pub(crate) lock: String,
    pub(crate) error_type: String,
    pub(crate) message: String,
    pub(crate) is_held: bool,
    pub(crate) is_lost: bool,
    /// Decides about the next attempt of a step. A refusal in the history has none.
    #[serde(skip)]
    pub(crate) is_retryable: bool,
}

impl Refusal {
    pub(crate) fn new(lock: &str, error: &lambda_lock::Error) -> Self {
        Self {
            lock: lock.to_owned(),
            error_type: error.error_type().to_owned(),
            message: error.to_string(),
            is_held: error.is_held(),
            is_lost: error.is_lost(),
            is_retryable: error.is_retryable(),
        }
    }

    /// The lease ended while the step ran.
    pub(crate) fn lease_ended(lock: &str, name: &str) -> Self {
        let message = format!("the lease for {name} ended before the step did: choose a longer lease");
        Self::named(lock, LOST, message)
    }

    fn named(lock: &str, error_type: &str, message: String) -> Self {
        Self {
            lock: lock.to_owned(),
            error_type: error_type.to_owned(),
            message,
            is_held: error_type == HELD,
            is_lost: error_type == LOST,
            is_retryable: false,
        }
    }

    /// Returns what lets [`of_operation`](Self::of_operation) find this refusal in the history.
    pub(crate) fn mark(&self) -> TypedError {
        TypedError::with_type(format!("{MARK}{}.{}", self.lock, self.error_type), "the lock refused the request")
    }

    /// Returns the refusal that has failed a step or a branch.
    pub(crate) fn of_operation(error: &OperationError) -> Option<Self> {
        let wire = error.wire()?;
        let (lock, error_type) = wire.error_type()?.strip_prefix(MARK)?.split_once('.')?;
        Some(Self::named(lock, error_type, wire.error_message().unwrap_or(error_type).to_owned()))
    }
}
