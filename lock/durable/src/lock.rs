//! The acquire of a durable lock, and its release.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use aws_durable_execution_sdk::{BoxError, DurableContext};
use futures_util::FutureExt as _;
use lambda_lock::{Locks, request_token};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::claim::{Asked, Claim, Kind};
use crate::error::{Error, Outcome, Refusal};
use crate::held::{Held, retry};

const DEFAULT_LEASE: Duration = Duration::from_mins(15);
const DEFAULT_WAIT: Duration = Duration::from_hours(24);

/// Takes locks in a durable function.
pub trait LockContext {
    /// Takes the lock of a key.
    fn lock(&self, locks: &Locks, key: impl Into<String>) -> DurableLock;

    /// Takes one of the permits of a [semaphore](Locks::semaphore).
    fn permit(&self, locks: &Locks, key: impl Into<String>, permits: u32) -> DurableLock;

    /// Takes the locks of [several keys](Locks::acquire_all), all or none.
    fn lock_all(&self, locks: &Locks, keys: impl IntoIterator<Item = impl Into<String>>) -> DurableLock;
}

impl LockContext for DurableContext {
    fn lock(&self, locks: &Locks, key: impl Into<String>) -> DurableLock {
        DurableLock::new(self, locks, Kind::Key(key.into()))
    }

    fn permit(&self, locks: &Locks, key: impl Into<String>, permits: u32) -> DurableLock {
        DurableLock::new(self, locks, Kind::Permit(key.into(), permits))
    }

    fn lock_all(&self, locks: &Locks, keys: impl IntoIterator<Item = impl Into<String>>) -> DurableLock {
        DurableLock::new(self, locks, Kind::Keys(keys.into_iter().map(Into::into).collect()))
    }
}

/// A lock that a durable execution is about to take. [`run`](Self::run) takes it.
#[derive(Debug)]
#[must_use = "it does nothing until it is run"]
pub struct DurableLock {
    ctx: DurableContext,
    claim: Claim,
    wait: Duration,
    identity: Option<String>,
}

impl DurableLock {
    fn new(ctx: &DurableContext, locks: &Locks, kind: Kind) -> Self {
        let claim = Claim { locks: locks.clone(), kind, lease: DEFAULT_LEASE };
        Self { ctx: ctx.clone(), claim, wait: DEFAULT_WAIT, identity: None }
    }

    /// Sets the lease, which begins anew with each step under the lock: 15 minutes by default, the longest time of an
    /// invocation. It is for the longest step, with the time until the next one. The key stays held for this time if the
    /// execution is stopped.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.claim.lease = lease;
        self
    }

    /// Sets how long the execution waits for other holders: a day by default. It is suspended meanwhile, and keeps its turn.
    pub fn wait_up_to(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the [identity](lambda_lock::Acquire::owner_from) that holds the lock. By default, it is the execution's ARN with
    /// a random number, so that parallel branches of an execution exclude each other.
    ///
    /// With the ARN itself, [`Locks::release_identity`] frees the key after the execution was stopped. No two branches may
    /// take the same key then.
    pub fn owner_from(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Takes the lock, runs the body, and frees the key after the body's success, error and panic. All operations are in a
    /// child context, which has the name of the key.
    ///
    /// The body runs again on each replay, as every function of a durable execution does: work belongs in
    /// [`Held::step`]. Its requests: one step for the identity and one for each attempt (one or two `UpdateItem`), one wait
    /// for each turn, and one step for the release (one `GetItem` and one `UpdateItem` for each key). IAM actions
    /// `dynamodb:GetItem` and `dynamodb:UpdateItem` on the keys.
    ///
    /// # Errors
    ///
    /// [`Held`](crate::ErrorKind::Held) after the wait, [`Lost`](crate::ErrorKind::Lost) if the body passes on that a step
    /// has lost the lock, and [`Operation`](crate::ErrorKind::Operation) with the error of the body.
    ///
    /// If the execution is stopped, nothing is released, and the key is held until the lease ends.
    pub async fn run<T, F, Fut>(self, body: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(Held) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, BoxError>> + Send + 'static,
    {
        let Self { ctx, claim, wait, identity } = self;
        let name = format!("lock {claim}");
        let run = ctx.run_in_child_context(move |ctx| async move {
            let identity = match identity {
                Some(identity) => identity,
                None => own_identity(&ctx).await?,
            };
            if let Err(refusal) = acquire(&ctx, &claim, &identity, wait).await? {
                return Ok(Outcome::Refused(refusal));
            }
            let held = Held::new(ctx.clone(), claim.clone(), identity.clone());
            let result = AssertUnwindSafe(async { body(held).await }).catch_unwind().await;
            release(&ctx, claim, identity).await;
            Outcome::of(result.unwrap_or_else(|panic| resume_unwind(panic)))
        });
        run.name(name).await?.into_result()
    }
}

/// Draws the identity. It is in the history before it holds anything, so each replay has the same.
async fn own_identity(ctx: &DurableContext) -> Result<String, BoxError> {
    let drawn = ctx.step(|_| async { request_token().ok_or_else(|| BoxError::from("no random number was available")) });
    let nonce = drawn.name("draw the identity").await?;
    Ok(format!("{}#{nonce}", ctx.execution_arn()))
}

/// Makes attempts until one succeeds or the wait ends.
async fn acquire(
    ctx: &DurableContext,
    claim: &Claim,
    identity: &str,
    wait: Duration,
) -> Result<Result<(), Refusal>, BoxError> {
    let mut turn = None;
    loop {
        let (claim, identity) = (claim.clone(), identity.to_owned());
        let attempt = ctx.step(move |_| async move {
            Ok(match claim.attempt(&identity, wait, turn).await {
                Ok(asked) => Outcome::Done(asked),
                Err(error) => Outcome::Refused(error.into()),
            })
        });
        match attempt.name("acquire").await? {
            Outcome::Done(Asked::Acquired(_)) => return Ok(Ok(())),
            Outcome::Done(Asked::Waiting(next)) => {
                ctx.wait(Duration::from_secs(next.delay_in_seconds())).name("wait for the turn").await?;
                turn = Some(*next);
            }
            Outcome::Refused(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Frees the key. If that fails, the key is free when the lease ends.
async fn release(ctx: &DurableContext, claim: Claim, identity: String) {
    let name = claim.to_string();
    let released = ctx.step(move |_| async move { Ok(claim.release(&identity).await?) });
    if let Err(error) = released.name("release").retry_strategy(retry).await {
        tracing::warn!(key = name, %error, "the release failed: the key is held until the lease ends");
    }
}
