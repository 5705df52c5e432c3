//! The row of a semaphore: its permits, and the tombstones of released ones.

use std::cmp::Reverse;

use aws_sdk_dynamodb::types::AttributeValue;

use super::attribute::{number_at, string_at};
use super::names::{
    FREED_AT, LATEST, MAX_FENCE, MAX_SEQUENCE, PERMIT_FENCE_PREFIX, PERMIT_PREFIX, PERMITS, permit, tombstone,
};
use super::owner::{is_same_identity, split};
use super::table::Item;
use crate::clock::Moment;
use crate::holder::{Data, Holder, HolderKind};

/// The permits of a row whose attributes were checked. The default has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Semaphore {
    /// The lease that ends first comes first. Of two that end at once, the first to be acquired does.
    pub(super) permits: Vec<Permit>,
    /// The newest comes first.
    pub(super) tombstones: Vec<Tombstone>,
    /// When a permit was last released: a hint.
    pub(super) freed_at: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Permit {
    pub(super) owner: String,
    /// The value in the row.
    pub(super) seen: AttributeValue,
    holder: Option<String>,
    pub(super) fence: Option<u64>,
    pub(super) acquired_at: Option<u64>,
    held_since: Option<u64>,
    /// In milliseconds since the epoch, with the clock skew.
    pub(super) lease_end: u64,
    pub(super) sequence: u64,
    /// The permit was released, and counts until the end of its minimum hold.
    pub(super) released: bool,
    /// The nonce of the last resumption with a ticket.
    pub(super) resumed: Option<String>,
}

/// What a released permit leaves in the row. It refuses a late duplicate of the acquire.
#[derive(Clone, Debug)]
pub(crate) struct Tombstone {
    pub(super) owner: String,
    /// In milliseconds since the epoch.
    pub(super) released_at: u64,
    /// The operator that released the permit by force.
    pub(super) forced_by: Option<String>,
}

impl Semaphore {
    /// Reads the permits of a row that any program may have written. The error says what is wrong with them.
    pub(super) fn read(item: &mut Item) -> Result<Self, String> {
        let count = number_at(item, PERMITS, u64::MAX)?.ok_or_else(|| format!("`{PERMITS}` is missing"))?;
        let freed_at = number_at(item, FREED_AT, LATEST).unwrap_or_default();
        let mut semaphore = Self { permits: Vec::new(), tombstones: Vec::new(), freed_at };
        let names: Vec<String> = item.keys().filter(|name| name.starts_with(PERMIT_PREFIX)).cloned().collect();
        for name in names {
            let Some(AttributeValue::M(map)) = item.remove(&name) else {
                return Err(format!("`{}` is not a map", shortened(&name)));
            };
            let start = &name[PERMIT_PREFIX.len()..];
            let fence = number_at(item, &format!("{PERMIT_FENCE_PREFIX}{start}"), MAX_FENCE + 1)?;
            semaphore.add(start, fence, map).map_err(|why| format!("{why} in `{}`", shortened(&name)))?;
        }
        if semaphore.permits.len() as u64 != count {
            return Err(format!("`{PERMITS}` is {count}, but the row has {} of them", semaphore.permits.len()));
        }
        semaphore.sort();
        Ok(semaphore)
    }

    /// Adds what has a name with this end: the owner, or what its nonce follows.
    fn add(&mut self, start: &str, fence: Option<u64>, mut map: Item) -> Result<(), String> {
        let seen = AttributeValue::M(map.clone());
        let owner = start.to_owned() + &string_at(&mut map, permit::NONCE)?.unwrap_or_default();
        if split(&owner).map_or(owner.as_str(), |(start, _)| start) != start {
            return Err(format!("`{}` does not belong to the name", permit::NONCE));
        }
        if let Some(released_at) = number_at(&map, tombstone::RELEASED_AT, LATEST)? {
            let forced_by = string_at(&mut map, tombstone::FORCED_BY)?;
            self.tombstones.push(Tombstone { owner, released_at, forced_by });
            return Ok(());
        }
        let number = |name, max| number_at(&map, name, max)?.ok_or_else(|| format!("`{name}` is missing"));
        let lease_end = number(permit::LEASE_END, LATEST)?;
        let sequence = number(permit::SEQUENCE, MAX_SEQUENCE)?;
        self.permits.push(Permit {
            owner,
            seen,
            fence,
            acquired_at: number_at(&map, permit::ACQUIRED_AT, LATEST)?,
            held_since: number_at(&map, permit::HELD_SINCE, LATEST).unwrap_or_default(),
            lease_end,
            sequence,
            released: map.contains_key(permit::RELEASED),
            resumed: string_at(&mut map, permit::RESUMED).unwrap_or_default(),
            holder: string_at(&mut map, permit::HOLDER)?,
        });
        Ok(())
    }

