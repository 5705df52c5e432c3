//! The long texts of the help and the manual page: what the commands do, exit codes, the environment, examples.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

/// The width of the lists in the help.
const WIDTH: u16 = 80;

pub(crate) const DESCRIPTION: &str = "\
Locks on a DynamoDB table, for shell scripts and operators. One process at a time runs a command, on any number of \
machines. No server is needed. Lambda functions use the same locks, through the Rust crate lambda-lock.

A duration is a number and a unit, such as 500ms, 30s, 15m, 2h or 1d.";

const RUN: &str = "\
Runs a command while holding a lock. The exit code is that of the command, or 128 plus the number of the signal that \
killed it. If the key is held, the command does not run and the exit code is 75.

The command finds LOCK_FENCE, LOCK_KEY, LOCK_TABLE_NAME and LOCK_KEY_PREFIX in its environment. The lock is released when the command \
ends.

The command never runs longer than the lease. It gets SIGTERM when a tenth of the lease is left, at most 10 seconds, \
and SIGKILL when the lease ends. The exit code is then 76.

With --renew the lease is renewed each time a third of it is over. If a renewal fails, standard error says so and the \
renewal is tried again. If a renewal finds that the lock was lost, the command gets SIGTERM and, a tenth of a second \
later, SIGKILL. The lease is not renewed while the command is stopped, by ^Z or because it asked for a \
password in the background; standard error says so.

With --at-most 5 up to five holders have the key at a time, and the exit code is 75 if five others have it. All \
commands for the key need the option, because a key is either a lock or a semaphore; a command of the other kind ends \
with code 78.

With --coalesce, a command that finds the key held leaves its work to the holder, whose command runs once more when it \
has ended, with whatever code, and however many were skipped. So a change that comes in during a run is not lost. The skipped \
command ends with code 0 and standard error says so. The holder ends with the code of its last run. If the holder is told to \
end, its command does not run once more: standard error says so, and the code is that of the signal. After a lost lock (76) \
and a crash, run the command again, because others may have been skipped. With --wait, a command is skipped only after the wait.

With --min-hold the key stays held for that long after the acquisition, if the command ends with code 0. After \
any other end, and if the command cannot be run, the key is free at once, so that another attempt can follow.

Signals and processes

The command runs in a process group of its own. Its signals and its end reach the whole group. INT, TERM, HUP, QUIT, \
USR1 and USR2 are passed on to it.

If standard input is a terminal, the command stays in the terminal's foreground group instead, so that it can read \
from the terminal. The terminal itself then sends INT and QUIT to the command, and they are not passed on again. \
Other signals and the end reach the command but not its children.

Children that the command leaves behind when it ends are not ended. They run on without the lock.

A command that moves to another group, as timeout and setsid do, gets its signals and its end there, together with \
that group. Children that change their group themselves escape: a daemon, the jobs of an interactive shell, a timeout \
or setsid within a script. No signal and no end reaches them, and they run on without the lock.

A command that runs as another user gets no signals and cannot be ended. Write `sudo lambda-lock`, not `lambda-lock` \
with sudo as its command. Standard error says when a signal was refused.

A second process of lambda-lock guards the command. It kills the command's whole group when lambda-lock itself is \
killed, or is stopped until the lease ends. There is no guard if standard input is a terminal. If the guard is \
killed, the command gets SIGTERM and, after a tenth of the lease, at most 10 seconds, SIGKILL. The exit code is then \
74. On Linux the kernel also kills the command, but not its children, when lambda-lock is killed.

If standard input is not a terminal and the command asks for something at /dev/tty, the command is stopped, because \
its group is not in the foreground. It is killed when the lease ends. Leave standard input at the terminal for \
commands that ask.

With LOCK_ENABLED=false in the environment, the command runs without a lock and LOCK_FENCE is 0. One warning says so.";

const RATE: &str = "\
Lets a call pass: so many in a period, from all machines and functions that use the key. Nothing is released \
afterwards. Ten calls in a second are spread evenly, one each 100 ms; with --burst 10, ten may come at once after a \
second without calls.

