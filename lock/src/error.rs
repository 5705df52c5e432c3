//! The error type of all operations.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::dns::ResolveDnsError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_types::retry::ErrorKind as RetryKind;
use humantime::format_duration;

use crate::clock::Offset;
use crate::holder::Holder;
use crate::text::{printable, printable_up_to};

/// The longest text of another program in a message, in bytes: a text of the SDK, or the text of a setting.
const LONGEST_REASON: usize = 1024;

/// The advice for a table without transactions, instead of several keys.
pub(crate) const ONE_KEY_INSTEAD: &str = "lock one key that stands for all of them";

/// The advice to a host whose clock is wrong.
pub(crate) const REMEDY: &str =
    "synchronize the clock with NTP, or set a larger LocksBuilder::clock_skew (--clock-skew) on every host";

pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// Why an operation failed.
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
///
/// The type is opaque: [`kind`](Self::kind) tells errors apart, and three predicates answer what is asked most.
/// [`source`](StdError::source) returns the SDK's error, if the SDK caused it. `Debug` prints the message and, in
/// parentheses, the message of DynamoDB or of the network, because `lambda_runtime` logs errors with `Debug`. No text
/// contains a payload, a result or a digest. Texts are one line: line breaks and other misleading characters of keys and
/// names are escaped, and long values are shortened.
///
/// | predicate | meaning |
/// | --- | --- |
/// | [`is_held`](Self::is_held) | another holder has the key: [`holder`](Self::holder) says who and until when ([`holders`](Self::holders) for several keys) |
/// | [`is_lost`](Self::is_lost) | this lock no longer holds its key |
/// | [`is_retryable`](Self::is_retryable) | a later attempt can succeed, although nobody changes anything |
#[derive(Clone)]
pub struct Error(Box<Inner>);

/// What kind of failure an [`Error`] is.
///
/// ```
/// use lambda_lock::{Error, ErrorKind};
///
/// fn is_overload(error: &Error) -> bool {
///     matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Unavailable)
/// }
/// assert_eq!(ErrorKind::Throttled.to_string(), "throttled");
/// ```
///
/// [`as_str`](Self::as_str) returns its name in metrics and logs. A wait [repeats](Error::is_retryable) what the table says.
///
/// | kind | name | a wait repeats it |
/// | --- | --- | --- |
/// | [`Held`](Self::Held) | `held` | yes |
/// | [`Lost`](Self::Lost) | `lost` | no |
/// | [`RunAgain`](Self::RunAgain) | `run_again` | no |
/// | [`Throttled`](Self::Throttled) | `throttled` | yes |
/// | [`Unavailable`](Self::Unavailable) | `unavailable` | yes |
/// | [`Conflict`](Self::Conflict) | `conflict` | yes |
/// | [`ClockSkew`](Self::ClockSkew) | `clock_skew` | no |
/// | [`AccessDenied`](Self::AccessDenied) | `access_denied` | no |
/// | [`TableNotFound`](Self::TableNotFound) | `table_not_found` | no |
/// | [`MalformedRow`](Self::MalformedRow) | `malformed_row` | no |
/// | [`WrongKind`](Self::WrongKind) | `wrong_kind` | no |
/// | [`Invalid`](Self::Invalid) | `invalid` | no |
/// | [`NotSent`](Self::NotSent) | `not_sent` | no |
/// | [`Rejected`](Self::Rejected) | `rejected` | no |
/// | [`InProgress`](Self::InProgress) | `in_progress` | yes |
/// | [`Unfinished`](Self::Unfinished) | `unfinished` | no |
/// | [`Mismatch`](Self::Mismatch) | `mismatch` | no |
/// | [`KeyMissing`](Self::KeyMissing) | `key_missing` | no |
/// | [`UnusableResult`](Self::UnusableResult) | `unusable_result` | no |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another holder has the key, a free key is left to other waiters, or a [rate](crate::Rate) lets no call pass:
    /// [`Error::holder`] says who and until when.
    Held,
    /// This lock no longer holds its key: its lease ended, or another holder has the key.
    Lost,
    /// The work is done, and was to run once more, but there is too little time: the retry of this invocation runs it
    /// ([`LockLayer::coalesce`](crate::LockLayer::coalesce)).
    RunAgain,
    /// DynamoDB throttled the request and all retries of the SDK.
    Throttled,
    /// Neither the request nor a retry of the SDK got a usable answer: connection, timeout, server error.
    Unavailable,
    /// Another request on the row is in progress: a transaction, such as the holder's with
    /// [`condition_check`](crate::Lock::condition_check) or an acquire of [several keys](crate::Locks::acquire_all); or a write
    /// of another region, in a table with
    /// [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency).
    Conflict,
    /// This host's clock differs from DynamoDB's by more than the [clock skew](crate::LocksBuilder::clock_skew), so a lease
    /// means nothing here. The message says by how much, and in which direction. An acquire has taken no key from its holder, but
    /// may keep [several keys](crate::Locks::acquire_all) from all for its lease. A renewal has lost the lock, and a call of a rate
    /// did not pass.
    ClockSkew,
    /// The caller lacks an IAM action for this table or key, or AWS does not accept its credentials: the message says which.
    AccessDenied,
    /// The table does not exist in this account and region, or it is still being created.
    TableNotFound,
    /// The row under this key is not a lock row. It was not modified.
    MalformedRow,
    /// The key is that of a [semaphore](crate::Locks::semaphore) or a [rate](crate::Rate), and a lock or a record was to be
    /// acquired, or the reverse.
    /// The row was not modified. It keeps its kind until DynamoDB's TTL deletes it.
    WrongKind,
    /// A setting or an argument is out of bounds. Nothing was sent.
    Invalid,
    /// The client could not send the request: it has no credentials or no region, for example, or the server's certificate is
    /// not trusted.
    NotSent,
    /// DynamoDB rejected the request for another reason, which the message has; or another server than DynamoDB answered it.
    Rejected,
    /// A run for this idempotency key is in progress: [`Error::holder`] says whose it is, and when its lease ends at the
    /// latest. Feature `idempotency`.
    InProgress,
    /// A run for this idempotency key started but did not finish, and `OnUnfinished::Reject` is set. Feature `idempotency`.
    Unfinished,
    /// The idempotency key was used with another payload. Feature `idempotency`.
    Mismatch,
    /// The input has no idempotency key, and `OnMissingKey::Reject` is set. Feature `idempotency`.
    KeyMissing,
    /// A result cannot be stored, or a stored result cannot be read. Feature `idempotency`.
    UnusableResult,
}

