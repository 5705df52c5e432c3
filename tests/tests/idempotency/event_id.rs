//! The keys of events of SNS, `EventBridge` and S3, and the order of an object's events.

use std::time::Duration;

use aws_lambda_events::sqs::{SqsEvent, SqsMessage as SqsRecord};
use lambda_lock::idempotency::{OnMissingKey, RecordFormat};
use lambda_lock::lambda::{SqsMessage, event_id};
use lambda_lock::{Idempotency, IdempotencyLayer, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, invocation, reported};
use lambda_runtime::{Context, LambdaEvent};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};

use crate::{AFTER_THE_LEASE, Declined, environment};

fn id(event: Value) -> Option<String> {
    event_id(&LambdaEvent::new(event, Context::default()))
}

/// An event of SNS, with one record.
fn sns(message_id: &str) -> Value {
    json!({ "Records": [{
        "EventSource": "aws:sns",
        "EventVersion": "1.0",
        "EventSubscriptionArn": "arn:aws:sns:eu-west-1:123456789012:orders:5be8c2a4",
        "Sns": { "Type": "Notification", "MessageId": message_id, "Message": "a text", "MessageAttributes": {} },
    }] })
}

fn event_bridge(source: &str, id: &str) -> Value {
    json!({
        "version": "0",
        "id": id,
        "detail-type": "Order Placed",
        "source": source,
        "account": "123456789012",
        "time": "2026-01-01T00:00:00Z",
        "region": "eu-west-1",
        "resources": [],
        "detail": { "id": "of the order" },
    })
}

/// A record of S3 without a version.
fn object(key: &str, sequencer: &str) -> Value {
    json!({
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": { "name": "uploads", "arn": "arn:aws:s3:::uploads" },
            "object": { "key": key, "size": 17, "eTag": "0cc175b9", "sequencer": sequencer },
        },
    })
}

fn s3(records: impl IntoIterator<Item = Value>) -> Value {
    json!({ "Records": records.into_iter().collect::<Vec<_>>() })
}

/// A message of SNS, as a queue gets it.
fn envelope(message_id: &str, message: &str) -> Value {
    json!({
        "Type": "Notification",
        "MessageId": message_id,
        "TopicArn": "arn:aws:sns:eu-west-1:123456789012:orders",
        "Message": message,
        "Timestamp": "2026-01-01T00:00:00.000Z",
        "SignatureVersion": "1",
    })
}

/// What S3 sends when notifications are set up.
fn s3_test(request: &str) -> Value {
    json!({
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": "2026-01-01T00:00:00.000Z",
        "Bucket": "uploads",
        "RequestId": request,
        "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR",
    })
}

/// The id of a message of a queue.
fn id_in_queue<B: Serialize>(body: B) -> Option<String> {
    event_id(&SqsMessage::new(body, SqsRecord::default()))
}

#[test]
fn an_event_in_a_queue_has_the_id_of_the_event_itself() {
    for event in [event_bridge("shop", "17c2"), s3([object("a", "01")]), sns("22b80b92")] {
        assert!(id(event.clone()).is_some());
        assert_eq!(id_in_queue(event.clone()), id(event.clone()));
        assert_eq!(id_in_queue(event.to_string()), id(event.clone()), "a body that is kept as a text");
        assert_eq!(event_id(&event), id(event), "the event alone");
    }
}

#[test]
fn a_message_of_sns_in_a_queue_has_the_message_id_of_sns() {
    for message in ["a text", "17", "{}", r#"{"Records": [{}]}"#, r#""a text""#] {
        assert_eq!(id_in_queue(envelope("22b80b92", message)).as_deref(), Some("22b80b92"), "{message}");
    }
    // By raw message delivery.
    assert_eq!(id_in_queue(json!({ "order": "17" })), None);
    assert_eq!(id_in_queue("a text"), None);
}

