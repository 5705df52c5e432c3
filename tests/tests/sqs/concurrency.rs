//! A batch of as many messages as SQS delivers at most.

use lambda_lock::SqsConsumer;
use serde_json::json;

use crate::{by_payment, deliver, environment, message_with_body};

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
