//! Lambda's side of durable executions, in virtual time: it keeps the operations, and invokes the function again when a wait
//! has ended, or when an invocation has failed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use aws_durable_execution_sdk::{BoxError, DurableContext, InvocationPayload, Options, wrap};
use aws_sdk_lambda::config::retry::RetryConfig;
use aws_sdk_lambda::config::{BehaviorVersion, Credentials, Region};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use http::Uri;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_runtime::{Context, LambdaEvent};
use serde_json::{Value, json};
use tokio::time::sleep;

/// The operations of each execution, in the order of their start.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// Whose clock is that of waits, too.
    engine: DynamoDb,
    /// The environment that stands still during waits: only its wall clock shows later that time has passed.
    frozen: Option<Host>,
    losses: Arc<Mutex<Losses>>,
    executions: Arc<Mutex<HashMap<String, Vec<Value>>>>,
}

/// Checkpoints that end their invocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    /// How many come through before.
    pub(crate) skip: u32,
    pub(crate) count: u32,
    /// Whether only the answer is lost.
    pub(crate) are_applied: bool,
}

/// The fate of one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Answered,
    AnswerLost,
    Lost,
}

impl Losses {
    fn next(&mut self) -> Fate {
        if self.skip > 0 {
            self.skip -= 1;
            return Fate::Answered;
        }
        if self.count == 0 {
            return Fate::Answered;
        }
        self.count -= 1;
        if self.are_applied { Fate::AnswerLost } else { Fate::Lost }
    }
}

/// The end of an execution.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The last response of the function.
    pub(crate) response: Value,
    pub(crate) invocations: u32,
}

impl Service {
    pub(crate) fn new(engine: &DynamoDb) -> Self {
        Self { engine: engine.clone(), frozen: None, losses: Arc::default(), executions: Arc::default() }
    }

    /// Runs all invocations in this one environment, which is frozen during waits.
    pub(crate) fn frozen(engine: &DynamoDb, host: &Host) -> Self {
        Self { frozen: Some(host.clone()), ..Self::new(engine) }
    }

    /// Loses these checkpoints.
    pub(crate) fn lose(&self, losses: Losses) {
        *self.losses.lock().unwrap() = losses;
    }

    /// Lets time pass between two invocations.
    async fn pass(&self, time: Duration) {
        match &self.frozen {
            Some(host) => host.advance_clock(time),
            None => sleep(time).await,
        }
    }

    fn executions(&self) -> MutexGuard<'_, HashMap<String, Vec<Value>>> {
        self.executions.lock().unwrap()
    }

    /// Returns the time since the epoch.
    fn now(&self) -> Duration {
        let now = self.frozen.as_ref().map_or_else(|| self.engine.now(), Host::now);
        now.duration_since(UNIX_EPOCH).unwrap()
    }

    /// Answers a request of the SDK: a checkpoint of some operations.
    fn answer(&self, path: &str, body: &[u8]) -> Option<Value> {
        let fate = self.losses.lock().unwrap().next();
        if fate == Fate::Lost {
            return None;
        }
        let arn = path.split('/').nth(3).unwrap().replace("%3A", ":").replace("%2F", "/");
        let request: Value = serde_json::from_slice(body).unwrap();
        let mut executions = self.executions();
        let operations = executions.entry(arn).or_default();
        let updates = request["Updates"].as_array().unwrap().iter();
        let changed: Vec<_> = updates.map(|update| apply(operations, update, self.now())).collect();
        let answer = json!({ "CheckpointToken": "token", "NewExecutionState": { "Operations": changed } });
        (fate == Fate::Answered).then_some(answer)
    }

    /// Runs an execution of this function, and returns when it has ended. Each invocation begins `cold_start` late.
    pub(crate) async fn execute<F, Fut>(&self, arn: &str, cold_start: Duration, handler: F) -> Ended
    where
        F: Fn(Value, DurableContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, BoxError>> + Send,
    {
        let service = SharedHttpConnector::new(self.clone());
        let config = aws_sdk_lambda::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(Credentials::for_tests())
            .region(Region::new("eu-west-1"))
            .retry_config(RetryConfig::disabled())
            .http_client(http_client_fn(move |_, _| service.clone()));
        let client = aws_sdk_lambda::Client::from_conf(config.build());
        let function = wrap(handler, Options::builder().lambda_client(client).build().unwrap());
        let mut invocations = 0;
        loop {
            sleep(cold_start).await;
            invocations += 1;
            assert!(invocations < 200, "it does not end");
            let invoked = function(LambdaEvent::new(self.invocation(arn), Context::default())).await;
            // A failed invocation is repeated.
            let Ok(response) = invoked else { continue };
            let response = serde_json::to_value(response).unwrap();
            if response["Status"] != "PENDING" {
                return Ended { response, invocations };
            }
            let next = self.executions()[arn].iter().filter_map(due).min().expect("it waits for something");
            self.pass(next.saturating_sub(self.now())).await;
            for operation in self.executions().get_mut(arn).unwrap() {
                if due(operation).is_some_and(|due| due <= self.now()) {
                    operation["Status"] = if operation["Type"] == "WAIT" { "SUCCEEDED" } else { "READY" }.into();
                }
            }
        }
    }

    /// Returns how many waits an execution has begun.
    pub(crate) fn waits(&self, arn: &str) -> usize {
        self.executions()[arn].iter().filter(|operation| operation["Type"] == "WAIT").count()
    }

    fn invocation(&self, arn: &str) -> InvocationPayload {
        let mut operations = vec![json!({
            "Id": "execution",
            "Type": "EXECUTION",
            "Status": "STARTED",
            "ExecutionDetails": { "InputPayload": "null" },
        })];
        operations.extend(self.executions().get(arn).into_iter().flatten().cloned());
        let invocation = json!({
            "DurableExecutionArn": arn,
            "CheckpointToken": "token",
            "InitialExecutionState": { "Operations": operations },
        });
        serde_json::from_value(invocation).unwrap()
    }
}

