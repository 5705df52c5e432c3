//! `LockedEvent`: an event and its lock, and the events that a handler under a `LockLayer` may take.

use std::fmt;
use std::sync::Arc;

use lambda_runtime::{Context, LambdaEvent};

use crate::lock::Lock;

/// The event of a handler under a [`LockLayer`](crate::LockLayer): a `LambdaEvent`, or a [`LockedEvent`] to get the lock
/// as well.
///
/// This trait is sealed.
pub trait HandlerEvent: sealed::Sealed + 'static {
    /// The type of the event's payload.
    type Payload;

    #[doc(hidden)]
    fn locked(event: LambdaEvent<Self::Payload>, lock: &Arc<Lock>) -> Self;
}

impl<P: 'static> HandlerEvent for LambdaEvent<P> {
    type Payload = P;

    fn locked(event: LambdaEvent<P>, _: &Arc<Lock>) -> Self {
        event
    }
}

impl<P: 'static> HandlerEvent for LockedEvent<P> {
    type Payload = P;

    fn locked(event: LambdaEvent<P>, lock: &Arc<Lock>) -> Self {
        Self::new(event, Arc::clone(lock))
    }
}

mod sealed {
    pub trait Sealed {}
    impl<P> Sealed for lambda_runtime::LambdaEvent<P> {}
    impl<P> Sealed for super::LockedEvent<P> {}
}

/// An event and its lock, for a handler that needs the fence or renews the lease.
///
/// ```
/// # use lambda_lock::LockedEvent;
/// # use lambda_runtime::Error;
/// async fn handler(event: LockedEvent<String>) -> Result<u64, Error> {
///     // write(event.payload, event.lock.fence()) …
///     Ok(event.lock.fence())
/// }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct LockedEvent<P> {
    /// The event's payload.
    pub payload: P,
    /// The invocation's context.
    pub context: Context,
    /// The lock. The middleware releases it after the handler.
    pub lock: Arc<Lock>,
}

impl<P> LockedEvent<P> {
    /// Creates an event with a lock, for testing a handler alone.
    #[must_use]
    pub fn new(event: LambdaEvent<P>, lock: Arc<Lock>) -> Self {
        let (payload, context) = event.into_parts();
        Self { payload, context, lock }
    }
}

/// Omits the payload, which may be confidential.
impl<P> fmt::Debug for LockedEvent<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedEvent")
            .field("request_id", &self.context.request_id)
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}
