//! `LockLayer` under the real `lambda_runtime`, in another process, against a Lambda Runtime API that the test plays.

use std::collections::{BTreeSet, HashMap};
use std::process::Stdio;
use std::time::Duration;

use lambda_lock::Locks;
use lambda_lock_tests::loopback::{Fault, Loopback, TABLE};
use lambda_lock_tests::runtime_api::{Lambda, TOO_LONG};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The time until the deadline of an invocation that overruns it. It reaches its handler in time on a busy machine, too.
const IN_TIME: Duration = Duration::from_secs(5);

/// An environment of the function for one invocation at a time. It ends with the test.
fn environment(lambda: &Lambda) -> Child {
    function(lambda).arg("run").spawn().unwrap()
}

/// An environment of the function for four invocations at a time.
fn concurrent_environment(lambda: &Lambda) -> Child {
    environment_for(4, lambda, "run_concurrent")
}

/// An environment for several invocations at a time, as on Managed Instances.
fn environment_for(invocations: usize, lambda: &Lambda, function_name: &str) -> Child {
    let mut command = function(lambda);
    command.arg(function_name).env("AWS_LAMBDA_MAX_CONCURRENCY", invocations.to_string()).spawn().unwrap()
}

fn function(lambda: &Lambda) -> Command {
    lambda.environment(env!("CARGO_BIN_EXE_function"))
}

/// Where handlers wait until the test lets them continue.
struct Gate(TcpListener);

impl Gate {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn wait_here(&self, key: &str) -> Value {
        json!({ "key": key, "do": "wait", "at": self.0.local_addr().unwrap().to_string() })
    }

    /// Waits for the next handler, which continues when the stream is dropped.
    async fn arrival(&self) -> TcpStream {
        timeout(TOO_LONG, self.0.accept()).await.expect("a handler comes").unwrap().0
    }

    /// Waits until so many handlers run at the same time, and lets them continue.
    async fn open_for(&self, handlers: usize) {
        let mut running = Vec::new();
        for _ in 0..handlers {
            running.push(self.arrival().await);
        }
    }
}

fn returning(key: &str) -> Value {
    json!({ "key": key, "do": "return" })
}

#[tokio::test]
async fn each_invocation_gets_the_lock_with_a_larger_fence() {
    let mut lambda = Lambda::start().await;
    let _environment = environment(&lambda);
    let mut fences = Vec::new();
    for id in ["first", "second", "third"] {
        fences.push(lambda.invoke(id, returning("job")).await.answer()["fence"].as_u64().unwrap());
    }
    assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{fences:?}");
}

#[tokio::test]
async fn an_invocation_with_a_held_key_fails_and_the_runtime_continues() {
    let mut lambda = Lambda::start().await;
    let _environment = environment(&lambda);
    let (kind, message) = lambda.invoke("refused", returning("taken")).await.error();
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("another environment"), "{message}");
    lambda.invoke("next", returning("free")).await.answer();
}

#[tokio::test]
async fn the_error_of_a_handler_reaches_lambda_and_releases_the_key() {
    let mut lambda = Lambda::start().await;
    let _environment = environment(&lambda);
    let error = lambda.invoke("failing", json!({ "key": "job", "do": "fail" })).await.error();
    assert_eq!(error, ("OutOfPaper".to_owned(), "fill the tray".to_owned()));
    lambda.invoke("next", returning("job")).await.answer();
}

#[tokio::test]
async fn a_panic_reaches_lambda_and_releases_the_key() {
    let mut lambda = Lambda::start().await;
    let _environment = environment(&lambda);
    let (_, message) = lambda.invoke("panicking", json!({ "key": "job", "do": "dance" })).await.error();
    assert_eq!(message, "Lambda panicked: cannot do Some(\"dance\")");
    lambda.invoke("next", returning("job")).await.answer();
}

#[tokio::test]
async fn a_panic_is_one_line_of_the_log_with_its_request_and_its_lock() {
    let mut lambda = Lambda::start().await;
    let mut environment = function(&lambda).arg("run").env("RUST_LOG", "info").stderr(Stdio::piped()).spawn().unwrap();
    let _reported = lambda.invoke("panicking", json!({ "key": "job", "do": "dance" })).await.error();
    environment.kill().await.unwrap();
    let mut log = String::new();
    environment.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let panics: Vec<_> = lines.iter().filter(|line| line["fields"]["message"] == "panicked").collect();
    let [panic] = panics[..] else { panic!("{log}") };
    assert_eq!((&panic["level"], &panic["fields"]["panic"]), (&json!("ERROR"), &json!("cannot do Some(\"dance\")")));
    assert!(panic["fields"]["place"].as_str().unwrap().starts_with("tests/src/bin/function.rs:"), "{panic}");
    let spans = panic["spans"].as_array().unwrap();
    assert_eq!(spans[0]["requestId"], "panicking", "{panic}");
    let lock = spans.iter().find(|span| span["name"] == "lock").unwrap();
    assert!(lock["key"] == "job" && lock["fence"].is_u64(), "{panic}");
}