#[test]
fn an_event_that_sns_carries_has_its_own_id_in_every_copy() {
    for event in [event_bridge("shop", "17c2"), s3([object("a", "01")]), s3_test("5582")] {
        let text = event.to_string();
        for message_id in ["1", "2"] {
            assert_eq!(id_in_queue(envelope(message_id, &text)), id(event.clone()));
            let mut direct = sns(message_id);
            direct["Records"][0]["Sns"]["Message"] = json!(text);
            assert_eq!(id(direct), id(event.clone()));
        }
    }
}

#[tokio::test]
async fn an_event_of_s3_without_a_sequencer_fails_with_a_way_out() {
    let (_world, host, locks) = environment().await;
    for name in ["ObjectTagging:Put", "ObjectAcl:Put", "ObjectRestore:Completed"] {
        let mut record = object("a", "");
        record["eventName"] = json!(name);
        record["s3"]["object"].as_object_mut().unwrap().remove("sequencer");
        let once = Idempotency::new(locks.clone(), OnMissingKey::Reject, event_id);
        let layer = IdempotencyLayer::new(once).layer(service_fn(async |_: LambdaEvent<Value>| Ok::<_, Declined>(1)));
        let (error_type, message) = reported(layer.oneshot(invocation(&host, s3([record]))).await.unwrap_err());
        assert_eq!(error_type, "IdempotencyKeyMissing", "{name}");
        assert!(message.contains("S3's events of tags, ACLs and restores: let S3 not send them"), "{message}");
    }
}

#[test]
fn the_test_of_a_notification_of_s3_has_an_id() {
    assert_eq!(id_in_queue(s3_test("5582")).as_deref(), Some("uploads#s3:TestEvent#5582"));
    assert_eq!(id_in_queue(json!({ "Bucket": "uploads", "Event": "s3:Other", "RequestId": "1" })), None);
}

#[test]
fn a_body_of_a_type_that_is_written_as_it_was_read_has_an_id() {
    #[derive(Deserialize, Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Envelope {
        message_id: String,
        topic_arn: String,
        message: String,
    }
    let body: Envelope = serde_json::from_value(envelope("22b80b92", "a text")).unwrap();
    assert_eq!(id_in_queue(body).as_deref(), Some("22b80b92"));
}

#[test]
fn the_id_of_sns_is_the_message_id() {
    assert_eq!(id(sns("22b80b92")).as_deref(), Some("22b80b92"));
}

#[test]
fn the_id_of_event_bridge_has_its_source() {
    assert_eq!(id(event_bridge("shop.orders", "17c2")).as_deref(), Some("shop.orders#17c2"));
    assert_ne!(id(event_bridge("a#b", "c")), id(event_bridge("a", "b#c")));
}

#[test]
fn the_id_of_s3_has_bucket_key_version_sequencer_and_event() {
    let one = object("a+picture.jpg", "0055AED6DC");
    assert_eq!(id(s3([one.clone()])).as_deref(), Some("uploads#a+picture.jpg##0055AED6DC#ObjectCreated:Put"));
    let mut versioned = one.clone();
    versioned["s3"]["object"]["versionId"] = json!("v1");
    assert_eq!(id(s3([versioned])).as_deref(), Some("uploads#a+picture.jpg#v1#0055AED6DC#ObjectCreated:Put"));
    let mut removed = one;
    removed["eventName"] = json!("ObjectRemoved:Delete");
    assert!(id(s3([removed])).unwrap().ends_with("#ObjectRemoved:Delete"));
}

#[test]
fn an_event_with_several_records_has_the_ids_of_all() {
    let [one, other] = ["a", "b"].map(|key| object(key, "01"));
    let both = id(s3([one.clone(), other.clone()])).unwrap();
    assert_eq!(both, format!("{}#{}", id(s3([one])).unwrap(), id(s3([other])).unwrap()));
}

#[test]
fn an_event_without_a_part_or_of_another_source_has_no_id() {
    let mut without_sequencer = object("a", "01");
    without_sequencer["s3"]["object"].as_object_mut().unwrap().remove("sequencer");
    for event in [
        s3([without_sequencer.clone()]),
        s3([object("a", "01"), without_sequencer]),
        s3([]),
        sns(""),
        event_bridge("shop", ""),
        json!({ "source": "shop", "id": "17" }),
        json!({ "Records": [{ "messageId": "1", "eventSource": "aws:sqs" }] }),
        json!({ "Records": "none" }),
        json!("a text"),
        Value::Null,
    ] {
        assert_eq!(id(event.clone()), None, "{event}");
    }
    assert_eq!(event_id(&LambdaEvent::new(SqsEvent::default(), Context::default())), None);
}

