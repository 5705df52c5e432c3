//! A message that failed comes again after a delay by its receive count.

use std::time::Duration;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use lambda_lock::embedded::Host;
use lambda_lock::{Backoff, Jitter, SqsConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation_with, keep_log, logged};
use serde_json::json;

use crate::queues::{Does, Queues};
use crate::{
    Consumer, Till, batch, by_payment, deliver, deliver_in, environment, environment_in, message, message_with_body,
    ms, ordered, with_attributes, work_elsewhere,
};

const SECOND: Duration = Duration::from_secs(1);

/// Delays of 1, 2, 4 … seconds.
fn doubling() -> Backoff {
    Backoff::new().base(SECOND).cap(Duration::from_hours(24)).jitter(Jitter::None)
}

async fn delaying(queues: &Queues, backoff: Backoff) -> (World, Host, Consumer, Till) {
    let (world, host, consumer, till) = environment().await;
    (world, host, consumer.back_off(queues.client(), backoff), till)
}

/// A message that SQS delivers for the nth time.
fn received(message: SqsRecord, count: &str) -> SqsRecord {
    with_attributes(message, [("ApproximateReceiveCount", count)])
}

#[tokio::test]
async fn the_delay_doubles_with_each_receive() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling()).await;
    for count in ["1", "2", "3", "10"] {
        let failing = received(message("1", "Declined"), count);
        assert_eq!(deliver(&consumer, &till, &host, [failing]).await, ["1"]);
    }
    assert_eq!(queues.seconds(), [1, 2, 4, 512]);
    assert_eq!(queues.hidden()[0]["ReceiptHandle"], "receipt of 1");
    assert_eq!(queues.hidden()[0]["QueueUrl"], "https://sqs.eu-west-1.amazonaws.com/123456789012/payments");
}

#[tokio::test]
async fn a_message_without_a_receive_count_has_the_first_delay() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling()).await;
    for failing in [message("1", "Declined"), received(message("1", "Declined"), "many")] {
        deliver(&consumer, &till, &host, [failing]).await;
    }
    assert_eq!(queues.seconds(), [1, 1]);
}

#[tokio::test]
async fn full_jitter_spreads_the_delays_below_the_exponential_one() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling().base(100 * SECOND).jitter(Jitter::Full)).await;
    for _ in 0..20 {
        deliver(&consumer, &till, &host, [received(message("1", "Declined"), "3")]).await;
    }
    let mut seconds = queues.seconds();
    assert!(seconds.iter().all(|seconds| *seconds <= 400), "{seconds:?}");
    seconds.sort_unstable();
    seconds.dedup();
    assert!(seconds.len() > 1, "{seconds:?}");
}

#[tokio::test]
async fn a_delay_is_rounded_up_to_whole_seconds() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling().base(ms(1_001))).await;
    deliver(&consumer, &till, &host, [message("1", "Declined")]).await;
    assert_eq!(queues.seconds(), [2]);
}

#[tokio::test]
async fn a_delay_is_at_most_eleven_hours_and_forty_minutes() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling()).await;
    deliver(&consumer, &till, &host, [received(message("1", "Declined"), "4294967295")]).await;
    assert_eq!(queues.seconds(), [42_000]);
}

