//! `Ticket`: a lock that is handed over to another process.

use std::fmt;
use std::time::{Duration, SystemTime};

use tracing::Instrument as _;

use super::held::{Continuation, Lock};
use super::locks::Locks;
use super::telemetry::{HoldSpan, record_ticket, ticket_span};
use crate::clock::{Moment, millis, millis_up, since_epoch};
use crate::error::{Cause, Error, Place, TicketFault};
use crate::limits::{DAY, MAX_CLOCK_SKEW, time_of_acquire};
use crate::metrics;
use crate::row::{Acquisition, Grant, Handover, Kind, Table, is_same_table};
use crate::text::{MAX_SHOWN, printable, shortened};

/// A lock that outlives its process: a small value that another process [resumes](Locks::resume),
/// [renews](Locks::renew_ticket) or [releases](Locks::release_ticket).
///
/// ```
/// # use lambda_lock::{Error, Locks, Ticket};
/// # async fn first_step(locks: Locks) -> Result<Ticket, Error> {
/// let lock = locks.acquire("deploy").await?;
/// lock.into_ticket() // the last request of this process was the acquire
/// # }
/// # async fn last_step(locks: Locks, ticket: Ticket) -> Result<(), Error> {
/// let lock = locks.resume(&ticket).await?;
/// println!("resumed with fence {}", lock.fence());
/// lock.release().await
/// # }
/// ```
///
/// [`Lock::into_ticket`] makes it. A Step Functions execution or a pipeline takes a lock in its first step, passes the ticket
/// on as JSON, and frees the key in its last step. With the feature `serde` the ticket is serializable; the features
/// `idempotency` and `lambda` turn it on. The recipe [Step Functions](crate::docs::recipes::workflows) has a state machine.
///
/// # Which request to use
///
/// | | requests | uses up the ticket | retry after a crash |
/// | --- | --- | --- | --- |
/// | [`Locks::renew_ticket`] | 1 or 2 | no | repeat it with the same ticket |
/// | [`Locks::release_ticket`] | 1 | yes | repeat it with the same ticket |
/// | [`Locks::resume`] | 1 | yes | none: the key is held until the lease ends |
///
/// Resume the lock for work that must be cancelled at the end of the lease, with [`Lock::while_held`], or that needs the
/// [`Lock`]. Make a new ticket at its end. For steps that can be retried, renew and release with the ticket itself.
///
/// # What the possessor of a ticket can do
///
/// A ticket is a capability: it has the nonce of the acquisition. With it and with the IAM action `dynamodb:UpdateItem`
/// on the key, anyone can renew, release or resume the lock, and read the data that was stored with the lock. Without
/// the IAM action, a ticket is worth nothing. It opens no other key, and ends with the acquisition. With a larger
/// `sequence`, a ticket that was used works again, and after a release with a much larger `release`, each acquire of the key
/// needs one request more. So accept tickets only from where you sent them. The nonce is also
/// in the row, and in the span `lock`. `Debug` does not print it.
///
/// Anyone who can edit a ticket on its way can also set `enforced` to `false`. All requests of the ticket then succeed
/// without being sent, for any key, and the fence is 0. Each use logs a warning unless locking is disabled. Where that
/// matters, check [`is_enforced`](Self::is_enforced), or let the receiver of writes refuse small fences.
///
/// # Format
///
/// ```json
/// {"version":1,"table":"locks","key_prefix":"","key":"deploy","enforced":true,"owner":"9f…","fence":1795254763639420,
/// "number":1795254763639420,"release":1795254763639421,"sequence":0,"acquired_at":1795254763639,"expires_at":1795256563639}
/// ```
///
/// `number` is that of the acquisition in the row, which of a key is also the fence. `release` is the number of the release: it
/// is fixed here, so that each process that repeats the release recognises the first one.
///
/// Times are in milliseconds since the Unix epoch. `sort_key` and `hold_until` are there if the lock has
/// them, and `"kind":"permit"` if it is a permit of a semaphore. Unknown fields are ignored. An unknown version, or a field that is missing or out of bounds, is an error that says so.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(try_from = "format::Written", into = "format::Written")
)]
#[must_use = "without the ticket, the key is held until the lease ends"]
pub struct Ticket {
    table: String,
    key_prefix: String,
    key: String,
    /// The value of the sort key in lock rows.
    sort_key: Option<String>,
    enforced: bool,
    owner: String,
    fence: u64,
    /// The number of the acquisition in its row: of a key, the fence.
    number: u64,
    /// The number of the release.
    release: u64,
    /// How many requests the lock that was handed over has sent after its acquire.
    sequence: u64,
    /// These times are in milliseconds since the epoch, by the clock of the process that made the ticket.
    /// When the lock was acquired.
    acquired_at: u64,
    expires_at: u64,
    /// Until when `min_hold` keeps the key.
    hold_until: Option<u64>,
    /// What the lock is, if it is not that of a key.
    kind: Option<String>,
}

