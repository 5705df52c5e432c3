//! What holds for waiters and for rows in all kinds of histories: a free key is refused for a moment only, each waiter is
//! served once the faults have ended, and rows stay small and can be read.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Error, Locks};
use serde_json::Value;

use super::mutation::Mutation;
use super::stage::TABLE;
use crate::guarantee::{GROWTH, READABLE, SERVED};
use crate::request::expression::{Comparison, Condition, Operand, Path};
use crate::request::{LEASE_END, Purpose, Request, Write};

/// How many waiters come for each key at the end of a history.
pub(crate) const LAST_WAITERS: u32 = 2;
/// How long each of them holds the key.
pub(crate) const LAST_HOLD: Duration = Duration::from_millis(20);
/// How long a holder of a history has the key at most: the longest renewal, or the longest minimum hold, and the skew
/// of its own clock and of the next one.
const LONGEST_HOLD: Duration = Duration::from_millis(3750 + 2 * 1000);
/// The longest delay of a waiter, and the time of its request.
const LONGEST_DELAY: Duration = Duration::from_millis(5000 + 200);
/// How long a key is left to waiters ahead at most, in milliseconds.
const LONGEST_COURTESY: u64 = 2500;
/// For how long a waiter for several keys reserves one at most, in milliseconds. The longest skew of a history counts, too.
const LONGEST_RESERVATION: u64 = 60_000 + 3000;

/// How long each waiter waits at most after the workers have gone.
pub(crate) fn last_wait(slack: Duration) -> Duration {
    LONGEST_HOLD + LAST_WAITERS * (LONGEST_DELAY + LAST_HOLD + slack)
}

/// Why this refusal of an acquire is a violation: by the clock of its sender, the key has been free for longer than it is
/// left to others.
pub(crate) fn refused_while_free(acquire: &Write, row: &Value) -> Option<String> {
    let number = |name: &str| row[name]["N"].as_str().and_then(|number| number.parse::<u64>().ok());
    let text = |name: &str| row[name]["S"].as_str().unwrap_or_default();
    let (owner, sent) = (&acquire.owner[..], acquire.sent()?);
    // An earlier attempt has taken it.
    let is_own = text("owner") == owner && number("released") != number("fence");
    // A waiter whose place was passed asks again without it, and one whose number is too small with a larger one.
    let is_passed = acquire.number("head").zip(number("head")).is_some_and(|(own, stored)| own < stored);
    let is_behind = acquire.attempt() <= number("fence").max(number("withdrawn"));
    let takes_over = acquire.sets("held_since").is_some();
    if text("status") != "INPROGRESS" || is_own || is_passed || is_behind || takes_over {
        return None;
    }
    let is_reserved = |until: &u64| text("reserved_by") != owner && *until <= sent + LONGEST_RESERVATION;
    let free_since = number(LEASE_END)?.max(number("freed_at").unwrap_or_default());
    let free_since = free_since.max(number("reserved_until").filter(is_reserved).unwrap_or_default());
    let free_for = sent.checked_sub(free_since)?;
    (free_for > LONGEST_COURTESY).then(|| format!("it was free for {free_for} ms"))
}

/// Reads all rows at the end of a history, as a user does. Returns what is wrong with them: `most` says how large a row is at
/// most.
pub(crate) async fn inspect(engine: &DynamoDb, most: impl Fn(&Row) -> usize) -> Vec<String> {
    let locks = Locks::builder(engine.client(), TABLE).build().unwrap();
    let mut wrong = Vec::new();
    for row in rows(engine).await {
        let key = row["id"].as_s().unwrap();
        // The business rows of idempotent work are not ours.
        if !row.contains_key("status") {
            continue;
        }
        if let Err(error) = locks.get(key).await {
            wrong.push(format!("{READABLE}: {key}: {}", described(&error)));
        }
        let (bytes, most) = (size(&row), most(&row));
        if bytes > most {
            wrong.push(format!("{GROWTH}: {key} has {bytes} bytes, more than {most}"));
        }
    }
    wrong
}

fn described(error: &Error) -> String {
    format!("{:?}: {error}", error.kind())
}

pub(crate) type Row = HashMap<String, AttributeValue>;

/// Returns all rows of the table.
pub(crate) async fn rows(engine: &DynamoDb) -> Vec<Row> {
    let scan = Box::pin(engine.client().scan().table_name(TABLE).consistent_read(true).send());
    let mut rows = scan.await.unwrap().items.unwrap_or_default();
    rows.sort_by_key(|row| row["id"].as_s().unwrap().clone());
    rows
}

/// Returns the size of a row as DynamoDB counts it, roughly.
pub(crate) fn size(row: &Row) -> usize {
    row.iter().map(|(name, value)| name.len() + size_of(value)).sum()
}

fn size_of(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len() / 2 + 2,
        AttributeValue::M(map) => 3 + map.iter().map(|(name, value)| name.len() + size_of(value) + 1).sum::<usize>(),
        _ => 1,
    }
}

/// The largest row of a lock, whose holder has a short name.
pub(crate) const LARGEST_ROW: usize = 1000;

/// Mistakes that the histories of each kind of row must catch.
pub const OF_ROWS: [Mutation; 2] = [
    Mutation { name: "each acquire leaves a trace", breaks: GROWTH, is_common: true, request: grows, ..Mutation::NONE },
    Mutation {
        name: "a release leaves a text",
        breaks: READABLE,
        is_common: true,
        request: malforms,
        ..Mutation::NONE
    },
];

/// Mistakes that the histories of each kind with one holder must catch.
pub const OF_KEYS: [Mutation; 2] = [
    Mutation {
        name: "a release keeps the key for two minutes",
        breaks: SERVED,
        is_common: true,
        request: release_keeps,
        ..Mutation::NONE
    },
    Mutation { name: "a courtesy without an end", breaks: SERVED, request: endless_courtesy, ..Mutation::NONE },
];

fn release_keeps(request: &mut Request) {
    for release in request.writes_for(Purpose::Release).filter(|release| release.sets(LEASE_END).is_some()) {
        // The end that a release without a minimum hold leaves is long past.
        let freed_at = release.number("freed_at").unwrap_or_default();
        release.change(LEASE_END, |end| end.max(freed_at) + 120_000);
    }
}

/// Others leave a free key to those ahead for a minute longer.
fn endless_courtesy(request: &mut Request) {
    for acquire in request.writes_for(Purpose::Acquire) {
        let Some(sent) = acquire.number("acquired_at") else { continue };
        acquire.condition.each_term(&mut |term| {
            if let Condition::Compare(path, Comparison::LessOrEqual, Operand::Value(end)) = term
                && path.name() == LEASE_END
            {
                let at: u64 = end["N"].as_str().unwrap().parse().unwrap();
                if at < sent {
                    *end = serde_json::json!({ "N": (at - 60_000).to_string() });
                }
            }
        });
    }
}

fn grows(request: &mut Request) {
    for acquire in request.writes_for(Purpose::Acquire) {
        let trace = Path::attribute(&format!("trace of {}", acquire.owner));
        acquire.update.set.push((trace, Operand::text(&"x".repeat(400))));
    }
}

fn malforms(request: &mut Request) {
    for release in request.writes_for(Purpose::Release) {
        let fence = Path::attribute("fence");
        release.update.set.retain(|(path, _)| *path != fence);
        release.update.set.push((fence, Operand::text("the last one")));
    }
}
