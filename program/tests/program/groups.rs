//! Commands that leave the process group of the program.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::Signal;

use crate::{MOVERS, Place, Process, at_once};

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn a_command_in_another_group_is_killed_with_its_children() {
    at_once(MOVERS, |mover| {
        let place = Place::new();
        let script = ["sh", "-c", "trap '' TERM; echo on; sleep 100 & sleep 100"];
        let arguments = [&["run", "--key", "job", "--lease", "5s", "--"], mover, &script].concat();
        let process = Process::start(place.command(arguments));
        assert_eq!(process.line(), "on");
        process.silence();
        process.outcome().expect_code(76).expect_sentence(&["lease of 5s ended before the command"]);
    });
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn a_command_in_another_group_gets_signals() {
    for mover in MOVERS {
        let place = Place::new();
        let script = ["sh", "-c", "trap 'echo term; exit 9' TERM; echo on; while :; do sleep 0.02; done"];
        let process = Process::start(place.command([&["run", "--key", "job", "--"], mover, &script].concat()));
        assert_eq!(process.line(), "on");
        process.signal(Signal::TERM);
        assert_eq!(process.line(), "term");
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs Linux: .ci/run embedded")]
fn a_command_in_another_group_ends_when_the_program_is_killed() {
    for mover in MOVERS {
        let place = Place::new();
        let script = ["sh", "-c", "echo on; sleep 100 & sleep 100"];
        let mut process = Process::start(place.command([&["run", "--key", "job", "--"], mover, &script].concat()));
        assert_eq!(process.line(), "on");
        process.child.kill().unwrap();
        process.silence();
    }
}

#[test]
#[ignore = "needs root, and a program that runs as another user: .ci/run dynamodb_local"]
fn a_command_of_another_user_is_reported_once_and_not_ended() {
    let place = Place::new();
    let nobody = 65_534;
    let all = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(place.folder.path(), all(0o777)).unwrap();
    // Like sudo, it runs as root. `install` copies it in another process: a child of another thread of this one could
    // still have the file open for writing.
    let sudo = place.file("sudo");
    let install = Command::new("sh").args(["-c", "install -m 4755 \"$(command -v setpriv)\" \"$0\"", &sudo]).output();
    let as_root = ["--reuid", "0", "--"];
    let user = install
        .unwrap()
        .status
        .success()
        .then(|| Command::new(&sudo).args(as_root).args(["id", "-ru"]).uid(nobody).output().unwrap().stdout);
    assert_eq!(user.as_deref(), Some(&b"0\n"[..]), "programs do not run as another user here");
    let mut command = place.command(["run", "--key", "job", "--lease", "3s", "--", &sudo]);
    command.args(as_root).args(["sleep", "6"]).uid(nobody);
    let outcome = Process::start(command).outcome().expect_code(76);
    assert_eq!(outcome.stderr.matches("runs as another user").count(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("code 0"), "{outcome:?}");
}
