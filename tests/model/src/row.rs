//! The row of a lock or a record, with the conditions and updates of its requests. The attributes have the names of the
//! product (`lock/src/row/names.rs`; `lease_end` is `LEASE_END`), and each function has the name of the constant or the
//! function that it models. A missing attribute is `None` or, for an owner, 0. All times are in ticks.

use crate::Mutation;

/// The fences that fit into a tick: a new row starts at its clock in this unit, as the product does in microseconds.
pub(crate) const FENCES_IN_A_TICK: u16 = 32;

/// A clock in the unit of fences. A clock is larger than 0, the fence of no row.
pub(crate) fn clock_as_fence(now: u8) -> u16 {
    u16::from(now) * FENCES_IN_A_TICK + 1
}

/// The nonce of a client's acquisition, from 1. 0 is none.
pub(crate) type Owner = u8;

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct Row {
    /// `#status = :completed`; otherwise `#status = :in_progress`.
    pub(crate) completed: bool,
    pub(crate) owner: Owner,
    pub(crate) released: Owner,
    pub(crate) withdrawn: Owner,
    pub(crate) sequence: Option<u8>,
    pub(crate) acquired_at: Option<u8>,
    pub(crate) lease_end: u8,
    pub(crate) expiration: u8,
    pub(crate) fence: Option<u16>,
}

/// A request with its values: `:owner`, `:sequence`, `:now`, `:lease_end`, `:expiration`.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    pub(crate) sequence: u8,
    pub(crate) now: u8,
    pub(crate) lease_end: u8,
    pub(crate) expiration: u8,
    /// The end of the lease that the client expects in the row. A mutation can write another one.
    pub(crate) asked: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) enum Kind {
    Acquire,
    Renew,
    Release,
    /// The release that begins a withdrawal.
    ReleaseToWithdraw,
    /// The rest of a withdrawal, by the row that the release showed.
    WithdrawNew,
    WithdrawLonger,
    Withdraw,
    Complete,
    /// The caller's transaction of a completion and a business write.
    Transaction,
}

/// The claim to a record (`RecordClaim`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Record {
    /// For how long an outcome is kept.
    pub(crate) window: u8,
    /// For how long after its start an unfinished run is refused (`reject_unfinished`).
    pub(crate) reject_unfinished: Option<u8>,
}

/// The requests with a deliberate mistake, or without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) record: Option<Record>,
    /// How long a row stays after its lease.
    pub(crate) retention: u8,
    pub(crate) mutation: Option<Mutation>,
}

impl Conditions {
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// `FREE`, and for a record that rejects unfinished runs `FREE_UNLESS_UNFINISHED`.
    pub(crate) fn free(self, row: Option<&Row>, Request { owner, now, .. }: Request) -> bool {
        let Some(row) = row else { return true };
        let over = row.lease_end <= now || self.is(Mutation::AcquireIgnoresEnd);
        let over = match self.record.and_then(|record| record.reject_unfinished) {
            Some(window) if !self.is(Mutation::UnfinishedReleased) => {
                let started = row.acquired_at.is_some_and(|acquired_at| acquired_at + window <= now);
                over && (row.released == row.owner || started || (row.acquired_at.is_none() && row.expiration <= now))
            }
            _ => over,
        };
        let window_over = row.expiration <= now || self.is(Mutation::AcquireIgnoresWindow);
        row.owner != owner
            && row.released != owner
            && (row.withdrawn != owner || self.is(Mutation::WithdrawalIgnored))
            && ((row.completed && window_over) || (!row.completed && over))
    }

    /// `TAKE`. The attributes that it does not name stay. `proposed` is the fence of an acquire of several keys.
    pub(crate) fn take(self, row: Option<&Row>, request: Request, proposed: Option<u16>) -> Row {
        let now_micros = if self.is(Mutation::FenceRestarts) { 0 } else { clock_as_fence(request.now) };
        let one = u16::from(!self.is(Mutation::FenceStandsStill));
        let fence = row.and_then(|row| row.fence).unwrap_or(now_micros) + one;
        Row {
            completed: false,
            owner: request.owner,
            released: row.map_or(0, |row| row.released),
            withdrawn: row.map_or(0, |row| row.withdrawn),
            sequence: Some(0),
            acquired_at: Some(request.now),
            lease_end: request.lease_end,
            expiration: request.expiration,
            fence: Some(proposed.unwrap_or(fence)),
        }
    }

