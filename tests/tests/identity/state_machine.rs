//! The state machine of the guide, executed on the embedded engine.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use lambda_lock::{Attempt, Error, Locks, Turn};
use lambda_lock_tests::World;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ms;

const LEASE: Duration = Duration::from_hours(2);
const WAIT: Duration = Duration::from_hours(1);
const MACHINE: &str = "lock/docs/state_machine.asl.json";

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// The machine that the guide links to.
fn machine() -> Value {
    serde_json::from_str(&file(MACHINE)).unwrap()
}

/// A failed task: its error type and its message.
type Failure = (String, String);

/// The function of the guide, and what goes wrong in it.
struct Function<'a> {
    world: &'a World,
    work: &'a dyn Fn() -> Result<(), Failure>,
    /// How many invocations in each state crash after their request.
    crashes: u32,
    /// What happens while the machine waits this time.
    wait: &'a dyn Fn(Duration) -> LocalBoxFuture<'static, ()>,
}

/// The input of the guide's function.
#[derive(Deserialize)]
struct Event {
    key: String,
    execution: String,
    #[serde(flatten)]
    step: Step,
}

#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Step {
    Take { turn: Option<Turn> },
    Work { fence: u64, input: Value },
    Free,
}

impl Function<'_> {
    /// Each invocation is a process of its own.
    fn locks(&self, attempt: u32) -> Locks {
        self.world.locks(&self.world.host().clock_ahead(ms(10 * u64::from(attempt))).build()).build().unwrap()
    }

    async fn invoke(&self, resource: &str, input: Value, attempt: u32) -> Result<Value, Failure> {
        assert_eq!(resource, "${FunctionArn}");
        let locks = self.locks(attempt);
        let Event { key, execution, step } = serde_json::from_value(input).unwrap();
        let acquire = locks.acquire(&key).identity(&execution).lease(LEASE);
        let result = match step {
            Step::Take { turn } => acquire.wait(WAIT).attempt_in_turn(turn).await.map(|attempt| match attempt {
                Attempt::Acquired(lock) => {
                    let fence = lock.fence();
                    lock.keep();
                    json!({ "fence": fence })
                }
                Attempt::Waiting(turn) => json!({ "delay": turn.delay_in_seconds(), "turn": turn }),
            }),
            Step::Work { fence, input } => match acquire.take_over_from(fence).await {
                Ok(lock) => {
                    let fence = lock.fence();
                    lock.keep();
                    (self.work)()?;
                    Ok(json!({ "version": input["version"], "fence": fence }))
                }
                Err(error) => Err(error),
            },
            Step::Free => locks.release_identity(&key, &execution).await.map(|_| Value::Null),
        };
        if attempt < self.crashes {
            return Err(("Runtime.ExitError".to_owned(), "crashed".to_owned()));
        }
        result.map_err(reported)
    }
}

/// As Lambda reports an error.
fn reported(error: Error) -> Failure {
    let lambda_runtime::Diagnostic { error_type, error_message } = error.into();
    (error_type, error_message)
}

/// Returns the value at a path such as `$.key` or `$$.Execution.Id`, if there is one.
fn find(path: &str, state: &Value, context: &Value) -> Option<Value> {
    let (root, path) = path.strip_prefix("$$").map_or((state, &path[1..]), |path| (context, path));
    root.pointer(&path.replace('.', "/")).cloned()
}

fn at(path: &str, state: &Value, context: &Value) -> Value {
    find(path, state, context).unwrap_or_else(|| panic!("no {path} in {state}"))
}

/// Executes a machine, without the pauses of its retries. Returns its output, or the error of its `Fail` state.
async fn execute(machine: &Value, function: &Function<'_>, id: &str) -> Result<Value, Failure> {
    let mut data = json!({ "key": "deploy", "version": 7 });
    let context = json!({ "Execution": { "Id": id, "Input": data } });
    let mut name = machine["StartAt"].as_str().unwrap();
    loop {
        let state = &machine["States"][name];
        if state["Type"] == "Fail" {
            let text = |path: &str| at(state[path].as_str().unwrap(), &data, &context).as_str().unwrap().to_owned();
            return Err((text("ErrorPath"), text("CausePath")));
        }
        let next = match state["Type"].as_str().unwrap() {
            "Pass" => {
                let path = state["ResultPath"].as_str().unwrap().strip_prefix("$.").unwrap();
                data[path] = state["Result"].clone();
                Some(&state["Next"])
            }
            "Choice" => {
                let choice = &state["Choices"][0];
                assert_eq!(choice["IsPresent"], true);
                let is_present = find(choice["Variable"].as_str().unwrap(), &data, &context).is_some();
                Some(if is_present { &choice["Next"] } else { &state["Default"] })
            }
            "Wait" => {
                let seconds = at(state["SecondsPath"].as_str().unwrap(), &data, &context).as_u64().unwrap();
                (function.wait)(Duration::from_secs(seconds)).await;
                Some(&state["Next"])
            }
            kind => {
                assert_eq!(kind, "Task");
                None
            }
        };
        if let Some(next) = next {
            name = next.as_str().unwrap();
            continue;
        }
        let parameters =
            state["Parameters"].as_object().unwrap().iter().map(|(name, value)| match name.strip_suffix(".$") {
                Some(name) => (name.to_owned(), at(value.as_str().unwrap(), &data, &context)),
                None => (name.clone(), value.clone()),
            });
        let input = Value::Object(parameters.collect());
        let catches = |rule: &Value, error: &str| {
            rule["ErrorEquals"].as_array().unwrap().iter().any(|name| name == error || name == "States.ALL")
        };
        let rules = |kind: &str| state[kind].as_array().cloned().unwrap_or_default();
        let mut attempt = 0;
        let result = loop {
            match function.invoke(state["Resource"].as_str().unwrap(), input.clone(), attempt).await {
                Err((error, _))
                    if rules("Retry")
                        .iter()
                        .find(|rule| catches(rule, &error))
                        .is_some_and(|rule| u64::from(attempt) < rule["MaxAttempts"].as_u64().unwrap().min(4)) =>
                {
                    attempt += 1;
                }
                result => break result,
            }
        };
        let (result, path, next) = match result {
            Ok(result) => (result, &state["ResultPath"], state["Next"].as_str()),
            Err((error, cause)) => {
                let rule = rules("Catch").into_iter().find(|rule| catches(rule, &error));
                let Some(rule) = rule else { return Err((error, cause)) };
                assert_eq!(rule["ResultPath"], "$.error");
                data["error"] = json!({ "Error": error, "Cause": cause });
                (Value::Null, &Value::Null, state["Catch"][0]["Next"].as_str())
            }
        };
        if let Some(path) = path.as_str() {
            data[path.strip_prefix("$.").unwrap()] = result;
        }
        let Some(next) = next else {
            assert_eq!(state["End"], true);
            return Ok(data);
        };
        name = next;
    }
}