impl ErrorKind {
    /// Returns the stable name for metrics and logs, such as `table_not_found`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.facts().0
    }

    /// The name in metrics and logs, the error type of Lambda, and whether a later attempt can succeed.
    const fn facts(self) -> (&'static str, &'static str, bool) {
        match self {
            Self::Held => ("held", "LockHeld", true),
            Self::Lost => ("lost", "LockLost", false),
            Self::RunAgain => ("run_again", "LockRunAgain", false),
            Self::Throttled => ("throttled", "LockThrottled", true),
            Self::Unavailable => ("unavailable", "LockUnavailable", true),
            Self::Conflict => ("conflict", "LockConflict", true),
            Self::ClockSkew => ("clock_skew", "LockClockSkew", false),
            Self::AccessDenied => ("access_denied", "LockAccessDenied", false),
            Self::TableNotFound => ("table_not_found", "LockTableNotFound", false),
            Self::MalformedRow => ("malformed_row", "LockMalformedRow", false),
            Self::WrongKind => ("wrong_kind", "LockWrongKind", false),
            Self::Invalid => ("invalid", "LockInvalid", false),
            Self::NotSent => ("not_sent", "LockNotSent", false),
            Self::Rejected => ("rejected", "LockRejected", false),
            Self::InProgress => ("in_progress", "IdempotencyInProgress", true),
            Self::Unfinished => ("unfinished", "IdempotencyUnfinished", false),
            Self::Mismatch => ("mismatch", "IdempotencyMismatch", false),
            Self::KeyMissing => ("key_missing", "IdempotencyKeyMissing", false),
            Self::UnusableResult => ("unusable_result", "IdempotencyUnusableResult", false),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The table that an error names, and the settings of its keys.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place<'a> {
    pub(crate) table: &'a str,
    pub(crate) key_prefix: &'a str,
    pub(crate) partition_key: &'a str,
    pub(crate) sort_key: Option<&'a str>,
}

impl Place<'_> {
    /// Returns the key of the row.
    pub(crate) fn row_key(&self, key: &str) -> String {
        [self.key_prefix, key].concat()
    }

    /// Returns the names of the keys that the settings give the table.
    fn key_names(&self) -> String {
        match self.sort_key {
            Some(sort_key) => format!("`{}` and `{}`", printable(self.partition_key), printable(sort_key)),
            None => format!("only `{}`", printable(self.partition_key)),
        }
    }

    /// Returns the key of the row for people.
    pub(crate) fn printable_key(&self, key: &str) -> String {
        let key = self.row_key(key);
        let escaped = match printable(&key) {
            Cow::Borrowed(_) => None,
            Cow::Owned(escaped) => Some(escaped),
        };
        escaped.unwrap_or(key)
    }
}

