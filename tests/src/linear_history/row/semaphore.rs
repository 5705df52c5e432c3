//! The row of a semaphore: its permits.

use std::collections::BTreeMap;

use serde_json::Value;

use super::place::{self, Names, Place};
use super::{bounds, compared, number_in, set, text_compared, text_in};
use crate::request::expression::{Comparison, Condition, Operand, Path};
use crate::request::{PERMIT_LEASE_END, PERMIT_NUMBER, Purpose, Write, permit_fence_of, permit_of};

const NAMES: Names = Names { number: PERMIT_NUMBER, since: "since", end: PERMIT_LEASE_END };

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Semaphore {
    /// The last fence that was given, if there was one.
    fence: Option<u64>,
    /// How many permits there are, as the row counts them.
    count: u64,
    withdrawn: u64,
    /// By the names of their attributes. An identity has one permit.
    permits: BTreeMap<String, Permit>,
}

#[derive(Clone, Debug, PartialEq)]
struct Permit {
    place: Place,
    fence: u64,
}

/// The place in this map of a permit.
fn place_of(name: &str, map: &Value) -> Place {
    let start = name.strip_prefix(&permit_of("")).unwrap_or_default();
    Place::of(map, start.to_owned() + &text_in(map, "nonce"), NAMES)
}

impl Semaphore {
    pub(super) fn of(item: &Value) -> Self {
        let all = item.as_object().into_iter().flatten();
        let permits = all.filter(|(name, _)| name.starts_with(&permit_of("")));
        let permits = permits.map(|(name, map)| {
            let place = place_of(name, &map["M"]);
            let fence = number_in(item, &permit_fence_of(&place.owner));
            (name.clone(), Permit { place, fence })
        });
        Self {
            fence: item["fence"].is_object().then(|| number_in(item, "fence")),
            count: number_in(item, "permits"),
            withdrawn: number_in(item, "withdrawn"),
            permits: permits.collect(),
        }
    }
}

/// Whether a request is meant for the row of a semaphore.
pub(super) fn is_meant(write: &Write) -> bool {
    let is_permit = |path: &Path| path.attribute.starts_with(&permit_of(""));
    let mut paths = write.update.set.iter().map(|(path, _)| path).chain(&write.update.remove);
    paths.any(is_permit)
        || write.text("status").is_some_and(is_semaphore)
        || is_semaphore(&text_compared(write, "status"))
}

fn is_semaphore(status: &str) -> bool {
    status == "SEMAPHORE"
}

/// A request wants this of the row of a semaphore.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    Acquire {
        place: Place,
        /// How many permits there may be with this one.
        most: u64,
        /// Those that have ended, as they were seen. This one replaces them.
        ended: BTreeMap<String, Place>,
        /// The first fence follows the clock.
        clock: u64,
        /// A waiter also leaves a permit to those ahead of it.
        leaves_it: bool,
    },
    /// Takes the permit of an earlier acquire of the same identity, which was seen with this nonce and number.
    TakeOver { place: Place, seen: (String, u64), clock: u64 },
    Own {
        change: place::Change,
        /// A release gives up the attempts up to this number.
        withdrawn: Option<u64>,
    },
    /// Frees the permits that were seen, for others than their owners, and gives up the attempts up to this number.
    Free { seen: Vec<(String, u64)>, last: u64 },
    /// Gives up the attempts up to this number.
    Withdraw { number: u64 },
    /// The same, if there is no row.
    WithdrawWithoutRow { number: u64 },
}

impl Change {
    pub(super) fn of(write: &Write) -> Self {
        if let Some(change) = place::Change::of(write, NAMES) {
            return Self::Own { change, withdrawn: write.gives_up() };
        }
        match write.purpose {
            Purpose::Acquire => {
                let of_permit = |name| write.number_of_permit(name).unwrap_or_default();
                let (number, since, end) = (of_permit(NAMES.number), of_permit(NAMES.since), of_permit(NAMES.end));
                let place = Place { owner: write.owner.clone(), number, since, end, ..Place::default() };
                let clock = match write.sets("fence") {
                    Some(Operand::Plus(last, _)) => last.number_in(&Value::Null).unwrap_or_default(),
                    _ => panic!("it counts no fence: {write:?}"),
                };
                if write.is_takeover() {
                    let seen = (text_compared(write, "nonce"), compared(write, NAMES.number));
                    return Self::TakeOver { place, seen, clock };
                }
                let ended = ended(write);
                let most = bounds(write, "permits").1 + 1 - ended.len() as u64;
                let leaves_it = ["head", "freed_at", "tail"].iter().any(|name| write.mentions(name));
                Self::Acquire { place, most, ended, clock, leaves_it }
            }
            Purpose::Free => {
                let seen = write.frees().map(|freed| {
                    let path = Path::field(&permit_of(&freed.owner), NAMES.number);
                    let number = number_compared(write, &path);
                    (freed.owner, number)
                });
                Self::Free { seen: seen.collect(), last: set(write, "withdrawn") }
            }
            Purpose::Withdraw if write.sets("status").is_some() => {
                Self::WithdrawWithoutRow { number: set(write, "withdrawn") }
            }
            Purpose::Withdraw => Self::Withdraw { number: set(write, "withdrawn") },
            other => panic!("no semaphore has a {other:?}: {write:?}"),
        }
    }

