use lambda_lock::Locks;
use lambda_lock::streams::{DynamoDbRecord, StreamConsumer};
use lambda_runtime::{Error, Runtime, service_fn, tower::Layer};
use std::time::Duration;

#[derive(serde::Deserialize)]
struct Order {
    item: String,
    quantity: u64,
}

/// An error is logged, and Lambda delivers again from this record.
async fn count(record: DynamoDbRecord<Order>) -> Result<(), Error> {
    if let Some(order) = record.new_image {
        println!("{} of {}", order.quantity, order.item);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    // Twice what a record takes at most. After a crash, its shard stands still for that long, and not until the timeout.
    let consumer = StreamConsumer::by_event_id(locks).lease(Duration::from_secs(4));
    Runtime::new(consumer.layer(service_fn(count))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;

    fn record(number: u32, quantity: Option<&str>) -> Value {
        let id = json!({ "S": format!("order-{number}") });
        let quantity = quantity.map_or(json!({ "NULL": true }), |quantity| json!({ "N": quantity }));
        let image = json!({ "id": id, "item": { "S": "tea" }, "quantity": quantity });
        let number = number.to_string();
        json!({
            "awsRegion": "eu-west-1",
            "dynamodb": { "Keys": { "id": id }, "NewImage": image, "SequenceNumber": number, "SizeBytes": 64 },
            "eventID": format!("event-{number}"),
            "eventName": "INSERT",
            "eventSourceARN": "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/1",
        })
    }

    fn batch<Event: DeserializeOwned>(records: &[Value]) -> LambdaEvent<Event> {
        LambdaEvent::new(serde_json::from_value(json!({ "Records": records })).unwrap(), Context::default())
    }

    async fn locks() -> Locks {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        locks
    }

    /// A record that comes here is not done, so that the answer names it.
    async fn fail(_: DynamoDbRecord<Order>) -> Result<(), Error> {
        Err("it runs again".into())
    }

    /// While the first one runs, another one waits for it.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_record_waits_until_its_first_run_has_ended() {
        let locks = locks().await;
        let slow =
            StreamConsumer::by_event_id(locks.clone()).layer(service_fn(async |record: DynamoDbRecord<Order>| {
                sleep(Duration::from_secs(10)).await;
                count(record).await
            }));
        let again = async {
            sleep(Duration::from_secs(1)).await;
            let function = StreamConsumer::by_event_id(locks).layer(service_fn(fail));
            function.oneshot(batch(&[record(1, Some("2"))])).await
        };
        let (first, again) = tokio::join!(slow.oneshot(batch(&[record(1, Some("2"))])), again);
        assert!(first.unwrap().batch_item_failures.is_empty());
        assert!(again.unwrap().batch_item_failures.is_empty());
    }

    /// After the first one has finished, another one is skipped.
    #[tokio::test]
    async fn a_record_that_is_done_does_not_run_again() {
        let locks = locks().await;
        let first = StreamConsumer::by_event_id(locks.clone()).layer(service_fn(count));
        assert!(first.oneshot(batch(&[record(1, Some("2"))])).await.unwrap().batch_item_failures.is_empty());
        let again = StreamConsumer::by_event_id(locks).layer(service_fn(fail));
        assert!(again.oneshot(batch(&[record(1, Some("2"))])).await.unwrap().batch_item_failures.is_empty());
    }

    #[tokio::test]
    async fn the_answer_names_the_first_record_that_is_not_done() {
        let function = StreamConsumer::by_event_id(locks().await).layer(service_fn(count));
        let records = [record(1, Some("2")), record(2, None), record(3, Some("1"))];
        let answer = function.oneshot(batch(&records)).await.unwrap();
        assert_eq!(answer.batch_item_failures[0].item_identifier.as_deref(), Some("2"));
    }
}
