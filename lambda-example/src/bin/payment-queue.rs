//! The function `payment-queue`, for the custom runtime `provided.al2023`.

use std::env;

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::Client;
use lambda_example::{Payments, payment_queue};
use lambda_lock::Locks;
use lambda_runtime::{Error, Runtime};
use tracing_subscriber::EnvFilter;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // The level comes from RUST_LOG.
    tracing_subscriber::fmt().json().with_env_filter(EnvFilter::from_default_env()).without_time().init();
    let locks = Locks::from_env().await?;
    let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
    let prefix = env::var("LOCK_KEY_PREFIX").unwrap_or_default();
    let payments = Payments::new(Client::new(&config), env::var("LOCK_TABLE_NAME")?, prefix);
    Runtime::new(payment_queue(locks, payments, aws_sdk_sqs::Client::new(&config))).run().await
}
