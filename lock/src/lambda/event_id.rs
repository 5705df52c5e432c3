//! `event_id`: what all deliveries of an event have in common.

use lambda_runtime::LambdaEvent;
use serde::Serialize;
use serde_json::Value;

use super::invocation::escape;

/// Returns the id of an event of SNS, `EventBridge` or S3, as a key for [`Idempotency`](crate::Idempotency). All deliveries
/// of an event have the same id. Sends no request.
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
///
/// The event comes directly, as a [`LambdaEvent`], or through a queue, as a [`SqsMessage`](crate::lambda::SqsMessage). A
/// [`Value`] is the event itself, for example in a record of a stream. Payloads and bodies are a [`Value`], or any type that is
/// written as it was read, such as those of `aws_lambda_events`. A text is read as JSON.
///
/// | an event of | has the key |
/// | --- | --- |
/// | SNS, directly or in its envelope in a queue | its message id, unless the message is one of the events below |
/// | `EventBridge`, also that of a schedule without an input of its own | `source#id` |
/// | S3 notifications of objects that were created or removed | `bucket#key#version#sequencer#event`; the version is empty in a bucket without versions |
/// | S3's test of a new notification, which names no object | `bucket#s3:TestEvent#request` |
/// | anything else, or without one of these parts, such as S3's events of tags, ACLs and restores, which have no sequencer | none: [`OnMissingKey`](crate::idempotency::OnMissingKey) applies |
///
/// S3 lets you choose which events it sends: leave out those without a sequencer, or send them through `EventBridge`, whose
/// events have ids.
///
/// S3 and `EventBridge` may publish an event twice, and SNS then gives the copies two message ids. So the event's own id is
/// the key if SNS only carries the event. With raw message delivery, SNS sends no envelope, and the message id of the queue
/// differs in each copy: turn raw delivery off, or take the key from the body.
///
/// The key of an object is in the form of the notification. In each part, `#` becomes `%23` and `%` becomes `%25`. The ids of
/// an event with several records follow each other. Keys of objects can be longer than the 2,048 bytes of a row's key: choose
/// [`RecordFormat::Hashed`](crate::idempotency::RecordFormat::Hashed) for them. A publisher that sends twice creates two ids.
///
/// For events of SNS that come through a queue, choose [a window for both](crate::docs::learn::duplicates):
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::idempotency::OnMissingKey;
/// # use lambda_lock::lambda::{SqsMessage, event_id};
/// # use lambda_lock::{Idempotency, Locks, SqsConsumer};
/// # use serde_json::Value;
/// # fn example(locks: Locks) -> SqsConsumer<Value, std::io::Error> {
/// let once = Idempotency::new(locks, OnMissingKey::Reject, event_id);
/// SqsConsumer::new(once).window(Duration::from_hours(38 * 24))
/// # }
/// ```
pub fn event_id<E: HasEventId>(event: &E) -> Option<String> {
    event.event_id()
}

/// What [`event_id`] finds the id of an event in: a [`LambdaEvent`], a [`SqsMessage`](crate::lambda::SqsMessage), or a
/// [`Value`] that is the event itself.
///
/// This trait is sealed.
pub trait HasEventId: sealed::Sealed {
    #[doc(hidden)]
    fn event_id(&self) -> Option<String>;
}

pub(super) mod sealed {
    pub trait Sealed {}
    impl<P> Sealed for super::LambdaEvent<P> {}
    impl Sealed for super::Value {}
}

impl<P: Serialize> HasEventId for LambdaEvent<P> {
    fn event_id(&self) -> Option<String> {
        id_of_written(&self.payload)
    }
}

impl HasEventId for Value {
    fn event_id(&self) -> Option<String> {
        id_of(self)
    }
}

/// Returns the id of an event in any type.
pub(super) fn id_of_written(event: &impl Serialize) -> Option<String> {
    id_of(&serde_json::to_value(event).ok()?)
}

fn id_of(event: &Value) -> Option<String> {
    if let Value::String(json) = event {
        return id_of(&serde_json::from_str(json).ok()?);
    }
    if let Some(records) = event["Records"].as_array() {
        let ids: Option<Vec<_>> = records.iter().map(|record| sns(&record["Sns"]).or_else(|| s3(record))).collect();
        return ids.filter(|ids| !ids.is_empty()).map(|ids| ids.join("#"));
    }
    event_bridge(event).or_else(|| envelope(event)).or_else(|| s3_test(event))
}

/// Only `EventBridge` has a detail type.
fn event_bridge(event: &Value) -> Option<String> {
    let [Some(_), Some(source), Some(id)] = [&event["detail-type"], &event["source"], &event["id"]].map(text) else {
        return None;
    };
    Some(key(&[&source, &id]))
}

/// A queue gets a message in an envelope without records.
fn envelope(event: &Value) -> Option<String> {
    text(&event["TopicArn"]).and_then(|_| sns(event))
}

fn sns(message: &Value) -> Option<String> {
    let id = text(&message["MessageId"])?;
    Some(id_of(&message["Message"]).unwrap_or_else(|| key(&[&id])))
}

fn s3(record: &Value) -> Option<String> {
    let (s3, object) = (&record["s3"], &record["s3"]["object"]);
    let parts = [&s3["bucket"]["name"], &object["key"], &object["sequencer"], &record["eventName"]].map(text);
    let [Some(bucket), Some(object_key), Some(sequencer), Some(event)] = parts else { return None };
    let version = text(&object["versionId"]).unwrap_or_default();
    Some(key(&[&bucket, &object_key, &version, &sequencer, &event]))
}

/// S3 sends it when notifications are set up. Without a key, it would return to its queue until it is a dead letter.
fn s3_test(event: &Value) -> Option<String> {
    let [Some(bucket), Some(name), Some(request)] = [&event["Bucket"], &event["Event"], &event["RequestId"]].map(text)
    else {
        return None;
    };
    (name == "s3:TestEvent").then(|| key(&[&bucket, &name, &request]))
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn key(parts: &[&str]) -> String {
    parts.iter().map(|part| escape(part)).collect::<Vec<_>>().join("#")
}
