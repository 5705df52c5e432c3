//! The longer texts: what the commands do, examples, exit codes, the environment; the manual page and the completions.

use std::fmt::Write as _;
use std::io;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::Arguments;

pub(crate) const DESCRIPTION: &str = "\
Locks on a DynamoDB table, for shell scripts and operators: one process at a time runs a command, on however many \
machines, and no server is needed. The locks are those of the Rust crate lambda-lock, which Lambda functions use.";

pub(crate) const RUN: &str = "\
Takes the lock, runs the command with LOCK_FENCE, LOCK_KEY and LOCK_TABLE_NAME in its environment, releases the lock and \
exits with the command's code, or with 128 and the signal's number if it died of a signal. A key that is held ends it \
with code 75 and the command does not run.

The command never runs longer than the lease. When a tenth of the lease is left, 10 seconds at the most, it gets SIGTERM, \
and at the lease's end SIGKILL; the exit code is then 76. With --renew the lease is renewed each time that a third of it \
is over; a renewal that fails is told on standard error and tried again. One that finds that someone else has the lock ends \
the command with SIGTERM and, a tenth of a second later, SIGKILL. While the command is stopped, by ^Z or since it asked for \
a password in the background, the lease is not renewed, and standard error says so.

With --hold-at-least the key stays held for that long after the acquisition if the command ended with code 0. After every \
other end, as also if it could not be run, the key is free at once, so that another attempt can follow.

The command gets a process group of its own, and its signals and its end reach the whole group. INT, TERM, HUP, QUIT, \
USR1 and USR2 are passed on to it. If standard input is a terminal, the command stays in the terminal's foreground group \
instead, so that it can read from it: then the terminal itself sends it INT and QUIT, which are not passed on a second \
time, and the other signals and the end reach the command but not its children. Children that a command leaves behind when \
it ends are left alone, and run without the lock.

A command that moves to another group, as timeout and setsid do, gets its signals and its end there, with all of that group. \
What escapes are children of the command that change their group by themselves: a daemon, the jobs of an interactive shell, \
or a timeout or setsid within a script. No signal and no end reaches these, and they run on without the lock. Nor does one \
reach a command that runs as another user: write `sudo lambda-lock`, not `lambda-lock` with sudo as its command. Standard error says so when \
a signal was refused.

When lambda-lock itself is killed, or is stopped until the lease ends, a second process of it kills the command's whole \
group; there is none if standard input is a terminal. If that process is killed, the command is ended with SIGTERM and, after \
a tenth of the lease, 10 seconds at the most, SIGKILL; the exit code is then 74. On Linux the kernel, too, kills the command \
when lambda-lock is killed, but not its children.

If standard input is no terminal, but the command asks for something at /dev/tty, it is stopped, for its group is not in the \
foreground; it is killed when the lease ends. Leave standard input at the terminal for commands that ask.

With LOCK_ENABLED=false in the environment the command runs without a lock and LOCK_FENCE is 0; one warning says so.";

pub(crate) const LIST: &str = "\
Lists keys with their state. It reads the table until it has found as many as the limit (IAM action dynamodb:Scan), and \
sorts those by key: of a larger table it shows the keys that were found first, not the first ones. A page that is throttled \
is asked for again a few times. The states:

held: someone holds it, or --hold-at-least keeps it

free: its last holder released it, or nobody has held it yet

expired: its lease ended without a release, for the holder crashed or overran it

completed: the record of an idempotent run that was completed

malformed: the row is not one of a lock

With --json, each line is an object with key and state and, where they are known, holder, fence, acquired_at and until \
(RFC 3339), remaining_seconds of what is held, and error of what is malformed.";

pub(crate) const GET: &str = "\
Says who holds a key, or held it last: one consistent read (IAM action dynamodb:GetItem). The exit code is 0 whatever \
the state is. The columns and the JSON are those of list.";

pub(crate) const RELEASE: &str = "\
Frees a key for whoever asks next (IAM actions dynamodb:GetItem and dynamodb:UpdateItem). It does not stop the holder's \
work: make sure that it has crashed, or that its writes are fenced. `run` reports code 76 when its lock was released by \
someone else.

Give the fence that `get` showed: if another acquisition holds the key by then, it is refused with code 75. With --force \
it is released whoever holds it, after a question, or with --yes without one; any other answer than yes leaves it as it is \
and gives code 75. A key that is free is no error.";

pub(crate) const WATCH: &str = "\
Shows keys again and again, in place on a terminal, else as one table after the other, each under its time. Ends with \
code 0 on INT or TERM. Without keys each look reads the whole table.";

pub(crate) const CREATE_TABLE: &str = "\
Creates the table if it is not there, with on-demand billing unless told otherwise, and turns TTL on. It waits until the \
table can be used. IAM actions: dynamodb:CreateTable, dynamodb:DescribeTable, dynamodb:DescribeTimeToLive, \
dynamodb:UpdateTimeToLive, and with tags dynamodb:TagResource.";

pub(crate) const CHECK: &str = "\
Prints a line for each thing it looked at, with the way out where it is not well. Exits with 0 if locks work, warnings \
included, and with 78 if they do not.";