/// An error without a key prefix.
impl<'a> From<&'a str> for Place<'a> {
    fn from(table: &'a str) -> Self {
        Self { table, ..Self::default() }
    }
}

#[derive(Clone)]
struct Inner {
    cause: Cause,
    table: String,
    key_prefix: String,
    /// The row's key, or empty.
    key: String,
    attempts: u32,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// The message of the source, for people.
    source_message: Option<String>,
    /// The other keys of the operation, with their holders if they are known.
    others: Vec<(String, Option<Holder>)>,
}

/// An [`ErrorKind`] with its details.
#[derive(Clone)]
pub(crate) enum Cause {
    Held(Holder),
    Lost(Option<Holder>),
    #[cfg_attr(not(feature = "lambda"), allow(dead_code, reason = "only a layer runs once more"))]
    RunAgain,
    Throttled,
    Unavailable,
    Conflict,
    /// How far this host's clock is off, which is more than the clock skew, the second value.
    ClockSkew(Offset, Duration),
    AccessDenied,
    /// AWS does not accept the credentials: they have expired, are wrong, or were signed by a wrong clock.
    CredentialsRefused,
    TableNotFound,
    /// The name of DynamoDB's host has no address: a wrong region, or no network.
    HostNotFound,
    /// The client and the server could not agree on TLS: an untrusted certificate, or a server without TLS.
    TlsFailed,
    /// A server that is not DynamoDB answered, with this HTTP status.
    NotDynamoDb(u16),
    /// The table has other keys than these, which the settings give it.
    OtherKeys(String),
    MalformedRow(String),
    /// The row belongs to a lock or a record, and the request was for a semaphore, or the reverse.
    WrongKind {
        is: &'static str,
        not: &'static str,
    },
    Invalid(String),
    /// The client could not send a request at all: no credentials, no region.
    NotSent,
    Rejected,
    /// A refusal does not have the row that has refused the request.
    RowNotReturned,
    /// A table with multi-Region strong consistency rejects every transaction.
    TransactionRejected,
    InProgress(Holder),
    Unfinished(Holder),
    Mismatch(Holder),
    KeyMissing,
    UnusableResult(String),
}

