use lambda_lock::Locks;
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use std::time::{Duration, SystemTime};

/// What this function reads of a notification of S3.
#[derive(Deserialize)]
struct Notification {
    #[serde(rename = "Records")]
    records: Vec<Record>,
}

#[derive(Deserialize)]
struct Record {
    s3: Change,
}

#[derive(Deserialize)]
struct Change {
    bucket: Bucket,
    object: Object,
}

#[derive(Deserialize)]
struct Bucket {
    name: String,
}

#[derive(Deserialize)]
struct Object {
    key: String,
    sequencer: String,
}

/// Reads the object as it is now, and writes what you want to know about it elsewhere.
async fn index(bucket: &str, key: &str) -> Result<(), Error> {
    println!("indexed {key} of {bucket}");
    Ok(())
}

/// S3 numbers the changes of an object in hexadecimal. The shorter number counts as if zeros followed it.
fn is_later(sequencer: &str, last: &str) -> bool {
    let length = sequencer.len().max(last.len());
    let padded = |number: &str| format!("{number:0<length$}").to_ascii_uppercase();
    padded(sequencer) > padded(last)
}

/// Indexes an object, unless a later change of it has been indexed. Returns whether it was indexed.
async fn index_unless_older(locks: &Locks, change: &Change, deadline: SystemTime) -> Result<bool, Error> {
    let Change { bucket, object } = change;
    let form = object.key.replace('+', " ");
    let key = percent_decode_str(&form).decode_utf8()?;
    let of_object = locks.acquire(format!("{{ project_name }}#{}/{key}", bucket.name));
    let of_object = of_object.deadline(deadline).wait(Duration::from_secs(20));
    let done = of_object.run(async |lock| {
        // What the last change left in the row of the lock.
        let last = lock.data().and_then(|data| data.as_str()).unwrap_or_default();
        if !is_later(&object.sequencer, last) {
            return Ok(false);
        }
        index(&bucket.name, &key).await?;
        lock.set_data(object.sequencer.as_str());
        lock.release().await?; // writes it; after an error, S3's event comes again
        Ok(true)
    });
    done.await?
}

async fn handle(locks: &Locks, event: LambdaEvent<Notification>) -> Result<(), Error> {
    for record in &event.payload.records {
        index_unless_older(locks, &record.s3, event.context.deadline()).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = &Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    Runtime::new(service_fn(|event| handle(locks, event))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use serde_json::json;
    use tokio::time::{sleep, timeout};

    use super::*;

    fn change(key: &str, sequencer: &str) -> Change {
        serde_json::from_value(json!({
            "bucket": { "name": "uploads" },
            "object": { "key": key, "sequencer": sequencer },
        }))
        .unwrap()
    }

    async fn locks() -> Locks {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        locks
    }

    /// While the first one runs, another one waits for up to 20 s, and then fails.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_change_waits_while_another_change_of_its_object_is_indexed() {
        let (locks, deadline) = (locks().await, SystemTime::now() + Duration::from_secs(58));
        let key = "a b.jpg";
        let other = locks.acquire(format!("{{ project_name }}#uploads/{key}")).lease(Duration::from_secs(58));
        let other = other.await.unwrap();
        let change = change("a+b.jpg", "0055");
        let waiting = timeout(Duration::from_secs(21), index_unless_older(&locks, &change, deadline));
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.downcast_ref().is_some_and(lambda_lock::Error::is_held), "{error}");

        let end_other = async {
            sleep(Duration::from_secs(19)).await;
            other.release().await.unwrap();
        };
        let (is_indexed, ()) = tokio::join!(index_unless_older(&locks, &change, deadline), end_other);
        assert!(is_indexed.unwrap());
    }

    /// After the first one has finished, another one is skipped, unless it is newer.
    #[tokio::test]
    async fn an_older_change_of_an_object_is_skipped() {
        let locks = locks().await;
        let deadline = SystemTime::now() + Duration::from_secs(30);
        for (change, is_indexed) in [
            (change("a+b.jpg", "0055"), true),
            (change("a+b.jpg", "0054"), false),
            (change("a%20b.jpg", "0055"), false), // the same key
            (change("a+b.jpg", "005500"), false), // the same change
            (change("other.jpg", "0054"), true),
            (change("a+b.jpg", "0056"), true),
        ] {
            assert_eq!(index_unless_older(&locks, &change, deadline).await.unwrap(), is_indexed);
        }
    }
}
