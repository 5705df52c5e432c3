//! The commands `list`, `get` and `watch`, which show who holds which keys.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::{SystemTimeSource, TimeSource as _};
use lambda_lock::operate::{List, ListedRow};
use lambda_lock::{Error, ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::arguments::{Selection, TableOptions};
use crate::connect::{Connection, Key, connect};
use crate::entry::{Entry, table};
use crate::failure::{Failure, NO_ROW, UNAVAILABLE};
use crate::identity;
use crate::output::{print, printable, say};

pub(crate) async fn list(options: &TableOptions, selection: &Selection, json: bool) -> Result<(), Failure> {
    let connection = connect(options, identity::user()).await?;
    let entries = listed(&connection, selection).await?;
    print_entries(&entries, json)
}

/// Prints a line for each key, or a table, and then why a row cannot be read.
fn print_entries(entries: &[Entry], json: bool) -> Result<(), Failure> {
    let now = now();
    if json {
        let lines: String = entries.iter().map(|entry| entry.json(now)).collect();
        return print(lines.as_bytes());
    }
    print(table(entries, now).as_bytes())?;
    entries.iter().filter_map(Entry::why_malformed).for_each(say);
    Ok(())
}

/// Shows keys. A key without a row is a failure, after the others are shown.
pub(crate) async fn get(options: &TableOptions, keys: Vec<String>, json: bool) -> Result<(), Failure> {
    let connection = connect(options, identity::user()).await?;
    let (mut entries, mut without_row) = (Vec::new(), Vec::new());
    for key in keys {
        match read(&connection, &key).await? {
            Entry { key, row: Ok(None) } => without_row.push(key),
            entry => entries.push(entry),
        }
    }
    if json || !entries.is_empty() {
        print_entries(&entries, json)?;
    }
    if without_row.is_empty() { Ok(()) } else { Err(missing(&connection, &without_row).await) }
}

/// Returns the failure of keys that have no row, with keys of the table that are like them.
pub(crate) async fn missing(connection: &Connection, keys: &[String]) -> Failure {
    let named: Vec<_> = keys.iter().map(|key| format!("`{}`", printable(key))).collect();
    let (named, table) = (named.join(", "), &connection.table);
    let near = near(connection, keys).await;
    let hint = match &near[..] {
        [] => {
            "`lambda-lock list` shows the keys. A function with LOCK_KEY_PREFIX has keys that begin with it".to_owned()
        }
        near => format!("Did you mean {}?", near.join(" or ")),
    };
    Failure::new(NO_ROW, format!("there is no key {named} in table `{table}`. {hint}"))
}

/// Returns some keys of the table that are most like these. They contain one of them, or differ in a few characters. Empty if
/// the table cannot be read.
async fn near(connection: &Connection, keys: &[String]) -> Vec<String> {
    /// How many pages of the table are read, and how many keys are named.
    const PAGES: usize = 5;
    const NAMED: usize = 3;
    const LIKE: f64 = 0.85;
    let likeness = |other: &str| {
        let of_key = |key: &String| if other.contains(key) { 1.0 } else { strsim::jaro_winkler(key, other) };
        keys.iter().map(of_key).fold(0.0, f64::max)
    };
    let mut list = connection.locks.list();
    let mut found = Vec::new();
    for _ in 0..PAGES {
        let Ok(Some(page)) = list.next_page().await else { break };
        let rows = page.into_iter().map(|row| connection.key(row.key).of_row);
        found.extend(rows.map(|key| (likeness(&key), key)).filter(|(likeness, _)| *likeness >= LIKE));
    }
    found.sort_by(|(one, a), (other, b)| other.total_cmp(one).then_with(|| a.cmp(b)));
    found.into_iter().take(NAMED).map(|(_, key)| format!("`{}`", printable(&key))).collect()
}

pub(crate) async fn watch(
    options: &TableOptions,
    keys: Vec<String>,
    selection: &Selection,
    pause: Duration,
) -> Result<(), Failure> {
    let (mut interrupted, mut terminated) = match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupted), Ok(terminated)) => (interrupted, terminated),
        (Err(error), _) | (_, Err(error)) => return Err(Failure::of_the_system(error)),
    };
    let watching = async {
        let connection = connect(options, identity::user()).await?;
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match snapshot(&connection, &keys, selection).await {
                Ok(entries) => show(&entries)?,
                // The next read may succeed.
                Err(failure) if failure.code == UNAVAILABLE => say(failure.message),
                Err(failure) => return Err::<(), _>(failure),
            }
        }
    };
    tokio::select! {
        Err(failure) = watching => Err(failure),
        _ = interrupted.recv() => Ok(()),
        _ = terminated.recv() => Ok(()),
    }
}

