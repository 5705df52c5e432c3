//! The tasks of a state machine that deploys one version of a service at a time. The first state takes the service's
//! lock, the last one frees it. These are invocations of their own, and a ticket carries the lock from one to the next.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::{HandlerError, Locks, Ticket};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use tower::{Service, service_fn};

use crate::failure::Failure;
use crate::input::non_empty;
use crate::settings::Simulation;

/// The lease of the lock, from the first state and again from the start of the work. It is longer than the function's
/// timeout, so the work ends before its lease. A stopped execution blocks its service for this time.
const LEASE: Duration = Duration::from_mins(10);

/// The input of an execution.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Deployment {
    /// The service, which is also the key of the lock.
    #[serde(deserialize_with = "non_empty")]
    pub key: String,
    /// The version to release.
    #[serde(deserialize_with = "non_empty")]
    pub version: String,
    /// The time to roll the version out, in milliseconds, as a simulation.
    #[serde(default)]
    pub rolling_out_ms: u64,
    /// Whether the version fails its tests before it is released, as a simulation.
    #[serde(default)]
    pub fails: bool,
}

/// The input of a state. The state machine sets `action`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Step {
    /// Take the lock of a service.
    Take {
        /// The input of the execution. It is checked before the lock is taken.
        input: Deployment,
        /// The ARN of the execution.
        execution: String,
    },
    /// Deploy under the lock.
    Work {
        /// The ticket of the first state.
        ticket: Ticket,
        /// The input of the execution.
        input: Deployment,
    },
    /// Free the lock.
    Free {
        /// The ticket of the first state.
        ticket: Ticket,
    },
}

/// The output of a state.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Done {
    /// The lock is taken.
    Taken(Ticket),
    /// The version is released.
    Released {
        /// The version.
        version: String,
        /// The fence of the lock.
        fence: u64,
    },
    /// The lock is free. The output is null.
    Freed,
}

/// The store of releases: rows of the data table, under the function's own prefix.
#[derive(Clone, Debug)]
pub struct Releases {
    client: Client,
    table: String,
    prefix: String,
}

impl Releases {
    /// Creates a store in `table`, in rows whose `id` begins with `prefix`.
    pub fn new(client: Client, table: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { client, table: table.into(), prefix: prefix.into() }
    }

    /// Releases the version. The write is refused if a holder with a larger fence has written: this execution has then
    /// lost the lock. The write can be repeated, so the SDK may retry it after a lost answer.
    async fn write(&self, key: &str, version: &str, fence: u64) -> Result<(), Failure> {
        self.client
            .update_item()
            .table_name(&self.table)
            .key("id", AttributeValue::S(format!("{}release#{key}", self.prefix)))
            .condition_expression("attribute_not_exists(fence) OR fence <= :fence")
            .update_expression("SET version = :version, fence = :fence")
            .expression_attribute_values(":version", AttributeValue::S(version.to_owned()))
            .expression_attribute_values(":fence", AttributeValue::N(fence.to_string()))
            .send()
            .await
            .map_err(not_deployed)?;
        Ok(())
    }
}

/// Returns the function behind all tasks of the state machine.
#[must_use]
pub fn deployment(
    locks: Locks,
    releases: Releases,
    simulation: Simulation,
) -> impl Service<
    LambdaEvent<Step>,
    Response = Done,
    Error = HandlerError<Failure>,
    Future: Future<Output = Result<Done, HandlerError<Failure>>> + Send,
> + Clone
+ Send {
    let releases = Arc::new(releases);
    // The future of an acquire is large.
    service_fn(move |event| Box::pin(take_step(locks.clone(), Arc::clone(&releases), simulation, event)))
}

async fn take_step(
    locks: Locks,
    releases: Arc<Releases>,
    simulation: Simulation,
    event: LambdaEvent<Step>,
) -> Result<Done, HandlerError<Failure>> {
    match event.payload {
        // A repeated attempt takes over what an earlier attempt of this execution has acquired.
        Step::Take { input, execution } => {
            let acquire = locks.acquire(input.key).owner_from(execution).lease(LEASE);
            Ok(Done::Taken(acquire.await.map_err(HandlerError::Lock)?.into_ticket()))
        }
        // The renewal fails if the lock is no longer held.
        Step::Work { ticket, input } => {
            locks.renew_ticket(&ticket, LEASE).await.map_err(HandlerError::Lock)?;
            roll_out(&releases, simulation, input, ticket.fence()).await.map_err(HandlerError::Handler)
        }
        // Can be repeated. After an earlier attempt whose answer was lost, the next execution may have the key by now.
        Step::Free { ticket } => match locks.release_ticket(&ticket).await {
            Err(error) if !error.is_lost() => Err(HandlerError::Lock(error)),
            _ => Ok(Done::Freed),
        },
    }
}

async fn roll_out(releases: &Releases, simulation: Simulation, input: Deployment, fence: u64) -> Result<Done, Failure> {
    let Deployment { key, version, rolling_out_ms, fails } = input;
    tracing::info!(key, version, fence, "rolling out");
    simulation.work(rolling_out_ms).await;
    if simulation.fails(fails) {
        return Err(not_deployed(format!("version {version} failed its tests")));
    }
    releases.write(&key, &version, fence).await?;
    tracing::info!(key, version, fence, "released");
    Ok(Done::Released { version, fence })
}

fn not_deployed(error: impl Into<Error>) -> Failure {
    Failure::new("NotDeployed", error)
}
