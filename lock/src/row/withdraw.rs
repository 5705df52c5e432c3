//! The withdrawal of an acquire that has ended without the lock.

use super::acquisition::Acquisition;
use super::names::STATUS;
use super::operation::{Operation, TRIES};
use super::release::Releasing;
use super::table::{Item, Table};
use super::write::{Answer, Write};
use crate::clock::{Moment, Offset};
use crate::error::{Cause, Error, Place as Where};
use crate::holder::Holder;

/// The withdrawal of an acquire that has ended: no attempt of it holds anything. It gives up the numbers of the acquire, so that
/// an attempt that arrives late is refused, and frees the keys or the permit that an attempt has taken already.
#[derive(Clone, Debug)]
pub(crate) struct Withdrawing {
    acquisition: Acquisition,
    /// The keys or the permit that an attempt has taken stay held: a takeover has them from its identity.
    keeps: bool,
    /// The number of the last attempt.
    last: u64,
    /// The row of the first key as it was seen last, if it was seen.
    #[expect(clippy::option_option, reason = "a row that is gone was seen, too")]
    seen: Option<Option<Holder>>,
    tries: u32,
    phase: Phase,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value of it, on the stack")]
enum Phase {
    /// The row that an attempt with a wrong clock has replaced comes back.
    PuttingBack(Item),
    GivingUp,
    /// The numbers were given up.
    Freeing(Releasing<'static>),
}

impl Withdrawing {
    /// With `keeps`, the keys or the permit that an attempt has taken stay held.
    pub(crate) fn start(acquisition: Acquisition, keeps: bool) -> Self {
        let (last, seen) = (acquisition.numbers.sent, None);
        let phase = acquisition.replaced().map_or(Phase::GivingUp, |before| Phase::PuttingBack(before.clone()));
        Self { acquisition, keeps, last, seen, tries: 0, phase }
    }

    /// Returns the text that names the rows' keys for people.
    pub(crate) fn name(&self, place: Where<'_>) -> String {
        self.acquisition.name(place)
    }

    fn given_up(&mut self, table: &Table, answer: Answer, now: Moment) -> Result<Option<()>, Error> {
        self.tries += 1;
        let mut had_row = true;
        let (row, is_withdrawn) = match answer {
            Answer::Applied(before) => {
                // Some endpoints return the key of a row that is new.
                had_row = before.contains_key(STATUS);
                (Holder::read(before, now).ok(), true)
            }
            Answer::Refused(refused) => {
                let row = refused.into_row(table, now)?;
                let is_withdrawn = row.as_ref().is_some_and(|row| self.acquisition.is_refused_by(row, self.last));
                (row, is_withdrawn)
            }
        };
        if !is_withdrawn && self.tries < TRIES {
            // The row is not as the request expected it.
            self.seen = Some(row);
            return Ok(None);
        }
        if !is_withdrawn {
            return Err(self.acquisition.error(Cause::Conflict, table));
        }
        let own = self.acquisition.taken_with(row.as_ref(), self.last);
        // This owner may have lost the first key alone, for example because an operator has freed it.
        let of_set = self.acquisition.target.transact().filter(|_| had_row).map(|_| self.last);
        let own = own.or(of_set).filter(|_| !self.keeps);
        let Some(own) = own else { return Ok(Some(())) };
        self.free(self.acquisition.target.keys().to_vec(), own, now);
        Ok(None)
    }

    fn free(&mut self, keys: Vec<String>, own: u64, now: Moment) {
        self.phase = Phase::Freeing(Releasing::new(&self.acquisition, keys, own, self.acquisition.end_of(now)));
    }

    /// Frees the keys that an earlier attempt has taken, with its number. Returns `None` if there are any.
    fn freed(&mut self, others: Vec<(String, Option<Holder>)>, now: Moment) -> Option<()> {
        let earlier = |row: &Option<Holder>| self.acquisition.taken_with(row.as_ref(), self.last);
        let number = others.iter().find_map(|(_, row)| earlier(row)).filter(|_| self.tries < TRIES);
        let Some(number) = number else { return Some(()) };
        let others = others.into_iter().filter(|(_, row)| earlier(row) == Some(number));
        let keys = others.map(|(key, _)| key).collect();
        self.tries += 1;
        self.free(keys, number, now);
        None
    }
}

impl Operation for Withdrawing {
    type Output = ();

    fn request<'b>(&'b self, table: &'b Table, now: Moment) -> Write<'b> {
        let (acquisition, now) = (&self.acquisition, self.acquisition.corrected(now));
        match &self.phase {
            Phase::PuttingBack(before) => {
                acquisition.key_place(table, acquisition.key()).put_back(self.last, before).into()
            }
            Phase::GivingUp => {
                acquisition.place(table, acquisition.key()).withdraw(self.last, self.seen.as_ref(), now).into()
            }
            Phase::Freeing(releasing) => releasing.request(table, now),
        }
    }

    fn on(&mut self, table: &Table, answer: Answer, now: Moment) -> Result<Option<()>, Error> {
        let now = self.acquisition.corrected(now);
        match std::mem::replace(&mut self.phase, Phase::GivingUp) {
            Phase::PuttingBack(_) => Ok(answer.into_applied().map(drop)),
            Phase::GivingUp => self.given_up(table, answer, now),
            Phase::Freeing(mut releasing) => {
                if releasing.take_note(table, answer) {
                    return Ok(self.freed(releasing.others()?, now));
                }
                self.phase = Phase::Freeing(releasing);
                Ok(None)
            }
        }
    }

    /// No attempt has had an answer, or its answer was not waited for.
    fn on_wrong_clock(&mut self, _: &Table, offset: Offset) -> Option<()> {
        self.acquisition.mistaken(offset, None);
        None
    }
}
