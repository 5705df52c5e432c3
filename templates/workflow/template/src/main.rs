use lambda_lock::{Attempt, Locks, Ticket, Turn};
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// As long as the slowest step takes.
const LEASE: Duration = Duration::from_mins(30);
/// As long as an execution waits for others.
const WAIT: Duration = Duration::from_hours(1);

/// A state of the machine in `machine.asl.json`.
#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Step {
    Take { key: String, execution: String, turn: Option<Turn> },
    Work { ticket: Ticket, input: serde_json::Value },
    Free { ticket: Ticket },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Done {
    Taken { ticket: Ticket },
    Waiting { turn: Turn, delay: u64 },
    Nothing,
}

async fn deploy(input: &serde_json::Value, fence: u64) {
    println!("deployed {input} with fence {fence}");
}

async fn handle(locks: &Locks, step: Step) -> Result<Done, lambda_lock::Error> {
    match step {
        // A repeated attempt takes over what an earlier one of this execution acquired.
        Step::Take { key, execution, turn } => {
            let acquire = locks.acquire(format!("{{ project_name }}#{key}")).identity(execution).lease(LEASE);
            Ok(match acquire.wait(WAIT).attempt_in_turn(turn).await? {
                Attempt::Acquired(lock) => Done::Taken { ticket: lock.into_ticket()? },
                Attempt::Waiting(turn) => Done::Waiting { delay: turn.delay_in_seconds(), turn },
            })
        }
        // The renewal fails if the lock is no longer held.
        Step::Work { ticket, input } => {
            locks.renew_ticket(&ticket, LEASE).await?;
            deploy(&input, ticket.fence()).await;
            Ok(Done::Nothing)
        }
        Step::Free { ticket } => {
            locks.release_ticket_if_held(&ticket).await?;
            Ok(Done::Nothing)
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = &Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    // The machine's `Retry` and `Catch` get the name of the error, such as `LockHeld`.
    Runtime::new(service_fn(async |step: LambdaEvent<Step>| handle(locks, step.payload).await)).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use serde_json::{Value, json};

    use super::*;

    async fn step(locks: &Locks, input: Value) -> Value {
        let done = handle(locks, serde_json::from_value(input).unwrap()).await.unwrap();
        serde_json::to_value(done).unwrap()
    }

    /// While the first one runs, another one sleeps until its turn.
    /// After the first one has finished, another one takes the lock.
    #[tokio::test]
    async fn an_execution_waits_until_the_one_before_has_freed_the_lock() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let take = |execution: &str, turn: &Value| json!({ "action": "take", "key": "shop", "execution": execution, "turn": turn });

        let first = step(&locks, take("first", &Value::Null)).await;
        let second = step(&locks, take("second", &Value::Null)).await;
        assert!(second["delay"].as_u64().unwrap() >= 1);

        step(&locks, json!({ "action": "work", "ticket": first["ticket"], "input": "version 7" })).await;
        step(&locks, json!({ "action": "free", "ticket": first["ticket"] })).await;
        let second = step(&locks, take("second", &second["turn"])).await;
        assert!(second["ticket"].is_object());
    }
}
