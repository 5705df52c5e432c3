//! A lock that a durable execution holds across suspensions.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use aws_durable_execution_sdk::{BoxError, DurableContext, StepContext};
use futures_util::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::claim::{Claim, Fences};
use crate::error::Error;
use crate::lease::Lease;
use crate::name::operation_name;
use crate::outcome::Outcome;
use crate::refusal::Refusal;
use crate::retry::{Repeatable, retry_request};

/// A lock that is held. A clone is the same lock.
///
/// It is no guard: it survives suspensions and replays, and dropping it frees nothing. [`run`](crate::DurableLock::run) does.
#[derive(Clone)]
pub struct Held {
    ctx: DurableContext,
    lock: Arc<Inner>,
}

struct Inner {
    claim: Claim,
    identity: String,
    id: String,
}

impl Held {
    pub(crate) fn new(ctx: DurableContext, claim: Claim, identity: String) -> Self {
        let id = claim.id(&identity);
        Self { ctx, lock: Arc::new(Inner { claim, identity, id }) }
    }

    /// Returns the context of the body, for operations that need no lock. Its names do not collide with those outside. What it
    /// runs in a context of its own, such as an item of a `map`, uses the lock [`within`](Self::within) that context.
    #[must_use]
    pub fn context(&self) -> &DurableContext {
        &self.ctx
    }

    /// Returns the lock for the body of a `map`, a `parallel` or a child context, which has passed this context. An operation
    /// of another context breaks the replay, and can skip work: with the context of the body, an item that is repeated can get
    /// the result of another one.
    ///
    /// ```
    /// use aws_durable_execution_sdk::BoxError;
    /// use lambda_lock_durable::Held;
    ///
    /// async fn roll_out(held: Held, regions: Vec<String>) -> Result<(), BoxError> {
    ///     let lock = held.clone();
    ///     let rolled_out = held.context().map(regions, move |ctx, region, _| {
    ///         let held = lock.within(&ctx);
    ///         async move { Ok(held.step("roll out", |fences| deploy(region, fences.fence())).await?) }
    ///     });
    ///     rolled_out.max_concurrency(1).await?;
    ///     Ok(())
    /// }
    /// # async fn deploy(_: String, _: u64) -> Result<(), BoxError> { Ok(()) }
    /// ```
    ///
    /// Steps and waits under one lock come one after the other: each takes the lock over, so the fences of a step beside it are
    /// too small, and its lease ends earlier. Let a `map` have a concurrency of 1.
    #[must_use]
    pub fn within(&self, ctx: &DurableContext) -> Self {
        Self { ctx: ctx.clone(), lock: Arc::clone(&self.lock) }
    }

