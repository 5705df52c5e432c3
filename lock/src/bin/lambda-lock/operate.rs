//! The commands `release`, `create-table`, `check` and `delete-expired`.

use std::io::{self, IsTerminal as _, Write as _};

use crate::arguments::{Release, TableOptions};
use crate::connect::{Connection, Key, connect};
use crate::failure::{CONFIGURATION, Failure, HELD, USAGE};
use crate::identity;
use crate::output::{line, printable, say};
use crate::show::missing;

/// Frees the key of another holder.
pub(crate) async fn release(options: &TableOptions, key: String, release: Release) -> Result<(), Failure> {
    let Release { fence, force, yes, owner_from, .. } = release;
    if let Some(owner) = owner_from {
        return release_identity(options, &key, &owner).await;
    }
    if force && !yes && !io::stdin().is_terminal() {
        let message = "--force asks for confirmation, and standard input is not a terminal: add --yes, or give --fence";
        return Err(Failure::new(USAGE, message));
    }
    let connection = connect(options, identity::releaser()).await?;
    let Key { name, of_row: key } = connection.named_key(&key);
    let Some(holder) = connection.locks.get(&name).await? else {
        return Err(missing(&connection, &[key]).await);
    };
    if !holder.is_current() {
        return line(&format!("key `{key}` is already free"));
    }
    let Connection { locks, table, .. } = connection;
    let refused =
        |code, why: &str| Err(Failure::new(code, format!("key `{key}` in table `{table}` was not released: {why}")));
    if holder.is_completed() {
        return refused(CONFIGURATION, "it is the record of a completed run, not a lock");
    }
    let holder = match holder.permits().iter().find(|permit| fence.is_some() && permit.fence() == fence) {
        Some(permit) => permit.clone(),
        None => holder,
    };
    let there = holder.fence().map_or_else(|| "no fence".to_owned(), |fence| format!("fence {fence}"));
    let by = match holder.permits() {
        [] => format!("held by {holder} with {there}"),
        _ => format!("held by {holder}"),
    };
    if let Some(fence) = fence
        && holder.fence() != Some(fence)
    {
        return refused(HELD, &format!("it is {by}, not with fence {fence}; look again with `get`"));
    }
    if force && !yes {
        say(format_args!("key `{key}` is {by}. Releasing the key does not stop its work."));
        if !is_confirmed("Release it? [y/N] ").map_err(Failure::of_the_system)? {
            return refused(HELD, "the answer was not `yes`");
        }
    }
    if locks.force_release(name, &holder).await? {
        line(&format!("released: key `{key}`, which was {by}"))
    } else {
        refused(HELD, "its holder has changed since it was read; look again with `get`")
    }
}

/// Frees what this identity holds.
async fn release_identity(options: &TableOptions, key: &str, owner: &str) -> Result<(), Failure> {
    let connection = connect(options, identity::user()).await?;
    let Key { name, of_row: key } = connection.named_key(key);
    let Connection { locks, table, .. } = connection;
    if locks.release_identity(name, owner).await? {
        return line(&format!("released: key `{key}` in table `{table}`"));
    }
    line(&format!("key `{key}` in table `{table}` is not held for `{}`", printable(owner)))
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
    let Connection { locks, table, .. } = connect(options, identity::user()).await?;
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
    let Connection { locks, table, .. } = connect(options, identity::user()).await?;
    let report = locks.check().await;
    report.to_string().lines().try_for_each(line)?;
    if report.is_healthy() {
        return Ok(());
    }
    let message = format!("table `{table}` failed the check: locks do not work or are not safe; see the lines above");
    Err(Failure::new(CONFIGURATION, message))
}

pub(crate) async fn delete_expired(options: &TableOptions) -> Result<(), Failure> {
    let Connection { locks, table, .. } = connect(options, identity::user()).await?;
    let deleted = locks.delete_expired().await?;
    line(&format!("deleted from table `{table}`: {deleted} {}", if deleted == 1 { "row" } else { "rows" }))
}