async fn snapshot(connection: &Connection, keys: &[String], selection: &Selection) -> Result<Vec<Entry>, Failure> {
    if keys.is_empty() {
        return listed(connection, selection).await;
    }
    let mut entries = Vec::new();
    for key in keys {
        entries.push(read(connection, key).await?);
    }
    let now = now();
    entries.retain(|entry| entry.is_selected(selection, now));
    Ok(entries)
}

fn show(entries: &[Entry]) -> Result<(), Failure> {
    let now = now();
    // On a terminal, the cursor moves to the top and the earlier table is deleted.
    let (place, end) = if io::stdout().is_terminal() { ("\x1b[H\x1b[2J", "") } else { ("", "\n") };
    let time = humantime::format_rfc3339_seconds(now);
    print(format!("{place}{time}\n{}{end}", table(entries, now)).as_bytes())
}

async fn read(connection: &Connection, key: &str) -> Result<Entry, Failure> {
    let Key { name, of_row: key } = connection.named_key(key);
    match connection.locks.get(name).await {
        Ok(row) => Ok(Entry { key, row: Ok(row) }),
        Err(error) if error.kind() == ErrorKind::MalformedRow => Ok(Entry { key, row: Err(error) }),
        Err(error) => Err(error.into()),
    }
}

/// Returns the keys of the table that are selected, sorted.
async fn listed(connection: &Connection, selection: &Selection) -> Result<Vec<Entry>, Failure> {
    let limit = usize::try_from(selection.limit).unwrap_or(usize::MAX);
    let now = now();
    let mut list = connection.locks.list();
    let mut entries = Vec::new();
    let mut progress = Progress { shown: false };
    while entries.len() <= limit
        && let Some(page) = next_page(&mut list).await?
    {
        let entry = |row: ListedRow| Entry { key: connection.key(row.key).of_row, row: row.holder.map(Some) };
        entries.extend(page.into_iter().map(entry).filter(|entry| entry.is_selected(selection, now)));
        progress.show(list.rows_read());
    }
    drop(progress);
    if entries.len() > limit {
        entries.truncate(limit);
        say(format_args!("more than {limit} keys match, and {limit} are shown: raise --limit to see more"));
    }
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    if selection.oldest_first {
        // Without a time comes last.
        entries.sort_by_key(|entry| (entry.since().is_none(), entry.since()));
    }
    Ok(entries)
}

/// Reads the next page. A throttled page is read again a few times, so that it does not cost the whole list.
async fn next_page(list: &mut List) -> Result<Option<Vec<ListedRow>>, Error> {
    let mut pause = Duration::from_millis(200);
    loop {
        match list.next_page().await {
            Err(error) if error.kind() == ErrorKind::Throttled && pause < Duration::from_secs(3) => {
                sleep(pause).await;
                pause *= 2;
            }
            answer => return answer,
        }
    }
}

/// The progress of a long list, on a terminal.
#[derive(Debug)]
struct Progress {
    shown: bool,
}

impl Progress {
    fn show(&mut self, read: u64) {
        // A list of about one page is done at once.
        if read >= 1000 && io::stderr().is_terminal() {
            self.shown = true;
            let _stderr_may_be_closed = write!(io::stderr(), "\r{read} rows read");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _stderr_may_be_closed = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn now() -> SystemTime {
    SystemTimeSource::new().now()
}
