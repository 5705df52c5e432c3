//! The program `lambda-lock`: locks for shell scripts, and a look at who holds what.

#[cfg(not(unix))]
compile_error!("the program of the feature `cli` needs Unix: process groups and signals");

mod arguments;
mod command;
mod connect;
mod manual;
mod operate;
mod run;
mod show;

use std::env;
use std::error::Error as StdError;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use aws_sdk_dynamodb::error::ErrorMetadata;
use clap::Parser;
use lambda_lock::Error;
use tracing_subscriber::EnvFilter;

use crate::arguments::{Action, Arguments};

fn main() -> ExitCode {
    // What this program starts itself as stands apart from what people say to it.
    match env::args_os().nth(1).as_deref().and_then(|first| first.to_str()) {
        Some(command::GUARD) => return command::guard(),
        Some(command::EXEC) => return command::exec(env::args_os().skip(2).collect()),
        _ => {}
    }
    let arguments = Arguments::parse();
    if let Ok(filter) = EnvFilter::try_from_default_env() {
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Log).init();
    }
    // In one thread: the kernel kills the command when the thread that started it has died.
    let outcome =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::of_the_system).and_then(
            |runtime| {
                let outcome = runtime.block_on(act(arguments));
                // Not held up by a name that is still being looked up.
                runtime.shutdown_background();
                outcome
            },
        );
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            if !message.is_empty() {
                say(message);
            }
            ExitCode::from(code)
        }
    }
}

async fn act(Arguments { table, action }: Arguments) -> Result<u8, Failure> {
    match action {
        Action::Run(run) => return run::run(&table, run).await,
        Action::List { selection, json } => show::list(&table, selection, json).await?,
        Action::Get { key, json } => show::get(&table, key, json).await?,
        Action::Watch { keys, selection, interval } => show::watch(&table, keys, selection, interval).await?,
        Action::Release(release) => operate::release(&table, release).await?,
        Action::CreateTable { tags, provisioned } => operate::create_table(&table, tags, provisioned).await?,
        Action::Check => operate::check(&table).await?,
        Action::Completions { shell } => print(&manual::completions(shell))?,
        Action::Man => print(&manual::page().map_err(Failure::of_the_system)?)?,
    }
    Ok(0)
}

/// No answer that can be used: `EX_UNAVAILABLE` of sysexits.h.
const UNAVAILABLE: u8 = 69;
/// `EX_IOERR`.
const BROKEN_OUTPUT: u8 = 74;
/// Someone else has the key: `EX_TEMPFAIL`.
const HELD: u8 = 75;
/// The lock was lost.
const LOST: u8 = 76;
/// Something has to be set right first: `EX_CONFIG`.
const CONFIGURATION: u8 = 78;

/// Why the program ends with another code than 0, in one sentence.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn of_the_system(error: impl Display) -> Self {
        Self::new(BROKEN_OUTPUT, format!("the operating system refused something that is needed: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = if error.is_held() {
            HELD
        } else if error.is_lost() {
            LOST
        } else if error.is_throttled() || error.is_unavailable() || error.is_conflict() {
            UNAVAILABLE
        } else {
            CONFIGURATION
        };
        Self::new(code, sentence(&error))
    }
}

/// The error with the cause that it does not name by itself.
fn sentence(error: &Error) -> String {
    if error.is_table_not_found() {
        return format!(
            "table `{}` not found in this account and region: create it with `lambda-lock create-table`, or look at --table, \
             --region and --endpoint-url",
            error.table()
        );
    }
    match error.source() {
        Some(source) => format!("{error} ({})", cause(source)),
        None => error.to_string(),
    }
}

/// What is at the bottom of an error, in a line.
fn cause(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let answered = last.downcast_ref::<ErrorMetadata>().and_then(ErrorMetadata::message);
    let text = answered.map_or_else(|| last.to_string(), str::to_owned);
    // A list of what was tried would follow.
    text.lines().next().unwrap_or_default().trim_end_matches(" Attempted:").trim_end_matches('.').to_owned()
}

/// One line on standard error, where nobody may be listening.
fn say(message: impl Display) {
    let message = printable(&message.to_string());
    let _nobody_is_listening = writeln!(io::stderr(), "lambda-lock: {message}");
}

/// Standard error for the log, which repeats what others wrote, such as the name of a holder.
#[derive(Debug)]
struct Log;

impl Write for Log {
    /// Takes a whole line: `tracing_subscriber` writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        writeln!(io::stderr(), "{}", printable(text.strip_suffix('\n').unwrap_or(&text)))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line on standard output.
fn line(text: &str) -> Result<(), Failure> {
    print(format!("{}\n", printable(text)).as_bytes())
}

/// Replaces each character that misleads the reader.
fn printable(text: &str) -> String {
    text.chars().map(|c| if misleads(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Whether a character steers the terminal, ends the line, turns the direction of what follows, or cannot be seen: control
/// characters, the separators of lines and paragraphs, the annotation characters, and `Default_Ignorable_Code_Point` of
/// Unicode 17, which has the marks of direction.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Writes to standard output. A reader that has gone, such as `head`, ends the program quietly.
fn print(text: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::new(0, ""),
        _ => Failure::new(BROKEN_OUTPUT, format!("standard output cannot be written: {error}")),
    })
}