impl Error {
    /// Creates the error of a key, or of the whole table if the key is empty.
    pub(crate) fn new<'a>(cause: Cause, place: impl Into<Place<'a>>, key: &str) -> Self {
        let place = place.into();
        let key = if key.is_empty() { String::new() } else { place.row_key(key) };
        Self(Box::new(Inner {
            cause,
            table: place.table.to_owned(),
            key_prefix: place.key_prefix.to_owned(),
            key,
            attempts: 1,
            source: None,
            source_message: None,
            others: Vec::new(),
        }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Cause::Invalid(message.into()), "", "")
    }

    /// The error of a setting `per_tenant` outside of tenant isolation.
    #[cfg(feature = "lambda")]
    pub(crate) fn no_tenant() -> Self {
        Self::invalid(
            "the invocation has no tenant id: create the function with tenant isolation and invoke it with a tenant id, or \
             remove `per_tenant`",
        )
    }

    /// The error of a middleware around the entry of a durable function.
    #[cfg(feature = "lambda")]
    pub(crate) fn durable_execution() -> Self {
        Self::invalid(
            "the event has a `DurableExecutionArn` and a `CheckpointToken`: an invocation of a durable execution returns at \
             each suspension, long before the work is done: take the lock with the crate `lambda-lock-durable`, or call \
             `Idempotency::run` in a step",
        )
    }

    pub(crate) fn with_source(mut self, source: impl Into<Source>) -> Self {
        let source: Source = source.into();
        self.0.source_message = Some(printable_up_to(&source.to_string(), LONGEST_REASON).into_owned());
        self.0.source = Some(Arc::from(source));
        self
    }

    /// Creates the error of keys that others hold. The key whose lease ends last comes first.
    pub(crate) fn held_by(holders: Vec<(String, Holder)>, place: Place<'_>) -> Self {
        let holders = holders.into_iter().map(|(key, holder)| (key, Some(holder))).collect();
        Self::of_holders(|holder| holder.map_or(Cause::Conflict, Cause::Held), holders, place)
    }

    /// Creates the error of keys that were lost, with their present holders if others hold them.
    pub(crate) fn lost_to(holders: Vec<(String, Option<Holder>)>, place: Place<'_>) -> Self {
        Self::of_holders(Cause::Lost, holders, place)
    }

    fn of_holders(
        cause: fn(Option<Holder>) -> Cause,
        mut holders: Vec<(String, Option<Holder>)>,
        place: Place<'_>,
    ) -> Self {
        holders.sort_by_key(|(_, holder)| Reverse(holder.as_ref().map(Holder::end)));
        let mut holders = holders.into_iter();
        let (key, holder) = holders.next().unwrap_or_default();
        let mut this = Self::new(cause(holder), place, &key);
        this.0.others = holders.map(|(key, holder)| (place.row_key(&key), holder)).collect();
        this
    }

    /// Returns the error of an identity that does not hold the key. A row that was released, or whose lease has ended, names the
    /// identity's own last holder.
    pub(crate) fn into_lost(mut self) -> Self {
        if let Cause::Held(holder) = self.0.cause {
            let is_of_others = holder.is_current() || holder.operator().is_some();
            self.0.cause = Cause::Lost(is_of_others.then_some(holder));
        }
        self
    }

    pub(crate) fn with_cause(mut self, cause: Cause) -> Self {
        self.0.cause = cause;
        self
    }

    /// Adds the other keys of an operation on several keys.
    pub(crate) fn with_others<'a>(mut self, keys: impl IntoIterator<Item = &'a str>) -> Self {
        let Inner { others, key_prefix, .. } = &mut *self.0;
        *others = keys.into_iter().map(|key| ([key_prefix, key].concat(), None)).collect();
        self
    }

    pub(crate) fn with_attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = attempts;
        self
    }

    pub(crate) fn from_sdk<'a, E>(error: SdkError<E>, place: impl Into<Place<'a>>, key: &str) -> Self
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let (message, place) = (message_of(&error), place.into());
        let mut this = Self::new(classify(&error, place), place, key).with_source(error);
        this.0.source_message = Some(printable_up_to(&message, LONGEST_REASON).into_owned());
        this
    }

    /// Returns what kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &self.0.cause {
            Cause::Held(_) => ErrorKind::Held,
            Cause::Lost(_) => ErrorKind::Lost,
            Cause::RunAgain => ErrorKind::RunAgain,
            Cause::Throttled => ErrorKind::Throttled,
            Cause::Unavailable | Cause::HostNotFound => ErrorKind::Unavailable,
            Cause::Conflict => ErrorKind::Conflict,
            Cause::ClockSkew(..) => ErrorKind::ClockSkew,
            Cause::AccessDenied | Cause::CredentialsRefused => ErrorKind::AccessDenied,
            Cause::TableNotFound => ErrorKind::TableNotFound,
            Cause::MalformedRow(_) => ErrorKind::MalformedRow,
            Cause::WrongKind { .. } => ErrorKind::WrongKind,
            Cause::Invalid(_) => ErrorKind::Invalid,
            Cause::NotSent | Cause::TlsFailed => ErrorKind::NotSent,
            Cause::Rejected
            | Cause::RowNotReturned
            | Cause::TransactionRejected
            | Cause::OtherKeys(_)
            | Cause::NotDynamoDb(_) => ErrorKind::Rejected,
            Cause::InProgress(_) => ErrorKind::InProgress,
            Cause::Unfinished(_) => ErrorKind::Unfinished,
            Cause::Mismatch(_) => ErrorKind::Mismatch,
            Cause::KeyMissing => ErrorKind::KeyMissing,
            Cause::UnusableResult(_) => ErrorKind::UnusableResult,
        }
    }

    /// Returns `true` if another holder has the key.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.kind() == ErrorKind::Held
    }

    /// Returns `true` if this lock no longer holds its key: its lease ended, or another holder has the key.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Returns `true` if a later attempt can succeed without a change by the user: another holder or run has the key, or
    /// DynamoDB throttled the request, did not answer it, or was busy with another request on the row. These are the errors
    /// after which a [wait](crate::Acquire::wait) tries again.
    ///
    /// After any other error, a retry fails for the same reason, or has to be another operation: a lost lock has to be
    /// acquired again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind().facts().2
    }

    /// Returns the stable name of the error in a workflow, such as `LockHeld`: the `errorType` that Lambda reports. `Retry` and
    /// `Catch` of a state machine match it.
    ///
    /// | name | kinds |
    /// | --- | --- |
    /// | `IdempotencyInProgress`, `IdempotencyUnfinished`, `IdempotencyMismatch`, `IdempotencyKeyMissing`, `IdempotencyUnusableResult` | the kind of this name |
    /// | `Lock`, followed by the kind: `LockHeld`, `LockLost`, `LockThrottled` and so on | the others |
    #[must_use]
    pub fn error_type(&self) -> &'static str {
        self.kind().facts().1
    }

    /// Returns the key of the operation as it is in the row: with the [prefix](crate::LocksBuilder::key_prefix) of the
    /// `Locks`. Empty for an error in the settings. Of
    /// [several keys](crate::Locks::acquire_all), returns the key with the [`holder`](Self::holder), or the first key that
    /// failed; the message names all.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// Returns the name of the table. Empty for an error in the settings.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.0.table
    }

    /// Returns who holds the key, for an error that [`is_held`](Self::is_held); for an error that
    /// [`is_lost`](Self::is_lost), who holds it now, or the operator who ended it, if the row names one; and whose run it is,
    /// for a record of idempotency that refuses this run.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match &self.0.cause {
            Cause::Held(holder) | Cause::InProgress(holder) | Cause::Unfinished(holder) | Cause::Mismatch(holder) => {
                Some(holder)
            }
            Cause::Lost(holder) => holder.as_ref(),
            _ => None,
        }
    }

    /// Returns the keys that are in the way with their holders, for an error that [`is_held`](Self::is_held), and the keys
    /// that others hold now, for an error that [`is_lost`](Self::is_lost). The key whose lease ends last comes first: it is the
    /// key of [`key`](Self::key) and [`holder`](Self::holder). [Several keys](crate::Locks::acquire_all) can have more than one
    /// holder.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// if let Err(error) = locks.acquire_all(["account#1", "account#2"]).await {
    ///     for (key, holder) in error.holders() {
    ///         println!("{key} is held by {holder}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn holders(&self) -> impl Iterator<Item = (&str, &Holder)> {
        let others = self.0.others.iter().filter_map(|(key, holder)| Some((key.as_str(), holder.as_ref()?)));
        self.holder().map(|holder| (self.key(), holder)).into_iter().chain(others)
    }

    /// Returns how many attempts the acquire made, without the retries of the SDK.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Returns the message of DynamoDB or of the network.
    pub(crate) fn source_message(&self) -> Option<&str> {
        self.0.source_message.as_deref()
    }

    /// Returns `true` if the error's own text has the message of DynamoDB, because the remedy depends on it.
    fn names_source(&self) -> bool {
        matches!(self.0.cause, Cause::Rejected | Cause::TransactionRejected | Cause::OtherKeys(_))
    }

    /// Returns `true` if DynamoDB answers requests, so that another request is likely to succeed.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(
            self.0.cause,
            Cause::Throttled
                | Cause::Unavailable
                | Cause::HostNotFound
                | Cause::NotSent
                | Cause::TlsFailed
                | Cause::NotDynamoDb(_)
        )
    }

    /// Returns the error of a transaction that DynamoDB calls invalid. The keys of the table may be the reason.
    pub(crate) fn into_rejected_transaction(mut self) -> Self {
        if matches!(self.0.cause, Cause::Rejected) {
            self.0.cause = Cause::TransactionRejected;
        }
        self
    }

    /// Returns `true` if the credentials are valid, but lack the permission.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.0.cause, Cause::AccessDenied)
    }

    /// Returns `true` if DynamoDB did not apply the last attempt because of other requests: it throttles, or another request
    /// on the row is in progress.
    pub(crate) fn is_prevented(&self) -> bool {
        matches!(self.0.cause, Cause::Throttled | Cause::Conflict)
    }
}

