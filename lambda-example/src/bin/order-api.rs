//! The function `order-api`, for the custom runtime `provided.al2023`.

use std::env;
use std::io;

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::Client;
use lambda_example::{Orders, order_api, telemetry};
use lambda_lock::Locks;
use lambda_runtime::{Error, Runtime};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let metrics = telemetry::start()?;
    let locks = Locks::from_env().await?;
    let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
    let prefix = env::var("LOCK_KEY_PREFIX").unwrap_or_default();
    let orders = Orders::new(Client::new(&config), env::var("LOCK_TABLE_NAME")?, prefix);
    let function = order_api(locks, orders);
    Runtime::new(telemetry::flush_after(function, metrics, io::stdout)).run().await
}
