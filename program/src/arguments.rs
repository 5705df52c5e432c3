//! The command line: its commands and options, with their help.
#![allow(clippy::doc_markdown, reason = "clap prints these comments as they are")]

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Command, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use serde_json::Value;

use crate::help;

#[derive(Debug, Parser)]
#[command(name = "lambda-lock", version, about = "Locks on a DynamoDB table, for shell scripts and operators")]
#[command(long_about = help::DESCRIPTION, after_long_help = help::after_help())]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) table: TableOptions,
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// Returns the command line. The options for the table, which all commands have, are in the help of the program only.
pub(crate) fn command_line() -> Command {
    let mut program = Arguments::command();
    program.build();
    program.mut_subcommands(|command| {
        command.mut_args(|argument| {
            let of_all = argument.is_global_set();
            argument.hide(of_all)
        })
    })
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Table and connection")]
pub(crate) struct TableOptions {
    /// Name or ARN of the table [environment: LOCK_TABLE_NAME]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// Region of the table [environment: AWS_REGION]
    #[arg(long, global = true, value_name = "REGION")]
    pub(crate) region: Option<String>,
    /// URL of DynamoDB, if it is not at AWS [environment: AWS_ENDPOINT_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) endpoint_url: Option<String>,
    /// Profile in ~/.aws/config [environment: AWS_PROFILE]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Prefix of every key [environment: LOCK_KEY_PREFIX]
    #[arg(long, global = true, value_name = "PREFIX")]
    pub(crate) key_prefix: Option<String>,
    /// How much the clocks of two hosts may differ, up to 5m; use the same value for all users of the table [default:
    /// 1s] [environment: LOCK_CLOCK_SKEW]
    #[arg(long, global = true, value_name = "DURATION", value_parser = clock_skew)]
    pub(crate) clock_skew: Option<Duration>,
    /// Name of the table's partition key [default: id]
    #[arg(long, global = true, value_name = "ATTRIBUTE")]
    pub(crate) partition_key: Option<String>,
    /// Name of the table's sort key, and its value in the rows of locks [default: none]
    #[arg(long, global = true, value_name = "ATTRIBUTE=VALUE", value_parser = pair)]
    pub(crate) sort_key: Option<(String, String)>,
    /// Name of the sort key that has the key, and the value of the partition key in each row: the composite layout of
    /// Powertools [default: none]
    #[arg(long, global = true, value_name = "ATTRIBUTE=VALUE", value_parser = pair, conflicts_with = "sort_key")]
    pub(crate) key_in_sort_key: Option<(String, String)>,
    /// Use a DynamoDB in this file instead of AWS, to try it on one machine; creates the file and the table
    #[cfg(feature = "embedded")]
    #[arg(long, global = true, value_name = "FILE", conflicts_with_all = ["region", "endpoint_url", "profile"])]
    pub(crate) embedded: Option<std::path::PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run a command while holding a lock
    #[command(after_help = help::examples(Some("run")), after_long_help = help::details("run"))]
    Run(Run),
    /// Let a call pass, so many in a period from all machines
    #[command(after_help = help::examples(Some("rate")), after_long_help = help::details("rate"))]
    Rate(Rate),
    /// Acquire a lock that outlives this process, and print its identity
    #[command(after_help = help::examples(Some("acquire")), after_long_help = help::details("acquire"))]
    Acquire(Acquire),
    /// Go on with the lock of an identity: a new lease, and a larger fence
    #[command(after_help = help::examples(Some("renew")), after_long_help = help::details("renew"))]
    Renew(Renew),
    /// List the keys of the table; reads the whole table
    #[command(after_help = help::examples(Some("list")), after_long_help = help::details("list"))]
    List {
        #[command(flatten)]
        selection: Selection,
        /// Print a JSON object on each line
        #[arg(long)]
        json: bool,
    },
    /// Show who holds keys, or held them last
    #[command(after_help = help::examples(Some("get")), after_long_help = help::details("get"))]
    Get {
        /// Keys, with the prefix or without
        #[arg(required = true, value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
        keys: Vec<String>,
        /// Print a JSON object for each key, on a line each
        #[arg(long)]
        json: bool,
    },
    /// Free the key of an identity, or a key that a holder left behind
    #[command(after_help = help::examples(Some("release")), after_long_help = help::details("release"))]
    Release(Release),
    /// Store the result of a run that died after its work was done
    #[command(after_help = help::examples(Some("complete")), after_long_help = help::details("complete"))]
    Complete(Complete),
    /// Show keys repeatedly
    #[command(after_help = help::examples(Some("watch")), after_long_help = help::details("watch"))]
    Watch {
        /// Keys, each read on its own; without keys, the whole table is read each time
        #[arg(value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
        keys: Vec<String>,
        #[command(flatten)]
        selection: Selection,
        /// Time between two reads, from 100ms to 1d
        #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
        interval: Duration,
    },
    /// Create the table for the locks, with its TTL
    #[command(after_help = help::examples(Some("create-table")), after_long_help = help::details("create-table"))]
    CreateTable {
        /// Tag for the table; may be repeated
        #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
        tags: Vec<(String, String)>,
        /// Provisioned read and write capacity units, instead of on-demand billing
        #[arg(long, value_name = "READ,WRITE", value_parser = capacity)]
        provisioned: Option<(i64, i64)>,
    },
    /// Check the table, its TTL, the clock and the permissions, or a function
    #[command(after_help = help::examples(Some("check")), after_long_help = help::details("check"))]
    Check {
        /// Instead of the table, check the event source mappings of this function and their queues; a name or an ARN, with
        /// `:` and the alias if the mappings are those of an alias
        #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
        function: Option<String>,
    },
    /// Delete the rows that TTL would delete, in a table without TTL
    #[command(after_help = help::examples(Some("delete-expired")), after_long_help = help::details("delete-expired"))]
    DeleteExpired,
    /// Print a completion script for a shell
    #[command(after_help = help::examples(Some("completions")))]
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = help::examples(Some("man")))]
    Man,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Key to lock
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// Longest time for which the lock is held, from 1ms to 1d; the command is then ended [default: 30s]
    /// [environment: LOCK_LEASE]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    pub(crate) lease: Option<Duration>,
    /// Longest time to wait for a key that is held, up to 1d; by default there is one attempt
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    pub(crate) wait: Option<Duration>,
    /// Let up to this many holders have the key at a time, from 1 to 100: the key is then a semaphore, not a lock
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) at_most: Option<u32>,
    /// Shortest time for which the key stays held if the command ends with code 0, up to 1d, so that two schedules that
    /// fire seconds apart run it once; after any other end the key is free at once
    #[arg(long, value_name = "DURATION", value_parser = min_hold, conflicts_with = "at_most")]
    pub(crate) min_hold: Option<Duration>,
    /// Skip the command if the key is held, and run it once more if others were skipped while it ran; all commands for the key
    /// need the option
    #[arg(long, conflicts_with_all = ["at_most", "min_hold"])]
    pub(crate) coalesce: bool,
    /// Renew the lease each time a third of it is over, for as long as the command runs
    #[arg(long)]
    pub(crate) renew: bool,
    /// Name of the holder, for others to read [default: user@host, process id and the command's first word]
    #[arg(long, value_name = "NAME")]
    pub(crate) holder: Option<String>,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Rate {
    /// Key of the rate
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// How many calls may pass in the period, at most one in a millisecond
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) calls: u32,
    /// Period, from 1ms to 1d
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = lease)]
    pub(crate) period: Duration,
    /// How many calls may come at once after a quiet time
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) burst: u32,
    /// Longest time to wait until the call may pass, up to 1d; by default it passes at once or not at all
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Acquire {
    /// Key to lock
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// Identity of the work, such as the id of the pipeline's run, up to 1,024 bytes; another acquire with the same
    /// identity takes the lock over [default: a random one]
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) identity: Option<String>,
    /// Longest time to wait for a key that is held, up to 1d; by default there is one attempt
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

