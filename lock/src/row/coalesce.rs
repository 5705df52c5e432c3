//! Coalescing: a client that was refused leaves its work to the holder.

use super::key::ask;
use super::operation::Operation;
use super::table::Table;
use super::write::{Answer, Write};
use crate::clock::Moment;
use crate::error::Error;
use crate::holder::{Holder, HolderKind};

/// The request to the holder that was `seen` to run once more. A second request follows if other clients have asked at the same
/// time.
///
/// The client that asks has been refused and does not come back. If an attempt of that client arrives once more, it could take
/// the free key, and nobody would run. So this request gives up all attempts of the acquire that was refused, as a withdrawal
/// does. The request gives up nothing if the row had a larger number already.
#[derive(Clone, Debug)]
pub(crate) struct Coalescing {
    key: String,
    owner: String,
    number: u64,
    /// The attempts to give up.
    last: Option<u64>,
    now: Moment,
}

impl Coalescing {
    /// Returns `None` if the row shows nobody who would run once more.
    pub(crate) fn new(key: &str, seen: &Holder, now: Moment) -> Option<Self> {
        let (owner, number) = (seen.owner.clone()?, seen.number?);
        let last = seen.refused.filter(|last| Some(*last) > seen.withdrawn.max(seen.number));
        let has_holder = seen.kind == HolderKind::Key && !seen.is_released();
        has_holder.then(|| Self { key: key.to_owned(), owner, number, last, now })
    }
}

impl Operation for Coalescing {
    /// `false` if the holder does not have the key any more.
    type Output = bool;

    fn request<'b>(&'b self, _: &'b Table, _: Moment) -> Write<'b> {
        ask(&self.key, &self.owner, self.number, self.last, self.now).into()
    }

    fn on(&mut self, table: &Table, answer: Answer, _: Moment) -> Result<Option<bool>, Error> {
        let Answer::Refused(refused) = answer else { return Ok(Some(true)) };
        let Some(last) = self.last.take() else { return Ok(Some(false)) };
        // If another client has given up later attempts, this client asks once more and gives up nothing.
        let is_given_up = refused.into_row(table, self.now)?.is_some_and(|row| row.withdrawn >= Some(last));
        Ok((!is_given_up).then_some(false))
    }
}
