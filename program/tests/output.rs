//! The output of the program, as snapshots: help, manual page, tables, messages.
//!
//! `INSTA_UPDATE=always cargo test --workspace --test output` accepts the changes. Review the diff of
//! `snapshots/`.

use std::borrow::BorrowMut;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use aws_sdk_dynamodb::types::AttributeValue;
use insta::{Settings, assert_snapshot};
use lambda_lock::embedded::DynamoDb;
use tempfile::TempDir;

/// Filters for the parts that differ from run to run.
const VARIABLE: [(&str, &str); 7] = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[time]"),
    (r#"("(remaining|hold)_seconds":)[\d.]+"#, "$1[seconds]"),
    (r"\b1\d{15}\b", "[fence]"),
    (r"(clock: .* by ).*;", "$1[difference];"),
    // Age, time left, hold.
    (r"(?m)^((free|held) .*?)( +[\d.]+)+( +\[fence\])", "$1  [seconds]$4"),
    (r"(?m)^(expired .* crashed +)\d+", "$1[seconds]"),
    // Their widths differ, and so do those of the columns.
    (r" {2,}", "  "),
];

/// Compares with the snapshot of this name, after the filters.
#[track_caller]
fn check(name: &str, text: &str, filters: &[(&str, &str)]) {
    let mut settings = Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for (pattern, replacement) in filters {
        settings.add_filter(pattern, *replacement);
    }
    settings.bind(|| assert_snapshot!(name, text));
}

