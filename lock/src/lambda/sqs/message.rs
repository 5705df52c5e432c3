//! `Message`: one message of a batch, as its handler sees it.

use std::fmt;

use aws_lambda_events::sqs::SqsMessage;

use super::super::handler_input::PlainInput;

/// One message of a batch.
///
/// ```
/// use aws_lambda_events::sqs::SqsMessage;
/// use lambda_lock::Message;
///
/// let mut record = SqsMessage::default();
/// record.message_id = Some("17".to_owned());
/// let message = Message::new("the body", record);
/// assert_eq!(message.message_id(), Some("17"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Message<B> {
    /// The parsed body.
    pub body: B,
    /// The other fields of the SQS message: attributes, receipt handle, queue. The consumer removes the
    /// record's own body.
    pub record: SqsMessage,
}

impl<B> Message<B> {
    /// Creates a message, for testing a handler alone.
    pub fn new(body: B, record: SqsMessage) -> Self {
        Self { body, record }
    }

    /// Returns the id that SQS assigned when the message was sent. All deliveries of a message have the same id.
    pub fn message_id(&self) -> Option<&str> {
        self.record.message_id.as_deref()
    }

    /// Returns the deduplication id in a FIFO queue: the sender's, or the hash of the body with content-based
    /// deduplication.
    pub fn deduplication_id(&self) -> Option<&str> {
        self.attribute("MessageDeduplicationId")
    }

    /// Returns the group within which a FIFO queue keeps the order.
    pub fn group_id(&self) -> Option<&str> {
        self.attribute("MessageGroupId")
    }

    fn attribute(&self, name: &str) -> Option<&str> {
        self.record.attributes.get(name).map(String::as_str)
    }
}

impl<B> PlainInput for Message<B> {}

/// Shows the message id only: the body and the attributes may be confidential.
impl<B> fmt::Debug for Message<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("message_id", &self.message_id()).finish_non_exhaustive()
    }
}
