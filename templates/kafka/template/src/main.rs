use lambda_lock::kafka::{KafkaConsumer, KafkaRecord};
use lambda_lock::{Idempotency, Locks, idempotency::OnMissingKey};
use lambda_runtime::{Error, Runtime, service_fn, tower::Layer};
use std::{convert::Infallible, time::Duration};

#[derive(serde::Deserialize)]
struct Reading {
    celsius: f64,
}

/// The value of a record. One that cannot be read would block its partition, so it is a `None`, as a tombstone is.
fn parse(value: Option<Vec<u8>>) -> Result<Option<Reading>, Infallible> {
    Ok(value.and_then(|json| serde_json::from_slice(&json).ok()))
}

/// An error is logged, and Lambda delivers the partition again from this record.
async fn store(record: KafkaRecord<Option<Reading>>) -> Result<(), Error> {
    let Some(reading) = record.body else {
        println!("{} {}: skipped", record.partition, record.offset); // or send it to a queue
        return Ok(());
    };
    if reading.celsius < -273.15 {
        return Err("below absolute zero".into());
    }
    println!("{} °C", reading.celsius);
    Ok(())
}

type Readings = KafkaConsumer<KafkaRecord<Option<Reading>>, Option<Reading>, (), Error>;

fn readings(locks: Locks) -> Readings {
    // A record in progress elsewhere was left by a crash: its partition waits for the end of that lease.
    let once = Idempotency::new(locks, OnMissingKey::Reject, KafkaRecord::id).wait(Duration::MAX);
    KafkaConsumer::with_parser(once, parse).concurrency(10)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    Runtime::new(readings(locks).layer(service_fn(store))).run().await
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
        let function = readings(locks).layer(service_fn(store));

        let [seven, impossible, unreadable] = ["eyJjZWxzaXVzIjo3fQ==", "eyJjZWxzaXVzIjotMzAwfQ==", "eyJjZWxzaXVzIg=="];
        for (second, failures) in [(impossible, vec![3]), (seven, vec![])] {
            let records =
                json!({ "readings-0": [record(1, seven), record(2, unreadable), record(3, second), record(4, seven)] });
            let batch = json!({ "eventSource": "aws:kafka", "bootstrapServers": "b-1:9092", "records": records });
            let event = LambdaEvent::new(serde_json::from_value(batch).unwrap(), Context::default());
            let Ok(answer) = function.clone().oneshot(event).await;
            let failed = answer.batch_item_failures.iter().map(|failure| failure.item_identifier.offset);
            assert_eq!(failed.collect::<Vec<_>>(), failures);
        }
    }
}
