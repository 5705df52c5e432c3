//! What the consumer asks of SQS: to hide a message for a while, and to keep a dead letter.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::sqs::{SqsMessage as SqsRecord, SqsMessageAttribute};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::MessageAttributeValue;
use futures_util::future::{FutureExt as _, ready};
use tokio::time::timeout;

use super::super::batch::{Fate, Inform};
use super::message::receive_count;
use crate::error::message_of;
use crate::lock::Backoff;
use crate::text::{printable, printable_up_to, shortened};

/// SQS hides a message for 12 hours after its receive at most, and refuses more. Since the receive, a batching window of up
/// to 5 minutes and an invocation of up to 15 may have passed. In seconds.
const MAX_VISIBILITY_TIMEOUT: u64 = 12 * 3600 - 20 * 60;
/// The most attributes of a message.
const MAX_ATTRIBUTES: usize = 10;
/// The id of the message that a dead letter was.
const DEAD_LETTER_OF: &str = "DeadLetterOf";
const REASON: &str = "DeadLetterReason";
/// The longest reason, in bytes.
const MAX_REASON: usize = 1024;
/// The longest time for a request, including the SDK's retries.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Which requests the consumer sends.
#[derive(Clone, Default)]
pub(super) struct Requests {
    pub(super) hide_in_progress: Option<Client>,
    pub(super) back_off: Option<(Client, Backoff)>,
    /// With the URL of the dead-letter queue.
    pub(super) dead_letters: Option<(Client, Arc<str>)>,
}

impl Requests {
    /// Returns what sends the requests for this message.
    pub(super) fn inform(&self, message: &SqsRecord) -> Option<Inform> {
        let Self { hide_in_progress, back_off, dead_letters } = self.clone();
        if hide_in_progress.is_none() && back_off.is_none() && dead_letters.is_none() {
            return None;
        }
        let receipt = Receipt::of(message);
        let receives = receive_count(message).unwrap_or(1);
        // With its body, which the consumer parses.
        let dead_letters = dead_letters.map(|dead_letters| (dead_letters, message.clone()));
        Some(Box::new(move |fate| {
            let (queues, seconds) = match (fate, &hide_in_progress, &back_off, &dead_letters) {
                // SQS counts whole seconds: the first one after the lease has ended.
                (Fate::InProgress(left), Some(queues), ..) => (queues, left.as_secs() + 1),
                (Fate::Failed, _, Some((queues, backoff)), _) => {
                    let delay = backoff.after(receives);
                    (queues, delay.as_secs().saturating_add(u64::from(delay.subsec_nanos() > 0)).max(1))
                }
                (Fate::Dead { reason, within }, .., Some(((queues, url), message))) => {
                    return send(queues.clone(), Arc::clone(url), message.clone(), reason, within).boxed();
                }
                _ => return ready(false).boxed(),
            };
            match &receipt {
                Some(receipt) => hide(queues.clone(), receipt.clone(), seconds).map(|()| false).boxed(),
                None => ready(false).boxed(),
            }
        }))
    }
}

/// What names a received message to its queue.
#[derive(Clone)]
struct Receipt {
    queue_url: String,
    handle: String,
    message_id: Option<String>,
}

impl Receipt {
    fn of(message: &SqsRecord) -> Option<Self> {
        Some(Self {
            queue_url: queue_url(message.event_source_arn.as_deref()?)?,
            handle: message.receipt_handle.clone().filter(|handle| !handle.is_empty())?,
            message_id: message.message_id.clone(),
        })
    }
}

/// Returns the URL of the queue with this ARN.
fn queue_url(arn: &str) -> Option<String> {
    let mut parts = arn.splitn(6, ':').skip(1);
    let (partition, _service, region, account, name) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let domain = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
    Some(format!("https://sqs.{region}.{domain}/{account}/{name}"))
}

