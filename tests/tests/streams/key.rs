//! The key of a record, and the window.

use std::time::Duration;

use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock::{Idempotency, WithRun};
use lambda_lock_tests::invocation::invocation;
use tower::service_fn;

use crate::{
    Declined, Payment, STREAM, again_from, batch, by_payment, deliver, environment, record, record_with_data, records,
    row_of,
};

#[tokio::test]
async fn by_event_id_has_the_stream_the_shard_and_the_number_in_its_key() {
    let (world, host, consumer, till) = environment().await;
    assert_eq!(deliver(&consumer, &till, &host, records([("a", "Done")])).await, None);
    let row = world.row(&row_of("1")).await.unwrap();
    assert_eq!(row["status"].as_s().unwrap(), "COMPLETED");
}

#[tokio::test]
async fn a_number_of_another_shard_or_stream_is_another_record() {
    let (_world, host, consumer, till) = environment().await;
    let mut of_shard = record("1", "a", "Done");
    of_shard.event_id = Some("shardId-000000000007:1".to_owned());
    let mut of_stream = record("1", "a", "Done");
    of_stream.event_source_arn = Some("arn:aws:kinesis:eu-west-1:123456789012:stream/refunds".to_owned());
    for record in [record("1", "a", "Done"), of_shard, of_stream] {
        for _ in 0..2 {
            assert_eq!(deliver(&consumer, &till, &host, [record.clone()]).await, None);
        }
    }
    assert_eq!(till.ran(), ["1", "1", "1"]);
}

#[tokio::test]
async fn a_record_without_an_event_id_does_not_run() {
    let (_world, host, consumer, till) = environment().await;
    for event_id in [None, Some(String::new())] {
        let mut nameless = record("1", "a", "Done");
        nameless.event_id = event_id;
        assert_eq!(deliver(&consumer, &till, &host, [nameless]).await.as_deref(), Some("1"));
    }
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_key_from_the_data_makes_a_record_that_was_written_twice_a_duplicate() {
    let (world, host, _, till) = environment().await;
    let consumer = StreamConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    for number in ["1", "2"] {
        let record = record_with_data(number, "a", r#"{"id": "17"}"#);
        assert_eq!(deliver(&consumer, &till, &host, [record]).await, None);
    }
    assert_eq!(till.ran(), ["1"]);
    assert!(world.row(&format!("orders#{STREAM}#17")).await.is_some());
}

#[tokio::test]
async fn a_record_without_a_key_can_run_unprotected() {
    let (world, host, _, till) = environment().await;
    let key = |_: &KinesisRecord<Payment>| None::<String>;
    let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::RunUnprotected, key);
    assert_eq!(deliver(&StreamConsumer::new(once), &till, &host, records([("a", "Done")])).await, None);
    assert_eq!(till.ran(), ["1"]);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_record_with_a_used_key_and_different_fields_is_not_done() {
    let (world, host, _, till) = environment().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).validate(|record| record.body.amount);
    let consumer = StreamConsumer::new(once);
    let paying = |number, amount| record_with_data(number, "a", format!(r#"{{"id": "17", "amount": {amount}}}"#));
    assert_eq!(deliver(&consumer, &till, &host, [paying("1", 5)]).await, None);
    assert_eq!(deliver(&consumer, &till, &host, [paying("2", 5), paying("3", 6)]).await.as_deref(), Some("3"));
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn the_window_is_two_days_and_can_be_a_year() {
    let (world, host, consumer, till) = environment().await;
    let year = consumer.clone().window(Duration::from_hours(365 * 24));
    assert_eq!(deliver(&consumer, &till, &host, [record("1", "a", "Done")]).await, None);
    assert_eq!(deliver(&year, &till, &host, [record("2", "a", "Done")]).await, None);
    for (number, days) in [("1", 2), ("2", 365)] {
        let row = world.row(&row_of(number)).await.unwrap();
        let of = |attribute: &str| row[attribute].as_n().unwrap().parse::<u64>().unwrap();
        let window = of("expiration") - of("acquired_at") / 1000;
        assert!((days * 86_400..days * 86_400 + 10).contains(&window), "{window}");
    }
}

#[tokio::test]
async fn a_consumer_of_bytes_has_the_same_window_unless_another_is_set() {
    for (set, seconds) in [(None, 2 * 86_400), (Some(Duration::from_mins(10)), 600)] {
        let (world, host, _, _) = environment().await;
        let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::Reject, KinesisRecord::key);
        let once = if let Some(window) = set { once.window(window) } else { once };
        let handler = service_fn(async |_: KinesisRecord<Vec<u8>>| Ok::<_, Declined>(()));
        let event = invocation(&host, batch(records([("a", "Done")])));
        assert_eq!(again_from(&StreamConsumer::of_bytes(once), handler, event).await, None);
        let row = world.row(&row_of("1")).await.unwrap();
        let of = |attribute: &str| row[attribute].as_n().unwrap().parse::<u64>().unwrap();
        let window = of("expiration") - of("acquired_at") / 1000;
        assert!((seconds..seconds + 10).contains(&window), "{window}");
    }
}

#[tokio::test]
async fn a_handler_of_with_run_gets_the_fence() {
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer: StreamConsumer<_, Declined, u64, WithRun<KinesisRecord<Payment>>> =
        StreamConsumer::by_event_id(locks);
    let handler = service_fn(async |WithRun { input, run, .. }: WithRun<KinesisRecord<Payment>>| {
        assert_eq!(input.sequence_number(), Some("1"));
        Ok::<_, Declined>(run.lock().fence())
    });
    let event = invocation(&host, batch(records([("a", "Done")])));
    assert_eq!(again_from(&consumer, handler, event).await, None);
    let row = world.row(&row_of("1")).await.unwrap();
    let [result, last] = [row["data"].as_s(), row["fence"].as_n()].map(|of| of.unwrap().parse::<u64>().unwrap());
    assert!(0 < result && result < last, "the completion of fence {result} has the number {last}");
}
