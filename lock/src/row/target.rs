//! The target of an acquire: a key, the record of a key, a permit, or several keys.

use std::slice;
use std::time::Duration;

use super::record_claim::RecordClaim;
use super::table::Table;
use super::write::Transact;
use crate::clock::{Deadline, Lease, Moment, millis_up, seconds_up};
use crate::error::{Error, Place as Where};
use crate::holder::Data;
use crate::limits::{
    DAY, MAX_DATA_BYTES, MAX_LEASE, MAX_PERMIT_DATA_BYTES, check_data, check_key, check_keys, check_permits,
};

/// The target of an acquire.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A key, which one owner has at a time.
    Key(String),
    /// A key whose row is a record of idempotency.
    Record(String, RecordClaim),
    /// One of the permits of a key.
    Permit { key: String, of: u32 },
    /// Several keys in alphabetical order, all or none, and the function that applies their updates together.
    Keys(Vec<String>, Transact),
}

impl Target {
    pub(crate) fn several(mut keys: Vec<String>) -> Self {
        keys.sort_unstable();
        Self::Keys(keys, Table::transact)
    }

    pub(crate) fn keys(&self) -> &[String] {
        match self {
            Self::Key(key) | Self::Record(key, _) | Self::Permit { key, .. } => slice::from_ref(key),
            Self::Keys(keys, _) => keys,
        }
    }

    /// Returns the function that applies the updates of several keys together.
    pub(super) fn transact(&self) -> Option<Transact> {
        match self {
            Self::Keys(_, transact) => Some(*transact),
            _ => None,
        }
    }

    pub(super) fn record(&self) -> Option<&RecordClaim> {
        match self {
            Self::Record(_, record) => Some(record),
            _ => None,
        }
    }

    pub(super) fn is_permit(&self) -> bool {
        matches!(self, Self::Permit { .. })
    }

    pub(crate) fn check(&self, key_prefix: &str) -> Result<(), Error> {
        match self {
            Self::Key(key) | Self::Record(key, _) => check_key(key_prefix, key),
            Self::Permit { key, of } => check_key(key_prefix, key).and_then(|()| check_permits(key, *of)),
            Self::Keys(keys, _) => check_keys(key_prefix, keys),
        }
    }

    /// Returns the longest lease that the caller may choose.
    pub(crate) fn longest_lease(&self) -> Duration {
        if matches!(self, Self::Key(_)) { MAX_LEASE } else { DAY }
    }

    /// Checks a setting that only the lock of one key has.
    pub(crate) fn check_one_key(&self, what: &str) -> Result<(), Error> {
        match self {
            Self::Keys(..) => {
                Err(Error::invalid(format!("a lock of several keys has no {what}: acquire one key, or leave it out")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_min_hold(&self) -> Result<(), Error> {
        if self.is_permit() {
            let instead = "leave it out, or let a rate say how many calls pass in a period";
            return Err(Error::invalid(format!("a permit has no minimum hold: {instead}")));
        }
        self.check_one_key("minimum hold")
    }

    pub(crate) fn check_data(&self, data: &Data) -> Result<(), Error> {
        self.check_one_key("data")?;
        check_data(data, if self.is_permit() { MAX_PERMIT_DATA_BYTES } else { MAX_DATA_BYTES })
    }

    /// Returns how many owners can have a row at a time.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            Self::Permit { of, .. } => *of,
            _ => 1,
        }
    }

    /// Returns `true` if a waiter takes a place in the queue. The outcome of a record's run is for all waiters, so they do not
    /// take turns.
    pub(crate) fn takes_place(&self) -> bool {
        self.record().is_none()
    }

    /// Returns the earliest time at which TTL may delete the row of a lease with this end.
    fn kept_until(&self, table: &Table, now: Moment, end: Duration) -> Duration {
        match self {
            Self::Permit { .. } => table.semaphore_kept_until(now),
            Self::Record(_, record) => table.kept_after(end).max(record.window_end(now).unwrap_or_default()),
            Self::Key(_) | Self::Keys(..) => table.kept_after(end),
        }
    }

    /// Returns the text that names the rows' keys for people.
    pub(crate) fn name(&self, place: Where<'_>) -> String {
        /// How many keys are named.
        const NAMED: usize = 3;
        let keys = self.keys();
        if let [key] = keys {
            return place.printable_key(key);
        }
        let named: Vec<_> = keys.iter().take(NAMED).map(|key| place.printable_key(key)).collect();
        let named = named.join(", ");
        if keys.len() > NAMED { format!("{named} and {} more", keys.len() - NAMED) } else { named }
    }
}

impl Table {
    /// Returns the lease that ends at this deadline, for an acquire or a renewal at this moment. With the lease before it,
    /// TTL does not delete the row earlier than it would have.
    pub(crate) fn lease(&self, target: &Target, now: Moment, deadline: Deadline, before: Option<Lease>) -> Lease {
        let end = deadline.wall().saturating_add(self.clock_skew);
        let expiration = seconds_up(target.kept_until(self, now, end));
        let expiration = expiration.max(before.map_or(0, |lease| lease.expiration));
        Lease { deadline, end: millis_up(end), expiration }
    }

    /// Returns the time until which the row of a semaphore stays at least: its other permits may have the longest lease.
    pub(super) fn semaphore_kept_until(&self, now: Moment) -> Duration {
        self.kept_after(now.wall.saturating_add(DAY).saturating_add(self.clock_skew))
    }
}
