//! The kinds of rows: what an acquire can claim, and the rules of each. This is the only place that tells the kinds apart.
//!
//! A kind is one file, which implements [`Rules`]. The requests are those of [`acquire`](super::acquire),
//! [`hold`](super::hold) and [`ticket`](super::ticket), for all kinds.

use std::time::Duration;

use super::acquire::{Claim, Claimed};
use super::expression::{Condition, Path, Update};
use super::hold::Release;
use super::key::{self, Key};
use super::keys::Keys;
use super::permit::Permit;
use super::read::Row;
#[cfg(feature = "idempotency")]
use super::record::RecordClaim;
use super::table::{Item, Table};
use super::write::{Refused, Write};
use crate::client::SdkAttempts;
use crate::clock::Moment;
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};
use crate::limits::{DAY, MAX_DATA_BYTES, MIN_LEASE, check_data, check_duration};

/// What an acquire claims.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A key, which one owner has at a time; also as a record of idempotency.
    Key(Key),
    /// Several keys, which one owner has at a time.
    Keys(Keys),
    /// One of the permits of a key.
    Permit(Permit),
}

impl Kind {
    pub(crate) fn key(key: String) -> Self {
        Self::Key(Key::new(key))
    }

    #[cfg(feature = "idempotency")]
    pub(crate) fn record(key: String, record: RecordClaim) -> Self {
        Self::Key(Key::with_record(key, record))
    }

    pub(crate) fn keys(keys: Vec<String>) -> Self {
        Self::Keys(Keys::new(keys))
    }

    pub(crate) fn permit(key: String, permits: u32) -> Self {
        Self::Permit(Permit::new(key, permits))
    }

    /// Returns the kind of a ticket's lock.
    pub(crate) fn of_ticket(kind: Option<&str>, key: String) -> Option<Self> {
        match kind {
            None => Some(Self::key(key)),
            Some(Permit::IN_TICKETS) => Some(Self::Permit(Permit::handed_over(key))),
            Some(_) => None,
        }
    }

    /// Returns the name of the kind in tickets.
    pub(crate) fn in_tickets(&self) -> Option<&'static str> {
        match self {
            Self::Key(_) | Self::Keys(_) => None,
            Self::Permit(_) => Some(Permit::IN_TICKETS),
        }
    }

    pub(super) fn rules(&self) -> &dyn Rules {
        match self {
            Self::Key(key) => key,
            Self::Keys(keys) => keys,
            Self::Permit(permit) => permit,
        }
    }

    pub(super) fn rules_mut(&mut self) -> &mut dyn Rules {
        match self {
            Self::Key(key) => key,
            Self::Keys(keys) => keys,
            Self::Permit(permit) => permit,
        }
    }

    pub(crate) fn all_keys(&self) -> &[String] {
        self.rules().keys()
    }

    /// Checks what was claimed.
    pub(crate) fn check(&self, key_prefix: &str, has_identity: bool) -> Result<(), Error> {
        self.rules().check(key_prefix, has_identity)
    }

    /// Checks a lease that the caller chose, or with a deadline the time until then.
    pub(crate) fn check_lease(&self, what: &str, lease: Duration, has_deadline: bool) -> Result<(), Error> {
        let longest = if has_deadline { DAY } else { self.rules().longest_lease() };
        check_duration(what, lease, MIN_LEASE, longest)
    }

    pub(crate) fn check_data(&self, data: &Data) -> Result<(), Error> {
        check_data(data, self.rules().longest_data())
    }

    /// Returns `true` if waiters can take turns.
    pub(crate) fn has_queue(&self) -> bool {
        self.rules().has_queue()
    }

    /// Returns `true` if a waiter takes a place in the queue.
    pub(crate) fn takes_place(&self) -> bool {
        self.rules().takes_place()
    }

    /// Returns the text that names the keys for people.
    pub(crate) fn name(&self) -> String {
        /// How many keys are named.
        const NAMED: usize = 3;
        let keys = self.all_keys();
        let mut name = keys[..keys.len().min(NAMED)].join(", ");
        if keys.len() > NAMED {
            name.push_str(&format!(" and {} more", keys.len() - NAMED));
        }
        name
    }
}

/// What one owner has acquired, or is about to acquire.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(super) kind: Kind,
    /// The nonce, after the identity if there is one.
    pub(crate) owner: String,
    /// The keys for people.
    pub(crate) name: String,
    /// The attempts of the release and of its repetitions.
    pub(super) release_attempts: SdkAttempts,
}

impl Acquisition {
    pub(crate) fn new(kind: Kind, owner: String) -> Self {
        Self { name: kind.name(), kind, owner, release_attempts: SdkAttempts::default() }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(super) fn rules(&self) -> &dyn Rules {
        self.kind.rules()
    }

    /// Returns the error of all keys.
    pub(crate) fn error(&self, cause: Cause, table: &Table) -> Error {
        let mut keys = self.kind.all_keys().iter().map(String::as_str);
        Error::new(cause, &table.name, keys.next().unwrap_or_default()).with_others(keys)
    }

    /// Builds a write of these keys, which are all of them or some.
    pub(super) fn write<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a String>,
        update: impl Fn(&str) -> Update,
    ) -> Write {
        self.rules().write(keys.into_iter().map(|key| update(key)).collect())
    }
}