If the call may not pass yet, the exit code is 75, and standard error says when to come back. With --wait it sleeps until its \
time comes, in the order of arrival, or fails at once if that would take longer. A call that is interrupted while it \
sleeps has used up its time. Wait for longer than the clocks of the machines may differ, plus the time between two calls: \
otherwise a machine whose clock is behind can be refused each time.

A call that is late for its time by more than the time between two calls, and by more than 100 ms, asks for another time. \
If a call with a wrong period or a wrong clock has moved the key far ahead, `lambda-lock release KEY --force` lets the \
next call pass.

One request, or two after a quiet time (IAM action dynamodb:UpdateItem). With LOCK_ENABLED=false in the environment, \
each call passes. One warning says so.";

const ACQUIRE: &str = "\
Acquires a lock for a pipeline whose steps are separate processes, and prints the identity that holds it. The lock \
outlives this process: the identity holds the key until `release KEY --identity`, or until the lease ends. If another \
holder has the key, nothing is printed and the exit code is 75. If the identity cannot be printed, the \
exit code is 74, and the key is released unless you gave the identity.

Without --identity, each acquire has a random identity. With --identity, another acquire with the same identity takes the lock \
over, with a larger fence, so that a step which is repeated finds its own lock. Anyone who knows the identity and may write \
to the table can renew and release the lock, and `get` shows the identity. In the Rust crate, Acquire::take_over goes on \
with the lock.

The lease should be a little longer than the work takes, or than the time until the next `renew`. Nothing ends the \
work when the lease ends. After a crash the key stays held until then; `release` frees it earlier.

One request, and two to take a lock over (IAM action dynamodb:UpdateItem). With LOCK_ENABLED=false in the environment, the \
identity does not hold a lock. One warning says so.";

const RENEW: &str = "\
Takes the lock over from the step before, and keeps it for the same identity, with a new lease from now on. The new lease may \
end before the old one. The fence grows each time, so if a receiver of your writes compares fences, pass it the fence that \
this command prints: a repeated step then has a larger fence than its first attempt. The holder's name becomes that of this \
command. If acquire had --at-most, give it here, too.

The exit code is 76 if the identity does not hold the key: the lease has ended, the key was released, or another holder has \
it. The command never acquires a free key, because another holder may have had it meanwhile. If DynamoDB does not answer, \
repeat the command: the identity still holds the key.

Two requests (IAM action dynamodb:UpdateItem). With LOCK_ENABLED=false in the environment, nothing is sent. One warning \
says so.";

const LIST: &str = "\
Lists keys with their state, sorted by key. Keys are as they are in the row: with the prefix. Keys of more than 100 \
bytes are shortened, except in JSON. It reads the table until it has found as many keys as the limit (IAM \
action dynamodb:Scan, and dynamodb:GetItem for each semaphore). Of a larger table it therefore shows the keys that it \
found first, not the first ones of the sorted table. A page that is throttled is read again a few times. The states:

held: a holder has the key, or --min-hold keeps it

used up: the next call of a rate is not due yet, but a call of its burst may pass

free: the last holder released it

expired: the lease ended without a release, because the holder crashed or overran it; a lock is free then, but the \
unfinished record of a function with OnUnfinished::Reject is refused until `release` or `complete`

completed: the record of an idempotent run that was completed

malformed: the row cannot be read, and a sentence on standard error says why

no row: in watch, a key that has no row: nothing has held it since it was deleted, or it is misspelled

The columns AGE, LEFT and HOLD are in seconds: since the acquisition, until the lease ends, and the mean of recent holds from \
acquire to release, in which the last hold counts for an eighth (for more while there are few).

WAITING is the number of waiters in the key's queue. A waiter that gave up counts until a waiter behind it acquires \
the key, or until the last waiter has stopped waiting. Waiters for the record of an idempotent run, and waiters with \
an explicit backoff, are not in the queue.

A semaphore has a line for each permit in its row. HOLD and WAITING are in the first one.

With --json, each line is an object with key and state. It also has, where they are known, holder, identity, fence, \
acquired_at and until (RFC 3339), remaining_seconds if the key is held or used up, hold_seconds, waiting if the key has a row, and error if the row is \
malformed. A semaphore has permits, a list of objects with state, holder, identity, fence, acquired_at, until and \
remaining_seconds; its own fields are those of the permit whose lease ends first.";

