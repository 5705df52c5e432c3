//! The permits in the row of a semaphore.

use aws_sdk_dynamodb::types::AttributeValue;

use super::attribute::{number_at, string_at};
use super::names::{LATEST, MAX_FENCE, MAX_SEQUENCE, PERMIT_FENCE_PREFIX, PERMIT_PREFIX, PERMITS, permit};
use super::owner::{is_same_identity, split};
use super::table::Item;
use crate::clock::Moment;
use crate::holder::{Data, Holder, HolderKind};

/// The permits of a row whose attributes were checked. The default has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Semaphore {
    /// The lease that ends first comes first. Of two that end at once, the first to be acquired does.
    pub(super) permits: Vec<Permit>,
}

#[derive(Clone, Debug)]
pub(crate) struct Permit {
    pub(super) owner: String,
    /// The value in the row.
    pub(super) seen: AttributeValue,
    holder: Option<String>,
    /// The number of its last acquisition, or of the release that ended it.
    pub(super) number: u64,
    pub(super) fence: Option<u64>,
    pub(super) acquired_at: Option<u64>,
    held_since: Option<u64>,
    /// In milliseconds since the epoch, with the clock skew.
    pub(super) lease_end: u64,
    pub(super) sequence: u64,
    /// The number of the release, if the permit was released and counts until the end of its minimum hold.
    pub(super) released: Option<u64>,
    /// The nonce of the last resumption with a ticket.
    pub(super) resumed: Option<String>,
}

impl Semaphore {
    /// Reads the permits of a row that any program may have written. The error says what is wrong with them.
    pub(super) fn read(item: &mut Item) -> Result<Self, String> {
        let count = number_at(item, PERMITS, u64::MAX)?.ok_or_else(|| format!("`{PERMITS}` is missing"))?;
        let mut semaphore = Self::default();
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
        semaphore.permits.sort_by_key(|permit| (permit.lease_end, permit.fence));
        Ok(semaphore)
    }

    /// Adds what has a name with this end: the owner, or what its nonce follows.
    fn add(&mut self, start: &str, fence: Option<u64>, mut map: Item) -> Result<(), String> {
        let seen = AttributeValue::M(map.clone());
        let owner = start.to_owned() + &string_at(&mut map, permit::NONCE)?.unwrap_or_default();
        if split(&owner).map_or(owner.as_str(), |(start, _)| start) != start {
            return Err(format!("`{}` does not belong to the name", permit::NONCE));
        }
        let number = |name, max| number_at(&map, name, max)?.ok_or_else(|| format!("`{name}` is missing"));
        let lease_end = number(permit::LEASE_END, LATEST)?;
        let sequence = number_at(&map, permit::SEQUENCE, MAX_SEQUENCE)?.unwrap_or_default();
        self.permits.push(Permit {
            owner,
            seen,
            number: number(permit::NUMBER, MAX_FENCE)?,
            fence,
            acquired_at: number_at(&map, permit::ACQUIRED_AT, LATEST)?,
            held_since: number_at(&map, permit::HELD_SINCE, LATEST).unwrap_or_default(),
            lease_end,
            sequence,
            released: number_at(&map, permit::RELEASED, MAX_FENCE).unwrap_or_default(),
            resumed: string_at(&mut map, permit::RESUMED).unwrap_or_default(),
            holder: string_at(&mut map, permit::HOLDER)?,
        });
        Ok(())
    }

    pub(super) fn permit(&self, owner: &str) -> Option<&Permit> {
        self.permits.iter().find(|permit| permit.owner == owner)
    }

    /// Returns the permit of another owner with the same identity.
    pub(super) fn permit_of_identity(&self, owner: &str) -> Option<&Permit> {
        self.permits.iter().find(|permit| permit.owner != owner && is_same_identity(owner, &permit.owner))
    }

    /// Describes the semaphore by the lease that ends first. If all leases have ended, that is the one that ended last.
    pub(super) fn into_holder(
        self,
        fence: Option<u64>,
        freed_at: Option<u64>,
        data: Option<Data>,
        now: Moment,
    ) -> Holder {
        let permits: Vec<Holder> = self.permits.into_iter().map(|permit| permit.into_holder(now)).collect();
        let first = permits.iter().find(|permit| permit.current).or_else(|| permits.last()).cloned();
        let first = first.unwrap_or_else(|| Holder {
            owner: None,
            fence,
            ..Holder::released(HolderKind::Semaphore, String::new(), None, freed_at.unwrap_or_default())
        });
        Holder { data, permits, kind: HolderKind::Semaphore, ..first }
    }
}

impl Permit {
    pub(super) fn is_released(&self) -> bool {
        self.released == Some(self.number)
    }

    pub(super) fn into_holder(self, now: Moment) -> Holder {
        let released = self.is_released();
        Holder {
            name: self.holder,
            number: Some(self.number),
            fence: self.fence,
            since: self.acquired_at,
            held_since: self.held_since.or(self.acquired_at),
            current: self.lease_end > now.millis(),
            released,
            ..Holder::released(HolderKind::Permit, self.owner, None, self.lease_end)
        }
    }
}

/// Returns the beginning of a name that any program may have written.
fn shortened(name: &str) -> String {
    name.chars().take(50).collect()
}
