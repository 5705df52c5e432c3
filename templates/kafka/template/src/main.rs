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

type Readings = KafkaConsumer<Option<Reading>, Error>;

fn readings(locks: Locks) -> Readings {
    let once = Idempotency::new(locks, OnMissingKey::Reject, KafkaRecord::id);
    // Twice what a record takes at most. After a crash, its partition stands still for that long, and not until the timeout.
    KafkaConsumer::with_parser(once, parse).lease(Duration::from_secs(4))
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
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;

    /// A record of the sensor `roof`. Its value is in Base64.
    fn record(offset: u32, value: &str) -> Value {
        json!({ "topic": "readings", "partition": 0, "offset": offset, "key": "cm9vZg==", "value": value })
    }

    fn batch<Event: DeserializeOwned>(records: &[Value]) -> LambdaEvent<Event> {
        let records = json!({ "readings-0": records });
        let batch = json!({ "eventSource": "aws:kafka", "bootstrapServers": "b-1:9092", "records": records });
        LambdaEvent::new(serde_json::from_value(batch).unwrap(), Context::default())
    }

    async fn locks() -> Locks {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        locks
    }

    /// A record that comes here is not done, so that the answer names it.
    async fn fail(_: KafkaRecord<Option<Reading>>) -> Result<(), Error> {
        Err("it runs again".into())
    }

    const SEVEN: &str = "eyJjZWxzaXVzIjo3fQ==";

    /// While the first one runs, another one waits for it.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_record_waits_until_its_first_run_has_ended() {
        let locks = locks().await;
        let slow = readings(locks.clone()).layer(service_fn(async |record: KafkaRecord<Option<Reading>>| {
            sleep(Duration::from_secs(2)).await;
            store(record).await
        }));
        let again = async {
            sleep(Duration::from_secs(1)).await;
            readings(locks).layer(service_fn(fail)).oneshot(batch(&[record(1, SEVEN)])).await
        };
        let (first, again) = tokio::join!(slow.oneshot(batch(&[record(1, SEVEN)])), again);
        assert!(first.unwrap().batch_item_failures.is_empty());
        assert!(again.unwrap().batch_item_failures.is_empty());
    }

    /// After the first one has finished, another one is skipped.
    #[tokio::test]
    async fn a_record_that_is_done_does_not_run_again() {
        let locks = locks().await;
        let first = readings(locks.clone()).layer(service_fn(store));
        assert!(first.oneshot(batch(&[record(1, SEVEN)])).await.unwrap().batch_item_failures.is_empty());
        let again = readings(locks).layer(service_fn(fail));
        assert!(again.oneshot(batch(&[record(1, SEVEN)])).await.unwrap().batch_item_failures.is_empty());
    }

    #[tokio::test]
    async fn the_answer_names_the_first_record_that_is_not_done() {
        let function = readings(locks().await).layer(service_fn(store));
        let [impossible, unreadable] = ["eyJjZWxzaXVzIjotMzAwfQ==", "eyJjZWxzaXVzIg=="];
        for (third, failures) in [(impossible, vec![3]), (SEVEN, vec![])] {
            let records = [record(1, SEVEN), record(2, unreadable), record(3, third), record(4, SEVEN)];
            let answer = function.clone().oneshot(batch(&records)).await.unwrap();
            let failed = answer.batch_item_failures.iter().map(|failure| failure.item_identifier.offset);
            assert_eq!(failed.collect::<Vec<_>>(), failures);
        }
    }
}
