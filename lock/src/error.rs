//! The error type of all operations.

use std::cmp::Reverse;
use std::error::Error as StdError;
use std::fmt;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_types::retry::ErrorKind;

use crate::holder::Holder;
use crate::text::{printable, printable_up_to};

/// The longest text of another program in a message, in bytes: the SDK's, or that of a setting.
const LONGEST_REASON: usize = 1024;

pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// Why an operation failed.
///
/// The type is opaque; its `is_…` methods tell errors apart. [`source`](StdError::source) returns the SDK's error, if the
/// SDK caused it. `Debug` prints the message and, in parentheses, the message of DynamoDB or of the network, because
/// `lambda_runtime` logs errors with `Debug`. No text contains a payload, a result or a digest. Texts are one line: line
/// breaks and other misleading characters of keys and names are escaped, and long values are shortened.
///
/// | predicate | meaning | a wait retries it |
/// | --- | --- | --- |
/// | [`is_held`](Self::is_held) | another holder has the key: [`holder`](Self::holder) says who and until when ([`holders`](Self::holders) for several keys) | yes |
/// | [`is_lost`](Self::is_lost) | this lock no longer holds its key | no |
/// | [`is_throttled`](Self::is_throttled) | DynamoDB throttles requests | yes |
/// | [`is_unavailable`](Self::is_unavailable) | no usable answer: connection, timeout, server error | yes |
/// | [`is_conflict`](Self::is_conflict) | a transaction on the row is in progress | yes |
/// | [`is_access_denied`](Self::is_access_denied) | an IAM action is missing | no |
/// | [`is_table_not_found`](Self::is_table_not_found) | the table does not exist in this account and region | no |
/// | [`is_malformed_row`](Self::is_malformed_row) | the row under this key is not a lock row; it was not modified | no |
/// | [`is_ticket_foreign`](Self::is_ticket_foreign) | the ticket belongs to another table, key prefix or sort key; nothing was sent | no |
/// | [`is_ticket_ended`](Self::is_ticket_ended) | the lease of the ticket's lock has ended; also [`is_lost`](Self::is_lost) | no |
/// | [`is_ticket_released`](Self::is_ticket_released) | the ticket's lock was released; also [`is_lost`](Self::is_lost) | no |
/// | [`is_ticket_used`](Self::is_ticket_used) | the ticket's lock was resumed before | no |
/// | [`is_ticket_unknown`](Self::is_ticket_unknown) | no acquisition matches the ticket: it is forged, or its row was deleted | no |
/// | [`is_wrong_kind`](Self::is_wrong_kind) | the key is a semaphore instead of a lock, or the reverse | no |
/// | [`is_invalid`](Self::is_invalid) | a setting or an argument is out of bounds | no |
/// | `is_in_progress` | a run for this idempotency key is in progress: [`holder`](Self::holder) says whose | yes |
/// | `is_unfinished` | a run for this idempotency key started but did not finish, and must not run again | no |
/// | `is_mismatch` | the idempotency key was used with another payload | no |
/// | `is_key_missing` | the input has no idempotency key | no |
/// | `is_unusable_result` | a result cannot be stored, or a stored result cannot be read | no |
///
/// If no predicate is true, the client could not send the request (it has no credentials, for example), or DynamoDB
/// rejected it for another reason. `source` has the cause.
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
    /// The message of the source, for people.
    cause: Option<String>,
    /// The other keys of the operation, with their holders if they are known.
    others: Vec<(String, Option<Holder>)>,
}

/// Why a ticket was refused.
pub(crate) enum TicketFault {
    /// The table, key prefix or sort key that the ticket names, and the one of the `Locks`.
    Foreign(String),
    Ended,
    Released,
    Used,
    Unknown,
}

