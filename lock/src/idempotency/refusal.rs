//! Why work is not done: the verdict on a record, and how it is told.

use std::fmt;

use crate::error::{Error, Kind};
use crate::holder::Holder;

/// Why work is not done, or its result not returned.
pub(crate) enum Refusal {
    /// It was done before. Answered, not shown.
    Completed(Holder),
    InProgress(Holder),
    Unfinished(Holder),
    Mismatch(Holder),
    NoKey,
    /// Why a result cannot be stored, or a stored one not returned.
    Result(String),
}

impl Refusal {
    /// The verdict on a record that cannot be taken.
    pub(crate) fn by(record: Holder, validation: Option<&str>) -> Self {
        if validation.is_some() && record.validation.as_deref() != validation {
            Self::Mismatch(record)
        } else if record.completed {
            Self::Completed(record)
        } else if record.current {
            Self::InProgress(record)
        } else {
            Self::Unfinished(record)
        }
    }

    pub(crate) fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Completed(record) | Self::InProgress(record) | Self::Unfinished(record) | Self::Mismatch(record) => {
                Some(record)
            }
            Self::NoKey | Self::Result(_) => None,
        }
    }

    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Completed(_) => "replayed",
            Self::InProgress(_) => "in_progress",
            Self::Unfinished(_) => "unfinished",
            Self::Mismatch(_) => "mismatch",
            Self::NoKey => "key_missing",
            Self::Result(_) => "unusable_result",
        }
    }

    #[cfg(feature = "lambda")]
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Completed(_) => "IdempotencyCompleted",
            Self::InProgress(_) => "IdempotencyInProgress",
            Self::Unfinished(_) => "IdempotencyUnfinished",
            Self::Mismatch(_) => "IdempotencyMismatch",
            Self::NoKey => "IdempotencyKeyMissing",
            Self::Result(_) => "IdempotencyUnusableResult",
        }
    }

    pub(crate) fn describe(&self, what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(_) => write!(f, "{what} is completed"),
            Self::InProgress(record) => write!(f, "{what} is in progress: {record}"),
            Self::Unfinished(record) => write!(
                f,
                "a run for {what} did not finish and may have done its work ({}): look into it, and release it by force to \
                 let it run again",
                record.name().unwrap_or("by an unnamed holder"),
            ),
            Self::Mismatch(_) => write!(
                f,
                "{what} was used with another payload, by the fields that are validated: give this one a key of its own"
            ),
            Self::NoKey => write!(
                f,
                "an input for {what} has no idempotency key: send one, or choose OnMissingKey::RunUnprotected"
            ),
            Self::Result(why) => write!(f, "{what}: {why}"),
        }
    }
}

impl Error {
    /// The work for this key is being done elsewhere: [`holder`](Self::holder) says by whom, and until when at the
    /// latest. Feature `idempotency`.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        matches!(self.kind(), Kind::Idempotency(Refusal::InProgress(_)))
    }

    /// A run for this key began and did not finish, and [`OnTimeout::Reject`](crate::OnTimeout::Reject) is set. Feature
    /// `idempotency`.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        matches!(self.kind(), Kind::Idempotency(Refusal::Unfinished(_)))
    }

    /// The key was used with another payload. Feature `idempotency`.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(self.kind(), Kind::Idempotency(Refusal::Mismatch(_)))
    }

    /// The input has no key, and [`OnMissingKey::Reject`](crate::OnMissingKey::Reject) is set. Feature `idempotency`.
    #[must_use]
    pub fn is_key_missing(&self) -> bool {
        matches!(self.kind(), Kind::Idempotency(Refusal::NoKey))
    }

    /// A result cannot be stored, or a stored one cannot be read. Feature `idempotency`.
    #[must_use]
    pub fn is_unusable_result(&self) -> bool {
        matches!(self.kind(), Kind::Idempotency(Refusal::Result(_)))
    }
}