const GET: &str = "\
Shows who holds keys, or held them last. It sends one consistent read for each (IAM action dynamodb:GetItem). The exit code is \
0 in every state. The columns and the JSON are those of list.

A key is named as logs, errors and list show it, with the key prefix of its function, or without the prefix if it is \
given by --key-prefix. A key without a row is an error: the exit code is 66, and standard error names keys of the \
table that are like it (IAM action dynamodb:Scan, up to 5 requests).";

const RELEASE: &str = "\
With --identity, frees the key or the permit if this identity holds it: in the last step of a pipeline, or after a pipeline \
was stopped. Make sure that its work has ended. If the identity does not hold the key, the command says so, and the exit \
code is 0, so that the last step can be repeated. With LOCK_ENABLED=false in the environment, nothing is sent.

With --fence or --force, frees the key for an operator. Each way needs the IAM actions dynamodb:GetItem and \
dynamodb:UpdateItem. This does not stop the \
holder's work: make sure that the holder has crashed, or that its writes are fenced. `run --renew` notices it at its \
next renewal, when a third of the lease is over, and ends its command. Without --renew, the command runs on, at the \
longest until its lease ends. The code of `run` is 76 in both cases.

Give the fence that `get` showed. With the fence of a permit, only that permit of a semaphore is released. If another \
acquisition holds the key by then, the release is refused with code 75.

With --force the key, or every permit of a semaphore, is released no matter who holds it, after a question. With \
--yes there is no question. Any answer other than yes leaves the key unchanged and gives code 75. A key that is already \
free is no error. A key without a row is one, as for get. Nobody holds a rate, but with --force its next call passes at once: \
for a rate that a call with a wrong period or a wrong clock has moved far ahead.

The record of an idempotent run that did not finish is not free until it is released. Before you release it, make sure that \
its work was not done, because the next retry runs it. If it was done, use `lambda-lock complete`.";

const COMPLETE: &str = "\
Stores the result of an idempotent run that did not finish, although its work was done (IAM actions dynamodb:GetItem and \
dynamodb:UpdateItem). A function with OnUnfinished::Reject refuses every retry of such a run with the error `unfinished` \
until its window has passed; afterwards it would do the work again. For example, a payment was made, and the function died \
before it stored the receipt. After this command, each retry gets the result and does nothing.

If the work was not done, use `lambda-lock release` with the fence instead: the next retry runs.

The key must be the record of a run, and its state `expired`. Give the fence that `get` showed. If the run is still in \
progress, or another run has begun, nothing is changed and the code is 75. A lock has no result: a lock that you complete stays \
held for the window.

Give the window of the function, because it is not in the record. The result is JSON, as the function returns it. The \
format of Powertools for TypeScript stores other values than JSON: store none there.";

const WATCH: &str = "\
Shows keys again and again. On a terminal each table replaces the one before; elsewhere the tables follow each other, \
each under its time. The command ends with code 0 on INT or TERM. Without keys it reads the whole table each time.";

const CREATE_TABLE: &str = "\
Creates the table if it does not exist, and turns its TTL on, unless LOCK_MULTI_REGION_STRONG_CONSISTENCY is `true`: \
such a table has none. Of a table that exists, only TTL can change, and only if it has the keys of the locks and no rows of \
other programs: TTL deletes each row whose attribute `expiration` has passed. Otherwise nothing is changed and the code is 78. The default is on-demand billing. The command waits \
until the table can be used. IAM actions: dynamodb:CreateTable, dynamodb:DescribeTable, dynamodb:DescribeTimeToLive, \
dynamodb:UpdateTimeToLive, with tags dynamodb:TagResource, and for a table that exists without TTL dynamodb:Scan.";

const CHECK: &str = "\
Checks the table, its TTL, the clock and the permissions. It prints a line for each, and what to do where something \
is wrong. The exit code is 0 if locks work, even with warnings, and 78 if they do not.

