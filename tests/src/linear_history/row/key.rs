//! The row of a key: of a lock, of one of several, or of a record of idempotency.

use serde_json::{Value, json};

use super::place::{self, Names, Place};
use super::{compared, number_in, set, text_compared, text_in};
use crate::request::{ASKED, LEASE_END, Purpose, Write, identity_of};

const NAMES: Names = Names { number: "fence", since: "acquired_at", end: LEASE_END };

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Key {
    place: Place,
    /// Attempts up to this number were given up.
    withdrawn: u64,
    /// The acquisition with this number was asked to run once more.
    asked: u64,
    /// The completed run has stored this.
    outcome: Option<Value>,
}

/// A run stores this: its result or its error, or neither.
fn outcome_of(data: Option<&Value>, error: Option<&Value>) -> Value {
    json!([data, error])
}

impl Key {
    pub(super) fn of(item: &Value) -> Self {
        let stored = || outcome_of(item.get("data"), item.get("error"));
        Self {
            place: Place::of(item, text_in(item, "owner"), NAMES),
            withdrawn: number_in(item, "withdrawn"),
            asked: number_in(item, ASKED),
            outcome: (item["status"]["S"] == "COMPLETED").then(stored),
        }
    }
}

/// A request wants this of the row of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    Acquire {
        owner: String,
        number: u64,
        now: u64,
        end: u64,
        /// A waiter also leaves a free key to those ahead of it.
        leaves_it: bool,
        /// A run that did not finish counts, unless it began at this time or before.
        unfinished_since: Option<u64>,
    },
    /// Takes the key from an earlier acquire of the same identity: the one that was seen, or the one with a fence.
    TakeOver {
        owner: String,
        number: u64,
        now: u64,
        end: u64,
        /// The owner, or its identity, and the number.
        seen: (String, u64),
        /// Also takes over that its holder was asked to run once more.
        is_asked: bool,
    },
    Own(place::Change),
    /// Ends the acquisition that was seen, for others than its owner, unless its owner has done so.
    Free {
        seen: (String, u64),
        last: u64,
        now: u64,
        /// It stores this if it completes the run.
        outcome: Option<Value>,
    },
    Complete {
        owner: String,
        own: u64,
        last: u64,
        outcome: Value,
    },
    /// Asks the holder to run once more, and gives up these attempts.
    Ask {
        holder: (String, u64),
        now: u64,
        withdrawn: Option<u64>,
    },
    /// Gives up the attempts up to this number.
    Withdraw {
        number: u64,
    },
    /// The same, if there is no row.
    WithdrawWithoutRow {
        owner: String,
        number: u64,
        now: u64,
    },
}

impl Change {
    pub(super) fn of(write: &Write) -> Self {
        let owner = write.owner.clone();
        if let Some(change) = place::Change::of(write, NAMES) {
            return Self::Own(change);
        }
        let outcome = || {
            let value = |name: &str| write.sets(name).and_then(|operand| operand.value());
            outcome_of(value("data"), value("error"))
        };
        match write.purpose {
            Purpose::Acquire if write.is_takeover() => Self::TakeOver {
                seen: (seen_owner(write), write.equals("fence").unwrap_or_default()),
                owner,
                number: set(write, "fence"),
                now: set(write, "acquired_at"),
                end: set(write, LEASE_END),
                is_asked: write.sets(ASKED).is_some(),
            },
            Purpose::Acquire => Self::Acquire {
                owner,
                number: set(write, "fence"),
                now: set(write, "acquired_at"),
                end: set(write, LEASE_END),
                leaves_it: ["head", "freed_at", "reserved_until"].iter().any(|name| write.mentions(name)),
                unfinished_since: write.compared("acquired_at"),
            },
            // An operator becomes the holder.
            Purpose::Complete if write.sets("holder").is_none() => {
                Self::Complete { owner, own: compared(write, "fence"), last: set(write, "fence"), outcome: outcome() }
            }
            Purpose::Free | Purpose::Complete => Self::Free {
                seen: (owner, compared(write, "fence")),
                last: set(write, "fence"),
                now: compared(write, LEASE_END),
                outcome: (write.purpose == Purpose::Complete).then(outcome),
            },
            Purpose::Ask => Self::Ask {
                holder: (owner, set(write, ASKED)),
                now: compared(write, LEASE_END),
                withdrawn: write.gives_up(),
            },
            Purpose::Withdraw if write.sets("owner").is_some() => {
                Self::WithdrawWithoutRow { owner, number: set(write, "fence"), now: set(write, "acquired_at") }
            }
            Purpose::Withdraw => Self::Withdraw { number: set(write, "withdrawn") },
            other => panic!("no key has a {other:?}: {write:?}"),
        }
    }

