//! The requests of an owner after its acquire: renew, release, and the withdrawal of an acquire that ended without the lock.

use aws_sdk_dynamodb::types::ConditionCheck;

use super::acquisition::Acquisition;
use super::expression::{Attribute as _, Condition, any};
use super::key::ask;
use super::names::MAX_SEQUENCE;
use super::place::{Hold, Release};
use super::table::Table;
use super::write::{Answer, Write};
use crate::client::SdkAttempts;
use crate::clock::{Lease, Moment};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder, HolderKind};

/// How often a request looks again at a row that changed meanwhile.
pub(super) const TRIES: u32 = 3;

/// The effect of a renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Extended,
    Lost {
        error: Error,
        /// The owner still has other keys, which a release frees.
        has_others: bool,
    },
}

/// The effect of a release.
#[derive(Debug)]
pub(crate) enum Released {
    /// With whether the holder was asked to run once more, if the release asked for that.
    Freed { is_asked: bool },
    /// This owner had completed the record, in a request or a transaction whose answer was lost.
    Completed(Box<Holder>),
    /// The permit is gone after an earlier attempt, also of an earlier call, that was not answered. Either that attempt was
    /// applied, or others have taken the permit after the end of the lease.
    NoTrace,
}

/// A release under way: of the keys that this owner holds with one number.
#[derive(Clone, Debug)]
pub(super) struct Releasing<'a> {
    acquisition: Acquisition,
    keys: Vec<String>,
    own: u64,
    release: Release<'a>,
    /// The keys that the owner does not hold.
    others: Vec<(String, Option<Holder>)>,
    /// The holder was asked to run once more, as the row shows that it had before the release.
    pub(super) is_asked: bool,
    unreadable: Option<Error>,
}

impl<'a> Releasing<'a> {
    pub(super) fn all(acquisition: &Acquisition, release: Release<'a>) -> Self {
        Self::some(acquisition, acquisition.target.keys().to_vec(), acquisition.numbers.own, release)
    }

    fn some(acquisition: &Acquisition, keys: Vec<String>, own: u64, release: Release<'a>) -> Self {
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

    /// Returns the next request, or `None` after the last one.
    pub(super) fn request<'b>(&'b self, table: &'b Table) -> Option<Write<'b>> {
        let acquisition = &self.acquisition;
        let update = |key: &'b String| {
            let hold = self.release.hold.map(|hold| acquisition.hold_of(key, hold));
            acquisition.place(table, key).release(self.own, &Release { hold, ..self.release })
        };
        let updates: Vec<_> = self.keys.iter().map(update).collect();
        (!updates.is_empty()).then(|| Write::new(updates, acquisition.target.transact()))
    }

    /// Takes note of the answer. Of several keys, those that the owner holds are released alone.
    pub(super) fn on(&mut self, table: &Table, answer: Answer) {
        self.keys.clear();
        let refused = match answer {
            Answer::Refused(refused) => refused,
            Answer::Applied(before) => {
                let before = self.release.coalesces.then(|| Holder::read(before, self.release.now).ok()).flatten();
                self.is_asked = before.is_some_and(|row| row.was_asked(self.own));
                return;
            }
        };
        self.keys.clone_from(&refused.willing);
        for (key, row) in refused.into_each(self.release.now) {
            match row {
                // Its attempts were given up before, by a larger number.
                Ok(Some(row))
                    if self.release.number > 0 && self.acquisition.is_given_up(&row, self.own, &self.release) =>
                {
                    self.release.number = 0;
                    self.keys.push(key);
                }
                Ok(row) => {
                    // This owner had released it. Its last number is still there, unless a later holder was asked.
                    self.is_asked |= row.as_ref().is_some_and(|row| row.was_asked(self.own));
                    self.others.push((key, row));
                }
                // It does not keep the other keys.
                Err(why) => self.unreadable = Some(why.into_error(table.place(), &key)),
            }
        }
    }

