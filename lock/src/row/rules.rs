//! What a kind says about its rows: the conditions and updates of each request, and what a row says about an owner.

use std::fmt;
use std::time::Duration;

use super::claim::{Claim, Claimed};
use super::expression::{Condition, Path, To, Update, hold_time};
use super::names::{HOLD, HOLD_DEVIATION, MAX_SEQUENCE};
use super::read::Row;
use super::table::{Item, Table};
use super::write::{Refused, Transact, Write};
use crate::clock::Moment;
use crate::error::Error;
use crate::holder::{Data, Holder};
use crate::limits::{DAY, MAX_DATA_BYTES};
use crate::queue::HoldTime;

/// The smallest deviation in a row: 0 means that it is unknown.
const RESOLUTION: Duration = Duration::from_micros(1);

/// How often a request looks again at a row that changed meanwhile.
pub(super) const TRIES: u32 = 3;

/// A release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release<'a> {
    /// Larger than the number of every earlier request of this owner.
    pub(crate) sequence: u64,
    pub(crate) now: Moment,
    /// The acquisition that others release, for its identity: its owner may have a later one when the request arrives.
    pub(crate) fence: Option<u64>,
    /// The latest known time of an attempt of the acquire. It may still be under way.
    pub(crate) asked_at: Duration,
    /// Until when the key stays held after the release.
    pub(crate) hold_until: Option<Duration>,
    /// What the hold time for waiters follows from, if the hold is known.
    pub(crate) hold: Option<Hold>,
    pub(crate) data: Option<&'a Data>,
}

impl Release<'_> {
    /// Returns when the hold ends: now, or at the end of the minimum hold.
    pub(super) fn end_of_hold(&self) -> Duration {
        self.now.wall.max(self.hold_until.unwrap_or_default())
    }
}

/// A hold that ends with a release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) since: Duration,
    /// How long the holds before this one took.
    pub(crate) before: Option<HoldTime>,
    /// The acquire has seen the row. Otherwise a hold time that is there stays.
    pub(crate) is_before_known: bool,
}

impl Hold {
    /// Sets the hold time after this hold, which ends at `end`.
    pub(super) fn set_in<'a>(&self, update: Update<'a>, end: Duration) -> Update<'a> {
        let HoldTime { mean, deviation } = HoldTime::after(self.before, end.saturating_sub(self.since));
        let deviation = deviation.map_or(Duration::ZERO, |known| known.max(RESOLUTION));
        let to = if self.is_before_known { To::Value } else { To::Default };
        update.set(HOLD, to(hold_time("hold", mean))).set(HOLD_DEVIATION, to(hold_time("hold_deviation", deviation)))
    }
}

/// What an owner has in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// The end of the lease.
    LeaseEnd,
    /// The number of the last request.
    Sequence,
    Fence,
    /// The nonce of the last resumption.
    Resumed,
}

/// A row, and the owner that a request for it is from.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnRow<'a> {
    pub(super) table: &'a Table,
    pub(super) key: &'a str,
    pub(super) owner: &'a str,
}

/// What a row says about an owner.
#[derive(Debug)]
pub(super) enum Trace {
    /// The row has the acquisition.
    Own(Own),
    /// It has not, or no longer.
    Other {
        /// Who has it, or who took it from this owner.
        holder: Option<Box<Holder>>,
        /// The row shows that this owner has released it.
        is_released: bool,
    },
    /// The row is there, and never keeps more than a trace for some time.
    Gone,
    /// There is no row.
    NoRow,
}

/// An acquisition in its row.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) fence: Option<u64>,
    /// The end of the lease, in milliseconds since the epoch.
    pub(super) end: u64,
    pub(super) sequence: Option<u64>,
    pub(super) is_released: bool,
    pub(super) resumed: Option<String>,
    pub(super) acquired_at: Option<u64>,
    /// The record that this owner has completed.
    pub(super) completed: Option<Box<Holder>>,
}