pub(crate) enum Kind {
    Held(Holder),
    Lost(Option<Holder>),
    Ticket(TicketFault),
    Throttled,
    Unavailable,
    Conflict,
    AccessDenied,
    TableNotFound,
    MalformedRow(String),
    /// The row belongs to a lock or a record, and the request was for a semaphore, or the reverse.
    WrongUse {
        is: &'static str,
        not: &'static str,
    },
    Invalid(String),
    /// The client could not send a request at all: no credentials, no region, a wrong certificate.
    NotSent,
    Rejected,
    /// Not an error for the caller, who gets the stored result.
    #[cfg(feature = "idempotency")]
    Completed(Holder),
    #[cfg(feature = "idempotency")]
    InProgress(Holder),
    #[cfg(feature = "idempotency")]
    Unfinished(Holder),
    #[cfg(feature = "idempotency")]
    Mismatch(Holder),
    #[cfg(feature = "idempotency")]
    KeyMissing,
    #[cfg(feature = "idempotency")]
    UnusableResult(String),
}

impl Error {
    pub(crate) fn new(kind: Kind, table: &str, key: &str) -> Self {
        let (table, key) = (table.to_owned(), key.to_owned());
        Self(Box::new(Inner { kind, table, key, attempts: 1, source: None, cause: None, others: Vec::new() }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid(message.into()), "", "")
    }

    /// The error of a setting `per_tenant` outside of tenant isolation.
    #[cfg(feature = "idempotency")]
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
             each suspension, long before the work is done: hold a lock by a ticket from the first step to the last, or call \
             `Idempotency::run` in a step",
        )
    }

    pub(crate) fn with_source(mut self, source: impl Into<Source>) -> Self {
        let source = source.into();
        self.0.cause = Some(printable_up_to(&source.to_string(), LONGEST_REASON).into_owned());
        self.0.source = Some(source);
        self
    }

    /// Creates the error of keys that others hold. The one whose lease ends last comes first.
    pub(crate) fn held_by(holders: Vec<(String, Holder)>, table: &str) -> Self {
        let holders = holders.into_iter().map(|(key, holder)| (key, Some(holder))).collect();
        Self::of_holders(|holder| holder.map_or(Kind::Conflict, Kind::Held), holders, table)
    }

    /// Creates the error of keys that were lost, with their present holders if others hold them.
    pub(crate) fn lost_to(holders: Vec<(String, Option<Holder>)>, table: &str) -> Self {
        Self::of_holders(Kind::Lost, holders, table)
    }

    fn of_holders(kind: fn(Option<Holder>) -> Kind, mut holders: Vec<(String, Option<Holder>)>, table: &str) -> Self {
        holders.sort_by_key(|(_, holder)| Reverse(holder.as_ref().map(|holder| holder.until)));
        let mut holders = holders.into_iter();
        let (key, holder) = holders.next().unwrap_or_default();
        let mut this = Self::new(kind(holder), table, &key);
        this.0.others = holders.collect();
        this
    }

    pub(crate) fn with_kind(mut self, kind: Kind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Adds the other keys of an operation on several keys.
    pub(crate) fn with_others<'a>(mut self, keys: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.others = keys.into_iter().map(|key| (key.to_owned(), None)).collect();
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
        this.0.cause = Some(printable_up_to(&cause, LONGEST_REASON).into_owned());
        this
    }

    /// Returns `true` if another holder has the key.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.0.kind, Kind::Held(_))
    }

    /// Returns `true` if this lock no longer holds its key: its lease ended, or another holder has the key. For a
    /// [`Ticket`](crate::Ticket), also if its lock was released.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.0.kind, Kind::Lost(_) | Kind::Ticket(TicketFault::Ended | TicketFault::Released))
    }

    /// Returns `true` if the ticket belongs to another table, key prefix or sort key than these `Locks`. Nothing was sent.
    #[must_use]
    pub fn is_ticket_foreign(&self) -> bool {
        matches!(self.0.kind, Kind::Ticket(TicketFault::Foreign(_)))
    }

    /// Returns `true` if the lease of the ticket's lock has ended and no other holder has the key.
    #[must_use]
    pub fn is_ticket_ended(&self) -> bool {
        matches!(self.0.kind, Kind::Ticket(TicketFault::Ended))
    }

    /// Returns `true` if the ticket's lock was released.
    #[must_use]
    pub fn is_ticket_released(&self) -> bool {
        matches!(self.0.kind, Kind::Ticket(TicketFault::Released))
    }

    /// Returns `true` if the ticket's lock was resumed before. It may still be held.
    #[must_use]
    pub fn is_ticket_used(&self) -> bool {
        matches!(self.0.kind, Kind::Ticket(TicketFault::Used))
    }

    /// Returns `true` if no acquisition of the key matches the ticket: the ticket is forged, its row was deleted, or it is
    /// from a table of the same name in another account or region.
    #[must_use]
    pub fn is_ticket_unknown(&self) -> bool {
        matches!(self.0.kind, Kind::Ticket(TicketFault::Unknown))
    }

    /// Returns `true` if DynamoDB throttled the request and all retries of the SDK.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        matches!(self.0.kind, Kind::Throttled)
    }

    /// Returns `true` if neither the request nor a retry of the SDK got a usable answer.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0.kind, Kind::Unavailable)
    }

    /// Returns `true` if a transaction on the row is in progress, such as the holder's with [`condition_check`] or an
    /// acquire of [several keys](crate::Locks::acquire_all).
    ///
    /// [`condition_check`]: crate::Lock::condition_check
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self.0.kind, Kind::Conflict)
    }

    /// Returns `true` if the caller lacks an IAM action for this table or key.
    #[must_use]
    pub fn is_access_denied(&self) -> bool {
        matches!(self.0.kind, Kind::AccessDenied)
    }

    /// Returns `true` if the table does not exist in this account and region.
    #[must_use]
    pub fn is_table_not_found(&self) -> bool {
        matches!(self.0.kind, Kind::TableNotFound)
    }

    /// Returns `true` if the row under this key is not a lock row.
    #[must_use]
    pub fn is_malformed_row(&self) -> bool {
        matches!(self.0.kind, Kind::MalformedRow(_))
    }

    /// Returns `true` if the key is that of a [semaphore](crate::Locks::semaphore) and a lock or a record was to be acquired,
    /// or the reverse. The row was not modified. It keeps its kind until DynamoDB's TTL deletes it.
    #[must_use]
    pub fn is_wrong_kind(&self) -> bool {
        matches!(self.0.kind, Kind::WrongUse { .. })
    }

    /// Returns `true` if a setting or an argument is out of bounds. Nothing was sent.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self.0.kind, Kind::Invalid(_))
    }

    /// Returns the key of the operation, without the prefix of the `Locks`. Empty for an error in the settings. Of
    /// [several keys](crate::Locks::acquire_all), returns the one with the [`holder`](Self::holder), or the first one that
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

    /// Returns who holds the key, for an error that [`is_held`](Self::is_held); who holds it now, if known, for an error
    /// that [`is_lost`](Self::is_lost); and whose run it is, for a record of idempotency that refuses this run.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match &self.0.kind {
            Kind::Held(holder) => Some(holder),
            Kind::Lost(holder) => holder.as_ref(),
            #[cfg(feature = "idempotency")]
            Kind::Completed(holder) | Kind::InProgress(holder) | Kind::Unfinished(holder) | Kind::Mismatch(holder) => {
                Some(holder)
            }
            _ => None,
        }
    }

    /// Returns the keys that are in the way with their holders, for an error that [`is_held`](Self::is_held), and the keys
    /// that others hold now, for an error that [`is_lost`](Self::is_lost). The one whose lease ends last comes first: it is
    /// that of [`key`](Self::key) and [`holder`](Self::holder). [Several keys](crate::Locks::acquire_all) can have more
    /// than one.
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

    #[cfg(feature = "lambda")]
    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// Returns the message of DynamoDB or of the network.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// Returns the stable name for metrics and logs: the predicate's name without `is_`, if there is a predicate.
    pub(crate) fn reason(&self) -> &'static str {
        match &self.0.kind {
            Kind::Held(_) => "held",
            Kind::Lost(_) => "lost",
            Kind::Ticket(TicketFault::Foreign(_)) => "ticket_foreign",
            Kind::Ticket(TicketFault::Ended) => "ticket_ended",
            Kind::Ticket(TicketFault::Released) => "ticket_released",
            Kind::Ticket(TicketFault::Used) => "ticket_used",
            Kind::Ticket(TicketFault::Unknown) => "ticket_unknown",
            Kind::Throttled => "throttled",
            Kind::Unavailable => "unavailable",
            Kind::Conflict => "conflict",
            Kind::AccessDenied => "access_denied",
            Kind::TableNotFound => "table_not_found",
            Kind::MalformedRow(_) => "malformed_row",
            Kind::WrongUse { .. } => "wrong_kind",
            Kind::Invalid(_) => "invalid",
            Kind::NotSent => "not_sent",
            Kind::Rejected => "refused",
            #[cfg(feature = "idempotency")]
            Kind::Completed(_) => "replayed",
            #[cfg(feature = "idempotency")]
            Kind::InProgress(_) => "in_progress",
            #[cfg(feature = "idempotency")]
            Kind::Unfinished(_) => "unfinished",
            #[cfg(feature = "idempotency")]
            Kind::Mismatch(_) => "mismatch",
            #[cfg(feature = "idempotency")]
            Kind::KeyMissing => "key_missing",
            #[cfg(feature = "idempotency")]
            Kind::UnusableResult(_) => "unusable_result",
        }
    }

    /// Returns `true` if DynamoDB answers requests, so that another request is likely to succeed.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self.0.kind, Kind::Throttled | Kind::Unavailable | Kind::NotSent)
    }

    /// Returns `true` if DynamoDB did not apply the last attempt because of other requests: it throttles, or a transaction on
    /// the row is in progress.
    pub(crate) fn is_prevented(&self) -> bool {
        matches!(self.0.kind, Kind::Throttled | Kind::Conflict)
    }

    /// Returns `true` if a later attempt can succeed without a change by the user.
    pub(crate) fn is_retryable(&self) -> bool {
        match self.0.kind {
            Kind::Held(_) | Kind::Throttled | Kind::Unavailable | Kind::Conflict => true,
            #[cfg(feature = "idempotency")]
            Kind::InProgress(_) => true,
            _ => false,
        }
    }
}

