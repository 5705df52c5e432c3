//! A panic in the caller's code fails one message.

use std::time::Duration;

use lambda_lock::SqsConsumer;
use lambda_lock::lambda::SqsMessage;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with};
use serde::Deserialize;
use serde_json::json;
use tower::{Layer, ServiceExt, service_fn};

use crate::{Declined, batch, message_with_body};

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
