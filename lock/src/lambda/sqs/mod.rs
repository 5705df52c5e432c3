//! The consumer of SQS batches: each message runs once, and only the messages that failed return to the queue.

mod consumer;
#[cfg(feature = "sqs")]
mod hide;
mod message;
mod queue;
mod service;

pub use consumer::SqsConsumer;
pub use message::SqsMessage;
pub use service::SqsConsumerService;
