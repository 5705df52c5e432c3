//! What can be said on the command line, and what `--help` says of it.
#![allow(clippy::doc_markdown, reason = "clap prints these comments as they are")]

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::manual;

#[derive(Debug, Parser)]
#[command(name = "lambda-lock", version, about = "Locks on a DynamoDB table, for shell scripts and operators")]
#[command(long_about = manual::DESCRIPTION, after_long_help = manual::after_help())]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) table: TableOptions,
    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Table and connection")]
pub(crate) struct TableOptions {
    /// The table's name or ARN [environment: LOCK_TABLE_NAME]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// The region of the table [environment: AWS_REGION]
    #[arg(long, global = true, value_name = "REGION")]
    pub(crate) region: Option<String>,
    /// Where DynamoDB is, if not at AWS [environment: AWS_ENDPOINT_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) endpoint_url: Option<String>,
    /// The profile in ~/.aws/config [environment: AWS_PROFILE]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// What is put before every key [environment: LOCK_KEY_PREFIX]
    #[arg(long, global = true, value_name = "PREFIX")]
    pub(crate) key_prefix: Option<String>,
    /// By how much the clocks of two hosts may differ, up to 5m; the same for all who use the table [default: 1s]
    /// [environment: LOCK_CLOCK_SKEW]
    #[arg(long, global = true, value_name = "DURATION", value_parser = clock_skew)]
    pub(crate) clock_skew: Option<Duration>,
    /// The name of the table's partition key [default: id]
    #[arg(long, global = true, value_name = "ATTRIBUTE")]
    pub(crate) partition_key: Option<String>,
    /// The name of the table's sort key, and the value that locks have there [default: none]
    #[arg(long, global = true, value_name = "ATTRIBUTE=VALUE", value_parser = pair)]
    pub(crate) sort_key: Option<(String, String)>,
    /// In place of AWS, a DynamoDB in this file, for a trial on one machine: the file and the table are created
    #[cfg(feature = "embedded")]
    #[arg(long, global = true, value_name = "FILE", conflicts_with_all = ["region", "endpoint_url", "profile"])]
    pub(crate) embedded: Option<std::path::PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run a command while holding a lock
    #[command(long_about = manual::RUN, after_help = manual::examples("run"))]
    Run(Run),
    /// List the keys of the table: reads all of it
    #[command(long_about = manual::LIST, after_help = manual::examples("list"))]
    List {
        #[command(flatten)]
        selection: Selection,
        /// Write a JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Say who holds a key, or held it last
    #[command(long_about = manual::GET, after_help = manual::examples("get"))]
    Get {
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        key: String,
        /// Write a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Free a key that a holder left behind
    #[command(long_about = manual::RELEASE, after_help = manual::examples("release"))]
    Release(Release),
    /// Show keys again and again
    #[command(long_about = manual::WATCH, after_help = manual::examples("watch"))]
    Watch {
        /// The keys, each read by itself; without any, the whole table is read each time
        #[arg(value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
        keys: Vec<String>,
        #[command(flatten)]
        selection: Selection,
        /// The time from one look to the next
        #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
        interval: Duration,
    },
    /// Create the table as the locks need it, with its TTL
    #[command(long_about = manual::CREATE_TABLE, after_help = manual::examples("create-table"))]
    CreateTable {
        /// A tag for the table; may be given more than once
        #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
        tags: Vec<(String, String)>,
        /// Provisioned read and write capacity units, in place of on-demand billing
        #[arg(long, value_name = "READ,WRITE", value_parser = capacity)]
        provisioned: Option<(i64, i64)>,
    },
    /// Look at the table, its TTL, the clock and the permissions
    #[command(long_about = manual::CHECK, after_help = manual::examples("check"))]
    Check,
    /// Write a completion script for a shell
    #[command(after_help = manual::examples("completions"))]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual page
    #[command(after_help = manual::examples("man"))]
    Man,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// What is locked
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// How long the lock is held at the most, from 1ms to 1day; the command is ended then [default: 30s]
    /// [environment: LOCK_LEASE]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    pub(crate) lease: Option<Duration>,
    /// How long to wait for a key that is held; without it, one attempt
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    pub(crate) wait: Option<Duration>,
    /// How long the key stays held if the command ends earlier with code 0, so that two schedules that fire seconds apart
    /// run it once; after another end it is free at once
    #[arg(long, value_name = "DURATION", value_parser = hold_at_least)]
    pub(crate) hold_at_least: Option<Duration>,
    /// Renew the lease when a third of it is over, for as long as the command runs
    #[arg(long)]
    pub(crate) renew: bool,
    /// What others read as the holder [default: user@host, process id and the command's first word]
    #[arg(long, value_name = "NAME")]
    pub(crate) holder: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("whose").required(true).args(["fence", "force"]))]
pub(crate) struct Release {
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// The fence of the acquisition that is to be ended, as `get` shows it
    #[arg(long)]
    pub(crate) fence: Option<u64>,
    /// Whoever holds it: shows who does, and asks
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Selection {
    /// Only keys that are held
    #[arg(long)]
    pub(crate) held: bool,
    /// How many keys at the most, those that are found first; standard error says when there are more
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

const DAY: Duration = Duration::from_hours(24);

fn duration(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let value =
        humantime::parse_duration(text.trim()).map_err(|why| format!("{why}: write it like `30s` or `500ms`"))?;
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    let [least, most] = [least, most].map(humantime::format_duration);
    Err(format!("it is not between {least} and {most}"))
}

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1), DAY)
}

pub(crate) fn clock_skew(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, Duration::from_mins(5))
}

fn wait(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, DAY)
}

fn hold_at_least(text: &str) -> Result<Duration, String> {
    duration(text, Duration::ZERO, DAY)
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(100), DAY)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("there is no `=` in it: write it like `name=value`")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn capacity(text: &str) -> Result<(i64, i64), String> {
    let units = text.split_once(',').and_then(|(read, write)| {
        let units = |text: &str| text.trim().parse().ok().filter(|units| *units > 0);
        Some((units(read)?, units(write)?))
    });
    units.ok_or_else(|| "these are not two numbers from 1 up: write them like `5,5`".to_owned())
}
