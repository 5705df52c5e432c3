//! The requests of a ticket: resume, renew and release the lock of another process.
//!
//! Each request of a ticket leaves a sequence in the row that refuses the late requests of the process that made the ticket. A
//! resumption and a release leave the next one, which also refuses the same ticket a second time.

use std::time::Duration;

use super::claim::Grant;
use super::hold::{Releasing, TRIES};
use super::kind::Acquisition;
use super::place::{Hold, Release};
use super::table::Table;
use super::write::Answer;
use crate::clock::{Lease, Moment, monotonic};
use crate::error::{Cause, Error, TicketFault};
use crate::holder::Holder;
use crate::limits::time_of_acquire;

/// What a ticket says about its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handover {
    pub(crate) fence: u64,
    /// The sequence of the last request that the owner sent before it made the ticket. The row may have a smaller one,
    /// because that request may have been lost.
    pub(crate) sequence: u64,
    /// The number of the release.
    pub(crate) release: u64,
    /// The end of the lease when the ticket was made, by the fastest clock.
    pub(crate) expires_at: Duration,
    pub(crate) now: Moment,
}

impl Handover {
    /// Returns the sequence of the request that uses up the ticket.
    fn next_sequence(&self) -> u64 {
        self.sequence.saturating_add(1)
    }

    /// Returns `true` if the lease has ended by now: a request that is throttled can outlast it.
    fn has_expired(&self) -> bool {
        let passed = monotonic().saturating_duration_since(self.now.monotonic);
        self.expires_at <= self.now.wall.saturating_add(passed)
    }
}

impl Table {
    /// Uses up the ticket, if its lease ends later than `valid_from`, in milliseconds since the epoch. One request. The
    /// nonce tells a retry of this request from another resumption.
    pub(crate) async fn resume(
        &self,
        acquisition: &Acquisition,
        ticket: Handover,
        nonce: &str,
        valid_from: u64,
    ) -> Result<Grant, Error> {
        let (key, own) = (acquisition.key(), acquisition.numbers.own);
        let update = acquisition.place(self, key).resume(own, ticket.sequence, valid_from, nonce);
        let row = match self.write(update, None).await? {
            Answer::Applied(row) => Some(Holder::read(row, ticket.now).map_err(|why| self.malformed(key, why))?),
            // An earlier attempt of this resumption may have been applied; its answer was lost.
            Answer::Refused(refused) => refused.into_row(self, ticket.now)?,
        };
        let is_resumed = |place: &&Holder| place.is_acquired_with(own) && place.resumed.as_deref() == Some(nonce);
        match acquisition.own_in(row.as_ref()).filter(is_resumed) {
            Some(place) => {
                let now = ticket.now;
                let sent = now.earlier(time_of_acquire(place.since.unwrap_or_default(), now));
                let data = row.as_ref().and_then(|row| row.data.clone());
                let hold_time = row.as_ref().and_then(|row| row.queue.hold_time);
                let fences = vec![place.fence.unwrap_or(ticket.fence)];
                Ok(Grant { hold_time, ..Grant::new(fences, data, sent, self.stored_lease(place.until, now)) })
            }
            None => Err(self.ticket_refused(acquisition, ticket, row)),
        }
    }

