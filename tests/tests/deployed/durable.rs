//! The durable function `durable-deployment`: one version at a time, under one lock across its suspensions.

use std::time::Duration;

use aws_sdk_lambda::types::{ExecutionStatus, InvocationType};
use lambda_example::Deployment;
use lambda_lock::Locks;
use serde_json::{Value, json};

use crate::stack::{Stack, in_stack};
use crate::{loop_until, number};

/// How long a version is rolled out.
const ROLLING_OUT: Duration = Duration::from_secs(4);

pub(crate) async fn durable_executions_of_a_service_run_one_after_the_other(stack: &Stack) {
    let arns = [start(stack, "7").await, start(stack, "8").await];
    let mut released = Vec::new();
    for arn in &arns {
        released.push(result_of(stack, arn).await);
    }
    released.sort_by_key(|released| released["fence"].as_u64());
    let [first, last] = &released[..] else { unreachable!() };
    assert!(last["fence"].as_u64().unwrap() > first["fence"].as_u64().unwrap(), "{released:?}");
    let row = stack.row("durable-deployment", "release#mall").await.unwrap();
    assert_eq!(
        (row["version"].as_s().unwrap().as_str(), number(&row, "fence")),
        (last["version"].as_str().unwrap(), last["fence"].as_u64().unwrap())
    );
    let locks = Locks::builder(stack.dynamodb.clone(), &stack.table);
    let locks = locks.key_prefix(format!("{}#", in_stack("durable-deployment"))).build().unwrap();
    let holder = locks.get("mall").await.unwrap().unwrap();
    assert!(holder.has_released(), "{holder:?}");
    assert!(holder.identity().is_some_and(|identity| arns.iter().any(|arn| arn == identity)), "{holder:?}");
    // Each held the lock while its version was rolled out.
    let hold = holder.hold_time().unwrap();
    assert!(hold >= ROLLING_OUT, "{hold:?}");
}

/// Starts an execution. Returns its ARN.
async fn start(stack: &Stack, version: &str) -> String {
    let input = Deployment {
        key: "mall".to_owned(),
        version: version.to_owned(),
        rolling_out_ms: ROLLING_OUT.as_millis().try_into().unwrap(),
        fails: false,
    };
    let started = stack
        .lambda
        .invoke()
        .function_name(in_stack("durable-deployment"))
        .qualifier("live")
        .invocation_type(InvocationType::Event)
        .payload(json!(input).to_string().into_bytes().into())
        .send()
        .await
        .unwrap();
    started.durable_execution_arn().unwrap().to_owned()
}

/// Returns the result of an execution, once it has succeeded.
async fn result_of(stack: &Stack, arn: &str) -> Value {
    loop_until(Duration::from_secs(90), async || {
        let execution = stack.lambda.get_durable_execution().durable_execution_arn(arn).send().await.unwrap();
        let status = execution.status();
        assert!([&ExecutionStatus::Running, &ExecutionStatus::Succeeded].contains(&status), "{execution:?}");
        let result = execution.result().filter(|_| *status == ExecutionStatus::Succeeded)?;
        Some(serde_json::from_str(result).unwrap())
    })
    .await
}
