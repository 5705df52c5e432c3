use lambda_lock::{Attempt, Locks, Turn};
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longer than one attempt of the slowest step.
const LEASE: Duration = Duration::from_mins(30);
/// As long as an execution waits for others.
const WAIT: Duration = Duration::from_hours(1);

#[derive(Deserialize)]
struct Event {
    key: String,
    /// The ARN of the execution, which holds the lock from step to step.
    execution: String,
    #[serde(flatten)]
    step: Step,
}

/// A state of the machine in `machine.asl.json`.
#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Step {
    Take { turn: Option<Turn> },
    Work { fence: u64, input: serde_json::Value },
    Free,
}

/// The next step takes the lock over from the fence.
#[derive(Serialize)]
#[serde(untagged)]
enum Done {
    Held { fence: u64 },
    Waiting { turn: Turn, delay: u64 },
    Nothing,
}

/// Let the receiver of your writes reject a fence that is smaller than one that it has seen.
async fn deploy(input: &serde_json::Value, fence: u64) {
    println!("deployed {input} with fence {fence}");
}

async fn handle(locks: &Locks, event: Event) -> Result<Done, lambda_lock::Error> {
    let Event { key, execution, step } = event;
    let key = format!("{{ project_name }}#{key}");
    let acquire = locks.acquire(&key).identity(&execution).lease(LEASE);
    match step {
        // A repeated attempt takes over what an earlier one of this execution acquired.
        Step::Take { turn } => Ok(match acquire.wait(WAIT).attempt_in_turn(turn).await? {
            Attempt::Acquired(lock) => {
                let fence = lock.fence();
                lock.keep(); // for the next step
                Done::Held { fence }
            }
            Attempt::Waiting(turn) => Done::Waiting { delay: turn.delay_in_seconds(), turn },
        }),
        // Fails if the execution no longer holds the lock. Each attempt has a larger fence than the one before.
        Step::Work { fence, input } => {
            let lock = acquire.take_over_from(fence).await?;
            let fence = lock.fence();
            let deployed = lock.while_held(deploy(&input, fence)).await;
            lock.keep(); // before `?`, so that a repeated attempt finds the lock
            deployed?;
            Ok(Done::Held { fence })
        }
        Step::Free => {
            locks.release_identity(&key, &execution).await?;
            Ok(Done::Nothing)
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = &Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    // The machine's `Retry` and `Catch` get the name of the error, such as `LockHeld`.
    Runtime::new(service_fn(async |event: LambdaEvent<Event>| handle(locks, event.payload).await)).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use serde_json::{Value, json};

    use super::*;

    async fn locks() -> Locks {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        locks
    }

    /// Handles the event of a state, and returns its output.
    async fn step(locks: &Locks, execution: &str, mut event: Value) -> Result<Value, lambda_lock::Error> {
        event["key"] = json!("shop");
        event["execution"] = json!(execution);
        let done = handle(locks, serde_json::from_value(event).unwrap()).await?;
        Ok(serde_json::to_value(done).unwrap())
    }

    async fn take(locks: &Locks, execution: &str, turn: &Value) -> Value {
        step(locks, execution, json!({ "action": "take", "turn": turn })).await.unwrap()
    }

    fn work(fence: &Value) -> Value {
        json!({ "action": "work", "fence": fence, "input": "version 7" })
    }

    /// While the first one runs, another one sleeps until its turn.
    /// After the first one has finished, another one takes the lock.
    #[tokio::test]
    async fn an_execution_waits_until_the_one_before_has_freed_the_lock() {
        let locks = locks().await;
        let first = take(&locks, "first", &Value::Null).await;
        let second = take(&locks, "second", &Value::Null).await;
        assert!(second["delay"].as_u64().unwrap() >= 1);

        step(&locks, "first", work(&first["fence"])).await.unwrap();
        step(&locks, "first", json!({ "action": "free" })).await.unwrap();
        let second = take(&locks, "second", &second["turn"]).await;
        assert!(second["fence"].as_u64() > first["fence"].as_u64());
    }

    #[tokio::test]
    async fn each_attempt_of_a_step_has_a_larger_fence_until_the_lock_is_freed() {
        let locks = locks().await;
        let taken = take(&locks, "first", &Value::Null).await;
        let one = step(&locks, "first", work(&taken["fence"])).await.unwrap();
        let other = step(&locks, "first", work(&taken["fence"])).await.unwrap();
        assert!(other["fence"].as_u64() > one["fence"].as_u64());

        step(&locks, "first", json!({ "action": "free" })).await.unwrap();
        assert!(step(&locks, "first", work(&taken["fence"])).await.unwrap_err().is_lost());
    }
}
