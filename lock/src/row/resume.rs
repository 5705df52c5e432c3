//! The requests of a ticket: resume, renew and release the lock of another process.
//!
//! Each request of a ticket leaves a `sequence` in the row that refuses the late requests of the process that made the
//! ticket. A resumption and a release leave the next one, which also refuses the same ticket a second time.

use std::time::Duration;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::ReturnValue;

use super::names::{EXPIRATION, FENCE, IN_PROGRESS, LEASE_END, OWNER, RELEASED, RESUMED, SEQUENCE, STATUS, permit};
use super::permit::{RENEW_PERMIT, names_of};
use super::read::Row;
use super::release::{RENEW, Step};
use super::semaphore::{Permit, Semaphore};
use super::table::{Expression as _, Table, insist, insist_counted, number, string};
use super::withdraw::TRIES;
use crate::client::SdkAttempts;
use crate::clock::{Lease, Moment};
use crate::error::{Cause, Error, ErrorKind, TicketFault};
use crate::holder::Data;
use crate::queue::HoldTime;

/// A request of a ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TicketStep<'a> {
    pub(crate) key: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) fence: u64,
    /// The number of the last request that the owner sent before it made the ticket. The row may have a smaller one,
    /// because that request may have been lost.
    pub(crate) sequence: u64,
    /// The end of the lease when the ticket was made, by the clock that is ahead most.
    pub(crate) expires_at: Duration,
    pub(crate) now: Moment,
}

impl TicketStep<'_> {
    /// Returns the number of the request that uses up the ticket.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.saturating_add(1)
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
    /// For a permit of a semaphore: what the row has.
    pub(crate) permit: Option<Semaphore>,
}

/// The ticket's owner has the key, and the ticket was not used.
const UNUSED: &str = "#owner = :owner AND #fence = :fence AND #status = :in_progress AND #released <> :owner \
     AND #sequence <= :sequence AND #lease_end > :now";

/// The same for a permit of a semaphore.
const UNUSED_PERMIT: &str = "#permit_fence = :fence AND #permit.#lease_end > :now \
     AND attribute_not_exists(#permit.#released) AND #permit.#sequence <= :sequence";

impl Table {
    /// Starts an update on the condition [`UNUSED`], by this time in milliseconds since the epoch.
    fn update_if_unused(&self, step: TicketStep<'_>, now: u64) -> UpdateItemFluentBuilder {
        self.update(step.key)
            .condition_expression(UNUSED)
            .names([
                ("#owner", OWNER),
                ("#fence", FENCE),
                ("#status", STATUS),
                ("#released", RELEASED),
                ("#sequence", SEQUENCE),
                ("#lease_end", LEASE_END),
            ])
            .values([
                (":owner", string(step.owner)),
                (":fence", number(step.fence)),
                (":in_progress", string(IN_PROGRESS)),
                (":sequence", number(step.sequence)),
                (":now", number(now)),
            ])
    }

    /// Starts an update on the condition [`UNUSED_PERMIT`], by this time in milliseconds since the epoch.
    fn update_if_unused_permit(&self, step: TicketStep<'_>, now: u64) -> UpdateItemFluentBuilder {
        let (permit, permit_fence) = names_of(step.owner);
        self.update(step.key)
            .condition_expression(UNUSED_PERMIT)
            .names([
                ("#permit", &permit),
                ("#permit_fence", &permit_fence),
                ("#lease_end", permit::LEASE_END),
                ("#released", permit::RELEASED),
                ("#sequence", permit::SEQUENCE),
            ])
            .values([(":fence", number(step.fence)), (":sequence", number(step.sequence)), (":now", number(now))])
    }

