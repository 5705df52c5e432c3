//! Lanes: the records of a partition key, in order.

use std::sync::{Arc, Mutex};

use aws_lambda_events::kinesis::KinesisEventRecord;
use futures_util::FutureExt;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock_tests::invocation::{AtOnce, invocation};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};
use tower::service_fn;

use crate::{
    Consumer, Declined, Payment, again_from, batch, by_payment, deliver, environment, ms, record, record_with_data,
    records,
};

#[tokio::test]
async fn the_records_of_a_key_run_in_order() {
    let (_world, host, consumer, _) = environment().await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let log = Arc::clone(&log);
        move |record: KinesisRecord<Payment>| {
            let log = Arc::clone(&log);
            async move {
                let number = record.sequence_number().unwrap().to_owned();
                log.lock().unwrap().push(format!("{number} begins"));
                // The earlier ones take longer.
                sleep(ms(30 / number.parse::<u64>().unwrap())).await;
                log.lock().unwrap().push(format!("{number} ends"));
                Ok::<_, Declined>(())
            }
        }
    });
    let three = records([("a", "Done"), ("a", "Done"), ("a", "Done")]);
    assert_eq!(again_from(&consumer, handler, invocation(&host, batch(three))).await, None);
    assert_eq!(*log.lock().unwrap(), ["1 begins", "1 ends", "2 begins", "2 ends", "3 begins", "3 ends"]);
}

#[tokio::test]
async fn a_failure_stops_its_lane_and_no_other() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment().await;
        let keys = ["a", "b", "a", "b", "a", "a", "b"];
        let all = |failing| {
            let then = move |number| if number == 3 { failing } else { "Done" };
            keys.iter().zip(1..).map(move |(key, number)| record(&number.to_string(), key, then(number)))
        };
        assert_eq!(deliver(&consumer, &till, &host, all(failing)).await.as_deref(), Some("3"));
        assert_eq!(till.ran_in_any_order(), ["1", "2", "3", "4", "7"]);
        // Lambda delivers again from there.
        assert_eq!(deliver(&consumer, &till, &host, all("Done").skip(2)).await, None);
        assert_eq!(till.ran()[5..], ["3", "5", "6"]);
    }
}

#[tokio::test]
async fn an_unreadable_record_stops_its_lane() {
    let (_world, host, consumer, till) = environment().await;
    let batch =
        [record("1", "a", "Done"), record_with_data("2", "a", "{"), record("3", "a", "Done"), record("4", "b", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, batch).await.as_deref(), Some("2"));
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
}

/// Whether these records run at the same time: each waits for all others.
async fn run_at_the_same_time(records: Vec<KinesisEventRecord>) -> bool {
    let (_world, host, consumer, _) = environment().await;
    let all = Arc::new(Barrier::new(records.len()));
    let handler = service_fn(move |_: KinesisRecord<Payment>| {
        let all = Arc::clone(&all);
        async move { timeout(ms(1_500), all.wait()).await.map_or(Err(Declined), |_| Ok(())) }
    });
    again_from(&consumer, handler, invocation(&host, batch(records))).await.is_none()
}

#[tokio::test]
async fn records_of_different_keys_run_at_the_same_time() {
    assert!(run_at_the_same_time(records([("a", "Done"), ("b", "Done")])).await);
    assert!(!run_at_the_same_time(records([("a", "Done"), ("a", "Done")])).await);
}

async fn assert_most_at_once(most: u32, concurrency: impl Fn(Consumer) -> Consumer, keys: u32) {
    let (_world, host, consumer, _) = environment().await;
    let at_once = AtOnce::expecting(most);
    let handler = service_fn({
        let at_once = at_once.clone();
        move |_: KinesisRecord<Payment>| at_once.clone().run().map(Ok::<_, Declined>)
    });
    let records = (0..2 * keys).map(|number| record(&number.to_string(), &(number % keys).to_string(), "Done"));
    assert_eq!(again_from(&concurrency(consumer), handler, invocation(&host, batch(records))).await, None);
    at_once.assert();
}

#[tokio::test]
async fn concurrency_limits_lanes_to_ten_by_default_and_to_one_at_least() {
    assert_most_at_once(10, |consumer| consumer, 25).await;
    assert_most_at_once(3, |consumer| consumer.concurrency(3), 7).await;
    assert_most_at_once(1, |consumer| consumer.concurrency(0), 3).await;
    assert_most_at_once(30, |consumer| consumer.concurrency(usize::MAX), 30).await;
}

#[tokio::test]
async fn twins_in_a_lane_run_once_at_the_place_of_the_first() {
    let (world, host, _, till) = environment().await;
    let consumer = StreamConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    let twin = |number| record_with_data(number, "a", r#"{"id": "17"}"#);
    let batch = [twin("1"), record("2", "a", "Done"), twin("3"), record("4", "a", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, batch).await, None);
    assert_eq!(till.ran(), ["1", "2", "4"]);
    assert_eq!(host.requests(), 7);
}
