//! The one error type.

use std::error::Error as StdError;
use std::fmt;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use aws_smithy_types::retry::ErrorKind;

use crate::holder::Holder;
#[cfg(feature = "idempotency")]
use crate::idempotency::{Refusal, StoredError};

pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// Why an operation failed.
///
/// The type is opaque: ask it with the `is_…` methods. [`source`](StdError::source) is the SDK's error where there is
/// one. `Debug` prints the message, followed by what DynamoDB or the network said in parentheses: `lambda_runtime` logs
/// an error that way. It never shows payloads, results or digests of them.
///
/// | predicate | meaning | retried while waiting |
/// | --- | --- | --- |
/// | [`is_held`](Self::is_held) | someone else holds the key: [`holder`](Self::holder) says who and until when | yes |
/// | [`is_lost`](Self::is_lost) | the lock is no longer ours: its lease ended, or someone else has the key | |
/// | [`is_throttled`](Self::is_throttled) | DynamoDB asked for fewer requests | yes |
/// | [`is_unavailable`](Self::is_unavailable) | no usable answer: connection, timeout, server error | yes |
/// | [`is_conflict`](Self::is_conflict) | the row is part of a transaction that is under way, such as its holder's | yes |
/// | [`is_access_denied`](Self::is_access_denied) | an IAM action is missing | no |
/// | [`is_table_not_found`](Self::is_table_not_found) | no such table in this account and region | no |
/// | [`is_malformed_row`](Self::is_malformed_row) | the row under this key is not a lock row, and was left as it is | no |
/// | [`is_invalid`](Self::is_invalid) | a setting or an argument is out of its bounds | no |
/// | `is_in_progress` | the work for this idempotency key is being done: [`holder`](Self::holder) says by whom | yes |
/// | `is_unfinished` | a run for it began and did not finish, and is not to be repeated | no |
/// | `is_mismatch` | it was used with another payload | no |
/// | `is_key_missing` | the input has none | no |
/// | `is_unusable_result` | a result cannot be stored, or a stored one not read | no |
///
/// None of these: the request could not be sent at all, for lack of credentials say, or was refused for another
/// reason; `source` names it.
///
/// ```
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// match locks.acquire("nightly-report").await {
///     Ok(lock) => lock.release().await,
///     Err(error) if error.is_held() => Ok(println!("skipped: {error}")),
///     Err(error) => Err(error),
/// }
/// # }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    table: String,
    key: String,
    attempts: u32,
    source: Option<Source>,
    /// What the source says, for people.
    cause: Option<String>,
}

pub(crate) enum Kind {
    Held(Holder),
    Lost(Option<Holder>),
    Throttled,
    Unavailable,
    Conflict,
    AccessDenied,
    TableNotFound,
    MalformedRow(String),
    Invalid(String),
    /// The client could not send a request at all: no credentials, no region, a wrong certificate.
    NotSent,
    Refused,
    #[cfg(feature = "idempotency")]
    Idempotency(Refusal),
}

impl Error {
    pub(crate) fn new(kind: Kind, table: &str, key: &str) -> Self {
        let (table, key) = (table.to_owned(), key.to_owned());
        Self(Box::new(Inner { kind, table, key, attempts: 1, source: None, cause: None }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid(message.into()), "", "")
    }

    pub(crate) fn with_source(mut self, source: impl Into<Source>) -> Self {
        let source = source.into();
        self.0.cause = Some(source.to_string());
        self.0.source = Some(source);
        self
    }

    pub(crate) fn with_attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = attempts;
        self
    }

