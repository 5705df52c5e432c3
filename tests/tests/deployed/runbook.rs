//! The runbook: each section's commands, in the stack with that fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use aws_sdk_lambda::types::Environment;
use http::StatusCode;
use lambda_example::Outcome;
use lambda_lock::{Holder, Lock, Locks};
use lambda_lock_tests::loopback::Loopback;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

use crate::stack::{Stack, in_stack, payment};
use crate::{GATHERING, STACK, loop_until, number};

/// `lock/docs/operate/runbook.md`, and which of its commands have run.
pub(crate) struct Runbook {
    /// The variables and functions of the first block.
    setup: String,
    /// The blocks of commands, by heading.
    commands: BTreeMap<String, Vec<String>>,
    not_run: Mutex<BTreeSet<(String, usize)>>,
}

impl Runbook {
    pub(crate) fn read() -> Self {
        let text =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/docs/operate/runbook.md")).unwrap();
        let mut commands: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for section in text.split("\n## ") {
            let (heading, rest) = section.split_once('\n').unwrap();
            let blocks = rest.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned());
            commands.insert(heading.to_owned(), blocks.collect());
        }
        let [setup] = &commands.remove("# Runbook").unwrap()[..] else { panic!("one block comes first") };
        let blocks = commands.iter().flat_map(|(heading, blocks)| {
            let heading = heading.clone();
            (0..blocks.len()).map(move |index| (heading.clone(), index))
        });
        Self { setup: setup.clone(), not_run: Mutex::new(blocks.collect()), commands }
    }

    /// Runs a section's block of commands with these variables, and returns what it prints. Each command succeeds.
    async fn run(&self, stack: &Stack, heading: &str, block: usize, variables: &[(&str, &str)]) -> String {
        let output = self.try_run(stack, heading, block, variables, &program()).await;
        output.unwrap_or_else(|(code, text)| panic!("{heading}, block {block}: code {code}\n{text}"))
    }

    /// As [`run`](Self::run), with this program `lambda-lock`. A failure has the code and what was printed.
    async fn try_run(
        &self,
        stack: &Stack,
        heading: &str,
        block: usize,
        variables: &[(&str, &str)],
        program: &Path,
    ) -> Result<String, (i32, String)> {
        let Self { setup, commands, not_run } = self;
        assert!(setup.contains(&format!("export STACK={STACK}\n")), "{setup}");
        // Without the option, the CLI does not reach the local SQS.
        let local = "aws() { command aws --endpoint-url \"$AWS_ENDPOINT_URL\" \"$@\"; }\n";
        let block_of = &commands[heading][block];
        let mut command = stack.local.command("bash");
        let mut path = vec![program.parent().unwrap().to_owned()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        command.args(["-eu", "-o", "pipefail", "-c", &format!("{local}{setup}{block_of}")]);
        command.env("PATH", std::env::join_paths(path).unwrap()).envs(variables.iter().copied());
        let output = command.output().await.unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        not_run.lock().unwrap().remove(&(heading.to_owned(), block));
        if output.status.success() { Ok(text) } else { Err((output.status.code().unwrap(), text)) }
    }

    pub(crate) fn assert_all_have_run(&self) {
        assert_eq!(*self.not_run.lock().unwrap(), BTreeSet::new());
    }
}

/// The program, which `cargo test` builds beside the binaries of these tests.
pub(crate) fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_contender")).with_file_name("lambda-lock");
    assert!(program.is_file(), "cargo test --workspace --no-run --test program builds {}", program.display());
    program
}

fn locks(stack: &Stack, function: &str) -> Locks {
    let locks = Locks::builder(stack.dynamodb.clone(), &stack.table).key_prefix(format!("{}#", in_stack(function)));
    locks.holder("a process that has died").build().unwrap()
}

/// Leaves the lock held, as a process that dies. Returns its fence.
fn kept(lock: Lock) -> String {
    let fence = lock.fence().to_string();
    lock.keep();
    fence
}

