//! `acquire`, `renew` and `release` with a ticket, each in a process of its own.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::{Outcome, PROGRAM, Place, Process, bare, credentials};

/// Runs the program with this file as its standard input.
fn with_ticket(place: &Place, arguments: &[&str], file: &str) -> Outcome {
    let mut command = place.command(arguments);
    command.stdin(File::open(place.file(file)).unwrap());
    Process::with_input(command).outcome()
}

/// Acquires `job`, and writes its ticket to this file.
fn acquire(place: &Place, options: &[&str], file: &str) -> Value {
    let outcome = place.run([&["acquire", "--key", "job"], options].concat()).expect_code(0);
    assert_eq!((outcome.stdout.lines().count(), outcome.stderr.as_str()), (1, ""));
    fs::write(place.file(file), &outcome.stdout).unwrap();
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn a_lock_is_held_from_the_first_step_of_a_pipeline_to_its_last() {
    let place = Place::new();
    let ticket = acquire(&place, &["--lease", "30m"], "ticket");
    assert_eq!((&ticket["version"], &ticket["key"]), (&1.into(), &"job".into()));
    let held = place.json("job");
    assert_eq!((&held["state"], &held["fence"]), (&"held".into(), &ticket["fence"]));
    assert!(held["holder"].as_str().unwrap().starts_with("somebody@"), "{held}");
    let refused = place.run(["acquire", "--key", "job"]).expect_code(75).expect_stdout("");
    refused.expect_sentence(&["`job`", "held by somebody@"]);
    place.run(["run", "--key", "job", "--", "true"]).expect_code(75);

    for _ in 0..2 {
        let renewed = with_ticket(&place, &["renew", "--lease", "100days"], "ticket").expect_code(0);
        assert!(renewed.stdout.starts_with("renewed: key `job` in table `"), "{renewed:?}");
    }
    let renewed = place.json("job");
    assert!(renewed["remaining_seconds"].as_f64().unwrap() > 8_600_000.0, "{renewed}");
    assert_eq!(renewed["fence"], ticket["fence"]);

    for _ in 0..2 {
        let released = with_ticket(&place, &["release"], "ticket").expect_code(0);
        assert!(released.stdout.starts_with("released: key `job` in table `"), "{released:?}");
        assert_eq!(place.json("job")["state"], "free");
    }
    with_ticket(&place, &["renew"], "ticket").expect_code(76).expect_sentence(&["`job`", "was released"]);
}

#[test]
fn a_permit_is_held_from_the_first_step_of_a_pipeline_to_its_last() {
    let place = Place::new();
    for file in ["one", "two"] {
        acquire(&place, &["--at-most", "2"], file);
    }
    place.run(["acquire", "--key", "job", "--at-most", "2"]).expect_code(75).expect_stdout("");
    with_ticket(&place, &["renew", "--lease", "1h"], "two").expect_code(0);
    with_ticket(&place, &["release"], "one").expect_code(0);
    acquire(&place, &["--at-most", "2"], "three");
}

#[test]
fn the_ticket_names_its_table_and_its_prefix() {
    let place = Place::new();
    acquire(&place, &["--key-prefix", "app#"], "ticket");
    let without_table = |arguments: &[&str]| {
        let mut command = bare(PROGRAM);
        match &place.endpoint {
            Some(endpoint) => command.env("AWS_ENDPOINT_URL", endpoint).envs(credentials()),
            None => command.args(["--embedded", &place.file("locks.sqlite")]),
        };
        command.args(arguments).env("LOCK_CLOCK_SKEW", "100ms").stdin(File::open(place.file("ticket")).unwrap());
        Process::with_input(command).outcome()
    };
    let other = without_table(&["renew", "--table", "other"]).expect_code(78);
    other.expect_sentence(&["`app#job`", "`other`", &place.table, "use that table"]);
    let other = without_table(&["release", "--key-prefix", "app2#"]).expect_code(78);
    other.expect_sentence(&["`app#`", "`app2#`", "key prefix"]);
    without_table(&["renew"]).expect_code(0);
    without_table(&["release"]).expect_code(0);
}

#[test]
fn a_ticket_whose_lease_has_ended_exits_with_76() {
    let place = Place::new();
    acquire(&place, &["--lease", "3s"], "ticket");
    thread::sleep(Duration::from_millis(3200));
    with_ticket(&place, &["renew"], "ticket").expect_code(76).expect_sentence(&["lease has ended"]);
    place.run(["run", "--key", "job", "--holder", "next", "--min-hold", "1h", "--", "true"]).expect_code(0);
    for command in ["renew", "release"] {
        with_ticket(&place, &[command], "ticket").expect_code(76).expect_sentence(&["`job`", "lost to next"]);
    }
}

#[test]
fn a_forged_or_invalid_ticket_exits_with_78() {
    let place = Place::new();
    let mut ticket = acquire(&place, &[], "ticket");
    for (text, part) in [
        (String::new(), "empty"),
        ("nonsense".to_owned(), "expected"),
        (r#"{"version":7}"#.to_owned(), "version 7"),
        (r#"{"version":1}"#.to_owned(), "no field `table`"),
    ] {
        fs::write(place.file("invalid"), text).unwrap();
        for command in ["renew", "release"] {
            with_ticket(&place, &[command], "invalid").expect_code(78).expect_sentence(&["standard input", part]);
        }
    }
    ticket["owner"] = "somebody else".into();
    fs::write(place.file("forged"), ticket.to_string()).unwrap();
    for command in ["renew", "release"] {
        with_ticket(&place, &[command], "forged").expect_code(78).expect_sentence(&["`job`", "forged"]);
    }
    assert_eq!(place.json("job")["state"], "held");
}

#[test]
fn an_identity_takes_its_own_lock_over() {
    let place = Place::new();
    let first = acquire(&place, &["--identity", "run 7"], "first");
    place.run(["acquire", "--key", "job", "--identity", "run 8"]).expect_code(75);
    let second = acquire(&place, &["--identity", "run 7"], "second");
    assert!(second["fence"].as_u64() > first["fence"].as_u64(), "{second}");
    with_ticket(&place, &["release"], "first").expect_code(76).expect_sentence(&["was lost to somebody@"]);
    with_ticket(&place, &["release"], "second").expect_code(0);
}

#[test]
fn an_acquire_waits_and_can_be_interrupted() {
    let place = Place::new();
    acquire(&place, &["--lease", "2s"], "ticket");
    place.run(["acquire", "--key", "job", "--wait", "20s"]).expect_code(0);
    let waiting = Process::start(place.command(["acquire", "--key", "job", "--wait", "20s"]));
    // It listens to signals before it sends its first request.
    while place.json("job")["waiting"].as_u64() == Some(0) {
        thread::sleep(Duration::from_millis(20));
    }
    waiting.signal(rustix::process::Signal::TERM);
    waiting.outcome().expect_code(128 + 15).expect_stdout("");
}

#[test]
#[cfg(target_os = "linux")]
fn a_ticket_that_cannot_be_written_leaves_the_key_free() {
    let place = Place::new();
    let mut command = place.command(["acquire", "--key", "job"]);
    command.stdin(Stdio::null()).stdout(File::options().write(true).open("/dev/full").unwrap());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains("the ticket was not written") && said.contains("key `job` was released"), "{said}");
    assert_eq!(place.json("job")["state"], "free");

    // A reader that has gone.
    let mut shell = Command::new("sh");
    let program = place.command(["acquire", "--key", "job"]);
    let words = std::iter::once(program.get_program()).chain(program.get_args());
    shell.args(["-c", "trap '' PIPE; { sleep 0.3; \"$@\"; echo $? >&2; } | true", "sh"]).args(words);
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = String::from_utf8(shell.output().unwrap().stderr).unwrap();
    assert!(said.contains("standard output is closed") && said.ends_with("74\n"), "{said}");
    assert_eq!(place.json("job")["state"], "free");
}

#[test]
fn without_locking_the_ticket_holds_no_lock() {
    let place = Place::new();
    let mut command = place.command(["acquire", "--key", "job"]);
    command.env("LOCK_ENABLED", "false");
    let outcome = Process::start(command).outcome().expect_code(0).expect_sentence(&["LOCK_ENABLED", "`false`"]);
    assert_eq!(serde_json::from_str::<Value>(&outcome.stdout).unwrap()["enforced"], false);
    fs::write(place.file("ticket"), outcome.stdout).unwrap();
    place.run(["get", "job"]).expect_code(66);
    with_ticket(&place, &["renew"], "ticket").expect_code(0);
    with_ticket(&place, &["release"], "ticket").expect_code(0);
}

#[test]
fn a_pipeline_waits_without_a_process_and_keeps_its_turn() {
    let place = Place::new();
    acquire(&place, &["--lease", "30m"], "ticket");
    let file = place.file("turn");
    let waits = ["acquire", "--key", "job", "--turn", &file];
    for _ in 0..2 {
        let refused = place.run(waits).expect_code(75).expect_stdout("");
        refused.expect_sentence(&["`job`", "was not acquired yet", "with this turn in"]);
    }
    let turn: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!((&turn["attempts"], &turn["keys"][0]["key"]), (&2.into(), &"job".into()));
    assert_eq!(place.json("job")["waiting"], 1, "it took one place");
    with_ticket(&place, &["release"], "ticket").expect_code(0);
    let ticket: Value = serde_json::from_str(&place.run(waits).expect_code(0).stdout).unwrap();
    assert_eq!(ticket["key"], "job");
    assert!(!fs::exists(&file).unwrap(), "the next wait would begin with an old turn");
    fs::write(&file, "{}").unwrap();
    place.run(waits).expect_code(78).expect_sentence(&["the turn in", "`version`", "delete the file"]);
}

#[test]
fn a_wait_that_ends_without_the_lock_leaves_no_turn() {
    let place = Place::new();
    acquire(&place, &["--lease", "30m"], "ticket");
    let file = place.file("turn");
    place.run(["acquire", "--key", "job", "--turn", &file]).expect_code(75);
    let turn = fs::read(&file).unwrap();
    place
        .run(["acquire", "--key", "other job", "--turn", &file])
        .expect_code(78)
        .expect_sentence(&["the turn is for `job`", "`other job`"]);
    assert_eq!(fs::read(&file).unwrap(), turn, "it belongs to another wait");
    let over = place.run(["acquire", "--key", "job", "--wait", "1ms", "--turn", &file]).expect_code(75);
    over.expect_sentence(&["`job`", "is held"]);
    assert!(!fs::exists(&file).unwrap(), "the next wait would be over before it begins");
}

#[test]
fn a_step_that_always_runs_frees_what_is_held() {
    let place = Place::new();
    for at_most in [&[][..], &["--at-most", "2"]] {
        let key = format!("job {}", at_most.len());
        let acquire = [&["acquire", "--key", &key, "--identity", "run 7"], at_most].concat();
        let ticket = place.run(acquire.clone()).expect_code(0);
        fs::write(place.file("ticket"), &ticket.stdout).unwrap();
        let release = |owner| place.run(["release", &key, "--identity", owner]).expect_code(0);
        assert!(release("run 8").stdout.contains("is not held for `run 8`"));
        assert!(release("run 7").stdout.starts_with(&format!("released: key `{key}`")));
        assert!(release("run 7").stdout.contains("is not held for `run 7`"));
        place
            .run(["acquire", "--key", &key, "--identity", "run 8"].into_iter().chain(at_most.iter().copied()))
            .expect_code(0);
        with_ticket(&place, &["release", "--if-held"], "ticket").expect_code(0);
    }
    let ticket = acquire(&place, &[], "ticket");
    place.run(["release", "job", "--fence", &ticket["fence"].to_string()]).expect_code(0);
    acquire(&place, &[], "other");
    with_ticket(&place, &["release"], "ticket").expect_code(76);
    let lost = with_ticket(&place, &["release", "--if-held"], "ticket").expect_code(0);
    assert!(lost.stdout.starts_with("lost before: key `job`"), "{lost:?}");
}
