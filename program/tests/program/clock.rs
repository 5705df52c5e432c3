//! Wrong clocks.

use std::process::Command;

use crate::{PROGRAM, Place, Process, bare};

/// The program with a clock that is two minutes ahead.
fn ahead(place: &Place, arguments: &[&str]) -> Command {
    let mut command = bare("faketime");
    command.args(["-f", "+120s", PROGRAM]).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    place.at_home(&mut command);
    command.args(arguments);
    command
}

#[test]
#[ignore = "needs faketime: .ci/run dynamodb_local"]
fn a_wrong_clock_within_the_skew_does_not_take_a_held_key() {
    let place = Place::new();
    let mut wary = ahead(&place, &["run", "--key", "wary", "--", "true"]);
    let _holder = place.holding("wary", &["--clock-skew", "3m"]);
    wary.env("LOCK_CLOCK_SKEW", "3m");
    Process::start(wary).outcome().expect_code(75);
}

/// The lease of 30 s ends in two minutes by its clock.
#[test]
#[ignore = "needs faketime, and a DynamoDB with its own clock: .ci/run dynamodb_local"]
fn a_wrong_clock_beyond_the_skew_leaves_a_held_key() {
    let place = Place::new();
    let _holder = place.holding("job", &[]);
    let late = ahead(&place, &["run", "--key", "job", "--", "true"]);
    let outcome = Process::start(late).outcome().expect_code(78);
    assert!(outcome.stderr.contains("this host's clock is at least 1m 5"), "{outcome:?}");
    place.run(["run", "--key", "job", "--", "true"]).expect_code(75);
}
