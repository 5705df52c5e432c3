//! How many messages run at the same time.

use aws_lambda_events::sqs::SqsMessage as SqsRecord;
use futures_util::FutureExt;
use lambda_lock::SqsConsumer;
use lambda_lock::lambda::SqsMessage;
use lambda_lock_tests::invocation::{AtOnce, invocation};
use serde_json::json;
use tower::service_fn;

use crate::{
    Consumer, Declined, Payment, batch, by_payment, deliver, environment, failures, message, message_with_body,
};

async fn assert_most_at_once(most: u32, concurrency: impl Fn(Consumer) -> Consumer, messages: Vec<SqsRecord>) {
    let (_world, host, consumer, _) = environment().await;
    let at_once = AtOnce::expecting(most);
    let handler = service_fn({
        let at_once = at_once.clone();
        move |_: SqsMessage<Payment>| at_once.clone().run().map(Ok::<_, Declined>)
    });
    assert!(failures(&concurrency(consumer), handler, invocation(&host, batch(messages))).await.is_empty());
    at_once.assert();
}

#[tokio::test]
async fn concurrency_limits_messages_to_ten_by_default_and_to_one_at_least() {
    let messages = |count: u32| (0..count).map(|id| message(&id.to_string(), "Done")).collect::<Vec<_>>();
    assert_most_at_once(10, |consumer| consumer, messages(25)).await;
    assert_most_at_once(3, |consumer| consumer.concurrency(3), messages(7)).await;
    assert_most_at_once(1, |consumer| consumer.concurrency(1), messages(3)).await;
    assert_most_at_once(1, |consumer| consumer.concurrency(0), messages(3)).await;
    assert_most_at_once(30, |consumer| consumer.concurrency(usize::MAX), messages(30)).await;
}

#[tokio::test]
async fn a_batch_of_ten_thousand_messages_is_done() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()).cache(1_000));
    // Ten thousand messages, of a thousand payments. Each of those that fail runs itself.
    let messages = (0..10_000).map(|id| {
        let then = if id % 1_000 == 7 { "Declined" } else { "Done" };
        message_with_body(&id.to_string(), &json!({ "id": (id % 1_000).to_string(), "then": then }).to_string())
    });
    let failed = deliver(&consumer, &till, &host, messages).await;
    assert_eq!(failed, (0..10).map(|thousand| (thousand * 1_000 + 7).to_string()).collect::<Vec<_>>());
    assert_eq!(till.ran().len(), 999 + 10);
    assert_eq!(host.requests(), 2 * (999 + 10));
}
