//! The commands `list`, `get` and `watch`, which show who holds which keys.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::{SystemTimeSource, TimeSource as _};
use lambda_lock::operate::{List, ListedRow};
use lambda_lock::{Error, ErrorKind, Locks};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::arguments::{Selection, TableOptions};
use crate::connect::{Connection, connect};
use crate::entry::{Entry, table};
use crate::failure::{Failure, UNAVAILABLE};
use crate::identity;
use crate::output::{print, say};

pub(crate) async fn list(options: &TableOptions, selection: Selection, json: bool) -> Result<(), Failure> {
    let Connection { locks, .. } = connect(options, identity::user()).await?;
    let entries = listed(&locks, selection).await?;
    let now = now();
    let text = if json { entries.iter().map(|entry| entry.json(now)).collect() } else { table(&entries, now) };
    print(text.as_bytes())
}

pub(crate) async fn get(options: &TableOptions, key: String, json: bool) -> Result<(), Failure> {
    let Connection { locks, .. } = connect(options, identity::user()).await?;
    let entry = read(&locks, key).await?;
    let text = if json { entry.json(now()) } else { table(&[entry], now()) };
    print(text.as_bytes())
}

pub(crate) async fn watch(
    options: &TableOptions,
    keys: Vec<String>,
    selection: Selection,
    pause: Duration,
) -> Result<(), Failure> {
    let (mut interrupted, mut terminated) = match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupted), Ok(terminated)) => (interrupted, terminated),
        (Err(error), _) | (_, Err(error)) => return Err(Failure::of_the_system(error)),
    };
    let watching = async {
        let Connection { locks, .. } = connect(options, identity::user()).await?;
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match snapshot(&locks, &keys, selection).await {
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

async fn snapshot(locks: &Locks, keys: &[String], selection: Selection) -> Result<Vec<Entry>, Failure> {
    if keys.is_empty() {
        return listed(locks, selection).await;
    }
    let mut entries = Vec::new();
    for key in keys {
        entries.push(read(locks, key.clone()).await?);
    }
    entries.retain(|entry| entry.is_selected(selection));
    Ok(entries)
}

fn show(entries: &[Entry]) -> Result<(), Failure> {
    let now = now();
    // On a terminal, the cursor moves to the top and the earlier table is deleted.
    let (place, end) = if io::stdout().is_terminal() { ("\x1b[H\x1b[2J", "") } else { ("", "\n") };
    let time = humantime::format_rfc3339_seconds(now);
    print(format!("{place}{time}\n{}{end}", table(entries, now)).as_bytes())
}

async fn read(locks: &Locks, key: String) -> Result<Entry, Failure> {
    match locks.get(&key).await {
        Ok(row) => Ok(Entry { key, row: Ok(row) }),
        Err(error) if error.kind() == ErrorKind::MalformedRow => Ok(Entry { key, row: Err(error) }),
        Err(error) => Err(error.into()),
    }
}

/// Returns the keys of the table that are selected, sorted.
async fn listed(locks: &Locks, selection: Selection) -> Result<Vec<Entry>, Failure> {
    let limit = usize::try_from(selection.limit).unwrap_or(usize::MAX);
    let mut list = locks.list();
    let mut entries = Vec::new();
    let mut progress = Progress { shown: false };
    while entries.len() <= limit
        && let Some(page) = next_page(&mut list).await?
    {
        entries.extend(page.into_iter().map(Entry::from).filter(|entry| entry.is_selected(selection)));
        progress.show(list.rows_read());
    }
    drop(progress);
    if entries.len() > limit {
        entries.truncate(limit);
        say(format_args!("more than {limit} keys match, and {limit} are shown: raise --limit to see more"));
    }
    entries.sort_by(|one, other| one.key.cmp(&other.key));
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
