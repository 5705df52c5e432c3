//! A panic in the caller's code fails one record.

use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock_tests::invocation::invocation;
use serde::Deserialize;
use tower::service_fn;

use crate::{Consumer, again_from, batch, environment, record_with_data};

/// Data that panics when it is dropped.
#[derive(Debug, Deserialize)]
struct Brittle {
    is_brittle: bool,
}

impl Drop for Brittle {
    fn drop(&mut self) {
        assert!(!self.is_brittle || std::thread::panicking(), "in the drop");
    }
}

#[tokio::test]
async fn a_panic_in_the_drop_of_data_fails_one_record() {
    let (world, host, _, _) = environment().await;
    let consumer: Consumer<Brittle> = StreamConsumer::by_event_id(world.locks(&host).build().unwrap());
    let consumer = consumer.concurrency(1);
    let data = |number: &str, key: &str, is_brittle: bool| {
        record_with_data(number, key, format!("{{\"is_brittle\": {is_brittle}}}"))
    };
    let handler = service_fn(async |_: KinesisRecord<Brittle>| Ok(()));
    let event = invocation(
        &host,
        batch([data("1", "a", false), data("2", "b", true), data("2", "b", true), data("3", "c", false)]),
    );
    assert_eq!(again_from(&consumer, handler, event).await.as_deref(), Some("2"));
    assert!(world.row(&crate::row_of("3")).await.is_some());
}
