//! `event_id`: what all deliveries of an event have in common.

use std::cmp::Ordering;

use lambda_runtime::LambdaEvent;
use serde::Serialize;
use serde_json::Value;

use super::invocation::escape;

/// Returns the id of an event of SNS, `EventBridge` or S3, as a key for [`Idempotency`](crate::Idempotency). All deliveries
/// of an event have the same id. Sends no request.
///
/// The payload is a `serde_json::Value`, or any type that is written as it was read, such as those of `aws_lambda_events`.
///
/// | an event of | has the key |
/// | --- | --- |
/// | SNS | its message id |
/// | `EventBridge`, also that of a schedule without an input of its own | `source#id` |
/// | S3 notifications | `bucket#key#version#sequencer#event`; the version is empty in a bucket without versions |
/// | anything else, or without one of these parts | none: [`OnMissingKey`](crate::idempotency::OnMissingKey) applies |
///
/// The key of an object is in the form of the notification. In each part, `#` becomes `%23` and `%` becomes `%25`. The ids of
/// an event with several records follow each other. Keys of objects can be longer than the 2,048 bytes of a row's key: choose
/// [`RecordFormat::Hashed`](crate::idempotency::RecordFormat::Hashed) for them. A publisher that sends twice creates two ids.
///
/// ```
/// # use lambda_lock::idempotency::OnMissingKey;
/// # use lambda_lock::lambda::event_id;
/// # use lambda_lock::{Idempotency, IdempotencyLayer, Locks};
/// # use lambda_runtime::LambdaEvent;
/// # use serde_json::Value;
/// # fn example(locks: Locks) -> IdempotencyLayer<LambdaEvent<Value>, Value, (), std::io::Error> {
/// IdempotencyLayer::new(Idempotency::new(locks, OnMissingKey::Reject, event_id))
/// # }
/// ```
pub fn event_id<P: Serialize>(event: &LambdaEvent<P>) -> Option<String> {
    let event = serde_json::to_value(&event.payload).ok()?;
    if let Some(records) = event["Records"].as_array() {
        let ids: Option<Vec<_>> = records.iter().map(|record| sns(record).or_else(|| s3(record))).collect();
        return ids.filter(|ids| !ids.is_empty()).map(|ids| ids.join("#"));
    }
    // Only EventBridge has a detail type.
    let [detail_type, source, id] = ["detail-type", "source", "id"].map(|name| text(&event[name]));
    detail_type.and(Some(key(&[&source?, &id?])))
}

fn sns(record: &Value) -> Option<String> {
    text(&record["Sns"]["MessageId"]).map(|id| key(&[&id]))
}

fn s3(record: &Value) -> Option<String> {
    let (s3, object) = (&record["s3"], &record["s3"]["object"]);
    let parts = [&s3["bucket"]["name"], &object["key"], &object["sequencer"], &record["eventName"]].map(text);
    let [Some(bucket), Some(object_key), Some(sequencer), Some(event)] = parts else { return None };
    let version = text(&object["versionId"]).unwrap_or_default();
    Some(key(&[&bucket, &object_key, &version, &sequencer, &event]))
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn key(parts: &[&str]) -> String {
    parts.iter().map(|part| escape(part)).collect::<Vec<_>>().join("#")
}

/// Compares the sequencers of two S3 notifications of one object: the greater one is of the later event. The shorter one
/// counts as if zeros followed it.
///
/// Sequencers of different objects have no order.
///
/// The row of a lock can remember the last event of an object, so that an older one that comes later is skipped. No other
/// event of the object runs meanwhile. An event that fails, or crashes, leaves the sequencer of the one before it, and runs
/// again when it is delivered again. The row remembers the sequencer for the [retention](crate::LocksBuilder::retention)
/// since the last event, 24 hours by default: choose it longer than an event can be late. A copy of the last event is skipped
/// as well: this needs no `Idempotency` in addition. An event that finds another one of its object in progress fails, as does
/// one whose release fails, and Lambda delivers it again. Two requests for each event.
///
/// Decode the key of the object first: a `+` is a space, and the rest is percent-encoded. The encoded key can be longer than
/// the 2,048 bytes that a lock's key may have. The template `objects` is a whole function. The table's policy has to allow
/// the key, here by the prefix `index#`:
///
/// ```
/// # use lambda_lock::Locks;
/// # use lambda_lock::lambda::compare_sequencers;
/// # use lambda_runtime::Error;
/// # async fn index(_: &str) -> Result<(), Error> { Ok(()) }
/// async fn index_unless_older(locks: &Locks, bucket: &str, object: &str, sequencer: &str) -> Result<(), Error> {
///     let of_object = locks.acquire(format!("index#{bucket}/{object}"));
///     let done = of_object.run(async |lock| {
///         let last = lock.data().and_then(|data| data.as_str()).unwrap_or_default();
///         if compare_sequencers(sequencer, last).is_gt() {
///             index(object).await?;
///             lock.set_data(sequencer);
///             // Writes it. The release after the body would only log that it failed.
///             lock.release().await?;
///         }
///         Ok(())
///     });
///     done.await?
/// }
/// ```
///
/// ```
/// use std::cmp::Ordering;
/// use lambda_lock::lambda::compare_sequencers;
///
/// assert_eq!(compare_sequencers("0055AED6DC", "0055AED6DCD90281E5"), Ordering::Less);
/// assert_eq!(compare_sequencers("0055AED6DC", "0055AED6DC00"), Ordering::Equal);
/// ```
#[must_use]
pub fn compare_sequencers(one: &str, other: &str) -> Ordering {
    let length = one.len().max(other.len());
    let padded = |sequencer: &'_ str| -> Vec<u8> {
        let digits = sequencer.bytes().map(|digit| digit.to_ascii_uppercase());
        digits.chain(std::iter::repeat(b'0')).take(length).collect()
    };
    padded(one).cmp(&padded(other))
}
