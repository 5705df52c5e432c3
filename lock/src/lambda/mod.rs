//! The middlewares for `lambda_runtime` handlers. Feature `lambda`.

mod batch;
mod diagnostic;
mod handler_input;
mod idempotent_layer;
mod invocation;
mod lock_layer;
mod sqs;
#[cfg(feature = "streams")]
mod streams;

pub use batch::{Consumer, ConsumerService, Source};
pub use handler_input::{HandlerInput, WithLock, WithRun};
pub use idempotent_layer::{IdempotentLayer, IdempotentService};
#[cfg(feature = "http")]
pub(crate) use invocation::invocation_of;
pub use lock_layer::{LockLayer, LockService, OnUnavailable};
pub use sqs::{Message, SqsConsumer, SqsSource};
#[cfg(feature = "streams")]
pub use streams::{DynamoDbRecord, KinesisRecord, StreamConsumer, StreamRecord, StreamSource};