/// The errors of idempotent runs.
#[cfg(feature = "idempotency")]
impl Error {
    /// Returns `true` if a run for this key is in progress. [`holder`](Self::holder) says whose it is, and when its
    /// lease ends at the latest. Feature `idempotency`.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        matches!(self.0.kind, Kind::InProgress(_))
    }

    /// Returns `true` if a run for this key started but did not finish, and
    /// [`OnUnfinished::Reject`](crate::OnUnfinished::Reject) is set. Feature `idempotency`.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        matches!(self.0.kind, Kind::Unfinished(_))
    }

    /// Returns `true` if the key was used with another payload. Feature `idempotency`.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(self.0.kind, Kind::Mismatch(_))
    }

    /// Returns `true` if the input has no key, and [`OnMissingKey::Reject`](crate::idempotency::OnMissingKey::Reject) is set. Feature
    /// `idempotency`.
    #[must_use]
    pub fn is_key_missing(&self) -> bool {
        matches!(self.0.kind, Kind::KeyMissing)
    }

    /// Returns `true` if a result cannot be stored, or a stored result cannot be read. Feature `idempotency`.
    #[must_use]
    pub fn is_unusable_result(&self) -> bool {
        matches!(self.0.kind, Kind::UnusableResult(_))
    }

    /// Returns the record that has the result, or the error if no completed record caused it.
    pub(crate) fn into_completed(self) -> Result<Holder, Self> {
        match self.0.kind {
            Kind::Completed(record) => Ok(record),
            _ => Err(self),
        }
    }
}

