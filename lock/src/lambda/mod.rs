//! The middlewares for `lambda_runtime` handlers. Feature `lambda`.

mod batch;
mod diagnostic;
mod idempotent_layer;
mod invocation;
mod lock_layer;
mod locked_event;
mod sqs;
#[cfg(feature = "streams")]
mod streams;

pub use idempotent_layer::{IdempotentLayer, IdempotentService};
#[cfg(feature = "http")]
pub(crate) use invocation::invocation_of;
pub use lock_layer::{LockLayer, LockService, OnUnavailable};
pub use locked_event::{HandlerEvent, LockedEvent};
pub use sqs::{Message, SqsConsumer, SqsConsumerService};
#[cfg(feature = "streams")]
pub use streams::{DynamoDbRecord, KinesisRecord, StreamConsumer, StreamConsumerService, StreamRecord};
