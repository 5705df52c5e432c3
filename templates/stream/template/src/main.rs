use lambda_lock::Locks;
use lambda_lock::streams::{DynamoDbRecord, StreamConsumer};
use lambda_runtime::{Error, Runtime, service_fn, tower::Layer};

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
    Runtime::new(StreamConsumer::by_event_id(locks).concurrency(10).layer(service_fn(count))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt};
    use serde_json::{Value, json};

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

    #[tokio::test]
    async fn the_answer_names_the_first_record_that_is_not_done() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let function = StreamConsumer::by_event_id(locks).layer(service_fn(count));

        let batch = json!({ "Records": [record(1, Some("2")), record(2, None), record(3, Some("1"))] });
        let event = LambdaEvent::new(serde_json::from_value(batch).unwrap(), Context::default());
        let Ok(answer) = function.oneshot(event).await;
        assert_eq!(answer.batch_item_failures[0].item_identifier.as_deref(), Some("2"));
    }
}
