//! The acquire of a durable lock, and its release.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use aws_durable_execution_sdk::{BoxError, DurableContext};
use futures_util::FutureExt as _;
use lambda_lock::{Locks, request_token};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::claim::{Asked, Claim, Kind};
use crate::error::Error;
use crate::held::Held;
use crate::name::operation_name;
use crate::outcome::Outcome;
use crate::refusal::Refusal;
use crate::retry::{Repeatable, retry_request};

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
    /// invocation. It is for the longest step, with the time until the next one. If the execution ends without a release, the
    /// key stays held for this time, and after a [`Held::wait`] also for the rest of the wait.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.claim.lease = lease;
        self
    }

    /// Sets how long the execution waits for other holders: a day by default. It is suspended meanwhile, and keeps its turn.
    pub fn wait_up_to(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the [identity](lambda_lock::Acquire::identity) that holds the lock. By default, it is the execution's ARN with
    /// a random number, so that parallel branches of an execution exclude each other.
    ///
    /// With the ARN itself, [`Locks::release_identity`] frees the key after the execution was stopped. No two branches may
    /// take the same key then.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Takes the lock, runs the body, and frees the key after the body's success, error and panic. All operations are in a
    /// child context, which has the name of the key.
    ///
    /// The body runs again on each replay, as every function of a durable execution does: work belongs in
    /// [`Held::step`]. In the body, use only [`Held::context`] and the contexts that its operations pass, with
    /// [`Held::within`]: an operation of an outer context breaks the replay. A panic is recorded. The
    /// work of a [`Held::step`] that panicked is not repeated.
    ///
    /// Its requests: one step for the identity and one for each attempt (one or two `UpdateItem`; for several keys, one
    /// `TransactWriteItems` and one `UpdateItem` for each place in a queue), one wait for each turn, and one step for the
    /// release (one `GetItem` and one `UpdateItem` for each key), also after a refusal. IAM actions `dynamodb:GetItem` and
    /// `dynamodb:UpdateItem` on the keys.
    ///
    /// # Errors
    ///
    /// [`Held`](crate::ErrorKind::Held) after the wait, [`Lost`](crate::ErrorKind::Lost) if the body passes on that a step
    /// has lost the lock, [`Panic`](crate::ErrorKind::Panic), and [`Operation`](crate::ErrorKind::Operation) with the error of
    /// the body.
    ///
    /// Nothing is released if the execution ends on the way: it is stopped or times out, Lambda refuses a result for good
    /// (one that is too large), or the future of this method is dropped. [`lease`](Self::lease) says when the key is free.
    pub async fn run<T, F, Fut>(self, body: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(Held) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, BoxError>> + Send + 'static,
    {
        let Self { ctx, claim, wait, identity } = self;
        let name = operation_name(&format!("lock {claim}"));
        let run = ctx.run_in_child_context(move |ctx| async move {
            let identity = match identity {
                Some(identity) => identity,
                None => own_identity(&ctx).await?,
            };
            let lock = claim.id(&identity);
            let outcome = match acquire(&ctx, &claim, &identity, wait).await? {
                None => {
                    let held = Held::new(ctx.clone(), claim.clone(), identity.clone());
                    // A panic that ended the invocation would leave a history with the release, which no replay matches.
                    match AssertUnwindSafe(async { body(held).await }).catch_unwind().await {
                        Ok(result) => Outcome::of(&lock, result),
                        Err(panic) => Ok(Outcome::of_panic(&*panic)),
                    }
                }
                Some(refusal) => Ok(Outcome::Refused(refusal)),
            };
            // A refused attempt may have taken the key all the same: its answer was lost.
            release(&ctx, claim, identity).await;
            outcome
        });
        run.name(name).await?.into_result()
    }
}

/// Draws the identity. It is in the history before it holds anything, so each replay has the same.
async fn own_identity(ctx: &DurableContext) -> Result<String, BoxError> {
    let drawn = ctx.step(|_| async { Ok(request_token()) });
    let nonce = drawn.name("draw the identity").await?;
    Ok(format!("{}#{nonce}", ctx.execution_arn()))
}

/// Makes attempts until one succeeds or the wait ends. Returns the refusal then.
async fn acquire(
    ctx: &DurableContext,
    claim: &Claim,
    identity: &str,
    wait: Duration,
) -> Result<Option<Refusal>, BoxError> {
    let mut turn = None;
    loop {
        let (claim, identity) = (claim.clone(), identity.to_owned());
        let attempt = ctx.step(move |_| async move {
            Ok(match claim.attempt(&identity, wait, turn).await {
                Ok(asked) => Outcome::Done(asked),
                Err(error) => Outcome::Refused(Refusal::new(&claim.id(&identity), &error)),
            })
        });
        match attempt.name("acquire").await? {
            Outcome::Done(Asked::Acquired) => return Ok(None),
            Outcome::Done(Asked::Waiting(next)) => {
                ctx.wait(Duration::from_secs(next.delay_in_seconds())).name("wait for the turn").await?;
                turn = Some(*next);
            }
            Outcome::Refused(refusal) | Outcome::Passed(refusal) => return Ok(Some(refusal)),
            Outcome::Panicked(message) => return Err(message.into()),
        }
    }
}

/// Frees the key. If that fails, the key is free when the lease ends.
async fn release(ctx: &DurableContext, claim: Claim, identity: String) {
    let name = claim.to_string();
    let released = ctx.step(move |step| async move {
        Ok(match claim.release(&identity).await {
            Ok(()) => Outcome::Done(()),
            Err(error) => Outcome::Refused(Repeatable::or_refusal(&claim.id(&identity), error, &step)?),
        })
    });
    let released = released.name("release").retry_strategy(retry_request).await;
    if let Err(error) = released.map_err(Error::from).and_then(Outcome::into_result) {
        tracing::warn!(key = name, ?error, "the release failed: the key is held until the lease ends");
    }
}