    /// Uses up the ticket, if its lease ends later than `valid_from`, in milliseconds since the epoch. One request. The
    /// nonce tells a retry of this request from another resumption.
    pub(crate) async fn resume(&self, step: TicketStep<'_>, nonce: &str, valid_from: u64) -> Result<Resumed, Error> {
        let TicketStep { key, owner, .. } = step;
        let request = self
            .update_if_unused(step, valid_from)
            .update_expression("SET #sequence = :next, #resumed = :nonce")
            .return_values(ReturnValue::AllNew)
            .name("#resumed", RESUMED)
            .values([(":next", number(step.next_sequence())), (":nonce", string(nonce))]);
        let row = match insist(request).await {
            Ok(output) => {
                let row = output.attributes.unwrap_or_default();
                Row::read(row).map_err(|why| self.malformed(key, why))?
            }
            Err(error) => match self.refusal(error, key)? {
                // An earlier attempt of this resumption was applied; its answer was lost.
                Some(row) if row.is_owned_by(owner) && row.resumed.as_deref() == Some(nonce) => row,
                row => return Err(self.ticket_refused(step, row)),
            },
        };
        if row.is_released_by(owner) {
            return Err(self.ticket_fault(key, TicketFault::Released));
        }
        Ok(Resumed {
            fence: row.fence.unwrap_or(step.fence),
            end: row.end,
            acquired_at: row.acquired_at.unwrap_or_default(),
            hold_time: row.queue.hold_time,
            data: row.data,
            permit: None,
        })
    }

    /// Extends the lease if it ends earlier than this one, and leaves the ticket unused. Returns the end of the lease. One
    /// request. If the lease ends later already, the end stays, and another request leaves the number of the ticket, unless
    /// the row has it; up to six while others change the row.
    ///
    /// A duplicate that arrives late cannot shorten the lease, and neither can a late request of the process that made the
    /// ticket: the number of its last request is in the row now.
    pub(crate) async fn renew_ticket(&self, step: TicketStep<'_>, lease: Lease) -> Result<u64, Error> {
        let key = step.key;
        for _ in 0..TRIES {
            let request = self
                .update_if_unused(step, step.now.millis())
                .condition_expression(format!("{UNUSED} AND #lease_end < :lease_end"))
                .update_expression(RENEW)
                .name("#expiration", EXPIRATION)
                .values([(":lease_end", number(lease.end)), (":expiration", number(lease.expiration))]);
            let Err(error) = insist(request).await else { return Ok(lease.end) };
            let row = self.refusal(error, key)?;
            let Some(end) = row.as_ref().filter(|row| step.is_unused(row) && row.end >= lease.end).map(|row| row.end)
            else {
                return Err(self.ticket_refused(step, row));
            };
            // An earlier attempt of this renewal may have been applied.
            if row.is_some_and(|row| row.sequence == Some(step.sequence)) {
                return Ok(end);
            }
            let request = self
                .update_if_unused(step, step.now.millis())
                .condition_expression(format!("{UNUSED} AND #lease_end = :seen"))
                .update_expression("SET #sequence = :sequence")
                .value(":seen", number(end));
            match insist(request).await {
                Ok(_) => return Ok(end),
                // The row has changed meanwhile.
                Err(error) => self.refusal(error, key).map(drop)?,
            }
        }
        Err(Error::new(Cause::Conflict, &self.name, key))
    }

    /// Frees the key at `end` if the ticket was not used. One request. Succeeds if this owner has released the key before.
    pub(crate) async fn release_ticket(
        &self,
        step: TicketStep<'_>,
        end: Duration,
        retention: Duration,
    ) -> Result<(), Error> {
        let TicketStep { key, owner, now, .. } = step;
        let release = Step { key, owner, sequence: step.next_sequence(), now };
        let request = self.release_request(release, end, retention);
        let Err(error) = insist(request).await else { return Ok(()) };
        match self.refusal(error, key)? {
            Some(row) if row.is_released_by(owner) => Ok(()),
            row => Err(self.ticket_refused(step, row)),
        }
    }

