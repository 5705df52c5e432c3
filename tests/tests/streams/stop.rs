//! `stop_at_first_failure`.

use std::time::Duration;

use lambda_lock::streams::KinesisRecord;
use lambda_lock_tests::invocation::invocation;
use tokio::time::sleep;
use tower::service_fn;

use crate::{
    Payment, again_from, batch, deliver, environment, ms, record, record_with_data, records, row_of, work_elsewhere,
};

#[tokio::test]
async fn an_unreadable_record_stops_the_batch() {
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.concurrency(1).stop_at_first_failure();
    let batch = [record("1", "a", "Done"), record_with_data("2", "b", "{"), record("3", "c", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, batch).await.as_deref(), Some("2"));
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn records_that_are_running_at_a_failure_finish() {
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.concurrency(2).stop_at_first_failure();
    let four = records([("a", "Declined"), ("b", "Done"), ("b", "Done"), ("c", "Done")]);
    let handler = service_fn({
        let (till, host) = (till.clone(), host.clone());
        move |record: KinesisRecord<Payment>| {
            let (till, host) = (till.clone(), host.clone());
            async move {
                if record.sequence_number() == Some("2") {
                    // Until the first record has been released.
                    while host.requests() < 3 {
                        sleep(ms(1)).await;
                    }
                    sleep(ms(100)).await;
                }
                till.pay(record).await
            }
        }
    });
    assert_eq!(again_from(&consumer, handler, invocation(&host, batch(four))).await.as_deref(), Some("1"));
    assert_eq!(till.ran(), ["1", "2"]);
    let again = records([("a", "Done"), ("b", "Panic"), ("b", "Done"), ("c", "Done")]);
    assert_eq!(deliver(&consumer, &till, &host, again).await, None, "the second record was done");
}

#[tokio::test]
async fn a_record_that_waited_does_not_start_after_a_failure() {
    let (world, host, consumer, till) = environment().await;
    let other = work_elsewhere(&world, "1", Duration::from_secs(30)).await;
    let consumer = consumer.concurrency(2).stop_at_first_failure();
    let two = records([("a", "Done"), ("b", "Declined")]);
    let (again, ()) = tokio::join!(deliver(&consumer, &till, &host, two), async {
        while world.row(&row_of("2")).await.is_none_or(|row| !row.contains_key("released")) {
            sleep(ms(1)).await;
        }
        sleep(ms(100)).await;
        other.release().await.unwrap();
    });
    assert_eq!(again.as_deref(), Some("1"));
    assert_eq!(till.ran(), ["2"]);
    // Its record is free.
    assert_eq!(deliver(&consumer, &till, &host, records([("a", "Done")])).await, None);
    assert_eq!(till.ran(), ["2", "1"]);
}
