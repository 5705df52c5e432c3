//! The middlewares for `lambda_runtime` handlers. Feature `lambda`.

mod diagnostic;
mod idempotent_layer;
mod invocation;
mod lock_layer;
mod sqs;

pub use idempotent_layer::{IdempotentLayer, IdempotentService};
pub use lock_layer::{HandlerEvent, LockLayer, LockService, LockedEvent, OnUnavailable};
pub use sqs::{Message, SqsConsumer, SqsConsumerService};
