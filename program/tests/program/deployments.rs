//! The recipe for deployments, with runs of a pipeline that wait for the key, and with jobs that share a lock.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Outcome, PATIENCE, PROGRAM, Place, Process, bare};

const KEY: &str = "deploy#shop";

/// Waits until this is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "in time: {what}");
        sleep(Duration::from_millis(20));
    }
}

fn guide() -> String {
    fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../lock/docs/recipes/deployments.md")).unwrap()
}

/// Makes a program in the folder of the place.
fn program(place: &Place, name: &str, script: &str) {
    fs::write(place.file(name), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(place.file(name), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Looks for programs in the folder of the place first, and works there.
fn in_folder(place: &Place, command: &mut Command) {
    let path = format!("{}:{}", place.folder.path().display(), std::env::var("PATH").unwrap());
    command.current_dir(place.folder.path()).env("PATH", path);
}

/// A fence does not help, because the run of the older commit gets the larger one.
#[test]
fn an_older_commit_that_waits_longer_deploys_nothing() {
    let place = Place::new();
    let guide = guide();
    let beginning = guide.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let rest = "echo $1 >> deployed\nuntil [ -e go ]; do sleep 0.02; done\n";
    fs::write(place.file("deploy.sh"), format!("{beginning}{rest}")).unwrap();
    // In place of GitHub's program, which the runners have.
    program(&place, "gh", "[ \"$*\" = 'api repos/shop/shop/commits/main --jq .sha' ] && cat newest");
    let deploy = |commit: &str| {
        let mut command = place.command(["run", "--key", KEY, "--wait", "25s", "--", "sh", "deploy.sh", commit]);
        in_folder(&place, &mut command);
        command.env("GITHUB_REPOSITORY", "shop/shop");
        Process::start(command)
    };
    let deployed = || fs::read_to_string(place.file("deployed")).unwrap_or_default();

    fs::write(place.file("newest"), "1").unwrap();
    let first = deploy("1");
    until("the first commit is deployed", || deployed() == "1\n");
    fs::write(place.file("newest"), "3").unwrap();
    let newest = deploy("3");
    until("a run waits", || place.json(KEY)["waiting"] == 1);
    let older = deploy("2");
    until("two runs wait", || place.json(KEY)["waiting"] == 2);
    fs::write(place.file("go"), "").unwrap();

    for run in [first, newest] {
        assert_eq!(run.outcome().expect_code(0).stdout, "");
    }
    assert_eq!(older.outcome().expect_code(0).stdout, "left 2 to the run of 3\n");
    assert_eq!(deployed(), "1\n3\n");
}

/// Runs each job of the guide as GitHub does, with `bash -e`.
#[test]
fn a_repeated_job_goes_on_with_a_larger_fence() {
    let place = Place::new();
    let guide = guide();
    let (_, section) = guide.split_once("\n## Several jobs\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let blocks = section.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let jobs: Vec<_> = blocks.filter_map(|block| block.split_once("- run: ")).map(|(_, run)| run).collect();
    let [first, migrate, last] = jobs[..] else { panic!("not three jobs: {jobs:?}") };

    let own = place.command([""; 0]);
    let options = own.get_args().map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ");
    program(&place, "lambda-lock", &format!("exec '{PROGRAM}' {options} \"$@\""));
    // In place of jq, which the runners have.
    program(&place, "jq", "[ \"$*\" = .fence ] && sed 's/.*\"fence\":\\([0-9]*\\).*/\\1/'");
    program(&place, "migrate.sh", "echo $LOCK_FENCE >> fences");
    let run = |job: &str, id: &str| -> Outcome {
        let mut command = bare("bash");
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        in_folder(&place, &mut command);
        let script = job.strip_prefix("|\n").unwrap_or(job);
        command.args(["-e", "-c", &script.replace("--wait 30m", "")]).env("RUN", id);
        Process::start(command).outcome()
    };
    let fences = || {
        let all = fs::read_to_string(place.file("fences")).unwrap();
        all.lines().map(|fence| fence.parse::<u64>().unwrap()).collect::<Vec<_>>()
    };

    run(first, "run 7").expect_code(0);
    run(first, "run 8").expect_code(75);
    run(migrate, "run 8").expect_code(76);
    for _ in 0..2 {
        run(migrate, "run 7").expect_code(0);
    }
    assert!(fences().len() == 2 && fences()[0] < fences()[1], "{:?}", fences());
    for _ in 0..2 {
        run(last, "run 8").expect_code(0);
        assert_eq!(place.json(KEY)["identity"], "run 7");
    }
    run(last, "run 7").expect_code(0);
    run(migrate, "run 7").expect_code(76);
    assert_eq!(fences().len(), 2);
    run(first, "run 8").expect_code(0);
}
