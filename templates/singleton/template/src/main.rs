use lambda_lock::{LockLayer, Locks};
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn, tower::Layer};
use serde_json::Value;

async fn write_report(_event: LambdaEvent<Value>) -> Result<String, Error> {
    Ok("written".to_owned())
}

/// The lock around the handler. While one invocation holds it, others answer "skipped".
fn one_at_a_time(locks: Locks) -> LockLayer<LambdaEvent<Value>, String> {
    LockLayer::new(locks).key("{{ project_name }}").on_held(|held| format!("skipped: {held}"))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    Runtime::new(one_at_a_time(locks).layer(service_fn(write_report))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, tower::ServiceExt};

    use super::*;

    /// While the first one runs, another one is skipped.
    /// After the first one has finished, another one runs.
    #[tokio::test]
    async fn an_invocation_is_skipped_while_another_one_runs() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let function = one_at_a_time(locks.clone()).layer(service_fn(write_report));
        let event = LambdaEvent::new(Value::Null, Context::default());
        let other = locks.acquire("{{ project_name }}").await.unwrap();
        let answer = function.clone().oneshot(event.clone()).await.unwrap();
        assert!(answer.starts_with("skipped: key `{{ project_name }}`"), "{answer}");

        other.release().await.unwrap();
        assert_eq!(function.oneshot(event).await.unwrap(), "written");
    }
}
