//! The function with the middleware.

use std::env;

use aws_sdk_dynamodb::Client;
use lambda_lock::{LockLayer, Locks, WithLock, client_config};
use lambda_lock_cold_start::{config, report, warms_up};
use lambda_runtime::tower::Layer;
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // Like `Locks::from_env`, with the configuration that both functions use.
    let client = Client::from_conf(client_config(&config().await).build());
    let locks = Locks::builder(client, env::var("LOCK_TABLE_NAME")?).build()?;
    if warms_up() {
        locks.warm_up().await;
    }
    let work = async |WithLock { input, lock, .. }: WithLock<LambdaEvent<Value>>| {
        Ok::<_, Error>(report(&input.payload, lock.fence()))
    };
    Runtime::new(LockLayer::new(locks).layer(service_fn(work))).run_concurrent().await
}
