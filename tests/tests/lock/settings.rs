//! Settings: their bounds, the switch that turns locking off, the client and the endpoint.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Region};
use lambda_lock::{ErrorKind, Locks, LocksBuilder};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{keep_warnings, logged};
use serde_json::{Value, json};

use crate::{LEASE, assert_contains, eagerly, ms};

#[test]
fn requests_go_to_the_endpoint_that_the_environment_names() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut contender = Command::new(env!("CARGO_BIN_EXE_contender"))
        .env_clear()
        .envs([("AWS_ENDPOINT_URL", endpoint.as_str()), ("AWS_REGION", "eu-west-1"), ("LOCK_TABLE_NAME", "my-locks")])
        .envs([("AWS_ACCESS_KEY_ID", "someone"), ("AWS_SECRET_ACCESS_KEY", "secret")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (connection, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(&connection);
    let head: Vec<String> = reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    let header = |name| head.iter().find_map(|line| line.strip_prefix(name)).unwrap();
    let mut body = vec![0; header("content-length: ").parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(header("x-amz-target: "), "DynamoDB_20120810.UpdateItem");
    assert!(header("authorization: ").contains("/eu-west-1/dynamodb/"));
    assert_eq!(body["TableName"], "my-locks");
    let number = body["ExpressionAttributeValues"][":number"]["N"].as_str().unwrap();
    // The answer is the row before the update.
    let answer = json!({ "Attributes": { "fence": { "N": "7" } } }).to_string();
    let length = answer.len();
    write!(&connection, "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\n").unwrap();
    write!(&connection, "content-length: {length}\r\n\r\n{answer}").unwrap();
    let said = BufReader::new(contender.stdout.take().unwrap()).lines().next();
    contender.kill().unwrap();
    contender.wait().unwrap();
    assert_eq!(said.unwrap().unwrap(), format!("holding {number}"));
}

/// Returns the message of the program that stops at its settings, with this variable in its environment.
fn refusal_of_from_env(name: &str, value: impl AsRef<OsStr>) -> String {
    let contender = Command::new(env!("CARGO_BIN_EXE_contender"))
        .env_clear()
        .envs([("AWS_REGION", "eu-west-1"), ("LOCK_TABLE_NAME", "my-locks"), ("AWS_EC2_METADATA_DISABLED", "true")])
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        .envs([("AWS_ACCESS_KEY_ID", "someone"), ("AWS_SECRET_ACCESS_KEY", "secret")])
        .env(name, value)
        .output()
        .unwrap();
    String::from_utf8(contender.stderr).unwrap()
}

#[test]
fn a_variable_that_is_not_utf8_is_an_error_of_from_env() {
    for name in [
        "LOCK_TABLE_NAME",
        "LOCK_LEASE",
        "LOCK_CLOCK_SKEW",
        "LOCK_KEY_PREFIX",
        "LOCK_ENABLED",
        "LOCK_MULTI_REGION_STRONG_CONSISTENCY",
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_CONFIG_FILE",
        "https_proxy",
    ] {
        let said = refusal_of_from_env(name, OsStr::from_bytes(b"\xFFapp"));
        assert!(said.contains(&format!("the environment variable {name} is not UTF-8")), "{said}");
    }
}

/// The SDK alone panics at these.
#[test]
fn a_wrong_variable_of_the_sdk_is_an_error_of_from_env() {
    for (name, value) in [("AWS_ACCESS_KEY_ID", "AKIAX\r"), ("AWS_RETRY_MODE", "legacy"), ("AWS_MAX_ATTEMPTS", "0")] {
        let said = refusal_of_from_env(name, value);
        assert!(said.contains(&format!("the environment variable {name} ")), "{said}");
        assert!(!said.contains("AKIAX") && !said.contains("InvalidHeaderValue"), "{said}");
    }
}

#[tokio::test]
async fn disabled_locks_send_nothing_and_warn_once() {
    keep_warnings();
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let held = locks.acquire("job").await.unwrap();
    assert!(!locks.acquire("job").run(async |lock| lock.is_enforced()).await.unwrap());
    let lock = locks.try_acquire("job").await.unwrap().unwrap();
    assert!(lock.is_valid() && !lock.is_enforced());
    assert_eq!(lock.fence(), 0);
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
    assert!(!lock.is_valid());
    drop(held);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(host.requests(), 0);
    assert!(world.row("job").await.is_none());
    let warnings = logged(&world.table);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("disabled"));
}

#[tokio::test]
async fn rejects_settings_outside_their_bounds() {
    let world = World::without_table();
    let host = world.host().build();
    let named = |name: &str| Locks::builder(host.client(), name);
    let locks = || named("locks");
    let day = Duration::from_hours(24);
    let refused: [(LocksBuilder, &[&str]); 19] = [
        (locks().lease(Duration::ZERO), &["lease", "0s", "1ms", "1day"]),
        (locks().lease(day + ms(1)), &["lease", "1day 1ms", "between", "1day"]),
        (locks().lease(Duration::MAX), &["lease", "1day"]),
        (locks().clock_skew(Duration::from_secs(301)), &["clock skew", "5m 1s", "5m"]),
        (locks().retention(Duration::from_secs(901)), &["retention", "15m 1s", "15m 2s"]),
        (locks().retention(Duration::MAX), &["retention", "15m 2s and 366days"]),
        (named(""), &["table name", "``", "3 to 255"]),
        (named("ab"), &["table name", "`ab`", "3 to 255"]),
        (named("my locks"), &["table name", "`my locks`", "letters"]),
        (named(&"n".repeat(256)), &["table name", "nnn", "255"]),
        (locks().partition_key(""), &["partition key", "0 bytes", "1 to 255"]),
        (locks().partition_key("p".repeat(256)), &["partition key", "256 bytes", "1 to 255"]),
        (locks().partition_key("owner"), &["partition key", "`owner`", "another"]),
        (locks().sort_key("fence", "LOCK"), &["sort key", "`fence`", "another"]),
        (locks().sort_key("id", "LOCK"), &["partition key", "sort key", "`id`"]),
        (locks().sort_key("SK", ""), &["sort key", "0 bytes", "1 to 1024"]),
        (locks().key_in_sort_key("id", "all"), &["partition key", "sort key", "`id`"]),
        (locks().key_in_sort_key("SK", ""), &["partition key", "0 bytes", "1 to 2048"]),
        (locks().sort_key("SK", "s".repeat(1025)), &["sort key", "1025 bytes", "1 to 1024"]),
    ];
    for (builder, parts) in refused {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_contains(&error, parts);
    }
    let most = locks().lease(day).clock_skew(Duration::from_mins(5)).retention(Duration::from_mins(25)).build();
    most.unwrap();
    locks().lease(ms(1)).clock_skew(Duration::ZERO).retention(Duration::from_mins(15)).build().unwrap();
    named("arn:aws:dynamodb:eu-west-1:123456789012:table/locks").build().unwrap();
}

#[tokio::test]
async fn rejects_arguments_outside_their_bounds_without_a_request() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let day = Duration::from_hours(24);
    let acquire = || locks.acquire("job");
    for (acquire, parts) in [
        (acquire().lease(Duration::MAX), &["lease", "1ms and 366days"][..]),
        (acquire().lease(day + ms(1)).deadline(host.now() + day / 2), &["lease", "1day 1ms", "1ms and 1day"]),
        (acquire().identity(""), &["identity", "0 bytes", "1 to 1024"]),
        (acquire().identity("i".repeat(1025)), &["identity", "1025 bytes", "1 to 1024"]),
        (acquire().min_hold(day + ms(1)), &["hold", "1day 1ms", "1day"]),
        (locks.semaphore("job", 2).acquire().min_hold(ms(1)), &["permit", "no minimum hold", "rate"]),
        (acquire().deadline(host.now() + 2 * day), &["deadline", "1day"]),
        (acquire().deadline(host.now() - ms(1)), &["deadline", "`job`", "passed"]),
        (acquire().deadline(host.now() - day + Duration::from_mins(1)), &["deadline", "`job`", "passed"]),
    ] {
        let error = acquire.wait(eagerly()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_contains(&error, parts);
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn debug_output_has_the_settings_without_the_client() {
    let world = World::new().await;
    let shown = format!("{:?}", world.locks(&world.host().build()).key_prefix("app#").build().unwrap());
    assert!(shown.contains(&world.table) && shown.contains("app#"), "{shown}");
    assert!(!shown.contains("credentials") && !shown.contains("Config"), "{shown}");
}

#[tokio::test]
async fn an_acquire_without_credentials_is_not_sent() {
    let world = World::new().await;
    let config = Config::builder().behavior_version(BehaviorVersion::latest());
    let without = Client::from_conf(config.region(Region::from_static("us-east-1")).build());
    let error = Locks::builder(without, &world.table).build().unwrap().acquire("job").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
    assert_contains(&error, &["`job`", "credentials"]);
}
