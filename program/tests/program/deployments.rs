//! The recipe for deployments, with the runs of a pipeline that wait for the key.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{PATIENCE, Place, Process};

const KEY: &str = "deploy#shop";

fn until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "in time: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// A fence does not help, because the run of the older commit gets the larger one.
#[test]
fn an_older_commit_that_waits_longer_deploys_nothing() {
    let place = Place::new();
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock/docs/recipes/deployments.md");
    let guide = fs::read_to_string(guide).unwrap();
    let beginning = guide.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let rest = "echo $1 >> deployed\nuntil [ -e go ]; do sleep 0.02; done\n";
    fs::write(place.file("deploy.sh"), format!("{beginning}{rest}")).unwrap();
    // In place of GitHub's program, which the runners have.
    fs::write(place.file("gh"), "#!/bin/sh\n[ \"$*\" = 'api repos/shop/shop/commits/main --jq .sha' ] && cat newest\n")
        .unwrap();
    fs::set_permissions(place.file("gh"), fs::Permissions::from_mode(0o755)).unwrap();
    let deploy = |commit: &str| {
        let mut command = place.command(["run", "--key", KEY, "--wait", "25s", "--", "sh", "deploy.sh", commit]);
        let path = format!("{}:{}", place.folder.path().display(), std::env::var("PATH").unwrap());
        command.current_dir(place.folder.path()).env("PATH", path).env("GITHUB_REPOSITORY", "shop/shop");
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
