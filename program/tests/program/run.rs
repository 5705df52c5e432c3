//! `run`: the command, its environment, its exit code and its lock.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::deployments::until;
use crate::server::{DENIED, at_a_server, recording_server, server};
use crate::{PATIENCE, PROGRAM, Place, Process, bare, credentials};

#[test]
fn the_command_gets_fence_key_and_table_and_its_code_is_the_exit_code() {
    let place = Place::new();
    let fences = [(); 2].map(|()| {
        let script = "echo $LOCK_FENCE; echo $LOCK_KEY $LOCK_TABLE_NAME; exit 7";
        let outcome = Process::start(place.shell("job", &[], script)).outcome().expect_code(7);
        let (fence, rest) = outcome.stdout.split_once('\n').unwrap();
        assert_eq!((rest, outcome.stderr.as_str()), (format!("job {}\n", place.table).as_str(), ""));
        fence.parse::<u64>().unwrap()
    });
    assert!(fences[1] > fences[0], "{fences:?}");
    assert_eq!(place.json("job")["state"], "free");
}

#[test]
fn a_command_that_locks_its_own_key_is_refused() {
    let place = Place::new();
    let inner = place.command(["run"]);
    let words: Vec<_> = inner.get_args().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let script = format!(r#"'{PROGRAM}' {} --key "$LOCK_KEY" -- echo beside"#, words.join(" "));
    for prefix in ["app#", ""] {
        let mut command = place.shell("job", &["--key-prefix", prefix], &script);
        command.env("LOCK_KEY_PREFIX", "other#");
        let outcome = Process::start(command).outcome().expect_code(75);
        outcome.expect_sentence(&[&format!("`{prefix}job`"), "held by somebody@"]).expect_stdout("");
    }
}

/// The first request of the program as this user, whose name is not in the environment.
fn request_of(user: Option<u32>) -> String {
    let (endpoint, requests) = recording_server(&[DENIED]);
    let mut command = at_a_server(&endpoint, &["--", "true"]);
    command.env_remove("USER");
    if let Some(user) = user {
        command.uid(user);
    }
    command.stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    requests.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_user_missing_in_the_environment_is_looked_up() {
    let name = Command::new("id").arg("-un").output().unwrap();
    assert!(name.status.success(), "the user who runs the tests has no name");
    let name = String::from_utf8(name.stdout).unwrap();
    let request = request_of(None);
    assert!(request.contains(&format!("\"{}@", name.trim())), "{request}");
}

#[test]
#[ignore = "needs root: .ci/run dynamodb_local"]
fn a_user_without_a_name_is_shown_as_a_number() {
    let nameless = 2_000_123_456;
    let request = request_of(Some(nameless));
    assert!(request.contains(&format!("\"uid {nameless}@")), "{request}");
}

/// While the first one runs, another one exits with 75, or waits with `--wait`.
#[test]
fn a_held_key_exits_with_75_and_names_the_holder() {
    let place = Place::new();
    let holder = place.holding("job", &[]);
    let marker = place.file("marker");
    let name = format!("somebody@{} {} sh", rustix::system::uname().nodename().to_str().unwrap(), holder.child.id());
    let until = place.json("job")["until"].as_str().unwrap().to_owned();
    place
        .run(["run", "--key", "job", "--", "touch", &marker])
        .expect_code(75)
        .expect_sentence(&["`job`", &name, &until]);
    assert!(!fs::exists(marker).unwrap());
    // Nor does the command run after a wait that is too short.
    let started = Instant::now();
    place.run(["run", "--key", "job", "--wait", "300ms", "--", "true"]).expect_code(75).expect_sentence(&["attempts"]);
    assert!(started.elapsed() >= Duration::from_millis(300));
}

/// After the first one has finished, another one runs.
#[test]
fn waiting_processes_take_turns() {
    let place = Place::new();
    let counter = place.file("counter");
    fs::write(&counter, "0").unwrap();
    let script = format!("n=$(cat {counter}); sleep 0.05; echo $((n + 1)) >{counter}");
    let contenders =
        [(); 6].map(|()| Process::start(place.shell("job", &["--wait", "25s", "--lease", "20s"], &script)));
    for contender in contenders {
        contender.outcome().expect_code(0);
    }
    assert_eq!(fs::read_to_string(counter).unwrap().trim(), "6");
}

#[test]
fn min_hold_keeps_the_key_after_the_command() {
    let place = Place::new();
    place.run(["run", "--key", "job", "--min-hold", "2s", "--", "true"]).expect_code(0);
    let held = place.json("job");
    assert_eq!(held["state"], "held");
    place.run(["run", "--key", "job", "--", "true"]).expect_code(75);
    place.run(["run", "--key", "job", "--wait", "10s", "--", "true"]).expect_code(0);
    assert!(place.json("job")["acquired_at"].as_str() >= held["until"].as_str());
}

#[test]
fn min_hold_does_not_keep_the_key_of_a_failed_command() {
    let place = Place::new();
    for (code, lease, command) in [
        (3, "100s", &["sh", "-c", "exit 3"][..]),
        (128 + 9, "100s", &["sh", "-c", "kill -KILL $$"]),
        (127, "100s", &["/nonexistent/x"]),
        (126, "100s", &["/etc/passwd"]),
        (76, "1s", &["sleep", "100"]),
    ] {
        let options = ["run", "--key", "job", "--min-hold", "200s", "--lease", lease, "--"];
        place.run([&options, command].concat()).expect_code(code);
        assert_eq!(place.json("job")["state"], "free", "{command:?}");
    }
}

#[test]
fn a_failed_release_is_reported_and_keeps_the_code_of_the_command() {
    let acquired = (200, r#"{"Attributes":{"fence":{"N":"17"}}}"#);
    let mut command = bare(PROGRAM);
    command.args(["run", "--key", "job", "--table", "locks", "--endpoint-url"]).envs(credentials());
    command.arg(server(Box::leak(Box::new([acquired, DENIED])))).args(["--", "sh", "-c", "exit 7"]);
    let outcome = Process::start(command).outcome().expect_code(7);
    outcome.expect_sentence(&["stays held until its lease ends", "dynamodb:UpdateItem"]);
}

#[test]
fn disabled_locks_run_the_command_and_warn_once() {
    let place = Place::new();
    let _holder = place.holding("job", &[]);
    let mut command = place.shell("job", &[], "echo fence $LOCK_FENCE; exit 4");
    let outcome = Process::start({
        command.env("LOCK_ENABLED", "false");
        command
    });
    let outcome = outcome.outcome().expect_code(4).expect_sentence(&["LOCK_ENABLED", "without a lock"]);
    assert_eq!(outcome.stdout, "fence 0\n");
}

#[test]
fn at_most_n_commands_run_at_a_time() {
    let place = Place::new();
    let at_most = ["--at-most", "2"];
    let holders = [(); 2].map(|()| place.holding("bank", &at_most));
    let refused = ["run", "--key", "bank", "--at-most", "2", "--", "true"];
    place.run(refused).expect_code(75).expect_sentence(&["`bank`", "somebody@", "the first lease ends at"]);
    let lock = place.run(["run", "--key", "bank", "--", "true"]).expect_code(78);
    lock.expect_sentence(&["`bank`", "is a semaphore, not a lock: use another key"]);
    let listed = place.run(["list"]).expect_code(0).stdout;
    assert_eq!(listed.lines().filter(|line| line.starts_with("bank  held")).count(), 2, "{listed}");
    let object = place.json("bank");
    let permits = object["permits"].as_array().unwrap();
    assert_eq!((permits.len(), &permits[0]["fence"]), (2, &object["fence"]));
    assert!(permits.iter().all(|permit| permit["state"] == "held" && permit["remaining_seconds"].is_f64()));
    drop(holders);

    for wrong in ["0", "101", "two"] {
        let outcome = place.run(["run", "--key", "other", "--at-most", wrong, "--", "true"]).expect_code(2);
        assert!(outcome.stderr.contains(wrong) && outcome.stderr.contains("--at-most"), "{outcome:?}");
    }
}

/// A command with `--coalesce` that begins with this, notes each of its runs, and ends with that when the file `end` is there.
/// Returns when it runs.
fn coalescing(place: &Place, begin_with: &str, end_with: &str) -> Process {
    let (begun, end, runs) = (place.file("begun"), place.file("end"), place.file("runs"));
    let wait = format!("touch {begun}; while ! test -e {end}; do sleep 0.05; done");
    let script = format!("{begin_with}; echo run >> {runs}; {wait}; {end_with}");
    let holder = Process::start(place.shell("index", &["--coalesce"], &script));
    until_begun(place);
    holder
}

fn until_begun(place: &Place) {
    until("the command runs", || fs::exists(place.file("begun")).unwrap());
}

/// A command that is skipped, because the other one runs once more.
fn skipped(place: &Place) {
    let skipped = place.run(["run", "--key", "index", "--coalesce", "--", "false"]).expect_code(0);
    skipped.expect_sentence(&["`index`", "the command is left to that holder, whose own runs once more"]);
}

/// While the first one runs, others are skipped, and it runs once more.
#[test]
fn skipped_commands_are_followed_by_one_more_run() {
    let place = Place::new();
    let holder = coalescing(&place, "true", "exit 0");
    skipped(&place);
    skipped(&place);
    fs::write(place.file("end"), "").unwrap();
    let outcome = holder.outcome().expect_code(0);
    assert!(outcome.stderr.contains("runs once more, for others that were skipped"), "{outcome:?}");
    assert_eq!(fs::read_to_string(place.file("runs")).unwrap(), "run\nrun\n");
    assert_eq!(place.json("index")["state"], "free");
}

/// The commit that mends a failing deployment is the one that is skipped. The code is that of the last run.
#[test]
fn a_command_that_fails_runs_once_more_for_skipped_commands() {
    for (first, last) in [(3, 0), (3, 4), (0, 4)] {
        let place = Place::new();
        let code_of_run =
            format!("[ \"$(wc -l < {})\" -gt 1 ] && exit_with={last} || exit_with={first}", place.file("runs"));
        let holder = coalescing(&place, "true", &format!("{code_of_run}; exit $exit_with"));
        skipped(&place);
        fs::write(place.file("end"), "").unwrap();
        let outcome = holder.outcome().expect_code(last);
        assert!(
            outcome.stderr.contains(&format!("ended with code {first}; the command runs once more")),
            "{outcome:?}"
        );
        assert_eq!(fs::read_to_string(place.file("runs")).unwrap(), "run\nrun\n");
    }
}

/// Whatever the command makes of SIGTERM, its caller learns that skipped work is left.
#[test]
fn a_command_that_was_told_to_end_runs_no_second_time() {
    for begin_with in ["trap 'exit 0' TERM", "trap 'exit 5' TERM", "true"] {
        let place = Place::new();
        let holder = coalescing(&place, begin_with, "exit 0");
        skipped(&place);
        holder.signal(Signal::TERM);
        let outcome = holder.outcome().expect_code(128 + 15);
        let why = "was told to end, and does not run once more for others that were skipped: run it again";
        assert!(outcome.stderr.contains(why), "{outcome:?}");
        assert_eq!(fs::read_to_string(place.file("runs")).unwrap(), "run\n");
    }
}

#[test]
fn a_holder_without_coalesce_says_that_work_was_left_to_it() {
    let place = Place::new();
    let (begun, end) = (place.file("begun"), place.file("end"));
    let script = format!("touch {begun}; while ! test -e {end}; do sleep 0.05; done; exit 3");
    let holder = Process::start(place.shell("index", &[], &script));
    until_begun(&place);
    skipped(&place);
    fs::write(end, "").unwrap();
    let outcome = holder.outcome().expect_code(3);
    let why = "left their work to this command, which does not run once more: run it again, with --coalesce";
    assert!(outcome.stderr.contains(why), "{outcome:?}");
}

/// A minimum hold has nobody who would run once more.
#[test]
fn a_command_that_nobody_runs_for_has_code_75() {
    let place = Place::new();
    place.run(["run", "--key", "index", "--min-hold", "1h", "--", "true"]).expect_code(0);
    let refused = place.run(["run", "--key", "index", "--coalesce", "--", "true"]).expect_code(75);
    assert!(!refused.stderr.contains("is left to"), "{refused:?}");
}
