//! The function `order-api`, for the custom runtime `provided.al2023`.

use std::env;
use std::io;

use lambda_example::{Orders, Simulation, data_table, order_api, release_at_shutdown, telemetry};
use lambda_lock::Locks;
use lambda_lock::http::Caller;
use lambda_runtime::Error;
use lambda_runtime::layers::TracingLayer;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let metrics = telemetry::start()?;
    let locks = Locks::from_env().await?;
    locks.warm_up().await;
    release_at_shutdown(&locks).await;
    let prefix = env::var("LOCK_KEY_PREFIX").unwrap_or_default();
    let orders = Orders::new(locks.client().clone(), data_table()?, prefix);
    // A caller is who signed the request, unless the stack says that all share their keys.
    let caller = match env::var("CALLERS").as_deref() {
        Ok("one") => Caller::shared(),
        _ => Caller::iam_principal(),
    };
    let function = order_api(locks, orders, caller, Simulation::from_env());
    let function = telemetry::flush_after(function, metrics, io::stdout);
    // The span adds the request id to every line.
    lambda_http::runtime(function).layer(TracingLayer::new()).run().await
}
