//! Reads what the processes believed and what the table has at the end, and says which guarantees did not hold. Nothing
//! here is code of the product.

mod again;
mod blocked;
mod holders;
mod results;
#[cfg(test)]
mod tests;
mod times;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::{Event, What};

/// The name of the slot whose process probes after all others.
pub(crate) const PROBE: &str = "probe";

/// What is checked.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) processes: Vec<Process>,
    pub(crate) rows: Vec<Row>,
    /// In nanoseconds.
    pub(crate) clock_skew: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) name: String,
    /// The true time after its end.
    pub(crate) ended: u64,
    /// How it failed, if nobody killed it.
    pub(crate) failure: Option<String>,
    pub(crate) events: Vec<Event>,
}

/// A row of a record, of an effect or of the fenced store, at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) status: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) commits: Option<u64>,
    pub(crate) committed: Option<String>,
    pub(crate) counted: Option<u64>,
}

/// A guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Broken {
    Alone,
    Permits,
    Fences,
    Store,
    Once,
    Replies,
    Kept,
    Times,
    Again,
    Blocked,
    Itself,
    Errors,
    Processes,
    Clocks,
}

impl Broken {
    pub(crate) const ALL: [Self; 14] = [
        Self::Alone,
        Self::Permits,
        Self::Fences,
        Self::Store,
        Self::Once,
        Self::Replies,
        Self::Kept,
        Self::Times,
        Self::Again,
        Self::Blocked,
        Self::Itself,
        Self::Errors,
        Self::Processes,
        Self::Clocks,
    ];
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "at most one valid holder",
            Self::Permits => "at most N valid permits",
            Self::Fences => "each fence is larger than all before it",
            Self::Store => "the fenced store loses no update",
            Self::Once => "one effect for each key",
            Self::Replies => "a duplicate gets the reply of the run",
            Self::Kept => "each confirmed result is there",
            Self::Times => "each call of a rate has a time of its own, and passes no earlier",
            Self::Again => "after an invocation that was skipped, a run begins, and none for nobody",
            Self::Blocked => "a crash blocks a key for its lease and the skew",
            Self::Itself => "nobody is refused by itself",
            Self::Errors => "no error without a reason",
            Self::Processes => "no process fails",
            Self::Clocks => "the clocks are within the skew",
        })
    }
}

#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) broken: Broken,
    pub(crate) key: String,
    pub(crate) at: u64,
    pub(crate) text: String,
}

/// How often each thing happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(pub(crate) BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    pub(crate) fn get(&self, name: &'static str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

/// An operation of a process, with its events in order.
#[derive(Debug)]
struct Op<'a> {
    process: &'a Process,
    number: u64,
    events: Vec<&'a Event>,
}

impl Op<'_> {
    fn is_probe(&self) -> bool {
        self.process.name.starts_with(PROBE)
    }

    fn name(&self) -> String {
        format!("{}.{}", self.process.name, self.number)
    }

    /// The time of the event after this one. Without one, the process has ended.
    fn next(&self, index: usize) -> u64 {
        self.events.get(index + 1).map_or(self.process.ended, |event| event.at)
    }

    fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = Vec::new();
        for event in &self.events {
            match &event.what {
                What::Asks { keys: asked, .. } => keys.extend(asked.iter().map(String::as_str)),
                What::Claims { key, .. } | What::Calls { key, .. } => keys.push(key),
                _ => {}
            }
        }
        keys
    }
}

impl History {
    fn ops(&self) -> Vec<Op<'_>> {
        let mut ops = Vec::new();
        for process in &self.processes {
            let mut index: HashMap<u64, usize> = HashMap::new();
            for event in &process.events {
                let at = *index.entry(event.op).or_insert_with(|| {
                    ops.push(Op { process, number: event.op, events: Vec::new() });
                    ops.len() - 1
                });
                ops[at].events.push(event);
            }
        }
        ops
    }

    pub(crate) fn check(&self) -> Vec<Violation> {
        let ops = self.ops();
        let mut violations = holders::check(&ops);
        violations.extend(blocked::check(&ops, self.clock_skew));
        violations.extend(results::check(&ops, &self.rows));
        violations.extend(times::check(&ops, self.clock_skew));
        violations.extend(again::check(&ops));
        let mut has_wrong_clock = false;
        for process in &self.processes {
            has_wrong_clock |= process.events.iter().any(|event| event.ahead.abs() > 10);
            let violation = |broken, at, text| Violation { broken, key: String::new(), at, text };
            if let Some(failure) = &process.failure {
                let text = format!("{} failed: {failure}", process.name);
                violations.push(violation(Broken::Processes, process.ended, text));
            }
            // Half of the skew each way, and what reading two clocks takes.
            let most = i64::try_from(self.clock_skew / 2_000_000).unwrap() + 2;
            if let Some(event) = process.events.iter().find(|event| event.ahead.abs() > most) {
                let text = format!("{} had a clock that was {} ms ahead", process.name, event.ahead);
                violations.push(violation(Broken::Clocks, event.at, text));
            }
        }
        if self.processes.len() > 5 && !has_wrong_clock {
            let text = "faketime did nothing: all clocks were right".to_owned();
            violations.push(Violation { broken: Broken::Clocks, key: String::new(), at: 0, text });
        }
        violations.sort_by_key(|violation| violation.at);
        violations
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for process in &self.processes {
            counts.add("processes", 1);
            let mut ahead = None;
            for event in &process.events {
                if let What::MayCall { .. } = event.what {
                    counts.add("calls of rates", 1);
                }
                // Less is how long reading two clocks takes.
                if ahead.replace(event.ahead).is_some_and(|before: i64| before.abs_diff(event.ahead) > 10) {
                    counts.add("clock steps seen", 1);
                }
                let name = match event.what {
                    What::Has { .. } | What::MayCall { .. } => "acquisitions",
                    What::Kept => "locks kept for an identity",
                    What::Freed => "releases for an identity",
                    What::Renewed => "renewals",
                    What::Released => "releases",
                    What::Refused { .. } => "refusals read",
                    What::Invalid => "leases outlasted",
                    What::Valid => "claims to be valid",
                    What::Wrote { .. } => "fenced writes",
                    What::Commits { .. } => "commits tried",
                    What::Replied { .. } => "replies",
                    What::Done { .. } => "messages answered as done",
                    What::Undone { .. } => "messages returned",
                    What::Left { .. } => "invocations skipped",
                    What::RunsAgain => "runs once more",
                    _ => continue,
                };
                counts.add(name, 1);
            }
        }
        counts
    }

    /// The events around a violation.
    pub(crate) fn around(&self, violation: &Violation) -> Vec<String> {
        let ops = self.ops();
        let window = violation.at.saturating_sub(1_500_000_000)..=violation.at + 300_000_000;
        let ops = ops.iter().filter(|op| op.keys().contains(&violation.key.as_str()));
        let mut events: Vec<(u64, String)> = ops
            .flat_map(|op| op.events.iter().map(|event| (op.name(), *event)))
            .filter(|(_, event)| window.contains(&event.at))
            .map(|(name, event)| {
                (event.at, format!("{} {name} {:+} ms {:?}", seconds(event.at), event.ahead, event.what))
            })
            .collect();
        events.sort();
        let lines: Vec<_> = events.into_iter().map(|(_, line)| line).collect();
        lines[lines.len().saturating_sub(60)..].to_vec()
    }
}

pub(crate) fn seconds(nanos: u64) -> String {
    format!("{}.{:06}", nanos / 1_000_000_000, nanos / 1000 % 1_000_000)
}
