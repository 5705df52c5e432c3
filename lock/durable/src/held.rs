//! A lock that a durable execution holds across suspensions.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_durable_execution_sdk::{BoxError, DurableContext, RetryDecision, StepError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::claim::{Claim, Fences};
use crate::error::{Error, Outcome, Refusal};

/// How often a step is tried whose request for the lock was not answered.
const TRIES: u32 = 6;

/// A lock that is held. A clone is the same lock.
///
/// It is no guard: it survives suspensions and replays, and dropping it frees nothing. [`run`](crate::DurableLock::run) does.
#[derive(Clone)]
pub struct Held(Arc<Inner>);

struct Inner {
    ctx: DurableContext,
    claim: Claim,
    identity: String,
}

impl Held {
    pub(crate) fn new(ctx: DurableContext, claim: Claim, identity: String) -> Self {
        Self(Arc::new(Inner { ctx, claim, identity }))
    }

    /// Returns the context of the body, for operations that need no lock. Its names do not collide with those outside.
    #[must_use]
    pub fn context(&self) -> &DurableContext {
        &self.0.ctx
    }

    /// Returns the [identity](lambda_lock::Acquire::owner_from) that holds the lock.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Runs a step under the lock. Each attempt begins with a takeover, so it has larger [fences](Fences) than all before it,
    /// and a new lease. When the lease ends, the work is cancelled at its next await point.
    ///
    /// One `UpdateItem` for each attempt, or one `TransactWriteItems` for several keys. An attempt without an answer from
    /// DynamoDB is repeated up to five times, after 1 s to 16 s. An error of the work is not: for another strategy, call
    /// [`take_over`](Self::take_over) in a step of your own.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is no longer held, before the work or at its end.
    pub async fn step<T, F, Fut>(&self, name: impl Into<String>, work: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(Fences) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, BoxError>> + Send + 'static,
    {
        let held = self.clone();
        let step = self.0.ctx.step(move |_| async move {
            let (fences, valid_for) = match held.extend(held.0.claim.lease).await {
                Ok(taken_over) => taken_over,
                Err(error) if error.is_retryable() => return Err(error.into()),
                Err(error) => return Ok(Outcome::Refused(error.into())),
            };
            match timeout(valid_for, work(fences)).await {
                Ok(result) => Outcome::of(result),
                Err(_elapsed) => Ok(Outcome::Refused(Refusal::lease_ended(&held.0.claim.to_string()))),
            }
        });
        step.name(name).retry_strategy(retry).await?.into_result()
    }

    /// Takes the lock over within a step of your own, and returns larger fences than all before. Use the fences in this
    /// attempt of the step only: do not record them. Returns after the lease that [`lease`](crate::DurableLock::lease) sets
    /// has begun anew. One `UpdateItem`, or one `TransactWriteItems` for several keys.
    ///
    /// ```
    /// use aws_durable_execution_sdk::{BoxError, StepSemantics};
    /// use lambda_lock_durable::Held;
    ///
    /// async fn charge(held: Held) -> Result<String, BoxError> {
    ///     let lock = held.clone();
    ///     let receipt = held.context().step(move |_| async move {
    ///         let fences = lock.take_over().await?;
    ///         pay(fences.fence()).await
    ///     });
    ///     Ok(receipt.semantics(StepSemantics::AtMostOncePerRetry).await?)
    /// }
    /// # async fn pay(_: u64) -> Result<String, BoxError> { Ok(String::new()) }
    /// ```
    pub async fn take_over(&self) -> Result<Fences, lambda_lock::Error> {
        self.extend(self.0.claim.lease).await.map(|(fences, _)| fences)
    }

    /// Suspends the execution, and keeps the lock held: a step extends the lease by this time first. After a crash, the key
    /// is then held for up to that time and the lease.
    ///
    /// One `UpdateItem` or `TransactWriteItems`, and one step and one wait. A lease lasts 366 days for a key, and a day
    /// otherwise: a longer wait is several.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is no longer held.
    pub async fn wait(&self, duration: Duration) -> Result<(), Error> {
        let mut left = duration;
        while !left.is_zero() {
            let next = left.min(self.0.claim.longest_wait()).max(Duration::from_secs(1));
            let held = self.clone();
            let lease = self.0.claim.lease.saturating_add(next);
            let extend = self.0.ctx.step(move |_| async move {
                match held.extend(lease).await {
                    Ok(_) => Ok(Outcome::Done(())),
                    Err(error) if error.is_retryable() => Err(error.into()),
                    Err(error) => Ok(Outcome::Refused(error.into())),
                }
            });
            extend.name("extend the lease").retry_strategy(retry).await?.into_result()?;
            self.0.ctx.wait(next).await?;
            left = left.saturating_sub(next);
        }
        Ok(())
    }

    async fn extend(&self, lease: Duration) -> Result<(Fences, Duration), lambda_lock::Error> {
        self.0.claim.take_over(&self.0.identity, lease).await
    }
}

/// Repeats what DynamoDB did not answer.
pub(crate) fn retry(error: &StepError, attempt: u32) -> RetryDecision {
    let mut source = error.source();
    while let Some(error) = source {
        if error.downcast_ref::<lambda_lock::Error>().is_some_and(lambda_lock::Error::is_retryable) && attempt < TRIES {
            return RetryDecision::Retry { delay: Duration::from_secs(1 << (attempt - 1)) };
        }
        source = error.source();
    }
    RetryDecision::Stop
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("claim", &self.0.claim.to_string()).finish_non_exhaustive()
    }
}
