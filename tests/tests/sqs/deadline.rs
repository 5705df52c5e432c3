//! The invocation's deadline: leases, messages that are not started, silent tables.

use std::time::Duration;

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use lambda_lock::embedded::Host;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{SqsConsumer, WithRun};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    Consumer, Declined, Payment, Till, batch, deliver_in, environment, failures, message, ms, ordered, row_of,
};

/// The end of the lease of a message that is done, without the clock skew.
async fn lease_end(world: &World, id: &str) -> u64 {
    let row = world.row(&row_of(id)).await.unwrap();
    row["in_progress_expiration"].as_n().unwrap().parse::<u64>().unwrap() - 1_000
}

#[tokio::test]
async fn leases_end_a_second_or_a_quarter_of_the_time_before_the_deadline() {
    let (world, host, consumer, till) = environment().await;
    let consumer = consumer.min_remaining_time(Duration::ZERO);
    let event = invocation(&host, batch([message("1", "Done")]));
    let deadline = event.context.deadline;
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    assert_eq!(lease_end(&world, "1").await, deadline - 1_000);
    let event = invocation_with(&host, batch([message("2", "Done")]), ms(2_000));
    let deadline = event.context.deadline;
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    let left = deadline - lease_end(&world, "2").await;
    assert!((300..=500).contains(&left), "{left}");
}

/// Delivers a batch to a handler during which only the clock advances: the environment was frozen.
async fn deliver_while_time_passes(
    consumer: &Consumer,
    till: &Till,
    host: &Host,
    messages: Vec<SqsRecord>,
    by: Duration,
) -> Vec<String> {
    let event = invocation(host, batch(messages));
    let (till, host) = (till.clone(), host.clone());
    let handler = service_fn(move |message| {
        host.advance_clock(by);
        till.clone().pay(message)
    });
    failures(consumer, handler, event).await
}

#[tokio::test]
async fn the_rest_of_a_group_goes_back_near_the_deadline() {
    let (_world, host, consumer, till) = environment().await;
    let messages = ["1", "2", "3", "4"].map(|id| ordered(id, "group", "Done")).to_vec();
    let failed = deliver_while_time_passes(&consumer, &till, &host, messages, ms(14_200)).await;
    assert_eq!(failed, ["3", "4"]);
    assert_eq!(till.ran(), ["1", "2"]);
}

#[tokio::test]
async fn min_remaining_time_sets_when_no_message_is_started() {
    for (min_remaining_time, failed) in [(ms(20_000), vec!["2", "3"]), (ms(500), vec![])] {
        let (_world, host, consumer, till) = environment().await;
        let consumer = consumer.concurrency(1).min_remaining_time(min_remaining_time);
        let messages = ["1", "2", "3"].map(|id| message(id, "Done")).to_vec();
        assert_eq!(deliver_while_time_passes(&consumer, &till, &host, messages, ms(9_400)).await, failed);
    }
}

#[tokio::test]
async fn messages_without_a_deadline_have_the_default_lease() {
    let (world, host, consumer, till) = environment().await;
    let mut event = invocation(&host, batch([message("1", "Done")]));
    event.context.deadline = 0;
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    let row = world.row(&row_of("1")).await.unwrap();
    let acquired_at: u64 = row["acquired_at"].as_n().unwrap().parse().unwrap();
    assert_eq!(lease_end(&world, "1").await - acquired_at, 30_000);
}

#[tokio::test]
async fn a_timeout_below_min_remaining_time_still_runs_messages() {
    let (_world, host, consumer, till) = environment().await;
    let event = invocation_with(&host, batch([message("1", "Done")]), ms(900));
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn work_that_released_its_record_outlives_the_lease() {
    let world = World::in_virtual_time().await;
    let host = world.host().build();
    let consumer: SqsConsumer<Payment, Declined, (), WithRun<SqsMessage<Payment>>> =
        SqsConsumer::by_message_id(world.locks(&host).build().unwrap()).lease(ms(2_000));
    let handler = service_fn(async |WithRun { run, .. }: WithRun<SqsMessage<Payment>>| {
        run.lock().release().await.unwrap();
        sleep(ms(3_000)).await;
        Ok(())
    });
    let event = invocation(&host, batch([message("1", "Done")]));
    assert!(failures(&consumer, handler, event).await.is_empty());
}

/// A lock that is not enforced has no lease that ends.
#[tokio::test(start_paused = true)]
async fn a_batch_that_is_cut_off_names_the_answer_as_the_reason() {
    let world = World::in_virtual_time().await;
    let host = world.host().build();
    let consumer: Consumer = SqsConsumer::by_message_id(world.locks(&host).enabled(false).build().unwrap());
    let till = Till::default();
    let service = consumer.layer(service_fn(move |message| till.clone().pay(message)));
    let failed = service.oneshot(invocation(&host, batch([message("1", "Endless")]))).await.unwrap_err();
    assert_eq!(failed.error_type, "TimedOut");
    assert!(failed.error_message.ends_with("unfinished when the answer was due"), "{failed:?}");
}