    /// Returns the keys that the owner does not hold, with their rows, or the error of a row that cannot be read.
    pub(super) fn ended(self) -> Result<Vec<(String, Option<Holder>)>, Error> {
        self.unreadable.map_or(Ok(self.others), Err)
    }
}

/// The withdrawal of an acquire that has ended: no attempt of it holds anything. It gives up the numbers of the acquire, so that
/// an attempt that arrives late is refused, and frees what an attempt has taken already.
#[derive(Clone, Debug)]
struct Withdrawing {
    acquisition: Acquisition,
    /// What an attempt has taken stays held: a takeover has it from its identity.
    keeps: bool,
    /// The number of the last attempt.
    last: u64,
    /// The row of the first key as it was seen last, if it was.
    #[expect(clippy::option_option, reason = "a row that is gone was seen, too")]
    seen: Option<Option<Holder>>,
    tries: u32,
    phase: Phase,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value of it, on the stack")]
enum Phase {
    /// The row that an attempt with a wrong clock has replaced comes back.
    PuttingBack,
    GivingUp,
    /// `is_last`: the numbers were given up.
    Freeing {
        releasing: Releasing<'static>,
        is_last: bool,
    },
    Done,
}

impl Withdrawing {
    fn start(acquisition: Acquisition, keeps: bool, now: Moment) -> Self {
        let (last, seen) = (acquisition.numbers.sent, None);
        let mut this = Self { acquisition, keeps, last, seen, tries: 0, phase: Phase::GivingUp };
        // One row refuses all that a late attempt asks for, and shows one key only.
        if this.acquisition.replaced().is_some() {
            this.phase = Phase::PuttingBack;
        } else if this.acquisition.target.transact().is_some() && !keeps {
            this.free(this.acquisition.target.keys().to_vec(), last, false, now);
        }
        this
    }

    fn free(&mut self, keys: Vec<String>, own: u64, is_last: bool, now: Moment) {
        let releasing = Releasing::some(&self.acquisition, keys, own, self.acquisition.end_of(now));
        self.phase = Phase::Freeing { releasing, is_last };
    }

    /// Returns the next request, or `None` after the last one.
    fn request<'b>(&'b self, table: &'b Table, now: Moment) -> Option<Write<'b>> {
        let place = self.acquisition.place(table, self.acquisition.key());
        match &self.phase {
            Phase::PuttingBack => {
                let key = self.acquisition.key_place(table, self.acquisition.key());
                Some(key.put_back(self.last, self.acquisition.replaced()?).into())
            }
            Phase::GivingUp if self.tries < TRIES => Some(place.withdraw(self.last, self.seen.as_ref(), now).into()),
            Phase::Freeing { releasing, .. } => releasing.request(table),
            Phase::GivingUp | Phase::Done => None,
        }
    }

    /// Takes note of the answer.
    fn on(&mut self, table: &Table, answer: Answer, now: Moment) -> Result<(), Error> {
        match std::mem::replace(&mut self.phase, Phase::GivingUp) {
            Phase::PuttingBack => {
                if matches!(answer, Answer::Applied(_)) {
                    self.phase = Phase::Done;
                }
                Ok(())
            }
            Phase::GivingUp => self.given_up(table, answer, now),
            Phase::Freeing { mut releasing, is_last } => {
                releasing.on(table, answer);
                if releasing.keys.is_empty() {
                    self.freed(releasing.ended()?, is_last, now);
                } else {
                    self.phase = Phase::Freeing { releasing, is_last };
                }
                Ok(())
            }
            Phase::Done => Ok(()),
        }
    }