/// Acquires as a process that then dies.
async fn leave_held(locks: &Locks, key: &str) -> String {
    kept(locks.acquire(key).lease(Duration::from_hours(1)).await.unwrap())
}

async fn holder(locks: &Locks, key: &str) -> Holder {
    locks.get(key).await.unwrap().unwrap()
}

pub(crate) async fn a_held_key_is_found_and_freed(stack: &Stack, runbook: &Runbook) {
    let heading = "A key is held";
    let fence = leave_held(&locks(stack, "nightly-report"), "stuck").await;
    let refused = stack.invoke("stuck", Duration::ZERO).await.unwrap();
    assert!(matches!(refused, Outcome::Skipped { .. }), "{refused:?}");

    let key = format!("{}#stuck", in_stack("nightly-report"));
    let function = in_stack("nightly-report");
    let variables = [("FUNCTION", function.as_str()), ("KEY", key.as_str()), ("FENCE", fence.as_str())];
    let seen = runbook.run(stack, heading, 0, &variables).await;
    let names = |line: &str| line.contains(&format!("\"key\":\"{key}\"")) && line.contains("a process that has died");
    assert!(seen.lines().any(names), "{seen}");
    // By its name, and in the list of all.
    for block in [1, 3] {
        let seen = runbook.run(stack, heading, block, &variables).await;
        let shows = |line: &&str| {
            line.starts_with(&key) && ["held", "a process that has died", &fence].iter().all(|word| line.contains(word))
        };
        assert_eq!(seen.lines().filter(shows).count(), 1, "{seen}");
    }
    runbook.run(stack, heading, 2, &variables).await;
    let next = stack.invoke("stuck", Duration::ZERO).await;
    assert!(matches!(next, Ok(Outcome::Written { times: 1, .. })), "{next:?}");
}

pub(crate) async fn a_run_that_did_not_finish_is_released_or_completed(stack: &Stack, runbook: &Runbook) {
    let (heading, locks) = ("A run did not finish", locks(stack, "payment-queue"));
    for (payment, block, state) in [("not-done", 1, "free"), ("done", 2, "completed")] {
        let fence = kept(locks.acquire(payment).lease(Duration::from_secs(2)).await.unwrap());
        loop_until(Duration::from_secs(20), async || (!holder(&locks, payment).await.is_current()).then_some(())).await;
        let key = format!("{}#{payment}", in_stack("payment-queue"));
        let variables = [("KEY", key.as_str()), ("FENCE", fence.as_str()), ("WINDOW", "15days"), ("RESULT", "null")];
        let seen = runbook.run(stack, heading, 0, &variables).await;
        assert!(["expired", &fence].iter().all(|word| seen.contains(word)), "{seen}");
        runbook.run(stack, heading, block, &variables).await;
        let seen = runbook.run(stack, heading, 0, &variables).await;
        assert!(seen.contains(state), "{seen}");
    }
}

/// Needs a killed report, which another has taken over.
pub(crate) async fn a_killed_and_a_lost_run_are_in_the_log(stack: &Stack, runbook: &Runbook) {
    let locks = locks(stack, "nightly-report");
    let (lost, ()) = tokio::join!(stack.invoke("freed", GATHERING), async {
        let holder = loop_until(Duration::from_secs(5), async || locks.get("freed").await.unwrap()).await;
        assert!(locks.force_release("freed", &holder).await.unwrap());
    });
    let function = in_stack("nightly-report");
    let seen = runbook.run(stack, "A run was killed or took too long", 0, &[("FUNCTION", &function)]).await;
    let names = |what: &str, report: &str| {
        let key = format!("\"key\":\"{}#{report}\"", in_stack("nightly-report"));
        seen.lines().any(|line| line.contains(what) && line.contains(&key))
    };
    assert!(names("taken over", "killed") && names("lost: ", "freed"), "{lost:?}\n{seen}");
}

