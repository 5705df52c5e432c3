//! The policy of the guide, and the keys of the layers.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::sqs::{SqsEvent, SqsMessage as SqsRecord};
use lambda_lock::embedded::Intercept;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock::{Idempotency, IdempotencyLayer, LockLayer, SqsConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::invocation_without_deadline;
use lambda_runtime::LambdaEvent;
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};

use super::templates::rendered;

/// The keys of the updates that a host sends.
#[derive(Clone, Debug, Default)]
struct Keys(Arc<Mutex<BTreeSet<String>>>);

impl Intercept for Keys {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" {
            self.0.lock().unwrap().insert(request["Key"]["id"]["S"].as_str().unwrap().to_owned());
        }
    }
}

/// The guide's patterns for `dynamodb:LeadingKeys`.
fn patterns_of_the_guide() -> Vec<&'static str> {
    let (_, patterns) =
        include_str!("../../../lock/docs/operate/deploying.md").split_once("dynamodb:LeadingKeys:\n").unwrap();
    let patterns = patterns.lines().map_while(|line| line.trim().strip_prefix("- "));
    patterns.map(|pattern| pattern.split_once(" # ").map_or(pattern, |(pattern, _)| pattern)).collect()
}

/// Whether a key matches a pattern of IAM's `StringLike` that has no star but a last one.
fn is_like(key: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').map_or(key == pattern, |start| key.starts_with(start))
}

#[tokio::test]
async fn the_policy_of_the_guide_allows_exactly_the_keys_of_the_layers() {
    const FUNCTION: &str = "nightly-report";
    let (world, keys) = (World::new().await, Keys::default());
    let locks = world.locks(&world.host().intercept(keys.clone()).build()).build().unwrap();
    locks.warm_up().await;
    locks.check().await;

    let singleton = LockLayer::new(locks.clone()).layer(service_fn(async |_: LambdaEvent<()>| Ok::<_, Infallible>(())));
    singleton.oneshot(invocation_without_deadline(FUNCTION, ())).await.unwrap();

    let key = |event: &LambdaEvent<String>| Some(event.payload.clone());
    let once = IdempotencyLayer::new(Idempotency::new(locks.clone(), OnMissingKey::Reject, key))
        .layer(service_fn(async |_: LambdaEvent<String>| Ok::<_, Infallible>(())));
    once.oneshot(invocation_without_deadline(FUNCTION, "order-1".to_owned())).await.unwrap();

    let mut batch = SqsEvent::default();
    let mut record = SqsRecord::default();
    record.message_id = Some("message-1".to_owned());
    record.body = Some("1".to_owned());
    batch.records.push(record);
    let consumer = SqsConsumer::by_message_id(locks.clone());
    let consumer = consumer.layer(service_fn(async |_: SqsMessage<u32>| Ok::<_, Infallible>(())));
    consumer.oneshot(invocation_without_deadline(FUNCTION, batch)).await.unwrap();

    let mut batch = KinesisEvent::default();
    let mut record = KinesisEventRecord::default();
    record.event_id = Some("shardId-000000000000:1".to_owned());
    record.kinesis.sequence_number = "1".to_owned();
    record.kinesis.data.0 = b"1".to_vec();
    batch.records.push(record);
    let consumer = StreamConsumer::by_event_id(locks);
    let consumer = consumer.layer(service_fn(async |_: KinesisRecord<u32>| Ok::<_, Infallible>(())));
    consumer.oneshot(invocation_without_deadline(FUNCTION, batch)).await.unwrap();

    let (keys, patterns) = (keys.0.lock().unwrap(), patterns_of_the_guide());
    let role = rendered("function.yaml");
    let (_, role) = role.split_once("dynamodb:LeadingKeys: [").unwrap();
    let role = role.split(']').next().unwrap().split(", ").map(|pattern| pattern.trim_matches('"'));
    assert_eq!(role.collect::<Vec<_>>(), patterns);
    for key in keys.iter() {
        assert!(patterns.iter().any(|pattern| is_like(key, pattern)), "{patterns:?} deny {key}");
    }
    for pattern in patterns {
        assert!(keys.iter().any(|key| is_like(key, pattern)), "{pattern} is for none of {keys:?}");
    }
}