#[tokio::test]
async fn a_handler_is_cancelled_at_the_deadline_of_the_invocation() {
    let mut lambda = Lambda::start().await;
    let _environment = environment(&lambda);
    // The deadline counts from here: the environment must be up.
    lambda.invoke("first", returning("job")).await.answer();
    lambda.send_with("hanging", json!({ "key": "job", "do": "hang" }), IN_TIME);
    let (id, outcome) = lambda.next_outcome().await;
    assert_eq!((id.as_str(), outcome.error().0.as_str()), ("hanging", "LockLost"));
    lambda.invoke("next", returning("job")).await.answer();
}

#[tokio::test]
async fn one_of_four_concurrent_invocations_runs() {
    let mut lambda = Lambda::start().await;
    let _environment = concurrent_environment(&lambda);
    let gate = Gate::new().await;
    for id in ["a", "b", "c", "d"] {
        lambda.send(id, gate.wait_here("job"));
    }
    let running = gate.arrival().await;
    let mut outcomes = HashMap::new();
    for _ in 0..3 {
        let (id, outcome) = lambda.next_outcome().await;
        let (kind, message) = outcome.error();
        assert_eq!(kind, "LockHeld");
        outcomes.insert(id, message);
    }
    drop(running);
    let (winner, outcome) = lambda.next_outcome().await;
    outcome.answer();
    assert!(!outcomes.contains_key(&winner));
    assert_eq!(outcomes.len(), 3);
    // Each refusal names the invocation that holds the key.
    let holder = format!("held by function {winner} stream until");
    assert!(outcomes.values().all(|message| message.contains(&holder)), "{outcomes:?}");
}

#[tokio::test]
async fn each_of_64_concurrent_invocations_gets_its_own_answer() {
    let mut lambda = Lambda::start().await;
    let _environment = environment_for(64, &lambda, "run_concurrent");
    let gate = Gate::new().await;
    let ids: BTreeSet<_> = (0..64).map(|id| id.to_string()).collect();
    for id in &ids {
        lambda.send(id, gate.wait_here(id));
    }
    gate.open_for(64).await;
    let mut answered = BTreeSet::new();
    for _ in &ids {
        let (id, outcome) = lambda.next_outcome().await;
        assert_eq!(outcome.answer()["request"], id);
        answered.insert(id);
    }
    assert_eq!(answered, ids);
}

#[tokio::test]
async fn concurrent_duplicates_get_the_result_of_their_own_key() {
    let mut lambda = Lambda::start().await;
    let _environment = environment_for(64, &lambda, "run_concurrent_once");
    let gate = Gate::new().await;
    for (key, copy) in (0..32).flat_map(|key| [(key, "a"), (key, "b")]) {
        lambda.send(&format!("{key}-{copy}"), gate.wait_here(&format!("{key}")));
    }
    gate.open_for(32).await;
    let mut results = HashMap::new();
    for _ in 0..64 {
        let (id, outcome) = lambda.next_outcome().await;
        let key = id.split_once('-').unwrap().0.to_owned();
        let ran = outcome.answer()["request"].as_str().unwrap().to_owned();
        assert!(ran.starts_with(&format!("{key}-")), "{id} got the result of {ran}");
        let first = results.entry(key).or_insert_with(|| ran.clone());
        assert_eq!(*first, ran, "one run for each key");
    }
    assert_eq!(results.len(), 32);
}

