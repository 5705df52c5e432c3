//! The key of a message, and the window.

use std::future::ready;

use aws_lambda_events::sqs::{SqsEvent, SqsMessage as SqsRecord};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::{SqsMessage, event_id};
use lambda_lock::{Idempotency, SqsConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, invocation};
use lambda_runtime::LambdaEvent;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    Consumer, Declined, FIFO_QUEUE, Payment, Till, batch, deliver, environment, failures, message_with_body, ordered,
    row_of, with_attributes,
};

#[tokio::test]
async fn by_message_id_treats_a_resent_message_as_new() {
    let (world, host, consumer, till) = environment().await;
    let body = json!({ "id": "17" }).to_string();
    let messages = ["1", "2"].map(|id| message_with_body(id, &body));
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
    assert!(world.row(&row_of("1")).await.is_some());
}

#[tokio::test]
async fn by_deduplication_id_treats_a_resent_message_as_a_duplicate() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_deduplication_id(world.locks(&host).build().unwrap());
    let deduplicated =
        |id: &str| with_attributes(ordered(id, "group", "Done"), [("MessageDeduplicationId", "the same")]);
    assert!(deliver(&consumer, &till, &host, [deduplicated("1")]).await.is_empty());
    let failed = deliver(&consumer, &till, &host, [deduplicated("2"), ordered("3", "other group", "Done")]).await;
    assert_eq!(failed, ["3"]);
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn copies_of_one_event_with_other_message_ids_run_once() {
    let (world, host, _, _) = environment().await;
    let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::Reject, event_id);
    let consumer: SqsConsumer<Value, Declined> = SqsConsumer::new(once);
    let sns = |id: &str, message: &str| json!({ "Type": "Notification", "MessageId": id, "TopicArn": "arn:aws:sns:x:1:orders", "Message": message });
    let object = json!({ "Records": [{
        "eventName": "ObjectCreated:Put",
        "s3": { "bucket": { "name": "uploads" }, "object": { "key": "a", "sequencer": "01" } },
    }] });
    let event = json!({ "detail-type": "Order Placed", "source": "shop", "id": "17", "detail": {} });
    let test = json!({ "Event": "s3:TestEvent", "Bucket": "uploads", "RequestId": "5582" });
    for (name, copies) in [
        ("sns", [sns("1", "a text"), sns("1", "a text")]),
        ("s3", [object.clone(), sns("2", &object.to_string())]),
        ("event bridge", [event.clone(), sns("3", &event.to_string())]),
        ("test", [test.clone(), test]),
    ] {
        let runs = Counter::default();
        for (body, message_id) in copies.into_iter().zip(["original", "copy"]) {
            let counter = runs.clone();
            let handler = service_fn(move |_: SqsMessage<Value>| {
                counter.count();
                ready(Ok::<_, Declined>(()))
            });
            let event = invocation(&host, batch([message_with_body(message_id, &body.to_string())]));
            assert!(failures(&consumer, handler, event).await.is_empty(), "{name}");
        }
        assert_eq!(runs.get(), 1, "{name}");
    }
    // By raw message delivery, nothing tells a copy.
    let raw = invocation(&host, batch([message_with_body("raw", "{}")]));
    let handler = service_fn(async |_: SqsMessage<Value>| Ok::<_, Declined>(()));
    assert_eq!(failures(&consumer, handler, raw).await, ["raw"]);
}

/// As in the guide.
#[tokio::test]
async fn the_array_of_a_pipe_is_put_back_into_an_event() {
    let (_world, host, consumer, till) = environment().await;
    let pay = {
        let till = till.clone();
        move |message: SqsMessage<Payment>| till.clone().pay(message)
    };
    let of_pipe = consumer.layer(service_fn(pay)).map_request(|batch: LambdaEvent<Vec<SqsRecord>>| {
        let mut event = SqsEvent::default();
        event.records = batch.payload;
        LambdaEvent::new(event, batch.context)
    });
    let body = |then: &str| json!({ "id": then, "then": then }).to_string();
    let sent = json!([
        { "messageId": "1", "body": body("Done"), "eventSource": "aws:sqs" },
        { "messageId": "2", "body": body("Declined"), "eventSource": "aws:sqs" },
    ]);
    assert!(serde_json::from_value::<SqsEvent>(sent.clone()).is_err());
    let event = invocation(&host, serde_json::from_value(sent).unwrap());
    let answer = of_pipe.oneshot(event).await.unwrap();
    assert_eq!(serde_json::to_value(answer).unwrap(), json!({ "batchItemFailures": [{ "itemIdentifier": "2" }] }));
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
}

#[tokio::test]
async fn a_deduplication_id_belongs_to_one_group_of_one_queue() {
    let world = World::new().await;
    let host = world.host().build();
    let consumer: Consumer = SqsConsumer::by_deduplication_id(world.locks(&host).build().unwrap());
    let till = Till::default();
    let of = |id: &str, group: &str, queue: &str| {
        let mut message = with_attributes(ordered(id, group, "Done"), [("MessageDeduplicationId", "d")]);
        message.event_source_arn = Some(queue.to_owned());
        message
    };
    let messages = [of("1", "A", FIFO_QUEUE), of("2", "B", FIFO_QUEUE), of("3", "A", "arn:aws:sqs:x:1:other.fifo")];
    assert!(deliver(&consumer, &till, &host, messages.clone()).await.is_empty());
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
}

#[tokio::test]
async fn similar_groups_and_deduplication_ids_do_not_collide() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_deduplication_id(world.locks(&host).build().unwrap());
    let of = |number: usize, (group, id): (&str, &str)| {
        with_attributes(ordered(&number.to_string(), group, "Done"), [("MessageDeduplicationId", id)])
    };
    let pairs = [
        ("customer", "42#refund"),
        ("customer#42", "refund"),
        ("customer%2342", "refund"),
        ("a#", "b"),
        ("a", "#b"),
        ("", "a##b"),
        ("%", "b"),
        ("%25", "b"),
    ];
    for (number, pair) in pairs.into_iter().enumerate() {
        assert!(deliver(&consumer, &till, &host, [of(number, pair)]).await.is_empty());
    }
    assert_eq!(till.ran().len(), pairs.len(), "{:?}", till.ran());
    // Characters that need no escape are stored unchanged.
    assert!(world.row(&format!("orders#{FIFO_QUEUE}#customer#42#refund")).await.is_some());
}