/// Whether an error code of DynamoDB asks to slow down.
pub(crate) fn is_throttle(code: &str) -> bool {
    matches!(
        code,
        "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "Throttling"
            | "RequestLimitExceeded"
            | "LimitExceededException"
    )
}

/// Whether an error code of DynamoDB says that another request changes the row at this moment: a transaction, or a write of
/// another region. Of both, DynamoDB applies nothing.
pub(crate) fn is_conflict(code: &str) -> bool {
    matches!(
        code,
        "TransactionConflictException" | "ReplicatedWriteConflictException" | "TransactionInProgressException"
    )
}

/// Whether an error code of AWS says that the credentials are wrong or too old, or were used by a wrong clock. The other code
/// of a refusal, `AccessDeniedException`, is about permissions.
fn is_of_credentials(code: &str) -> bool {
    matches!(
        code,
        "UnrecognizedClientException"
            | "InvalidClientTokenId"
            | "InvalidAccessKeyId"
            | "ExpiredTokenException"
            | "ExpiredToken"
            | "InvalidSignatureException"
            | "SignatureDoesNotMatch"
            | "IncompleteSignatureException"
            | "IncompleteSignature"
            | "MissingAuthenticationTokenException"
            | "MissingAuthenticationToken"
            | "RequestExpired"
    )
}

