//! The permits in the row of a semaphore.

use aws_sdk_dynamodb::types::AttributeValue;

use super::attribute::{number_at, string_at};
use super::names::{LATEST, MAX_FENCE, MAX_SEQUENCE, PERMIT_FENCE_PREFIX, PERMIT_PREFIX, PERMITS, permit};
use super::owner::{is_same_identity, split};
use super::table::Item;
use crate::holder::{Holder, HolderKind};

/// Reads the permits of a row that any program may have written. The error says what is wrong with them.
///
/// The lease that ends first comes first. If two leases end at once, the permit that was acquired first comes first.
pub(super) fn permits(item: &mut Item, now: u64) -> Result<Vec<Holder>, String> {
    let count = number_at(item, PERMITS, u64::MAX)?.ok_or_else(|| format!("`{PERMITS}` is missing"))?;
    let names: Vec<String> = item.keys().filter(|name| name.starts_with(PERMIT_PREFIX)).cloned().collect();
    let mut permits = Vec::new();
    for name in names {
        let Some(AttributeValue::M(map)) = item.remove(&name) else {
            return Err(format!("`{}` is not a map", shortened(&name)));
        };
        let start = &name[PERMIT_PREFIX.len()..];
        let fence = number_at(item, &format!("{PERMIT_FENCE_PREFIX}{start}"), MAX_FENCE + 1)?;
        permits.push(read(start, fence, map, now).map_err(|why| format!("{why} in `{}`", shortened(&name)))?);
    }
    if permits.len() as u64 != count {
        return Err(format!("`{PERMITS}` is {count}, but the row has {} of them", permits.len()));
    }
    permits.sort_by_key(|permit| (permit.until, permit.fence));
    Ok(permits)
}

/// Reads the permit whose name has this end: the owner, or the part of the owner that its nonce follows.
fn read(start: &str, fence: Option<u64>, mut map: Item, now: u64) -> Result<Holder, String> {
    let written = AttributeValue::M(map.clone());
    let nonce = string_at(&mut map, permit::NONCE)?;
    // The name of a permit without an identity is its owner, which does not end with `#`.
    if nonce.is_none() && start.ends_with('#') {
        return Err(format!("`{}` is missing", permit::NONCE));
    }
    let owner = start.to_owned() + &nonce.unwrap_or_default();
    if split(&owner).map_or(owner.as_str(), |(start, _)| start) != start {
        return Err(format!("`{}` does not belong to the name", permit::NONCE));
    }
    let number = |name, max| number_at(&map, name, max)?.ok_or_else(|| format!("`{name}` is missing"));
    let until = number(permit::LEASE_END, LATEST)?;
    let acquired_at = number_at(&map, permit::ACQUIRED_AT, LATEST)?;
    Ok(Holder {
        owner: Some(owner),
        number: Some(number(permit::NUMBER, MAX_FENCE)?),
        fence,
        since: acquired_at,
        held_since: number_at(&map, permit::HELD_SINCE, LATEST).unwrap_or_default().or(acquired_at),
        until,
        sequence: Some(number_at(&map, permit::SEQUENCE, MAX_SEQUENCE)?.unwrap_or_default()),
        name: string_at(&mut map, permit::HOLDER)?,
        map: Some(written),
        ..Holder::unknown(HolderKind::Permit, now)
    })
}

impl Holder {
    /// Returns the permit of this owner.
    pub(super) fn permit(&self, owner: &str) -> Option<&Self> {
        self.permits.iter().find(|permit| permit.is_owned_by(owner))
    }

    /// Returns the permit of another owner with the same identity.
    pub(super) fn permit_of_identity(&self, owner: &str) -> Option<&Self> {
        self.permits.iter().find(|permit| !permit.is_owned_by(owner) && permit.has_identity_of(owner))
    }

    /// Returns `true` if this owner has the same identity as the holder.
    pub(super) fn has_identity_of(&self, owner: &str) -> bool {
        self.owner.as_deref().is_some_and(|own| is_same_identity(owner, own))
    }
}

/// Returns the beginning of a name that any program may have written.
fn shortened(name: &str) -> String {
    name.chars().take(50).collect()
}
