//! The rows of keys after the applied requests, and the rules that each request keeps to, for locks and sets.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::holders::Holders;
use crate::guarantee::{FENCES, OWNERS, WITHDRAWN};
use crate::request::{Purpose, Write};

#[derive(Default)]
pub(crate) struct Rows {
    /// By key.
    rows: HashMap<String, Row>,
    /// Keys and owners whose release was applied.
    released: HashSet<(String, String)>,
}

#[derive(Default)]
struct Row {
    owner: String,
    fence: u64,
    /// The numbers up to this one were given up.
    withdrawn: u64,
}

impl Rows {
    /// Takes note of a request that was applied. Returns what it breaks.
    pub(crate) fn applied(&mut self, holders: &mut Holders, write: &Write, answer: &Value) -> Vec<String> {
        let Write { purpose, key, owner, .. } = write;
        let mut broken = Vec::new();
        let is_other = self.rows.get(key).is_some_and(|row| row.owner != *owner);
        match purpose {
            Purpose::Acquire => {
                let (row, holder, fence) = (self.row(key), write.text("holder").unwrap(), write.fence_written(answer));
                // A release leaves its number, too.
                if fence <= row.fence {
                    broken.push(format!("{FENCES}: {key}: fence {fence} after {}", row.fence));
                }
                if fence <= row.withdrawn {
                    broken.push(format!("{WITHDRAWN}: {key} was taken by {holder}, which had withdrawn"));
                }
                (row.owner, row.fence) = (owner.clone(), fence);
                // What asks again is held again.
                self.released.remove(&(key.clone(), owner.clone()));
                holders.applied(key.clone(), fence, holder.to_owned());
            }
            Purpose::Withdraw => match write.attempt() {
                Some(fence) => {
                    let row = self.row(key);
                    (row.owner, row.fence) = (owner.clone(), fence);
                    self.release(key, owner);
                }
                None => self.row(key).withdrawn = write.gives_up().unwrap(),
            },
            Purpose::Renew | Purpose::Release => {
                if *purpose == Purpose::Renew && self.was_released(key, owner) {
                    broken.push(format!("{OWNERS}: {key}: a renewal took it again after its release"));
                }
                if is_other {
                    broken.push(format!("{OWNERS}: {key}: a {purpose:?} changed another holder's row"));
                }
                let row = self.row(key);
                // A mutation writes a text.
                row.fence = write.attempt().unwrap_or(row.fence);
                if *purpose == Purpose::Release {
                    self.release(key, owner);
                }
            }
            Purpose::Free => self.row(key).fence = write.attempt().unwrap(),
            _ => {}
        }
        broken
    }

    fn row(&mut self, key: &str) -> &mut Row {
        self.rows.entry(key.to_owned()).or_default()
    }

    /// From now on, this owner counts as one that has released the key.
    pub(crate) fn release(&mut self, key: &str, owner: &str) {
        self.released.insert((key.to_owned(), owner.to_owned()));
    }

    pub(crate) fn was_released(&self, key: &str, owner: &str) -> bool {
        self.released.contains(&(key.to_owned(), owner.to_owned()))
    }

    /// The owner of the last request, if there was one.
    pub(crate) fn last_owner(&self, key: &str) -> Option<&str> {
        self.rows.get(key).map(|row| row.owner.as_str())
    }

    /// The owner that an operation has in the row, if it has not released it.
    pub(crate) fn owner_of(&self, holders: &Holders, key: &str, operation: &str) -> Option<&str> {
        let row = self.rows.get(key).filter(|row| holders.is_of(key, row.fence, operation))?;
        (!self.was_released(key, &row.owner)).then_some(row.owner.as_str())
    }
}
