//! The invocation's deadline: leases, records that are not started, silent tables.

use std::time::Duration;

use lambda_lock::streams::KinesisRecord;
use lambda_lock_tests::invocation::{invocation, invocation_with, millis};
use tower::service_fn;

use crate::{Payment, Then, again_from, batch, deliver, deliver_in, environment, ms, records};

// behaviours 74, 480
#[tokio::test]
async fn a_record_that_outlives_its_lease_is_cancelled_before_the_deadline() {
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.min_remaining_time(ms(100));
    let event = invocation_with(&host, batch(records([("a", "Done"), ("b", "Endless"), ("c", "Done")])), ms(1_600));
    let deadline = event.context.deadline;
    assert_eq!(deliver_in(&consumer, &till, event).await.as_deref(), Some("2"));
    assert!(millis(host.now()) < deadline);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    // Its record was released: it runs again at once.
    let again = records([("a", "Panic"), ("b", "Done"), ("c", "Panic")]).split_off(1);
    assert_eq!(deliver(&consumer, &till, &host, again).await, None);
}

// behaviours 74, 480, 481
#[tokio::test]
async fn records_not_started_near_the_deadline_are_not_done_and_send_nothing() {
    let (_world, host, consumer, till) = environment().await;
    let event = invocation(&host, batch(records([("a", "Done"), ("b", "Done"), ("a", "Done"), ("b", "Done")])));
    let handler = service_fn({
        let (till, host) = (till.clone(), host.clone());
        move |record| {
            // The environment was frozen.
            host.advance_clock(ms(14_200));
            till.clone().pay(record)
        }
    });
    // The leases end after 29 s. After the second record, which is the other one of `a`, less than a second is left.
    assert_eq!(again_from(&consumer.concurrency(1), handler, event).await.as_deref(), Some("2"));
    assert_eq!(till.ran(), ["1", "3"]);
    assert_eq!(host.requests(), 4);
}

// behaviours 74, 480
#[tokio::test]
async fn nothing_runs_past_the_deadline() {
    let (_world, host, consumer, till) = environment().await;
    let event = invocation(&host, batch(records([("a", "Done"), ("b", "Done")])));
    host.advance_clock(Duration::from_secs(31));
    assert_eq!(deliver_in(&consumer, &till, event).await.as_deref(), Some("1"));
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

// behaviours 74, 76, 480
#[tokio::test]
async fn a_silent_table_does_not_delay_the_answer_past_the_deadline() {
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.min_remaining_time(ms(100)).concurrency(1);
    let event = invocation_with(&host, batch(records([("a", "Done"), ("b", "Endless"), ("c", "Done")])), ms(1_200));
    let deadline = event.context.deadline;
    let handler = service_fn({
        let host = host.clone();
        move |record: KinesisRecord<Payment>| {
            if record.body.then == Then::Endless {
                host.crash();
            }
            till.clone().pay(record)
        }
    });
    assert_eq!(again_from(&consumer, handler, event).await.as_deref(), Some("2"));
    assert!(millis(host.now()) < deadline, "{} ms late", millis(host.now()) - deadline);
}
