//! Who has what, and the check of the first guarantee, for the histories of all kinds.

use std::collections::HashMap;
use std::time::SystemTime;

use lambda_lock::Lock;

use super::book::Valid;
use super::identities::Identities;
use crate::guarantee::HOLDERS;

/// The holders that have not released what they have, and those whose minimum hold has not ended.
#[derive(Default)]
pub(crate) struct Holders {
    holdings: Vec<Holding>,
    /// By key and fence: the operation that got the fence.
    applied: HashMap<(String, u64), String>,
    pub(crate) identities: Identities,
}

pub(crate) struct Holding {
    pub(crate) operation: String,
    pub(crate) keys: Vec<String>,
    pub(crate) owner: String,
    /// How many permits there are, as the caller of one has said. The holder of a key has none.
    pub(crate) permits: Option<u32>,
    /// The fence with which it began. One that took a permit over from its identity has the fence of that permit.
    pub(crate) fence: u64,
    pub(crate) valid: Valid<Lock>,
}

impl Holders {
    /// The table has given this fence to an operation.
    pub(crate) fn applied(&mut self, key: String, fence: u64, operation: String) {
        self.applied.insert((key, fence), operation);
    }

    /// Returns `true` if the table has given this fence to this operation.
    pub(crate) fn is_of(&self, key: &str, fence: u64, operation: &str) -> bool {
        self.applied.get(&(key.to_owned(), fence)).is_some_and(|of| of == operation)
    }

    pub(crate) fn enter(&mut self, holding: Holding) {
        self.holdings.push(holding);
    }

    pub(crate) fn leave(&mut self, operation: &str) {
        self.holdings.retain(|holding| holding.operation != operation);
    }

    /// Returns what this operation has.
    pub(crate) fn of(&mut self, operation: &str) -> impl Iterator<Item = &mut Holding> {
        self.holdings.iter_mut().filter(move |holding| holding.operation == operation)
    }

    /// Returns a violation if a key has more holders that consider themselves valid at this instant than there may be: the
    /// holder of a key is alone, and of the permits, fewer than N were acquired before each of them. N is the number of its own
    /// caller. A holder that `has_lost` a key does not count, whatever it considers.
    pub(crate) fn violation(
        &self,
        keys: &[String],
        now: SystemTime,
        has_lost: impl Fn(&str, &str) -> bool,
    ) -> Option<String> {
        keys.iter().find_map(|key| {
            let is_valid = |holding: &&Holding| {
                holding.keys.contains(key)
                    && !has_lost(key, &holding.owner)
                    && holding.valid.is_valid(now, Lock::is_valid)
            };
            let mut valid: Vec<_> = self.holdings.iter().filter(is_valid).collect();
            valid.sort_by_key(|holding| holding.fence);
            let is_wrong = |(before, holding): &(usize, &&Holding)| {
                holding.permits.map_or(valid.len() > 1, |permits| *before >= permits as usize)
            };
            let (before, holding) = valid.iter().enumerate().find(is_wrong)?;
            let all: Vec<_> = valid.iter().map(|holding| holding.operation.as_str()).collect();
            let Holding { operation, permits, .. } = holding;
            let all = all.join("; ");
            Some(format!("{HOLDERS}: {operation} has {key}, with {before} before it, of {permits:?} permits: {all}"))
        })
    }
}