    fn given_up(&mut self, table: &Table, answer: Answer, now: Moment) -> Result<(), Error> {
        self.tries += 1;
        let (row, is_withdrawn) = match answer {
            Answer::Applied(before) => (Holder::read(before, now).ok(), true),
            Answer::Refused(refused) => {
                let row = refused.into_row(table, now)?;
                let is_withdrawn = row.as_ref().is_some_and(|row| self.acquisition.is_refused_by(row, self.last));
                (row, is_withdrawn)
            }
        };
        if !is_withdrawn {
            // The row is not what it was taken for.
            self.seen = Some(row);
            return Ok(());
        }
        let own = row.as_ref().and_then(|row| self.acquisition.own_number(row, self.last));
        match own.filter(|_| !self.keeps) {
            Some(own) => self.free(self.acquisition.target.keys().to_vec(), own, true, now),
            None => self.phase = Phase::Done,
        }
        Ok(())
    }

    /// Frees what an earlier attempt has taken of these keys, with its number.
    fn freed(&mut self, others: Vec<(String, Option<Holder>)>, is_last: bool, now: Moment) {
        let earlier = |row: &Option<Holder>| self.acquisition.own_number(row.as_ref()?, self.last);
        let number = others.iter().find_map(|(_, row)| earlier(row)).filter(|_| self.tries < TRIES);
        if let Some(number) = number {
            let others = others.into_iter().filter(|(_, row)| earlier(row) == Some(number));
            let keys = others.map(|(key, _)| key).collect();
            self.tries += 1;
            self.free(keys, number, is_last, now);
        } else if is_last {
            self.phase = Phase::Done;
        }
    }

    fn ended(&self, table: &Table) -> Result<(), Error> {
        match self.phase {
            Phase::Done => Ok(()),
            _ => Err(self.acquisition.error(Cause::Conflict, table)),
        }
    }
}

impl Acquisition {
    /// Returns `true` if the row is one of this kind.
    fn is_of_kind(&self, row: &Holder) -> bool {
        row.kind == if self.target.is_permit() { HolderKind::Semaphore } else { HolderKind::Key }
    }

    /// Returns this owner's place in the row: that of the key, or its permit.
    pub(super) fn own_in<'r>(&self, row: Option<&'r Holder>) -> Option<&'r Holder> {
        let row = row.filter(|row| self.is_of_kind(row))?;
        if row.is_semaphore() { row.permit(&self.owner) } else { Some(row).filter(|row| row.is_owned_by(&self.owner)) }
    }

    /// Returns who has this owner's place instead: the holder of the key, or of the permit of the same identity.
    pub(super) fn other_in<'r>(&self, row: Option<&'r Holder>) -> Option<&'r Holder> {
        let row = row.filter(|row| self.is_of_kind(row) && self.own_in(Some(row)).is_none())?;
        if row.is_semaphore() { row.permit_of_identity(&self.owner) } else { Some(row) }
    }

    /// Returns `true` if the row is that of a semaphore, and the permit is gone.
    pub(super) fn is_gone_from(&self, row: Option<&Holder>) -> bool {
        let is_there = || self.own_in(row).or_else(|| self.other_in(row)).is_some();
        row.is_some_and(|row| row.is_semaphore() && self.is_of_kind(row)) && !is_there()
    }

    /// Returns `true` if the row shows that the release with this number was applied.
    pub(super) fn is_released_in(&self, row: &Holder, number: u64) -> bool {
        !row.is_semaphore() && row.released == Some(number)
    }

    /// Reads the rows of the keys that a release did not find held.
    pub(crate) fn released(
        &self,
        table: &Table,
        others: Vec<(String, Option<Holder>)>,
        is_asked: bool,
        release: &Release<'_>,
    ) -> Result<Released, Error> {
        let (mut released, mut lost) = (Released::Freed { is_asked }, Vec::new());
        for (key, row) in others {
            match row {
                Some(row) if self.is_released_in(&row, release.number) => {
                    if row.completed && row.is_owned_by(&self.owner) {
                        released = Released::Completed(Box::new(row));
                    }
                }
                row if self.has_unanswered_release() && self.is_gone_from(row.as_ref()) => released = Released::NoTrace,
                row => lost.push((key, self.lost_to(row))),
            }
        }
        if lost.is_empty() { Ok(released) } else { Err(Error::lost_to(lost, table.place())) }
    }

    /// Returns who has what this owner has lost, if the row shows it.
    pub(super) fn lost_to(&self, row: Option<Holder>) -> Option<Holder> {
        if let Some(other) = self.other_in(row.as_ref()) {
            return Some(other.clone());
        }
        // An operator who has freed it has left a name, but holds nothing. An identity has left no name.
        let is_freed = self.own_in(row.as_ref())?.number != Some(self.numbers.own);
        let row = row.filter(|row| is_freed && row.name().is_some());
        row.map(|row| Holder { owner: None, ..row })
    }
}

