//! `SqsConsumer`: each message of a batch runs once, and only messages that are not done return to the queue.

mod consumer;
mod message;
#[cfg(feature = "sqs")]
mod requests;
mod source;

pub use consumer::SqsConsumer;
pub use message::SqsMessage;
pub use source::SqsSource;