impl HttpConnector for Service {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let path = Uri::try_from(request.uri()).unwrap().path().to_owned();
        let answer = self.answer(&path, request.body().bytes().unwrap_or_default());
        let status = if answer.is_some() { 200 } else { 500 };
        let body = SdkBody::from(serde_json::to_vec(&answer).unwrap());
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status.try_into().unwrap(), body)))
    }
}

/// Applies an update of an operation, and returns the operation.
fn apply(operations: &mut Vec<Value>, update: &Value, now: Duration) -> Value {
    if let Some(name) = update["Name"].as_str() {
        let is_name = (1..=256).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        assert!(is_name, "Lambda refuses the name {name:?}");
    }
    let index = operations.iter().position(|operation| operation["Id"] == update["Id"]).unwrap_or_else(|| {
        let field = |name: &str| (name.to_owned(), update[name].clone());
        let fields = ["Id", "Type", "SubType", "Name", "ParentId"].map(field);
        operations.push(fields.into_iter().filter(|(_, value)| !value.is_null()).collect());
        operations.len() - 1
    });
    let operation = &mut operations[index];
    let details = match operation["Type"].as_str().unwrap() {
        "STEP" => "StepDetails",
        "CONTEXT" => "ContextDetails",
        _ => "WaitDetails",
    };
    let seconds = |value: &Value| value.as_u64().map(Duration::from_secs);
    let due = |time: Duration| json!((now + time).as_millis());
    match update["Action"].as_str().unwrap() {
        "START" => {
            operation["Status"] = "STARTED".into();
            if let Some(time) = seconds(&update["WaitOptions"]["WaitSeconds"]) {
                operation["due"] = due(time);
            }
        }
        "SUCCEED" => {
            operation["Status"] = "SUCCEEDED".into();
            operation[details] = json!({ "Result": update["Payload"] });
        }
        "FAIL" => {
            operation["Status"] = "FAILED".into();
            operation[details] = json!({ "Error": update["Error"] });
        }
        "RETRY" => {
            let attempt = operation[details]["Attempt"].as_u64().unwrap_or_default() + 1;
            operation["Status"] = "PENDING".into();
            operation[details] = json!({ "Attempt": attempt, "Error": update["Error"] });
            operation["due"] = due(seconds(&update["StepOptions"]["NextAttemptDelaySeconds"]).unwrap());
        }
        action => panic!("{action}"),
    }
    let mut answer = operation.clone();
    answer.as_object_mut().unwrap().remove("due");
    answer
}

/// Returns when an operation that is waited for is to go on, since the epoch.
fn due(operation: &Value) -> Option<Duration> {
    let is_waiting =
        operation["Status"] == "PENDING" || (operation["Type"] == "WAIT" && operation["Status"] == "STARTED");
    let due = operation["due"].as_u64().filter(|_| is_waiting)?;
    Some(Duration::from_millis(due))
}