With --function, it checks instead which settings lose messages or records of a Lambda function: those of its event \
source mappings, of their queues and dead-letter queues, and its timeout and reserved concurrency. Without a mapping, it \
checks the retries and the destination of asynchronous events. The line of a fault says what is set, what happens then, \
and which property to change. The exit code is 78 if a setting loses work, and 0 otherwise, even with warnings. It \
changes nothing, and needs no table. The function is one of the account and region that the options name.

IAM actions of --function: lambda:GetFunctionConfiguration, lambda:GetFunctionConcurrency, \
lambda:ListEventSourceMappings, lambda:GetFunctionEventInvokeConfig without mappings, and sqs:GetQueueUrl and \
sqs:GetQueueAttributes on the queues. If one is denied, its line says so, and the others are checked.";

const DELETE_EXPIRED: &str = "\
Deletes the rows that DynamoDB's TTL would delete, in a table without TTL: a global table with multi-Region strong \
consistency. Only rows of locks and records with the key prefix are deleted, and no row that is in use. It reads the whole table. IAM actions: \
dynamodb:Scan and dynamodb:DeleteItem.";

/// The exit codes with their meanings.
pub(crate) const EXIT_STATUS: [(&str, &str); 11] = [
    ("0", "done"),
    ("2", "the command line is wrong"),
    ("66", "no row has the key of get, release or complete"),
    ("69", "no usable answer: DynamoDB is unreachable, throttles, or runs a transaction on the row"),
    ("74", "standard output or another part of this machine failed, or the guard was killed"),
    ("75", "another holder has the key, a rate is used up, or release was not confirmed"),
    (
        "76",
        "the lock was lost: its lease ended and the command was ended, another holder has the key, or the identity of renew does \
         not hold it",
    ),
    ("78", "something must be corrected: the table, access, credentials, region, a variable, a row"),
    ("126", "the command of run cannot be run"),
    ("127", "the command of run was not found"),
    ("128+N", "signal N killed the command of run, or ended the wait for the lock"),
];

/// The environment variables with their meanings.
pub(crate) const ENVIRONMENT: [(&str, &str); 11] = [
    ("LOCK_TABLE_NAME", "the table, unless --table is given"),
    ("LOCK_KEY_PREFIX", "the prefix of every key, unless --key-prefix is given"),
    ("LOCK_CLOCK_SKEW", "the clock skew, unless --clock-skew is given"),
    ("LOCK_LEASE", "the lease of run, acquire and renew, unless --lease is given"),
    ("LOCK_ENABLED", "`false` makes run execute the command, and acquire print an identity, without a lock"),
    (
        "LOCK_MULTI_REGION_STRONG_CONSISTENCY",
        "`true` for a global table with multi-Region strong consistency, or one that is to become one",
    ),
    ("LOCK_FENCE, LOCK_KEY", "set by run: the number that grows with each acquisition, and the key"),
    ("AWS_PROFILE, AWS_REGION", "and the other variables that the AWS command line interface reads"),
    (
        "AWS_CA_BUNDLE",
        "a file of certificate authorities to trust instead of those of the system; also ca_bundle in a profile",
    ),
    ("AWS_ENDPOINT_URL", "the URL of DynamoDB, if it is not at AWS; also AWS_ENDPOINT_URL_DYNAMODB"),
    ("RUST_LOG", "logs on standard error, for example `lambda_lock=debug`; none by default"),
];