    /// Extends the lease if it ends earlier than this one, and leaves the ticket unused. Returns the end of the lease. One
    /// request. If the lease ends later already, the end stays, and another request leaves the sequence of the ticket, unless
    /// the row has it; up to six while others change the row.
    ///
    /// A duplicate that arrives late cannot shorten the lease, and neither can a late request of the process that made the
    /// ticket: the sequence of its last request is in the row now.
    pub(crate) async fn renew_ticket(
        &self,
        acquisition: &Acquisition,
        ticket: Handover,
        lease: Lease,
    ) -> Result<u64, Error> {
        let (own, now) = (acquisition.numbers.own, ticket.now.millis());
        let place = acquisition.place(self, acquisition.key());
        for _ in 0..TRIES {
            let longer = place.renew_by_ticket(own, ticket.sequence, now, lease);
            let Answer::Refused(refused) = self.write(longer, None).await? else {
                return Ok(lease.end);
            };
            let row = refused.into_row(self, ticket.now)?;
            let is_longer = |place: &&Holder| {
                place.is_acquired_with(own) && place.sequence <= Some(ticket.sequence) && place.until >= lease.end
            };
            let Some(seen) = acquisition.own_in(row.as_ref()).filter(is_longer) else {
                return Err(self.ticket_refused(acquisition, ticket, row));
            };
            // An earlier attempt of this renewal may have been applied.
            if seen.sequence == Some(ticket.sequence) {
                return Ok(seen.until);
            }
            match self.write(place.keep_by_ticket(own, ticket.sequence, now, seen.until), None).await? {
                Answer::Applied(_) => return Ok(seen.until),
                // The row has changed meanwhile.
                Answer::Refused(refused) => refused.into_row(self, ticket.now).map(drop)?,
            }
        }
        Err(acquisition.error(Cause::Conflict, self))
    }

    /// Frees the key if the ticket was not used. Returns whether the holder was asked to run once more, if that is wanted. One
    /// request. Succeeds if this ticket has released the key before.
    pub(crate) async fn release_ticket(
        &self,
        acquisition: &Acquisition,
        ticket: Handover,
        since: Duration,
        hold_until: Option<Duration>,
        coalesces: bool,
    ) -> Result<bool, Error> {
        let (number, sequence, now) = (ticket.release, ticket.next_sequence(), ticket.now);
        // The hold time of the row is unknown here, and stays if it has one.
        let hold = Some(Hold { since, before: None, is_before_known: false });
        let release = Release { number, sequence, now, hold_until, hold, data: None, coalesces };
        let (others, is_asked) = self.send_releases(Releasing::all(acquisition, release)).await?;
        let Some((_, row)) = others.into_iter().next() else { return Ok(is_asked) };
        let is_released = if acquisition.is_gone_from(row.as_ref()) {
            // Nothing replaces a permit before its lease has ended, and nothing of a released one stays in the row.
            !ticket.has_expired()
        } else {
            row.as_ref().is_some_and(|row| acquisition.is_released_in(row, number))
        };
        if is_released { Ok(is_asked) } else { Err(self.ticket_refused(acquisition, ticket, row)) }
    }

    /// Returns why this row refused a request of the ticket.
    fn ticket_refused(&self, acquisition: &Acquisition, ticket: Handover, row: Option<Holder>) -> Error {
        let number = acquisition.numbers.own;
        let is_released = row.as_ref().is_some_and(|row| acquisition.is_released_in(row, ticket.release));
        let (own, other) = (acquisition.own_in(row.as_ref()), acquisition.other_in(row.as_ref()));
        let is_lost = match own {
            // Somebody else has freed it.
            Some(place) => place.number > Some(number) && place.has_released(),
            None => other.is_some_and(|other| other.fence.is_none_or(|fence| fence > ticket.fence)),
        };
        let fault = match own.filter(|place| place.number == Some(number)) {
            _ if is_released => TicketFault::Released,
            Some(place) if place.sequence > Some(ticket.sequence) => TicketFault::Used,
            Some(_) => TicketFault::Ended,
            None if is_lost => {
                return Error::new(Cause::Lost(acquisition.lost_to(row)), self.place(), acquisition.key());
            }
            // Another owner has replaced the acquisition after its lease, or TTL has deleted the row.
            None if ticket.has_expired() => TicketFault::Ended,
            None if acquisition.is_gone_from(row.as_ref()) => TicketFault::Released,
            None => TicketFault::Unknown,
        };
        Error::new(Cause::Ticket(fault), self.place(), acquisition.key())
    }
}
