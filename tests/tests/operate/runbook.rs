//! The runbook's table of errors: each of them occurs, what the runbook says is done, and then it is gone.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Region};
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Data, Error, HandlerError, Idempotency, Locks, OnUnfinished};
use lambda_lock_tests::World;
use serde_json::{Value, json};

use crate::{completed, locks_on, ms, s, seen};

/// Makes a test for each row of the table, and one that finds a row without a test.
macro_rules! rows {
    ($($kinds:literal: $test:ident)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                remedies::$test().await;
            }
        )*

        #[test]
        fn each_row_of_the_runbook_has_a_test() {
            assert_eq!(rows(), [$($kinds),*]);
        }
    };
}

rows! {
    "`held`, `in_progress`": the_key_of_a_dead_holder_is_freed_by_its_fence
    "`lost`": a_lease_that_is_renewed_before_a_long_step_lasts
    "`throttled`, `access_denied`, `table_not_found`": a_table_with_capacity_and_a_policy_answers
    "`unavailable`, `conflict`": the_caller_retries_what_passes_by_itself
    "`not_sent`": a_process_with_credentials_sends
    "`invalid`, `rejected`": a_setting_is_corrected_as_its_error_says
    "`malformed_row`, `wrong_kind`": another_prefix_keeps_rows_apart
    "`unfinished`": work_that_was_not_done_runs_and_work_that_was_done_is_answered
    "`mismatch`, `key_missing`": the_sender_gives_each_payload_its_key
    "`unusable_result`": a_smaller_result_is_stored_and_an_old_one_is_read
}

/// The first cells of the table.
fn rows() -> Vec<String> {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/docs/operate/runbook.md")).unwrap();
    let (_, section) = text.split_once("## Every kind of error\n").unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    cells.map(|(cell, _)| format!("`{cell}")).collect()
}

#[track_caller]
fn assert_kind(error: &Error, kind: &str) {
    assert_eq!(error.kind().as_str(), kind, "{error}");
}

/// The error of a lock that a run ends with.
#[track_caller]
fn refusal<T: std::fmt::Debug, E: std::fmt::Debug>(answer: Result<T, HandlerError<E>>, kind: &str) -> Error {
    match answer {
        Err(HandlerError::Lock(error)) => {
            assert_kind(&error, kind);
            error
        }
        other => panic!("not {kind}: {other:?}"),
    }
}

/// Answers updates like this until somebody has mended it.
#[derive(Clone, Debug)]
struct Broken {
    status: u16,
    code: &'static str,
    is_mended: Arc<AtomicBool>,
}

impl Broken {
    fn new(status: u16, code: &'static str) -> Self {
        Self { status, code, is_mended: Arc::default() }
    }

    fn mend(&self) {
        self.is_mended.store(true, Ordering::Relaxed);
    }
}

impl Intercept for Broken {
    fn request(&self, _: &str, request: &mut Value) {
        if !self.is_mended.load(Ordering::Relaxed) {
            // Nothing is applied.
            request["ConditionExpression"] = "attribute_exists(id) AND attribute_not_exists(id)".into();
            for unused in ["UpdateExpression", "ExpressionAttributeNames", "ExpressionAttributeValues"] {
                request.as_object_mut().unwrap().remove(unused);
            }
        }
    }

    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if !self.is_mended.load(Ordering::Relaxed) {
            answer.status = self.status;
            answer.body = json!({ "__type": self.code });
        }
    }
}

/// A run that has died: its process was stopped until its lease was over.
async fn leave_unfinished(host: &Host, work: &Idempotency<String, String, String>, id: &str) {
    let id = id.to_owned();
    let died = work.run(&id, async |_| {
        host.advance_clock(s(60));
        std::future::pending().await
    });
    refusal(died.await, "lost");
}

