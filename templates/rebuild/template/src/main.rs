use lambda_lock::{LockLayer, Locks};
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn, tower::Layer};
use serde_json::Value;
use std::time::Duration;

/// How long a rebuild takes at most. The function's timeout has room for two.
const REBUILD: Duration = Duration::from_mins(1);

/// Reads all that has changed, not only what the event names: it also stands for the events that were skipped.
async fn rebuild(_event: LambdaEvent<Value>) -> Result<String, Error> {
    Ok("rebuilt".to_owned())
}

/// One rebuild at a time, and one more if events were skipped meanwhile.
fn one_more(locks: Locks) -> LockLayer<LambdaEvent<Value>, String> {
    LockLayer::new(locks)
        .key("{{ project_name }}")
        .on_held(|held| format!("left to the next rebuild: {held}"))
        .coalesce(REBUILD)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    Runtime::new(one_more(locks).layer(service_fn(rebuild))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, tower::ServiceExt};
    use std::sync::{Arc, Mutex};

    use super::*;

    fn event(id: &str) -> LambdaEvent<Value> {
        let mut context = Context::default();
        context.request_id = id.to_owned();
        LambdaEvent::new(Value::Null, context)
    }

    /// While the first one runs, another one is skipped, and the first one runs once more.
    /// After the first one has finished, another one runs.
    #[tokio::test]
    async fn a_change_during_a_rebuild_is_in_the_next_one() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let layer = one_more(locks);
        let (changes, index) = (Arc::new(Mutex::new(vec!["first"])), Arc::new(Mutex::new(Vec::new())));
        let skipped = layer.clone().layer(service_fn(rebuild));
        let function = layer.layer(service_fn({
            let (changes, index) = (Arc::clone(&changes), Arc::clone(&index));
            move |_: LambdaEvent<Value>| {
                let (changes, index, skipped) = (Arc::clone(&changes), Arc::clone(&index), skipped.clone());
                async move {
                    let read = changes.lock().unwrap().clone();
                    if read.len() == 1 {
                        // A change comes in after the rebuild has read its input.
                        changes.lock().unwrap().push("second");
                        let answer = skipped.oneshot(event("another")).await.unwrap();
                        assert!(answer.starts_with("left to the next rebuild: key `{{ project_name }}`"), "{answer}");
                    }
                    *index.lock().unwrap() = read;
                    Ok::<_, Error>("rebuilt".to_owned())
                }
            }
        }));
        assert_eq!(function.clone().oneshot(event("one")).await.unwrap(), "rebuilt");
        assert_eq!(*index.lock().unwrap(), ["first", "second"]);

        changes.lock().unwrap().push("third");
        assert_eq!(function.oneshot(event("later")).await.unwrap(), "rebuilt");
        assert_eq!(*index.lock().unwrap(), ["first", "second", "third"]);
    }
}
