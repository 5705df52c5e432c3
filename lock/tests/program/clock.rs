//! Wrong clocks.

use std::process::Command;

use crate::{PROGRAM, Place, Process, bare};

/// The program with a clock that is two minutes ahead, if faketime is installed.
fn ahead(place: &Place, arguments: &[&str]) -> Option<Command> {
    if Command::new("faketime").arg("--version").output().is_err() {
        assert!(std::env::var_os("LOCK_TEST_FAKETIME").is_none(), "faketime is not installed");
        eprintln!("skipped, because faketime is not installed");
        return None;
    }
    let mut command = bare("faketime");
    command.args(["-f", "+120s", PROGRAM]).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    place.at_home(&mut command);
    command.args(arguments);
    Some(command)
}

#[test]
fn a_wrong_clock_within_the_skew_does_not_take_a_held_key() {
    let place = Place::new();
    let Some(mut wary) = ahead(&place, &["run", "--key", "wary", "--", "true"]) else { return };
    let _holder = place.holding("wary", &["--clock-skew", "3m"]);
    wary.env("LOCK_CLOCK_SKEW", "3m");
    Process::start(wary).outcome().expect_code(75);
    // Beyond the skew, the wrong clock takes the key: it is really wrong.
    let _holder = place.holding("bold", &[]);
    let bold = ahead(&place, &["run", "--key", "bold", "--", "true"]).unwrap();
    Process::start(bold).outcome().expect_code(0);
}

#[test]
fn a_check_reports_a_wrong_clock() {
    let place = Place::new();
    let Some(check) = ahead(&place, &["check"]) else { return };
    if place.endpoint.is_none() {
        // The embedded engine has the clock of the process.
        eprintln!("skipped, because it needs a DynamoDB with its own clock: set LOCK_TEST_ENDPOINT");
        return;
    }
    let outcome = Process::start(check).outcome().expect_code(78);
    assert!(outcome.stdout.lines().any(|line| line.starts_with("failed  clock")), "{outcome:?}");
}
