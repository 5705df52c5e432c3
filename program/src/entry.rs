//! A key and its row, as a line of a table or a JSON object.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, SystemTime};

use comfy_table::{ContentArrangement, Table, presets};
use lambda_lock::{Error, Holder};
use serde_json::{Map, Value};

use crate::arguments::{Kind, Selection};
use crate::failure::sentence;
use crate::output::{json_line, printable, printable_up_to};

/// The longest key in a table, in bytes. JSON has all of it.
const LONGEST_KEY: usize = 100;

/// A key with its row, if it has one, or the reason why its row cannot be read.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The key as it is in the row.
    pub(crate) key: String,
    pub(crate) row: Result<Option<Holder>, Error>,
}

impl Entry {
    pub(crate) fn is_selected(&self, selection: &Selection, now: SystemTime) -> bool {
        let Selection { held, starting_with, kind, older_than, .. } = selection;
        let is_old = |age: Duration| self.since().is_some_and(|since| since <= now - age);
        (!held || ["held", "used up", "expired"].contains(&self.state()))
            && starting_with.as_ref().is_none_or(|start| self.key.starts_with(start))
            && kind.is_none_or(|kind| self.kind() == Some(kind))
            && older_than.is_none_or(is_old)
    }

    fn kind(&self) -> Option<Kind> {
        let holder = self.holder()?;
        Some(match holder {
            record if record.is_completed() => Kind::Record,
            semaphore if semaphore.is_semaphore() => Kind::Semaphore,
            rate if rate.is_rate() => Kind::Rate,
            _ => Kind::Lock,
        })
    }

    /// Returns when the key was acquired last.
    pub(crate) fn since(&self) -> Option<SystemTime> {
        self.holder().and_then(Holder::since)
    }

    fn state(&self) -> &'static str {
        match &self.row {
            Err(_) => "malformed",
            Ok(Some(row)) if row.is_completed() => "completed",
            Ok(Some(row)) if row.is_current() && row.is_rate() => "used up",
            Ok(Some(row)) if row.is_current() => "held",
            Ok(Some(row)) if !row.has_released() => "expired",
            Ok(Some(_)) => "free",
            Ok(None) => "no row",
        }
    }

    /// Returns why the row cannot be read, in a sentence.
    pub(crate) fn why_malformed(&self) -> Option<String> {
        self.row.as_ref().err().map(sentence)
    }

    fn holder(&self) -> Option<&Holder> {
        self.row.as_ref().ok().and_then(Option::as_ref)
    }

    fn remaining(&self, now: SystemTime) -> Option<Duration> {
        let until = self.holder().filter(|holder| holder.is_current() && !holder.is_completed())?.until();
        Some(until.duration_since(now).unwrap_or_default())
    }

    /// Returns an entry for each permit of a semaphore. Empty for a lock.
    fn permits(&self) -> impl Iterator<Item = Self> {
        let permits = self.holder().map(Holder::permits).unwrap_or_default();
        permits.iter().map(|permit| Self { key: self.key.clone(), row: Ok(Some(permit.clone())) })
    }

    fn rows(&self, now: SystemTime) -> Vec<[String; 8]> {
        let mut permits: Vec<_> = self.permits().map(|permit| permit.columns(now)).collect();
        let all = self.columns(now);
        let Some(first) = permits.first_mut() else { return vec![all] };
        // What belongs to the semaphore.
        let [.., hold, _, waiting] = all;
        (first[5], first[7]) = (hold, waiting);
        permits
    }

    fn columns(&self, now: SystemTime) -> [String; 8] {
        let holder = self.holder();
        let since = self.since();
        let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        [
            printable_up_to(&self.key, LONGEST_KEY).into_owned(),
            self.state().to_owned(),
            holder.map(name).unwrap_or_default(),
            number(since.map(|since| now.duration_since(since).unwrap_or_default().as_secs())),
            // Rounded up, because a held key never has 0 s left.
            number(self.remaining(now).map(|remaining| remaining.as_secs() + 1)),
            holder.and_then(Holder::hold_time).map(rounded).unwrap_or_default(),
            number(holder.and_then(Holder::fence)),
            number(holder.map(Holder::waiters).filter(|waiters| *waiters > 0)),
        ]
    }

    /// Returns the entry as a JSON object, in a line.
    pub(crate) fn json(&self, now: SystemTime) -> String {
        json_line(&self.object(now))
    }

    fn object(&self, now: SystemTime) -> Value {
        let holder = self.holder();
        let permits: Vec<_> = self.permits().map(|permit| permit.object(now)).collect();
        let time = |time| humantime::format_rfc3339_millis(time).to_string();
        let fields = [
            ("key", Some(self.key.as_str().into())),
            ("state", Some(self.state().into())),
            ("holder", holder.and_then(Holder::name).map(Value::from)),
            ("identity", holder.and_then(Holder::identity).map(Value::from)),
            ("fence", holder.and_then(Holder::fence).map(Value::from)),
            ("acquired_at", self.since().map(|since| time(since).into())),
            ("until", holder.map(|holder| time(holder.until()).into())),
            ("remaining_seconds", self.remaining(now).map(|remaining| remaining.as_secs_f64().into())),
            ("hold_seconds", holder.and_then(Holder::hold_time).map(|time| time.as_secs_f64().into())),
            ("waiting", holder.map(|holder| holder.waiters().into())),
            ("permits", (!permits.is_empty()).then(|| permits.into())),
            ("error", self.why_malformed().map(Value::from)),
        ];
        let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(known.collect::<Map<_, _>>())
    }
}

/// Returns a time in seconds, with milliseconds below 10 seconds.
fn rounded(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if time < Duration::from_secs(10) { format!("{seconds:.3}") } else { format!("{seconds:.0}") }
}

/// Returns the name of the holder, with its identity.
fn name(holder: &Holder) -> String {
    let name = printable(holder.name().unwrap_or_default());
    match holder.identity() {
        Some(identity) => format!("{name} for {}", printable(identity)),
        None => name.into_owned(),
    }
}

/// Returns the entries as a table with a header. On a terminal it is as wide as that at most.
pub(crate) fn table(entries: &[Entry], now: SystemTime) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if let Some(width) = terminal_width() {
        // Lines begin without the space of the first column.
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.saturating_add(1));
    }
    table.set_header(["KEY", "STATE", "HOLDER", "AGE s", "LEFT s", "HOLD s", "FENCE", "WAITING"]);
    table.add_rows(entries.iter().flat_map(|entry| entry.rows(now)));
    let mut text = String::new();
    for line in table.trim_fmt().lines() {
        text.push_str(line.strip_prefix(' ').unwrap_or(line));
        text.push('\n');
    }
    text
}

/// Returns the width of the terminal to which standard output goes.
fn terminal_width() -> Option<u16> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    rustix::termios::tcgetwinsize(stdout).ok().map(|size| size.ws_col).filter(|columns| *columns > 0)
}
