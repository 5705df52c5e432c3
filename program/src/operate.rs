//! The commands `release`, `complete`, `create-table`, `check` and `delete-expired`.

use std::io::{self, IsTerminal as _, Write as _};

use lambda_lock::{Data, Holder, Locks};

use crate::arguments::{Complete, Release, TableOptions};
use crate::connect::{Connection, Key, connect};
use crate::failure::{CONFIGURATION, Failure, HELD, USAGE};
use crate::identity;
use crate::output::{line, say};
use crate::show::missing;

/// Frees the key of another holder.
pub(crate) async fn release(options: &TableOptions, release: Release) -> Result<(), Failure> {
    let Release { key, fence, force, yes, .. } = release;
    if force && !yes && !io::stdin().is_terminal() {
        let message = "--force asks for confirmation, and standard input is not a terminal: add --yes, or give --fence";
        return Err(Failure::new(USAGE, message));
    }
    let row = Row::read(options, &key, identity::releaser()).await?;
    let Row { key, holder, .. } = &row;
    // An unfinished run is refused, although its lease has ended.
    if !holder.is_current() && holder.has_released() {
        return line(&format!("key `{key}` is already free"));
    }
    let refused = |code, why: &str| row.refused(code, "released", why);
    if holder.is_completed() {
        return refused(CONFIGURATION, "it is the record of a completed run, not a lock");
    }
    if holder.is_rate() && fence.is_some() {
        return refused(CONFIGURATION, "it is a rate, which has no fence: --force lets its next call pass");
    }
    let holder = match holder.permits().iter().find(|permit| fence.is_some() && permit.fence() == fence) {
        Some(permit) => permit,
        None => holder,
    };
    let by = described(holder);
    if let Some(fence) = fence
        && holder.fence() != Some(fence)
    {
        return refused(HELD, &other_fence(&by, fence));
    }
    if force && !yes {
        let effect = if holder.is_rate() {
            "Its next call then passes at once. First correct the setting or the clock that has moved it so far ahead."
        } else if holder.is_current() {
            "Releasing the key does not stop its work."
        } else {
            "If it is the record of a run, the next retry does its work again."
        };
        say(format_args!("key `{key}` is {by}. {effect}"));
        if !is_confirmed("Release it? [y/N] ").map_err(Failure::of_the_system)? {
            return refused(HELD, "the answer was not `yes`");
        }
    }
    if row.locks.force_release(&row.name, holder).await? {
        line(&format!("released: key `{key}`, which was {by}"))
    } else {
        refused(HELD, CHANGED)
    }
}

/// Stores the result of a run that did not finish.
pub(crate) async fn complete(options: &TableOptions, complete: Complete) -> Result<(), Failure> {
    let Complete { key, fence, window, result } = complete;
    let row = Row::read(options, &key, identity::completer()).await?;
    let Row { key, holder, .. } = &row;
    let refused = |code, why: &str| row.refused(code, "completed", why);
    if holder.is_completed() {
        return refused(CONFIGURATION, "it is the record of a completed run already");
    }
    if holder.is_semaphore() {
        return refused(CONFIGURATION, "it is a semaphore, not the record of a run");
    }
    if holder.is_rate() {
        return refused(CONFIGURATION, "it is a rate, not the record of a run");
    }
    let by = described(holder);
    if holder.is_current() {
        return refused(HELD, &format!("it is {by}, and may still be at work: look again when its lease has ended"));
    }
    if holder.has_released() {
        return refused(CONFIGURATION, "nothing is unfinished: its last holder has released it");
    }
    if holder.fence() != Some(fence) {
        return refused(HELD, &other_fence(&by, fence));
    }
    if row.locks.force_complete(&row.name, holder, window, result.map(Data::from)).await? {
        line(&format!("completed: key `{key}`, which was {by}"))
    } else {
        refused(HELD, CHANGED)
    }
}

/// The row of a key that an operator has named.
struct Row {
    locks: Locks,
    table: String,
    /// The key without its prefix.
    name: String,
    key: String,
    holder: Holder,
}

const CHANGED: &str = "its holder has changed since it was read; look again with `get`";

impl Row {
    /// Reads the row, for an operator of this name.
    async fn read(options: &TableOptions, key: &str, operator: String) -> Result<Self, Failure> {
        let connection = connect(options, operator).await?;
        let Key { name, of_row: key } = connection.named_key(key);
        let Some(holder) = connection.locks.get(&name).await? else {
            return Err(missing(&connection, &[key]).await);
        };
        let Connection { locks, table, .. } = connection;
        Ok(Self { locks, table, name, key, holder })
    }

    fn refused(&self, code: u8, done: &str, why: &str) -> Result<(), Failure> {
        let Self { key, table, .. } = self;
        Err(Failure::new(code, format!("key `{key}` in table `{table}` was not {done}: {why}")))
    }
}

/// Says who holds a key, or has left it unfinished.
fn described(holder: &Holder) -> String {
    if holder.is_rate() {
        return format!("a rate that is used up until {}", humantime::format_rfc3339_millis(holder.until()));
    }
    let what = if holder.is_current() { "held" } else { "left unfinished" };
    match holder.permits() {
        [] => {
            let there = holder.fence().map_or_else(|| "no fence".to_owned(), |fence| format!("fence {fence}"));
            format!("{what} by {holder} with {there}")
        }
        _ => format!("{what} by {holder}"),
    }
}

fn other_fence(by: &str, fence: u64) -> String {
    format!("it is {by}, not with fence {fence}; look again with `get`")
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
