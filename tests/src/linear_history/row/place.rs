//! Where one owner at a time is: the row of a key, or a permit of a semaphore.

use serde_json::Value;

use super::{compared, number_in, set};
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

/// The owner of a place wants this of it.
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
    /// Leaves this number and this end of a key, and nothing of a permit.
    Release {
        left: Option<(u64, u64)>,
        sequence: u64,
    },
}

impl Change {
    /// Returns `None` if it is something else.
    pub(super) fn of(write: &Write, names: Names) -> Option<Self> {
        let what = match write.purpose {
            Purpose::Renew => What::Renew {
                now: compared(write, names.end),
                end: set(write, names.end),
                sequence: set(write, "sequence"),
            },
            Purpose::Release => What::Release {
                left: write.number(names.end).map(|end| (set(write, names.number), end)),
                sequence: compared(write, "sequence"),
            },
            _ => return None,
        };
        Some(Self { owner: write.owner.clone(), own: compared(write, names.number), what })
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    /// What is left of the place if it accepts this.
    #[expect(clippy::option_option, reason = "a request that is accepted may leave nothing")]
    pub(super) fn accepted(&self, place: &Place) -> Option<Option<Place>> {
        let Self { owner, own, what } = self;
        let is_own = place.is_of(owner, *own);
        let before = place.clone();
        let (is_accepted, after) = match *what {
            What::Renew { now, end, sequence } => {
                let is_accepted = is_own && place.end > now && place.sequence < sequence;
                (is_accepted, Some(Place { end, sequence, ..before }))
            }
            What::Release { left, sequence } => {
                let is_again = left.is_some_and(|(last, _)| place.is_of(owner, last) && place.released == last);
                let after = left.map(|(last, end)| Place { number: last, released: last, end, sequence, ..before });
                ((is_own || is_again) && place.sequence < sequence, after)
            }
        };
        is_accepted.then_some(after)
    }
}
