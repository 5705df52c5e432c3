//! The middlewares for `lambda_runtime` handlers: a lock, a record of idempotency, and a queue consumer, with their
//! settings and services. Feature `lambda`.

mod batch;
mod diagnostic;
mod idempotency_layer;
mod invocation;
mod lock_layer;
mod locked_event;
mod sqs;
#[cfg(feature = "streams")]
pub(crate) mod streams;

pub use idempotency_layer::{IdempotencyLayer, IdempotencyService};
#[cfg(feature = "http")]
pub(crate) use invocation::invocation_of;
pub use lock_layer::{LockLayer, LockService, OnUnavailable};
pub use locked_event::{HandlerEvent, LockedEvent};
pub use sqs::{SqsConsumer, SqsConsumerService, SqsMessage};
