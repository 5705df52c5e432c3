//! A panic in the caller's code fails one record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll};

use futures_util::future::BoxFuture;
use lambda_lock::Idempotency;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock_tests::invocation::invocation;
use serde::Deserialize;
use tower::{Service, service_fn};

use crate::{
    Consumer, Declined, Payment, STREAM, Then, Till, again_from, batch, by_payment, deliver, environment, record,
    record_with_data, records,
};

#[tokio::test]
async fn a_panic_in_the_parser_or_the_key_fails_one_record() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = Idempotency::new(locks, OnMissingKey::Reject, |record: &KinesisRecord<Payment>| {
        assert!(record.body.id != "payment 3", "in the key");
        Some(record.body.id.clone())
    });
    let consumer: Consumer = StreamConsumer::with_parser(once, |data| {
        assert!(data != b"panic", "in the parser");
        serde_json::from_slice(&data)
    });
    let batch = [record("1", "a", "Done"), record_with_data("2", "b", "panic"), record("3", "c", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, batch).await.as_deref(), Some("2"));
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn a_panic_in_the_call_of_the_handler_or_in_on_error_fails_one_record() {
    let (world, host, _, _) = environment().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).on_error(|Declined| panic!("in the policy"));
    let handler = service_fn(|record: KinesisRecord<Payment>| match record.body.then {
        Then::Panic => panic!("in the call"),
        Then::Declined => std::future::ready(Err(Declined)),
        _ => std::future::ready(Ok(())),
    });
    let event = invocation(&host, batch(records([("a", "Done"), ("b", "Declined"), ("c", "Panic"), ("d", "Done")])));
    assert_eq!(again_from(&StreamConsumer::new(once), handler, event).await.as_deref(), Some("2"));
    assert!(world.row(&format!("orders#{STREAM}#payment 4")).await.is_some());
}

/// A handler that panics when it is cloned for the second lane.
#[derive(Debug)]
struct Uncloneable {
    till: Till,
    clones: Arc<AtomicU32>,
}

impl Clone for Uncloneable {
    fn clone(&self) -> Self {
        // The service, the first lane and its record have one each.
        assert!(self.clones.fetch_add(1, Ordering::Relaxed) != 3, "in the clone");
        Self { till: self.till.clone(), clones: Arc::clone(&self.clones) }
    }
}

impl Service<KinesisRecord<Payment>> for Uncloneable {
    type Response = ();
    type Error = Declined;
    type Future = BoxFuture<'static, Result<(), Declined>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Declined>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, record: KinesisRecord<Payment>) -> Self::Future {
        Box::pin(self.till.clone().pay(record))
    }
}

#[tokio::test]
async fn a_panic_in_the_handlers_clone_fails_its_lane() {
    for stops in [false, true] {
        let (_world, host, consumer, till) = environment().await;
        let consumer = consumer.concurrency(1);
        let consumer = if stops { consumer.stop_at_first_failure() } else { consumer };
        let handler = Uncloneable { till: till.clone(), clones: Arc::default() };
        let event = invocation(&host, batch(records([("a", "Done"), ("b", "Done"), ("c", "Done")])));
        assert_eq!(again_from(&consumer, handler, event).await.as_deref(), Some("2"));
        assert_eq!(till.ran(), if stops { vec!["1"] } else { vec!["1", "3"] });
    }
}

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