impl Own {
    /// A release for its identity counts for every request of the owner, so it has the largest number.
    pub(super) fn is_freed_by_others(&self) -> bool {
        self.is_released && self.sequence == Some(MAX_SEQUENCE)
    }
}

impl Trace {
    /// Returns the acquisition if it was not released.
    pub(super) fn held(&self) -> Option<&Own> {
        match self {
            Self::Own(own) if !own.is_released => Some(own),
            _ => None,
        }
    }

    pub(super) fn into_holder(self) -> Option<Holder> {
        match self {
            Self::Other { holder, .. } => holder.map(|holder| *holder),
            Self::Own(_) | Self::Gone | Self::NoRow => None,
        }
    }
}

/// The rules of a kind.
pub(super) trait Rules: fmt::Debug + Send + Sync {
    fn boxed(&self) -> Box<dyn Rules>;

    /// Returns the name of the kind in tickets. A key has none, and several keys have no ticket.
    fn in_tickets(&self) -> Option<&'static str> {
        None
    }

    fn keys(&self) -> &[String];

    fn check(&self, key_prefix: &str) -> Result<(), Error>;

    fn longest_lease(&self) -> Duration {
        DAY
    }

    fn longest_data(&self) -> usize {
        MAX_DATA_BYTES
    }

    /// Returns how many owners can have a row at a time.
    fn capacity(&self) -> u32 {
        1
    }

    /// Returns `true` if a waiter takes a place in the queue.
    fn takes_place(&self) -> bool {
        true
    }

    /// Returns the earliest time at which TTL may delete the row of a lease with this end.
    fn kept_until(&self, table: &Table, _now: Moment, end: Duration) -> Duration {
        table.kept_after(end)
    }

    /// Returns what applies the updates of several rows together. A kind of one row has none.
    fn transact(&self) -> Option<Transact> {
        None
    }

    /// Builds one attempt to acquire.
    fn claim<'a>(&'a mut self, table: &Table, owner: &'a str, claim: &'a Claim<'_>) -> Write<'a>;

    /// Reads the answer to an attempt that was applied. The row is as it was before.
    fn granted(&mut self, table: &Table, owner: &str, claim: &Claim<'_>, before: Item) -> Result<Claimed, Error>;

    /// Reads a refusal. Returns `None` if another attempt can succeed at once.
    fn denied(
        &mut self,
        table: &Table,
        owner: &str,
        claim: &Claim<'_>,
        refused: Refused,
    ) -> Result<Option<Claimed>, Error>;

    /// Returns where the row has this field of the owner.
    fn at(&self, owner: &str, field: Field) -> Path;

    /// Returns the condition that this owner has the row, and that its lease ends after `now`.
    fn is_held<'a>(&self, owner: &'a str, now: u64) -> Condition<'a>;

    fn trace(&self, row: Option<&Row>, owner: &str, now: Moment) -> Trace;

    /// Returns `true` if rows keep the trace of a release for some time only.
    fn forgets_releases(&self) -> bool {
        false
    }

    /// Builds the release of one key. `is_first` is `false` if this row refused it before and the release [can
    /// adapt](Self::adapts).
    fn release<'a>(&self, of: OwnRow<'a>, release: &Release<'_>, is_first: bool) -> Update<'a>;

    /// Returns `true` if another release can succeed that does less for others.
    fn adapts(&self, _trace: &Trace, _release: &Release<'_>) -> bool {
        false
    }

    /// Builds a request that removes what is no longer needed from the row as a release has left it.
    fn tidied<'a>(&self, _row: Item, _key: &'a str, _now: Moment) -> Option<Update<'a>> {
        None
    }

    /// Builds the update that makes this row refuse a late acquire of the owner. Returns `None` if it does already.
    fn withdrawal<'a>(&self, of: OwnRow<'a>, row: Option<&Row>, now: Moment) -> Option<Update<'a>>;

    /// Takes over what a resumption has read.
    fn resumed(&mut self, _row: Row) {}
}