impl Ticket {
    /// Returns the name or ARN of the table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Returns the prefix of the key.
    #[must_use]
    pub fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    /// Returns the key, without the prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the fencing token of the lock, as [`Lock::fence`] does. Zero if the lock is not
    /// [enforced](Self::is_enforced).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns until when the lock was valid when the ticket was made, by the clock of that host. A
    /// [renewal](Locks::renew_ticket) with the ticket does not change it.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.expires_at)
    }

    /// Returns `false` if the lock does not exclude others, as [`Lock::is_enforced`] does.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.enforced
    }

    fn acquisition(&self) -> Acquisition {
        let kind =
            Kind::of_ticket(self.kind.as_deref(), self.key.clone()).unwrap_or_else(|| Kind::key(self.key.clone()));
        Acquisition::new(kind, self.owner.clone()).numbered(self.number)
    }

    /// Returns what the row is to be compared with. Another host may see the lease end earlier by the clock skew.
    fn handover(&self, now: Moment, clock_skew: Duration) -> Handover {
        Handover {
            fence: self.fence,
            sequence: self.sequence,
            release: self.release,
            expires_at: Duration::from_millis(self.expires_at).saturating_sub(clock_skew),
            now,
        }
    }

    /// The ticket of an acquisition that is handed over.
    pub(crate) fn new(
        table: &Table,
        acquisition: &Acquisition,
        fence: u64,
        acquired_at: u64,
        expires_at: u64,
        Continuation { hold_until, sequence, release }: Continuation,
    ) -> Self {
        Self {
            table: table.name.clone(),
            key_prefix: table.key_prefix.clone(),
            key: acquisition.key().to_owned(),
            sort_key: table.sort_key.as_ref().map(|(_, value)| value.clone()),
            enforced: true,
            owner: acquisition.owner.clone(),
            fence,
            number: acquisition.numbers.own,
            release: release.unwrap_or_default(),
            sequence,
            acquired_at,
            expires_at,
            hold_until: hold_until.map(millis_up),
            kind: acquisition.kind().in_tickets().map(str::to_owned),
        }
    }

    /// Uses up the ticket.
    pub(crate) async fn resume(&self, table: &Table, nonce: &str, now: Moment) -> Result<(Acquisition, Grant), Error> {
        let (acquisition, skew) = (self.acquisition(), table.clock_skew);
        // This host's lease ends before the end in the row, by the skew.
        let valid_from = millis_up(now.wall.saturating_add(skew));
        let grant = table.resume(&acquisition, self.handover(now, skew), nonce, valid_from).await?;
        Ok((acquisition, grant))
    }

    /// Returns when the lease ends then, as in [`Lease::end`](crate::clock::Lease::end).
    pub(crate) async fn renew(&self, table: &Table, lease: Duration, now: Moment) -> Result<u64, Error> {
        let acquisition = self.acquisition();
        let lease = table.lease(acquisition.kind(), now, now.deadline_after(lease), None);
        table.renew_ticket(&acquisition, self.handover(now, table.clock_skew), lease).await
    }

    pub(crate) async fn release(&self, table: &Table, now: Moment, coalesces: bool) -> Result<bool, Error> {
        let (acquired_at, handover) = (time_of_acquire(self.acquired_at, now), self.handover(now, table.clock_skew));
        table.release_ticket(&self.acquisition(), handover, acquired_at, self.hold_until(now), coalesces).await
    }

    pub(crate) fn continuation(&self, now: Moment) -> Continuation {
        let sequence = self.sequence.saturating_add(1);
        Continuation { hold_until: self.hold_until(now), sequence, release: Some(self.release) }
    }

    /// Limits what the ticket says to what an acquire sets.
    fn hold_until(&self, now: Moment) -> Option<Duration> {
        let latest = now.wall.saturating_add(DAY).saturating_add(MAX_CLOCK_SKEW);
        self.hold_until.map(|until| Duration::from_millis(until).min(latest))
    }
}

