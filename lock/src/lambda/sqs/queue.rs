//! How a batch of SQS messages is read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
#[cfg(feature = "sqs")]
use futures_util::future::BoxFuture;

use super::super::batch::{Name, Source};
use super::message::SqsMessage;
#[cfg(feature = "sqs")]
use crate::error::Error;
#[cfg(feature = "sqs")]
use crate::lock::Locks;

/// The queues that a consumer gets messages from.
pub(super) struct Queue<B> {
    parse: Parse<B>,
    #[cfg(feature = "sqs")]
    pub(super) queues: Option<aws_sdk_sqs::Client>,
}

type Parse<B> = Arc<dyn Fn(&str) -> Result<B, String> + Send + Sync>;

impl<B> Queue<B> {
    pub(super) fn new(parse: impl Fn(&str) -> Result<B, String> + Send + Sync + 'static) -> Self {
        Self {
            parse: Arc::new(parse),
            #[cfg(feature = "sqs")]
            queues: None,
        }
    }
}

impl<B> Source for Queue<B> {
    type Record = SqsRecord;
    type Item = SqsMessage<B>;
    /// The message without its body.
    type Copy = SqsRecord;
    /// The queue and the group.
    type Lane = (String, String);

    /// The longest time that a queue keeps a message, 14 days, and a day.
    const WINDOW: Duration = Duration::from_hours(15 * 24);
    const NOT_DONE: &'static str = "message returned to the queue";
    const UNFINISHED: &'static str = "unfinished messages returned to the queue";

    fn name(record: &SqsRecord) -> Name {
        Name::Message(record.message_id.clone())
    }

    fn lane(record: &SqsRecord) -> Option<Self::Lane> {
        let queue = record.event_source_arn.as_deref()?;
        queue.strip_suffix(".fifo")?;
        let group = record.attributes.get("MessageGroupId").cloned().unwrap_or_default();
        Some((queue.to_owned(), group))
    }

    fn read(&self, mut record: SqsRecord) -> Result<SqsMessage<B>, String> {
        if record.message_id.is_none() {
            return Err("it has no message id".to_owned());
        }
        let text = record.body.take().unwrap_or_default();
        let body = (self.parse)(&text).map_err(|why| format!("the body cannot be parsed: {why}"))?;
        Ok(SqsMessage { body, record })
    }

    fn copy(SqsMessage { body, record }: SqsMessage<B>) -> SqsRecord {
        // The drop of a body may panic.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(body)));
        record
    }

    #[cfg(feature = "sqs")]
    fn refused(
        &self,
        message: &SqsMessage<B>,
        copies: &[SqsRecord],
        error: &Error,
        locks: &Locks,
    ) -> BoxFuture<'static, ()> {
        self.hide(std::iter::once(&message.record).chain(copies), error, locks)
    }
}

// By hand, because a derive would require the type of bodies to be `Clone`.
impl<B> Clone for Queue<B> {
    fn clone(&self) -> Self {
        Self {
            parse: Arc::clone(&self.parse),
            #[cfg(feature = "sqs")]
            queues: self.queues.clone(),
        }
    }
}
