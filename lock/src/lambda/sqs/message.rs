//! `SqsMessage`: one message of a batch, as its handler sees it.

use std::fmt;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use serde::Serialize;

use super::super::event_id::sealed::Sealed;
use super::super::event_id::{HasEventId, id_of_written};
use super::super::handler_input::PlainInput;

/// Returns how often SQS has delivered a message.
pub(super) fn receive_count(message: &SqsRecord) -> Option<u32> {
    message.attributes.get("ApproximateReceiveCount")?.parse().ok()
}

/// One message of a batch.
///
/// ```
/// use aws_lambda_events::sqs::SqsMessage as SqsRecord;
/// use lambda_lock::lambda::SqsMessage;
///
/// let mut record = SqsRecord::default();
/// record.message_id = Some("17".to_owned());
/// let message = SqsMessage::new("the body", record);
/// assert_eq!(message.message_id(), Some("17"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct SqsMessage<B> {
    /// The parsed body.
    pub body: B,
    /// The other fields of the SQS message: attributes, receipt handle, queue. The consumer removes the
    /// record's own body.
    pub record: SqsRecord,
}

impl<B> SqsMessage<B> {
    /// Creates a message, for testing a handler alone.
    pub fn new(body: B, record: SqsRecord) -> Self {
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

impl<B> PlainInput for SqsMessage<B> {}

impl<B> Sealed for SqsMessage<B> {}

impl<B: Serialize> HasEventId for SqsMessage<B> {
    fn event_id(&self) -> Option<String> {
        id_of_written(&self.body)
    }
}

/// Shows the message id only: the body and the attributes may be confidential.
impl<B> fmt::Debug for SqsMessage<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsMessage").field("message_id", &self.message_id()).finish_non_exhaustive()
    }
}
