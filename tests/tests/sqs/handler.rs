//! The message that a handler receives.

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};

use lambda_lock::lambda::SqsMessage;
use lambda_lock::{SqsConsumer, WithRun};
use lambda_lock_tests::invocation::invocation;
use tower::{Service, service_fn};

use crate::{Declined, Payment, batch, deliver, environment, failures, message, row_of, with_attributes};

/// A handler that is never ready.
#[derive(Clone, Debug)]
struct Closed;

impl Service<SqsMessage<Payment>> for Closed {
    type Response = ();
    type Error = Declined;
    type Future = Ready<Result<(), Declined>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Declined>> {
        Poll::Ready(Err(Declined))
    }

    fn call(&mut self, _: SqsMessage<Payment>) -> Self::Future {
        panic!("it was called, and was not ready")
    }
}

#[tokio::test]
async fn a_message_of_a_handler_that_is_not_ready_can_be_retried_at_once() {
    let (_world, host, consumer, till) = environment().await;
    let event = invocation(&host, batch([message("1", "Done")]));
    assert_eq!(failures(&consumer, Closed, event).await, ["1"]);
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn a_handler_gets_the_body_and_the_record_of_a_message() {
    let (_world, host, consumer, _) = environment().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let seen = Arc::clone(&seen);
        move |message: SqsMessage<Payment>| {
            seen.lock().unwrap().push(message);
            ready(Ok::<_, Declined>(()))
        }
    });
    let attributes =
        [("MessageGroupId", "group"), ("MessageDeduplicationId", "deduplication"), ("SentTimestamp", "17")];
    let message = with_attributes(message("1", "Done"), attributes);
    assert!(failures(&consumer, handler, invocation(&host, batch([message.clone()]))).await.is_empty());
    let seen = seen.lock().unwrap();
    let [got] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(got.body.id, "payment 1");
    assert_eq!(
        (got.message_id(), got.group_id(), got.deduplication_id()),
        (Some("1"), Some("group"), Some("deduplication"))
    );
    let mut without_body = message;
    without_body.body = None;
    assert_eq!(got.record, without_body);
}

#[tokio::test]
async fn a_handler_of_with_run_gets_the_fence() {
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer: SqsConsumer<Payment, Declined, u64, WithRun<SqsMessage<Payment>>> = SqsConsumer::by_message_id(locks);
    let handler = service_fn(async |WithRun { input, run, .. }: WithRun<SqsMessage<Payment>>| {
        assert_eq!(input.message_id(), Some("1"));
        Ok::<_, Declined>(run.lock().fence())
    });
    let event = invocation(&host, batch([message("1", "Done")]));
    assert!(failures(&consumer, handler, event).await.is_empty());
    let row = world.row(&row_of("1")).await.unwrap();
    let [result, last] = [row["data"].as_s(), row["fence"].as_n()].map(|of| of.unwrap().parse::<u64>().unwrap());
    assert!(0 < result && result < last, "the completion of fence {result} has the number {last}");
    assert_eq!(row["status"].as_s().unwrap(), "COMPLETED");
}

#[tokio::test]
async fn a_handler_need_not_be_sync() {
    let (_world, host, consumer, _) = environment().await;
    let count = std::cell::Cell::new(0);
    let handler = service_fn(move |_: SqsMessage<Payment>| {
        count.set(count.get() + 1);
        ready(Ok(()))
    });
    assert!(failures(&consumer, handler, invocation(&host, batch([message("1", "Done")]))).await.is_empty());
}
