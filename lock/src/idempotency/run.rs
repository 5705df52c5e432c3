//! `Run`: a run in progress, as its handler sees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use serde::Serialize;

use super::format::{RecordFormat, to_json};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};
use crate::limits::{MAX_DATA_BYTES, check_data};
use crate::lock::Lock;
use crate::row::Outcome;

/// A run in progress.
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
///             .client_request_token(lambda_lock::request_token())
///             .send()
///             .await?;
///         Ok(number)
///     })
///     .await
/// # }
/// ```
///
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Run {
    pub(super) lock: Arc<Lock>,
    pub(super) window: Duration,
    pub(super) format: RecordFormat,
    /// The result with which the caller's transaction completes the record.
    pub(super) in_transaction: Arc<Mutex<Option<AttributeValue>>>,
    /// The record for the cache, without its outcome.
    pub(super) cache_entry: Option<Arc<Holder>>,
}

impl Run {
    /// Returns the lock of the run, with its fence, its remaining lease and its condition check. Releasing the lock
    /// releases the record.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Returns the write that completes the record with this result, for the caller's own `TransactWriteItems`. The
    /// business write and the completion are then committed together or not at all, also if a process crashes. The write
    /// has the condition that this run still owns the record.
    ///
    /// Return the same result from the handler if the transaction was committed. If it was not, return an error, or another
    /// result, which is then stored as usual. If the transaction was committed but its answer was lost, the committed result
    /// replaces what the handler returns, unless [`on_error`](crate::Idempotency::on_error) keeps the record or the result is
    /// not of the handler's type. If the handler returns the same result without a committed transaction, nothing
    /// is stored, and the work runs again after the lease. The window starts at this call.
    ///
    /// Sends no request, and the run sends none after a handler that returns this result. The write costs one write in the
    /// transaction; IAM action `dynamodb:UpdateItem`. If the run is [not enforced](Lock::is_enforced), the returned item is a check that
    /// always holds; IAM action `dynamodb:ConditionCheckItem`. If the result cannot be stored, the call fails with an error
    /// of kind [`UnusableResult`](crate::ErrorKind::UnusableResult), also with
    /// [`OnUnstorableResult::CompleteWithoutResult`](crate::idempotency::OnUnstorableResult::CompleteWithoutResult). With
    /// [multi-Region strong consistency](crate::LocksBuilder::multi_region_strong_consistency), there are no transactions, and the
    /// call fails with an error of kind [`Invalid`](crate::ErrorKind::Invalid).
    pub fn complete_in<T: Serialize>(&self, result: &T) -> Result<TransactWriteItem, Error> {
        let result = self.stored(result).map_err(|why| self.lock.error(Cause::UnusableResult(why)))?;
        let completion = self.lock.completion(self.window, Outcome::Result(result.clone()))?;
        *self.in_transaction() = Some(result);
        Ok(completion)
    }

    /// Whether the caller has a transaction that completes the record.
    pub(crate) fn has_transaction(&self) -> bool {
        self.in_transaction().is_some()
    }

    /// Whether the caller's transaction completes the record with this result.
    pub(super) fn commits(&self, result: &AttributeValue) -> bool {
        self.in_transaction().as_ref() == Some(result)
    }

    fn in_transaction(&self) -> MutexGuard<'_, Option<AttributeValue>> {
        self.in_transaction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this result as it is stored, or why it cannot be stored.
    pub(super) fn stored<T: Serialize>(&self, result: &T) -> Result<AttributeValue, String> {
        let data = self.format.store(&to_json(result)?)?;
        check_data(&Data(data.clone()), MAX_DATA_BYTES).map_err(|error| error.to_string())?;
        Ok(data)
    }
}
