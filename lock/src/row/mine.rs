//! How an owner reads a row.

use super::acquisition::Acquisition;
use crate::holder::{Holder, HolderKind};

/// The answer of a row to its reader, an owner.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mine<'r> {
    /// The row has the key or permit of this owner, which somebody may have freed or completed.
    Own(&'r Holder),
    /// Another owner has the key, or the permit of the same identity.
    Other(&'r Holder),
    /// The semaphore has no permit of this owner and its identity.
    Gone,
    /// There is no row, or a row of another kind.
    Nothing,
}

impl<'r> Mine<'r> {
    pub(super) fn own(self) -> Option<&'r Holder> {
        match self {
            Self::Own(place) => Some(place),
            _ => None,
        }
    }
}

impl Acquisition {
    /// The only reading of a row by an owner.
    pub(super) fn mine<'r>(&self, row: Option<&'r Holder>) -> Mine<'r> {
        let Some(row) = row.filter(|row| self.is_of_kind(row)) else { return Mine::Nothing };
        match (row.permit(&self.owner), row.permit_of_identity(&self.owner)) {
            _ if !row.is_semaphore() && row.is_owned_by(&self.owner) => Mine::Own(row),
            _ if !row.is_semaphore() => Mine::Other(row),
            (Some(own), _) => Mine::Own(own),
            (None, Some(other)) => Mine::Other(other),
            (None, None) => Mine::Gone,
        }
    }

    fn is_of_kind(&self, row: &Holder) -> bool {
        row.kind == if self.target.is_permit() { HolderKind::Semaphore } else { HolderKind::Key }
    }

    /// Returns the owner's key or permit, if it was acquired with this number and neither released nor completed.
    pub(super) fn held_with<'r>(&self, number: u64, row: Option<&'r Holder>) -> Option<&'r Holder> {
        self.mine(row).own().filter(|place| place.is_acquired_with(number))
    }

    /// Returns the number of the owner's key or permit, if an attempt up to `last` took it and it was neither released nor
    /// completed.
    pub(super) fn taken_with(&self, row: Option<&Holder>, last: u64) -> Option<u64> {
        let place = self.mine(row).own().filter(|place| !place.has_released())?;
        place.number.filter(|number| *number <= last)
    }

    /// Returns `true` if this row refuses all attempts up to this number. A row of another kind refuses them in any case.
    pub(super) fn is_refused_by(&self, row: &Holder, last: u64) -> bool {
        !self.is_of_kind(row) || row.withdrawn >= Some(last) || (!row.is_semaphore() && row.number > Some(last))
    }

    /// Returns the holder that took this owner's key or permit, if the row names one.
    pub(super) fn lost_to(&self, row: Option<Holder>) -> Option<Holder> {
        match self.mine(row.as_ref()) {
            Mine::Other(other) => Some(other.clone()),
            // An operator who has freed the key or permit has left a name, but holds nothing. An identity has left no name.
            Mine::Own(place) if place.number != Some(self.numbers.own) => {
                let row = row.filter(|row| row.name().is_some())?;
                Some(Holder { owner: None, ..row })
            }
            Mine::Own(_) | Mine::Gone | Mine::Nothing => None,
        }
    }
}