pub(crate) async fn a_denied_function_is_explained(stack: &Stack, runbook: &Runbook) {
    let heading = "Invocations fail";
    let role = stack.role_of("order-api").await;
    let named = format!("--role-name {role} --policy-name order-api");
    let policy = stack.aws(&format!("iam get-role-policy {named} --query PolicyDocument")).await;
    let prefix = format!("{}#", in_stack("order-api"));
    let denied = policy.replace(&prefix, "another-function#").replace("LockTable-", "AnotherTable-");
    stack.aws(&format!("iam put-role-policy {named} --policy-document '{denied}'")).await;
    let order = json!({ "item": "mate", "quantity": 1 });
    assert_eq!(stack.order(Some("denied"), &order).await.status, StatusCode::INTERNAL_SERVER_ERROR);

    let function = in_stack("order-api");
    let variables = [("FUNCTION", &*function), ("ROLE", &role), ("POLICY", "order-api")];
    let seen = runbook.run(stack, heading, 0, &variables).await;
    let explains =
        |line: &str| ["\"reason\":\"access_denied\"", "dynamodb:UpdateItem"].iter().all(|word| line.contains(word));
    assert!(seen.lines().any(explains), "{seen}");
    let seen = runbook.run(stack, heading, 1, &variables).await;
    let parts = [role.as_str(), &prefix, "another-function#*", "AnotherTable-"];
    assert!(parts.iter().all(|part| seen.contains(part)), "{seen}");

    stack.aws(&format!("iam put-role-policy {named} --policy-document '{policy}'")).await;
    assert_eq!(stack.order(Some("denied"), &order).await.status, StatusCode::CREATED);
}

pub(crate) async fn a_throttled_table_is_explained(stack: &Stack, runbook: &Runbook) {
    let heading = "Invocations fail";
    let throttling = Loopback::start();
    throttling.throttle();
    let name = in_stack("order-api");
    let configuration = stack.lambda.get_function_configuration().function_name(&name).send().await.unwrap();
    let variables = configuration.environment.unwrap().variables.unwrap();
    let with = async |variables| {
        let environment = Environment::builder().set_variables(Some(variables)).build();
        stack
            .lambda
            .update_function_configuration()
            .function_name(&name)
            .environment(environment)
            .send()
            .await
            .unwrap();
    };
    let mut throttled = variables.clone();
    throttled.insert("AWS_ENDPOINT_URL_DYNAMODB".to_owned(), throttling.endpoint());
    with(throttled).await;
    let order = json!({ "item": "mate", "quantity": 1 });
    assert_eq!(stack.order(Some("throttled"), &order).await.status, StatusCode::SERVICE_UNAVAILABLE);
    with(variables).await;

    let seen = runbook.run(stack, heading, 0, &[("FUNCTION", &name)]).await;
    assert!(seen.lines().any(|line| line.contains("\"reason\":\"throttled\"")), "{seen}");
    let seen = runbook.run(stack, heading, 2, &[]).await;
    assert!(seen.contains("PAY_PER_REQUEST"), "{seen}");
    assert_eq!(stack.order(Some("throttled"), &order).await.status, StatusCode::CREATED);
}

/// Needs a payment that has become a dead letter, and the payment `duplicate` that was made.
pub(crate) async fn a_dead_letter_is_found_and_paid_once(stack: &Stack, runbook: &Runbook) {
    let (queue, dead_letters) = (stack.queue("Payments").await, stack.queue("PaymentDeadLetters").await);
    for id in ["mended", "duplicate"] {
        dead_letters.send(&json!(payment(id, 0))).await;
    }
    let function = in_stack("payment-queue");
    let variables = [("FUNCTION", &*function), ("DEAD_LETTERS", &*dead_letters.url)];
    let seen = runbook.run(stack, "Work was given up", 0, &variables).await;
    let of_poison = |line: &str| {
        ["\"level\":\"ERROR\"", "#poison", "\"dead_letter\":true", "the bank is unreachable"]
            .iter()
            .all(|word| line.contains(word))
    };
    assert!(seen.lines().any(of_poison), "{seen}");
    assert!(seen.contains("mended"), "{seen}");

    // The local AWS has no `start-message-move-task`.
    let all = ["mended", "duplicate"].map(|id| json!(payment(id, 0)));
    for payment in &all {
        queue.send(payment).await;
    }
    loop_until(Duration::from_secs(20), async || stack.payment("mended").await).await;
    loop_until(Duration::from_secs(20), async || queue.is_empty().await.then_some(())).await;
    assert_eq!([stack.times_paid("mended").await, stack.times_paid("duplicate").await], [1, 1]);
}

