//! `SqsSource`: how a batch of messages is read and answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage as SqsRecord};
use serde::de::DeserializeOwned;

#[cfg(feature = "sqs")]
use super::super::batch::Inform;
use super::super::batch::{Label, NotDone, Source, json_error, log_not_done};
use super::message::{SqsMessage, receive_count};
#[cfg(feature = "sqs")]
use super::requests::Requests;

/// The queues that an [`SqsConsumer`](crate::SqsConsumer) gets messages from.
pub struct SqsSource<B> {
    parse: Parse<B>,
    pub(super) max_receive_count: Option<u32>,
    #[cfg(feature = "sqs")]
    pub(super) requests: Requests,
}

type Parse<B> = Arc<dyn Fn(&str) -> Result<B, String> + Send + Sync>;

impl<B> SqsSource<B> {
    pub(super) fn new(parse: impl Fn(&str) -> Result<B, String> + Send + Sync + 'static) -> Self {
        Self {
            parse: Arc::new(parse),
            max_receive_count: None,
            #[cfg(feature = "sqs")]
            requests: Requests::default(),
        }
    }
}

/// Bodies are JSON.
impl<B: DeserializeOwned> Default for SqsSource<B> {
    fn default() -> Self {
        Self::new(|text| serde_json::from_str(text).map_err(|error| json_error(&error)))
    }
}

impl<B> Source for SqsSource<B> {
    type Event = SqsEvent;
    type Answer = SqsBatchResponse;
    type Item = SqsMessage<B>;
    type Raw = SqsRecord;
    /// The queue and the group.
    type Lane = (String, String);

    /// The longest time that a queue keeps a message, 14 days, and a day.
    const WINDOW: Duration = Duration::from_hours(15 * 24);
    const NAME: &'static str = "message id";
    const UNFINISHED: &'static str = "unfinished messages returned to the queue";

    log_not_done!(message_id, queue, "message returned to the queue");

    fn batch(&self, event: SqsEvent) -> Result<Vec<SqsRecord>, &'static str> {
        Ok(event.records)
    }

    fn name(message: &SqsRecord) -> Option<String> {
        message.message_id.clone()
    }

    fn source(message: &SqsRecord) -> Option<String> {
        message.event_source_arn.clone()
    }

    fn origin(message: &SqsRecord) -> Option<String> {
        Some(message.event_source_arn.as_deref()?.rsplit(':').next()?.to_owned())
    }

    fn receive_count(message: &SqsRecord) -> Option<u32> {
        receive_count(message)
    }

    fn max_receive_count(&self) -> Option<u32> {
        self.max_receive_count
    }

    fn lane(message: &SqsRecord) -> Option<Self::Lane> {
        let queue = message.event_source_arn.as_deref()?;
        queue.strip_suffix(".fifo")?;
        let group = message.attributes.get("MessageGroupId").cloned().unwrap_or_default();
        Some((queue.to_owned(), group))
    }

    fn read(&self, mut record: SqsRecord) -> Result<SqsMessage<B>, String> {
        let text = record.body.take().unwrap_or_default();
        let body = (self.parse)(&text).map_err(|why| format!("the body cannot be parsed: {why}"))?;
        Ok(SqsMessage { body, record })
    }

    #[cfg(feature = "sqs")]
    fn inform(&self, message: &SqsRecord) -> Option<Inform> {
        self.requests.inform(message)
    }

    fn answer(not_done: Vec<String>) -> SqsBatchResponse {
        let mut answer = SqsBatchResponse::default();
        for message_id in not_done {
            answer.add_failure(message_id);
        }
        answer
    }
}

// By hand, because a derive would require the type of bodies to be `Clone` and `Debug`.
impl<B> Clone for SqsSource<B> {
    fn clone(&self) -> Self {
        Self {
            parse: Arc::clone(&self.parse),
            max_receive_count: self.max_receive_count,
            #[cfg(feature = "sqs")]
            requests: self.requests.clone(),
        }
    }
}

impl<B> fmt::Debug for SqsSource<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSource").finish_non_exhaustive()
    }
}
