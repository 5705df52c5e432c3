//! The error of a lock in a durable function.

use std::error::Error as StdError;
use std::fmt;

use aws_durable_execution_sdk::{OperationError, TypedError};

use crate::refusal::Refusal;

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
pub struct Error(pub(crate) Box<Cause>);

#[derive(Debug)]
pub(crate) enum Cause {
    /// Of this lock. By the mark, it is known again after it has failed a step or a branch.
    Refused(Refusal, TypedError),
    /// Of another lock, which the work passed on.
    Passed(Refusal, TypedError),
    Panicked(String),
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
    /// The body panicked, in a step or outside of one: the message has the panic's.
    Panic,
    /// An operation of the durable execution failed, such as a step of the body: [`source`](StdError::source) has its error.
    /// Or the body has passed on the error of another lock.
    Operation,
}

impl Error {
    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Cause::Operation(_) | Cause::Passed(..) => ErrorKind::Operation,
            Cause::Panicked(_) => ErrorKind::Panic,
            Cause::Refused(refusal, _) if refusal.is_held => ErrorKind::Held,
            Cause::Refused(refusal, _) if refusal.is_lost => ErrorKind::Lost,
            Cause::Refused(..) => ErrorKind::Lock,
        }
    }

    /// Returns the stable [name](lambda_lock::Error::error_type) of an error of a lock, such as `LockHeld`.
    #[must_use]
    pub fn error_type(&self) -> Option<&str> {
        match &*self.0 {
            Cause::Refused(refusal, _) | Cause::Passed(refusal, _) => Some(&refusal.error_type),
            Cause::Panicked(_) | Cause::Operation(_) => None,
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

    /// Returns `true` if a takeover can be repeated: DynamoDB did not answer it, or refused it for now.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(&*self.0, Cause::Refused(refusal, _) if refusal.is_retryable)
    }
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Self {
        Self(Box::new(cause))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let mark = refusal.mark();
        Cause::Refused(refusal, mark).into()
    }
}

impl From<OperationError> for Error {
    fn from(error: OperationError) -> Self {
        Cause::Operation(error).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause::Refused(refusal, _) | Cause::Passed(refusal, _) => f.write_str(&refusal.message),
            Cause::Panicked(message) => write!(f, "the body panicked: {message}"),
            Cause::Operation(_) => f.write_str("an operation of the durable execution failed"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.0 {
            Cause::Refused(_, mark) | Cause::Passed(_, mark) => Some(mark),
            Cause::Panicked(_) => None,
            Cause::Operation(error) => Some(error),
        }
    }
}
