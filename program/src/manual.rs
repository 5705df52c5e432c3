//! The manual page and the shell completions, from the command line's definition.

use std::fmt::Write as _;
use std::io;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::{Arguments, command_line};
use crate::help::{self, ENVIRONMENT, EXAMPLES, EXIT_STATUS};

/// Returns the completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "lambda-lock", &mut script);
    script
}

/// Returns the manual page, one for the program and all its commands.
pub(crate) fn page() -> io::Result<Vec<u8>> {
    let mut program = command_line();
    let mut page = format!(".TH LAMBDA-LOCK 1 \"\" \"lambda-lock {}\"\n", env!("CARGO_PKG_VERSION")).into_bytes();
    let man = Man::new(program.clone());
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut page = String::from_utf8(page).map_err(io::Error::other)?;
    page.push_str(".SH COMMANDS\n");
    for command in program.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let usage = command.render_usage().to_string();
        let _infallible = writeln!(page, ".SS {}\n{}", command.get_name(), roff(usage.trim_start_matches("Usage: ")));
        let mut part = Vec::new();
        // The section OPTIONS has the options of all commands.
        let command = command.clone().long_about(help::about(command.get_name()));
        let man = Man::new(command);
        man.render_description_section(&mut part)?;
        man.render_options_section(&mut part)?;
        let part = String::from_utf8(part).map_err(io::Error::other)?;
        for line in part.lines() {
            match line.strip_prefix(".SH ") {
                Some("OPTIONS") => page.push_str(".PP\nOptions:\n"),
                Some(_) => page.push_str(".PP\n"),
                None => {
                    page.push_str(line.trim_end());
                    page.push('\n');
                }
            }
        }
    }
    for (heading, lines) in [("\"EXIT STATUS\"", &EXIT_STATUS[..]), ("ENVIRONMENT", &ENVIRONMENT[..])] {
        let _infallible = writeln!(page, ".SH {heading}");
        for (name, meaning) in lines {
            let _infallible = writeln!(page, ".TP\n{}\n{}", roff(name), roff(meaning));
        }
    }
    page.push_str(".SH EXAMPLES\n");
    for (_, what, line) in EXAMPLES {
        let _infallible = writeln!(page, ".PP\n{}:\n.PP\n.nf\n{}\n.fi", roff(what), roff(line));
    }
    Ok(page.into_bytes())
}

/// Escapes one line of text, so that roff prints it unchanged.
fn roff(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}
