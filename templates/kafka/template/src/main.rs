use lambda_lock::Locks;
use lambda_lock::kafka::{KafkaConsumer, KafkaRecord};
use lambda_runtime::{Error, Runtime, service_fn, tower::Layer};

#[derive(serde::Deserialize)]
struct Reading {
    celsius: f64,
}

/// An error is logged, and Lambda delivers the partition again from this record.
async fn store(record: KafkaRecord<Reading>) -> Result<(), Error> {
    if record.body.celsius < -273.15 {
        return Err("below absolute zero".into());
    }
    println!("{} °C", record.body.celsius);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    Runtime::new(KafkaConsumer::by_offset(locks).concurrency(10).layer(service_fn(store))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt};
    use serde_json::{Value, json};

    use super::*;

    /// A record of the sensor `roof`. Its value is in Base64.
    fn record(offset: u32, value: &str) -> Value {
        json!({ "topic": "readings", "partition": 0, "offset": offset, "key": "cm9vZg==", "value": value })
    }

    #[tokio::test]
    async fn the_answer_names_the_first_record_that_is_not_done() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let function = KafkaConsumer::by_offset(locks).layer(service_fn(store));

        let [seven, impossible] = ["eyJjZWxzaXVzIjo3fQ==", "eyJjZWxzaXVzIjotMzAwfQ=="];
        for (second, failures) in [(impossible, vec![2]), (seven, vec![])] {
            let records = json!({ "readings-0": [record(1, seven), record(2, second), record(3, seven)] });
            let batch = json!({ "eventSource": "aws:kafka", "bootstrapServers": "b-1:9092", "records": records });
            let event = LambdaEvent::new(serde_json::from_value(batch).unwrap(), Context::default());
            let Ok(answer) = function.clone().oneshot(event).await;
            let failed = answer.batch_item_failures.iter().map(|failure| failure.item_identifier.offset);
            assert_eq!(failed.collect::<Vec<_>>(), failures);
        }
    }
}
