//! `template.yaml` as a user deploys it: built and deployed by the SAM CLI, to a local AWS (`MiniStack`) that runs the
//! function's binary as Lambda does. The time is real.
//!
//! Needs `sam`, `cargo-lambda` and `ministack` on the `PATH`, as `.ci/run` puts them there. Without them it is skipped,
//! or with `LOCK_TEST_DEPLOYED=required` fails.

use std::collections::HashMap;
use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_lambda::primitives::Blob;
use futures_util::future::join_all;
use lambda_example::{Outcome, ReportRequest};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

const TOOLS: [&str; 3] = ["sam", "cargo-lambda", "ministack"];
const REGION: &str = "us-east-1";
const STACK: &str = "reports";
const FUNCTION: &str = "reports-nightly-report";

/// The function's timeout, in seconds.
const FUNCTION_TIMEOUT: u64 = 8;
/// Less than the timeout, and longer than a few cold starts at once take on a busy machine.
const GATHERING: Duration = Duration::from_secs(4);
/// The default of `LocksBuilder::clock_skew`, in milliseconds.
const CLOCK_SKEW: u64 = 1000;

#[tokio::test]
async fn the_deployed_function_writes_each_report_one_at_a_time() {
    let missing: Vec<_> = TOOLS.into_iter().filter(|tool| !is_on_path(tool)).collect();
    if !missing.is_empty() {
        assert!(env::var_os("LOCK_TEST_DEPLOYED").is_none_or(|v| v != "required"), "not on the PATH: {missing:?}");
        eprintln!("skipped: not on the PATH: {missing:?}");
        return;
    }
    // One stack for all, because it takes a while to deploy; each has a report of its own.
    let stack = Stack::deploy().await;
    of_concurrent_invocations_one_writes_and_the_next_has_a_larger_fence(&stack).await;
    a_killed_invocation_blocks_its_report_until_its_lease_ends(&stack).await;
    the_schedule_writes_its_report(&stack).await;
}

async fn of_concurrent_invocations_one_writes_and_the_next_has_a_larger_fence(stack: &Stack) {
    let outcomes = join_all((0..5).map(|_| stack.invoke("concurrent", GATHERING))).await;
    let (written, skipped): (Vec<_>, Vec<_>) =
        outcomes.into_iter().map(Result::unwrap).partition(|outcome| matches!(outcome, Outcome::Written { .. }));
    let [Outcome::Written { fence: first, times: 1, .. }] = written[..] else { panic!("written: {written:?}") };
    assert_eq!(number(&stack.row("report#concurrent").await.unwrap(), "times"), 1);
    assert_eq!(skipped.len(), 4);
    let lock = stack.row("lock#concurrent").await.unwrap();
    for outcome in skipped {
        let Outcome::Skipped { reason } = outcome else { unreachable!() };
        assert!(reason.contains(&format!("held by {} until ", lock["holder"].as_s().unwrap())), "{reason}");
        assert!(held_until(&reason) > number(&lock, "acquired_at"), "{reason}");
    }

    let next = stack.invoke("concurrent", Duration::ZERO).await;
    let Ok(Outcome::Written { fence, times: 2, .. }) = next else { panic!("next: {next:?}") };
    assert!(fence > first, "{fence} is not larger than {first}");
}

async fn a_killed_invocation_blocks_its_report_until_its_lease_ends(stack: &Stack) {
    let (killed, until) = loop_until(Duration::from_mins(1), async || {
        let failure = stack.invoke("killed", Duration::from_mins(1)).await.unwrap_err();
        let row = stack.row("lock#killed").await.unwrap();
        // The kill and the middleware's own cancellation, which releases, are due at the same time. This is about the
        // kill: if it came second, try again.
        match stack.invoke("killed", Duration::ZERO).await.unwrap() {
            Outcome::Skipped { reason } => {
                assert!(failure.contains(&format!("timed out after {FUNCTION_TIMEOUT}")), "{failure}");
                Some((row, held_until(&reason)))
            }
            Outcome::Written { .. } => None,
        }
    })
    .await;
    assert_eq!(until, number(&killed, "in_progress_expiration"));
    assert!(until <= number(&killed, "acquired_at") + FUNCTION_TIMEOUT * 1000 + CLOCK_SKEW);

    let fence = loop_until(Duration::from_secs(5), async || match stack.invoke("killed", Duration::ZERO).await {
        Ok(Outcome::Written { fence, .. }) => Some(fence),
        Ok(Outcome::Skipped { .. }) => None,
        Err(error) => panic!("{error}"),
    })
    .await;
    assert!(fence > number(&killed, "fence"));
    assert!(number(&stack.row("lock#killed").await.unwrap(), "acquired_at") >= until);
}

async fn the_schedule_writes_its_report(stack: &Stack) {
    // The schedule is for once a minute, and the local one is looked at every ten seconds.
    let report = loop_until(Duration::from_secs(90), async || stack.row("report#sales").await).await;
    assert!(number(&report, "times") >= 1);
    let lock = stack.row("lock#sales").await.unwrap();
    assert_eq!(number(&lock, "fence"), number(&report, "fence"));
}

