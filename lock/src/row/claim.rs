//! One attempt to acquire, and its answer.

use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;

use super::expression::{Path, Update, value};
use crate::clock::{Lease, Moment};
use crate::holder::{Data, Holder};
use crate::limits::{REQUEST_TIMEOUT, time_to_ask};
use crate::queue::HoldTime;

/// One attempt to acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) holder: &'a str,
    pub(crate) now: Moment,
    pub(crate) lease: Lease,
    pub(crate) data: Option<&'a Data>,
    pub(crate) attributes: &'a [(String, AttributeValue)],
    /// In the order of the keys. Empty if the attempt leaves no key to other waiters.
    pub(crate) ranks: &'a [Rank],
    /// Only an earlier acquire of the same identity makes room for this acquire.
    pub(crate) takes_over: bool,
    /// The fence of the earlier acquire, as the caller knows it.
    pub(crate) earlier_fence: Option<u64>,
}

/// The rank of an attempt among the waiters: to whom it leaves a free key, and whose turn it serves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rank {
    pub(crate) leaves_to: LeavesTo,
    /// The place in the queue that is served if this attempt succeeds.
    pub(crate) place: Option<u64>,
    /// This waiter has reserved the key. Its reservation ends if this attempt succeeds.
    pub(crate) has_reserved: bool,
}

/// To whom an attempt leaves a free key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum LeavesTo {
    #[default]
    Nobody,
    /// To the waiter for several keys that has reserved this key, until the reservation ends.
    Reservation,
    /// The same, and for a moment after the key's release to all waiters that have a place.
    Queue { moment: Duration },
    /// The same, and for a moment after the key's release to the waiters ahead of this place.
    Ahead { place: u64, moment: Duration },
}

impl Rank {
    /// Returns how long the attempt leaves a released key to other waiters, if it does.
    pub(super) fn moment(&self) -> Option<Duration> {
        match self.leaves_to {
            LeavesTo::Nobody | LeavesTo::Reservation => None,
            LeavesTo::Queue { moment } | LeavesTo::Ahead { moment, .. } => Some(moment),
        }
    }

    /// Returns `true` if a free key may refuse the attempt.
    pub(crate) fn is_conditional(&self) -> bool {
        self.place.is_some() || !matches!(self.leaves_to, LeavesTo::Nobody)
    }
}

/// The work of the next attempt beside taking a free key or permit, as it follows from the rows of the last refusal.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    /// The earlier acquisitions of the same identity, which the attempt takes over, in the order of the keys.
    pub(super) earlier: Vec<Option<Holder>>,
    /// The permits to replace.
    pub(super) ended: Vec<Holder>,
    /// The place of this waiter, if a waiter behind it was served first.
    pub(super) passed: Option<u64>,
}

/// Shows all that decides the next attempt: the model takes two plans that print the same for equal.
impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = |seen: &Holder| {
            (seen.owner.clone(), seen.number, seen.sequence, seen.released, seen.until, seen.asked, seen.held_since)
        };
        let earlier: Vec<_> = self.earlier.iter().map(|earlier| earlier.as_ref().map(seen)).collect();
        let ended: Vec<_> = self.ended.iter().map(seen).collect();
        f.debug_struct("Plan").field("earlier", &earlier).field("ended", &ended).field("passed", &self.passed).finish()
    }
}

impl Plan {
    pub(super) fn earlier(&self, index: usize) -> Option<&Holder> {
        self.earlier.get(index)?.as_ref()
    }

    /// Returns the place in the queue that an attempt serves if it succeeds.
    pub(super) fn place(&self, claim: &Claim<'_>) -> Option<u64> {
        claim.rank().place.filter(|place| self.passed != Some(*place))
    }
}

/// The result of an attempt that was not refused.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value of it, on the stack")]
pub(crate) enum Claimed {
    Granted(Grant),
    /// An earlier attempt of this owner was applied to several keys, and other owners have taken some of the keys since.
    InPart,
    /// The work was done before: this record has its result.
    Completed(Box<Holder>),
}

/// The lock of an owner, as the row has granted it to an acquire.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// In the order of the keys. Without a fence, the lock is not enforced.
    pub(crate) fences: Vec<u64>,
    pub(crate) data: Option<Data>,
    /// When the request that took the key was sent.
    pub(crate) sent: Moment,
    pub(crate) lease: Lease,
    /// When the hold began that this acquire has taken over from an earlier acquire of its identity, in milliseconds since the
    /// epoch.
    pub(crate) held_since: Option<u64>,
    /// How long the holds before this one took.
    pub(crate) hold_time: Option<HoldTime>,
    /// How much longer the request took than fast requests do. The excess does not count as a part of the hold.
    pub(crate) excess: Duration,
    /// The last holder, if it did not release the key: its lease ended, or it is an earlier acquire of the same identity.
    pub(crate) taken_from: Vec<Holder>,
}

impl Grant {
    /// Without a fence, this is the grant of a lock that is not enforced.
    pub(crate) fn new(fences: Vec<u64>, data: Option<Data>, sent: Moment, lease: Lease) -> Self {
        Self {
            fences,
            data,
            sent,
            lease,
            held_since: None,
            hold_time: None,
            excess: Duration::ZERO,
            taken_from: Vec::new(),
        }
    }
}

impl Claim<'_> {
    /// Returns the rank of an attempt for one key.
    pub(super) fn rank(&self) -> Rank {
        self.rank_for(0)
    }

    /// Returns the rank of the attempt for the key of this index.
    pub(super) fn rank_for(&self, index: usize) -> Rank {
        self.ranks.get(index).copied().unwrap_or_default()
    }

    /// Sets the caller's data and attributes.
    pub(super) fn with_extras<'b>(&self, update: Update<'b>) -> Update<'b> {
        let update = update.set_data(self.data);
        self.attributes.iter().enumerate().fold(update, |update, (index, (name, attribute))| {
            update.set(Path::named(format!("extra{index}"), name.clone()), value("extra", attribute.clone()))
        })
    }

    /// Returns how long the request may take. An answer after the lease is useless, and so is an answer that leaves no time to
    /// answer Lambda.
    pub(crate) fn time_limit(&self) -> Duration {
        REQUEST_TIMEOUT.min(time_to_ask(self.lease.deadline.remaining(self.now)))
    }
}
