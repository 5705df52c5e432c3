//! What an acquire claims, as data, and what one owner has acquired of it.

use std::time::Duration;

use super::attribute::number_at;
use super::claim::Plan;
use super::names::{LATEST, LEASE_END, MAX_FENCE, STATUS};
use super::place::Place;
use super::record_claim::RecordClaim;
use super::table::{Item, Table};
use super::write::Transact;
use crate::client::SdkAttempts;
use crate::clock::{Deadline, Lease, Moment, Offset, micros, millis_up, seconds_up};
use crate::error::{Cause, Error, Place as Where};
use crate::holder::Data;
use crate::limits::{
    DAY, MAX_DATA_BYTES, MAX_LEASE, MAX_PERMIT_DATA_BYTES, MIN_LEASE, check_data, check_duration, check_key,
    check_keys, check_permits,
};
use crate::queue::HoldTime;

/// What an acquire claims: a key, several, or one of the permits of a key.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    /// In alphabetical order.
    keys: Vec<String>,
    /// How many permits the key has, if it is a semaphore.
    pub(super) permits: Option<u32>,
    /// What makes the row of the key a record of idempotency.
    pub(super) record: Option<RecordClaim>,
    /// What applies the updates of several keys together.
    pub(super) transact: Option<Transact>,
}

impl Kind {
    /// A key, which one owner has at a time.
    pub(crate) fn key(key: String) -> Self {
        Self { keys: vec![key], permits: None, record: None, transact: None }
    }

    /// A key as a record of idempotency.
    pub(crate) fn record(key: String, record: RecordClaim) -> Self {
        Self { record: Some(record), ..Self::key(key) }
    }

    /// Several keys, which one owner has at a time.
    pub(crate) fn keys(mut keys: Vec<String>) -> Self {
        keys.sort_unstable();
        Self { keys, transact: Some(Table::transact), ..Self::key(String::new()) }
    }

    /// One of the permits of a key.
    pub(crate) fn permit(key: String, permits: u32) -> Self {
        Self { permits: Some(permits), ..Self::key(key) }
    }

    pub(crate) fn all_keys(&self) -> &[String] {
        &self.keys
    }

    pub(super) fn is_record(&self) -> bool {
        self.record.is_some()
    }

    /// Checks what was claimed.
    pub(crate) fn check(&self, key_prefix: &str) -> Result<(), Error> {
        match &self.keys[..] {
            [key] => {
                check_key(key_prefix, key)?;
                self.permits.map_or(Ok(()), |permits| check_permits(key, permits))
            }
            keys => check_keys(key_prefix, keys),
        }
    }

    /// Checks a lease that the caller chose, or with a deadline the time until then.
    pub(crate) fn check_lease(&self, what: &str, lease: Duration, has_deadline: bool) -> Result<(), Error> {
        let is_lock = self.permits.is_none() && self.transact.is_none() && !self.is_record();
        let longest = if is_lock && !has_deadline { MAX_LEASE } else { DAY };
        check_duration(what, lease, MIN_LEASE, longest)
    }

    /// Checks what only the lock of one key has.
    pub(crate) fn check_one_key(&self, what: &str) -> Result<(), Error> {
        if self.transact.is_none() {
            return Ok(());
        }
        Err(Error::invalid(format!("a lock of several keys has no {what}: acquire one key, or leave it out")))
    }

    pub(crate) fn check_data(&self, data: &Data) -> Result<(), Error> {
        self.check_one_key("data")?;
        check_data(data, if self.permits.is_some() { MAX_PERMIT_DATA_BYTES } else { MAX_DATA_BYTES })
    }

    /// Returns how many owners can have a row at a time.
    pub(crate) fn capacity(&self) -> u32 {
        self.permits.unwrap_or(1)
    }

    /// Returns `true` if a waiter takes a place in the queue. The outcome of a record's run is for all who wait for it, so
    /// they do not take turns.
    pub(crate) fn takes_place(&self) -> bool {
        !self.is_record()
    }

    /// Returns the earliest time at which TTL may delete the row of a lease with this end.
    fn kept_until(&self, table: &Table, now: Moment, end: Duration) -> Duration {
        if self.permits.is_some() {
            return table.semaphore_kept_until(now);
        }
        if let Some(window_end) = self.record.as_ref().and_then(|record| record.window_end(now)) {
            return table.kept_after(end).max(window_end);
        }
        table.kept_after(end)
    }