    pub(crate) fn from_sdk<E>(error: SdkError<E>, table: &str, key: &str) -> Self
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let cause = cause(&error);
        let mut this = Self::new(classify(&error), table, key).with_source(error);
        this.0.cause = Some(cause);
        this
    }

    /// DynamoDB's own words, or the network's.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// Someone else holds the key.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.0.kind, Kind::Held(_))
    }

    /// The lock is no longer ours.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.0.kind, Kind::Lost(_))
    }

    /// DynamoDB asked for fewer requests, also after the SDK's own retries.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        matches!(self.0.kind, Kind::Throttled)
    }

    /// DynamoDB gave no usable answer, also after the SDK's own retries.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0.kind, Kind::Unavailable)
    }

    /// The row is part of a transaction that is under way, such as its holder's with [`condition_check`].
    ///
    /// [`condition_check`]: crate::Lock::condition_check
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self.0.kind, Kind::Conflict)
    }

    /// The caller may not do this on this table or key.
    #[must_use]
    pub fn is_access_denied(&self) -> bool {
        matches!(self.0.kind, Kind::AccessDenied)
    }

    /// The table does not exist in this account and region.
    #[must_use]
    pub fn is_table_not_found(&self) -> bool {
        matches!(self.0.kind, Kind::TableNotFound)
    }

    /// The row under this key is not a lock row.
    #[must_use]
    pub fn is_malformed_row(&self) -> bool {
        matches!(self.0.kind, Kind::MalformedRow(_))
    }

    /// A setting or an argument is out of its bounds; nothing was sent.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self.0.kind, Kind::Invalid(_))
    }

    /// The key the operation was for, without the prefix of the `Locks`; empty for an error in the settings.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// The table's name; empty for an error in the settings.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.0.table
    }

    /// Who holds the key, for an error that [`is_held`](Self::is_held), where known for one that
    /// [`is_lost`](Self::is_lost), and whose run it is, for a record of idempotency that stands in the way.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match &self.0.kind {
            Kind::Held(holder) => Some(holder),
            Kind::Lost(holder) => holder.as_ref(),
            #[cfg(feature = "idempotency")]
            Kind::Idempotency(refusal) => refusal.holder(),
            _ => None,
        }
    }

    #[cfg(feature = "idempotency")]
    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// The record that has the result, if that is what stood in the way.
    #[cfg(feature = "idempotency")]
    pub(crate) fn into_completed(self) -> Result<Holder, Self> {
        match self.0.kind {
            Kind::Idempotency(Refusal::Completed(record)) => Ok(record),
            _ => Err(self),
        }
    }

    /// How many attempts the acquire made, not counting the SDK's own retries.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// A stable name for Lambda's `errorType`.
    #[cfg(feature = "lambda")]
    pub(crate) fn type_name(&self) -> &'static str {
        match &self.0.kind {
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
            Kind::Refused => "LockRefused",
            Kind::Idempotency(refusal) => refusal.type_name(),
        }
    }

    /// The same for metrics and logs: the predicate's name without `is_`, where there is one.
    pub(crate) fn reason(&self) -> &'static str {
        match &self.0.kind {
            Kind::Held(_) => "held",
            Kind::Lost(_) => "lost",
            Kind::Throttled => "throttled",
            Kind::Unavailable => "unavailable",
            Kind::Conflict => "conflict",
            Kind::AccessDenied => "access_denied",
            Kind::TableNotFound => "table_not_found",
            Kind::MalformedRow(_) => "malformed_row",
            Kind::Invalid(_) => "invalid",
            Kind::NotSent => "not_sent",
            Kind::Refused => "refused",
            #[cfg(feature = "idempotency")]
            Kind::Idempotency(refusal) => refusal.reason(),
        }
    }

    /// Whether DynamoDB answers, so that another request is worth its time.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self.0.kind, Kind::Throttled | Kind::Unavailable | Kind::NotSent)
    }

    /// Whether a later attempt may succeed without anyone changing anything.
    pub(crate) fn is_worth_waiting(&self) -> bool {
        #[cfg(feature = "idempotency")]
        if self.is_in_progress() {
            return true;
        }
        self.is_held() || self.is_throttled() || self.is_unavailable() || self.is_conflict()
    }
}

/// Throttling and conflicts as the SDK's retry classifier and the DynamoDB developer guide list them.
fn classify<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Kind {
    match error {
        SdkError::TimeoutError(_) | SdkError::ResponseError(_) => return Kind::Unavailable,
        // A connection that breaks while the answer is awaited is neither I/O nor timeout, but "other, transient".
        SdkError::DispatchFailure(failure)
            if failure.is_io() || failure.is_timeout() || failure.as_other() == Some(ErrorKind::TransientError) =>
        {
            return Kind::Unavailable;
        }
        SdkError::DispatchFailure(_) | SdkError::ConstructionFailure(_) => return Kind::NotSent,
        _ => {}
    }
    let status = error.raw_response().map_or(0, |response| response.status().as_u16());
    match error.code().unwrap_or_default() {
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "Throttling"
        | "RequestLimitExceeded"
        | "LimitExceededException" => Kind::Throttled,
        "TransactionConflictException" | "ReplicatedWriteConflictException" | "TransactionInProgressException" => {
            Kind::Conflict
        }
        "AccessDeniedException"
        | "UnrecognizedClientException"
        | "ExpiredTokenException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException" => Kind::AccessDenied,
        "ResourceNotFoundException" => Kind::TableNotFound,
        _ if status >= 500 => Kind::Unavailable,
        _ => Kind::Refused,
    }
}

