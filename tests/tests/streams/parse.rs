//! The data of Kinesis records: JSON, bytes, and anything else.

use std::future::ready;
use std::sync::{Arc, Mutex};

use lambda_lock::Idempotency;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock_tests::invocation::{invocation, keep_log, logged};
use tower::service_fn;

use crate::{
    Consumer, Declined, Payment, again_from, assert_debug_hides, batch, by_payment, deliver, environment, record,
    record_with_data, row_of,
};

#[tokio::test]
async fn a_handler_gets_the_data_and_the_record() {
    let (_world, host, consumer, _) = environment().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let seen = Arc::clone(&seen);
        move |record: KinesisRecord<Payment>| {
            seen.lock().unwrap().push(record);
            ready(Ok::<_, Declined>(()))
        }
    });
    let record = record("1", "customer 17", "Done");
    assert_eq!(again_from(&consumer, handler, invocation(&host, batch([record.clone()]))).await, None);
    let seen = seen.lock().unwrap();
    let [got] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((got.body.id.as_str(), got.partition_key()), ("payment 1", "customer 17"));
    let mut without_data = record;
    without_data.kinesis.data.0.clear();
    assert_eq!(got.record, without_data);
    assert_debug_hides(got, "17");
}

#[tokio::test]
async fn of_bytes_leaves_the_data_as_it_is() {
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = Idempotency::new(locks, OnMissingKey::Reject, KinesisRecord::key);
    let consumer: Consumer<Vec<u8>> = StreamConsumer::of_bytes(once);
    let handler = service_fn(async |record: KinesisRecord<Vec<u8>>| {
        assert_eq!(record.body, [0, 159, 146, 150]);
        Ok::<_, Declined>(())
    });
    let event = invocation(&host, batch([record_with_data("1", "a", [0, 159, 146, 150])]));
    assert_eq!(again_from(&consumer, handler, event).await, None);
    assert!(world.row(&row_of("1")).await.is_some());
}

#[tokio::test]
async fn data_that_only_contains_records_is_logged_with_the_way_out() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let strict: Consumer =
        StreamConsumer::with_parser(by_payment(&world.locks(&host).build().unwrap()), |_| Err("it is no payment"));
    let containers: [(&str, &[u8], &str); 2] = [
        ("aggregated", &[0xf3, 0x89, 0x9a, 0xc2, 0x0a, 0x01], "the Kinesis Producer Library has aggregated"),
        ("compressed", &[0x1f, 0x8b, 0x08], "it is compressed by gzip"),
    ];
    for (container, data, cause) in containers {
        for (consumer, parser) in [(&consumer, "JSON"), (&strict, "own")] {
            let number = format!("{container} for {parser} in {}", world.table);
            let batch = [record_with_data(&number, "a", data)];
            assert_eq!(deliver(consumer, &till, &host, batch).await.as_ref(), Some(&number));
            let lines = logged(&number);
            let [line] = &lines[..] else { panic!("{lines:#?}") };
            assert!(line.contains(cause) && line.contains("`StreamConsumer::with_parser`"), "{line}");
        }
    }
    assert!(till.ran().is_empty());
}

#[tokio::test]
async fn a_parser_can_take_an_aggregated_record_apart() {
    let (world, host, _, _) = environment().await;
    let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::Reject, KinesisRecord::key);
    let apart = |data: Vec<u8>| match data.strip_prefix(&[0xf3, 0x89, 0x9a, 0xc2]) {
        Some(records) => Ok(records.to_vec()),
        None => Err("it is not aggregated"),
    };
    let consumer: Consumer<Vec<u8>> = StreamConsumer::with_parser(once, apart);
    let handler = service_fn(async |record: KinesisRecord<Vec<u8>>| {
        assert_eq!(record.body, [1, 2]);
        Ok::<_, Declined>(())
    });
    let event = invocation(&host, batch([record_with_data("1", "a", [0xf3, 0x89, 0x9a, 0xc2, 1, 2])]));
    assert_eq!(again_from(&consumer, handler, event).await, None);
}
