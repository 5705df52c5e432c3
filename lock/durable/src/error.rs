//! The error of a lock in a durable function.

use std::error::Error as StdError;
use std::fmt;

use aws_durable_execution_sdk::{BoxError, OperationError};
use serde::{Deserialize, Serialize};

/// The error of [`DurableLock::run`](crate::DurableLock::run) and of the requests of a [`Held`](crate::Held) lock. A refusal
/// of the lock is the same on replay, so a function can branch on its kind.
///
/// ```
/// use std::time::Duration;
///
/// use aws_durable_execution_sdk::{BoxError, DurableContext};
/// use lambda_lock::Locks;
/// use lambda_lock_durable::LockContext;
///
/// async fn handler(locks: Locks, ctx: DurableContext) -> Result<&'static str, BoxError> {
///     let deployed = ctx.lock(&locks, "deploy").run(|held| async move {
///         Ok(held.step("roll out", |fences| async move { roll_out(fences.fence()).await }).await?)
///     });
///     match deployed.await {
///         Ok(()) => Ok("deployed"),
///         Err(error) if error.is_held() => Ok("another execution deploys"),
///         Err(error) => Err(error.into()),
///     }
/// }
/// # async fn roll_out(_: u64) -> Result<(), BoxError> { Ok(()) }
/// ```
#[derive(Debug)]
pub struct Error(Box<Cause>);

#[derive(Debug)]
enum Cause {
    Refused(Refusal),
    Operation(OperationError),
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another holder has the key, until the end of the wait.
    Held,
    /// The lock is no longer held: its lease has ended, or somebody has freed the key.
    Lost,
    /// Another error of the lock: [`Error::error_type`] names it.
    Lock,
    /// An operation of the durable execution failed, such as a step of the body: [`source`](StdError::source) has its error.
    Operation,
}

impl Error {
    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self(Box::new(Cause::Refused(refusal)))
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Cause::Operation(_) => ErrorKind::Operation,
            Cause::Refused(refusal) if refusal.is_held => ErrorKind::Held,
            Cause::Refused(refusal) if refusal.is_lost => ErrorKind::Lost,
            Cause::Refused(_) => ErrorKind::Lock,
        }
    }

    /// Returns the stable [name](lambda_lock::Error::error_type) of an error of the lock, such as `LockHeld`.
    #[must_use]
    pub fn error_type(&self) -> Option<&str> {
        match &*self.0 {
            Cause::Refused(refusal) => Some(&refusal.error_type),
            Cause::Operation(_) => None,
        }
    }

    /// Returns `true` if another holder has the key.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.kind() == ErrorKind::Held
    }

    /// Returns `true` if the lock is no longer held.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }
}

impl From<OperationError> for Error {
    fn from(error: OperationError) -> Self {
        Self(Box::new(Cause::Operation(error)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause::Refused(refusal) => f.write_str(&refusal.message),
            Cause::Operation(_) => f.write_str("an operation of the durable execution failed"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.0 {
            Cause::Refused(_) => None,
            Cause::Operation(error) => Some(error),
        }
    }
}

/// An error of the lock, as the history of the execution has it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Refusal {
    error_type: String,
    message: String,
    is_held: bool,
    is_lost: bool,
}

impl Refusal {
    /// The lease has ended before the work under it.
    pub(crate) fn lease_ended(name: &str) -> Self {
        Self {
            error_type: "LockLost".to_owned(),
            message: format!("the lease for {name} has ended before the step: choose a longer lease"),
            is_held: false,
            is_lost: true,
        }
    }
}

impl From<lambda_lock::Error> for Refusal {
    fn from(error: lambda_lock::Error) -> Self {
        Self {
            error_type: error.error_type().to_owned(),
            message: error.to_string(),
            is_held: error.is_held(),
            is_lost: error.is_lost(),
        }
    }
}

/// The result of an operation, which the history has: a refusal of the lock is a value in it, so it is the same on replay.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Outcome<T> {
    Done(T),
    Refused(Refusal),
}

impl<T> Outcome<T> {
    pub(crate) fn into_result(self) -> Result<T, Error> {
        match self {
            Self::Done(value) => Ok(value),
            Self::Refused(refusal) => Err(Error::refused(refusal)),
        }
    }

    /// Returns what a body returned. A refusal of the lock that it passes on becomes a value.
    pub(crate) fn of(result: Result<T, BoxError>) -> Result<Self, BoxError> {
        match result {
            Ok(value) => Ok(Self::Done(value)),
            Err(error) => match error.downcast::<Error>() {
                Ok(error) => match *error.0 {
                    Cause::Refused(refusal) => Ok(Self::Refused(refusal)),
                    Cause::Operation(error) => Err(error.into()),
                },
                Err(error) => Err(error),
            },
        }
    }
}
