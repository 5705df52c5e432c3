//! `list`, `get` and `watch`.

use std::process::Stdio;

use aws_sdk_dynamodb::types::AttributeValue;
use rustix::process::Signal;
use serde_json::Value;

use crate::server::server;
use crate::{PROGRAM, Place, Process, at_once, bare, credentials};

/// A name that moves the cursor, begins a line, reverses the direction of text, and has invisible characters.
const DECEPTIVE: &str = concat!(
    "me\u{1b}[2J\n\u{9b}\u{7f}\u{202e}\u{2066}\u{ad}\u{34f}\u{61c}\u{115f}\u{17b4}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}",
    "\u{200f}\u{2028}\u{2029}\u{2060}\u{2064}\u{206f}\u{3164}\u{feff}\u{ffa0}\u{fff9}\u{1d173}\u{1bca0}\u{fe0f}\u{e0041}end"
);

/// The text with an escape for each of these characters.
fn made_visible(text: &str) -> String {
    let visible = |c: char| !DECEPTIVE.contains(c) || c.is_ascii_graphic();
    text.chars().map(|c| if visible(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

#[test]
fn list_shows_neither_data_nor_control_characters() {
    let place = Place::new();
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let _holder = place.holding("held", &["--holder", DECEPTIVE]);
    place.put(&[("id", text("malformed")), ("status", text("INPROGRESS")), ("in_progress_expiration", text("secret"))]);
    let table = place.run(["list"]).expect_code(0);
    assert!(table.stderr.contains("the row under key `malformed`") && !table.stderr.contains("secret"), "{table:?}");
    assert!(table.stdout.contains(&made_visible(DECEPTIVE)), "{table:?}");

    let lines = place.run(["list", "--json"]).expect_code(0).stdout;
    let held: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(held["holder"], DECEPTIVE);
    assert!(lines.contains(r"me\u001b[2J\n\u009b\u007f\u202e\u2066"), "{lines}");
    // JSON has two escapes for a character above 16 bits.
    assert!(lines.contains(r"\ufe0f\udb40\udc41"), "{lines}");
    assert!(lines.lines().all(|line| made_visible(line) == line), "{lines}");
}

#[test]
fn list_shows_as_many_keys_as_its_limit() {
    let place = Place::new();
    for key in ["one", "other"] {
        place.run(["run", "--key", key, "--", "true"]).expect_code(0);
    }
    let limited = place.run(["list", "--limit", "1", "--json"]).expect_code(0);
    assert_eq!(limited.expect_sentence(&["more than 1", "--limit"]).stdout.lines().count(), 1);
    assert_eq!(place.run(["list", "--limit", "2", "--json"]).expect_code(0).stderr, "");
}

#[test]
fn the_log_does_not_pass_control_characters_to_the_terminal() {
    let place = Place::new();
    let _holder = place.holding("job", &["--holder", DECEPTIVE]);
    let mut command = place.command(["run", "--key", "job", "--", "true"]);
    command.env("RUST_LOG", "lambda_lock=trace");
    let log = Process::start(command).outcome().expect_code(75).stderr;
    let mut of_the_lock = log.lines().filter(|line| line.contains(" lambda_lock::"));
    assert!(of_the_lock.any(|line| line.contains(&made_visible(DECEPTIVE))), "{log}");
    assert_eq!(log, log.lines().map(|line| made_visible(line) + "\n").collect::<String>());
}

#[test]
fn list_requests_a_throttled_page_again() {
    const THROTTLED: (u16, &str) = (
        400,
        r#"{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"too many"}"#,
    );
    const PAGE: (u16, &str) = (
        200,
        r#"{"Items":[{"id":{"S":"job"},"status":{"S":"INPROGRESS"},"in_progress_expiration":{"N":"1"}}],"Count":1,"ScannedCount":1}"#,
    );
    at_once([(&[THROTTLED, THROTTLED, THROTTLED, THROTTLED, PAGE][..], 0), (&[THROTTLED], 69)], |(answers, code)| {
        let mut command = bare(PROGRAM);
        command.args(["list", "--table", "locks", "--endpoint-url", &server(answers)]).envs(credentials());
        let outcome = Process::start(command).outcome().expect_code(code);
        assert_eq!(outcome.stdout.lines().any(|line| line.starts_with("job ")), code == 0, "{outcome:?}");
    });
}

#[test]
fn list_omits_keys_of_another_prefix() {
    let place = Place::new();
    for prefix in ["one#", "other#"] {
        place.run(["run", "--key-prefix", prefix, "--key", prefix.trim_end_matches('#'), "--", "true"]).expect_code(0);
    }
    let mut command = place.command(["list", "--json"]);
    command.env("LOCK_KEY_PREFIX", "one#");
    let lines = Process::start(command).outcome().expect_code(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(lines.trim()).unwrap()["key"], "one#one");
}

#[test]
fn list_selects_by_start_kind_and_age_and_sorts_by_age() {
    let place = Place::new();
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let end = AttributeValue::N("4102444800".to_owned());
    place.run(["run", "--key", "shop#z-older", "--", "true"]).expect_code(0);
    place.put(&[("id", text("shop#order")), ("status", text("COMPLETED")), ("expiration", end)]);
    place.run(["run", "--key", "shop#younger", "--", "true"]).expect_code(0);
    place.run(["acquire", "--key", "bank", "--at-most", "2", "--lease", "1h"]).expect_code(0);
    let listed = |options: &[&str]| -> Vec<String> {
        let lines = place.run([&["list", "--json"], options].concat()).expect_code(0).stdout;
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(listed(&["--starting-with", "shop#"]), ["shop#order", "shop#younger", "shop#z-older"]);
    assert_eq!(listed(&["--kind", "record"]), ["shop#order"]);
    assert_eq!(listed(&["--kind", "semaphore"]), ["bank"]);
    assert_eq!(listed(&["--kind", "lock"]), ["shop#younger", "shop#z-older"]);
    assert_eq!(listed(&["--kind", "lock", "--oldest-first"]), ["shop#z-older", "shop#younger"]);
    // The record has no time of an acquisition.
    assert_eq!(listed(&["--older-than", "0s"]), ["bank", "shop#younger", "shop#z-older"]);
    assert_eq!(listed(&["--older-than", "1day"]), [""; 0]);
}

#[test]
fn tables_shorten_a_long_key_and_json_does_not() {
    let place = Place::new();
    let key = "k".repeat(1000);
    for name in [key.as_str(), "job"] {
        place.run(["run", "--key", name, "--", "true"]).expect_code(0);
    }
    let table = place.run(["list"]).expect_code(0).stdout;
    assert!(table.lines().all(|line| line.len() < 250), "{table}");
    assert!(table.contains("k… (1000 bytes)") || table.contains("kkk (1000 bytes)"), "{table}");
    assert_eq!(place.json(&key)["key"], key.as_str());
}

#[test]
fn a_key_from_a_log_is_found_with_the_prefix_and_without() {
    let place = Place::new();
    let with_prefix = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("LOCK_KEY_PREFIX", "shop#");
        Process::start(command)
    };
    let holder = with_prefix(&["run", "--key", "job", "--", "sh", "-c", "echo held; sleep 100"]);
    assert_eq!(holder.line(), "held");
    let refusal = with_prefix(&["run", "--key", "job", "--", "true"]).outcome().expect_code(75);
    assert!(refusal.stderr.contains("key `shop#job` in table"), "{refusal:?}");

    assert_eq!(place.json("shop#job")["state"], "held");
    for key in ["shop#job", "job"] {
        let shown = with_prefix(&["get", key, "--json"]).outcome().expect_code(0).stdout;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((&shown["key"], &shown["state"]), (&"shop#job".into(), &"held".into()));
    }
    place.run(["get", "job"]).expect_code(66).expect_sentence(&["there is no key `job`", "Did you mean `shop#job`?"]);
    place
        .run(["release", "job", "--force", "--yes"])
        .expect_code(66)
        .expect_sentence(&["there is no key", "`shop#job`"]);
    let released = with_prefix(&["release", "shop#job", "--force", "--yes"]).outcome().expect_code(0);
    assert!(released.stdout.starts_with("released: key `shop#job`,"), "{released:?}");
}

#[test]
fn get_shows_several_keys_and_names_keys_like_those_without_a_row() {
    let place = Place::new();
    for key in ["nightly-report", "deploy", "unlike"] {
        place.run(["run", "--key", key, "--", "true"]).expect_code(0);
    }
    let some = place.run(["get", "deploy", "nightly-reports", "unlike"]).expect_code(66);
    let keys: Vec<_> = some.stdout.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(keys, ["deploy", "unlike"]);
    let some = some.expect_sentence(&["`nightly-reports`", "Did you mean `nightly-report`?"]);
    assert!(!some.stderr.contains("deploy"), "{some:?}");
    let none = place.run(["get", "zzz", "--json"]).expect_code(66).expect_sentence(&["lambda-lock list"]);
    assert_eq!(none.stdout, "");
}

#[test]
fn the_identity_of_a_holder_is_shown() {
    let place = Place::new();
    let arn = "arn:aws:states:eu-west-1:123456789012:execution:deploy:7f";
    place.run(["acquire", "--key", "svc2", "--identity", arn, "--holder", "deployer"]).expect_code(0);
    assert_eq!(place.json("svc2")["identity"], arn);
    for table in [place.run(["get", "svc2"]).stdout, place.run(["list"]).stdout] {
        assert!(table.contains(&format!("deployer for {arn}")), "{table}");
    }
    let refusal = place.run(["run", "--key", "svc2", "--", "true"]).expect_code(75);
    refusal.expect_sentence(&[&format!("held by deployer for `{arn}` until")]);
}

#[test]
fn get_shows_how_long_recent_holds_took() {
    let place = Place::new();
    place.run(["run", "--key", "job", "--", "sleep", "0.3"]).expect_code(0);
    let row = place.json("job");
    assert!(row["hold_seconds"].as_f64().unwrap() >= 0.3, "{row}");
}

#[test]
fn watch_ends_when_it_is_interrupted() {
    let place = Place::new();
    let process = Process::start(place.command(["watch", "job"]));
    process.line();
    process.signal(Signal::INT);
    assert_eq!(process.outcome().expect_code(0).stderr, "");
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let place = Place::new();
    let mut command = place.command(["list"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}