/// Returns why DynamoDB calls a request invalid, by its message.
pub(crate) fn cause_of_invalid(message: Option<&str>, place: Place<'_>) -> Cause {
    /// DynamoDB's text, and the texts of DynamoDB Local about an update and about a read.
    const OTHER_KEYS: [&str; 3] = [
        "does not match the schema",
        "required keys was not given a value",
        "number of conditions on the keys is invalid",
    ];
    if message.is_some_and(|message| OTHER_KEYS.iter().any(|text| message.contains(text))) {
        Cause::OtherKeys(place.key_names())
    } else {
        Cause::Rejected
    }
}

/// Classifies throttling and conflicts as the SDK's retry classifier and the DynamoDB developer guide do.
fn classify<E>(error: &SdkError<E>, place: Place<'_>) -> Cause
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match error {
        SdkError::TimeoutError(_) => return Cause::Unavailable,
        SdkError::ResponseError(answer) => return cause_of_unreadable(answer.raw()),
        SdkError::DispatchFailure(_) if has_source(error, is_of_tls) => return Cause::TlsFailed,
        SdkError::DispatchFailure(_) if has_source(error, <dyn StdError + 'static>::is::<ResolveDnsError>) => {
            return Cause::HostNotFound;
        }
        // A connection that breaks while the client waits for the answer is "other, transient", not I/O or timeout.
        SdkError::DispatchFailure(failure)
            if failure.is_io() || failure.is_timeout() || failure.as_other() == Some(RetryKind::TransientError) =>
        {
            return Cause::Unavailable;
        }
        SdkError::DispatchFailure(_) | SdkError::ConstructionFailure(_) => return Cause::NotSent,
        _ => {}
    }
    let status = error.raw_response().map_or(0, |response| response.status().as_u16());
    match error.code().unwrap_or_default() {
        code if is_throttle(code) => Cause::Throttled,
        code if is_conflict(code) => Cause::Conflict,
        code if is_of_credentials(code) => Cause::CredentialsRefused,
        "AccessDeniedException" => Cause::AccessDenied,
        "ResourceNotFoundException" => Cause::TableNotFound,
        "ValidationException" => cause_of_invalid(error.message(), place),
        // A file server, for example, does not implement the method of the request.
        "" if status == 501 => Cause::NotDynamoDb(status),
        _ if status >= 500 => Cause::Unavailable,
        // DynamoDB names each of its errors, and knows each of our operations.
        "" | "UnknownOperationException" => Cause::NotDynamoDb(status),
        _ => Cause::Rejected,
    }
}

/// Returns the cause of an answer that the SDK cannot read. DynamoDB's are JSON, which may be cut off, and never HTML or XML.
fn cause_of_unreadable(answer: &HttpResponse) -> Cause {
    let status = answer.status().as_u16();
    let body = answer.body().bytes().unwrap_or_default().trim_ascii_start();
    if status < 500 && body.starts_with(b"<") { Cause::NotDynamoDb(status) } else { Cause::Unavailable }
}

/// Whether TLS failed for a reason that another attempt meets again. A connection that breaks meanwhile is none.
fn is_of_tls(source: &(dyn StdError + 'static)) -> bool {
    use rustls::Error::{
        InvalidCertificate, InvalidMessage, NoCertificatesPresented, PeerIncompatible, UnsupportedNameType,
    };
    matches!(
        source.downcast_ref::<rustls::Error>(),
        Some(
            InvalidCertificate(_)
                | InvalidMessage(_)
                | NoCertificatesPresented
                | PeerIncompatible(_)
                | UnsupportedNameType
        )
    )
}

/// Whether this holds for the error or one of its sources. An I/O error passes over the error inside, and has its source.
fn has_source(error: &(dyn StdError + 'static), is_wanted: impl Fn(&(dyn StdError + 'static)) -> bool) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if is_wanted(error) {
            return true;
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inside) => Some(inside as &(dyn StdError + 'static)),
            None => error.source(),
        };
    }
    false
}