/// The program, with nothing of the caller's environment.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lambda-lock"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "/nonexistent");
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("USER", "somebody");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Standard output of the program, which ends with this code.
#[track_caller]
fn output(mut command: Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_program_and_each_command_have_help() {
    check("help", &output(program(&["--help"]), 0), &[]);
    let short = output(program(&["-h"]), 0);
    check("help-short", &short, &[]);

    let commands =
        short.lines().skip_while(|line| *line != "Commands:").skip(1).map_while(|line| line.split_whitespace().next());
    let mut count = 0;
    for command in commands.filter(|command| *command != "help") {
        check(&format!("help-{command}"), &output(program(&[command, "--help"]), 0), &[]);
        count += 1;
    }
    assert_eq!(count, 14);
}

#[test]
fn the_manual_page_has_all_commands_and_options() {
    let page = output(program(&["man"]), 0);
    check("man", &page, &[(r"lambda-lock \d+\.\d+\.\d+", "lambda-lock [version]")]);
}

/// A file with a row in each state.
struct Table {
    folder: TempDir,
}

impl Table {
    fn new() -> Self {
        let table = Self { folder: TempDir::new().unwrap() };
        output(table.program(&["run", "--key", "free", "--holder", "one", "--", "true"]), 0);
        let held = ["run", "--key", "held", "--holder", "other", "--min-hold", "1day", "--", "true"];
        output(table.program(&held), 0);
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let number = |number: u64| AttributeValue::N(number.to_string());
        // From 2001, for a second; until 2100.
        let (past, future) = (1_000_000_000, 4_102_444_800);
        let expired = [
            ("id", text("expired")),
            ("status", text("INPROGRESS")),
            ("in_progress_expiration", number((past + 1) * 1000)),
            ("expiration", number(future)),
            ("acquired_at", number(past * 1000)),
            ("fence", number(17)),
            ("holder", text("crashed")),
            // Two waiters.
            ("tail", number(3)),
            ("head", number(1)),
            ("tail_until", number(future * 1000)),
        ];
        let completed = [
            ("id", text("completed")),
            ("status", text("COMPLETED")),
            ("expiration", number(future)),
            ("data", text("\"secret\"")),
        ];
        let malformed =
            [("id", text("malformed")), ("status", text("INPROGRESS")), ("in_progress_expiration", text("secret"))];
        let client = DynamoDb::open(table.file()).unwrap().client();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for row in [&expired[..], &completed, &malformed] {
            let item = row.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            runtime.block_on(client.put_item().table_name("locks").set_item(Some(item)).send()).unwrap();
        }
        table
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("locks.sqlite")
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = program(&[]);
        command.arg("--embedded").arg(self.file()).args(arguments);
        command
    }
}

#[test]
fn keys_are_printed_as_a_table_or_as_json() {
    let table = Table::new();
    for (name, arguments) in [
        ("list", &["list"][..]),
        ("list-json", &["list", "--json"]),
        ("list-held", &["list", "--held"]),
        ("get-held", &["get", "held"]),
        ("get-held-json", &["get", "held", "--json"]),
        ("get-malformed", &["get", "malformed"]),
    ] {
        check(name, &output(table.program(arguments), 0), &VARIABLE);
    }
}

#[test]
fn watching_prints_the_time_a_table_and_an_empty_line() {
    let table = Table::new();
    for (name, arguments) in [
        ("watch", &["watch", "--interval", "200ms"][..]),
        ("watch-keys", &["watch", "held", "free", "unknown", "--interval", "200ms"]),
    ] {
        let mut process = table.program(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut text = String::new();
        // Twice.
        for _ in 0..2 {
            while let Some(Ok(line)) = lines.next() {
                text.extend([line.as_str(), "\n"]);
                if line.is_empty() {
                    break;
                }
            }
        }
        process.kill().unwrap();
        process.wait().unwrap();
        check(name, &text, &VARIABLE);
    }
}

#[test]
fn a_check_prints_a_line_for_each_finding() {
    let table = Table::new();
    check("check", &output(table.program(&["check"]), 0), &VARIABLE);
    check("check-failed", &output(table.program(&["check", "--partition-key", "other"]), 78), &VARIABLE);
}

#[test]
fn a_message_says_what_failed_why_and_what_to_do() {
    let table = Table::new();
    let mut text = String::new();
    for words in [
        "run --key held -- true",
        "run --key job -- /nonexistent",
        "run --key job -- /etc/passwd",
        "run --key job --lease 3s -- sleep 100",
        "run --key job --lease soon -- true",
        "run --key job --lease 25h -- true",
        "run --key malformed -- true",
        "acquire --key held",
        "acquire --key job --lease 367days",
        "renew held --identity run-7",
        "renew free --identity run-7",
        "renew held --lease 30m",
        "release held",
        "list --limit 2",
        "release held --fence 1",
        "release held --force",
        "release completed --force --yes",
        "release free --force --yes",
        "release expired --fence 1",
        "complete expired --fence 1 --window 1h",
        "complete held --fence 1 --window 1h",
        "complete free --fence 1 --window 1h",
        "complete completed --fence 1 --window 1h",
        "complete expired --fence 17 --window 0s",
        "complete expired --fence 17 --window 1h --result paid",
        "get hold",
        "release unknown --force --yes",
        "create-table --provisioned 0,5",
        "create-table --tag billing",
        "check --partition-key other",
    ] {
        text += &said(words, table.program(&words.split(' ').collect::<Vec<_>>()));
    }
    for (variable, value) in
        [("LOCK_LEASE", "soon"), ("LOCK_CLOCK_SKEW", "6m"), ("LOCK_ENABLED", "yes"), ("LOCK_ENABLED", "false")]
    {
        let mut command = table.program(&["run", "--key", "job", "--", "true"]);
        text += &said(&format!("{variable}={value} run --key job -- true"), command.env(variable, value));
    }
    text += &said("get job, without --embedded", program(&["get", "job"]));
    text += &said("get job --table locks, without --embedded", program(&["get", "job", "--table", "locks"]));
    let endpoint = ["get", "job", "--table", "locks", "--endpoint-url", "localhost:8000"];
    text += &said(&endpoint.join(" "), program(&endpoint).env("AWS_REGION", "us-east-1"));
    // A busy machine may be too late for the first signal.
    let filters = [VARIABLE[0], VARIABLE[2], (r"\(signal \d+\)", "(signal [number])")];
    check("messages", &text, &filters);
}

/// Returns the command, its message on standard error, and its exit code.
fn said(words: &str, mut command: impl BorrowMut<Command>) -> String {
    let output = command.borrow_mut().output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    format!("$ {words}\n{message}= {}\n\n", output.status.code().unwrap())
}
