//! The repetition of requests for the lock.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use aws_durable_execution_sdk::{RetryDecision, StepContext, StepError};

use crate::error::Error;
use crate::refusal::Refusal;

/// How often a step is tried whose request for the lock can be repeated.
const TRIES: u32 = 6;

/// The request for the lock, at the beginning of a step, was not answered or refused for now. Nothing else is repeated: an error of the same
/// kind may come from the work, which has then begun.
#[derive(Debug)]
pub(crate) struct Repeatable(lambda_lock::Error);

impl Repeatable {
    /// Returns the refusal that the history gets, or an error if the step is tried again.
    pub(crate) fn or_refusal(lock: &str, error: lambda_lock::Error, step: &StepContext) -> Result<Refusal, Self> {
        if error.is_retryable() && step.attempt() < TRIES {
            return Err(Self(error));
        }
        Ok(Refusal::new(lock, &error))
    }
}

impl fmt::Display for Repeatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request for the lock can be repeated")
    }
}

impl StdError for Repeatable {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

pub(crate) fn retry_request(error: &StepError, attempt: u32) -> RetryDecision {
    repeat_if(error.source().is_some_and(<dyn StdError>::is::<Repeatable>), attempt)
}

/// The retry strategy for a step of your own that calls [`Held::take_over`](crate::Held::take_over). It repeats a takeover that
/// DynamoDB did not answer or refused for now, up to five times, after 1 s to 16 s. It repeats neither a lost lock nor an error of the work.
///
/// The SDK's default repeats a step after every error, also when the lock is lost.
#[must_use]
pub fn retry_take_over(error: &StepError, attempt: u32) -> RetryDecision {
    let refused = error.source().and_then(|error| error.downcast_ref::<Error>());
    repeat_if(refused.is_some_and(Error::is_retryable), attempt)
}

fn repeat_if(can_be_repeated: bool, attempt: u32) -> RetryDecision {
    if can_be_repeated && attempt < TRIES {
        RetryDecision::Retry { delay: Duration::from_secs(1 << attempt.saturating_sub(1)) }
    } else {
        RetryDecision::Stop
    }
}