pub(crate) async fn work_that_does_not_happen_is_found_and_done(stack: &Stack, runbook: &Runbook) {
    let heading = "Work does not happen";
    let mappings =
        stack.lambda.list_event_source_mappings().function_name(in_stack("order-totals")).send().await.unwrap();
    let mapping = mappings.event_source_mappings()[0].uuid().unwrap().to_owned();
    stack.lambda.update_event_source_mapping().uuid(&mapping).enabled(false).send().await.unwrap();
    stack.order(Some("cocoa-1"), &json!({ "item": "cocoa", "quantity": 3 })).await;

    let report = in_stack("nightly-report");
    let key = format!("{report}#stuck");
    let seen = runbook.run(stack, heading, 0, &[("SCHEDULE", &report), ("KEY", &key)]).await;
    let is_off = |line: &str| line.contains(&mapping) && line.contains("Disabled") && line.contains("order-totals");
    assert!(seen.lines().any(is_off), "{seen}");
    assert!(seen.contains("rate(1 minute)"), "{seen}");
    assert_eq!(stack.total("cocoa").await, None);

    let before = stack.row("nightly-report", "report#sales").await.map_or(0, |report| number(&report, "times"));
    let seen = runbook.run(stack, heading, 1, &[("FUNCTION", &report), ("MAPPING", &mapping)]).await;
    assert!(seen.contains("\"outcome\": \"written\"") || seen.contains("\"outcome\": \"skipped\""), "{seen}");
    let counted = loop_until(Duration::from_mins(1), async || stack.total("cocoa").await).await;
    assert_eq!(counted, [1, 3]);
    assert!(number(&stack.row("nightly-report", "report#sales").await.unwrap(), "times") > before);
}

/// The local AWS has no composite alarms in a template, so this test creates the template's.
pub(crate) async fn totals_that_stand_still_raise_an_alarm(stack: &Stack) {
    let template = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../template.yaml")).unwrap();
    let (_, rule) = template.split_once("      AlarmRule: !Sub ").unwrap();
    let rule = rule.lines().next().unwrap().to_owned();
    let alarms = [("OrdersPlaced", "orders-placed"), ("OrdersNotCounted", "orders-not-counted")];
    let rule =
        alarms.iter().fold(rule, |rule, (resource, name)| rule.replace(&format!("${{{resource}}}"), &in_stack(name)));
    let name = in_stack("order-totals-stand-still");
    let call = async |operation: &str, body: Value| {
        stack.call("monitoring", &format!("GraniteServiceVersion20100801.{operation}"), &body).await
    };
    call("PutCompositeAlarm", json!({ "AlarmName": name, "AlarmRule": rule })).await;
    for (placed, not_counted, expected) in [("ALARM", "OK", "OK"), ("OK", "ALARM", "OK"), ("ALARM", "ALARM", "ALARM")] {
        for (alarm, state) in [("orders-placed", placed), ("orders-not-counted", not_counted)] {
            let state = json!({ "AlarmName": in_stack(alarm), "StateValue": state, "StateReason": "a test" });
            call("SetAlarmState", state).await;
        }
        let described = call("DescribeAlarms", json!({ "AlarmNames": [name], "AlarmTypes": ["CompositeAlarm"] })).await;
        assert_eq!(described["CompositeAlarms"][0]["StateValue"], expected, "{described}");
    }
    call("DeleteAlarms", json!({ "AlarmNames": [name] })).await;
}