    /// Uses up the ticket of a permit, as [`resume`](Self::resume) does that of a lock.
    pub(crate) async fn resume_permit(
        &self,
        step: TicketStep<'_>,
        nonce: &str,
        valid_from: u64,
    ) -> Result<Resumed, Error> {
        let TicketStep { key, owner, .. } = step;
        let request = self
            .update_if_unused_permit(step, valid_from)
            .update_expression("SET #permit.#sequence = :next, #permit.#resumed = :nonce")
            .return_values(ReturnValue::AllNew)
            .name("#resumed", permit::RESUMED)
            .values([(":next", number(step.next_sequence())), (":nonce", string(nonce))]);
        let row = match insist(request).await {
            Ok(output) => {
                let row = output.attributes.unwrap_or_default();
                Some(Row::read(row).map_err(|why| self.malformed(key, why))?)
            }
            Err(error) => self.refusal(error, key)?,
        };
        let (semaphore, data) = row.map_or((None, None), |row| (row.semaphore, row.data));
        // An earlier attempt of this resumption may have been applied; its answer was lost.
        let is_resumed = |permit: &&Permit| permit.resumed.as_deref() == Some(nonce) && !permit.released;
        match semaphore.as_ref().and_then(|semaphore| semaphore.permit(owner)).filter(is_resumed) {
            Some(permit) => Ok(Resumed {
                fence: permit.fence.unwrap_or(step.fence),
                end: permit.lease_end,
                acquired_at: permit.acquired_at.unwrap_or_default(),
                hold_time: None,
                data,
                permit: semaphore,
            }),
            None => Err(self.permit_ticket_refused(step, semaphore.as_ref())),
        }
    }

    /// Extends the lease of a permit, as [`renew_ticket`](Self::renew_ticket) does that of a lock.
    pub(crate) async fn renew_permit_ticket(&self, step: TicketStep<'_>, lease: Lease) -> Result<u64, Error> {
        let TicketStep { key, owner, fence, sequence, now, .. } = step;
        for _ in 0..TRIES {
            let request = self
                .update_if_unused_permit(step, now.millis())
                .condition_expression(format!("{UNUSED_PERMIT} AND #permit.#lease_end < :lease_end"))
                .update_expression(RENEW_PERMIT)
                .name("#expiration", EXPIRATION)
                .values([(":lease_end", number(lease.end)), (":expiration", number(lease.expiration))]);
            let Err(error) = insist(request).await else { return Ok(lease.end) };
            let semaphore = self.refusal(error, key)?.and_then(|row| row.semaphore);
            let permit = semaphore.as_ref().and_then(|semaphore| semaphore.permit(owner));
            let is_unused =
                |permit: &&Permit| permit.fence == Some(fence) && !permit.released && permit.sequence <= sequence;
            let Some(permit) = permit.filter(is_unused).filter(|permit| permit.lease_end >= lease.end) else {
                return Err(self.permit_ticket_refused(step, semaphore.as_ref()));
            };
            // An earlier attempt of this renewal may have been applied.
            if permit.sequence == sequence {
                return Ok(permit.lease_end);
            }
            let request = self
                .update_if_unused_permit(step, now.millis())
                .condition_expression(format!("{UNUSED_PERMIT} AND #permit.#lease_end = :seen"))
                .update_expression("SET #permit.#sequence = :sequence")
                .value(":seen", number(permit.lease_end));
            match insist(request).await {
                Ok(_) => return Ok(permit.lease_end),
                // The row has changed meanwhile.
                Err(error) => self.refusal(error, key).map(drop)?,
            }
        }
        Err(Error::new(Cause::Conflict, &self.name, key))
    }

