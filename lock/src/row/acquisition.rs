//! The acquisition of one owner: its target, its numbers, and its plan for the next attempt.

use std::time::Duration;

use aws_sdk_dynamodb::types::ConditionCheck;

use super::attribute::number_at;
use super::claim::Plan;
use super::expression::{Attribute as _, Condition, any};
use super::key::KeyPlace;
use super::names::{LATEST, LEASE_END, MAX_FENCE, STATUS};
use super::permit::PermitPlace;
use super::place::Place;
use super::table::{Item, Table};
use super::target::Target;
use crate::client::SdkAttempts;
use crate::clock::{Moment, Offset, micros};
use crate::error::{Cause, Error, Place as Where};
use crate::queue::HoldTime;

/// The numbers of one owner's attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    /// The number that was applied.
    pub(crate) own: u64,
    /// The largest that was sent.
    pub(crate) sent: u64,
    /// The largest that was sent and may not have been answered, or 0.
    pub(crate) unanswered: u64,
    /// The largest that refusals have shown.
    seen: u64,
}

impl Numbers {
    /// Returns the number of the next attempt: larger than those of all that it knows, and at least the clock, so that it is
    /// also larger than those of others that it does not know. `None` if there is none.
    pub(super) fn next(&mut self, now: Moment) -> Option<u64> {
        let number = micros(now.wall).max(self.seen + 1).max(self.sent + 1);
        (number <= MAX_FENCE).then(|| {
            self.sent = number;
            number
        })
    }

    /// Takes note of a number that a row shows.
    pub(super) fn see(&mut self, number: Option<u64>) {
        self.seen = self.seen.max(number.unwrap_or_default().min(MAX_FENCE));
    }
}

/// An attempt of a host whose clock is wrong, as an answer shows. It may have taken what another holder has.
#[derive(Clone, Debug)]
struct Mistake {
    offset: Offset,
    /// The row of a key that the attempt has replaced, if the answer has it.
    replaced: Option<Item>,
    /// Until when the key stays held for the holder before, if that row does not come back.
    hold_until: Option<Duration>,
}

/// The acquisition of one owner, before and after its grant.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(super) target: Target,
    /// The nonce, after the identity if there is one.
    pub(crate) owner: String,
    pub(crate) numbers: Numbers,
    /// What the next attempt does, beside taking what is free.
    pub(super) plan: Plan,
    /// The hold times of several keys that refusals have shown.
    pub(super) hold_times: Vec<Option<HoldTime>>,
    /// The end of the last attempt's lease, by this host's clock, in milliseconds since the epoch.
    pub(crate) lease_end: u64,
    mistake: Option<Mistake>,
    /// The attempts of the release and of its repetitions, if the row does not keep its trace.
    pub(super) release_attempts: Option<SdkAttempts>,
}

impl Acquisition {
    pub(crate) fn new(target: Target, owner: String) -> Self {
        let release_attempts = target.is_permit().then(SdkAttempts::leaving_prevented);
        let (numbers, plan) = (Numbers::default(), Plan::default());
        Self { target, owner, numbers, plan, hold_times: Vec::new(), lease_end: 0, mistake: None, release_attempts }
    }

    /// Takes note that this host's clock is wrong, if that is not known. The row before the last attempt is without a status if
    /// there was none, and `None` if it is not known.
    pub(crate) fn mistaken(&mut self, offset: Offset, before: Option<Item>) {
        // The permit was free: no attempt replaces another permit before an answer has shown it, and the time of that answer.
        if self.mistake.is_some() || self.target.is_permit() {
            return;
        }
        // A transaction returns no rows.
        let before = before.filter(|_| self.target.transact().is_none());
        let is_of_nobody = before.as_ref().is_some_and(|before| !before.contains_key(STATUS));
        let replaced = before.filter(|_| !is_of_nobody);
        let own_end = Duration::from_millis(self.lease_end).saturating_sub(offset.by);
        let end = replaced.as_ref().and_then(|before| number_at(before, LEASE_END, LATEST).ok()?);
        let hold_until = own_end.max(Duration::from_millis(end.unwrap_or_default()));
        let hold_until = (offset.is_ahead && !is_of_nobody).then_some(hold_until);
        self.mistake = Some(Mistake { offset, replaced, hold_until });
    }

    /// Returns the row that a mistaken attempt has replaced.
    pub(super) fn replaced(&self) -> Option<&Item> {
        self.mistake.as_ref()?.replaced.as_ref()
    }

    /// Returns until when what a mistaken attempt took stays held, because it may have been another holder's.
    pub(super) fn held_for_others_until(&self) -> Option<Duration> {
        self.mistake.as_ref()?.hold_until
    }

    /// Returns this moment by a clock that is right.
    pub(super) fn corrected(&self, now: Moment) -> Moment {
        self.mistake.as_ref().map_or(now, |mistake| mistake.offset.correct(now))
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the key, or the first of several.
    pub(crate) fn key(&self) -> &str {
        self.target.keys().first().map_or("", String::as_str)
    }

    /// Returns the text that names the rows' keys for people.
    pub(crate) fn name(&self, place: Where<'_>) -> String {
        self.target.name(place)
    }

    /// Returns the number of a release at this moment.
    ///
    /// That of a key is larger than those of all attempts of this owner, and of the attempts of others that were sent before:
    /// the key refuses them all if they arrive late. A permit leaves nothing of its own in the row. Its release gives up the
    /// attempts of this owner that were not answered, or nothing, which is 0: in a busy semaphore, others are under way.
    pub(crate) fn release_number(&self, now: Moment) -> u64 {
        if self.target.is_permit() {
            return self.numbers.unanswered;
        }
        (self.numbers.sent.max(micros(now.wall)) + 1).min(MAX_FENCE)
    }

    /// Returns the row of this key as the place of this owner.
    pub(super) fn key_place<'a>(&'a self, table: &'a Table, key: &'a str) -> KeyPlace<'a> {
        KeyPlace { table, key, owner: &self.owner }
    }

    /// Returns the place of this owner with this key.
    pub(super) fn place<'a>(&'a self, table: &'a Table, key: &'a str) -> Box<dyn Place<'a> + 'a> {
        if self.target.is_permit() {
            Box::new(PermitPlace { table, key, owner: &self.owner })
        } else {
            Box::new(self.key_place(table, key))
        }
    }

    /// Returns `true` if an attempt of the release was not answered, and the row may have lost its trace.
    pub(super) fn has_unanswered_release(&self) -> bool {
        self.release_attempts.as_ref().is_some_and(SdkAttempts::is_unanswered)
    }

    /// Returns the error of all keys.
    pub(crate) fn error(&self, cause: Cause, table: &Table) -> Error {
        let mut keys = self.target.keys().iter().map(String::as_str);
        Error::new(cause, table.place(), keys.next().unwrap_or_default()).with_others(keys)
    }
}

impl Table {
    /// Builds the check "this owner still holds the key" for a transaction, for each key. Without a lock, it always holds.
    pub(crate) fn condition_checks(
        &self,
        acquisition: &Acquisition,
        is_enforced: bool,
        now: Moment,
    ) -> Result<Vec<ConditionCheck>, Error> {
        let always = || {
            let key = || self.key_path();
            any([key().exists(), key().missing()])
        };
        let condition = |key| -> Condition<'_> {
            if is_enforced {
                acquisition.place(self, key).is_held(acquisition.numbers.own, now.millis())
            } else {
                always()
            }
        };
        acquisition.target.keys().iter().map(|key| self.check(key, &condition(key))).collect()
    }
}
