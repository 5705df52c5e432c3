//! Metrics of a batch of messages.

use aws_lambda_events::sqs::SqsEvent;
use lambda_lock::SqsConsumer;
use lambda_lock::lambda::SqsMessage;
use lambda_lock_tests::invocation::invocation;
use serde_json::json;
use tower::{Layer, ServiceExt, service_fn};

use crate::{Consumer, Failure, Stage, deliver, locks_on, message, s};

#[tokio::test(start_paused = true)]
async fn each_message_of_a_batch_is_counted_once_by_its_outcome() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let consumer: Consumer = SqsConsumer::by_message_id(locks.clone());
    let item = |body: &'static str| json!(body).to_string();
    let (work, fail, panic, endless) = (item("work"), item("fail"), item("panic"), item("endless"));

    assert_eq!(deliver(&consumer, &host, &[("1", &work)], s(30)).await, 0);
    let counted = stage.metrics.take();
    assert_eq!((counted.sum("batch_items"), counted.count("batch_items: done")), (1, 1));

    let elsewhere = stage.locks().acquire("orders#busy").await.unwrap();
    stage.metrics.take();
    let messages = [
        ("1", &*work),
        ("2", &work),
        ("3", &work),
        ("3", &work),
        ("3", &work),
        ("4", &fail),
        ("4", &fail),
        ("5", &panic),
        ("6", "{"),
        ("busy", &work),
        ("8", &endless),
    ];
    let failed = deliver(&consumer, &host, &messages, s(30)).await;
    let counted = stage.metrics.take();
    let items: Vec<_> = counted.counters.iter().filter(|(name, _)| name.starts_with("batch_items")).collect();
    let expected =
        [("done", 2), ("duplicate", 3), ("failed", 3), ("in_progress", 1), ("timed_out", 1), ("unreadable", 1)];
    let expected = expected.map(|(outcome, count)| (format!("batch_items: {outcome}"), count));
    assert_eq!(items, expected.iter().map(|(name, count)| (name, count)).collect::<Vec<_>>());
    assert_eq!((counted.sum("batch_items"), failed), (11, 6));
    // Of 1, 2, 3, 4, 5, busy and 8.
    assert_eq!((counted.count("acquired"), counted.count("replays")), (5, 1));
    assert_eq!(counted.count("in_progress_refusals"), 1);
    // The batch itself has cancelled the message that timed out.
    assert_eq!(["lost", "released", "work_failed"].map(|name| counted.count(name)), [0, 2, 3]);
    elsewhere.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_beyond_its_rate_counts_as_used_up_only() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let bank = locks.rate("bank", 1, s(3600));
    let consumer: Consumer = SqsConsumer::by_message_id(locks).concurrency(1).at_rate(bank);
    let work = json!("work").to_string();
    assert_eq!(deliver(&consumer, &host, &[("1", &*work), ("2", &work)], s(30)).await, 1);
    let counted = stage.metrics.take();
    let count = |name| counted.count(name);
    assert_eq!(["batch_items: done", "batch_items: used_up"].map(count), [1, 1]);
    assert_eq!((count("refused: used_up"), counted.sum("refused"), counted.sum("batch_items")), (1, 1, 2));
    // Two records and a call, of which one record is done.
    assert_eq!(["acquired", "released", "work_failed"].map(count), [3, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn messages_without_time_are_counted_as_not_started_or_timed_out() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let one_by_one: Consumer = SqsConsumer::by_message_id(locks).concurrency(1);
    let slow = json!("slow").to_string();
    // The leases end after 3 s: less than a second is left for the third message.
    let messages = [("1", &*slow), ("2", &slow), ("3", &slow), ("4", &slow)];
    assert_eq!(deliver(&one_by_one, &host, &messages, s(4)).await, 2);
    let counted = stage.metrics.take();
    let items = ["done", "not_started"].map(|outcome| counted.count(&format!("batch_items: {outcome}")));
    assert_eq!((items, counted.sum("batch_items")), ([2, 2], 4));

    // The network falls silent: no record can be released before the answer is due.
    let (host, locks) = locks_on(stage.engine.host());
    let consumer: Consumer = SqsConsumer::by_message_id(locks);
    let (work, crash) = (json!("work").to_string(), json!("crash").to_string());
    let messages = [("5", &*work), ("6", &crash), ("6", &crash), ("7", &work)];
    assert_eq!(deliver(&consumer, &host, &messages, s(4)).await, 2);
    let counted = stage.metrics.take();
    let items = ["done", "timed_out"].map(|outcome| counted.count(&format!("batch_items: {outcome}")));
    assert_eq!((items, counted.sum("batch_items")), ([2, 2], 4));
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_group_after_a_failure_is_counted_as_not_started() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let consumer: Consumer = SqsConsumer::by_message_id(locks);
    let mut batch = SqsEvent::default();
    batch.records = ["work", "fail", "work", "work"]
        .iter()
        .zip(1..)
        .map(|(body, id)| {
            let mut message = message(&id.to_string(), &json!(body).to_string());
            message.event_source_arn = Some("arn:aws:sqs:eu-west-1:123456789012:payments.fifo".to_owned());
            message.attributes.insert("MessageGroupId".to_owned(), "group".to_owned());
            message
        })
        .collect();
    let handler =
        service_fn(
            |message: SqsMessage<String>| async move { if message.body == "fail" { Err(Failure) } else { Ok(()) } },
        );
    let answer = consumer.layer(handler).oneshot(invocation(&host, batch)).await.unwrap();
    assert_eq!(answer.batch_item_failures.len(), 3);
    let counted = stage.metrics.take();
    let items = ["done", "failed", "not_started"].map(|outcome| counted.count(&format!("batch_items: {outcome}")));
    assert_eq!((items, counted.sum("batch_items")), ([1, 1, 2], 4));
}
