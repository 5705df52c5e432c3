//! `completions` and `man`.

use std::fs;
use std::process::{Command, Stdio};

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
        for name in ["run", "list", "create-table", "hold-at-least"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
}

#[test]
fn the_manual_page_has_all_sections_and_no_lint() {
    let place = Place::new();
    let mut command = bare(PROGRAM);
    command.arg("man");
    let page = Process::start(command).outcome().expect_code(0).stdout;
    for part in [".SH COMMANDS", ".SS create-table", ".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", ".SH EXAMPLES"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let file = place.file("lambda-lock.1");
    fs::write(&file, &page).unwrap();
    for linter in [&["mandoc", "-T", "lint", "-W", "error"][..], &["man", "--warnings", "-l", "-Tutf8"]] {
        let Ok(output) = Command::new(linter[0]).args(&linter[1..]).arg(&file).stdin(Stdio::null()).output() else {
            eprintln!("skipped, because there is no {}", linter[0]);
            continue;
        };
        let found = [output.stderr, if linter[0] == "mandoc" { output.stdout } else { Vec::new() }].concat();
        assert_eq!(String::from_utf8(found).unwrap(), "", "{}", linter[0]);
    }
}
