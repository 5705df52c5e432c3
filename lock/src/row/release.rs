//! The release of an owner's keys, or of its permit.

use super::acquisition::Acquisition;
use super::mine::Mine;
use super::names::MAX_SEQUENCE;
use super::operation::Operation;
use super::place::{Hold, Release};
use super::table::Table;
use super::write::{Answer, Write};
use crate::client::SdkAttempts;
use crate::clock::Moment;
use crate::error::Error;
use crate::holder::Holder;

/// The effect of a release.
#[derive(Debug)]
pub(crate) enum Released {
    /// `is_asked`: the holder was asked to run once more. It has a meaning only if the release coalesces.
    Freed { is_asked: bool },
    /// This owner had completed the record, in a request or a transaction whose answer was lost.
    Completed(Box<Holder>),
    /// The permit is gone after an earlier attempt, also of an earlier call, that was not answered. Either that attempt was
    /// applied, or another owner has taken the permit after the end of the lease.
    NoTrace,
}

/// A release under way: of the keys that this owner holds with one number.
#[derive(Clone, Debug)]
pub(crate) struct Releasing<'a> {
    acquisition: Acquisition,
    keys: Vec<String>,
    own: u64,
    release: Release<'a>,
    /// The keys that the owner does not hold.
    others: Vec<(String, Option<Holder>)>,
    /// The holder was asked to run once more, as the row before the release shows.
    is_asked: bool,
    unreadable: Option<Error>,
}

impl<'a> Releasing<'a> {
    /// Of all keys of a lock.
    pub(crate) fn all(acquisition: &Acquisition, release: Release<'a>) -> Self {
        Self::new(acquisition, acquisition.target.keys().to_vec(), acquisition.numbers.own, release)
    }

    /// Of these keys, which the owner has taken with the number `own`.
    pub(super) fn new(acquisition: &Acquisition, keys: Vec<String>, own: u64, release: Release<'a>) -> Self {
        Self {
            acquisition: acquisition.clone(),
            keys,
            own,
            release,
            others: Vec::new(),
            is_asked: false,
            unreadable: None,
        }
    }

    /// Takes note of the answer. Of several keys, the keys that the owner holds are released alone. Returns `false` if another
    /// request follows.
    pub(super) fn take_note(&mut self, table: &Table, answer: Answer) -> bool {
        self.keys.clear();
        let refused = match answer {
            Answer::Refused(refused) => refused,
            Answer::Applied(before) => {
                let before = self.release.coalesces.then(|| Holder::read(before, self.release.now).ok()).flatten();
                self.is_asked = before.is_some_and(|row| row.was_asked(self.own));
                return true;
            }
        };
        self.keys.clone_from(&refused.willing);
        for (key, row) in refused.into_each(table, self.release.now) {
            match row {
                // The owner's attempts were given up before, by a larger number.
                Ok(Some(row)) if self.is_given_up(&row) => {
                    self.release.number = 0;
                    self.keys.push(key);
                }
                Ok(row) => {
                    // This owner had released the key. The row still shows whether the owner was asked, unless a later holder
                    // was asked.
                    self.is_asked |= row.as_ref().is_some_and(|row| row.was_asked(self.own));
                    self.others.push((key, row));
                }
                // An unreadable row does not keep the other keys held.
                Err(error) => self.unreadable = Some(error),
            }
        }
        self.keys.is_empty()
    }

    /// Returns the keys that the owner does not hold, with their rows, if each row can be read.
    pub(super) fn others(&mut self) -> Result<Vec<(String, Option<Holder>)>, Error> {
        self.unreadable.take().map_or_else(|| Ok(std::mem::take(&mut self.others)), Err)
    }

    /// Returns `true` if the row has this owner's permit for this release, and has given up the numbers that the release gives
    /// up.
    fn is_given_up(&self, row: &Holder) -> bool {
        self.release.number > 0
            && row.withdrawn >= Some(self.release.number)
            && self.acquisition.target.is_permit()
            && self.acquisition.held_with(self.own, Some(row)).is_some()
    }
}

impl Operation for Releasing<'_> {
    type Output = Released;

    fn request<'b>(&'b self, table: &'b Table, _: Moment) -> Write<'b> {
        let acquisition = &self.acquisition;
        let update = |key: &'b String| {
            let hold = self.release.hold.map(|hold| acquisition.hold_of(key, hold));
            acquisition.place(table, key).release(self.own, &Release { hold, ..self.release })
        };
        Write::new(self.keys.iter().map(update).collect(), acquisition.target.transact())
    }

    fn on(&mut self, table: &Table, answer: Answer, _: Moment) -> Result<Option<Released>, Error> {
        if !self.take_note(table, answer) {
            return Ok(None);
        }
        let (others, number) = (self.others()?, self.release.number);
        let (mut released, mut lost) = (Released::Freed { is_asked: self.is_asked }, Vec::new());
        for (key, row) in others {
            let is_gone = matches!(self.acquisition.mine(row.as_ref()), Mine::Gone);
            match row {
                Some(row) if !row.is_semaphore() && row.released == Some(number) => {
                    if row.completed && row.is_owned_by(&self.acquisition.owner) {
                        released = Released::Completed(Box::new(row));
                    }
                }
                _ if is_gone && self.acquisition.has_unanswered_release() => released = Released::NoTrace,
                row => lost.push((key, self.acquisition.lost_to(row))),
            }
        }
        if lost.is_empty() { Ok(Some(released)) } else { Err(Error::lost_to(lost, table.place())) }
    }

    fn attempts(&self) -> SdkAttempts {
        self.acquisition.release_attempts.clone().unwrap_or_else(SdkAttempts::leaving_prevented)
    }
}

impl Acquisition {
    /// Returns the hold of one of the keys. A transaction returns no rows, so the hold times before are from refusals.
    fn hold_of(&self, key: &str, hold: Hold) -> Hold {
        if self.target.transact().is_none() {
            return hold;
        }
        let before = self.index_of(key).and_then(|index| self.hold_times.get(index).copied().flatten());
        Hold { before, is_before_known: before.is_some(), ..hold }
    }

    /// Returns the release of the keys or the permit that an ended acquire has taken.
    pub(super) fn end_of(&self, now: Moment) -> Release<'static> {
        // A permit's attempts were given up before.
        let number = if self.target.is_permit() { 0 } else { self.release_number(now) };
        let hold_until = self.held_for_others_until();
        Release { number, sequence: MAX_SEQUENCE, now, hold_until, hold: None, data: None, coalesces: false }
    }
}