/// Hides a message for so many seconds from now on.
async fn hide(queues: Client, Receipt { queue_url, handle, message_id }: Receipt, seconds: u64) {
    let seconds = i32::try_from(seconds.min(MAX_VISIBILITY_TIMEOUT)).unwrap_or_default();
    let request = queues.change_message_visibility().queue_url(&queue_url).receipt_handle(&handle);
    let request = request.visibility_timeout(seconds).send();
    if let Err(why) = answer(TIMEOUT, request).await {
        // SQS may repeat the handle, with which the message can be deleted.
        let why = shown(&why.replace(&handle, "…"));
        let (message_id, action) = (message_id.as_deref(), "sqs:ChangeMessageVisibility");
        tracing::warn!(message_id, queue_url, action, why, "message not hidden");
    }
}

/// Sends a copy of a message to the dead-letter queue. Returns whether SQS has it.
async fn send(queues: Client, url: Arc<str>, message: SqsRecord, reason: String, within: Duration) -> bool {
    let message_id = message.message_id.as_deref();
    let Some(attributes) = attributes(&message, &reason) else {
        tracing::warn!(
            message_id,
            "dead letter not sent: it would have more than ten attributes, or one that SQS refuses"
        );
        return false;
    };
    let group = message.attributes.get("MessageGroupId").cloned();
    let mut request = queues
        .send_message()
        .queue_url(&*url)
        .set_message_body(message.body.clone())
        .set_message_attributes(Some(attributes));
    request = if url.ends_with(".fifo") {
        // A copy that is sent again within five minutes is the same one to a FIFO queue.
        request
            .set_message_group_id(group.or_else(|| message.message_id.clone()))
            .set_message_deduplication_id(message.message_id.clone())
    } else {
        request.set_message_group_id(group)
    };
    let answer = answer(TIMEOUT.min(within), request.send()).await;
    if let Err(why) = &answer {
        let (queue_url, why, action) = (shown(&url), shown(why), "sqs:SendMessage");
        tracing::warn!(message_id, queue_url, action, why, "dead letter not sent");
    }
    answer.is_ok()
}

/// Returns the attributes of a dead letter: those of the message, which message it was, and why. `None` if they are too
/// many, or cannot be sent; the reason is left out first.
fn attributes(message: &SqsRecord, reason: &str) -> Option<HashMap<String, MessageAttributeValue>> {
    let text = |text: &str| MessageAttributeValue::builder().data_type("String").string_value(text).build().ok();
    let mut attributes = HashMap::new();
    for (name, value) in &message.message_attributes {
        attributes.insert(name.clone(), copied(value)?);
    }
    attributes.remove(REASON);
    attributes.insert(DEAD_LETTER_OF.to_owned(), text(message.message_id.as_deref()?)?);
    if !reason.is_empty() && attributes.len() < MAX_ATTRIBUTES {
        // SQS refuses these two characters.
        let reason = printable(reason).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
        attributes.insert(REASON.to_owned(), text(&shortened(&reason, MAX_REASON))?);
    }
    Some(attributes).filter(|attributes| attributes.len() <= MAX_ATTRIBUTES)
}

fn copied(value: &SqsMessageAttribute) -> Option<MessageAttributeValue> {
    let binary = value.binary_value.as_ref().map(|data| Blob::new(data.0.clone()));
    MessageAttributeValue::builder()
        .set_data_type(value.data_type.clone())
        .set_string_value(value.string_value.clone())
        .set_binary_value(binary)
        .build()
        .ok()
}

/// Makes a text fit for a line of the log.
fn shown(text: &str) -> String {
    printable_up_to(text, MAX_REASON).into_owned()
}

/// Waits for the answer to a request, or says why it has none.
async fn answer<A, E: ProvideErrorMetadata + StdError + 'static>(
    within: Duration,
    request: impl Future<Output = Result<A, SdkError<E>>>,
) -> Result<(), String> {
    match timeout(within, Box::pin(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(message_of(&error)),
        Err(_) => Err("no answer".to_owned()),
    }
}