#[tokio::test]
async fn an_event_that_comes_twice_runs_once() {
    let (_world, host, locks) = environment().await;
    let once = Idempotency::new(locks, OnMissingKey::Reject, event_id).format(RecordFormat::Hashed);
    let runs = Counter::default();
    let service = IdempotencyLayer::new(once).layer(service_fn({
        let runs = runs.clone();
        move |_: LambdaEvent<Value>| {
            let runs = runs.clone();
            async move { Ok::<_, Declined>(runs.count()) }
        }
    }));
    let long = "long/".repeat(1000);
    let events = [sns("1"), sns("2"), event_bridge("shop", "1"), s3([object("a", "01")]), s3([object(&long, "01")])];
    for (event, run) in events.into_iter().zip(1..) {
        for _ in 0..2 {
            assert_eq!(service.clone().oneshot(invocation(&host, event.clone())).await.unwrap(), run);
        }
    }
    let unknown = service.oneshot(invocation(&host, json!({}))).await;
    assert!(unknown.is_err());
}

proptest! {
    #[test]
    fn no_text_of_a_payload_panics(text in ".*") {
        id(json!({ "Records": [{ "Sns": { "MessageId": text } }, { "s3": text }] }));
        id(json!({ "detail-type": text, "source": text, "id": text }));
        id_in_queue(envelope(&text, &text));
    }
}

/// Handles an event of an object, as the template `objects` does. Returns whether it ran.
async fn handle(locks: &Locks, sequencer: &str, work: impl AsyncFnOnce() -> bool) -> Result<bool, lambda_lock::Error> {
    let of_object = locks.acquire("uploads/a");
    let done = of_object.run(async |lock| {
        let last = lock.data().and_then(|data| data.as_str()).unwrap_or_default();
        let is_newer = sequencer > last;
        if is_newer && work().await {
            lock.set_data(sequencer);
            lock.release().await?;
        }
        Ok(is_newer)
    });
    done.await?
}

async fn succeed() -> bool {
    true
}

#[tokio::test]
async fn an_event_that_failed_or_crashed_leaves_the_order_as_it_was() {
    let (world, host, locks) = environment().await;
    assert!(handle(&locks, "05", succeed).await.unwrap());
    assert!(handle(&locks, "07", async || false).await.unwrap());
    assert!(handle(&locks, "06", succeed).await.unwrap());
    let elsewhere = world.host().build();
    let crashed = locks_on(&world, &elsewhere).acquire("uploads/a").lease(Duration::from_secs(30)).await.unwrap();
    crashed.set_data("08");
    elsewhere.crash();
    assert!(handle(&locks, "09", succeed).await.unwrap_err().is_held());
    host.advance_clock(AFTER_THE_LEASE);
    assert!(!handle(&locks, "05", succeed).await.unwrap());
    assert!(handle(&locks, "08", succeed).await.unwrap());
}

#[tokio::test]
async fn an_event_whose_sequencer_is_not_written_fails() {
    let (_world, host, locks) = environment().await;
    let freed_meanwhile = async || {
        // Not in the millisecond of the acquire.
        host.advance_clock(Duration::from_millis(1));
        let holder = locks.get("uploads/a").await.unwrap().unwrap();
        locks.force_release("uploads/a", &holder).await.unwrap()
    };
    assert!(handle(&locks, "07", freed_meanwhile).await.unwrap_err().is_lost());
    assert!(handle(&locks, "07", succeed).await.unwrap());
    assert!(!handle(&locks, "06", succeed).await.unwrap());
}

fn locks_on(world: &World, host: &lambda_lock::embedded::Host) -> Locks {
    world.locks(host).build().unwrap()
}
