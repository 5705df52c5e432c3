use lambda_lock::{Idempotency, Locks, OnUnfinished, SqsConsumer};
use lambda_lock::{idempotency::OnMissingKey, lambda::SqsMessage};
use lambda_runtime::{Error, Runtime, service_fn, tower::Layer};
use std::time::Duration;

#[derive(serde::Deserialize)]
struct Payment {
    id: String,
    amount: u64,
}

/// An error is logged, and returns this message to the queue.
async fn pay(message: SqsMessage<Payment>) -> Result<(), Error> {
    let Payment { id, amount } = message.body;
    if amount == 0 {
        return Err("nothing to pay".into());
    }
    println!("{id}: paid {amount}");
    Ok(())
}

/// A payment is recognised by the id in the body. After a crash, which may have paid, it is not made again.
///
/// If SNS, `EventBridge` or S3 fills the queue, pass `lambda_lock::lambda::event_id` instead of the closure, and take a
/// `SqsMessage<serde_json::Value>`.
fn once(locks: Locks) -> Idempotency<SqsMessage<Payment>, (), Error> {
    Idempotency::new(locks, OnMissingKey::Reject, |message: &SqsMessage<Payment>| Some(message.body.id.clone()))
        .window(Duration::from_hours(43 * 24)) // covers two redrives from the dead-letter queue
        .on_unfinished(OnUnfinished::Reject)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    Runtime::new(SqsConsumer::new(once(locks)).layer(service_fn(pay))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;

    async fn locks() -> Locks {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        locks
    }

    fn message(id: &str, amount: u64) -> Value {
        let body = json!({ "id": "rent", "amount": amount }).to_string();
        json!({ "messageId": id, "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:payments", "body": body })
    }

    fn batch<Event: DeserializeOwned>(messages: &[Value]) -> LambdaEvent<Event> {
        LambdaEvent::new(serde_json::from_value(json!({ "Records": messages })).unwrap(), Context::default())
    }

    /// While the first one runs, another one returns to the queue.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_message_returns_to_the_queue_while_its_payment_is_made() {
        let function = SqsConsumer::new(once(locks().await)).layer(service_fn(async |message: SqsMessage<Payment>| {
            sleep(Duration::from_secs(2)).await;
            pay(message).await
        }));
        let again = async {
            sleep(Duration::from_secs(1)).await;
            function.clone().oneshot(batch(&[message("2", 700)])).await
        };
        let (first, again) = tokio::join!(function.clone().oneshot(batch(&[message("1", 700)])), again);
        assert!(first.unwrap().batch_item_failures.is_empty());
        assert_eq!(again.unwrap().batch_item_failures[0].item_identifier, "2");
    }

    /// After the first one has finished, another one is deleted and does not run.
    #[tokio::test]
    async fn only_the_message_that_fails_returns_to_the_queue() {
        let function = SqsConsumer::new(once(locks().await)).layer(service_fn(pay));

        for (messages, returned) in [
            (vec![message("1", 0), message("2", 700)], vec!["1"]), // the second one makes the payment
            (vec![message("1", 0), message("3", 700)], vec![]),    // the payment was made: nothing runs
        ] {
            let answer = function.clone().oneshot(batch(&messages)).await.unwrap();
            let failures: Vec<_> = answer.batch_item_failures.iter().map(|failure| &failure.item_identifier).collect();
            assert_eq!(failures, returned);
        }
    }
}
