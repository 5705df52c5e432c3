//! Hides messages in progress elsewhere until that lease ends.

use std::time::Duration;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use aws_sdk_sqs::Client;
use futures_util::future::FutureExt as _;

use super::super::batch::Hide;

/// SQS allows 12 hours; in seconds.
const MAX_VISIBILITY_TIMEOUT: i32 = 12 * 3600;

/// Returns what hides this message, unless it has no queue or no receipt.
pub(super) fn hide(queues: Client, message: &SqsRecord) -> Option<Hide> {
    let url = queue_url(message.event_source_arn.as_deref()?)?;
    let receipt = message.receipt_handle.clone()?;
    let message_id = message.message_id.clone();
    Some(Box::new(move |left: Duration| {
        // SQS counts whole seconds: the first one after the lease has ended.
        let seconds = i32::try_from(left.as_secs() + 1).unwrap_or(MAX_VISIBILITY_TIMEOUT);
        let request = queues
            .change_message_visibility()
            .queue_url(&url)
            .receipt_handle(&receipt)
            .visibility_timeout(seconds.min(MAX_VISIBILITY_TIMEOUT));
        let message_id = message_id.clone();
        let hiding = async move {
            let answer = tokio::time::timeout(Duration::from_secs(2), Box::pin(request.send())).await;
            if !matches!(answer, Ok(Ok(_))) {
                tracing::warn!(message_id, "message in progress not hidden");
            }
        };
        hiding.boxed()
    }))
}

/// Returns the URL of the queue with this ARN.
fn queue_url(arn: &str) -> Option<String> {
    let mut parts = arn.splitn(6, ':').skip(1);
    let (partition, _service, region, account, name) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let domain = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
    Some(format!("https://sqs.{region}.{domain}/{account}/{name}"))
}
