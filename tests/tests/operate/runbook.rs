//! The runbook's commands, in a shell whose AWS answers everything: a variable that is not set, and a search that cannot succeed.
//! `tests/tests/deployed/runbook.rs` runs them in a stack.
#![cfg(unix)]

use std::fs;
use std::path::Path;

/// The blocks of commands: the one that sets the shell up, and the others.
fn commands() -> (String, Vec<String>) {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/docs/operate/runbook.md")).unwrap();
    let mut blocks = text.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned());
    (blocks.next().unwrap(), blocks.collect())
}

/// Runs a block in a shell with these variables, in which AWS has one function, log and stack: those that are called `right`.
/// Returns whether it succeeds, and what it prints. Ends it after a minute.
fn run_in_shell(setup: &str, block: &str, variables: &[(&str, &str)]) -> (bool, String) {
    // A query takes one look. Each empty argument is a mistake of the command.
    const STUBS: &str = r#"
sleep() { :; }
lambda-lock() { aws lambda-lock "$@"; }
aws() {
    case " $* " in *"  "*|*wrong*) echo "not found: $*" >&2; return 254;; esac
    case "$*" in
        *start-query*) echo query;;
        *"--query status"*) echo "${STATUS:-Complete}";;
        *) echo "sent: $*";;
    esac
}
"#;
    let mut command = std::process::Command::new("timeout");
    command.args(["60", "bash", "-c", &format!("{STUBS}{setup}{block}")]);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), Some(124), "it has no end: {block} with {variables:?}");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}

/// The variables that a block uses and does not set.
fn variables_of(block: &str) -> Vec<&str> {
    let after = block.split('$').skip(1).map(|rest| rest.trim_start_matches('{'));
    let names = after.map(|rest| rest.split(|c: char| !c.is_ascii_uppercase() && c != '_').next().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.is_empty() && *name != "LOCK_TABLE_NAME").collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn a_command_without_its_variable_names_it_and_sends_nothing() {
    let (setup, blocks) = commands();
    let table = include_str!("../../../lock/docs/operate/runbook.md");
    let mut found = 0;
    for block in &blocks {
        let names = variables_of(block);
        let all: Vec<_> = names.iter().map(|name| (*name, "right")).collect();
        let (is_ok, text) = run_in_shell(&setup, block, &all);
        assert!(is_ok, "{block}{text}");
        for missing in names {
            let others: Vec<_> = all.iter().copied().filter(|(name, _)| *name != missing).collect();
            let (is_ok, text) = run_in_shell(&setup, block, &others);
            assert!(!is_ok && text.contains(missing) && !text.contains("not found"), "{block}{missing}: {text}");
            assert!(
                table.contains(&format!("| `{missing}`")) || table.contains(&format!(", `{missing}` |")),
                "{missing}"
            );
            found += 1;
        }
    }
    assert!(found > 10, "{found}");
}

#[test]
fn a_search_of_the_log_ends_if_it_cannot_succeed() {
    let (setup, blocks) = commands();
    let search = blocks.iter().find(|block| block.starts_with("logs ")).unwrap();
    for (variables, expected) in [
        ([("FUNCTION", "wrong"), ("STATUS", "Complete")], "not found"),
        ([("FUNCTION", "right"), ("STATUS", "Failed")], "sent: logs get-query-results"),
    ] {
        let (_, text) = run_in_shell(&setup, search, &variables);
        assert!(text.contains(expected), "{text}");
    }
}
