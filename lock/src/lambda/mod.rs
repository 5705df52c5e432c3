//! The middlewares for `lambda_runtime` handlers: a lock, a record of idempotency, and a queue consumer, with their
//! settings and services. Feature `lambda`.

mod batch;
mod diagnostic;
mod event_id;
mod handler_input;
mod idempotency_layer;
mod invocation;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
mod layered;
mod lock_layer;
mod snap_start;
mod sqs;
#[cfg(feature = "streams")]
pub(crate) mod streams;

pub use batch::{Consumer, ConsumerService, Source};
pub use event_id::{HasEventId, event_id};
pub use handler_input::{HandlerInput, WithLock, WithRun};
pub use idempotency_layer::{IdempotencyLayer, IdempotencyService};
#[cfg(feature = "http")]
pub(crate) use invocation::invocation_of;
pub use layered::Layered;
pub use lock_layer::{LockLayer, LockService, OnUnavailable};
pub use sqs::{SqsConsumer, SqsMessage, SqsSource};
