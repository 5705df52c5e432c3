//! The end of the lease while the command runs, and renewals.

use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::Signal;

use crate::server::{DENIED, server};
use crate::{PATIENCE, PROGRAM, Place, Process, at_once, bare, credentials};

#[test]
fn the_command_gets_sigterm_before_the_lease_ends() {
    let place = Place::new();
    let script = "trap 'echo clean; exit 0' TERM; while :; do sleep 0.02; done";
    let outcome = Process::start(place.shell("job", &["--lease", "8s"], script)).outcome();
    assert_eq!(outcome.stdout, "clean\n");
    outcome.expect_code(76).expect_sentence(&["lease of 8s", "`job`", "--renew"]);
    assert_eq!(place.json("job")["state"], "free");
}

#[test]
fn the_command_and_its_children_are_killed_when_the_lease_ends() {
    let place = Place::new();
    let started = Instant::now();
    // They ignore SIGTERM. The child shares standard output, so the output shows its end.
    let process =
        Process::start(place.shell("job", &["--lease", "5s"], "trap '' TERM; sleep 100 & echo $!; sleep 100"));
    process.line().parse::<u32>().unwrap();
    process.silence();
    assert!((Duration::from_secs(5)..Duration::from_secs(20)).contains(&started.elapsed()));
    process.outcome().expect_code(76).expect_sentence(&["signal 9"]);
}

#[test]
fn a_renewed_lock_lets_the_command_outlive_the_lease() {
    let place = Place::new();
    let process = Process::start(place.shell("job", &["--lease", "5s", "--renew"], "echo on; sleep 7; echo done"));
    assert_eq!(process.line(), "on");
    thread::sleep(Duration::from_millis(5500));
    place.run(["run", "--key", "job", "--", "true"]).expect_code(75);
    let outcome = process.outcome().expect_code(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("done\n", ""));
}

#[test]
fn a_failed_renewal_is_reported_and_ends_the_command_with_the_lease() {
    let acquired = (200, r#"{"Attributes":{"fence":{"N":"17"}}}"#);
    let endpoint = server(Box::leak(Box::new([acquired, DENIED])));
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url", &endpoint, "--lease", "5s", "--renew"]);
    command.args(["--", "sh", "-c", "echo $LOCK_FENCE; sleep 100"]).envs(credentials());
    let outcome = Process::start(command).outcome().expect_code(76);
    // The answer is the row as it was before. The fence is the number of the request.
    assert!(outcome.stdout.trim().parse::<u64>().unwrap() > 17, "{outcome:?}");
    assert!(outcome.stderr.contains("the renewal failed"), "{outcome:?}");
    assert!(outcome.stderr.contains("dynamodb:UpdateItem"), "{outcome:?}");
}

#[test]
fn a_command_without_its_lock_is_killed_before_it_cleans_up() {
    let place = Place::new();
    let script = "trap 'echo term; sleep 1; echo late' TERM; echo on; while :; do sleep 0.02; done";
    let process = Process::start(place.shell("job", &["--lease", "15s", "--renew"], script));
    assert_eq!(process.line(), "on");
    place.run(["release", "job", "--force", "--yes"]).expect_code(0);
    let outcome = process.outcome().expect_code(76).expect_stdout("term\n");
    outcome.expect_sentence(&["released by somebody@", "was ended (signal 9)"]);
}

#[test]
fn a_killed_program_ends_its_command_and_keeps_the_key_for_its_lease() {
    let place = Place::new();
    let mut process =
        Process::start(place.shell("job", &["--lease", "6s"], "sleep 100 & echo $!; sleep 100; echo done"));
    process.line();
    let held = place.json("job");
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    assert_eq!(process.silence(), [""; 0]);
    assert_eq!(place.json("job")["state"], "held");
    place.run(["run", "--key", "job", "--wait", "20s", "--", "true"]).expect_code(0);
    assert!(place.json("job")["acquired_at"].as_str() >= held["until"].as_str());
}

#[test]
fn the_command_of_a_stopped_program_does_not_outlive_the_lease() {
    // The second script stops its group, as a terminal does when a background job reads from it.
    at_once(["echo on; sleep 100", "echo on; kill -TTIN 0; sleep 100"], |script| {
        let place = Place::new();
        let process = Process::start(place.shell("job", &["--lease", "5s", "--renew"], script));
        assert_eq!(process.line(), "on");
        process.signal(Signal::STOP);
        // The stopped program keeps standard output open, so the test looks at the processes.
        let until = Instant::now() + PATIENCE;
        let children = format!("/proc/{0}/task/{0}/children", process.child.id());
        if fs::exists(&children).unwrap() {
            let alive =
                |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
            let started = fs::read_to_string(&children).unwrap();
            assert_eq!(started.split_whitespace().filter(|pid| alive(pid)).count(), 2, "the guard and the command");
            while started.split_whitespace().any(alive) {
                assert!(Instant::now() < until, "the command runs without a lock");
                thread::sleep(Duration::from_millis(20));
            }
        }
        process.signal(Signal::CONT);
        assert_eq!(process.outcome().expect_code(76).stdout, "");
    });
}

#[test]
fn a_lease_is_not_renewed_while_the_command_is_stopped() {
    let place = Place::new();
    let process =
        Process::start(place.shell("job", &["--lease", "6s", "--renew"], "echo on; kill -STOP $$; sleep 100"));
    assert_eq!(process.line(), "on");
    let outcome = process.outcome().expect_code(76);
    assert_eq!(outcome.stderr.matches("not renewed while the command is stopped").count(), 1, "{outcome:?}");
}
