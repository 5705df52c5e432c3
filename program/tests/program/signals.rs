//! Signals to the program, before and while its command runs.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::server::{SLOWLY, at_a_server, recording_server};
use crate::{PATIENCE, PROGRAM, Place, Process, bare};

#[test]
fn signals_reach_the_command() {
    let place = Place::new();
    let script =
        "for s in INT HUP QUIT USR1 USR2; do trap \"echo $s\" $s; done; trap 'echo TERM; exit 9' TERM; echo ready
        while :; do sleep 0.02; done";
    let process = Process::start(place.shell("job", &[], script));
    assert_eq!(process.line(), "ready");
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::TERM, "TERM"),
    ] {
        process.signal(signal);
        assert_eq!(process.line(), name);
    }
    process.outcome().expect_code(9);
    assert_eq!(place.json("job")["state"], "free");
}

#[test]
fn a_signal_ignored_by_the_caller_stays_ignored() {
    let place = Place::new();
    let mut command = bare("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", PROGRAM]);
    place.at_home(&mut command);
    command.args(["run", "--key", "job", "--", "sh", "-c", "echo ready; sleep 0.5; echo survived"]);
    let process = Process::start(command);
    assert_eq!(process.line(), "ready");
    process.signal(Signal::HUP);
    assert_eq!(process.line(), "survived");
    process.outcome().expect_code(0);
}

#[test]
fn the_command_is_awaited_when_the_caller_ignores_sigchld() {
    let place = Place::new();
    let ignoring = place.ignoring_children();
    // Without locking, there is no row.
    for (enabled, code) in [("true", 0), ("false", 66)] {
        let mut command = bare(&ignoring);
        command.arg(PROGRAM).env("LOCK_ENABLED", enabled);
        place.at_home(&mut command);
        command.args(["run", "--key", enabled, "--min-hold", "100s", "--"]);
        command.args(["sh", "-c", "if test -e /proc/self/status; then exec grep SigIgn /proc/self/status; fi"]);
        let outcome = Process::start(command).outcome().expect_code(0);
        // The command can wait for its own children.
        let ignored = outcome.stdout.trim().strip_prefix("SigIgn:").unwrap_or("0").trim();
        assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & (1 << (Signal::CHILD.as_raw() - 1)), 0, "{outcome:?}");
        let row = place.run(["get", enabled]).expect_code(code);
        assert_eq!(row.stdout.contains("held"), code == 0, "{row:?}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_the_lock() {
    const HELD: (u16, &str) = (
        400,
        r#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","message":"The conditional request failed","Item":{"id":{"S":"job"},"status":{"S":"INPROGRESS"},"in_progress_expiration":{"N":"4102444800000"},"expiration":{"N":"4102444800"},"fence":{"N":"17"}}}"#,
    );
    let (endpoint, requests) = recording_server(&[HELD]);
    let mut command = at_a_server(&endpoint, &["--wait", "1h"]);
    command.args(["--", "echo", "ran"]);
    let waiting = Process::start(command);
    // It waits after the second attempt.
    for _ in 0..2 {
        requests.recv_timeout(PATIENCE).unwrap();
    }
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.outcome().expect_code(128 + 15).stdout, "");
}

#[test]
fn the_program_waits_for_the_answer_to_its_withdrawal() {
    let (endpoint, requests) = recording_server(&[(0, ""), (1, "{}")]);
    let mut command = at_a_server(&endpoint, &[]);
    command.args(["--", "echo", "ran"]);
    let process = Process::start(command);
    requests.recv_timeout(PATIENCE).unwrap();
    process.signal(Signal::TERM);
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("withdrawn = :withdrawn"));
    let asked = Instant::now();
    process.outcome().expect_code(128 + 15).expect_stdout("");
    assert!(asked.elapsed() + Duration::from_millis(500) >= SLOWLY, "{:?}", asked.elapsed());
}

#[test]
fn an_unanswered_acquire_is_withdrawn_before_the_end() {
    const SILENCE: (u16, &str) = (0, "");
    let (endpoint, requests) = recording_server(&[SILENCE, SILENCE, SILENCE, SILENCE, SILENCE, SILENCE, (1, "{}")]);
    let mut command = at_a_server(&endpoint, &[]);
    command.args(["--", "echo", "ran"]);
    let process = Process::start(command);
    // The client's attempts.
    for _ in 0..6 {
        assert!(requests.recv_timeout(PATIENCE).unwrap().contains("fence = :number"));
    }
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("withdrawn = :withdrawn"));
    let asked = Instant::now();
    process.outcome().expect_code(69).expect_sentence(&["DynamoDB did not answer"]).expect_stdout("");
    assert!(asked.elapsed() + Duration::from_millis(500) >= SLOWLY, "{:?}", asked.elapsed());
}