/// Returns the service's code and message, or the chain of errors that ends with the network's.
pub(crate) fn message_of<E: ProvideErrorMetadata + StdError>(error: &SdkError<E>) -> String
where
    SdkError<E>: StdError,
{
    match (error.code(), error.message()) {
        (Some(code), Some(message)) if !message.is_empty() => format!("{code}: {message}"),
        _ => {
            let (mut chain, mut source) = (error.to_string(), error.source());
            while let Some(next) = source {
                chain = format!("{chain}: {next}");
                source = next.source();
            }
            chain
        }
    }
}

/// Says how far this host's clock is off.
fn explain_clock(f: &mut fmt::Formatter<'_>, what: &str, offset: Offset, skew: Duration) -> fmt::Result {
    let skew = format_duration(skew);
    write!(
        f,
        "this host's clock is {offset}, more than the clock skew of {skew}, so no lock on {what} holds here: {REMEDY}"
    )
}

/// Says why an acquire or a call was refused.
fn explain_refusal(f: &mut fmt::Formatter<'_>, what: &str, holder: &Holder) -> fmt::Result {
    if holder.is_rate() {
        let until = humantime::format_rfc3339_millis(holder.until());
        write!(f, "the rate of {what} is used up until {until}: call again then, or wait longer")
    } else if holder.is_current() {
        write!(f, "{what} is held by {holder}")
    } else {
        write!(f, "{what} is left to other waiters; the last holder was {holder}")
    }
}

/// Says how a lock was lost, as far as its row shows it.
fn loss(to: Option<&Holder>) -> String {
    match (to, to.and_then(Holder::operator)) {
        (_, Some(operator)) => format!(", because an operator ended it ({})", printable(operator)),
        (Some(holder), None) => format!(" to {holder}"),
        (None, None) => ": its lease ended, it was freed, or its row was deleted".to_owned(),
    }
}