#[tokio::test]
async fn a_message_that_panics_or_cannot_be_read_is_delayed() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling()).await;
    let messages = [message("1", "Panic"), message_with_body("2", "{")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2"]);
    assert_eq!(queues.seconds(), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_unfinished_when_its_lease_ends_is_delayed() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = environment_in(World::in_virtual_time().await);
    let consumer = consumer.back_off(queues.client(), doubling());
    let consumer = consumer.lease(ms(1_000)).min_remaining_time(ms(100));
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Endless")]).await, ["1"]);
    assert_eq!(queues.seconds(), [1]);
}

#[tokio::test]
async fn a_message_that_is_done_in_progress_or_not_started_is_not_delayed() {
    let queues = Queues::default();
    let (world, host, consumer, till) = delaying(&queues, doubling()).await;
    let _other = work_elsewhere(&world, "2", 40 * SECOND).await;
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done"), message("2", "Done")]).await, ["2"]);
    let late = invocation_with(&host, batch([message("3", "Done")]), ms(1));
    assert_eq!(deliver_in(&consumer, &till, late).await, ["3"]);
    assert_eq!(till.ran(), ["1"]);
    assert!(queues.hidden().is_empty());
}

#[tokio::test]
async fn the_rest_of_the_group_of_a_failed_message_is_not_delayed() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling()).await;
    let messages = [ordered("1", "group", "Declined"), ordered("2", "group", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2"]);
    assert_eq!(queues.hidden().len(), 1);
    assert_eq!(queues.hidden()[0]["ReceiptHandle"], "receipt of 1");
}

#[tokio::test]
async fn both_deliveries_of_a_failed_message_in_a_batch_are_delayed() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling()).await;
    let twins = ["1", "2"].map(|count| received(message("1", "Declined"), count));
    assert_eq!(deliver(&consumer, &till, &host, twins).await, ["1", "1"]);
    assert_eq!((queues.seconds(), till.ran().len()), (vec![1, 2], 1));
}

#[tokio::test(start_paused = true)]
async fn the_answer_does_not_wait_for_a_silent_queue() {
    for does in [Does::Refuse, Does::Fail, Does::FallSilent] {
        let queues = Queues::that(does);
        let (_world, host, consumer, till) = environment_in(World::in_virtual_time().await);
        let consumer = consumer.back_off(queues.client(), doubling());
        let messages = [message("1", "Declined"), message("2", "Done")];
        let event = invocation_with(&host, batch(messages), 10 * SECOND);
        let began = host.now();
        assert_eq!(deliver_in(&consumer, &till, event).await, ["1"]);
        let took = host.now().duration_since(began).unwrap();
        assert!(took < 3 * SECOND, "{took:?}");
        assert!(!queues.hidden().is_empty());
    }
}

#[tokio::test]
async fn the_last_delivery_is_not_delayed() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = delaying(&queues, doubling()).await;
    let consumer = consumer.max_receive_count(3);
    for (count, delays) in [("2", vec![2]), ("3", vec![2]), ("4", vec![2])] {
        deliver(&consumer, &till, &host, [received(message("1", "Declined"), count)]).await;
        assert_eq!(queues.seconds(), delays, "receive {count}");
    }
}

#[tokio::test]
async fn absurd_delays_are_as_long_as_sqs_allows_or_a_second() {
    let most = Backoff::new().base(Duration::MAX).cap(Duration::MAX).jitter(Jitter::None);
    let none = Backoff::new().base(Duration::ZERO).jitter(Jitter::None);
    for (backoff, seconds) in [(most, 42_000), (none, 1)] {
        let queues = Queues::default();
        let (_world, host, consumer, till) = delaying(&queues, backoff).await;
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Declined")]).await, ["1"]);
        assert_eq!(queues.seconds(), [seconds]);
    }
}

#[tokio::test]
async fn a_copy_that_is_delivered_for_the_last_time_is_logged_and_not_delayed() {
    keep_log();
    for counts in [["2", "3"], ["3", "2"]] {
        let queues = Queues::default();
        let (world, host, _, till) = environment().await;
        let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()))
            .back_off(queues.client(), doubling())
            .max_receive_count(3);
        let id = format!("delivered twice, {counts:?} of {}", world.table);
        let body = json!({ "id": "17", "then": "Declined" }).to_string();
        let copies = counts.map(|count| received(message_with_body(&id, &body), count));
        assert_eq!(deliver(&consumer, &till, &host, copies).await, [id.as_str(); 2]);
        assert_eq!(till.ran().len(), 1);
        assert_eq!(queues.seconds(), [2]);
        let why = if counts[0] == "3" { "by the bank" } else { "a copy of a message that is not done" };
        let lines: Vec<_> = logged(&world.table).into_iter().filter(|line| line.contains("dead_letter=true")).collect();
        let [line] = &lines[..] else { panic!("{lines:#?}") };
        assert!(line.contains(why), "{line}");
    }
}