#[tokio::test]
async fn each_of_64_concurrent_batches_reports_its_own_failures() {
    let mut lambda = Lambda::start().await;
    let _environment = environment_for(64, &lambda, "run_concurrent_batch");
    for id in 0..64 {
        let message = |copy: &str, then: &str| {
            let body = json!({ "id": format!("{id} {copy}"), "then": then }).to_string();
            json!({ "messageId": format!("{id} {copy}"), "body": body })
        };
        lambda.send(&id.to_string(), json!({ "Records": [message("good", "Done"), message("bad", "Declined")] }));
    }
    for _ in 0..64 {
        let (id, outcome) = lambda.next_outcome().await;
        assert_eq!(outcome.answer()["batchItemFailures"], json!([{ "itemIdentifier": format!("{id} bad") }]));
    }
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_past_the_deadline_has_lost_its_lock() {
    let mut lambda = Lambda::start().await;
    let _environment = concurrent_environment(&lambda);
    // The deadline counts from here: the environment must be up.
    lambda.invoke("first", returning("job")).await.answer();
    lambda.send_with("blocking", json!({ "key": "job", "do": "block" }), IN_TIME);
    let (id, outcome) = lambda.next_outcome().await;
    assert_eq!((id.as_str(), outcome.error().0.as_str()), ("blocking", "LockLost"));
    lambda.invoke("next", returning("job")).await.answer();
}

#[tokio::test]
async fn work_that_goes_on_after_the_deadline_learns_of_it_from_the_lock() {
    let mut lambda = Lambda::start().await;
    let _environment = concurrent_environment(&lambda);
    let gate = Gate::new().await;
    lambda.invoke("first", returning("job")).await.answer();
    let spawning = json!({ "key": "job", "do": "spawn", "at": gate.0.local_addr().unwrap().to_string() });
    lambda.send_with("spawning", spawning, IN_TIME);
    let mut works = [gate.arrival().await, gate.arrival().await];
    let (id, outcome) = lambda.next_outcome().await;
    assert_eq!((id.as_str(), outcome.error().0.as_str()), ("spawning", "LockLost"));
    for work in &mut works {
        let mut said = String::new();
        timeout(TOO_LONG, work.read_to_string(&mut said)).await.expect("the work ends").unwrap();
        assert_eq!(said, "stopped");
    }
    lambda.invoke("next", returning("job")).await.answer();
}

/// An environment of the function with the table behind this socket.
fn environment_with_table(lambda: &Lambda, table: &Loopback) -> Child {
    function_with_table(lambda, table).spawn().unwrap()
}

fn function_with_table(lambda: &Lambda, table: &Loopback) -> Command {
    function_at(lambda, table, "run_until_shutdown")
}

fn function_at(lambda: &Lambda, table: &Loopback, function_name: &str) -> Command {
    let mut command = function(lambda);
    command
        .arg(function_name)
        .env("AWS_ENDPOINT_URL", table.endpoint())
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("LOCK_TABLE_NAME", TABLE);
    command
}

/// Sends SIGTERM, and waits until the process has ended by itself.
async fn terminate(environment: &mut Child) {
    let id = i32::try_from(environment.id().unwrap()).unwrap();
    kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
    let status = timeout(TOO_LONG, environment.wait()).await.expect("the process ends").unwrap();
    assert_eq!(status.code(), Some(0), "{status}");
}

#[tokio::test]
async fn a_held_key_is_free_after_sigterm() {
    let (mut lambda, table, gate) = (Lambda::start().await, Loopback::start(), Gate::new().await);
    let mut environment = environment_with_table(&lambda, &table);
    lambda.asked().await;
    lambda.send("terminated", gate.wait_here("job"));
    let _running = gate.arrival().await;
    let others = Locks::builder(table.engine().client(), TABLE).build().unwrap();
    assert!(others.try_acquire("job").await.unwrap().is_none());
    terminate(&mut environment).await;
    others.try_acquire("job").await.unwrap().expect("the key is free").release().await.unwrap();
}

#[tokio::test]
async fn a_process_with_a_silent_table_ends_soon_after_sigterm() {
    let (mut lambda, table, gate) = (Lambda::start().await, Loopback::start(), Gate::new().await);
    let mut environment = environment_with_table(&lambda, &table);
    lambda.asked().await;
    lambda.send("terminated", gate.wait_here("job"));
    let _running = gate.arrival().await;
    table.fall_silent();
    // All attempts of one release take more than 6 s. The process has 0.5 s, and starts to count late on a busy machine.
    timeout(Duration::from_secs(5), terminate(&mut environment)).await.expect("the limit ends the releases");
}

#[tokio::test]
async fn a_function_runs_where_it_cannot_register_an_extension() {
    let (mut lambda, table) = (Lambda::without_extensions().await, Loopback::start());
    let _environment = environment_with_table(&lambda, &table);
    lambda.invoke("first", returning("job")).await.answer();
}

#[tokio::test]
async fn hundreds_of_concurrent_invocations_share_one_client() {
    const INVOCATIONS: usize = 300;
    let (mut lambda, table) = (Lambda::start().await, Loopback::start());
    let mut command = function_at(&lambda, &table, "run_concurrent_with_table");
    let _environment = command.env("AWS_LAMBDA_MAX_CONCURRENCY", INVOCATIONS.to_string()).spawn().unwrap();
    lambda.asked().await;
    // All acquires are under way at the same time, and later all releases.
    table.gather(Some(INVOCATIONS));
    let mut owners = BTreeSet::new();
    for id in 0..INVOCATIONS {
        lambda.send(&id.to_string(), returning(&id.to_string()));
    }
    for _ in 0..INVOCATIONS {
        let (id, outcome) = lambda.next_outcome().await;
        let answer = outcome.answer();
        assert_eq!(answer["request"], id);
        owners.insert(answer["owner"].to_string());
    }
    assert_eq!((owners.len(), table.connections()), (INVOCATIONS, 300));

    table.gather(None);
    table.kill_connections(Fault::Reset);
    lambda.invoke("later", returning("job")).await.answer();
    assert_eq!(table.met(), 1, "requests on dead connections");
}

/// An environment for several invocations at a time whose process has one lock. Returns when its init phase has ended.
async fn leading_environment(lambda: &mut Lambda, table: &Loopback) -> Child {
    let mut command = function_at(lambda, table, "run_concurrent_leader");
    let environment = command.env("AWS_LAMBDA_MAX_CONCURRENCY", "4").spawn().unwrap();
    lambda.asked().await;
    environment
}

/// Waits until this process leads with a larger fence, and returns that.
async fn leads_after(lambda: &mut Lambda, fence: u64) -> u64 {
    lambda.invoke("leads", json!({ "after": fence })).await.answer().as_u64().expect("it leads")
}

#[tokio::test]
async fn one_of_two_environments_leads_and_the_other_takes_over_after_a_crash() {
    let (mut one, mut other, table) = (Lambda::start().await, Lambda::start().await, Loopback::start());
    let mut leading = leading_environment(&mut one, &table).await;
    let fence = leads_after(&mut one, 0).await;
    let _waiting = leading_environment(&mut other, &table).await;
    assert_eq!(other.invoke("follows", json!({})).await.answer(), Value::Null);
    assert_eq!(one.invoke("still-leads", json!({})).await.answer(), fence);
    leading.kill().await.unwrap();
    assert!(leads_after(&mut other, fence).await > fence);
}

#[tokio::test]
async fn an_environment_that_has_lost_the_lead_leads_again() {
    let (mut lambda, table) = (Lambda::start().await, Loopback::start());
    let _environment = leading_environment(&mut lambda, &table).await;
    let fence = leads_after(&mut lambda, 0).await;
    let operator = Locks::builder(table.engine().client(), TABLE).build().unwrap();
    let holder = operator.get("leader").await.unwrap().unwrap();
    assert!(operator.force_release("leader", &holder).await.unwrap());
    assert!(leads_after(&mut lambda, fence).await > fence);
}

#[tokio::test]
async fn a_function_with_snap_start_meets_no_connection_of_its_snapshot() {
    let (mut lambda, table) = (Lambda::start().await, Loopback::start());
    let mut command = function_with_table(&lambda, &table);
    let _environment = command.env("AWS_LAMBDA_INITIALIZATION_TYPE", "snap-start").spawn().unwrap();
    lambda.asked().await;
    assert_eq!(table.connections(), 1, "the warm-up of the init phase");
    table.kill_connections(Fault::Silence);
    lambda.restore();
    lambda.invoke("first", returning("job")).await.answer();
    assert_eq!((table.met(), table.connections()), (0, 2));
}

/// The log of a function that takes a number and gets a secret.
async fn log_of_a_payload_without_a_number(filter: &str) -> String {
    let mut lambda = Lambda::start().await;
    let mut command = function(&lambda);
    let mut environment = command.arg("run_typed").env("RUST_LOG", filter).stderr(Stdio::piped()).spawn().unwrap();
    let (_, message) = lambda.invoke("1", json!("the secret")).await.error();
    assert!(message.contains("the secret"), "{message}");
    environment.kill().await.unwrap();
    String::from_utf8(environment.wait_with_output().await.unwrap().stderr).unwrap()
}

// As the documentation of the layers says.
#[tokio::test]
async fn the_runtime_logs_an_unreadable_payload_unless_that_target_is_off() {
    let log = log_of_a_payload_without_a_number("info").await;
    assert!(log.contains("the secret"), "{log}");
    let log = log_of_a_payload_without_a_number("info,lambda_runtime::layers::api_response=off").await;
    assert!(!log.contains("the secret"), "{log}");
}