#[derive(Args, Debug)]
pub(crate) struct Renew {
    /// Key of the lock, with the prefix or without
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// Identity that holds the key, as `acquire` printed it
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) identity: String,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

/// The options of a lock that outlives its process.
#[derive(Args, Debug)]
pub(crate) struct Kept {
    /// Time for which the identity holds the key from now on, unless it renews or releases it, from 1ms to 366d [default: 30s]
    /// [environment: LOCK_LEASE]
    #[arg(long, value_name = "DURATION", value_parser = long_lease)]
    pub(crate) lease: Option<Duration>,
    /// Let up to this many holders have the key at a time, from 1 to 100: the key is then a semaphore, not a lock, and the
    /// lease lasts up to a day
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) at_most: Option<u32>,
    /// Name of the holder, for others to read [default: user@host]
    #[arg(long, value_name = "NAME")]
    pub(crate) holder: Option<String>,
    /// Print a JSON object with key, identity, fence and until
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("whose").required(true).args(["fence", "force", "identity"]))]
pub(crate) struct Release {
    /// Key to free, with the prefix or without
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// Free the key or the permit if this identity holds it; the exit code is 0 if it does not
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) identity: Option<String>,
    /// Fence of the acquisition to end, as `get` shows it
    #[arg(long)]
    pub(crate) fence: Option<u64>,
    /// Release the key no matter who holds it; shows the holder and asks first
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Complete {
    /// Key of the record, with the prefix or without
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// Fence of the run, as `get` shows it
    #[arg(long)]
    pub(crate) fence: u64,
    /// Time for which retries get the result, from 1s to 366d: the window of the function
    #[arg(long, value_name = "DURATION", value_parser = window)]
    pub(crate) window: Duration,
    /// Result that retries get; without it they get null, as is right for messages of a queue
    #[arg(long, value_name = "JSON", value_parser = json)]
    pub(crate) result: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Selection {
    /// Only keys that nobody has released: a holder has them, or left them when its lease ended; and rates that are used up
    #[arg(long)]
    pub(crate) held: bool,
    /// Only keys that begin with this, as they are in the row
    #[arg(long, value_name = "TEXT")]
    pub(crate) starting_with: Option<String>,
    /// Only rows of this kind; the record of a run counts as a lock until the run has completed
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// Only keys that were acquired this long ago or earlier, up to 366d
    #[arg(long, value_name = "DURATION", value_parser = age)]
    pub(crate) older_than: Option<Duration>,
    /// Sort by the time of the acquisition, oldest first, instead of by key
    #[arg(long)]
    pub(crate) oldest_first: bool,
    /// Show at most this many keys, those found first; standard error says when there are more
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Lock,
    Semaphore,
    Rate,
    Record,
}

const DAY: Duration = Duration::from_hours(24);
/// The longest lease of a lock that outlives its process.
const LONGEST_LEASE: Duration = Duration::from_hours(366 * 24);

fn duration(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let value =
        humantime::parse_duration(text.trim()).map_err(|why| format!("{why}; write it like `30s` or `500ms`"))?;
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    let most = match most {
        LONGEST_LEASE => "366d".to_owned(),
        DAY => "1d".to_owned(),
        other => humantime::format_duration(other).to_string(),
    };
    Err(format!("must be between {} and {most}", humantime::format_duration(least)))
}

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1), DAY)
}

fn long_lease(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1), LONGEST_LEASE)
}

pub(crate) fn clock_skew(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, Duration::from_mins(5))
}

fn wait(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, DAY)
}

fn min_hold(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, DAY)
}

fn age(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, LONGEST_LEASE)
}

fn window(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_secs(1), LONGEST_LEASE)
}

/// Returns JSON text as it was given, because writing it anew would round long numbers.
fn json(text: &str) -> Result<String, String> {
    serde_json::from_str::<Value>(text).map(|_| text.to_owned()).map_err(|why| format!("it is not JSON: {why}"))
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(100), DAY)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("no `=` found; write it like `name=value`")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn capacity(text: &str) -> Result<(i64, i64), String> {
    let units = text.split_once(',').and_then(|(read, write)| {
        let units = |text: &str| text.trim().parse().ok().filter(|units| *units > 0);
        Some((units(read)?, units(write)?))
    });
    units.ok_or_else(|| "must be two numbers from 1; write them like `5,5`".to_owned())
}