    /// Returns how many entries of the row belong to one owner.
    pub(super) fn len(&self) -> usize {
        self.permits.len() + self.tombstones.len()
    }

    pub(super) fn permit(&self, owner: &str) -> Option<&Permit> {
        self.permits.iter().find(|permit| permit.owner == owner)
    }

    /// Returns the permit of another owner with the same identity.
    pub(super) fn permit_of_identity(&self, owner: &str) -> Option<&Permit> {
        self.permits.iter().find(|permit| permit.owner != owner && is_same_identity(owner, &permit.owner))
    }

    pub(super) fn tombstone(&self, owner: &str) -> Option<&Tombstone> {
        self.tombstones.iter().find(|tombstone| tombstone.owner == owner)
    }

    /// Returns the tombstone of another owner with the same identity.
    pub(super) fn tombstone_of_identity(&self, owner: &str) -> Option<&Tombstone> {
        self.tombstones.iter().find(|tombstone| tombstone.owner != owner && is_same_identity(owner, &tombstone.owner))
    }

    /// Adds what this tombstone was, as a permit that was released and counts until that time.
    pub(super) fn with_released(mut self, tombstone: Option<Tombstone>) -> Self {
        if let Some(Tombstone { owner, released_at, forced_by: _ }) = tombstone {
            self.permits.push(Permit {
                owner,
                seen: AttributeValue::Null(true),
                holder: None,
                fence: None,
                acquired_at: None,
                held_since: None,
                lease_end: released_at,
                sequence: 0,
                released: true,
                resumed: None,
            });
            self.sort();
        }
        self
    }

    fn sort(&mut self) {
        self.permits.sort_by_key(|permit| (permit.lease_end, permit.fence));
        self.tombstones.sort_by_key(|tombstone| Reverse(tombstone.released_at));
    }

    /// Describes the semaphore by the lease that ends first. If all leases have ended, that is the one that ended last.
    pub(super) fn into_holder(self, fence: Option<u64>, data: Option<Data>, now: Moment) -> Holder {
        let permits: Vec<Holder> = self.permits.into_iter().map(|permit| permit.into_holder(now)).collect();
        let last = self.tombstones.into_iter().next().map(Tombstone::into_holder);
        let first = permits.iter().find(|permit| permit.current).or_else(|| permits.last()).cloned();
        let first = first.unwrap_or_else(|| Holder {
            owner: None,
            fence,
            ..last.unwrap_or_else(|| Holder::released(HolderKind::Semaphore, String::new(), None, 0))
        });
        Holder { data, permits, kind: HolderKind::Semaphore, ..first }
    }
}

impl Permit {
    pub(super) fn into_holder(self, now: Moment) -> Holder {
        Holder {
            name: self.holder,
            fence: self.fence,
            since: self.acquired_at,
            held_since: self.held_since.or(self.acquired_at),
            current: self.lease_end > now.millis(),
            released: self.released,
            ..Holder::released(HolderKind::Permit, self.owner, None, self.lease_end)
        }
    }
}

impl Tombstone {
    pub(super) fn into_holder(self) -> Holder {
        Holder::released(HolderKind::Permit, self.owner, self.forced_by, self.released_at)
    }
}

/// Returns the beginning of a name that any program may have written.
fn shortened(name: &str) -> String {
    name.chars().take(50).collect()
}