    /// Frees a permit, as [`release_ticket`](Self::release_ticket) frees a lock. One request; about every 32nd release sends
    /// another one, which removes tombstones.
    pub(crate) async fn release_permit_ticket(
        &self,
        step: TicketStep<'_>,
        end: Duration,
        expiration: u64,
    ) -> Result<(), Error> {
        let TicketStep { key, owner, now, .. } = step;
        let release = Step { key, owner, sequence: step.next_sequence(), now };
        let request = self.permit_release(release, end, expiration, None, &[]).return_values(ReturnValue::AllNew);
        let attempts = SdkAttempts::default();
        let error = match insist_counted(request, attempts.clone()).await {
            Ok(output) => {
                // Only the release of a lock knows tombstones from its acquire.
                self.remove_tombstones(key, output.attributes.unwrap_or_default(), now).await;
                return Ok(());
            }
            Err(error) => error,
        };
        let semaphore = self.refusal(error, key)?.and_then(|row| row.semaphore);
        let is_gone = semaphore
            .as_ref()
            .is_some_and(|semaphore| semaphore.permit(owner).is_none() && semaphore.tombstone(owner).is_none());
        match self.permit_ticket_refused(step, semaphore.as_ref()) {
            error if error.kind() == ErrorKind::TicketReleased => Ok(()),
            // Nothing replaces a permit before its lease has ended. So an earlier attempt was applied, and its tombstone
            // removed.
            _ if is_gone && attempts.is_unanswered() && now.wall < step.expires_at => Ok(()),
            error => Err(error),
        }
    }

    /// Returns why this row refused a request of a permit's ticket.
    fn permit_ticket_refused(&self, step: TicketStep<'_>, semaphore: Option<&Semaphore>) -> Error {
        let TicketStep { key, owner, fence, sequence, expires_at, now } = step;
        let permit = semaphore.and_then(|semaphore| semaphore.permit(owner));
        let tombstone = semaphore.and_then(|semaphore| semaphore.tombstone(owner));
        let fault = match (permit, tombstone) {
            // The permit was replaced after its lease, and a late duplicate of its acquire has taken another one.
            (Some(permit), _) if permit.fence != Some(fence) && expires_at <= now.wall => TicketFault::Ended,
            (Some(permit), _) if permit.fence != Some(fence) => TicketFault::Unknown,
            (Some(permit), _) if permit.released => TicketFault::Released,
            (Some(permit), _) if permit.sequence > sequence => TicketFault::Used,
            (Some(_), _) => TicketFault::Ended,
            (None, Some(tombstone)) if tombstone.forced_by.is_some() => {
                return Error::new(Cause::Lost(Some(tombstone.clone().into_holder())), &self.name, key);
            }
            (None, Some(_)) => TicketFault::Released,
            // The permit was replaced after its lease.
            (None, None) if expires_at <= now.wall => TicketFault::Ended,
            (None, None) => TicketFault::Unknown,
        };
        self.ticket_fault(key, fault)
    }

    /// Returns why this row refused a request of the ticket.
    fn ticket_refused(&self, step: TicketStep<'_>, row: Option<Row>) -> Error {
        let TicketStep { key, owner, fence, sequence, expires_at, now } = step;
        let fault = match row {
            Some(row) if row.is_owned_by(owner) && row.fence != Some(fence) => TicketFault::Unknown,
            Some(row) if row.is_owned_by(owner) && row.is_released_by(owner) => TicketFault::Released,
            Some(row) if row.is_owned_by(owner) && row.sequence > Some(sequence) => TicketFault::Used,
            Some(row) if row.is_owned_by(owner) => TicketFault::Ended,
            // An operator who releases a key by force leaves its fence unchanged.
            Some(row) if row.fence > Some(fence) || (row.fence == Some(fence) && row.released == row.owner) => {
                return Error::new(Cause::Lost(Some(row.into_holder(now))), &self.name, key);
            }
            // TTL deletes the row some time after the lease.
            None if expires_at <= now.wall => TicketFault::Ended,
            _ => TicketFault::Unknown,
        };
        self.ticket_fault(key, fault)
    }

    fn ticket_fault(&self, key: &str, fault: TicketFault) -> Error {
        Error::new(Cause::Ticket(fault), &self.name, key)
    }
}

impl TicketStep<'_> {
    /// Returns `true` if the ticket can still be used, by the row that refused it.
    fn is_unused(&self, row: &Row) -> bool {
        row.is_owned_by(self.owner)
            && row.fence == Some(self.fence)
            && !row.is_released_by(self.owner)
            && row.sequence.is_some_and(|sequence| sequence <= self.sequence)
            && row.end > self.now.millis()
    }
}
