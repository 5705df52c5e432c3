//! The message that a handler receives.

use std::future::ready;
use std::sync::{Arc, Mutex};

use lambda_lock::lambda::SqsMessage;
use lambda_lock_tests::invocation::invocation;
use tower::service_fn;

use crate::{Declined, Payment, batch, environment, failures, message, with_attributes};

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
