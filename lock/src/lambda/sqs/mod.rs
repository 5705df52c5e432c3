//! `SqsConsumer`: a message that is done does not run again, and the answer names the messages that are not done.

mod consumer;
mod message;
#[cfg(feature = "sqs")]
mod requests;
mod source;

pub use consumer::SqsConsumer;
pub use message::SqsMessage;
pub use source::SqsSource;