/// What an owner has in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// The end of the lease.
    LeaseEnd,
    /// The number of the last request.
    Sequence,
    Fence,
    /// The nonce of the last resumption.
    Resumed,
}

/// What a row says about an owner.
#[derive(Debug)]
pub(super) enum Trace {
    /// The row has the acquisition.
    Own(Own),
    /// It has not, or no longer.
    Other {
        /// Who has it, or who took it from this owner.
        holder: Option<Box<Holder>>,
        /// The row shows that this owner has released it.
        is_released: bool,
    },
    /// The row is there, and never keeps more than a trace for some time.
    Gone,
    /// There is no row.
    NoRow,
}

/// An acquisition in its row.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) fence: Option<u64>,
    /// The end of the lease, in milliseconds since the epoch.
    pub(super) end: u64,
    pub(super) sequence: Option<u64>,
    pub(super) is_released: bool,
    pub(super) resumed: Option<String>,
    pub(super) acquired_at: Option<u64>,
    /// The record that this owner has completed.
    pub(super) completed: Option<Box<Holder>>,
}

impl Trace {
    /// Returns the acquisition if it was not released.
    pub(super) fn held(&self) -> Option<&Own> {
        match self {
            Self::Own(own) if !own.is_released => Some(own),
            _ => None,
        }
    }

    pub(super) fn into_holder(self) -> Option<Holder> {
        match self {
            Self::Other { holder, .. } => holder.map(|holder| *holder),
            Self::Own(_) | Self::Gone | Self::NoRow => None,
        }
    }
}

/// The rules of a kind. By default, they are those of a row that one owner has at a time.
pub(super) trait Rules: Send + Sync {
    fn keys(&self) -> &[String];

    fn check(&self, key_prefix: &str, has_identity: bool) -> Result<(), Error>;

    fn longest_lease(&self) -> Duration {
        DAY
    }

    fn longest_data(&self) -> usize {
        MAX_DATA_BYTES
    }

    fn has_queue(&self) -> bool {
        false
    }

    fn takes_place(&self) -> bool {
        self.has_queue()
    }

    /// Returns the earliest time at which TTL may delete the row of a lease with this end.
    fn kept_until(&self, table: &Table, _now: Moment, end: Duration) -> Duration {
        table.kept_after(end)
    }

    /// Puts the updates of all keys together.
    fn write(&self, updates: Vec<Update>) -> Write {
        Write::all(updates)
    }

    /// Builds one attempt to acquire.
    fn claim(&mut self, table: &Table, owner: &str, claim: &Claim<'_>) -> Write;

    /// Reads the answer to an attempt that was applied. The row is as it was before.
    fn granted(&mut self, table: &Table, claim: &Claim<'_>, before: Item) -> Result<Claimed, Error>;

    /// Reads a refusal. Returns `None` if another attempt can succeed at once.
    fn denied(
        &mut self,
        table: &Table,
        owner: &str,
        claim: &Claim<'_>,
        refused: Refused,
    ) -> Result<Option<Claimed>, Error>;

    /// Returns where the row has this field of the owner.
    fn at(&self, _owner: &str, field: Field) -> Path {
        key::at(field)
    }

    /// Returns the condition that this owner has the row, and that its lease ends after `now`.
    fn is_held(&self, owner: &str, now: u64) -> Condition {
        key::is_held(owner, now)
    }

    fn trace(&self, row: Option<&Row>, owner: &str, now: Moment) -> Trace {
        key::trace(row, owner, now)
    }

    /// Builds the release of one key. `is_first` is `false` if this row refused it before and the [`release can
    /// adapt`](Self::adapts).
    fn release(&self, table: &Table, key: &str, owner: &str, release: &Release<'_>, _is_first: bool) -> Update {
        key::release(table, key, owner, &Release { hold: None, ..*release })
    }

    /// Returns `true` if another release can succeed that does less for others.
    fn adapts(&self, _trace: &Trace, _release: &Release<'_>) -> bool {
        false
    }

    /// Builds a request that removes what is no longer needed from the row as a release has left it.
    fn tidied(&self, _row: Item, _key: &str, _now: Moment) -> Option<Update> {
        None
    }

    /// Builds the update that makes this row refuse a late acquire of the owner. Returns `None` if it does already.
    fn withdrawal(&self, table: &Table, key: &str, owner: &str, row: Option<&Row>, now: Moment) -> Option<Update> {
        key::withdrawal(table, key, owner, row, now)
    }

    /// Takes over what a resumption has read.
    fn resumed(&mut self, _row: Row) {}
}
