//! `Run`: a run that is under way, for a handler that wants to know of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::TransactWriteItem;
use serde::Serialize;

use super::finite::is_finite;
use super::format::{RecordFormat, has_null};
use super::refusal::Refusal;
use crate::error::{Error, Kind};
use crate::holder::{Data, Holder};
use crate::lock::Lock;
use crate::protocol::{Outcome, check_data};

/// A run that is under way. Cheap to clone.
///
/// ```
/// # use aws_sdk_dynamodb::{Client, types::{Put, TransactWriteItem}};
/// # use lambda_lock::{HandlerError, Idempotency};
/// # type Failure = Box<dyn std::error::Error + Send + Sync>;
/// # async fn example(orders: Idempotency<String, u32, Failure>, client: Client, id: String, order: Put)
/// #     -> Result<u32, HandlerError<Failure>> {
/// orders
///     .run(&id, async |run| {
///         let number = 17;
///         client
///             .transact_write_items()
///             .transact_items(TransactWriteItem::builder().put(order).build())
///             .transact_items(run.complete_in(&number)?)
///             .send()
///             .await?;
///         Ok(number)
///     })
///     .await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Run {
    pub(super) lock: Arc<Lock>,
    pub(super) window: Duration,
    pub(super) format: RecordFormat,
    pub(super) completed_in: Arc<AtomicBool>,
    /// What the cache is to keep once there is an outcome.
    pub(super) record: Option<Arc<Holder>>,
}

impl Run {
    /// The lock that the run is under: its fence, what is left of its lease, its condition check. Releasing it gives the
    /// record up.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The write that completes the record with this result, for the caller's own `TransactWriteItems`: business write
    /// and completion are then committed together or not at all, whatever crashes when. The condition is that the
    /// record is still this run's.
    ///
    /// Return the same result once the transaction was committed, and an error if it was not: from this call on, only
    /// the transaction completes the record. If it was committed but its answer got lost, the handler's error is
    /// replaced with the stored result. If the handler returns `Ok` without a committed transaction, nothing is stored,
    /// and the work runs again once the lease has ended. The window is counted from this call.
    ///
    /// No request by itself, and none after the handler; in the transaction it costs one write, with IAM action
    /// `dynamodb:UpdateItem`. If the run is [not protected](Lock::is_enforced), it is a check that always holds, with
    /// IAM action `dynamodb:ConditionCheckItem`. The error [`is_unusable_result`](Error::is_unusable_result) if the result cannot be
    /// stored, whatever is set for that.
    pub fn complete_in<T: Serialize>(&self, result: &T) -> Result<TransactWriteItem, Error> {
        let outcome = self.outcome(result).map_err(|why| self.lock.error(Kind::Idempotency(Refusal::Result(why))))?;
        let completion = self.lock.completion(self.window, outcome)?;
        self.completed_in.store(true, Ordering::Release);
        Ok(completion)
    }

    pub(super) fn outcome<T: Serialize>(&self, result: &T) -> Result<Outcome, String> {
        let value = serde_json::to_value(result).map_err(|why| format!("the result has no form as JSON ({why})"))?;
        // Whatever has no form in JSON became null there. Most results have none, and are not walked through again.
        if has_null(&value) && !is_finite(result) {
            return Err(
                "the result has a float in it that is not finite (NaN or an infinity), and JSON has none: return \
                        an `Option` or a string in its place"
                    .to_owned(),
            );
        }
        let data = self.format.store(&value)?;
        check_data(&Data(data.clone())).map_err(|error| error.to_string())?;
        Ok(Outcome::Result(data))
    }
}

/// What a handler takes under idempotency: the input itself, or [`WithRun`] to get the run with it.
///
/// Cannot be implemented for other types.
pub trait HandlerInput<I>: sealed::Sealed<I> {
    #[doc(hidden)]
    fn under(input: I, run: &Run) -> Self;
}

impl<I> WithRun<I> {
    /// An input with a run, for testing a handler by itself: [`Idempotency::run`](crate::Idempotency::run) gives one,
    /// also where locking is switched off.
    #[must_use]
    pub fn new(input: I, run: Run) -> Self {
        Self { input, run }
    }
}

impl<I> HandlerInput<I> for I {
    fn under(input: I, _: &Run) -> Self {
        input
    }
}

impl<I> HandlerInput<I> for WithRun<I> {
    fn under(input: I, run: &Run) -> Self {
        Self::new(input, run.clone())
    }
}

mod sealed {
    pub trait Sealed<I> {}
    impl<I> Sealed<I> for I {}
    impl<I> Sealed<I> for super::WithRun<I> {}
}

/// An input together with the run it is for, for a handler that completes in its own transaction or wants the fence.
///
/// ```
/// # use lambda_lock::WithRun;
/// async fn handler(WithRun { input, run, .. }: WithRun<String>) -> Result<u64, std::io::Error> {
///     // write(input, run.lock().fence()) …
///     Ok(run.lock().fence())
/// }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct WithRun<I> {
    /// The input, such as a `LambdaEvent` or a message.
    pub input: I,
    /// The run.
    pub run: Run,
}

/// Without the input, which may be what nobody wants in a log.
impl<I> fmt::Debug for WithRun<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithRun").field("run", &self.run).finish_non_exhaustive()
    }
}
