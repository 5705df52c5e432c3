//! The program `lambda-lock`: locks for shell scripts, and commands that show and manage them.

#[cfg(not(unix))]
compile_error!("the program of the feature `cli` needs Unix: process groups and signals");

// From the lowest layer up: a file imports only from its own group and from lower layers, and there is no circle.
mod failure;
mod output;

mod arguments;
mod help;
mod manual;

mod connect;
mod identity;

mod command;
mod guard;
mod keep;
mod process;
mod rate;
mod run;
mod signals;
mod supervise;

mod entry;
mod show;

mod function;
mod mapping;
mod operate;

use std::env;
use std::process::ExitCode;

use clap::FromArgMatches as _;
use tracing_subscriber::EnvFilter;

use crate::arguments::{Action, Arguments, Release};
use crate::failure::Failure;
use crate::output::{Log, print, say};

fn main() -> ExitCode {
    // This program starts itself with arguments that are not part of its command line.
    match env::args_os().nth(1).as_deref().and_then(|first| first.to_str()) {
        Some(guard::GUARD) => return guard::main(),
        Some(command::EXEC) => return command::exec(env::args_os().skip(2).collect()),
        _ => {}
    }
    let matches = arguments::command_line().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = log().and_then(|()| process::runtime().map_err(Failure::of_the_system)).and_then(|runtime| {
        let outcome = runtime.block_on(act(arguments));
        // A name that is still being looked up must not delay the end.
        runtime.shutdown_background();
        outcome
    });
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

/// Logs on standard error if `RUST_LOG` says so.
fn log() -> Result<(), Failure> {
    // A filter of another form may be for the command.
    if let Some(Ok(filter)) = connect::variable("RUST_LOG", |filter| Ok(EnvFilter::try_new(filter)))? {
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Log).init();
    }
    Ok(())
}

async fn act(Arguments { table, action }: Arguments) -> Result<u8, Failure> {
    match action {
        Action::Run(run) => return run::run(&table, run).await,
        Action::Rate(rate) => rate::pass(&table, rate).await?,
        Action::Acquire(acquire) => return keep::acquire(&table, acquire).await,
        Action::Renew(renew) => keep::renew(&table, renew).await?,
        Action::List { selection, json } => show::list(&table, &selection, json).await?,
        Action::Get { keys, json } => show::get(&table, keys, json).await?,
        Action::Watch { keys, selection, interval } => show::watch(&table, keys, &selection, interval).await?,
        Action::Release(Release { key, identity: Some(identity), .. }) => {
            keep::release(&table, &key, &identity).await?;
        }
        Action::Release(release) => operate::release(&table, release).await?,
        Action::Complete(complete) => operate::complete(&table, complete).await?,
        Action::CreateTable { tags, provisioned } => operate::create_table(&table, tags, provisioned).await?,
        Action::Check { function: Some(function) } => function::check(&table, &function).await?,
        Action::Check { function: None } => operate::check(&table).await?,
        Action::DeleteExpired => operate::delete_expired(&table).await?,
        Action::Completions { shell } => print(&manual::completions(shell))?,
        Action::Man => print(&manual::page().map_err(Failure::of_the_system)?)?,
    }
    Ok(0)
}
