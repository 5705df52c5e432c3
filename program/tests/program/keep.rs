//! `acquire`, `renew`, and `release` with an identity, each in a process of its own.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::deployments::until;
use crate::{Outcome, Place, Process};

/// Acquires `job`, and returns the identity that the program printed.
fn acquire(place: &Place, options: &[&str]) -> String {
    let outcome = place.run([&["acquire", "--key", "job"], options].concat()).expect_code(0);
    assert_eq!((outcome.stdout.lines().count(), outcome.stderr.as_str()), (1, ""));
    outcome.stdout.trim_end().to_owned()
}

#[test]
fn a_random_identity_holds_the_key_until_its_release() {
    let place = Place::new();
    let identity = acquire(&place, &["--lease", "30m"]);
    let held = place.json("job");
    assert_eq!((&held["state"], &held["identity"]), (&"held".into(), &identity.as_str().into()));
    assert!(held["holder"].as_str().unwrap().starts_with("somebody@"), "{held}");
    place.run(["acquire", "--key", "job"]).expect_code(75).expect_stdout("").expect_sentence(&["held by somebody@"]);
    place.run(["run", "--key", "job", "--", "true"]).expect_code(75);

    let mut fences = vec![held["fence"].as_u64().unwrap()];
    for (lease, seconds) in [("100days", 8_640_000.0), ("1h", 3600.0)] {
        let options = ["--identity", &identity, "--lease", lease, "--holder", "migrate"];
        let renewed = place.run([&["renew", "job"], &options[..]].concat()).expect_code(0);
        let row = place.json("job");
        fences.push(row["fence"].as_u64().unwrap());
        assert!(renewed.stdout.starts_with("renewed: key `job` in table `"), "{renewed:?}");
        assert!(renewed.stdout.ends_with(&format!("Z with fence {}\n", row["fence"])), "{renewed:?}");
        assert!((seconds - row["remaining_seconds"].as_f64().unwrap()).abs() < 30.0, "{row}");
        assert_eq!((&row["identity"], &row["holder"]), (&identity.as_str().into(), &"migrate".into()));
    }
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");

    let released = place.run(["release", "job", "--identity", &identity]).expect_code(0);
    assert!(released.stdout.starts_with("released: key `job` in table `"), "{released:?}");
    assert_eq!(place.json("job")["state"], "free");
}

#[test]
fn a_run_finds_its_own_lock_or_permit() {
    for at_most in [&[][..], &["--at-most", "2"]] {
        let place = Place::new();
        let own = [&["--identity", "run 7"], at_most].concat();
        let fence = |outcome: Outcome| {
            let lock: Value = serde_json::from_str(&outcome.expect_code(0).stdout).unwrap();
            assert_eq!((&lock["key"], &lock["identity"]), (&"app#job".into(), &"run 7".into()));
            humantime::parse_rfc3339(lock["until"].as_str().unwrap()).unwrap();
            lock["fence"].as_u64().unwrap()
        };
        let words = ["--json", "--key-prefix", "app#"];
        let acquire = || fence(place.run([&["acquire", "--key", "job"], &own[..], &words].concat()));
        let (first, repeated) = (acquire(), acquire());
        // With the prefix, as the program prints the key.
        let renewed = fence(place.run([&["renew", "app#job"], &own[..], &words].concat()));
        assert!(first < repeated && repeated < renewed, "{first} {repeated} {renewed}");
        let others = [&["acquire", "--key", "app#job", "--identity", "run 8"], at_most].concat();
        let other = place.run(others).expect_code(if at_most.is_empty() { 75 } else { 0 });
        let third = [&["acquire", "--key", "app#job"], at_most].concat();
        place.run(third.clone()).expect_code(75).expect_stdout("");
        let not_held = place.run(["release", "app#job", "--identity", "run 9"]).expect_code(0);
        assert!(not_held.stdout.contains("is not held for `run 9`"), "{not_held:?} {other:?}");
        place.run(["release", "app#job", "--identity", "run 7"]).expect_code(0);
        let lost = place.run([&["renew", "app#job"], &own[..]].concat()).expect_code(76);
        lost.expect_sentence(&["the lock on key `app#job`", "was lost"]);
        place.run(third).expect_code(0);
    }
}

#[test]
fn an_acquire_waits_and_can_be_interrupted() {
    let place = Place::new();
    acquire(&place, &["--lease", "2s"]);
    place.run(["acquire", "--key", "job", "--wait", "20s"]).expect_code(0);
    let waiting = Process::start(place.command(["acquire", "--key", "job", "--wait", "20s"]));
    // It listens to signals before it sends its first request.
    until("it waits", || place.json("job")["waiting"] != 0);
    waiting.signal(rustix::process::Signal::TERM);
    waiting.outcome().expect_code(128 + 15).expect_stdout("");
}

#[test]
#[cfg(target_os = "linux")]
fn an_identity_that_cannot_be_written_leaves_the_key_free() {
    let place = Place::new();
    let mut command = place.command(["acquire", "--key", "job"]);
    command.stdin(Stdio::null()).stdout(File::options().write(true).open("/dev/full").unwrap());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains("the identity was not written") && said.contains("key `job` was released"), "{said}");
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
fn without_locking_an_identity_holds_nothing() {
    let place = Place::new();
    let run = |words: &[&str]| {
        let mut command = place.command(words);
        command.env("LOCK_ENABLED", "false");
        Process::start(command).outcome().expect_code(0).expect_sentence(&["LOCK_ENABLED", "`false`"]).stdout
    };
    assert_eq!(run(&["acquire", "--key", "job", "--identity", "run 7"]), "run 7\n");
    let renewed: Value = serde_json::from_str(&run(&["renew", "job", "--identity", "run 7", "--json"])).unwrap();
    assert_eq!((&renewed["identity"], &renewed["fence"]), (&"run 7".into(), &0.into()));
    place.run(["get", "job"]).expect_code(66);
    acquire(&place, &["--identity", "run 7"]);
    assert_eq!(run(&["release", "job", "--identity", "run 7"]), "");
    assert_eq!(place.json("job")["state"], "held");
}
