//! The tasks of a state machine that deploys one version of a service at a time. The first state takes the service's
//! lock, or its turn to wait for it; the last one frees it. These are invocations of their own, so the execution holds the
//! lock: its ARN is the identity with which each state takes the lock over. The function also frees the lock of an execution
//! that was stopped.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::{Attempt, HandlerError, Locks, Turn};
use lambda_runtime::{Error, LambdaEvent};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use tower::{Service, service_fn};

use crate::failure::Failure;
use crate::input::non_empty;
use crate::settings::Simulation;

/// The lease of the lock, from the first state and again from each attempt of the work. It is longer than the function's
/// timeout, so the work ends before its lease.
const LEASE: Duration = Duration::from_mins(10);
/// How long an execution waits for other deployments of its service.
pub(crate) const WAIT: Duration = Duration::from_hours(1);

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

/// The input of a state, in which the state machine sets `action`, or the end of an execution.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Step {
    /// Take the lock of a service, or a turn.
    Take {
        /// The input of the execution. It is checked before the lock is taken.
        input: Deployment,
        /// The ARN of the execution.
        execution: String,
        /// The turn of the last attempt.
        turn: Option<Turn>,
    },
    /// Deploy under the lock.
    Work {
        /// The input of the execution.
        input: Deployment,
        /// The ARN of the execution.
        execution: String,
        /// The fence of the first state.
        fence: u64,
    },
    /// Free the lock.
    Free {
        /// The service.
        key: String,
        /// The ARN of the execution.
        execution: String,
    },
}

/// The event of an execution that was stopped, timed out or failed: the `detail` of `EventBridge`'s.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    /// The ARN of the execution.
    pub execution_arn: String,
    /// The input of the execution, as a JSON text. `EventBridge` leaves out a large one.
    pub input: Option<String>,
}

/// The input of the function.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Task {
    /// A state of the machine.
    Step(Box<Step>),
    /// Free the lock of an execution that has ended without a success, if it has it.
    Stopped(Stopped),
}

/// Only the event of a stopped execution names the ARN in this way. The errors are those of what the input was meant to be.
impl<'de> Deserialize<'de> for Task {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let input = Value::deserialize(deserializer)?;
        let task = match input.get("executionArn") {
            Some(_) => serde_json::from_value(input).map(Self::Stopped),
            None => serde_json::from_value(input).map(Self::Step),
        };
        task.map_err(D::Error::custom)
    }
}

/// The output of a state.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Done {
    /// The version is released.
    Released {
        /// The version.
        version: String,
        /// The fence of the attempt that has released it.
        fence: u64,
    },
    /// The lock is taken.
    Taken {
        /// With it, the next state takes the lock over in one request.
        fence: u64,
    },
    /// Another execution has the lock.
    Waiting {
        /// Carries the place in the queue to the next attempt.
        turn: Turn,
        /// The time until then, in seconds.
        delay: u64,
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

    /// Releases the version. The write is refused if a larger fence has written: that of a later attempt of the same state, or
    /// of an execution that has the lock since. The write can be repeated, so the SDK may retry it after a lost answer.
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
    LambdaEvent<Task>,
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
    event: LambdaEvent<Task>,
) -> Result<Done, HandlerError<Failure>> {
    let step = match event.payload {
        Task::Step(step) => *step,
        Task::Stopped(stopped) => return free_stopped(locks, stopped).await,
    };
    match step {
        // A repeated attempt takes over what an earlier attempt of this execution has acquired.
        Step::Take { input, execution, turn } => {
            let acquire = locks.acquire(input.key).identity(execution).lease(LEASE).wait(WAIT);
            Ok(match acquire.attempt_in_turn(turn).await.map_err(HandlerError::Lock)? {
                Attempt::Acquired(lock) => {
                    let fence = lock.fence();
                    lock.keep();
                    Done::Taken { fence }
                }
                Attempt::Waiting(turn) => Done::Waiting { delay: turn.delay_in_seconds(), turn },
            })
        }
        // Fails if the execution no longer holds the lock. Each attempt has a fence of its own.
        Step::Work { input, execution, fence } => {
            let acquire = locks.acquire(input.key.clone()).identity(execution).lease(LEASE);
            let lock = acquire.take_over_from(fence).await.map_err(HandlerError::Lock)?;
            let done = lock.while_held(roll_out(&releases, simulation, input, lock.fence())).await;
            // Also after a failure. A dropped lock would be released in the background, and a repeated attempt would find it lost.
            lock.keep();
            done.map_err(HandlerError::Lock)?.map_err(HandlerError::Handler)
        }
        Step::Free { key, execution } => free(&locks, key, &execution).await,
    }
}

/// Can be repeated: it leaves the lock of the next execution alone.
async fn free(locks: &Locks, key: String, execution: &str) -> Result<Done, HandlerError<Failure>> {
    let was_held = locks.release_identity(key, execution).await.map_err(HandlerError::Lock)?;
    tracing::info!(execution, was_held, "the execution has ended");
    Ok(Done::Freed)
}

/// Its last invocation may still run: what it writes has a smaller fence than the next execution's.
async fn free_stopped(locks: Locks, Stopped { execution_arn, input }: Stopped) -> Result<Done, HandlerError<Failure>> {
    // The input is checked before the lock is taken, so an execution that failed by its input has none.
    let Some(Ok(input)) = input.as_deref().map(serde_json::from_str::<Deployment>) else {
        tracing::warn!(execution_arn, "the event has no valid input, so no lock is freed");
        return Ok(Done::Freed);
    };
    free(&locks, input.key, &execution_arn).await
}

/// Rolls the version out, and writes the release.
pub(crate) async fn roll_out(
    releases: &Releases,
    simulation: Simulation,
    input: Deployment,
    fence: u64,
) -> Result<Done, Failure> {
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
