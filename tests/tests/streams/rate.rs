//! `Consumer::at_rate`: records start at a rate.

use std::time::{Duration, SystemTime};

use aws_lambda_events::kinesis::KinesisEventRecord;
use lambda_lock::Locks;
use lambda_lock::embedded::DynamoDb;
use lambda_lock::streams::StreamConsumer;
use lambda_lock_tests::till::Till;

use crate::{Consumer, deliver, record};

/// Delivers records of so many keys in batches of this size, as Lambda does, to a function with a timeout of 30 s at one call in
/// ten seconds. Returns how often Lambda delivers, and how many answers name a record.
async fn deliveries(records: usize, batch_size: usize) -> (usize, usize) {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    let host = engine.host().build();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    let bank = locks.rate("bank-api", 1, Duration::from_secs(10));
    let consumer: Consumer = StreamConsumer::by_event_id(locks).at_rate(bank);
    let till = Till::default();
    let mut left: Vec<KinesisEventRecord> =
        (1..=records).map(|number| record(&number.to_string(), &format!("key {number}"), "Done")).collect();
    let (mut deliveries, mut failures) = (0, 0);
    while !left.is_empty() {
        let batch = &left[..batch_size.min(left.len())];
        let again = deliver(&consumer, &till, &host, batch.to_vec()).await;
        let done = again.as_ref().map_or(batch.len(), |number| {
            batch.iter().position(|record| record.kinesis.sequence_number == *number).unwrap()
        });
        left.drain(..done);
        deliveries += 1;
        failures += usize::from(again.is_some());
    }
    assert_eq!(till.ran_in_any_order().len(), records);
    (deliveries, failures)
}

// The numbers of the guide.
#[tokio::test(start_paused = true)]
async fn a_batch_that_its_rate_lets_pass_in_time_never_fails() {
    assert_eq!(deliveries(40, 2).await, (20, 0));
    let (deliveries, failures) = deliveries(40, 40).await;
    assert!(deliveries > 11 && failures == deliveries - 1, "{deliveries} deliveries, {failures} failures");
}