/// A local AWS with the template deployed. It is stopped when this is dropped.
struct Stack {
    /// Kept until the end.
    _local: LocalAws,
    table: String,
    dynamodb: aws_sdk_dynamodb::Client,
    lambda: aws_sdk_lambda::Client,
}

impl Stack {
    async fn deploy() -> Self {
        let local = LocalAws::start().await;
        let architecture = if env::consts::ARCH == "aarch64" { "arm64" } else { env::consts::ARCH };
        let architecture = format!("Architecture={architecture}");
        let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../template.yaml");
        local
            .run(
                local
                    .command("sam")
                    // A release build takes minutes longer.
                    .env("SAM_BUILD_MODE", "debug")
                    .args(["build", "--beta-features", "--build-dir", "build", "--template"])
                    .arg(template)
                    .args(["--parameter-overrides", &architecture]),
            )
            .await;
        local
            .run(
                local
                    .command("sam")
                    .args(["deploy", "--template-file", "build/template.yaml", "--stack-name", STACK])
                    .args(["--resolve-s3", "--capabilities", "CAPABILITY_IAM", "--parameter-overrides", &architecture])
                    .arg(format!("FunctionTimeout={FUNCTION_TIMEOUT}"))
                    .args(["Schedule='rate(1 minute)'", "DeletionProtection=false"]),
            )
            .await;

        let config = aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(&local.endpoint)
            .region(Region::new(REGION))
            .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
            .load()
            .await;
        let dynamodb = aws_sdk_dynamodb::Client::new(&config);
        let tables = dynamodb.list_tables().send().await.unwrap();
        let [table] = tables.table_names() else { panic!("tables: {tables:?}") };
        Self { table: table.clone(), dynamodb, lambda: aws_sdk_lambda::Client::new(&config), _local: local }
    }

    /// Invokes the function and waits for its answer, or for its error as Lambda reports it.
    async fn invoke(&self, report: &str, gathering: Duration) -> Result<Outcome, String> {
        let gathering_ms = u64::try_from(gathering.as_millis()).unwrap();
        let request = ReportRequest { report: report.to_owned(), gathering_ms };
        let request = Blob::new(serde_json::to_vec(&request).unwrap());
        let answer = self.lambda.invoke().function_name(FUNCTION).payload(request).send().await.unwrap();
        let payload: Value = serde_json::from_slice(answer.payload().unwrap().as_ref()).unwrap();
        match answer.function_error() {
            None => Ok(serde_json::from_value(payload).unwrap()),
            Some(_) => Err(payload.to_string()),
        }
    }

    /// The row under this key, which is to begin with the function's prefix.
    async fn row(&self, key: &str) -> Option<HashMap<String, AttributeValue>> {
        let read = self.dynamodb.get_item().table_name(&self.table).consistent_read(true);
        read.key("id", AttributeValue::S(format!("{FUNCTION}#{key}"))).send().await.unwrap().item
    }
}

struct LocalAws {
    endpoint: String,
    directory: TempDir,
    server: Child,
}

impl LocalAws {
    async fn start() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let endpoint = format!("http://127.0.0.1:{port}");
        let directory = TempDir::new().unwrap();
        let log = File::create(directory.path().join("ministack.log")).unwrap();
        let server = aws_command("ministack", &endpoint, directory.path())
            .env("BIND_HOST", "127.0.0.1")
            .env("GATEWAY_PORT", port.to_string())
            // It is held to the policies of the function's role, but for the condition on keys.
            .env("AUTH", "true")
            // A second listener, on a port of its own.
            .env("IOT_MTLS_ENABLED", "0")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let local = Self { endpoint, directory, server };
        loop_until(Duration::from_secs(30), async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()).await;
        local
    }

    fn command(&self, program: &str) -> Command {
        aws_command(program, &self.endpoint, self.directory.path())
    }

    async fn run(&self, command: &mut Command) {
        let output = timeout(Duration::from_mins(30), command.output()).await.unwrap().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
    }
}

impl Drop for LocalAws {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.directory.path().join("ministack.log")).unwrap_or_default());
        }
        // The functions' processes end by themselves when they cannot reach it.
        drop(self.server.start_kill());
    }
}

/// A command that knows of this AWS and no other, and leaves its files in `directory`.
fn aws_command(program: &str, endpoint: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"AWS_")) {
        command.env_remove(name);
    }
    command
        .current_dir(directory)
        .env("TMPDIR", directory)
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_DEFAULT_REGION", REGION)
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("SAM_CLI_TELEMETRY", "0")
        .stdin(Stdio::null());
    command
}

fn is_on_path(tool: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

/// Tries until there is something, for `limit` at the most.
async fn loop_until<T>(limit: Duration, attempt: impl AsyncFn() -> Option<T>) -> T {
    let found = timeout(limit, async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            sleep(Duration::from_millis(100)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("nothing after {limit:?}"))
}

fn number(row: &HashMap<String, AttributeValue>, attribute: &str) -> u64 {
    row[attribute].as_n().unwrap().parse().unwrap()
}

/// The time at the end of a reason for skipping, in milliseconds since the epoch.
fn held_until(reason: &str) -> u64 {
    let (_, until) = reason.rsplit_once(" until ").unwrap();
    let until = DateTime::from_str(until, DateTimeFormat::DateTime).unwrap();
    until.to_millis().unwrap().try_into().unwrap()
}
