//! Errors of the user and of the environment: the exit code and the remedy.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use crate::server::{at_a_server, server};
use crate::{PROGRAM, Place, Process, bare, credentials};

#[test]
fn an_invalid_variable_exits_with_78_and_names_value_and_remedy() {
    let place = Place::new();
    for (name, value, way_out) in [("LOCK_LEASE", "25h", "1d"), ("LOCK_TABLE_NAME", "a b", "3 to 255")] {
        let mut command = place.command(["run", "--key", "job", "--", "true"]);
        command.env(name, value);
        Process::start(command).outcome().expect_code(78).expect_sentence(&[value, way_out]);
    }
    for name in [
        "LOCK_ENABLED",
        "LOCK_LEASE",
        "LOCK_TABLE_NAME",
        "LOCK_KEY_PREFIX",
        "LOCK_CLOCK_SKEW",
        "LOCK_MULTI_REGION_STRONG_CONSISTENCY",
        "RUST_LOG",
    ] {
        let mut command = place.command(["run", "--key", "job", "--", "true"]);
        command.env(name, OsStr::from_bytes(b"\xFFapp"));
        Process::start(command).outcome().expect_code(78).expect_sentence(&[name, "must be UTF-8"]);
    }
    // It may be meant for the command.
    let mut command = place.command(["run", "--key", "job", "--", "true"]);
    command.env("RUST_LOG", "lambda_lock=loud");
    Process::start(command).outcome().expect_code(0);
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--", "true"]).env("LOCK_TABLE_NAME", "");
    Process::start(command).outcome().expect_code(78).expect_sentence(&["--table", "LOCK_TABLE_NAME"]);
}

#[test]
fn an_invalid_argument_exits_with_2_and_names_value_and_bound() {
    let place = Place::new();
    for (arguments, parts) in [
        (&["run", "--key", "job", "--lease", "0s", "--", "true"][..], ["0s", "1ms"]),
        (&["run", "--key", "job", "--wait", "soon", "--", "true"], ["soon", "30s"]),
        (&["run", "--key", "", "--", "true"], ["--key", "--help"]),
        (&["run", "--key", "job"], ["COMMAND", "--help"]),
        (&["list", "--limit", "0"], ["0", "1.."]),
        (&["release", "--fence", "1"], ["<KEY>", "--help"]),
        (&["release", "--force", "--yes"], ["<KEY>", "--help"]),
        (&["acquire", "--lease", "30m"], ["--key", "--help"]),
        (&["acquire", "--key", "job", "--identity", ""], ["--identity", "--help"]),
    ] {
        let outcome = place.run(arguments).expect_code(2);
        assert!(parts.iter().all(|part| outcome.stderr.contains(part)), "{outcome:?}");
    }
}

#[test]
fn a_missing_table_exits_with_78_and_names_the_remedy() {
    const MISSING: (u16, &str) = (
        400,
        r#"{"__type":"com.amazonaws.dynamodb.v20120810#ResourceNotFoundException","message":"Requested resource not found"}"#,
    );
    let endpoint = std::env::var("LOCK_TEST_ENDPOINT").unwrap_or_else(|_| server(&[MISSING]));
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "nowhere", "--", "true"]).envs(credentials());
    command.env("AWS_ENDPOINT_URL", endpoint);
    Process::start(command).outcome().expect_code(78).expect_sentence(&[
        "`nowhere`",
        "lambda-lock create-table",
        "being created",
    ]);
}

#[test]
fn an_unreachable_network_exits_with_69_in_bounded_time() {
    let started = Instant::now();
    Process::start(at_a_server("http://127.0.0.1:1", &["--", "true"])).outcome().expect_code(69);
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[test]
fn the_name_of_a_holder_has_a_bound() {
    let place = Place::new();
    let long = "h".repeat(1025);
    for command in
        [&["run", "--key", "job", "--holder", &long, "--", "true"][..], &["acquire", "--key", "job", "--holder", &long]]
    {
        let refused = place.run(command).expect_code(78);
        refused.expect_sentence(&["name of the holder", "1025 bytes", "more than 1024"]);
    }
    let mut command = place.command(["run", "--key", "job", "--", "true"]);
    command.env("USER", &long);
    Process::start(command).outcome().expect_code(0);
}

#[test]
fn refused_credentials_are_to_be_renewed() {
    const EXPIRED: (u16, &str) = (
        400,
        r#"{"__type":"com.amazon.coral.service#ExpiredTokenException","message":"The security token is expired."}"#,
    );
    let outcome = Process::start(at_a_server(&server(&[EXPIRED]), &["--", "true"])).outcome().expect_code(78);
    outcome.expect_sentence(&["credentials for key `job`", "renew them", "clock", "The security token is expired"]);
}

#[test]
fn an_answer_of_another_server_is_not_from_dynamodb() {
    const ANSWERS: [(&[(u16, &str)], &str); 5] = [
        (&[(404, "<html><body>Not Found</body></html>")], "404"),
        (&[(501, "<html><body>Unsupported method ('POST')</body></html>")], "501"),
        (&[(200, "<html><body>Sign in to the Wi-Fi</body></html>")], "200"),
        (&[(403, r#"{"message":"Forbidden"}"#)], "403"),
        (&[(400, r#"{"__type":"com.amazon.coral.service#UnknownOperationException"}"#)], "400"),
    ];
    for (answers, status) in ANSWERS {
        let outcome = Process::start(at_a_server(&server(answers), &["--", "true"])).outcome().expect_code(78);
        outcome.expect_sentence(&["not DynamoDB", status, "AWS_ENDPOINT_URL"]);
    }
}

#[test]
fn a_table_with_other_keys_names_those_of_the_settings() {
    let place = Place::new();
    place.run(["create-table"]).expect_code(0);
    let of_another = place.run(["run", "--key", "job", "--partition-key", "pk", "--", "true"]).expect_code(78);
    // DynamoDB Local says it in other words.
    let is_local = std::env::var("LOCK_TEST_ENDPOINT").is_ok();
    let why = if is_local { "required keys was not given a value" } else { "does not match the schema" };
    of_another.expect_sentence(&["`pk` as the key for key `job`", why, "--partition-key"]);
    let with_sort_key = place.run(["get", "job", "--sort-key", "sk=LOCK"]).expect_code(78);
    with_sort_key.expect_sentence(&["`id` and `sk`", "--sort-key"]);
}

#[test]
fn too_few_file_descriptors_exit_with_74() {
    let place = Place::new();
    let program = place.command(["run", "--key", "job", "--", "true"]);
    for most in 5..=24 {
        let mut command = bare("sh");
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["-c", &format!("ulimit -n {most}; exec \"$0\" \"$@\"")]);
        command.arg(program.get_program()).args(program.get_args());
        let outcome = Process::start(command).outcome();
        assert!(!outcome.stderr.contains("panicked"), "{most}: {outcome:?}");
        if most <= 10 {
            outcome.expect_code(74).expect_sentence(&["Too many open files"]);
        }
    }
}