/// DynamoDB's code and message, or what the network came to.
fn cause<E: ProvideErrorMetadata + StdError>(error: &SdkError<E>) -> String
where
    SdkError<E>: StdError,
{
    match (error.code(), error.message()) {
        (Some(code), Some(message)) if !message.is_empty() => format!("{code}: {message}"),
        _ => {
            let (mut told, mut cause) = (error.to_string(), error.source());
            while let Some(next) = cause {
                told = format!("{told}: {next}");
                cause = next.source();
            }
            told
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, table, key, attempts, .. } = &*self.0;
        let what = match key.as_str() {
            "" => format!("table `{table}`"),
            key => format!("key `{key}` in table `{table}`"),
        };
        match kind {
            Kind::Held(holder) => write!(f, "{what} is held by {holder}")?,
            Kind::Lost(Some(holder)) => write!(f, "the lock on {what} was lost to {holder}")?,
            Kind::Lost(None) => write!(f, "the lock on {what} was lost: its lease has ended, or its row was deleted")?,
            Kind::Throttled => write!(f, "requests for {what} are throttled")?,
            Kind::Unavailable => write!(f, "no answer for {what}")?,
            Kind::Conflict => write!(f, "{what} is part of a transaction that is under way: try again")?,
            Kind::AccessDenied => write!(
                f,
                "access denied to {what}: allow dynamodb:UpdateItem, dynamodb:GetItem to read a holder, dynamodb:Scan \
                 to list them, and what Locks::create_table names to create the table"
            )?,
            Kind::TableNotFound => write!(
                f,
                "table `{table}` not found in this account and region: create it with the template, with \
                 Locks::create_table or with `lambda-lock create-table`"
            )?,
            Kind::MalformedRow(why) => write!(
                f,
                "the row of {what} is not a lock row ({why}) and was left as it is: use another key or key prefix, or \
                 delete the row"
            )?,
            Kind::Invalid(message) => f.write_str(message)?,
            Kind::NotSent => write!(f, "no request for {what} could be sent: check region, credentials and endpoint")?,
            Kind::Refused => write!(f, "DynamoDB refused the request for {what}")?,
            #[cfg(feature = "idempotency")]
            Kind::Idempotency(refusal) => refusal.describe(&what, f)?,
        }
        if *attempts > 1 {
            write!(f, ", after {attempts} attempts")?;
        }
        Ok(())
    }
}

/// The message and its cause, in one line: `lambda_runtime` logs the errors of handlers by their `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        match self.cause() {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Why protected work failed: because of the lock or the record, or in the handler.
///
/// Lambda sees `LockHeld`, `LockLost`, `LockUnavailable`, `LockThrottled`, `LockConflict`, `LockAccessDenied`,
/// `LockTableNotFound`, `LockMalformedRow`, `LockInvalid`, `LockNotSent` or `LockRefused` as the error's type, with
/// idempotency also `IdempotencyInProgress`, `IdempotencyMismatch`, `IdempotencyUnfinished`, `IdempotencyKeyMissing` or
/// `IdempotencyUnusableResult`, or that of the handler's own error, be it of this run or replayed.
///
/// `lambda_runtime` logs the error of an invocation by its `Debug`, which is that of the error it carries: your own error
/// is logged as your type prints itself.
///
/// ```
/// # use lambda_lock::{Error, HandlerError};
/// fn is_worth_a_retry(error: &HandlerError<std::io::Error>) -> bool {
///     matches!(error, HandlerError::Lock(lock) if lock.is_held())
/// }
/// ```
#[non_exhaustive]
pub enum HandlerError<E> {
    /// The lock could not be acquired, or was lost while the handler ran.
    Lock(Error),
    /// The handler's own error.
    Handler(E),
    /// The error of the first run, stored then and replayed now.
    #[cfg(feature = "idempotency")]
    Replayed(StoredError),
}

impl<E: fmt::Display> fmt::Display for HandlerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Handler(error) => error.fmt(f),
            #[cfg(feature = "idempotency")]
            Self::Replayed(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for HandlerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Handler(error) => error.fmt(f),
            #[cfg(feature = "idempotency")]
            Self::Replayed(error) => error.fmt(f),
        }
    }
}

impl<E: StdError> StdError for HandlerError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Lock(error) => error.source(),
            Self::Handler(error) => error.source(),
            #[cfg(feature = "idempotency")]
            Self::Replayed(_) => None,
        }
    }
}