impl Error {
    /// Writes what failed, why and what to do.
    fn explain(&self, f: &mut fmt::Formatter<'_>, what: &str, tries: &str) -> fmt::Result {
        let Inner { cause, table, .. } = &*self.0;
        let table = printable(table);
        let reason = |text| printable_up_to(text, LONGEST_REASON);
        let said = self.source_message().map(|message| format!(" ({message})")).unwrap_or_default();
        match cause {
            Cause::Held(holder) => explain_refusal(f, what, holder),
            Cause::Lost(holder) => write!(f, "the lock on {what} was lost{}", loss(holder.as_ref())),
            Cause::RunAgain => write!(
                f,
                "the work of {what} is done, but was to run once more, and too little time is left: retry the invocation"
            ),
            Cause::Throttled => write!(
                f,
                "requests for {what} are throttled{tries}: retry later, or raise the capacity of the table or the account; \
                 if only this key is throttled, ask for it less often"
            ),
            Cause::Unavailable => write!(f, "DynamoDB did not answer for {what}{tries}: retry"),
            Cause::Conflict => write!(f, "other requests change {what} at the same time{tries}: retry"),
            Cause::ClockSkew(offset, skew) => explain_clock(f, what, *offset, *skew),
            Cause::AccessDenied => write!(
                f,
                "access denied to {what}: allow dynamodb:UpdateItem (and dynamodb:GetItem to read a holder, \
                 dynamodb:Scan to list holders, the actions of Locks::create_table to create the table)"
            ),
            Cause::CredentialsRefused => write!(
                f,
                "AWS does not accept the credentials for {what}: renew them, and check this host's clock, and that the \
                 region is enabled in the account"
            ),
            Cause::TableNotFound => write!(
                f,
                "table `{table}` not found in this account and region: create it with the template, with \
                 Locks::create_table or with `lambda-lock create-table`, or wait while it is being created"
            ),
            Cause::HostNotFound => write!(
                f,
                "DynamoDB did not answer for {what}{tries}, because its host was not found: check the region, the endpoint \
                 and the network"
            ),
            Cause::TlsFailed => write!(
                f,
                "no request for {what} was sent, because TLS failed: name the certificates of a private authority or a \
                 proxy in AWS_CA_BUNDLE, install those of the system, or begin an endpoint without TLS with `http://`"
            ),
            Cause::NotDynamoDb(status) => write!(
                f,
                "what answered for {what} is not DynamoDB (HTTP status {status}): check the endpoint (AWS_ENDPOINT_URL, \
                 AWS_ENDPOINT_URL_DYNAMODB) and the proxy"
            ),
            Cause::OtherKeys(keys) => write!(
                f,
                "the settings use {keys} as the key for {what}, but the table has another key{said}: set \
                 LocksBuilder::partition_key (--partition-key) and sort_key (--sort-key) to the keys of the table, which must \
                 be strings, or use another table"
            ),
            Cause::MalformedRow(why) => write!(
                f,
                "the row under {what} is not a lock row ({}); it was not modified: use another key or key prefix",
                reason(why)
            ),
            Cause::WrongKind { is, not } => write!(f, "{what} is {is}, not {not}: use another key"),
            Cause::Invalid(message) => f.write_str(&reason(message)),
            Cause::NotSent => write!(f, "no request for {what} was sent: check region, credentials and endpoint"),
            Cause::Rejected => {
                write!(f, "DynamoDB rejected the request for {what}{said}: correct what its message names")
            }
            Cause::RowNotReturned => write!(
                f,
                "DynamoDB refused a write for {what}, and its answer has no item: this endpoint does not support \
                 ReturnValuesOnConditionCheckFailure, so nobody can see who holds a key: use another endpoint, such as DynamoDB \
                 Local or DynamoDB itself"
            ),
            Cause::TransactionRejected => write!(
                f,
                "DynamoDB rejected the transaction on {what}{said}: correct what its message names; a table with multi-Region strong \
                 consistency has no transactions: {ONE_KEY_INSTEAD}, and set LocksBuilder::multi_region_strong_consistency"
            ),
            Cause::InProgress(holder) => write!(f, "{what} is in progress: {holder}"),
            Cause::Unfinished(holder) => write!(
                f,
                "a run for {what} did not finish and may have done its work ({}): find out whether it did; then store its \
                 result (`lambda-lock complete`, Locks::force_complete), or allow another run (`lambda-lock release`, \
                 Locks::force_release)",
                printable(holder.name().unwrap_or("by an unnamed holder")),
            ),
            Cause::Mismatch(_) => write!(
                f,
                "{what} was used with another payload, or a deployment has changed what is validated: use another key only for \
                 other work"
            ),
            Cause::KeyMissing => {
                let ways = "send one, take another part of the input, or use OnMissingKey::RunUnprotected (`event_id` \
                    finds none in S3's events of tags, ACLs and restores: let S3 not send them)";
                write!(f, "an input for {what} has no idempotency key: {ways}")
            }
            Cause::UnusableResult(why) => write!(f, "{what}: {}", reason(why)),
        }
    }
}

/// What failed, on which key and table, why, and what to do.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { cause, table, key, attempts, others, .. } = &*self.0;
        let table = printable(table);
        let names_holders = self.holder().is_some();
        let what = match (key.as_str(), others.as_slice()) {
            ("", _) => format!("table `{table}`"),
            (key, []) => format!("key `{}` in table `{table}`", printable(key)),
            (key, _) if names_holders => format!("key `{}` in table `{table}`", printable(key)),
            (key, others) => {
                let keys: Vec<_> = others.iter().map(|(other, _)| format!("`{}`", printable(other))).collect();
                format!("keys `{}`, {} in table `{table}`", printable(key), keys.join(", "))
            }
        };
        let tries = if *attempts > 1 { format!(", after {attempts} attempts") } else { String::new() };
        self.explain(f, &what, &tries)?;
        for (key, holder) in others.iter().filter(|_| names_holders) {
            let key = printable(key);
            match holder {
                Some(holder) if self.is_held() => write!(f, "; key `{key}` is held by {holder}")?,
                holder => write!(f, "; the lock on key `{key}` was lost{}", loss(holder.as_ref()))?,
            }
        }
        match cause {
            Cause::Throttled | Cause::Unavailable | Cause::HostNotFound | Cause::Conflict => Ok(()),
            _ => f.write_str(&tries),
        }
    }
}

/// Prints the message and its cause in one line, because `lambda_runtime` logs the errors of handlers with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        match self.source_message() {
            Some(message) if !self.names_source() => write!(f, " ({message})"),
            _ => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