/// The codes with their meanings.
const EXIT_STATUS: [(&str, &str); 10] = [
    ("0", "done"),
    ("2", "the command line is wrong"),
    ("69", "no usable answer: DynamoDB cannot be reached, throttles, or is at a transaction on the row"),
    ("74", "standard output, or something else of this machine, cannot be used, or what guards the command was killed"),
    ("75", "the key is held by someone else, or release was told no and left it as it is"),
    ("76", "the lock was lost: its lease ended and the command was ended, or someone else has the key"),
    ("78", "something has to be set right: the table, the access, credentials, region, a variable, a row"),
    ("126", "the command of run cannot be run"),
    ("127", "the command of run was not found"),
    ("128+N", "the command of run died of signal N, or signal N ended the wait for the lock"),
];

const ENVIRONMENT: [(&str, &str); 9] = [
    ("LOCK_TABLE_NAME", "the table, if there is no --table"),
    ("LOCK_KEY_PREFIX", "put before every key, if there is no --key-prefix"),
    ("LOCK_CLOCK_SKEW", "if there is no --clock-skew"),
    ("LOCK_LEASE", "for run, if there is no --lease"),
    ("LOCK_ENABLED", "for run: `false` runs the command without a lock"),
    ("LOCK_FENCE, LOCK_KEY", "set for the command of run: the number that grows with each acquisition, and the key"),
    ("AWS_PROFILE, AWS_REGION", "and what else the AWS command line interface reads"),
    ("AWS_ENDPOINT_URL", "where DynamoDB is, if not at AWS; also AWS_ENDPOINT_URL_DYNAMODB"),
    ("RUST_LOG", "logs on standard error, for example `lambda_lock=debug`; none by default"),
];

/// The command, what it is for, and how it is written.
const EXAMPLES: [(&str, &str, &str); 13] = [
    ("create-table", "Create the table", "lambda-lock create-table --table locks --tag team=billing"),
    ("check", "See whether everything is in order", "lambda-lock check --table locks"),
    ("run", "Skip a run while another is at it", "lambda-lock run --key nightly-report --lease 15m -- ./report.sh"),
    (
        "run",
        "Wait for the lock, and keep it for as long as the work takes",
        "lambda-lock run --key deploy --wait 5m --renew -- make deploy",
    ),
    (
        "run",
        "Once a minute, though cron runs on two machines",
        "lambda-lock run --key minutely --hold-at-least 50s -- ./job",
    ),
    (
        "run",
        "Try it without AWS",
        "lambda-lock run --embedded /tmp/locks.sqlite --key job -- sh -c 'echo \"fence $LOCK_FENCE\"'",
    ),
    ("list", "Who holds what", "lambda-lock list --held"),
    ("list", "The keys that a crash left behind", "lambda-lock list --json | jq 'select(.state == \"expired\").key'"),
    ("get", "Who holds a key", "lambda-lock get nightly-report"),
    ("release", "Free the key of a holder that is known to be dead", "lambda-lock release nightly-report --fence 17"),
    ("watch", "Watch two keys", "lambda-lock watch nightly-report deploy --interval 1s"),
    (
        "completions",
        "For bash",
        "lambda-lock completions bash > ~/.local/share/bash-completion/completions/lambda-lock",
    ),
    ("man", "Read the manual", "lambda-lock man > lambda-lock.1 && man ./lambda-lock.1"),
];

/// The examples of one command.
pub(crate) fn examples(command: &str) -> String {
    let mut text = "Examples:".to_owned();
    for (_, what, line) in EXAMPLES.iter().filter(|(of, ..)| *of == command) {
        let _infallible = write!(text, "\n  # {what}\n  {line}");
    }
    text
}

/// What stands at the end of the program's own help.
pub(crate) fn after_help() -> String {
    let mut text = String::new();
    for (heading, lines) in [("Exit status", &EXIT_STATUS[..]), ("Environment", &ENVIRONMENT[..])] {
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let _infallible = write!(text, "{heading}:");
        for (name, meaning) in lines {
            let _infallible = write!(text, "\n  {name:width$}  {meaning}");
        }
        text.push_str("\n\n");
    }
    text.push_str("Examples:");
    for (_, what, line) in EXAMPLES {
        let _infallible = write!(text, "\n  # {what}\n  {line}");
    }
    text
}

/// The completion script.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "lambda-lock", &mut script);
    script
}

/// The manual page: one for the program with all its commands.
pub(crate) fn page() -> io::Result<Vec<u8>> {
    let mut program = Arguments::command().disable_help_subcommand(true);
    program.build();
    let mut page = format!(".TH LAMBDA-LOCK 1 \"\" \"lambda-lock {}\"\n", env!("CARGO_PKG_VERSION")).into_bytes();
    let man = Man::new(program.clone());
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut page = String::from_utf8(page).map_err(io::Error::other)?;
    page.push_str(".SH COMMANDS\n");
    for command in program.get_subcommands_mut() {
        let usage = command.render_usage().to_string();
        let _infallible = writeln!(page, ".SS {}\n{}", command.get_name(), roff(usage.trim_start_matches("Usage: ")));
        let mut part = Vec::new();
        // The options for all commands stand above.
        let command = command.clone().mut_args(|argument| {
            let of_all = argument.is_global_set();
            argument.hide(of_all)
        });
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

/// One line of text, which roff is to print as it is.
fn roff(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}
