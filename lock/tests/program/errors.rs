//! Errors of the user and of the environment: the exit code and the remedy.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::server::{DENIED, recording_server, server};
use crate::{PATIENCE, PROGRAM, Place, Process, bare, credentials};

#[test]
fn an_invalid_variable_exits_with_78_and_names_value_and_remedy() {
    let place = Place::new();
    for (name, value, way_out) in [
        ("LOCK_ENABLED", "yes", "`true`"),
        ("LOCK_LEASE", "soon", "30s"),
        ("LOCK_LEASE", "25h", "1day"),
        ("LOCK_CLOCK_SKEW", "6m", "5m"),
        ("LOCK_TABLE_NAME", "a b", "3 to 255"),
    ] {
        let mut command = place.command(["run", "--key", "job", "--", "true"]);
        command.env(name, value);
        let outcome = Process::start(command).outcome().expect_code(78).expect_sentence(&[value, way_out]);
        assert!(name == "LOCK_TABLE_NAME" || outcome.stderr.contains(name), "{outcome:?}");
    }
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--", "true"]).env("LOCK_TABLE_NAME", "");
    Process::start(command).outcome().expect_code(78).expect_sentence(&["--table", "LOCK_TABLE_NAME"]);
}

#[test]
fn an_invalid_argument_exits_with_2_and_names_value_and_bound() {
    let place = Place::new();
    for (arguments, parts) in [
        (&["run", "--key", "job", "--lease", "25h", "--", "true"][..], ["25h", "1day"]),
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
        (&["acquire", "--key", "job", "--lease", "367days"], ["367days", "1ms and 366days"]),
        (&["acquire", "--key", "job", "--owner-from", ""], ["--owner-from", "--help"]),
        (&["renew", "--lease", "0s"], ["0s", "1ms and 366days"]),
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
    Process::start(command).outcome().expect_code(78).expect_sentence(&["`nowhere`", "lambda-lock create-table"]);
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
fn missing_settings_are_named() {
    let without = |missing: &str, endpoint: &str| {
        let mut command = bare(PROGRAM);
        command.args(["get", "job", "--table", "locks"]).env("AWS_ENDPOINT_URL", endpoint);
        command.envs(credentials().into_iter().filter(|(name, _)| *name != missing));
        Process::start(command).outcome().expect_code(78)
    };
    without("AWS_REGION", "http://127.0.0.1:1").expect_sentence(&["no region", "--region", "AWS_REGION"]);
    without("AWS_ACCESS_KEY_ID", "http://127.0.0.1:1").expect_sentence(&["credentials"]);
    for endpoint in ["localhost:8000", "ftp://localhost", "nonsense"] {
        without("", endpoint).expect_sentence(&["AWS_ENDPOINT_URL", endpoint, "http://localhost:8000"]);
    }
}

#[test]
fn a_named_profile_overrides_the_credentials_of_the_environment() {
    let place = Place::new();
    let config = place.file("config");
    fs::write(&config, "[profile other]\naws_access_key_id = OTHER\naws_secret_access_key = other\n").unwrap();
    let (endpoint, requests) = recording_server(&[DENIED]);
    let get = |profile| {
        let mut command = bare(PROGRAM);
        command.args(["get", "job", "--table", "locks", "--profile", profile, "--endpoint-url", &endpoint]);
        command.envs(credentials()).env("AWS_CONFIG_FILE", &config);
        Process::start(command).outcome().expect_code(78)
    };
    get("other").expect_sentence(&["access denied"]);
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("Credential=OTHER/"));
    get("nobody").expect_sentence(&["`nobody`", "credentials", "~/.aws/config"]);
}
