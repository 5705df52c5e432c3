//! The kinds of rows: what an acquire can claim. This is the only place that chooses the rules of a kind. What kind of row
//! another program or another request has left, `read` tells.
//!
//! A kind is one file, which implements [`Rules`]. The requests are the same for all kinds.

use std::time::Duration;

use super::expression::Update;
use super::key::Key;
use super::keys::Keys;
use super::permit::Permit;
#[cfg(feature = "idempotency")]
use super::record::RecordClaim;
use super::rules::Rules;
use super::table::Table;
use super::write::Write;
use crate::client::SdkAttempts;
use crate::clock::{Deadline, Lease, Moment, millis_up, seconds_up};
use crate::error::{Cause, Error, Place};
use crate::holder::Data;
use crate::limits::{DAY, MIN_LEASE, check_data, check_duration};

/// What an acquire claims. A program does not link the kinds that it never creates.
#[derive(Debug)]
pub(crate) struct Kind(Box<dyn Rules>);

impl Clone for Kind {
    fn clone(&self) -> Self {
        Self(self.0.boxed())
    }
}

impl Kind {
    /// A key, which one owner has at a time.
    pub(crate) fn key(key: String) -> Self {
        Self(Box::new(Key::new(key)))
    }

    /// A key as a record of idempotency.
    #[cfg(feature = "idempotency")]
    pub(crate) fn record(key: String, record: RecordClaim) -> Self {
        Self(Box::new(Key::with_record(key, record)))
    }

    /// Several keys, which one owner has at a time.
    pub(crate) fn keys(keys: Vec<String>) -> Self {
        Self(Box::new(Keys::new(keys)))
    }

    /// One of the permits of a key.
    pub(crate) fn permit(key: String, permits: u32) -> Self {
        Self(Box::new(Permit::new(key, permits)))
    }

    /// A permit that another process has acquired.
    pub(crate) fn any_permit(key: String) -> Self {
        Self(Box::new(Permit::handed_over(key)))
    }

    /// Returns the kind of a ticket's lock, which is a key if the ticket names none. `None` if the name is unknown.
    pub(crate) fn of_ticket(kind: Option<&str>, key: String) -> Option<Self> {
        match kind {
            None => Some(Self::key(key)),
            Some(Permit::IN_TICKETS) => Some(Self::any_permit(key)),
            Some(_) => None,
        }
    }

    pub(crate) fn in_tickets(&self) -> Option<&'static str> {
        self.0.in_tickets()
    }

    pub(super) fn rules(&self) -> &dyn Rules {
        &*self.0
    }

    pub(super) fn rules_mut(&mut self) -> &mut dyn Rules {
        &mut *self.0
    }

    pub(crate) fn all_keys(&self) -> &[String] {
        self.rules().keys()
    }

    /// Checks what was claimed.
    pub(crate) fn check(&self, key_prefix: &str) -> Result<(), Error> {
        self.rules().check(key_prefix)
    }

    /// Checks a lease that the caller chose, or with a deadline the time until then.
    pub(crate) fn check_lease(&self, what: &str, lease: Duration, has_deadline: bool) -> Result<(), Error> {
        let longest = if has_deadline { DAY } else { self.rules().longest_lease() };
        check_duration(what, lease, MIN_LEASE, longest)
    }

    pub(crate) fn check_data(&self, data: &Data) -> Result<(), Error> {
        check_data(data, self.rules().longest_data())
    }

    /// Returns how many owners can have a row at a time.
    pub(crate) fn capacity(&self) -> u32 {
        self.rules().capacity()
    }

    /// Returns `true` if a waiter takes a place in the queue.
    pub(crate) fn takes_place(&self) -> bool {
        self.rules().takes_place()
    }

    /// Returns the text that names the rows' keys for people.
    pub(crate) fn name(&self, place: Place<'_>) -> String {
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

/// What one owner has acquired, or is about to acquire.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(super) kind: Kind,
    /// The nonce, after the identity if there is one.
    pub(crate) owner: String,
    /// The attempts of the release and of its repetitions, if the row does not keep its trace.
    pub(super) release_attempts: Option<SdkAttempts>,
}

impl Acquisition {
    pub(crate) fn new(kind: Kind, owner: String) -> Self {
        let release_attempts = kind.rules().forgets_releases().then(SdkAttempts::leaving_prevented);
        Self { kind, owner, release_attempts }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns the key, or the first of several.
    pub(crate) fn key(&self) -> &str {
        self.kind.all_keys().first().map_or("", String::as_str)
    }

    /// Returns the text that names the rows' keys for people.
    pub(crate) fn name(&self, place: Place<'_>) -> String {
        self.kind.name(place)
    }

    pub(super) fn rules(&self) -> &dyn Rules {
        self.kind.rules()
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

    /// Builds a write of these keys, which are all of them or some.
    pub(super) fn write<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a String>,
        update: impl Fn(&'a str) -> Update<'a>,
    ) -> Write<'a> {
        Write::new(keys.into_iter().map(|key| update(key)).collect(), self.rules().transact())
    }
}

impl Table {
    /// Returns the lease that ends at this deadline, for an acquire or a renewal at this moment. With the lease before it,
    /// TTL does not delete the row earlier than it would have.
    pub(crate) fn lease(&self, kind: &Kind, now: Moment, deadline: Deadline, before: Option<Lease>) -> Lease {
        let end = deadline.wall().saturating_add(self.clock_skew);
        let expiration = seconds_up(kind.rules().kept_until(self, now, end));
        let expiration = expiration.max(before.map_or(0, |lease| lease.expiration));
        Lease { deadline, end: millis_up(end), expiration }
    }
}
