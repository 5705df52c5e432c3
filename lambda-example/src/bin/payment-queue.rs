//! The function `payment-queue`, for the custom runtime `provided.al2023`.

use std::env;
use std::io;

use aws_config::BehaviorVersion;
use lambda_example::{Payments, Simulation, data_table, payment_queue, release_at_shutdown, telemetry};
use lambda_lock::Locks;
use lambda_runtime::layers::TracingLayer;
use lambda_runtime::{Error, Runtime};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let metrics = telemetry::start()?;
    let locks = Locks::from_env().await?;
    locks.warm_up().await;
    release_at_shutdown(&locks).await;
    let prefix = env::var("LOCK_KEY_PREFIX").unwrap_or_default();
    let payments = Payments::new(locks.client().clone(), data_table()?, prefix);
    let queues = aws_sdk_sqs::Client::new(&aws_config::load_defaults(BehaviorVersion::latest()).await);
    let function = payment_queue(locks, payments, queues, Simulation::from_env());
    let function = telemetry::flush_after(function, metrics, io::stdout);
    // The span adds the request id to every line.
    Runtime::new(function).layer(TracingLayer::new()).run().await
}
