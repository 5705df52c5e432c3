//! The key of a record.

use crate::{deliver, environment, record, records, row_of};

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