    /// The row after this if it accepts it. `expiration` is the time in seconds until which it stays.
    pub(super) fn accepted(&self, key: Option<&Key>, expiration: u64) -> Option<Key> {
        let before = key.cloned().unwrap_or_default();
        let held = || key.filter(|key| key.outcome.is_none());
        match self {
            Self::Acquire { owner, number, now, end, unfinished_since, .. } => {
                let is_over = |key: &Key| match (&key.outcome, unfinished_since) {
                    (Some(_), _) => expiration <= now / 1000,
                    (None, Some(since)) => {
                        key.place.end <= *now && (key.place.is_released() || key.place.since <= *since)
                    }
                    (None, None) => key.place.end <= *now,
                };
                let is_free = |key: &Key| *number > key.place.number && *number > key.withdrawn && is_over(key);
                key.is_none_or(is_free).then(|| before.taken(owner, *number, *now, *end))
            }
            Self::TakeOver { owner, number, now, end, seen, is_asked } => {
                let is_asked_now = |key: &Key| key.asked == seen.1;
                let is_seen = |place: &Place| place.owner.starts_with(&seen.0) && place.number == seen.1;
                let is_there = |key: &&Key| is_seen(&key.place) && !key.place.is_released() && key.place.end > *now;
                held()
                    .filter(is_there)
                    .filter(|key| *number > key.withdrawn && *number > seen.1 && (*is_asked || !is_asked_now(key)))?;
                let after = before.taken(owner, *number, *now, *end);
                Some(if *is_asked { Key { asked: *number, ..after } } else { after })
            }
            Self::Own(change) => Some(Key { place: change.accepted(&held()?.place)??, ..before }),
            Self::Free { seen, last, now, outcome } => {
                let is_free = |key: &Key| key.place.is_released() && key.place.end <= *now;
                held().filter(|key| key.place.is_of(&seen.0, seen.1) && !is_free(key))?;
                // A run that is completed keeps the end of its lease.
                let end = if outcome.is_some() { before.place.end } else { 1 };
                let place = Place { number: *last, released: *last, end, ..before.place };
                Some(Key { place, outcome: outcome.clone(), ..before })
            }
            Self::Complete { owner, own, last, outcome } => {
                held().filter(|key| key.place.is_of(owner, *own))?;
                let place = Place { number: *last, released: *last, ..before.place };
                Some(Key { place, outcome: Some(outcome.clone()), ..before })
            }
            Self::Ask { holder, now, withdrawn } => {
                let is_there = |key: &&Key| key.place.is_of(&holder.0, holder.1) && key.place.end > *now;
                let key = held().filter(is_there)?;
                let withdrawn = withdrawn.map_or(Some(key.withdrawn), |last| (key.withdrawn < last).then_some(last))?;
                Some(Key { asked: holder.1, withdrawn, ..before })
            }
            Self::Withdraw { number } => {
                key.filter(|key| key.withdrawn < *number)?;
                Some(Key { withdrawn: *number, ..before })
            }
            Self::WithdrawWithoutRow { owner, number, now } => {
                let (owner, number, since) = (owner.clone(), *number, *now);
                let place = Place { owner, number, since, released: number, end: 1, ..Place::default() };
                key.is_none().then_some(Key { place, ..before })
            }
        }
    }

    pub(super) fn may_be_rejected(&self) -> bool {
        // A withdrawal also asks for how long the row stays.
        matches!(self, Self::Acquire { leaves_it: true, .. } | Self::Withdraw { .. })
    }
}

/// The owner that a takeover replaces, or its identity.
fn seen_owner(write: &Write) -> String {
    let seen = text_compared(write, "owner");
    if seen.is_empty() { identity_of(&write.owner).unwrap_or_default().to_owned() } else { seen }
}

impl Key {
    fn taken(self, owner: &str, number: u64, now: u64, end: u64) -> Self {
        let place = Place { owner: owner.to_owned(), number, since: now, end, sequence: 0, ..self.place };
        Self { place, outcome: None, ..self }
    }
}