    /// The update of `Table::renew`, if its condition holds.
    pub(crate) fn renew(self, row: &Row, request: Request) -> Option<Row> {
        let Request { owner, sequence, now, lease_end, expiration, .. } = request;
        let in_order = row.sequence.is_some_and(|last| last < sequence) || self.is(Mutation::LateRenewal);
        let own = row.owner == owner || self.is(Mutation::RenewWithoutOwner);
        let condition = own && row.released != owner && in_order && row.lease_end > now;
        (condition || self.is(Mutation::RenewUnconditional)).then_some(Row {
            lease_end,
            expiration,
            sequence: Some(sequence),
            ..*row
        })
    }

    /// The update of `Table::release_request` (`RELEASE`), if its condition holds.
    pub(crate) fn release(self, row: &Row, request: Request) -> Option<Row> {
        let Request { owner, sequence, lease_end, expiration, .. } = request;
        let own = row.owner == owner || self.is(Mutation::ReleaseWithoutOwner);
        let open = !row.completed || self.is(Mutation::ReleaseWithoutStatus);
        let in_order = row.sequence.is_some_and(|last| last < sequence)
            || self.is(Mutation::LateRelease)
            || self.is(Mutation::ReleaseWithoutOwner)
            || self.is(Mutation::ReleaseWithoutStatus);
        let after = Row { released: owner, sequence: Some(sequence), lease_end, expiration, ..*row };
        let after = if self.is(Mutation::ReleaseForgets) { Row { owner: 0, lease_end: 0, ..after } } else { after };
        (own && open && in_order).then_some(after)
    }

    /// The update of `Table::withdrawal`, if its condition holds.
    pub(crate) fn withdraw(row: Option<&Row>, request: Request) -> Option<Row> {
        let Request { kind, owner, now, expiration, .. } = request;
        match (kind, row) {
            (Kind::WithdrawNew, None) => Some(Row {
                completed: false,
                owner,
                released: owner,
                withdrawn: 0,
                sequence: None,
                acquired_at: Some(now),
                lease_end: now,
                expiration,
                fence: None,
            }),
            (Kind::WithdrawLonger, Some(row)) => {
                (row.owner != owner && !row.completed && row.acquired_at.is_some() && row.expiration < expiration)
                    .then_some(Row { withdrawn: owner, expiration, ..*row })
            }
            (Kind::Withdraw, Some(row)) => (row.owner != owner).then_some(Row { withdrawn: owner, ..*row }),
            _ => None,
        }
    }

    /// The second request of `Table::withdraw`, by the row that the first one showed.
    pub(crate) fn withdrawal(self, row: Option<&Row>, first: Request) -> Request {
        let expiration = first.now + self.retention;
        let kind = match row {
            None => Kind::WithdrawNew,
            Some(row) if row.is_deleted_before(expiration) => Kind::WithdrawLonger,
            Some(_) => Kind::Withdraw,
        };
        Request { kind, expiration, ..first }
    }

    /// The update of `Completion`, if `Completion::CONDITION` holds.
    pub(crate) fn complete(self, row: &Row, request: Request) -> Option<Row> {
        let is_transaction = request.kind == Kind::Transaction;
        let unconditional = is_transaction && self.is(Mutation::TransactionUnconditional);
        let own = row.owner == request.owner || unconditional || self.is(Mutation::CompleteWithoutOwner);
        let open = !row.completed || unconditional;
        let expiration = request.expiration - if self.is(Mutation::WindowCutShort) { 2 } else { 0 };
        if is_transaction && self.is(Mutation::TransactionWithoutCompletion) {
            return Some(*row);
        }
        (own && open).then_some(Row { completed: true, released: request.owner, expiration, ..*row })
    }
}

impl Row {
    /// `Row::is_deleted_before`
    fn is_deleted_before(&self, expiration: u8) -> bool {
        !self.completed && self.acquired_at.is_some() && self.expiration < expiration
    }

    /// Whether the row refuses an acquire by its lease at this time.
    pub(crate) fn is_in_progress_at(&self, now: u8) -> bool {
        !self.completed && self.lease_end > now
    }
}
