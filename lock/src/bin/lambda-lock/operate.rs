//! What operators do to the table: `release`, `create-table`, `check`.

use std::io::{self, IsTerminal as _, Write as _};

use lambda_lock::Holder;

use crate::arguments::{Release, TableOptions};
use crate::connect::{Connection, connect};
use crate::{CONFIGURATION, Failure, HELD, line, run, say};

/// As clap has it.
const USAGE: u8 = 2;
/// How a row says that its last holder was not the one who released it.
pub(crate) const RELEASED_BY: &str = "released by ";

pub(crate) async fn release(options: &TableOptions, release: Release) -> Result<(), Failure> {
    let Release { key, fence, force, yes } = release;
    if force && !yes && !io::stdin().is_terminal() {
        let message = "--force asks before it releases, and there is no terminal to ask at: add --yes, or give --fence";
        return Err(Failure::new(USAGE, message));
    }
    let Connection { locks, .. } = connect(options, format!("{RELEASED_BY}{}", run::user())).await?;
    let Some(holder) = locks.get(&key).await?.filter(Holder::is_current) else {
        return line(&format!("key `{key}` is free already"));
    };
    if holder.is_completed() {
        let message =
            format!("key `{key}` is the record of a run that was completed, not a lock: it was left as it is");
        return Err(Failure::new(CONFIGURATION, message));
    }
    let there = holder.fence().map_or_else(|| "no fence".to_owned(), |fence| format!("fence {fence}"));
    let by = format!("held by {holder} with {there}");
    let held = format!("key `{key}` is {by}");
    if let Some(fence) = fence
        && holder.fence() != Some(fence)
    {
        let message = format!("{held}, not with fence {fence}: look again before you release it");
        return Err(Failure::new(HELD, message));
    }
    if force && !yes {
        say(format_args!("{held}. Its work is not stopped by this."));
        if !is_confirmed("Release it? [y/N] ").map_err(Failure::of_the_system)? {
            return Err(Failure::new(HELD, format!("key `{key}` was left as it is")));
        }
    }
    if locks.force_release(&key, &holder).await? {
        line(&format!("released: key `{key}`, which was {by}"))
    } else {
        Err(Failure::new(
            HELD,
            format!("key `{key}` has changed hands in the meantime and was left as it is: look again"),
        ))
    }
}

fn is_confirmed(question: &str) -> io::Result<bool> {
    write!(io::stderr(), "{question}")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

pub(crate) async fn create_table(
    options: &TableOptions,
    tags: Vec<(String, String)>,
    provisioned: Option<(i64, i64)>,
) -> Result<(), Failure> {
    let Connection { locks, table } = connect(options, run::user()).await?;
    let mut create = locks.create_table();
    for (key, value) in tags {
        create = create.tag(key, value);
    }
    if let Some((read, write)) = provisioned {
        create = create.provisioned(read, write);
    }
    create.await?;
    line(&format!("table `{table}` is ready"))
}

pub(crate) async fn check(options: &TableOptions) -> Result<(), Failure> {
    let Connection { locks, table } = connect(options, run::user()).await?;
    let report = locks.check().await;
    report.to_string().lines().try_for_each(line)?;
    if report.is_healthy() {
        return Ok(());
    }
    Err(Failure::new(
        CONFIGURATION,
        format!("locks in table `{table}` do not work or are not safe: see what failed above"),
    ))
}