impl Table {
    /// Moves the end of the lease, if this owner holds all keys and the lease has not ended. One request. The lock counts as lost
    /// if this host's clock is wrong.
    pub(crate) async fn renew(
        &self,
        acquisition: &Acquisition,
        sequence: u64,
        now: Moment,
        lease: Lease,
        data: Option<&Data>,
    ) -> Result<Renewed, Error> {
        let (keys, own) = (acquisition.target.keys(), acquisition.numbers.own);
        let update = |key| acquisition.place(self, key).renew(own, sequence, now, lease, data);
        let write = Write::new(keys.iter().map(|key| update(key)).collect(), acquisition.target.transact());
        let attempts = SdkAttempts::leaving_prevented();
        let answer = self.write(write, Some(&attempts)).await;
        // The lease that it wrote means something else to other hosts, so the lock is lost, and a release frees the key.
        if let Some(offset) = attempts.wrong_clock(self.clock_skew) {
            let error = acquisition.error(Cause::ClockSkew(offset, self.clock_skew), self);
            return Ok(Renewed::Lost { error, has_others: true });
        }
        let Answer::Refused(refused) = answer? else {
            return Ok(Renewed::Extended);
        };
        // An earlier attempt of this renewal was applied to the others; its answer was lost.
        let is_renewed = |row: Option<&Holder>| {
            acquisition.own_in(row).is_some_and(|place| place.is_acquired_with(own) && place.sequence == Some(sequence))
        };
        let rows = refused.into_rows(self, now)?.into_iter();
        let lost: Vec<_> = rows.filter(|(_, row)| !is_renewed(row.as_ref())).collect();
        if lost.is_empty() {
            return Ok(Renewed::Extended);
        }
        let has_others = lost.len() < keys.len();
        let lost = lost.into_iter().map(|(key, row)| (key, acquisition.lost_to(row)));
        Ok(Renewed::Lost { error: Error::lost_to(lost.collect(), self.place()), has_others })
    }

    /// Frees all keys that this owner holds, and keeps their rows. One request; a second one if some of several keys were
    /// lost, which the error names.
    pub(crate) async fn release(&self, acquisition: &Acquisition, release: &Release<'_>) -> Result<Released, Error> {
        let (others, is_asked) = self.send_releases(Releasing::all(acquisition, *release)).await?;
        acquisition.released(self, others, is_asked, release)
    }

    /// Sends the requests of a release. Returns the keys that this owner does not hold, with their rows, and whether the holder
    /// was asked to run once more.
    pub(super) async fn send_releases(
        &self,
        mut releasing: Releasing<'_>,
    ) -> Result<(Vec<(String, Option<Holder>)>, bool), Error> {
        let attempts = releasing.acquisition.release_attempts.clone();
        while let Some(request) = releasing.request(self) {
            let answer = self.write(request, attempts.as_ref()).await?;
            releasing.on(self, answer);
        }
        let is_asked = releasing.is_asked;
        Ok((releasing.ended()?, is_asked))
    }

