//! What the state machine does, as one durable function: it deploys one version of a service at a time. It is suspended while
//! it waits for its turn, and while a version is rolled out. It holds the lock of the service meanwhile.

use std::time::Duration;

use aws_durable_execution_sdk::{BoxError, DurableContext};
use lambda_lock::Locks;
use lambda_lock_durable::LockContext as _;

use crate::deployment::{Deployment, Done, Releases, WAIT, roll_out};
use crate::settings::Simulation;

/// The time from one step to the next, when nothing waits. It is longer than the function's timeout.
const LEASE: Duration = Duration::from_mins(5);

/// Deploys a version under the lock of its service.
///
/// # Errors
///
/// Returns an error that says what failed: the acquire, after an hour; a step; or the version's tests.
pub async fn durable_deployment(
    locks: Locks,
    releases: Releases,
    simulation: Simulation,
    input: Deployment,
    ctx: DurableContext,
) -> Result<Done, BoxError> {
    // With this identity, an operator can free the lock of an execution that was stopped.
    let lock = ctx.lock(&locks, &input.key).identity(ctx.execution_arn()).lease(LEASE).wait_up_to(WAIT);
    let deployed = lock.run(move |held| async move {
        held.wait(simulation.time(input.rolling_out_ms)).await?;
        let input = Deployment { rolling_out_ms: 0, ..input };
        // A repeated attempt has a larger fence.
        let release = held.step("release", move |fences| async move {
            Ok(roll_out(&releases, simulation, input, fences.fence()).await?)
        });
        Ok(release.await?)
    });
    Ok(deployed.await?)
}