/// The blocks of commands: the one that sets the shell up, and the others.
#[cfg(unix)]
fn commands() -> (String, Vec<String>) {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/docs/operate/runbook.md")).unwrap();
    let mut blocks = text.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned());
    (blocks.next().unwrap(), blocks.collect())
}

/// Runs a block in a shell with these variables, in which AWS has one function, log and stack: those that are called `right`.
/// Returns whether it succeeds, and what it prints. Ends it after a minute.
#[cfg(unix)]
fn run_in_shell(setup: &str, block: &str, variables: &[(&str, &str)]) -> (bool, String) {
    // A query takes one look. Each empty argument is a mistake of the command.
    const STUBS: &str = r#"
sleep() { :; }
lambda-lock() { aws lambda-lock "$@"; }
aws() {
    case " $* " in *"  "*|*wrong*) echo "not found: $*" >&2; return 254;; esac
    case "$*" in
        *start-query*) echo query;;
        *"--query status"*) echo "${STATUS:-Complete}";;
        *) echo "sent: $*";;
    esac
}
"#;
    let mut command = std::process::Command::new("timeout");
    command.args(["60", "bash", "-c", &format!("{STUBS}{setup}{block}")]);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), Some(124), "it has no end: {block} with {variables:?}");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}

/// The variables that a block uses and does not set.
#[cfg(unix)]
fn variables_of(block: &str) -> Vec<&str> {
    let after = block.split('$').skip(1).map(|rest| rest.trim_start_matches('{'));
    let names = after.map(|rest| rest.split(|c: char| !c.is_ascii_uppercase() && c != '_').next().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.is_empty() && *name != "LOCK_TABLE_NAME").collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(unix)]
#[test]
fn a_command_without_its_variable_names_it_and_sends_nothing() {
    let (setup, blocks) = commands();
    let table = include_str!("../../../lock/docs/operate/runbook.md");
    let mut found = 0;
    for block in &blocks {
        let names = variables_of(block);
        let all: Vec<_> = names.iter().map(|name| (*name, "right")).collect();
        let (is_ok, text) = run_in_shell(&setup, block, &all);
        assert!(is_ok, "{block}{text}");
        for missing in names {
            let others: Vec<_> = all.iter().copied().filter(|(name, _)| *name != missing).collect();
            let (is_ok, text) = run_in_shell(&setup, block, &others);
            assert!(!is_ok && text.contains(missing) && !text.contains("not found"), "{block}{missing}: {text}");
            assert!(
                table.contains(&format!("| `{missing}`")) || table.contains(&format!(", `{missing}` |")),
                "{missing}"
            );
            found += 1;
        }
    }
    assert!(found > 10, "{found}");
}

#[cfg(unix)]
#[test]
fn a_search_of_the_log_ends_if_it_cannot_succeed() {
    let (setup, blocks) = commands();
    let search = blocks.iter().find(|block| block.starts_with("logs ")).unwrap();
    for (variables, expected) in [
        ([("FUNCTION", "wrong"), ("STATUS", "Complete")], "not found"),
        ([("FUNCTION", "right"), ("STATUS", "Failed")], "sent: logs get-query-results"),
    ] {
        let (_, text) = run_in_shell(&setup, search, &variables);
        assert!(text.contains(expected), "{text}");
    }
}

mod remedies {
    use super::*;

    pub(super) async fn the_key_of_a_dead_holder_is_freed_by_its_fence() {
        let world = World::new().await;
        let (_, locks) = locks_on(&world, world.host());
        let died = locks.acquire("report").await.unwrap();
        let fence = died.fence();
        died.keep();
        assert_kind(&locks.acquire("report").await.unwrap_err(), "held");
        let found = seen(&locks, "report").await;
        assert_eq!(found.fence(), Some(fence));
        assert!(locks.force_release("report", &found).await.unwrap());
        locks.acquire("report").await.unwrap().release().await.unwrap();

        let orders = completed(&locks);
        let id = "order".to_owned();
        let first = orders.run(&id, async |_| {
            refusal(orders.run(&id, async |_| Ok("second".to_owned())).await, "in_progress");
            assert!(locks.force_release("order", &seen(&locks, "order").await).await.unwrap());
            orders.run(&id, async |_| Ok("third".to_owned())).await.map_err(|error| error.to_string())
        });
        assert_eq!(first.await.unwrap(), "third");
    }

