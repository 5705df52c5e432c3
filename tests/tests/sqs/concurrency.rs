//! How many messages run at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use aws_lambda_events::sqs::SqsMessage;
use lambda_lock::{Message, SqsConsumer};
use lambda_lock_tests::invocation::invocation;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower::service_fn;

use crate::{
    Consumer, Declined, Payment, batch, by_payment, deliver, environment, failures, message, message_with_body, ms,
    ordered,
};

/// Asserts how many of these messages run at the same time. Each waits until so many run, and then for more of them.
async fn assert_most_at_once(most: u32, concurrency: impl Fn(Consumer) -> Consumer, messages: Vec<SqsMessage>) {
    let (_world, host, consumer, _) = environment().await;
    let (running, is_full) = (Arc::new(AtomicU32::new(0)), watch::Sender::new(false));
    let seen = Arc::new(AtomicU32::new(0));
    let handler = service_fn({
        let seen = Arc::clone(&seen);
        move |_: Message<Payment>| {
            let (running, is_full, seen) = (Arc::clone(&running), is_full.clone(), Arc::clone(&seen));
            async move {
                let now = running.fetch_add(1, Ordering::Relaxed) + 1;
                seen.fetch_max(now, Ordering::Relaxed);
                if now >= most {
                    is_full.send_replace(true);
                }
                let mut full = is_full.subscribe();
                let _otherwise_too_few = timeout(ms(10_000), full.wait_for(|is_full| *is_full)).await.is_ok();
                sleep(ms(50)).await;
                running.fetch_sub(1, Ordering::Relaxed);
                Ok::<_, Declined>(())
            }
        }
    });
    assert!(failures(&concurrency(consumer), handler, invocation(&host, batch(messages))).await.is_empty());
    assert_eq!(seen.load(Ordering::Relaxed), most);
}

// behaviour 73
#[tokio::test]
async fn concurrency_limits_messages_to_ten_by_default_and_to_one_at_least() {
    let messages = |count: u32| (0..count).map(|id| message(&id.to_string(), "Done")).collect::<Vec<_>>();
    assert_most_at_once(10, |consumer| consumer, messages(25)).await;
    assert_most_at_once(3, |consumer| consumer.concurrency(3), messages(7)).await;
    assert_most_at_once(1, |consumer| consumer.concurrency(1), messages(3)).await;
    assert_most_at_once(1, |consumer| consumer.concurrency(0), messages(3)).await;
    assert_most_at_once(30, |consumer| consumer.concurrency(usize::MAX), messages(30)).await;
}

// behaviours 72, 73
#[tokio::test]
async fn concurrency_limits_the_groups_of_a_fifo_queue() {
    let messages = (0..8).map(|id| ordered(&id.to_string(), &(id / 2).to_string(), "Done")).collect();
    assert_most_at_once(3, |consumer| consumer.concurrency(3), messages).await;
}

// behaviours 71, 73
#[tokio::test]
async fn a_batch_of_ten_thousand_messages_is_done() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    // Ten thousand messages, of a thousand payments.
    let messages = (0..10_000).map(|id| {
        let then = if id % 1_000 == 7 { "Declined" } else { "Done" };
        message_with_body(&id.to_string(), &json!({ "id": (id % 1_000).to_string(), "then": then }).to_string())
    });
    let failed = deliver(&consumer, &till, &host, messages).await;
    assert_eq!(failed, (0..10).map(|thousand| (thousand * 1_000 + 7).to_string()).collect::<Vec<_>>());
    assert_eq!(till.ran().len(), 1_000);
    assert_eq!(host.requests(), 2_000);
}
