//! The requests of a ticket: resume, renew and release the lock of another process.
//!
//! Each request of a ticket leaves a number in the row that refuses the late requests of the process that made the ticket. A
//! resumption and a release leave the next one, which also refuses the same ticket a second time.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;

use super::expression::{Attribute as _, Condition, Update, count, text};
use super::kind::Acquisition;
use super::names::EXPIRATION;
use super::read::Row;
use super::rules::{Field, Hold, Own, Release, TRIES, Trace};
use super::table::Table;
use super::write::Answer;
use crate::clock::{Lease, Moment, monotonic};
use crate::error::{Cause, Error, TicketFault};
use crate::holder::Data;
use crate::queue::HoldTime;

/// What a ticket says about its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handover {
    pub(crate) fence: u64,
    /// The number of the last request that the owner sent before it made the ticket. The row may have a smaller one,
    /// because that request may have been lost.
    pub(crate) sequence: u64,
    /// The end of the lease when the ticket was made, by the fastest clock.
    pub(crate) expires_at: Duration,
    pub(crate) now: Moment,
}

impl Handover {
    /// Returns the number of the request that uses up the ticket.
    fn next_sequence(&self) -> u64 {
        self.sequence.saturating_add(1)
    }

    /// Returns `true` if the lease has ended by now: a request that is throttled can outlast it.
    fn has_expired(&self) -> bool {
        let passed = monotonic().saturating_duration_since(self.now.monotonic);
        self.expires_at <= self.now.wall.saturating_add(passed)
    }

    /// Returns `true` if the row that refused a request of the ticket shows it unused. The caller compares the ends: that of a
    /// renewal is after now.
    fn is_unused(&self, own: &Own) -> bool {
        own.fence == Some(self.fence)
            && !own.is_released
            && own.sequence.is_some_and(|sequence| sequence <= self.sequence)
    }
}

/// The lock of a row that was resumed.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub(crate) fence: u64,
    pub(crate) data: Option<Data>,
    /// The end of the lease, as in [`Lease::end`].
    pub(crate) end: u64,
    /// When the key was acquired, in milliseconds since the epoch.
    pub(crate) acquired_at: u64,
    pub(crate) hold_time: Option<HoldTime>,
}

impl Table {
    /// Uses up the ticket, if its lease ends later than `valid_from`, in milliseconds since the epoch. One request. The
    /// nonce tells a retry of this request from another resumption.
    pub(crate) async fn resume(
        &self,
        acquisition: &mut Acquisition,
        ticket: Handover,
        nonce: &str,
        valid_from: u64,
    ) -> Result<Resumed, Error> {
        let key = acquisition.key().to_owned();
        let (rules, owner) = (acquisition.rules(), acquisition.owner.as_str());
        let update = Update::new(&key)
            .when(acquisition.is_unused(ticket, valid_from))
            .set(rules.at(owner, Field::Sequence), count("next", ticket.next_sequence()))
            .set(rules.at(owner, Field::Resumed), text("nonce", nonce))
            .returning(ReturnValue::AllNew);
        let row = match self.write(update, None).await? {
            Answer::Applied(row) => Some(Row::read(row).map_err(|why| self.malformed(&key, why))?),
            // An earlier attempt of this resumption may have been applied; its answer was lost.
            Answer::Refused(refused) => refused.into_row(self)?,
        };
        let trace = rules.trace(row.as_ref(), owner, ticket.now);
        let Some(own) = trace.held().filter(|own| own.resumed.as_deref() == Some(nonce)) else {
            return Err(self.ticket_refused(&key, ticket, trace));
        };
        let (fence, end) = (own.fence.unwrap_or(ticket.fence), own.end);
        let acquired_at = own.acquired_at.unwrap_or_default();
        let (mut data, mut hold_time) = (None, None);
        if let Some(mut row) = row {
            (data, hold_time) = (row.data.take(), row.queue.hold_time);
            acquisition.kind.rules_mut().resumed(row);
        }
        Ok(Resumed { fence, data, end, acquired_at, hold_time })
    }