    pub(super) fn accepted(&self, semaphore: Option<&Semaphore>) -> Option<Semaphore> {
        let mut after = semaphore.cloned().unwrap_or_default();
        match self {
            Self::Acquire { place, most, ended, clock, .. } => {
                let name = permit_of(&place.owner);
                let is_as_seen = |(name, seen): (&String, &Place)| {
                    after.permits.get(name).is_some_and(|permit| permit.place == *seen)
                };
                let is_free = ended.iter().all(is_as_seen)
                    && (!after.permits.contains_key(&name) || ended.contains_key(&name))
                    && ((after.permits.len() - ended.len()) as u64) < *most
                    && after.withdrawn < place.number;
                if !is_free {
                    return None;
                }
                after.permits.retain(|name, _| !ended.contains_key(name));
                let fence = after.next_fence(*clock);
                after.permits.insert(name, Permit { place: place.clone(), fence });
            }
            Self::TakeOver { place, seen, clock } => {
                let name = permit_of(&place.owner);
                let permit = after.permits.get(&name)?.clone();
                let identity = name.strip_prefix(&permit_of("")).unwrap_or_default();
                let is_seen = permit.place.is_of(&format!("{identity}{}", seen.0), seen.1);
                if !is_seen || permit.place.end <= place.since || after.withdrawn >= place.number {
                    return None;
                }
                let fence = after.next_fence(*clock);
                after.permits.insert(name, Permit { place: place.clone(), fence });
            }
            Self::Own { change, withdrawn } => {
                let name = permit_of(change.owner());
                let permit = after.permits.get(&name)?.clone();
                match change.accepted(&permit.place)? {
                    Some(place) => drop(after.permits.insert(name, Permit { place, ..permit })),
                    None => drop(after.permits.remove(&name)),
                }
                if let Some(last) = *withdrawn {
                    after.withdrawn = (after.withdrawn < last).then_some(last)?;
                }
            }
            Self::Free { seen, last } => {
                for (owner, number) in seen {
                    after.permits.remove(&permit_of(owner)).filter(|permit| permit.place.is_of(owner, *number))?;
                }
                after.withdrawn = (after.withdrawn <= *last).then_some(*last)?;
            }
            Self::Withdraw { number } => {
                semaphore?;
                after.withdrawn = (after.withdrawn < *number).then_some(*number)?;
            }
            Self::WithdrawWithoutRow { number } => {
                if semaphore.is_some() {
                    return None;
                }
                after.withdrawn = *number;
            }
        }
        after.count = after.permits.len() as u64;
        Some(after)
    }

    pub(super) fn may_be_rejected(&self) -> bool {
        matches!(self, Self::Acquire { leaves_it: true, .. })
    }
}

impl Semaphore {
    fn next_fence(&mut self, clock: u64) -> u64 {
        let next = self.fence.unwrap_or(clock) + 1;
        self.fence = Some(next);
        next
    }
}

/// The permits that an acquire replaces, as its condition wants them to be.
fn ended(write: &Write) -> BTreeMap<String, Place> {
    let leaves = write.condition.leaves().into_iter();
    let ended = leaves.filter_map(|term| match term {
        Condition::Compare(Path { attribute, field: None }, Comparison::Equal, Operand::Value(seen)) => {
            seen["M"].is_object().then(|| (attribute.clone(), place_of(attribute, &seen["M"])))
        }
        _ => None,
    });
    ended.collect()
}

fn number_compared(write: &Write, of: &Path) -> u64 {
    let leaves = write.condition.leaves();
    let mut numbers = leaves.into_iter().filter_map(|term| match term {
        Condition::Compare(path, Comparison::Equal, number) if path == of => number.number_in(&Value::Null),
        _ => None,
    });
    numbers.next().unwrap_or_else(|| panic!("it compares no {of:?}: {write:?}"))
}
