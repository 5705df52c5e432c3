//! Each call of a rate has a time of its own, and no call passes before it.
//!
//! Nobody outside of the row knows the time of a call. But it lies between two readings of the caller's clock: the call was due
//! when it asked or later, and had come when it passed. So the calls that asked after one time and passed before another need
//! room for their intervals between the two.

use std::collections::BTreeMap;

use super::{Broken, Op, Violation};
use crate::event::{Event, What};

/// Reading two clocks takes some of this, and a wait is rounded up to whole milliseconds; in microseconds.
const ROUNDING: i64 = 3000;
/// A process sees at most one step of its clock in so many nanoseconds, because faketime reads its file each second.
const ONE_STEP: u64 = 900_000_000;

/// The time of a call, in microseconds: between these two, by the clock of its caller.
#[derive(Debug)]
struct Call {
    name: String,
    earliest: i64,
    latest: i64,
    /// The true time at which it passed, in nanoseconds.
    passed: u64,
}

pub(super) fn check(ops: &[Op], clock_skew: u64) -> Vec<Violation> {
    let mut keys: BTreeMap<(&str, u64), Vec<Call>> = BTreeMap::new();
    for op in ops {
        let mut calls = None;
        for event in &op.events {
            match &event.what {
                What::Calls { key, interval, tolerance } => calls = Some((*event, key, *interval, *tolerance)),
                What::MayCall { wait } => {
                    let Some((asked, key, interval, tolerance)) = calls else { continue };
                    let call = call(op, asked, event, tolerance, *wait, clock_skew);
                    keys.entry((key, interval)).or_default().push(call);
                }
                _ => {}
            }
        }
    }
    keys.into_iter().filter_map(|((key, interval), calls)| too_near(key, interval, calls)).collect()
}

fn call(op: &Op, asked: &Event, passed: &Event, tolerance: u64, wait: Option<u64>, clock_skew: u64) -> Call {
    let micros = |nanos: u64| i64::try_from(nanos / 1000).unwrap();
    let (before, after) = if passed.at - asked.at < ONE_STEP {
        let (one, other) = (asked.ahead * 1000, passed.ahead * 1000);
        (one.min(other), one.max(other))
    } else {
        (-micros(clock_skew / 2), micros(clock_skew / 2))
    };
    let asked = micros(asked.at) + before - ROUNDING;
    let (wait, tolerance) = (wait.map(|wait| i64::try_from(wait).unwrap()), i64::try_from(tolerance).unwrap());
    // A call may be earlier than due by the tolerance. If it is told to wait, it would come too early without the wait.
    let earliest = wait.filter(|wait| *wait > 0).map_or(asked, |wait| asked + wait + tolerance);
    let latest = micros(passed.at) + after + ROUNDING + wait.unwrap_or(0) + tolerance;
    Call { name: op.name(), earliest, latest, passed: passed.at }
}

/// Calls that need more time than there is. The first few of them are enough.
fn too_near(key: &str, interval: u64, mut calls: Vec<Call>) -> Option<Violation> {
    calls.sort_by_key(|call| -call.earliest);
    let interval = i64::try_from(interval).unwrap();
    let mut later: Vec<&Call> = Vec::new();
    for call in &calls {
        let at = later.partition_point(|other| other.latest < call.latest);
        later.insert(at, call);
        let mut needed = 0;
        let last = later.iter().position(|other| {
            let is_too_near = other.latest - call.earliest < needed;
            needed += interval;
            is_too_near
        });
        if let Some(last) = last {
            let span = (later[last].latest - call.earliest) / 1000;
            let names: Vec<_> = later[..=last].iter().take(6).map(|call| call.name.as_str()).collect();
            let text = format!(
                "{key}: {} calls passed in {span} ms, one each {} ms: {}",
                last + 1,
                interval / 1000,
                names.join(", ")
            );
            return Some(Violation { broken: Broken::Times, key: key.to_owned(), at: call.passed, text });
        }
    }
    None
}