    /// Returns the [identity](lambda_lock::Acquire::identity) that holds the lock.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.lock.identity
    }

    /// Runs a step under the lock. Each attempt begins with a takeover, so it has larger [fences](Fences) than all before it,
    /// and a new lease. When the lease ends, the work is cancelled at its next await point.
    ///
    /// One `UpdateItem` for each attempt, or one `TransactWriteItems` for several keys. An attempt whose takeover DynamoDB does
    /// not answer is repeated up to five times, after 1 s to 16 s. An error or a panic of the work is not: for another
    /// strategy, call [`take_over`](Self::take_over) in a step of your own. Characters of the name that Lambda refuses become
    /// `-`.
    ///
    /// # Errors
    ///
    /// [`Panic`](crate::ErrorKind::Panic) if the work panics, and [`Lost`](crate::ErrorKind::Lost) if the lock is no longer held
    /// before the work, or its lease has ended by the work's end. A [`force_release`](lambda_lock::Locks::force_release) during the work shows in the next step; until then, only the
    /// fence protects.
    pub async fn step<T, F, Fut>(&self, name: impl Into<String>, work: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(Fences) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, BoxError>> + Send + 'static,
    {
        let lock = Arc::clone(&self.lock);
        let step = self.ctx.step(move |step| async move {
            let (fences, lease) = match lock.extend(Duration::ZERO, &step).await? {
                Ok(taken_over) => taken_over,
                Err(refusal) => return Ok(Outcome::Refused(refusal)),
            };
            // A panic that ended the step would not be in the history, and the next invocation would repeat the work.
            let work = AssertUnwindSafe(async { work(fences).await }).catch_unwind();
            match lease.limit(work).await {
                Some(Ok(result)) => Outcome::of(&lock.id, result),
                Some(Err(panic)) => Ok(Outcome::of_panic(&*panic)),
                None => Ok(Outcome::Refused(Refusal::lease_ended(&lock.id, &lock.claim.to_string()))),
            }
        });
        let done = step.name(operation_name(&name.into())).retry_strategy(retry_request).await?;
        done.into_result()
    }

    /// Takes the lock over within a step of your own, and returns larger fences than all before. Use the fences in this
    /// attempt of the step only: do not record them. The lease that [`lease`](crate::DurableLock::lease) sets begins anew.
    /// One `UpdateItem`, or one `TransactWriteItems` for several keys.
    ///
    /// ```
    /// use aws_durable_execution_sdk::{BoxError, StepSemantics};
    /// use lambda_lock_durable::{Held, retry_take_over};
    ///
    /// async fn charge(held: Held) -> Result<String, BoxError> {
    ///     let lock = held.clone();
    ///     let receipt = held.context().step(move |_| async move {
    ///         let fences = lock.take_over().await?;
    ///         pay(fences.fence()).await
    ///     });
    ///     Ok(receipt.semantics(StepSemantics::AtMostOncePerRetry).retry_strategy(retry_take_over).await?)
    /// }
    /// # async fn pay(_: u64) -> Result<String, BoxError> { Ok(String::new()) }
    /// ```
    ///
    /// Let the step have the strategy [`retry_take_over`](crate::retry_take_over) or one of your own. The work is not
    /// cancelled when the lease ends: it must end in time.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is no longer held. If the step and the body pass the error on,
    /// [`run`](crate::DurableLock::run) fails with the same kind.
    pub async fn take_over(&self) -> Result<Fences, Error> {
        match self.lock.claim.take_over(&self.lock.identity, Duration::ZERO).await {
            Ok((fences, _)) => Ok(fences),
            Err(error) => Err(Refusal::new(&self.lock.id, &error).into()),
        }
    }

    /// Suspends the execution, and keeps the lock held: a step extends the lease by this time first. After a crash, the key
    /// is then held for up to that time and the lease. A wait of a context itself extends nothing.
    ///
    /// One `UpdateItem` or `TransactWriteItems`, and one step and one wait. A lease lasts 366 days for a key, and a day
    /// otherwise: a longer wait is several. With a lease close to these, half of the longest is left after the wait.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is no longer held.
    pub async fn wait(&self, duration: Duration) -> Result<(), Error> {
        let mut left = duration;
        while !left.is_zero() {
            let next = left.min(self.lock.claim.longest_wait()).max(Duration::from_secs(1));
            let lock = Arc::clone(&self.lock);
            let extend = self.ctx.step(move |step| async move {
                Ok(match lock.extend(next, &step).await? {
                    Ok(_) => Outcome::Done(()),
                    Err(refusal) => Outcome::Refused(refusal),
                })
            });
            let extended = extend.name("extend the lease").retry_strategy(retry_request).await?;
            extended.into_result()?;
            self.ctx.wait(next).await?;
            left = left.saturating_sub(next);
        }
        Ok(())
    }
}

impl Inner {
    /// Takes the lock over in a step, for a wait and the lease. Returns the refusal that the history gets.
    async fn extend(&self, wait: Duration, step: &StepContext) -> Result<Result<(Fences, Lease), Refusal>, Repeatable> {
        match self.claim.take_over(&self.identity, wait).await {
            Ok(taken_over) => Ok(Ok(taken_over)),
            Err(error) => Repeatable::or_refusal(&self.id, error, step).map(Err),
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("claim", &self.lock.claim.to_string()).finish_non_exhaustive()
    }
}