pub(crate) async fn a_wrong_clock_is_found(stack: &Stack, runbook: &Runbook) {
    let folder = stack.local.directory.path().join("wrong-clock");
    fs::create_dir(&folder).unwrap();
    let wrong = folder.join("lambda-lock");
    let script =
        format!("#!/bin/sh\nFAKETIME_DONT_FAKE_MONOTONIC=1 exec faketime -f +120s '{}' \"$@\"\n", program().display());
    fs::write(&wrong, script).unwrap();
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, seen) = runbook.try_run(stack, "A clock is wrong", 0, &[], &wrong).await.unwrap_err();
    assert_eq!(code, 78, "{seen}");
    assert!(seen.lines().any(|line| line.starts_with("failed  clock")), "{seen}");
    let seen = runbook.run(stack, "A clock is wrong", 0, &[]).await;
    assert!(seen.lines().any(|line| line.starts_with("passed  clock")), "{seen}");
}

pub(crate) async fn a_full_semaphore_is_found_and_freed(stack: &Stack, runbook: &Runbook) {
    let semaphore = locks(stack, "nightly-report").semaphore("bank-api", 2);
    let mut fences = Vec::new();
    for _ in 0..2 {
        fences.push(kept(semaphore.acquire().lease(Duration::from_hours(1)).await.unwrap()));
    }
    assert!(semaphore.acquire().await.unwrap_err().is_held());
    let key = format!("{}#bank-api", in_stack("nightly-report"));
    let seen = runbook.run(stack, "A semaphore is full", 0, &[("KEY", &key), ("FENCE", &fences[0])]).await;
    assert!(fences.iter().all(|fence| seen.contains(fence.as_str())), "{seen}");
    semaphore.acquire().await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_rate_that_is_far_ahead_passes_again(stack: &Stack, runbook: &Runbook) {
    let locks = locks(stack, "nightly-report");
    let call = async |period| locks.rate("bank-calls", 1, period).pass().await;
    call(Duration::from_hours(24)).await.unwrap();
    assert!(call(Duration::from_secs(1)).await.unwrap_err().is_held());
    let key = format!("{}#bank-calls", in_stack("nightly-report"));
    let seen = runbook.run(stack, "A rate is far ahead", 0, &[("KEY", &key)]).await;
    assert!(seen.contains("released: key"), "{seen}");
    call(Duration::from_secs(1)).await.unwrap();
}

pub(crate) async fn waiters_that_died_do_not_keep_a_key(stack: &Stack, runbook: &Runbook) {
    let locks = locks(stack, "nightly-report");
    let held = locks.acquire("queue").await.unwrap();
    let waiter = tokio::spawn(locks.acquire("queue").wait(Duration::from_hours(1)).into_future());
    loop_until(Duration::from_secs(10), async || (holder(&locks, "queue").await.waiters() == 1).then_some(())).await;
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    held.release().await.unwrap();
    // Longer than a moment for which newcomers leave the key to the queue.
    sleep(Duration::from_secs(1)).await;

    let key = format!("{}#queue", in_stack("nightly-report"));
    let seen = runbook.run(stack, "Waiters stand still", 0, &[("KEY", &key)]).await;
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!((&seen["waiting"], &seen["state"]), (&json!(1), &json!("free")), "{seen}");
    locks.acquire("queue").await.unwrap().release().await.unwrap();
}

impl Stack {
    /// Runs the AWS CLI with these arguments in a shell, and returns what it prints.
    async fn aws(&self, arguments: &str) -> String {
        let mut command: Command = self.local.command("bash");
        command.args(["-c", &format!("aws --endpoint-url \"$AWS_ENDPOINT_URL\" {arguments}")]);
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The name of a function's role.
    async fn role_of(&self, function: &str) -> String {
        let name = in_stack(function);
        let configuration = self.lambda.get_function_configuration().function_name(name).send().await.unwrap();
        configuration.role().unwrap().rsplit('/').next().unwrap().to_owned()
    }
}
