//! The program at a terminal.

use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::thread;
use std::time::Duration;

use crate::{MOVERS, Place, Process, bare};

/// The program at a terminal of 80 columns, which script(1) of util-linux makes, and the input of that terminal.
fn at_a_terminal(place: &Place, arguments: &[&str]) -> (Process, ChildStdin) {
    let command = place.command(arguments);
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let quoted: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut terminal = bare("script");
    terminal.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    terminal
        .args(["--quiet", "--return", "--command", &format!("stty cols 80; exec {}", quoted.join(" ")), "/dev/null"])
        .stdin(Stdio::piped());
    let mut process = Process::with_input(terminal);
    let input = process.child.stdin.take().unwrap();
    (process, input)
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn the_command_reads_from_the_terminal_and_is_interrupted_once() {
    let place = Place::new();
    let script = "trap \"echo interrupted\" INT; echo ready; until read line; do :; done; echo got $line; exit 3";
    let arguments = ["run", "--key", "job", "--", "sh", "-c", script];
    let (process, mut input) = at_a_terminal(&place, &arguments);
    let line = || process.line().trim().replace("^C", "");
    assert_eq!(line(), "ready");
    // The command is reading when the interrupt arrives, so that the test could tell two interrupts apart.
    thread::sleep(Duration::from_millis(300));
    input.write_all(b"\x03").unwrap();
    assert_eq!(line(), "interrupted");
    // Time for a second interrupt, which must not arrive.
    thread::sleep(Duration::from_millis(300));
    input.write_all(b"hello\n").unwrap();
    assert_eq!(line(), "hello", "the terminal's echo");
    assert_eq!(line(), "got hello");
    let outcome = process.outcome().expect_code(3);
    assert!(!outcome.stdout.contains("interrupted"), "{outcome:?}");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn a_command_in_another_group_is_interrupted_by_the_terminal() {
    for mover in MOVERS {
        let place = Place::new();
        let script = ["sh", "-c", "trap \"echo interrupted; exit 3\" INT; echo on; while :; do sleep 0.02; done"];
        let arguments = [&["run", "--key", "job", "--"], mover, &script].concat();
        let (process, mut input) = at_a_terminal(&place, &arguments);
        assert_eq!(process.line().trim(), "on");
        input.write_all(b"\x03").unwrap();
        assert_eq!(process.line().trim().replace("^C", ""), "interrupted");
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn the_command_at_a_terminal_is_killed_when_the_lease_ends() {
    let place = Place::new();
    let script = "trap \"\" TERM; echo on; exec sleep 100";
    let arguments = ["run", "--key", "job", "--lease", "5s", "--", "sh", "-c", script];
    let (process, _input) = at_a_terminal(&place, &arguments);
    assert_eq!(process.line().trim(), "on");
    let outcome = process.outcome().expect_code(76);
    assert!(outcome.stdout.contains("signal 9"), "{outcome:?}");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn a_release_by_force_asks_at_a_terminal() {
    let place = Place::new();
    let _holder = place.holding("job", &[]);
    for (answer, code, state) in [("n\n", 75, "held"), ("\n", 75, "held"), ("y\n", 0, "free")] {
        let (process, mut input) = at_a_terminal(&place, &["release", "job", "--force"]);
        assert!(process.line().contains("is held by somebody@"));
        input.write_all(answer.as_bytes()).unwrap();
        process.outcome().expect_code(code);
        assert_eq!(place.json("job")["state"], state);
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn a_list_is_as_wide_as_the_terminal() {
    let place = Place::new();
    let holder = "the pipeline that deploys the shop, started by somebody whose name is long";
    let _holder = place.holding("a-key-that-is-rather-long#with-a-prefix", &["--holder", holder]);
    let (process, _input) = at_a_terminal(&place, &["list"]);
    let shown = process.outcome().expect_code(0).stdout;
    assert!(shown.lines().count() > 2, "{shown}");
    assert!(shown.lines().all(|line| line.trim_end().chars().count() <= 80), "{shown}");
    let piped = place.run(["list"]).expect_code(0).stdout;
    assert_eq!(piped.lines().count(), 2, "{piped}");
}