/// Omits the owner, which is the secret of the ticket.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            key_prefix,
            key,
            sort_key,
            enforced,
            owner: _,
            fence,
            number,
            release,
            sequence,
            acquired_at,
            expires_at,
            hold_until,
            kind,
        } = self;
        // `Debug` of a string escapes it.
        let short = |text| shortened(text, MAX_SHOWN);
        f.debug_struct("Ticket")
            .field("table", &short(table))
            .field("key_prefix", &short(key_prefix))
            .field("key", &short(key))
            .field("sort_key", &sort_key.as_deref().map(short))
            .field("enforced", enforced)
            .field("fence", fence)
            .field("number", number)
            .field("release", release)
            .field("sequence", sequence)
            .field("acquired_at", acquired_at)
            .field("expires_at", expires_at)
            .field("hold_until", hold_until)
            .field("kind", kind)
            .finish_non_exhaustive()
    }
}

impl Lock {
    /// Turns the lock into a [`Ticket`] for another process, which holds the key from then on. Sends no request and releases
    /// nothing: without a use of the ticket, the key is held until the lease ends.
    ///
    /// Data that was [set](Self::set_data) and not written by a renewal is dropped. The [minimum
    /// hold](crate::Acquire::min_hold) goes with the ticket. A lock that was lost or released gives a ticket that
    /// is refused; after a release that was not answered, the row decides. A lock that is not
    /// [enforced](Self::is_enforced) gives a ticket that says so.
    ///
    /// # Errors
    ///
    /// A lock of [several keys](Locks::acquire_all) has no ticket: the error is of kind
    /// [`Invalid`](crate::ErrorKind::Invalid), and the lock is released in the background. Acquire them for an identity, and
    /// [keep](Self::keep) them.
    pub fn into_ticket(self) -> Result<Ticket, Error> {
        self.hold.acquisition.kind().check_one_key("ticket")?;
        let expires_at = millis(since_epoch(self.expires_at()));
        let acquired_at = millis(since_epoch(self.acquired_at()));
        let (table, acquisition) = (&self.hold.locks.0.table, &self.hold.acquisition);
        let ticket = Ticket::new(table, acquisition, self.fence(), acquired_at, expires_at, self.hand_over());
        Ok(Ticket { enforced: self.is_enforced(), ..ticket })
    }
}