    pub(super) async fn a_lease_that_is_renewed_before_a_long_step_lasts() {
        let world = World::new().await;
        let (host, locks) = locks_on(&world, world.host());
        let step = || locks.acquire("deploy").identity("run 7").lease(s(10));
        let lock = locks.acquire("job").lease(s(10)).await.unwrap();
        step().await.unwrap().keep();
        host.advance_clock(s(20));
        assert_kind(&lock.renew(s(10)).await.unwrap_err(), "lost");
        assert_kind(&step().take_over().await.unwrap_err(), "lost");

        let lock = locks.acquire("job").lease(s(10)).await.unwrap();
        step().await.unwrap().keep();
        lock.renew(s(30)).await.unwrap();
        step().lease(s(30)).take_over().await.unwrap().keep();
        host.advance_clock(s(20));
        lock.renew(s(10)).await.unwrap();
        step().take_over().await.unwrap().release().await.unwrap();
        lock.release().await.unwrap();
    }

    pub(super) async fn a_table_with_capacity_and_a_policy_answers() {
        for (kind, code) in
            [("throttled", "ProvisionedThroughputExceededException"), ("access_denied", "AccessDeniedException")]
        {
            let world = World::new().await;
            let broken = Broken::new(400, code);
            let (_, locks) = locks_on(&world, world.host().intercept(broken.clone()));
            assert_kind(&locks.acquire("job").await.unwrap_err(), kind);
            broken.mend();
            locks.acquire("job").await.unwrap().release().await.unwrap();
        }
        let world = World::without_table();
        let locks = world.default_locks();
        assert_kind(&locks.acquire("job").await.unwrap_err(), "table_not_found");
        locks.create_table().await.unwrap();
        locks.acquire("job").await.unwrap().release().await.unwrap();
    }

    pub(super) async fn the_caller_retries_what_passes_by_itself() {
        for (kind, broken) in [
            ("unavailable", Broken::new(500, "InternalServerError")),
            ("conflict", Broken::new(400, "TransactionConflictException")),
        ] {
            let world = World::new().await;
            let (_, locks) = locks_on(&world, world.host().intercept(broken.clone()));
            let error = locks.acquire("job").await.unwrap_err();
            assert_kind(&error, kind);
            assert!(error.is_retryable());
            broken.mend();
            locks.flush(s(10)).await.unwrap();
            locks.acquire("job").await.unwrap().release().await.unwrap();
        }
    }

    pub(super) async fn a_process_with_credentials_sends() {
        let world = World::new().await;
        let config = Config::builder().behavior_version(BehaviorVersion::latest());
        let without = Client::from_conf(config.region(Region::from_static("us-east-1")).build());
        let locks = Locks::builder(without, &world.table).build().unwrap();
        assert_kind(&locks.acquire("job").await.unwrap_err(), "not_sent");
        world.default_locks().acquire("job").await.unwrap().release().await.unwrap();
    }

    pub(super) async fn a_setting_is_corrected_as_its_error_says() {
        let world = World::new().await;
        let (_, locks) = locks_on(&world, world.host());
        let error = locks.acquire("job").lease(ms(0)).await.unwrap_err();
        assert_kind(&error, "invalid");
        assert!(error.to_string().contains("1ms"), "{error}");
        locks.acquire("job").lease(s(1)).await.unwrap().release().await.unwrap();

        let other_keys = world.locks(&world.host().build()).partition_key("PK").build().unwrap();
        assert_kind(&other_keys.acquire("job").await.unwrap_err(), "rejected");
        let report = other_keys.check().await.to_string();
        assert!(report.contains("the table has partition key `id` (S)"), "{report}");
        let corrected = world.locks(&world.host().build()).partition_key("id").build().unwrap();
        corrected.acquire("job").await.unwrap().release().await.unwrap();
    }

