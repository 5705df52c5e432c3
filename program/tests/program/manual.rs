//! `completions` and `man`.

use std::fs;
use std::process::Command;

use crate::{PROGRAM, Place, Process, bare};

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = Process::start({
            let mut command = bare(PROGRAM);
            command.args(["completions", shell]);
            command
        });
        let script = script.outcome().expect_code(0).stdout;
        for name in ["run", "list", "create-table", "min-hold"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
}

#[test]
#[ignore = "needs mandoc: .ci/run dynamodb_local"]
fn mandoc_finds_no_mistake_in_the_manual_page() {
    let place = Place::new();
    let file = place.file("lambda-lock.1");
    fs::write(&file, place.run(["man"]).expect_code(0).stdout).unwrap();
    let lint = Command::new("mandoc").args(["-T", "lint", "-W", "error", &file]).output().unwrap();
    assert_eq!(String::from_utf8([lint.stderr, lint.stdout].concat()).unwrap(), "");
}
