//! What a handler takes: its plain input, or the input with its lock or its run.

use std::fmt;
use std::sync::Arc;

use lambda_runtime::LambdaEvent;

use crate::idempotency::Run;
use crate::lock::Lock;

/// What a handler takes: its input, or a [`WithLock`] or [`WithRun`] around it to get the lock or the run as well.
///
/// | the handler is under | it takes | or |
/// | --- | --- | --- |
/// | a [`LockLayer`](crate::LockLayer) | a `LambdaEvent` | a [`WithLock`] around it |
/// | an [`IdempotencyLayer`](crate::IdempotencyLayer) | a `LambdaEvent` | a [`WithRun`] around it |
/// | an [`SqsConsumer`](crate::SqsConsumer) | a [`SqsMessage`](crate::lambda::SqsMessage) | a [`WithRun`] around it |
/// | a `KafkaConsumer` | a `KafkaRecord` | a [`WithRun`](crate::WithRun) around it |
/// | a `StreamConsumer` | a `KinesisRecord` or a `DynamoDbRecord` | a [`WithRun`] around it |
///
/// This trait is sealed. `With` is what the handler may get beside its input.
pub trait HandlerInput<With>: sealed::Sealed {
    /// The plain input.
    type Input;

    #[doc(hidden)]
    fn with(input: Self::Input, with: &With) -> Self;
}

/// An input that a handler may take alone: an event, or one item of a batch.
pub trait PlainInput {}

impl<P> PlainInput for LambdaEvent<P> {}

impl<I: PlainInput, With> HandlerInput<With> for I {
    type Input = I;

    fn with(input: I, _: &With) -> I {
        input
    }
}

impl<I> HandlerInput<Arc<Lock>> for WithLock<I> {
    type Input = I;

    fn with(input: I, lock: &Arc<Lock>) -> Self {
        Self::new(input, Arc::clone(lock))
    }
}

impl<I> HandlerInput<Run> for WithRun<I> {
    type Input = I;

    fn with(input: I, run: &Run) -> Self {
        Self::new(input, run.clone())
    }
}

mod sealed {
    pub trait Sealed {}
    impl<I: super::PlainInput> Sealed for I {}
    impl<I> Sealed for super::WithLock<I> {}
    impl<I> Sealed for super::WithRun<I> {}
}

/// An input and its lock, for a handler that needs the fence or renews the lease.
///
/// ```
/// # use lambda_lock::WithLock;
/// # use lambda_runtime::{Error, LambdaEvent};
/// async fn handler(WithLock { input, lock, .. }: WithLock<LambdaEvent<String>>) -> Result<u64, Error> {
///     // write(input.payload, lock.fence()) …
///     Ok(lock.fence())
/// }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct WithLock<I> {
    /// The input: a `LambdaEvent`.
    pub input: I,
    /// The lock. The layer releases it after the handler.
    pub lock: Arc<Lock>,
}

impl<I> WithLock<I> {
    /// Creates an input with a lock, for testing a handler alone.
    #[must_use]
    pub fn new(input: I, lock: Arc<Lock>) -> Self {
        Self { input, lock }
    }
}

/// Omits the input, which may be confidential.
impl<I> fmt::Debug for WithLock<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithLock").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// An input and its run, for a handler that completes in its own transaction or needs the fence.
///
/// ```
/// # use lambda_lock::WithRun;
/// # use lambda_runtime::{Error, LambdaEvent};
/// async fn handler(WithRun { input, run, .. }: WithRun<LambdaEvent<String>>) -> Result<u64, Error> {
///     // write(input.payload, run.lock().fence()) …
///     Ok(run.lock().fence())
/// }
/// ```
///
/// A handler of HTTP requests finds its run in the request's extensions: `HttpRun`.
#[derive(Clone)]
#[non_exhaustive]
pub struct WithRun<I> {
    /// The input: a `LambdaEvent`, a message or a stream's record.
    pub input: I,
    /// The run.
    pub run: Run,
}

impl<I> WithRun<I> {
    /// Creates an input with a run, for testing a handler alone. [`Idempotency::run`](crate::Idempotency::run) provides
    /// a run, also when locking is switched off.
    #[must_use]
    pub fn new(input: I, run: Run) -> Self {
        Self { input, run }
    }
}

/// Omits the input, which may be confidential.
impl<I> fmt::Debug for WithRun<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithRun").field("run", &self.run).finish_non_exhaustive()
    }
}