/// Nothing happens while a machine waits.
fn nothing(_: Duration) -> LocalBoxFuture<'static, ()> {
    Box::pin(async {})
}

async fn is_free(world: &World) -> bool {
    !world.default_locks().get("deploy").await.unwrap().unwrap().is_current()
}

#[test]
fn the_deployed_state_machine_is_that_of_the_guide() {
    assert!(file("template.yaml").contains(&format!("DefinitionUri: {MACHINE}\n")));
}

/// After a success, the last state has freed it.
#[test]
fn the_template_frees_the_lock_after_each_end_but_a_success() {
    assert!(file("template.yaml").contains("status: [ABORTED, FAILED, TIMED_OUT]\n"));
}

#[test]
fn the_template_watches_what_leaves_a_lock_held() {
    let template = file("template.yaml");
    for metric in ["ExecutionsFailed", "AsyncEventsDropped", "DurableExecutionFailed", "DurableExecutionTimedOut"] {
        assert!(template.contains(&format!("MetricName: {metric}\n")), "{metric}");
    }
}

#[tokio::test]
async fn the_state_machine_of_the_guide_waits_in_turn() {
    let world = World::new().await;
    let other = Rc::new(world.default_locks().acquire("deploy").identity("2").lease(LEASE).await.unwrap());
    let waits = Rc::new(Cell::new(0));
    let work = || Ok(());
    // The other execution ends during the second wait.
    let wait = |delay: Duration| -> LocalBoxFuture<'static, ()> {
        assert!(delay >= Duration::from_secs(1));
        waits.set(waits.get() + 1);
        let (other, waits) = (Rc::clone(&other), waits.get());
        Box::pin(async move {
            if waits == 2 {
                other.release().await.unwrap();
            }
        })
    };
    let function = Function { world: &world, work: &work, crashes: 0, wait: &wait };
    let output = execute(&machine(), &function, "1").await.unwrap();
    assert_eq!(output["result"]["version"], 7);
    assert_eq!(waits.get(), 2);
    assert!(output["lock"]["fence"].as_u64().unwrap() > other.fence());
    let holder = world.default_locks().get("deploy").await.unwrap().unwrap();
    assert_eq!(holder.waiters(), 0, "it took more than one place");
}

#[tokio::test]
async fn the_state_machine_of_the_guide_frees_the_lock_after_a_failure() {
    let world = World::new().await;
    let attempts = Cell::new(0);
    let failing = || {
        attempts.set(attempts.get() + 1);
        Err(("DeploymentFailed".to_owned(), "no space".to_owned()))
    };
    let function = Function { world: &world, work: &failing, crashes: 0, wait: &nothing };
    let failure = execute(&machine(), &function, "1").await.unwrap_err();
    assert_eq!(failure, ("DeploymentFailed".to_owned(), "no space".to_owned()));
    assert!(is_free(&world).await);
    // Only the work knows whether it can be repeated after its own errors.
    assert_eq!(attempts.get(), 1);
}

#[tokio::test]
async fn the_state_machine_of_the_guide_survives_crashes_after_each_request() {
    let world = World::new().await;
    let attempts = Cell::new(0);
    let work = || {
        attempts.set(attempts.get() + 1);
        Ok(())
    };
    let function = Function { world: &world, work: &work, crashes: 2, wait: &nothing };
    let output = execute(&machine(), &function, "1").await.unwrap();
    assert!(is_free(&world).await);
    assert_eq!(attempts.get(), 3);
    assert!(output["result"]["fence"].as_u64() > output["lock"]["fence"].as_u64());
    let row = world.row("deploy").await.unwrap();
    // The last attempt has taken the lock over from the ones before.
    assert!(crate::number(&row, "held_since") < crate::number(&row, "acquired_at"));
    assert_eq!(output["result"]["version"], 7);
}
