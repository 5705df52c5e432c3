//! Hides messages in progress elsewhere until that lease ends.

use std::time::Duration;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use futures_util::future::{BoxFuture, FutureExt as _, join_all};

use super::queue::Queue;
use crate::clock::since_epoch;
use crate::error::{Error, ErrorKind};
use crate::lock::Locks;

/// SQS allows 12 hours; in seconds.
const MAX_VISIBILITY_TIMEOUT: i32 = 12 * 3600;

impl<B> Queue<B> {
    /// Hides these records until the lease of their holder ends, if `error` says that their work is in progress.
    pub(super) fn hide<'a>(
        &self,
        records: impl Iterator<Item = &'a SqsRecord>,
        error: &Error,
        locks: &Locks,
    ) -> BoxFuture<'static, ()> {
        let requests: Vec<_> = records.filter_map(|record| self.hiding(record, error, locks)).collect();
        join_all(requests).map(|_| ()).boxed()
    }

    /// Returns the request that hides one record.
    fn hiding(&self, record: &SqsRecord, error: &Error, locks: &Locks) -> Option<BoxFuture<'static, ()>> {
        let queues = self.queues.as_ref()?;
        let holder = error.holder().filter(|_| error.kind() == ErrorKind::InProgress)?;
        let now = locks.0.clock.now();
        let left = since_epoch(holder.until()).saturating_sub(now.wall);
        // SQS counts whole seconds: the first one after the lease has ended.
        let seconds = i32::try_from(left.as_secs() + 1).unwrap_or(MAX_VISIBILITY_TIMEOUT);
        let request = queues
            .change_message_visibility()
            .queue_url(queue_url(record.event_source_arn.as_deref()?)?)
            .receipt_handle(record.receipt_handle.as_deref()?)
            .visibility_timeout(seconds.min(MAX_VISIBILITY_TIMEOUT));
        let message_id = record.message_id.clone();
        let hiding = async move {
            let answer = tokio::time::timeout(Duration::from_secs(2), Box::pin(request.send())).await;
            if !matches!(answer, Ok(Ok(_))) {
                tracing::warn!(message_id, "message in progress not hidden");
            }
        };
        Some(hiding.boxed())
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