impl Locks {
    /// Resumes the lock of a ticket, in any process. Uses up the ticket. One request; IAM action `dynamodb:UpdateItem`.
    ///
    /// The lock has the fence, the data and the lease of the row. It is valid until that lease ends by this host's clocks,
    /// which is at most the clock skew apart from the end by other clocks. It can be renewed, released, checked, and turned
    /// into another ticket. A copy of the ticket, and late requests of the process that made it, are refused from now on.
    ///
    /// Fails with an error that
    ///
    /// - [`TicketForeign`](crate::ErrorKind::TicketForeign) if the ticket belongs to another table, key prefix or sort key;
    ///   nothing is sent then;
    /// - [`TicketEnded`](crate::ErrorKind::TicketEnded) if the lease has ended, and
    ///   [`TicketReleased`](crate::ErrorKind::TicketReleased) if the lock was released; both are also
    ///   [lost](Error::is_lost);
    /// - [`is_lost`](Error::is_lost), with the [holder](Error::holder), if another holder has taken the key or an operator
    ///   has released it by force;
    /// - [`TicketUsed`](crate::ErrorKind::TicketUsed) if the ticket was used before;
    /// - [`TicketUnknown`](crate::ErrorKind::TicketUnknown) if no acquisition matches the ticket, because it is forged or the
    ///   row was deleted.
    ///
    /// A retry of the SDK recognises a resumption whose answer was lost. After an error of kind
    /// [`Unavailable`](crate::ErrorKind::Unavailable), [`Throttled`](crate::ErrorKind::Throttled) or
    /// [`Conflict`](crate::ErrorKind::Conflict), and if the future is dropped, the ticket may be used up. The ticket is
    /// then refused as used, and the key is held until the lease ends, an operator [frees](Self::force_release) it, or
    /// another acquire of its [identity](crate::Acquire::identity) takes it over. So do not put a resumption under a
    /// timeout: spawn it on a task, or renew and release with the ticket itself, which can be repeated.
    ///
    /// If locking is [disabled](crate::LocksBuilder::enabled) here, or the lock of the ticket is not enforced, nothing
    /// is sent. The lock is then not [enforced](Lock::is_enforced), and valid until the end that the ticket names.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Lock, Error> {
        let lock = self.send_resumption(ticket).await;
        record_ticket("resumed", &lock);
        lock
    }

    async fn send_resumption(&self, ticket: &Ticket) -> Result<Lock, Error> {
        self.check_ticket(ticket)?;
        let (table, now) = (&self.0.table, self.0.clock.now());
        if !self.is_enforced(ticket) {
            let end = millis_up(Duration::from_millis(ticket.expires_at).saturating_add(table.clock_skew));
            let grant = Grant::new(Vec::new(), None, now, table.stored_lease(end, now));
            return self.resumed(
                ticket,
                ticket.acquisition(),
                grant,
                HoldSpan::new(tracing::Span::none(), self.printable_key(ticket)),
            );
        }
        let (acquisition, grant) = ticket.resume(table, &table.nonce(&ticket.key)?, now).await?;
        let fence = grant.fences.first().copied().unwrap_or_default();
        self.resumed(ticket, acquisition, grant, HoldSpan::resumed(self.printable_key(ticket), &ticket.owner, fence))
    }

    /// Returns the lock of this grant, unless its lease has ended by now.
    fn resumed(
        &self,
        ticket: &Ticket,
        acquisition: Acquisition,
        grant: Grant,
        telemetry: HoldSpan,
    ) -> Result<Lock, Error> {
        let now = self.0.clock.now();
        if grant.lease.deadline.has_passed(now) {
            return Err(self.ticket_fault(ticket, TicketFault::Ended));
        }
        Ok(Lock::continuing(self.clone(), acquisition, grant, telemetry, ticket.continuation(now)))
    }

    /// Renews the lease of the ticket's lock without using up the ticket, so that it ends at least `lease` from now:
    /// from 1 ms to 366 days, and for a permit of a semaphore to a day. Returns when the lease ends, by this host's
    /// clock. One request, or two if the lease ends later already; IAM action `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks, Ticket};
    /// # async fn step(locks: Locks, ticket: Ticket) -> Result<(), Error> {
    /// locks.renew_ticket(&ticket, Duration::from_mins(30)).await?;
    /// // … the work of this step, with `ticket.fence()` …
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The lease is never shortened, also not by a late request of the process that made the ticket. After a crash, the
    /// key stays held until it ends or an operator [frees](Self::force_release) it. Can be repeated after any error.
    /// Fails as [`resume`](Self::resume) does, but succeeds until the lease has ended for all hosts. Work that relies
    /// on the returned time is not cancelled by this crate.
    ///
    /// If the lock is not enforced, nothing is sent, and the lease ends `lease` from now.
    pub async fn renew_ticket(&self, ticket: &Ticket, lease: Duration) -> Result<SystemTime, Error> {
        let end = self.send_renewal(ticket, lease).await;
        record_ticket("renewed", &end);
        end
    }

    async fn send_renewal(&self, ticket: &Ticket, lease: Duration) -> Result<SystemTime, Error> {
        let acquisition = ticket.acquisition();
        acquisition.kind().check_lease("lease", lease, false)?;
        self.check_ticket(ticket)?;
        let (table, now) = (&self.0.table, self.0.clock.now());
        let end = if self.is_enforced(ticket) {
            ticket.renew(table, lease, now).instrument(self.ticket_span("renew", ticket)).await?
        } else {
            table.lease(acquisition.kind(), now, now.deadline_after(lease), None).end
        };
        Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(end).saturating_sub(table.clock_skew))
    }

    /// Releases the ticket's lock, which frees the key at once or, with `min_hold`, when that time is over. Uses up the
    /// ticket. One request; IAM action `dynamodb:UpdateItem`.
    ///
    /// Can be repeated after any error, also in another process. It succeeds if the lock was released before, until the
    /// next holder has acquired and released the key; then it is [lost](Error::is_lost). If the lease has ended but no
    /// other holder has the key, the release succeeds. A released permit of a semaphore leaves nothing in the row, so the
    /// release of a permit that is not there succeeds until the ticket's lease has ended. Fails with an error of kind
    /// [`TicketUsed`](crate::ErrorKind::TicketUsed) if the lock was resumed, because the work of that process may still run.
    /// Its other errors are those of [`resume`](Self::resume). If the lock is not enforced, nothing is sent.
    pub async fn release_ticket(&self, ticket: &Ticket) -> Result<(), Error> {
        self.release_by(ticket, false).await.map(drop)
    }

    /// Releases the ticket's lock as [`release_ticket`](Self::release_ticket) does, and returns `true` if an acquire that was
    /// refused has [left its work](Self::coalesce) to the holder. Then the workflow begins again:
    /// [`Lock::release_coalescing`] says how. One request; IAM action `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks, Ticket};
    /// # async fn last_step(locks: Locks, ticket: Ticket) -> Result<&'static str, Error> {
    /// // A Choice state takes the workflow back to its first step.
    /// Ok(if locks.release_ticket_coalescing(&ticket).await? { "again" } else { "done" })
    /// # }
    /// ```
    pub async fn release_ticket_coalescing(&self, ticket: &Ticket) -> Result<bool, Error> {
        self.release_by(ticket, true).await
    }

    async fn release_by(&self, ticket: &Ticket, coalesces: bool) -> Result<bool, Error> {
        let released = self.send_release(ticket, coalesces).await;
        record_ticket("released", &released);
        released
    }

    /// Frees the key as [`release_ticket`](Self::release_ticket) does. Returns `false` if the ticket's lock is
    /// [lost](Error::is_lost), for the end of a workflow that has nothing to do about it: its lease has ended, or another
    /// holder has the key. One request; IAM action `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use lambda_lock::{Error, Locks, Ticket};
    /// # async fn last_step(locks: Locks, ticket: Ticket) -> Result<(), Error> {
    /// if !locks.release_ticket_if_held(&ticket).await? {
    ///     println!("the lock had ended before the workflow");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_ticket_if_held(&self, ticket: &Ticket) -> Result<bool, Error> {
        match self.release_ticket(ticket).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_lost() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn send_release(&self, ticket: &Ticket, coalesces: bool) -> Result<bool, Error> {
        self.check_ticket(ticket)?;
        if !self.is_enforced(ticket) {
            return Ok(false);
        }
        let (table, now) = (&self.0.table, self.0.clock.now());
        let is_asked = ticket.release(table, now, coalesces).instrument(self.ticket_span("release", ticket)).await?;
        metrics::count(metrics::RELEASED);
        metrics::time(metrics::HOLD_TIME, now.wall.saturating_sub(time_of_acquire(ticket.acquired_at, now)));
        Ok(is_asked)
    }

    fn printable_key(&self, ticket: &Ticket) -> String {
        self.0.table.place().printable_key(&ticket.key)
    }

    fn ticket_span(&self, request: &'static str, ticket: &Ticket) -> tracing::Span {
        ticket_span(request, &self.printable_key(ticket), ticket.fence)
    }

    fn is_enforced(&self, ticket: &Ticket) -> bool {
        self.0.enabled && ticket.enforced
    }

    /// Checks that the ticket belongs to the rows of these locks.
    fn check_ticket(&self, ticket: &Ticket) -> Result<(), Error> {
        self.check_key(&ticket.key)?;
        let table = &self.0.table;
        let sort_key = table.sort_key.as_ref().map(|(_, value)| value.as_str());
        let name =
            |value: Option<&str>| value.map_or_else(|| "none".to_owned(), |value| format!("`{}`", printable(value)));
        for (what, theirs, ours) in [
            ("key prefix", Some(ticket.key_prefix.as_str()), Some(table.key_prefix.as_str())),
            ("sort key", ticket.sort_key.as_deref(), sort_key),
        ] {
            if theirs != ours {
                let why = format!("its {what} is {}, not {}: use the {what} of the ticket", name(theirs), name(ours));
                return Err(self.ticket_fault(ticket, TicketFault::Foreign(why)));
            }
        }
        if !is_same_table(&ticket.table, &table.name) {
            let why = format!("it belongs to table `{}`: use that table", printable(&ticket.table));
            return Err(self.ticket_fault(ticket, TicketFault::Foreign(why)));
        }
        // A step that made the ticket has locking disabled, or somebody has edited it.
        if self.0.enabled && !ticket.enforced {
            let key = self.printable_key(ticket);
            tracing::warn!(key, "the ticket holds no lock: its `enforced` is false, so nothing is sent");
        }
        Ok(())
    }

    fn ticket_fault(&self, ticket: &Ticket, fault: TicketFault) -> Error {
        // The row is the one that the ticket names.
        let place = Place { key_prefix: &ticket.key_prefix, ..self.0.table.place() };
        Error::new(Cause::Ticket(fault), place, &ticket.key)
    }
}