    /// Asks the holder that was `seen` to run once more. Returns `false` if it does not have the key any more, or is not known.
    /// One request, or two if others have asked at the same time.
    ///
    /// The client that asks has been refused and does not come back. If an attempt of that client arrives once more, it could take
    /// the free key, and nobody would run. So this request gives up all attempts of the acquire that was refused, as a withdrawal
    /// does. It has no more to give up if the row had a larger number already.
    pub(crate) async fn ask(&self, key: &str, seen: &Holder, now: Moment) -> Result<bool, Error> {
        let (Some(owner), Some(number)) = (seen.owner.as_deref(), seen.number) else { return Ok(false) };
        if seen.kind != HolderKind::Key || seen.is_released() {
            return Ok(false);
        }
        let last = seen.refused.filter(|last| Some(*last) > seen.withdrawn.max(Some(number)));
        let Answer::Refused(refused) = self.write(ask(key, owner, number, last, now), None).await? else {
            return Ok(true);
        };
        // Another client has given up later attempts.
        if last.is_none() || refused.into_row(self, now)?.is_none_or(|row| row.withdrawn < last) {
            return Ok(false);
        }
        Ok(matches!(self.write(ask(key, owner, number, None, now), None).await?, Answer::Applied(_)))
    }

    /// Sends the requests of a withdrawal. One, or two; up to six if others change the row.
    pub(crate) async fn withdraw(
        &self,
        acquisition: &Acquisition,
        clock: impl Fn() -> Moment,
        keeps: bool,
    ) -> Result<(), Error> {
        let mut withdrawing = Withdrawing::start(acquisition.clone(), keeps, acquisition.corrected(clock()));
        // Lambda may have frozen this process since the last request, and a row with an old TTL is deleted too early.
        while let Some(request) = withdrawing.request(self, withdrawing.acquisition.corrected(clock())) {
            let attempts = SdkAttempts::leaving_prevented();
            let answer = self.write(request, Some(&attempts)).await?;
            // No attempt has had an answer, or its answer was not waited for.
            if let Some(offset) = attempts.wrong_clock(self.clock_skew) {
                withdrawing.acquisition.mistaken(offset, None);
            }
            withdrawing.on(self, answer, withdrawing.acquisition.corrected(clock()))?;
        }
        withdrawing.ended(self)
    }

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

impl Acquisition {
    /// Returns the hold of one of the keys. A transaction returns no rows, so the hold times before are those that refusals
    /// have shown.
    fn hold_of(&self, key: &str, hold: Hold) -> Hold {
        if self.target.transact().is_none() {
            return hold;
        }
        let before = self.index_of(key).and_then(|index| self.hold_times.get(index).copied().flatten());
        Hold { before, is_before_known: before.is_some(), ..hold }
    }

    /// The release of what an acquire that has ended has taken.
    fn end_of(&self, now: Moment) -> Release<'static> {
        // A permit's attempts were given up before.
        let number = if self.target.is_permit() { 0 } else { self.release_number(now) };
        let hold_until = self.held_for_others_until();
        Release { number, sequence: MAX_SEQUENCE, now, hold_until, hold: None, data: None, coalesces: false }
    }

    /// Returns the number with which this owner holds the key or the permit of this row, if an attempt up to `last` took it.
    fn own_number(&self, row: &Holder, last: u64) -> Option<u64> {
        let place = if row.is_semaphore() { row.permit(&self.owner)? } else { row };
        let is_own = place.is_owned_by(&self.owner) && !place.has_released();
        place.number.filter(|number| is_own && *number <= last)
    }

    /// Returns `true` if this row refuses all attempts up to this number. A row of another kind refuses them in any case.
    fn is_refused_by(&self, row: &Holder, last: u64) -> bool {
        !self.is_of_kind(row) || row.withdrawn >= Some(last) || (!row.is_semaphore() && row.number > Some(last))
    }

    /// Returns `true` if this owner's permit is there for this release, in a row that has given up what the release gives up.
    fn is_given_up(&self, row: &Holder, own: u64, release: &Release<'_>) -> bool {
        let permit = row.permit(&self.owner).filter(|_| row.withdrawn >= Some(release.number));
        permit.is_some_and(|permit| permit.number == Some(own))
    }
}
