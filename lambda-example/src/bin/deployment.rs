//! The function `deployment`, for the custom runtime `provided.al2023`.

use std::env;
use std::io;

use lambda_example::{Releases, Simulation, data_table, deployment, release_at_shutdown, telemetry};
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
    let releases = Releases::new(locks.client().clone(), data_table()?, prefix);
    let function = deployment(locks, releases, Simulation::from_env());
    let function = telemetry::log_failures(function, |_| false);
    let function = telemetry::flush_after(function, metrics, io::stdout);
    // The span adds the request id to every line.
    Runtime::new(function).layer(TracingLayer::new()).run().await
}