/// Returns the same as [`Error::is_prevented`].
pub(crate) fn is_prevented<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    matches!(classify(error), Kind::Throttled | Kind::Conflict)
}

/// Classifies throttling and conflicts as the SDK's retry classifier and the DynamoDB developer guide do.
fn classify<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Kind {
    match error {
        SdkError::TimeoutError(_) | SdkError::ResponseError(_) => return Kind::Unavailable,
        // A connection that breaks while the client waits for the answer is "other, transient", not I/O or timeout.
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
        _ => Kind::Rejected,
    }
}

/// Returns DynamoDB's code and message, or the chain of errors that ends with the network's.
fn cause<E: ProvideErrorMetadata + StdError>(error: &SdkError<E>) -> String
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

/// What failed, on which key and table, why, and what to do.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, table, key, attempts, others, .. } = &*self.0;
        let table = printable(table);
        let reason = |text| printable_up_to(text, LONGEST_REASON);
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
        match kind {
            Kind::Held(holder) => write!(f, "{what} is held by {holder}")?,
            Kind::Lost(Some(holder)) => write!(f, "the lock on {what} was lost to {holder}")?,
            Kind::Lost(None) => write!(f, "the lock on {what} was lost: its lease ended, or its row was deleted")?,
            Kind::Ticket(fault) => {
                write!(f, "the ticket for {what} was refused: ")?;
                match fault {
                    TicketFault::Foreign(why) => f.write_str(&reason(why))?,
                    TicketFault::Ended => f.write_str("its lease has ended: acquire the key again")?,
                    TicketFault::Released => f.write_str("its lock was released: acquire the key again")?,
                    TicketFault::Used => f.write_str(
                        "it was used before: take the ticket of the lock that was resumed, or wait until the lease ends",
                    )?,
                    TicketFault::Unknown => f.write_str(
                        "no acquisition of the key matches it, because it is forged, its row was deleted, or it is from \
                         another account or region: acquire the key again",
                    )?,
                }
            }
            Kind::Throttled => write!(f, "requests for {what} are throttled")?,
            Kind::Unavailable => write!(f, "no answer for {what}")?,
            Kind::Conflict => write!(f, "other requests change {what} at the same time: try again")?,
            Kind::AccessDenied => write!(
                f,
                "access denied to {what}: allow dynamodb:UpdateItem (and dynamodb:GetItem to read a holder, \
                 dynamodb:Scan to list holders, the actions of Locks::create_table to create the table)"
            )?,
            Kind::TableNotFound => write!(
                f,
                "table `{table}` not found in this account and region: create it with the template, with \
                 Locks::create_table or with `lambda-lock create-table`"
            )?,
            Kind::MalformedRow(why) => write!(
                f,
                "the row under {what} is not a lock row ({}); it was not modified: use another key or key prefix, or \
                 delete the row",
                reason(why)
            )?,
            Kind::WrongUse { is, not } => write!(f, "{what} is {is}, not {not}: use another key")?,
            Kind::Invalid(message) => f.write_str(&reason(message))?,
            Kind::NotSent => write!(f, "no request for {what} was sent: check region, credentials and endpoint")?,
            Kind::Rejected => write!(f, "DynamoDB rejected the request for {what}")?,
            #[cfg(feature = "idempotency")]
            Kind::Completed(_) => write!(f, "{what} is completed")?,
            #[cfg(feature = "idempotency")]
            Kind::InProgress(holder) => write!(f, "{what} is in progress: {holder}")?,
            #[cfg(feature = "idempotency")]
            Kind::Unfinished(holder) => write!(
                f,
                "a run for {what} did not finish and may have done its work ({}): check its effect, then release the key \
                 by force to allow another run",
                printable(holder.name().unwrap_or("by an unnamed holder")),
            )?,
            #[cfg(feature = "idempotency")]
            Kind::Mismatch(_) => write!(
                f,
                "{what} was used with another payload, or a deployment has changed what is validated: use another key only for \
                 other work"
            )?,
            #[cfg(feature = "idempotency")]
            Kind::KeyMissing => {
                write!(f, "an input for {what} has no idempotency key: send one, or use OnMissingKey::RunUnprotected")?;
            }
            #[cfg(feature = "idempotency")]
            Kind::UnusableResult(why) => write!(f, "{what}: {}", reason(why))?,
        }
        for (key, holder) in others.iter().filter(|_| names_holders) {
            let key = printable(key);
            match holder {
                Some(holder) if self.is_held() => write!(f, "; key `{key}` is held by {holder}")?,
                Some(holder) => write!(f, "; the lock on key `{key}` was lost to {holder}")?,
                None => write!(f, "; the lock on key `{key}` was lost")?,
            }
        }
        if *attempts > 1 {
            write!(f, ", after {attempts} attempts")?;
        }
        Ok(())
    }
}

/// Prints the message and its cause in one line, because `lambda_runtime` logs the errors of handlers with `Debug`.
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