    pub(super) async fn another_prefix_keeps_rows_apart() {
        let world = World::new().await;
        let (_, locks) = locks_on(&world, world.host());
        let id = [("id".to_owned(), AttributeValue::S("order".to_owned()))];
        world.put_row(id.into()).await;
        assert_kind(&locks.acquire("order").await.unwrap_err(), "malformed_row");
        locks.semaphore("bank", 2).acquire().await.unwrap().release().await.unwrap();
        assert_kind(&locks.acquire("bank").await.unwrap_err(), "wrong_kind");
        let prefixed = world.locks(&world.host().build()).key_prefix("locks#").build().unwrap();
        for key in ["order", "bank"] {
            prefixed.acquire(key).await.unwrap().release().await.unwrap();
        }
    }

    pub(super) async fn work_that_was_not_done_runs_and_work_that_was_done_is_answered() {
        let world = World::new().await;
        let (host, locks) = locks_on(&world, world.host());
        let payments = completed(&locks).on_unfinished(OnUnfinished::Reject).lease(s(30)).window(s(3600));
        let retry = async |id: &str| payments.run(&id.to_owned(), async |_| Ok("paid again".to_owned())).await;
        for id in ["not-done", "done"] {
            leave_unfinished(&host, &payments, id).await;
            refusal(retry(id).await, "unfinished");
        }
        let found = seen(&locks, "not-done").await;
        assert!(!found.is_current() && !found.has_released());
        assert!(locks.force_release("not-done", &found).await.unwrap());
        assert_eq!(retry("not-done").await.unwrap(), "paid again");

        let found = seen(&locks, "done").await;
        let receipt = Data::from("\"receipt 7\"");
        assert!(locks.force_complete("done", &found, s(3600), Some(receipt)).await.unwrap());
        assert_eq!(retry("done").await.unwrap(), "receipt 7");
    }

    pub(super) async fn the_sender_gives_each_payload_its_key() {
        let world = World::new().await;
        let locks = world.default_locks();
        let key = |(id, _): &(Option<String>, u32)| id.clone();
        let orders =
            Idempotency::<_, u32, String>::new(locks, OnMissingKey::Reject, key).validate(|(_, amount)| *amount);
        let order =
            async |id: Option<&str>, amount| orders.run(&(id.map(str::to_owned), amount), async |_| Ok(amount)).await;
        order(Some("one"), 1).await.unwrap();
        refusal(order(Some("one"), 2).await, "mismatch");
        refusal(order(None, 2).await, "key_missing");
        assert_eq!(order(Some("two"), 2).await.unwrap(), 2);
    }

    pub(super) async fn a_smaller_result_is_stored_and_an_old_one_is_read() {
        let world = World::new().await;
        let (host, locks) = locks_on(&world, world.host());
        let exports = completed(&locks).lease(s(30));
        let id = "export".to_owned();
        refusal(exports.run(&id, async |_| Ok("x".repeat(400 * 1024))).await, "unusable_result");
        host.advance_clock(s(60));
        for _ in 0..2 {
            assert_eq!(exports.run(&id, async |_| Ok("s3://exports/7".to_owned())).await.unwrap(), "s3://exports/7");
        }

        // A deployment has changed the type of the result.
        let key = |id: &String| Some(id.clone());
        let changed = Idempotency::<_, u32, String>::new(locks.clone(), OnMissingKey::Reject, key);
        refusal(changed.run(&id, async |_| Ok(7)).await, "unusable_result");
        assert_eq!(changed.prefix("exports-2").run(&id, async |_| Ok(7)).await.unwrap(), 7);
    }
}