    /// Returns the text that names the rows' keys for people.
    pub(crate) fn name(&self, place: Where<'_>) -> String {
        /// How many keys are named.
        const NAMED: usize = 3;
        let keys = self.all_keys();
        if let [key] = keys {
            return place.printable_key(key);
        }
        let named: Vec<_> = keys.iter().take(NAMED).map(|key| place.printable_key(key)).collect();
        let named = named.join(", ");
        if keys.len() > NAMED { format!("{named} and {} more", keys.len() - NAMED) } else { named }
    }
}

/// The numbers of one owner's attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    /// The one that was applied.
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

/// What one owner has acquired, or is about to acquire.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(super) kind: Kind,
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
    pub(crate) fn new(kind: Kind, owner: String) -> Self {
        let release_attempts = kind.permits.map(|_| SdkAttempts::leaving_prevented());
        let (numbers, plan) = (Numbers::default(), Plan::default());
        Self { kind, owner, numbers, plan, hold_times: Vec::new(), lease_end: 0, mistake: None, release_attempts }
    }

    /// Takes note that this host's clock is wrong, if that is not known. The row before the last attempt is without a status if
    /// there was none, and `None` if it is not known.
    pub(crate) fn mistaken(&mut self, offset: Offset, before: Option<Item>) {
        // A permit was free, because no attempt replaces others before an answer has shown them.
        if self.mistake.is_some() || self.kind.permits.is_some() {
            return;
        }
        // A transaction returns no rows.
        let before = before.filter(|_| self.kind.transact.is_none());
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

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns the key, or the first of several.
    pub(crate) fn key(&self) -> &str {
        self.kind.all_keys().first().map_or("", String::as_str)
    }

    /// Returns the text that names the rows' keys for people.
    pub(crate) fn name(&self, place: Where<'_>) -> String {
        self.kind.name(place)
    }

    /// Returns the number of a release at this moment.
    ///
    /// That of a key is larger than those of all attempts of this owner, and of the attempts of others that were sent before:
    /// the key refuses them all if they arrive late. A permit leaves nothing of its own in the row. Its release gives up the
    /// attempts of this owner that were not answered, or nothing, which is 0: in a busy semaphore, others are under way.
    pub(crate) fn release_number(&self, now: Moment) -> u64 {
        if self.kind.permits.is_some() {
            return self.numbers.unanswered;
        }
        (self.numbers.sent.max(micros(now.wall)) + 1).min(MAX_FENCE)
    }

    /// Returns the place of this owner with this key.
    pub(super) fn place<'a>(&'a self, table: &'a Table, key: &'a str) -> Place<'a> {
        Place { table, key, owner: &self.owner, is_permit: self.kind.permits.is_some() }
    }

    /// Returns `true` if an attempt of the release was not answered, and the row may have lost its trace.
    pub(super) fn has_unanswered_release(&self) -> bool {
        self.release_attempts.as_ref().is_some_and(SdkAttempts::is_unanswered)
    }

    /// Returns the error of all keys.
    pub(crate) fn error(&self, cause: Cause, table: &Table) -> Error {
        let mut keys = self.kind.all_keys().iter().map(String::as_str);
        Error::new(cause, table.place(), keys.next().unwrap_or_default()).with_others(keys)
    }
}

impl Table {
    /// Returns the lease that ends at this deadline, for an acquire or a renewal at this moment. With the lease before it,
    /// TTL does not delete the row earlier than it would have.
    pub(crate) fn lease(&self, kind: &Kind, now: Moment, deadline: Deadline, before: Option<Lease>) -> Lease {
        let end = deadline.wall().saturating_add(self.clock_skew);
        let expiration = seconds_up(kind.kept_until(self, now, end));
        let expiration = expiration.max(before.map_or(0, |lease| lease.expiration));
        Lease { deadline, end: millis_up(end), expiration }
    }

    /// Returns the time until which the row of a semaphore stays at least: its other permits may have the longest lease.
    pub(super) fn semaphore_kept_until(&self, now: Moment) -> Duration {
        self.kept_after(now.wall.saturating_add(DAY).saturating_add(self.clock_skew))
    }
}
