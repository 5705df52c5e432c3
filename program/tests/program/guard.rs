//! The guard, which ends the command when the program is killed.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Place, Process};

/// The process that guards the command.
fn guard_of(process: &Process) -> Pid {
    let is_guard = |pid: &&str| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("__guard");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.child.id())).unwrap();
    Pid::from_raw(children.split_whitespace().find(is_guard).unwrap().parse().unwrap()).unwrap()
}

#[test]
fn the_command_ends_when_the_program_and_its_guard_are_killed() {
    let place = Place::new();
    let mut process = Process::start(place.shell("job", &[], "echo on; exec sleep 100"));
    assert_eq!(process.line(), "on");
    kill_process(guard_of(&process), Signal::KILL).unwrap();
    process.child.kill().unwrap();
    process.silence();
}

#[test]
fn the_command_is_ended_when_the_guard_is_killed() {
    let place = Place::new();
    let process =
        Process::start(place.shell("job", &[], "trap 'echo term; exit 5' TERM; echo on; while :; do sleep 0.02; done"));
    assert_eq!(process.line(), "on");
    kill_process(guard_of(&process), Signal::KILL).unwrap();
    process.outcome().expect_code(74).expect_sentence(&["guards", "code 5"]).expect_stdout("term\n");
    assert_eq!(place.json("job")["state"], "free");
}