    /// Extends the lease if it ends earlier than this one, and leaves the ticket unused. Returns the end of the lease. One
    /// request. If the lease ends later already, the end stays, and another request leaves the number of the ticket, unless
    /// the row has it; up to six while others change the row.
    ///
    /// A duplicate that arrives late cannot shorten the lease, and neither can a late request of the process that made the
    /// ticket: the number of its last request is in the row now.
    pub(crate) async fn renew_ticket(
        &self,
        acquisition: &Acquisition,
        ticket: Handover,
        lease: Lease,
    ) -> Result<u64, Error> {
        let (rules, owner, key) = (acquisition.rules(), acquisition.owner.as_str(), acquisition.key());
        let (lease_end, sequence) = (|| rules.at(owner, Field::LeaseEnd), || rules.at(owner, Field::Sequence));
        let renewal = || {
            Update::new(key)
                .when(acquisition.is_unused(ticket, ticket.now.millis()))
                .set(sequence(), count("sequence", ticket.sequence))
        };
        for _ in 0..TRIES {
            let longer = renewal()
                .when(lease_end().below(count("lease_end", lease.end)))
                .set(lease_end(), count("lease_end", lease.end))
                .set(EXPIRATION, count("expiration", lease.expiration));
            let Answer::Refused(refused) = self.write(longer, None).await? else {
                return Ok(lease.end);
            };
            let trace = rules.trace(refused.into_row(self)?.as_ref(), owner, ticket.now);
            let Some(own) = trace.held().filter(|own| ticket.is_unused(own) && own.end >= lease.end) else {
                return Err(self.ticket_refused(key, ticket, trace));
            };
            // An earlier attempt of this renewal may have been applied.
            if own.sequence == Some(ticket.sequence) {
                return Ok(own.end);
            }
            let same = renewal().when(lease_end().is(count("seen", own.end)));
            match self.write(same, None).await? {
                Answer::Applied(_) => return Ok(own.end),
                // The row has changed meanwhile.
                Answer::Refused(refused) => refused.into_row(self).map(drop)?,
            }
        }
        Err(acquisition.error(Cause::Conflict, self))
    }

    /// Frees the key if the ticket was not used. One request, and another one if the row is to be tidied up. Succeeds if
    /// this owner has released the key before.
    pub(crate) async fn release_ticket(
        &self,
        acquisition: &Acquisition,
        ticket: Handover,
        asked_at: Duration,
        hold_until: Option<Duration>,
    ) -> Result<(), Error> {
        let (sequence, now) = (ticket.next_sequence(), ticket.now);
        // The hold time of the row is unknown here, and stays if it has one.
        let hold = Hold { since: asked_at, before: None, is_before_known: false };
        let release = Release { sequence, now, fence: None, asked_at, hold_until, hold: Some(hold), data: None };
        let Some((key, row)) = self.release_held(acquisition, &release).await?.pop() else { return Ok(()) };
        let trace = acquisition.rules().trace(row.as_ref(), &acquisition.owner, now);
        match &trace {
            Trace::Own(Own { is_released: true, .. }) | Trace::Other { is_released: true, .. } => Ok(()),
            // Nothing replaces a permit before its lease has ended. So an earlier attempt was applied, and its trace removed.
            Trace::Gone if acquisition.has_unanswered_release() && !ticket.has_expired() => Ok(()),
            _ => Err(self.ticket_refused(&key, ticket, trace)),
        }
    }

    /// Returns why a row with this trace refused a request of the ticket.
    fn ticket_refused(&self, key: &str, ticket: Handover, trace: Trace) -> Error {
        let fault = match trace {
            Trace::Own(own) if own.fence == Some(ticket.fence) => match own {
                Own { is_released: true, .. } => TicketFault::Released,
                own if own.sequence > Some(ticket.sequence) => TicketFault::Used,
                _ => TicketFault::Ended,
            },
            // An operator who releases a key by force leaves its fence unchanged.
            Trace::Other { holder: Some(holder), .. }
                if holder
                    .fence
                    .is_none_or(|fence| fence > ticket.fence || (fence == ticket.fence && holder.released)) =>
            {
                return Error::new(Cause::Lost(Some(*holder)), self.place(), key);
            }
            Trace::Other { holder: None, is_released: true } => TicketFault::Released,
            // Others have replaced the acquisition after its lease, or TTL has deleted the row.
            _ if ticket.has_expired() => TicketFault::Ended,
            _ => TicketFault::Unknown,
        };
        Error::new(Cause::Ticket(fault), self.place(), key)
    }
}

impl Acquisition {
    /// The owner has the key with the fence of the ticket, its lease ends after `now`, and the ticket was not used.
    fn is_unused(&self, ticket: Handover, now: u64) -> Condition<'_> {
        let (rules, owner) = (self.rules(), self.owner.as_str());
        rules
            .is_held(owner, now)
            .and(rules.at(owner, Field::Fence).is(count("fence", ticket.fence)))
            .and(rules.at(owner, Field::Sequence).at_most(count("sequence", ticket.sequence)))
    }
}
