//! Errors of the user and of the environment: the exit code and the remedy.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use crate::server::{DENIED, at_a_server, server};
use crate::{PROGRAM, Place, Process, bare, credentials};

#[test]
fn an_invalid_variable_exits_with_78_and_names_value_and_remedy() {
    let place = Place::new();
    for (name, value, way_out) in [
        ("LOCK_ENABLED", "yes", "`true`"),
        ("LOCK_LEASE", "soon", "30s"),
        ("LOCK_LEASE", "25h", "1d"),
        ("LOCK_CLOCK_SKEW", "6m", "5m"),
        ("LOCK_TABLE_NAME", "a b", "3 to 255"),
    ] {
        let mut command = place.command(["run", "--key", "job", "--", "true"]);
        command.env(name, value);
        let outcome = Process::start(command).outcome().expect_code(78).expect_sentence(&[value, way_out]);
        assert!(name == "LOCK_TABLE_NAME" || outcome.stderr.contains(name), "{outcome:?}");
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
        (&["run", "--key", "job", "--lease", "25h", "--", "true"][..], ["25h", "1d"]),
        (&["run", "--key", "job", "--lease", "0s", "--", "true"], ["0s", "1ms"]),
        (&["run", "--key", "job", "--wait", "soon", "--", "true"], ["soon", "30s"]),
        (&["run", "--key", "", "--", "true"], ["--key", "--help"]),
        (&["run", "--key", "job"], ["COMMAND", "--help"]),
        (&["create-table", "--provisioned", "0,5"], ["0,5", "from 1"]),
        (&["create-table", "--tag", "billing"], ["billing", "name=value"]),
        (&["list", "--limit", "0"], ["0", "1.."]),
        (&["release", "job"], ["--fence", "--force"]),
        (&["release", "--fence", "1"], ["<KEY>", "--help"]),
        (&["release", "--force", "--yes"], ["<KEY>", "--help"]),
        (&["acquire", "--lease", "30m"], ["--key", "--help"]),
        (&["acquire", "--key", "job", "--lease", "367days"], ["367days", "1ms and 366d"]),
        (&["acquire", "--key", "job", "--identity", ""], ["--identity", "--help"]),
        (&["renew", "job", "--identity", "run 7", "--lease", "0s"], ["0s", "1ms and 366d"]),
        (&["renew", "job", "--lease", "30m"], ["--identity", "--help"]),
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
fn denied_access_exits_with_78_and_names_the_action() {
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url", &server(&[DENIED]), "--", "true"]);
    let outcome = Process::start({
        command.envs(credentials());
        command
    });
    outcome
        .outcome()
        .expect_code(78)
        .expect_sentence(&["not authorized to perform: dynamodb:UpdateItem", "table/locks"]);
}

#[test]
fn an_unreachable_network_exits_with_69_in_bounded_time() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--", "true"]).envs(credentials());
    command.env("AWS_ENDPOINT_URL", format!("http://{closed}"));
    let started = Instant::now();
    Process::start(command).outcome().expect_code(69).expect_sentence(&[
        "DynamoDB did not answer",
        "`locks`",
        "refused",
    ]);
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
    const REFUSALS: [&[(u16, &str)]; 3] = [
        &[(
            400,
            r#"{"__type":"com.amazon.coral.service#UnrecognizedClientException","message":"The security token is invalid."}"#,
        )],
        &[(
            400,
            r#"{"__type":"com.amazon.coral.service#ExpiredTokenException","message":"The security token is expired."}"#,
        )],
        &[(
            400,
            r#"{"__type":"com.amazon.coral.service#InvalidSignatureException","message":"The signature is no match."}"#,
        )],
    ];
    for refusal in REFUSALS {
        let outcome = Process::start(at_a_server(&server(refusal), &["--", "true"])).outcome().expect_code(78);
        let outcome = outcome.expect_sentence(&["credentials for key `job`", "renew them", "clock", "The s"]);
        assert!(!outcome.stderr.contains("dynamodb:UpdateItem"), "{outcome:?}");
    }
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
fn a_host_without_an_address_is_named() {
    // The system looks nobody up by such a name, because a label has at most 63 bytes.
    let host = format!("{}.example", "h".repeat(64));
    let mut command = at_a_server(&format!("http://{host}"), &["--", "true"]);
    command.env("AWS_MAX_ATTEMPTS", "1");
    Process::start(command).outcome().expect_code(69).expect_sentence(&["check the region, the endpoint", &host]);
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
