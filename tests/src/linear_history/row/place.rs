//! Where one owner at a time is: the row of a key, or a permit of a semaphore.

use serde_json::Value;

use super::{compared, number_in, set, text_in};
use crate::request::{Purpose, Write};

/// Who is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Place {
    pub(super) owner: String,
    /// The number of the acquire. A release of a key leaves a larger one.
    pub(super) number: u64,
    /// When it was acquired, in milliseconds. So is the end of the lease.
    pub(super) since: u64,
    pub(super) end: u64,
    pub(super) sequence: u64,
    /// The number of the last release.
    pub(super) released: u64,
    /// The process that used up the last ticket.
    pub(super) resumed: String,
}

/// The attributes of a place have these names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub(super) number: &'static str,
    pub(super) since: &'static str,
    pub(super) end: &'static str,
}

impl Place {
    pub(super) fn of(item: &Value, owner: String, names: Names) -> Self {
        Self {
            owner,
            number: number_in(item, names.number),
            since: number_in(item, names.since),
            end: number_in(item, names.end),
            sequence: number_in(item, "sequence"),
            released: number_in(item, "released"),
            resumed: text_in(item, "resumed"),
        }
    }

    pub(super) fn is_of(&self, owner: &str, number: u64) -> bool {
        self.owner == owner && self.number == number
    }

    /// What was released is free when its minimum hold is over.
    pub(super) fn is_released(&self) -> bool {
        self.released == self.number
    }
}

/// The owner of a place wants this of it, or somebody who has the owner's ticket.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    owner: String,
    own: u64,
    what: What,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Renew {
        now: u64,
        end: u64,
        sequence: u64,
    },
    /// Without an end, the place is gone.
    Release {
        last: u64,
        end: Option<u64>,
        sequence: u64,
    },
    /// Uses a ticket up, if its lease ends after `now`.
    Resume {
        now: u64,
        sequence: u64,
        by: String,
    },
    /// Moves the end of a ticket's lease to a later time.
    RenewByTicket {
        now: u64,
        end: u64,
        sequence: u64,
    },
    /// Uses up all earlier sequences of a ticket whose lease ends late enough.
    KeepByTicket {
        now: u64,
        end: u64,
        sequence: u64,
    },
}

/// A release leaves this of a place.
#[derive(Debug)]
pub(super) enum Left {
    Nothing,
    Place(Place),
}

impl Change {
    /// Returns `None` if it is something else. `last` is the number that a release leaves.
    pub(super) fn of(write: &Write, names: Names, last: impl FnOnce(u64) -> u64) -> Option<Self> {
        let (now, sequence) = (|| compared(write, names.end), || set(write, "sequence"));
        let own = || compared(write, names.number);
        let what = match write.purpose {
            Purpose::Renew => What::Renew { now: now(), end: set(write, names.end), sequence: sequence() },
            Purpose::Release => {
                What::Release { last: last(own()), end: write.number(names.end), sequence: compared(write, "sequence") }
            }
            Purpose::Resume => {
                let by = write.text("resumed").unwrap_or_default().to_owned();
                What::Resume { now: now(), sequence: sequence() - 1, by }
            }
            Purpose::RenewByTicket => {
                What::RenewByTicket { now: now(), end: set(write, names.end), sequence: sequence() }
            }
            Purpose::KeepByTicket => {
                let end = write.equals(names.end).unwrap_or_else(|| panic!("no end in {write:?}"));
                What::KeepByTicket { now: now(), end, sequence: sequence() }
            }
            _ => return None,
        };
        Some(Self { owner: write.owner.clone(), own: own(), what })
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    /// What is left of the place if it accepts this.
    pub(super) fn accepted(&self, place: &Place) -> Option<Left> {
        let Self { owner, own, what } = self;
        let is_own = place.is_of(owner, *own);
        // Nobody has used the ticket since.
        let is_unused = |now: &u64, sequence: &u64| is_own && place.end > *now && place.sequence <= *sequence;
        let before = place.clone();
        let (is_accepted, after) = match what {
            What::Renew { now, end, sequence } => {
                let is_accepted = is_own && place.end > *now && place.sequence < *sequence;
                (is_accepted, Place { end: *end, sequence: *sequence, ..before })
            }
            What::Release { last, end, sequence } => {
                let is_again = place.is_of(owner, *last) && place.released == *last;
                let is_accepted = (is_own || is_again) && place.sequence < *sequence;
                let Some(end) = *end else { return is_accepted.then_some(Left::Nothing) };
                (is_accepted, Place { number: *last, released: *last, end, sequence: *sequence, ..before })
            }
            What::Resume { now, sequence, by } => {
                let after = Place { sequence: sequence + 1, resumed: by.clone(), ..before };
                (is_unused(now, sequence), after)
            }
            What::RenewByTicket { now, end, sequence } => {
                let after = Place { end: *end, sequence: *sequence, ..before };
                (is_unused(now, sequence) && place.end < *end, after)
            }
            What::KeepByTicket { now, end, sequence } => {
                let after = Place { sequence: *sequence, ..before };
                (is_unused(now, sequence) && place.end == *end, after)
            }
        };
        is_accepted.then_some(Left::Place(after))
    }
}