/// A command, what the example does, and its command line.
pub(crate) const EXAMPLES: &[(&str, &str, &str)] = &[
    ("create-table", "Create the table", "lambda-lock create-table --table locks --tag team=billing"),
    ("check", "Check that everything is in order", "lambda-lock check --table locks"),
    ("check", "Check that no setting of a consumer loses messages", "lambda-lock check --function payment-queue"),
    ("delete-expired", "Delete old rows once a day, from cron", "lambda-lock delete-expired --table locks"),
    ("run", "Skip a run while another is running", "lambda-lock run --key nightly-report --lease 15m -- ./report.sh"),
    (
        "run",
        "Wait for the lock, and keep it for as long as the work takes",
        "lambda-lock run --key deploy --wait 5m --renew -- make deploy",
    ),
    (
        "run",
        "Run once a minute, although cron runs on two machines",
        "lambda-lock run --key minutely --min-hold 50s -- ./job",
    ),
    (
        "run",
        "Run at most three at a time, and wait for a place",
        "lambda-lock run --key bank-api --at-most 3 --wait 5m -- ./call-the-bank.sh",
    ),
    (
        "run",
        "Rebuild an index after each change, one rebuild at a time",
        "lambda-lock run --key search-index --lease 15m --coalesce -- ./rebuild.sh",
    ),
    #[cfg(feature = "embedded")]
    ("run", "Try it without AWS", "lambda-lock run --embedded /tmp/locks.sqlite --key job -- printenv LOCK_FENCE"),
    (
        "rate",
        "Call at most ten times a second, from all machines",
        "lambda-lock rate --key bank-api --calls 10 --wait 5s && ./call-the-bank.sh",
    ),
    (
        "acquire",
        "Hold a lock from the first step of a pipeline to its last",
        "ID=$(lambda-lock acquire --key deploy --lease 30m)",
    ),
    (
        "acquire",
        "Find the lock of an earlier attempt of this run",
        "lambda-lock acquire --key deploy --lease 30m --identity \"$RUN\"",
    ),
    ("renew", "Hold the lock for half an hour more", "lambda-lock renew deploy --identity \"$RUN\" --lease 30m"),
    ("list", "Show who holds which keys", "lambda-lock list --held"),
    (
        "list",
        "Show the keys that a crash left behind",
        "lambda-lock list --json | jq 'select(.state == \"expired\").key'",
    ),
    ("get", "Show who holds a key", "lambda-lock get nightly-report"),
    ("release", "Release the lock in the last step of a pipeline", "lambda-lock release deploy --identity \"$RUN\""),
    ("release", "Free the key of a holder that has crashed", "lambda-lock release nightly-report --fence 17"),
    (
        "complete",
        "Store the receipt of a payment that was made by a run that died",
        "lambda-lock complete payments#7 --fence 17 --window 15d --result '{\"receipt\": 7}'",
    ),
    ("watch", "Watch two keys", "lambda-lock watch nightly-report deploy --interval 1s"),
    ("completions", "Complete commands in this bash", ". <(lambda-lock completions bash)"),
    ("man", "Read the manual", "lambda-lock man > lambda-lock.1 && man ./lambda-lock.1"),
];

/// Returns what a command does, beyond its first sentence.
pub(crate) fn about(command: &str) -> &'static str {
    match command {
        "run" => RUN,
        "rate" => RATE,
        "acquire" => ACQUIRE,
        "renew" => RENEW,
        "list" => LIST,
        "get" => GET,
        "release" => RELEASE,
        "complete" => COMPLETE,
        "watch" => WATCH,
        "create-table" => CREATE_TABLE,
        "check" => CHECK,
        "delete-expired" => DELETE_EXPIRED,
        _ => "",
    }
}

/// Returns the examples of one command, or of all.
pub(crate) fn examples(command: Option<&str>) -> String {
    let mut text = "Examples:".to_owned();
    for (_, what, line) in EXAMPLES.iter().filter(|(of, ..)| command.is_none_or(|command| command == *of)) {
        let _infallible = write!(text, "\n  # {what}\n  {line}");
    }
    text
}

/// Returns the end of a command's help: the examples come first, because most readers need no more.
pub(crate) fn details(command: &str) -> String {
    let examples = examples(Some(command));
    format!(
        "{examples}\n\nThe options for the table and the connection are those of `lambda-lock help`.\n\nDetails:\n\n{}",
        about(command)
    )
}

/// Returns the end of the program's own help.
pub(crate) fn after_help() -> String {
    let mut text = examples(None);
    for (heading, lines) in [("Exit status", &EXIT_STATUS[..]), ("Environment", &ENVIRONMENT[..])] {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        table.add_rows(lines.iter().map(|(name, meaning)| [name, meaning]));
        let _infallible = write!(text, "\n\n{heading}:\n{}", table.trim_fmt());
    }
    text
}