/// The serialised form.
#[cfg(feature = "serde")]
mod format {
    use serde::{Deserialize, Serialize};

    use super::Ticket;
    use crate::row::Kind;

    const VERSION: u64 = 1;
    /// A process sends fewer requests. A row holds much larger numbers, so a forged ticket leaves room for later requests.
    const MAX_SEQUENCE: u64 = 1 << 48;
    /// The end of the year 9999.
    const LATEST: u64 = 253_402_300_799_999;
    /// Leaves room for the number of the release.
    const MAX_NUMBER: u64 = i64::MAX as u64 - 1;
    /// If the number of an acquisition is ahead of the clock, that of its release is larger by less than this, because each
    /// attempt adds 1, and no acquire sends so many.
    const MAX_ATTEMPTS: u64 = 1_000_000;

    /// The fields are optional, so that the version is looked at first.
    #[derive(Deserialize, Serialize)]
    pub(super) struct Written {
        version: Option<u64>,
        table: Option<String>,
        key_prefix: Option<String>,
        key: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sort_key: Option<String>,
        enforced: Option<bool>,
        owner: Option<String>,
        fence: Option<u64>,
        number: Option<u64>,
        release: Option<u64>,
        sequence: Option<u64>,
        acquired_at: Option<u64>,
        expires_at: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        hold_until: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
    }

