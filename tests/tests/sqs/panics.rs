//! A panic in the caller's code fails one message.

use std::future::{Ready, ready};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use lambda_lock::SqsConsumer;
use lambda_lock::lambda::SqsMessage;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, invocation, invocation_with, keep_log, logged};
use lambda_runtime::Diagnostic;
use serde::Deserialize;
use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{Declined, Payment, Then, batch, environment, message, message_with_body};

/// An error whose conversion panics.
#[derive(Debug)]
struct Unconvertible;

impl From<Unconvertible> for Diagnostic {
    fn from(_: Unconvertible) -> Self {
        panic!("in the conversion")
    }
}

#[tokio::test]
async fn a_panic_in_the_conversion_of_an_error_fails_one_message() {
    keep_log();
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let ran = Counter::default();
    let counter = ran.clone();
    let handler = service_fn(move |message: SqsMessage<Payment>| {
        counter.count();
        ready(if message.body.then == Then::Done { Ok(()) } else { Err(Unconvertible) })
    });
    let consumer: SqsConsumer<Payment, Unconvertible> = SqsConsumer::by_message_id(locks);
    let unconvertible = format!("unconvertible of {}", world.table);
    let body = json!({ "id": "1", "then": "Declined" }).to_string();
    let messages = [message("1", "Done"), message_with_body(&unconvertible, &body), message("3", "Done")];
    let answer = consumer.concurrency(1).layer(handler).oneshot(invocation(&host, batch(messages))).await.unwrap();
    let failed: Vec<_> = answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect();
    assert_eq!((failed, ran.get()), (vec![unconvertible.clone()], 3));
    let lines: Vec<_> =
        logged(&unconvertible).into_iter().filter(|line| line.contains("message returned to the queue")).collect();
    assert!(lines.len() == 1 && lines[0].contains("ERROR") && lines[0].contains("panicked"), "{lines:?}");
}

/// A body that panics when it is dropped.
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
async fn a_panic_in_the_drop_of_a_body_fails_one_message() {
    let world = World::new().await;
    let host = world.host().build();
    let consumer: SqsConsumer<Brittle, Declined> = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    let brittle = |id: &str| message_with_body(id, &json!({ "is_brittle": true }).to_string());
    let sound = |id: &str| message_with_body(id, &json!({ "is_brittle": false }).to_string());
    let deliver = async |event| {
        let handler = service_fn(async |_: SqsMessage<Brittle>| Ok(()));
        let answer =
            consumer.clone().concurrency(1).fail_if_all_failed(false).layer(handler).oneshot(event).await.unwrap();
        answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect::<Vec<_>>()
    };
    // The body of a message that runs, then of a twin, then of a message without time.
    let event = invocation(&host, batch([sound("1"), brittle("2"), sound("3"), sound("4")]));
    assert_eq!(deliver(event).await, ["2"]);
    let event = invocation(&host, batch([sound("5"), sound("6"), brittle("6"), sound("7")]));
    assert!(deliver(event).await.is_empty());
    let event = invocation_with(&host, batch([brittle("8"), brittle("9"), sound("10"), sound("11")]), Duration::ZERO);
    assert_eq!(deliver(event).await, ["8", "9", "10", "11"]);
}

/// A handler that panics when it is cloned for a message.
struct Clones(Counter, u32);

impl Clone for Clones {
    fn clone(&self) -> Self {
        assert!(self.0.count() != self.1, "in the clone");
        Self(self.0.clone(), self.1)
    }
}

impl Service<SqsMessage<Payment>> for Clones {
    type Response = ();
    type Error = Declined;
    type Future = Ready<Result<(), Declined>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Declined>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: SqsMessage<Payment>) -> Self::Future {
        ready(Ok(()))
    }
}

#[tokio::test]
async fn a_message_whose_handler_panics_in_its_clone_is_logged() {
    keep_log();
    let (world, host, consumer, _) = environment().await;
    let id = format!("cloned of {}", world.table);
    // The service is cloned first for the batch, then for the lane, then for the message.
    let service = consumer.layer(Clones(Counter::default(), 3));
    let message = message_with_body(&id, &json!({ "id": "1" }).to_string());
    service.oneshot(invocation(&host, batch([message]))).await.unwrap_err();
    let lines: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("returned to the queue")).collect();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("ERROR") && line.contains("the handler panicked"), "{line}");
}
