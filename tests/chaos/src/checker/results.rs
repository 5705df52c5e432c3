//! One effect for each key, equal replies, and every confirmed result still there.

use std::collections::{BTreeMap, HashMap};

use super::{Broken, Op, Row, Violation, seconds};
use crate::event::What;

/// What the processes say about one key.
#[derive(Debug, Default)]
struct Said<'a> {
    first_commit: Option<u64>,
    replies: Vec<(String, u64, &'a str)>,
    done: Vec<(String, u64)>,
    /// By fence.
    written: BTreeMap<u64, u64>,
}

pub(super) fn check(ops: &[Op], rows: &[Row]) -> Vec<Violation> {
    let mut keys: BTreeMap<&str, Said> = BTreeMap::new();
    for op in ops {
        for event in &op.events {
            match &event.what {
                What::Commits { key, .. } => {
                    let first = &mut keys.entry(key).or_default().first_commit;
                    *first = Some(first.unwrap_or(event.at).min(event.at));
                }
                What::Replied { key, result } => {
                    keys.entry(key).or_default().replies.push((op.name(), event.at, result));
                }
                What::Done { key } => keys.entry(key).or_default().done.push((op.name(), event.at)),
                What::Wrote { key, fence, value } => {
                    keys.entry(key).or_default().written.insert(*fence, *value);
                }
                _ => {}
            }
        }
    }
    // The row of a record and that of its effect have the same id, in two tables.
    let mut table: HashMap<&str, Row> = HashMap::new();
    for row in rows {
        let seen = table.entry(&row.id).or_default();
        let Row { id: _, status, data, commits, committed, counted } = row.clone();
        seen.status = status.or(seen.status.take());
        seen.data = data.or(seen.data.take());
        seen.commits = commits.or(seen.commits);
        seen.committed = committed.or(seen.committed.take());
        seen.counted = counted.or(seen.counted);
    }
    let none = Row::default();
    let mut violations = Vec::new();
    for (key, said) in &keys {
        let mut broke = |broken, at, text| violations.push(Violation { broken, key: (*key).to_owned(), at, text });
        of_record(key, said, table.get(key).unwrap_or(&none), &mut broke);
        let stored = table.get(format!("store of {key}").as_str()).and_then(|row| row.counted).unwrap_or(0);
        of_store(key, said, stored, &mut broke);
    }
    violations
}

fn of_record(key: &str, said: &Said, row: &Row, broke: &mut impl FnMut(Broken, u64, String)) {
    let commits = row.commits.unwrap_or(0);
    if commits > 1 {
        broke(Broken::Once, said.first_commit.unwrap_or(0), format!("{key} has {commits} effects"));
    }
    let is_kept = row.status.as_deref() == Some("COMPLETED") && commits > 0;
    if let Some((first, at, result)) = said.replies.first() {
        for (name, at, other) in said.replies.iter().filter(|(_, _, other)| other != result) {
            broke(Broken::Replies, *at, format!("{key}: {first} got {result}, and {name} got {other}"));
        }
        let is_same = row.committed.as_deref() == Some(result)
            && row.data.as_deref().and_then(|data| serde_json::from_str::<String>(data).ok()).as_deref()
                == Some(result);
        if !is_kept || !is_same {
            broke(Broken::Kept, *at, format!("{key}: {first} got {result}, and the table has {row:?}"));
        }
    }
    for (name, at) in &said.done {
        if !is_kept {
            broke(Broken::Kept, *at, format!("{key}: {name} said that it is done, and the table has {row:?}"));
        }
        if said.first_commit.is_none_or(|commit| commit > *at) {
            let first = said.first_commit.map(seconds);
            broke(
                Broken::Kept,
                *at,
                format!("{key}: {name} said that it is done, before the first commit at {first:?}"),
            );
        }
    }
}

fn of_store(key: &str, said: &Said, stored: u64, broke: &mut impl FnMut(Broken, u64, String)) {
    let mut before = None;
    for (fence, value) in &said.written {
        if before.is_some_and(|before| before >= *value) {
            broke(Broken::Store, 0, format!("the store of {key}: fence {fence} wrote {value} after {before:?}"));
        }
        before = Some(*value);
    }
    if before.is_some_and(|last| last > stored) {
        broke(Broken::Store, 0, format!("the store of {key} has {stored}, after {before:?} was confirmed"));
    }
}