    impl From<Ticket> for Written {
        fn from(ticket: Ticket) -> Self {
            let Ticket {
                table,
                key_prefix,
                key,
                sort_key,
                enforced,
                owner,
                fence,
                number,
                release,
                sequence,
                acquired_at,
                expires_at,
                hold_until,
                kind,
            } = ticket;
            Self {
                version: Some(VERSION),
                table: Some(table),
                key_prefix: Some(key_prefix),
                key: Some(key),
                sort_key,
                enforced: Some(enforced),
                owner: Some(owner),
                fence: Some(fence),
                number: Some(number),
                release: Some(release),
                sequence: Some(sequence),
                acquired_at: Some(acquired_at),
                expires_at: Some(expires_at),
                hold_until,
                kind,
            }
        }
    }

    impl TryFrom<Written> for Ticket {
        type Error = String;

        fn try_from(written: Written) -> Result<Self, String> {
            fn field<T>(name: &str, value: Option<T>) -> Result<T, String> {
                value.ok_or_else(|| format!("the ticket has no field `{name}`: pass on the whole ticket"))
            }
            fn number(name: &str, value: Option<u64>, most: u64) -> Result<u64, String> {
                let value = field(name, value)?;
                if value <= most {
                    return Ok(value);
                }
                Err(format!("the field `{name}` of the ticket is {value}, not between 0 and {most}"))
            }
            let version = field("version", written.version)?;
            if version != VERSION {
                return Err(format!(
                    "the ticket has version {version}, and this program reads version {VERSION}: use the same version of \
                     lambda-lock in all steps"
                ));
            }
            let hold_until = written.hold_until.map(|time| number("hold_until", Some(time), LATEST)).transpose()?;
            let (table, key_prefix) = (field("table", written.table)?, field("key_prefix", written.key_prefix)?);
            let key = field("key", written.key)?;
            let kind = Kind::of_ticket(written.kind.as_deref(), key.clone()).ok_or_else(|| {
                "the ticket is of an unknown `kind`: use the same version of lambda-lock in all steps".to_owned()
            })?;
            let own = number("number", written.number, MAX_NUMBER)?;
            // That of a forged ticket leaves room for the numbers of later acquires.
            let release =
                number("release", written.release, (LATEST * 1000).max(own + MAX_ATTEMPTS).min(MAX_NUMBER + 1))?;
            Ok(Self {
                table,
                key_prefix,
                key,
                sort_key: written.sort_key,
                enforced: field("enforced", written.enforced)?,
                owner: field("owner", written.owner)?,
                fence: number("fence", written.fence, u64::MAX)?,
                number: own,
                // The release of a key does not set its fence back. That of a permit leaves the fence of the semaphore.
                release: if kind.in_tickets().is_none() { release.max(own + 1) } else { release },
                sequence: number("sequence", written.sequence, MAX_SEQUENCE)?,
                acquired_at: number("acquired_at", written.acquired_at, LATEST)?,
                expires_at: number("expires_at", written.expires_at, LATEST)?,
                hold_until,
                kind: kind.in_tickets().map(str::to_owned),
            })
        }
    }
}
