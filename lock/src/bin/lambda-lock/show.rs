//! Who holds what: `list`, `get`, `watch`.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::{SystemTimeSource, TimeSource as _};
use comfy_table::{Table, presets};
use lambda_lock::{Error, Holder, List, ListedRow, Locks};
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::arguments::{Selection, TableOptions};
use crate::connect::{Connection, connect};
use crate::{Failure, UNAVAILABLE, misleads, print, printable, run, say, sentence};

pub(crate) async fn list(options: &TableOptions, selection: Selection, json: bool) -> Result<(), Failure> {
    let Connection { locks, .. } = connect(options, run::user()).await?;
    let entries = listed(&locks, selection).await?;
    let now = now();
    let text = if json { entries.iter().map(|entry| entry.json(now)).collect() } else { table(&entries, now) };
    print(text.as_bytes())
}

pub(crate) async fn get(options: &TableOptions, key: String, json: bool) -> Result<(), Failure> {
    let Connection { locks, .. } = connect(options, run::user()).await?;
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
        let Connection { locks, .. } = connect(options, run::user()).await?;
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match snapshot(&locks, &keys, selection).await {
                Ok(entries) => show(&entries)?,
                // It may be well again at the next look.
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
    entries.retain(|entry| entry.is_wanted(selection));
    Ok(entries)
}

fn show(entries: &[Entry]) -> Result<(), Failure> {
    let now = now();
    // Home, and what was there before is deleted.
    let (place, end) = if io::stdout().is_terminal() { ("\x1b[H\x1b[2J", "") } else { ("", "\n") };
    let time = humantime::format_rfc3339_seconds(now);
    print(format!("{place}{time}\n{}{end}", table(entries, now)).as_bytes())
}

async fn read(locks: &Locks, key: String) -> Result<Entry, Failure> {
    match locks.get(&key).await {
        Ok(row) => Ok(Entry { key, row: Ok(row) }),
        Err(error) if error.is_malformed_row() => Ok(Entry { key, row: Err(error) }),
        Err(error) => Err(error.into()),
    }
}

/// The table's keys, sorted.
async fn listed(locks: &Locks, selection: Selection) -> Result<Vec<Entry>, Failure> {
    let limit = usize::try_from(selection.limit).unwrap_or(usize::MAX);
    let mut list = locks.list();
    let mut entries = Vec::new();
    let mut progress = Progress { shown: false };
    while entries.len() <= limit
        && let Some(page) = next_page(&mut list).await?
    {
        let page = page.into_iter().map(|row| Entry { key: row.key, row: row.holder.map(Some) });
        entries.extend(page.filter(|entry| entry.is_wanted(selection)));
        progress.show(list.rows_read());
    }
    drop(progress);
    if entries.len() > limit {
        entries.truncate(limit);
        say(format_args!("there are more than {limit} keys, which are shown: raise --limit for the others"));
    }
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(entries)
}

/// Asked for again where it was throttled, a few times: a long list is not to be lost for one page.
async fn next_page(list: &mut List) -> Result<Option<Vec<ListedRow>>, Error> {
    let mut pause = Duration::from_millis(200);
    loop {
        match list.next_page().await {
            Err(error) if error.is_throttled() && pause < Duration::from_secs(3) => {
                sleep(pause).await;
                pause *= 2;
            }
            answer => return answer,
        }
    }
}

/// How far a long reading is, on a terminal.
#[derive(Debug)]
struct Progress {
    shown: bool,
}

impl Progress {
    fn show(&mut self, read: u64) {
        // What fits on one page is not worth it.
        if read >= 1000 && io::stderr().is_terminal() {
            self.shown = true;
            let _nobody_is_listening = write!(io::stderr(), "\r{read} rows read");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _nobody_is_listening = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// A key with its row, if there is one that can be read.
#[derive(Debug)]
struct Entry {
    key: String,
    row: Result<Option<Holder>, Error>,
}

impl Entry {
    fn state(&self) -> &'static str {
        match &self.row {
            Err(_) => "malformed",
            Ok(Some(row)) if row.is_completed() => "completed",
            Ok(Some(row)) if row.is_current() => "held",
            Ok(Some(row)) if !row.has_released() => "expired",
            Ok(_) => "free",
        }
    }

    fn is_wanted(&self, selection: Selection) -> bool {
        !selection.held || self.state() == "held"
    }

    fn holder(&self) -> Option<&Holder> {
        self.row.as_ref().ok().and_then(Option::as_ref)
    }

    fn remaining(&self, now: SystemTime) -> Option<Duration> {
        let until = self.holder().filter(|_| self.state() == "held")?.until();
        Some(until.duration_since(now).unwrap_or_default())
    }

    fn columns(&self, now: SystemTime) -> [String; 6] {
        let holder = self.holder();
        let since = holder.and_then(Holder::since);
        // Rounded up: what is held has something left.
        let seconds = |duration: Duration, half: u64| {
            humantime::format_duration(Duration::from_secs(duration.as_secs() + half)).to_string()
        };
        [
            printable(&self.key),
            self.state().to_owned(),
            printable(holder.and_then(Holder::name).unwrap_or_default()),
            since.map(|since| seconds(now.duration_since(since).unwrap_or_default(), 0)).unwrap_or_default(),
            self.remaining(now).map(|remaining| seconds(remaining, 1)).unwrap_or_default(),
            holder.and_then(Holder::fence).map(|fence| fence.to_string()).unwrap_or_default(),
        ]
    }

    /// An object and the end of its line.
    fn json(&self, now: SystemTime) -> String {
        let holder = self.holder();
        let time = |time| humantime::format_rfc3339_millis(time).to_string();
        let fields = [
            ("key", Some(self.key.as_str().into())),
            ("state", Some(self.state().into())),
            ("holder", holder.and_then(Holder::name).map(Value::from)),
            ("fence", holder.and_then(Holder::fence).map(Value::from)),
            ("acquired_at", holder.and_then(Holder::since).map(|since| time(since).into())),
            ("until", holder.map(|holder| time(holder.until()).into())),
            ("remaining_seconds", self.remaining(now).map(|remaining| remaining.as_secs_f64().into())),
            ("error", self.row.as_ref().err().map(|error| sentence(error).into())),
        ];
        let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let mut text = String::new();
        // It is only in strings that they can be.
        for c in Value::Object(known.collect::<Map<_, _>>()).to_string().chars() {
            if misleads(c) {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _infallible = write!(text, "\\u{unit:04x}");
                }
            } else {
                text.push(c);
            }
        }
        text + "\n"
    }
}

fn table(entries: &[Entry], now: SystemTime) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["KEY", "STATE", "HOLDER", "AGE", "REMAINING", "FENCE"]);
    table.add_rows(entries.iter().map(|entry| entry.columns(now)));
    let mut text = String::new();
    for line in table.to_string().lines() {
        text.push_str(line.trim());
        text.push('\n');
    }
    text
}

fn now() -> SystemTime {
    SystemTimeSource::new().now()
}
