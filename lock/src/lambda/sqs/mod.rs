//! The consumer of SQS batches: each message runs once, and only the messages that failed return to the queue.

mod batch;
mod consumer;
#[cfg(feature = "sqs")]
mod hide;
mod message;
mod sequence;

pub use batch::SqsConsumerService;
pub use consumer::SqsConsumer;
pub use message::Message;
