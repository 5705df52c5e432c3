//! The state machine `deployment`: one version at a time, under one lock from its first state to its last.

use std::time::Duration;

use lambda_example::Deployment;
use lambda_lock::{Holder, Locks};
use serde_json::{Value, json};

use crate::stack::{Stack, in_stack};
use crate::{GATHERING, REGION, loop_until, number};

pub(crate) async fn two_deployments_of_a_service_run_one_after_the_other(stack: &Stack) {
    let slow = |version| Deployment { rolling_out_ms: millis(GATHERING), ..deployment("shop", version) };
    let (seven, eight) = (slow("7"), slow("8"));
    let (one, other) = tokio::join!(execute(stack, &seven), execute(stack, &eight));
    let mut outputs = Vec::new();
    for execution in [&one, &other] {
        assert_eq!(execution["status"], "SUCCEEDED", "{execution}");
        let output = output_of(execution);
        let fences = ["lock", "result"].map(|state| output[state]["fence"].as_u64().unwrap());
        assert!(fences[0] < fences[1], "the work has the fence of the first state: {output}");
        assert_eq!(output["result"]["version"], output["version"]);
        outputs.push((fences, output));
    }
    outputs.sort_by_key(|(fences, _)| *fences);
    let [([_, first_work], first), ([taken, fence], last)] = &outputs[..] else { unreachable!() };
    // A fence is at least the clock of its request, in microseconds.
    assert!(*taken >= first_work + 1000 * millis(GATHERING), "{first} overlaps {last}");

    // The later execution waited for its turn.
    let (first, later) = if output_of(&one) == *first { (&one, &other) } else { (&other, &one) };
    assert_eq!(waits_of(stack, first).await, 0);
    assert!(waits_of(stack, later).await > 0);

    let release = stack.row("deployment", "release#shop").await.unwrap();
    assert_eq!(
        (release["version"].as_s().unwrap().as_str(), number(&release, "fence")),
        (last["version"].as_str().unwrap(), *fence)
    );
    let holder = holder(stack, "shop").await;
    assert!(holder.has_released(), "{holder:?}");
    // The number of the release.
    assert!(holder.fence() > Some(*fence), "{holder:?}");
}

pub(crate) async fn a_failed_deployment_frees_its_lock_and_fails_its_execution(stack: &Stack) {
    let failed = execute(stack, &Deployment { fails: true, ..deployment("bank", "7") }).await;
    assert_eq!((&failed["status"], &failed["error"]), (&json!("FAILED"), &json!("NotDeployed")), "{failed}");
    assert!(failed["cause"].as_str().unwrap().contains("version 7 failed its tests"), "{failed}");
    let failed = holder(stack, "bank").await;
    assert!(failed.has_released(), "{failed:?}");
    assert_eq!(stack.row("deployment", "release#bank").await, None);

    let next = execute(stack, &deployment("bank", "8")).await;
    assert_eq!(next["status"], "SUCCEEDED", "{next}");
    assert_eq!(waits_of(stack, &next).await, 0);
    assert!(output_of(&next)["lock"]["fence"].as_u64() > failed.fence());
    let release = stack.row("deployment", "release#bank").await.unwrap();
    assert_eq!(release["version"].as_s().unwrap(), "8");
}

pub(crate) async fn an_execution_that_was_stopped_frees_its_lock(stack: &Stack) {
    // The work is over by the time of the stop, or soon after it: a stopped execution does not stop its invocation.
    let slow = Deployment { rolling_out_ms: millis(GATHERING), ..deployment("mill", "7") };
    let arn = start(stack, &slow).await;
    let held = loop_until(Duration::from_secs(30), async || {
        holder_if_any(stack, "mill").await.filter(|holder| holder.is_current() && !holder.has_released())
    })
    .await;
    assert_eq!(held.identity(), arn["executionArn"].as_str());
    let stop = json!({ "executionArn": arn["executionArn"], "error": "Stopped", "cause": "by a person" });
    stack.call("states", "AWSStepFunctions.StopExecution", &stop).await;
    let stopped = stack.call("states", "AWSStepFunctions.DescribeExecution", &arn).await;
    assert_eq!(stopped["status"], "ABORTED", "{stopped}");
    let freed =
        loop_until(Duration::from_secs(30), async || holder_if_any(stack, "mill").await.filter(Holder::has_released))
            .await;
    assert!(freed.fence() > held.fence(), "{freed:?}");
    // The rule has freed it, not the last state.
    let states = states_of(stack, &arn).await;
    assert!(states.contains(&"TakeLock".to_owned()), "{states:?}");
    assert!(!states.iter().any(|state| state.starts_with("FreeLock")), "{states:?}");
    let next = execute(stack, &deployment("mill", "8")).await;
    assert_eq!(next["status"], "SUCCEEDED", "{next}");
}

fn deployment(key: &str, version: &str) -> Deployment {
    Deployment { key: key.to_owned(), version: version.to_owned(), rolling_out_ms: 0, fails: false }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap()
}

/// Returns the ARN of the state machine.
pub(crate) fn machine() -> String {
    format!("arn:aws:states:{REGION}:000000000000:stateMachine:{}", in_stack("deployment"))
}

/// Starts an execution. Returns what names it in requests.
async fn start(stack: &Stack, input: &Deployment) -> Value {
    let start = json!({ "stateMachineArn": machine(), "input": json!(input).to_string() });
    let started = stack.call("states", "AWSStepFunctions.StartExecution", &start).await;
    json!({ "executionArn": started["executionArn"] })
}

/// Returns the execution's description, once it has ended.
async fn execute(stack: &Stack, input: &Deployment) -> Value {
    let arn = start(stack, input).await;
    loop_until(Duration::from_secs(30), async || {
        let execution = stack.call("states", "AWSStepFunctions.DescribeExecution", &arn).await;
        (execution["status"] != "RUNNING").then_some(execution)
    })
    .await
}

fn output_of(execution: &Value) -> Value {
    serde_json::from_str(execution["output"].as_str().unwrap()).unwrap()
}

/// Returns how often this execution waited for the lock.
async fn waits_of(stack: &Stack, execution: &Value) -> usize {
    events_of(stack, execution).await.iter().filter(|event| event["type"] == "WaitStateEntered").count()
}

/// Returns the names of the states that this execution has entered.
async fn states_of(stack: &Stack, execution: &Value) -> Vec<String> {
    let events = events_of(stack, execution).await;
    let entered = events.iter().filter_map(|event| event["stateEnteredEventDetails"]["name"].as_str());
    entered.map(str::to_owned).collect()
}

async fn events_of(stack: &Stack, execution: &Value) -> Vec<Value> {
    let arn = json!({ "executionArn": execution["executionArn"] });
    let mut history = stack.call("states", "AWSStepFunctions.GetExecutionHistory", &arn).await;
    serde_json::from_value(history["events"].take()).unwrap()
}

/// Returns the last holder of a service's lock.
async fn holder(stack: &Stack, key: &str) -> Holder {
    holder_if_any(stack, key).await.unwrap()
}

async fn holder_if_any(stack: &Stack, key: &str) -> Option<Holder> {
    let locks = Locks::builder(stack.dynamodb.clone(), &stack.table);
    let locks = locks.key_prefix(format!("{}#", in_stack("deployment"))).build().unwrap();
    locks.get(key).await.unwrap()
}
