//! FIFO queues: the order of a group.

use std::sync::Arc;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use lambda_lock::lambda::SqsMessage;
use lambda_lock_tests::invocation::{invocation, keep_log, logged};
use tokio::sync::Barrier;
use tokio::time::timeout;
use tower::service_fn;

use crate::{Declined, Payment, batch, deliver, environment, failures, message, ms, ordered, with_attributes};

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

#[tokio::test]
async fn a_message_without_an_id_returns_the_rest_of_its_group() {
    let (_world, host, consumer, till) = environment().await;
    let mut nameless = ordered("2", "a", "Done");
    nameless.message_id = None;
    let messages = [ordered("1", "a", "Done"), nameless, ordered("3", "a", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["", "3"]);
    assert_eq!(till.ran(), ["1"]);
}
