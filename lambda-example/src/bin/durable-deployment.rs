//! The function `durable-deployment`, for the custom runtime `provided.al2023`.

use std::env;
use std::io;
use std::sync::Arc;

use aws_durable_execution_sdk::{DurableContext, Options, wrap};
use lambda_example::{Deployment, Releases, Simulation, data_table, durable_deployment, telemetry};
use lambda_lock::Locks;
use lambda_runtime::layers::TracingLayer;
use lambda_runtime::{Error, Runtime};
use tower::service_fn;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let metrics = telemetry::start()?;
    let locks = Locks::from_env().await?;
    locks.warm_up().await;
    let prefix = env::var("LOCK_KEY_PREFIX").unwrap_or_default();
    let releases = Releases::new(locks.client().clone(), data_table()?, prefix);
    let simulation = Simulation::from_env();
    let handler = move |input: Deployment, ctx: DurableContext| {
        let deployed = durable_deployment(locks.clone(), releases.clone(), simulation, input, ctx);
        // A failed execution is no error of an invocation.
        async { deployed.await.inspect_err(|error| tracing::error!(?error, "the execution failed")) }
    };
    let execution = Arc::new(wrap(handler, Options::default()));
    let function = service_fn(move |event| execution(event));
    let function = telemetry::flush_after(function, metrics, io::stdout);
    // The span adds the request id to every line.
    Runtime::new(function).layer(TracingLayer::new()).run().await
}
