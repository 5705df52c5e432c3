//! FIFO queues: the order of a group.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use lambda_lock::lambda::SqsMessage;
use lambda_lock_tests::invocation::{invocation, keep_log, logged};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};
use tower::service_fn;

use crate::{
    Declined, FIFO_QUEUE, Payment, batch, deliver, environment, failures, message, ms, ordered, with_attributes,
};

#[tokio::test]
async fn the_messages_of_a_group_run_in_order() {
    let (_world, host, consumer, _) = environment().await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let log = Arc::clone(&log);
        move |message: SqsMessage<Payment>| {
            let log = Arc::clone(&log);
            async move {
                let id = message.message_id().unwrap().to_owned();
                log.lock().unwrap().push(format!("{id} begins"));
                // The earlier ones take longer.
                sleep(ms(30 / id.parse::<u64>().unwrap())).await;
                log.lock().unwrap().push(format!("{id} ends"));
                Ok::<_, Declined>(())
            }
        }
    });
    let messages = ["1", "2", "3"].map(|id| ordered(id, "group", "Done"));
    assert!(failures(&consumer, handler, invocation(&host, batch(messages))).await.is_empty());
    assert_eq!(*log.lock().unwrap(), ["1 begins", "1 ends", "2 begins", "2 ends", "3 begins", "3 ends"]);
}

#[tokio::test]
async fn a_failure_returns_the_rest_of_its_group_and_no_other_group() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment().await;
        let messages = || {
            [
                ordered("a1", "a", "Done"),
                ordered("b1", "b", "Done"),
                ordered("a2", "a", failing),
                ordered("b2", "b", "Done"),
                ordered("a3", "a", "Done"),
                ordered("a4", "a", "Done"),
                ordered("b3", "b", "Done"),
            ]
        };
        assert_eq!(deliver(&consumer, &till, &host, messages()).await, ["a2", "a3", "a4"]);
        assert_eq!(till.ran_in_any_order(), ["a1", "a2", "b1", "b2", "b3"]);
        // The rest is delivered again.
        let rest = ["a2", "a3", "a4"].map(|id| ordered(id, "a", "Done"));
        assert!(deliver(&consumer, &till, &host, rest).await.is_empty());
        assert_eq!(till.ran()[5..], ["a2", "a3", "a4"]);
    }
}

#[tokio::test]
async fn an_unreadable_message_returns_the_rest_of_its_group() {
    let (_world, host, consumer, till) = environment().await;
    let mut unreadable = ordered("2", "a", "Done");
    unreadable.body = Some("{".to_owned());
    let mut nameless = ordered("5", "b", "Done");
    nameless.message_id = None;
    let messages = [
        ordered("1", "a", "Done"),
        unreadable,
        ordered("3", "a", "Done"),
        ordered("4", "b", "Done"),
        nameless,
        ordered("6", "b", "Done"),
    ];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2", "3", "", "6"]);
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
}

#[tokio::test]
async fn a_message_in_progress_elsewhere_returns_the_rest_of_its_group() {
    let (world, host, consumer, till) = environment().await;
    let row = format!("orders#{FIFO_QUEUE}#2");
    let _other = world.default_locks().acquire(row).lease(Duration::from_secs(30)).await.unwrap();
    let messages =
        [ordered("1", "a", "Done"), ordered("2", "a", "Done"), ordered("3", "a", "Done"), ordered("4", "b", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2", "3"]);
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
}

#[tokio::test]
async fn a_message_that_is_done_does_not_stop_its_group() {
    let (_world, host, consumer, till) = environment().await;
    assert!(deliver(&consumer, &till, &host, [ordered("1", "a", "Done")]).await.is_empty());
    let messages = ["1", "2"].map(|id| ordered(id, "a", "Done"));
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran(), ["1", "2"]);
}

/// Whether these messages run at the same time: each waits for all others.
async fn run_at_the_same_time(messages: Vec<SqsRecord>) -> bool {
    let (_world, host, consumer, _) = environment().await;
    let all = Arc::new(Barrier::new(messages.len()));
    let handler = service_fn(move |_: SqsMessage<Payment>| {
        let all = Arc::clone(&all);
        async move { timeout(ms(1_500), all.wait()).await.map_or(Err(Declined), |_| Ok(())) }
    });
    failures(&consumer, handler, invocation(&host, batch(messages))).await.is_empty()
}

#[tokio::test]
async fn messages_of_different_groups_run_at_the_same_time() {
    assert!(run_at_the_same_time(vec![ordered("1", "a", "Done"), ordered("2", "b", "Done")]).await);
    assert!(!run_at_the_same_time(vec![ordered("1", "a", "Done"), ordered("2", "a", "Done")]).await);
}

#[tokio::test]
async fn groups_of_different_queues_are_different() {
    let (_world, host, consumer, till) = environment().await;
    let of_another_queue = |id| {
        let mut message = ordered(id, "a", "Done");
        message.event_source_arn = Some("arn:aws:sqs:eu-west-1:123456789012:refunds.fifo".to_owned());
        message
    };
    let messages = [ordered("1", "a", "Declined"), of_another_queue("2"), ordered("3", "a", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "3"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
    assert!(run_at_the_same_time(vec![ordered("1", "a", "Done"), of_another_queue("2")]).await);
}

#[tokio::test]
async fn the_messages_of_a_group_in_a_standard_queue_have_no_order() {
    let grouped = |id, then| with_attributes(message(id, then), [("MessageGroupId", "tenant")]);
    let (_world, host, consumer, till) = environment().await;
    let messages = [grouped("1", "Declined"), grouped("2", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
    assert!(run_at_the_same_time(vec![grouped("1", "Done"), grouped("2", "Done")]).await);
}

/// The lines that say that a message is a dead letter now.
fn dead_letters(id: &str) -> Vec<String> {
    logged(id).into_iter().filter(|line| line.contains("returned to the queue")).collect()
}

#[tokio::test]
async fn a_message_that_becomes_a_dead_letter_without_a_run_is_logged() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let consumer = consumer.max_receive_count(3).stop_at_first_failure().concurrency(1);
    for (receives, is_last) in [("2", false), ("3", true)] {
        let [behind, unreadable, elsewhere] =
            ["behind", "unreadable", "elsewhere"].map(|what| format!("{what}, receive {receives} of {}", world.table));
        let received = |message| with_attributes(message, [("ApproximateReceiveCount", receives)]);
        let mut misfit = ordered(&unreadable, "a", "Done");
        misfit.body = Some("{".to_owned());
        let messages =
            [ordered("1", "a", "Declined"), ordered(&behind, "a", "Done"), misfit, ordered(&elsewhere, "b", "Done")];
        deliver(&consumer, &till, &host, messages.map(received)).await;
        for id in [&behind, &elsewhere] {
            let lines = dead_letters(id);
            assert_eq!(lines.len(), usize::from(is_last), "{lines:?}");
            for part in ["WARN", "dead_letter=true", "to the queue: not started"] {
                assert!(lines.iter().all(|line| line.contains(part)), "`{part}` is not in {lines:?}");
            }
        }
        assert_eq!(dead_letters(&unreadable).len(), 1);
    }
    assert_eq!(till.ran(), ["1", "1"]);
}
