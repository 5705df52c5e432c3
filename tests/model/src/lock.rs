//! A lock or a record: one row. The client follows `lock/acquire.rs` and `lock/held.rs`, and for a record
//! `lock/complete.rs`.

use crate::row::{Conditions, Kind, Owner, Record, Request, Row};
use crate::world::{CLIENTS, Decision, Log, Protocol, SKEW, StateOf};
use crate::{Bounds, Breach, Event, Mutation};

/// How often a withdrawal looks again at a row that changed meanwhile (`TRIES`).
pub(crate) const TRIES: u8 = 3;

/// The time of a lease that an acquire asks for, in ticks.
pub(crate) const LEASE: u8 = 2;

#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) conditions: Conditions,
    pub(crate) bounds: Bounds,
}

/// The row, and what the proof remembers of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) struct Table {
    pub(crate) row: Option<Row>,
    pub(crate) past: Past,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) struct Past {
    /// The largest fence of an acquisition.
    pub(crate) fence: u16,
    /// The end that the owner of the row asked for.
    pub(crate) asked: u8,
    /// The owners whose release or completion was applied.
    pub(crate) released: u8,
    /// The last owner whose withdrawal was applied to the row of another.
    withdrawn: Owner,
    /// The owners whose withdrawal the row has forgotten, because it has one nonce of this kind.
    pub(crate) forgotten: u8,
    /// The owner of the last release.
    last_released: Owner,
    /// Until when the last outcome is kept.
    window_end: u8,
    /// Until when the business write is kept from running again.
    written_until: u8,
    /// Until when the unfinished run of the row is not repeated.
    unfinished_until: u8,
}

pub(crate) fn bit(owner: Owner) -> u8 {
    1 << owner
}

impl Past {
    /// The row was deleted, so a repeated release does not find it.
    pub(crate) fn forget_release(&mut self) {
        self.last_released = 0;
    }

    /// Sees a request that was applied.
    pub(crate) fn applied(
        &mut self,
        before: Option<&Row>,
        after: &Row,
        request: Request,
        log: &mut Log,
        record: Option<Record>,
    ) {
        let Request { kind, owner, sequence, asked, .. } = request;
        let furthest = log.true_time + SKEW;
        match kind {
            Kind::Acquire => {
                let fence = after.fence.unwrap_or_default();
                if fence <= self.fence {
                    log.broke(Breach::FenceStoodStill);
                }
                if self.released & bit(owner) != 0 || self.withdrawn == owner {
                    log.broke(Breach::TakenAfterItsEnd);
                }
                if self.window_end > furthest {
                    log.broke(Breach::RunAgain);
                }
                if self.unfinished_until > furthest {
                    log.broke(Breach::UnfinishedRunAgain);
                }
                if before.is_some_and(|row| !row.completed && row.owner != row.released) {
                    log.saw(Event::TakenOver);
                }
                self.unfinished_until =
                    record.and_then(|record| record.reject_unfinished).map_or(0, |window| request.now + window);
                self.fence = self.fence.max(fence);
                self.asked = asked;
            }
            Kind::Renew | Kind::Release | Kind::ReleaseToWithdraw | Kind::Complete | Kind::Transaction => {
                if before.is_some_and(|row| row.owner != owner) {
                    log.broke(Breach::ForeignRow);
                } else if before.is_some_and(|row| sequence > 0 && row.sequence >= Some(sequence)) {
                    log.broke(Breach::OutOfOrder);
                }
                if kind == Kind::Renew {
                    if self.released & bit(owner) != 0 {
                        log.broke(Breach::TakenAfterItsEnd);
                    }
                    self.asked = asked;
                    return;
                }
                if before.is_some_and(|row| row.completed) {
                    log.broke(Breach::OutcomeChanged);
                }
                self.released |= bit(owner);
                self.last_released = owner;
                self.unfinished_until = 0;
                if kind == Kind::Transaction && self.written_until > furthest {
                    log.broke(Breach::WrittenTwice);
                }
                if matches!(kind, Kind::Complete | Kind::Transaction) {
                    self.window_end = asked;
                    log.saw(Event::Completed);
                }
                if kind == Kind::Transaction {
                    self.written_until = asked;
                }
            }
            Kind::WithdrawNew => self.released |= bit(owner),
            // The TTL of this row is the end of a window. The withdrawal leaves it, so TTL can delete the row before the
            // attempt arrives.
            Kind::Withdraw if before.is_some_and(|row| row.expiration < request.expiration) => {
                self.forgotten |= bit(self.withdrawn) | bit(owner);
                self.withdrawn = 0;
            }
            Kind::WithdrawLonger | Kind::Withdraw => {
                if self.withdrawn != owner {
                    self.forgotten |= bit(self.withdrawn);
                }
                self.withdrawn = owner;
                log.saw(Event::Withdrawn);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) enum Answer {
    /// The row before the update.
    Applied,
    Refused(Option<Row>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// The number of attempts to acquire.
    pub(crate) attempts: u8,
    /// One more than the times of the attempts whose leases have not ended.
    sent: [u8; 2],
    /// An attempt was not answered: it may still take the key.
    pub(crate) doubtful: bool,
    pub(crate) deadline: u8,
    acquired_at: u8,
    expiration: u8,
    sequence: u8,
    tries: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) enum Phase {
    /// Between attempts.
    #[default]
    Asking,
    Held,
    /// A release was started.
    Releasing,
    /// A completion was started.
    Completing,
    Withdrawing,
    Ended(End),
}

/// How a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) enum End {
    /// It crashed, or its last request was not answered.
    Unknown,
    /// It does not have the key, and none of its attempts can take it.
    WithoutKey,
    /// It was told that its release or completion was applied.
    Released,
    /// It was told that it has lost the key.
    Lost,
}

impl Lock {
    fn request(&self, kind: Kind, id: usize, client: &Client, now: u8) -> Request {
        Request {
            kind,
            owner: owner(id),
            sequence: client.sequence,
            now,
            lease_end: now,
            expiration: now + self.conditions.retention,
            asked: now,
        }
    }

    fn acquire(&self, id: usize, client: &Client, now: u8) -> Request {
        // `Lease::new`
        let asked = now + LEASE + SKEW;
        let mut lease_end = asked;
        if self.conditions.is(Mutation::NoSkew) {
            lease_end -= SKEW;
        }
        if self.conditions.is(Mutation::LeaseTooLong) {
            lease_end += 2;
        }
        let mut expiration = asked + self.conditions.retention;
        if let Some(window) = self.conditions.record.and_then(|record| record.reject_unfinished) {
            // `Lease::kept_until`
            expiration = expiration.max(now + window);
        }
        if self.conditions.is(Mutation::TtlTooEarly) {
            expiration = now;
        }
        Request { lease_end, expiration, asked, ..self.request(Kind::Acquire, id, client, now) }
    }

    /// `Acquire::give_up`: withdraws if an attempt may still take the key.
    fn stop_asking(&self, id: usize, now: u8) -> (Client, Request) {
        let withdrawing = Client { phase: Phase::Withdrawing, sequence: 1, tries: TRIES, ..Client::default() };
        (withdrawing, self.request(Kind::ReleaseToWithdraw, id, &withdrawing, now))
    }

    /// The key was granted by the attempt of this time. A grant whose lease has ended, or is not known, is given back
    /// (`AcquireAttempts::begin_anew`).
    fn granted(
        &self,
        id: usize,
        client: &mut Client,
        sent: Option<u8>,
        expiration: u8,
        clock: u8,
        log: &mut Log,
    ) -> Option<Request> {
        if let Some(now) = sent.filter(|now| now + LEASE > clock) {
            log.saw(Event::Acquired);
            *client =
                Client { phase: Phase::Held, deadline: now + LEASE, acquired_at: now, expiration, ..Client::default() };
            return None;
        }
        log.saw(Event::GrantedTooLate);
        let (withdrawing, request) = self.stop_asking(id, clock);
        *client = withdrawing;
        Some(request)
    }

    /// `Lock::release`
    fn release(&self, id: usize, client: &Client, now: u8) -> (Client, Request) {
        let client = Client {
            phase: Phase::Releasing,
            sequence: client.sequence + 1,
            acquired_at: client.acquired_at,
            ..Client::default()
        };
        // `Lock::release_at`
        let end = now.max(client.acquired_at);
        let request = Request {
            lease_end: end,
            expiration: end + self.conditions.retention,
            ..self.request(Kind::Release, id, &client, now)
        };
        (client, request)
    }
}

/// Every client makes one acquisition.
pub(crate) fn owner(id: usize) -> Owner {
    u8::try_from(id).unwrap_or(u8::MAX) + 1
}

impl Client {
    fn ended(end: End) -> Self {
        Self { phase: Phase::Ended(end), ..Self::default() }
    }
}

impl Protocol for Lock {
    type Table = Table;
    type Request = Request;
    type Answer = Answer;
    type Client = Client;

    fn decisions(&self, id: usize, client: &Client, now: u8, decisions: &mut Vec<Decision<Self>>) {
        let mut decide = |client, request| decisions.push(Decision { client, request, is_renewal: false });
        match client.phase {
            Phase::Asking => {
                if client.attempts < self.bounds.attempts {
                    let mut asking = Client { attempts: client.attempts + 1, ..*client };
                    // `AcquireAttempts::next`
                    let mut sent = client.sent.into_iter().filter(|sent| sent + LEASE > now + 1 && *sent > 0);
                    asking.sent = [sent.next().unwrap_or(0), now + 1];
                    decide(asking, Some(self.acquire(id, client, now)));
                }
                // Without a doubtful attempt, to stop is to do nothing.
                if client.doubtful {
                    let (client, request) = self.stop_asking(id, now);
                    decide(client, Some(request));
                }
            }
            Phase::Held => {
                let (releasing, request) = self.release(id, client, now);
                decide(releasing, Some(request));
                if let Some(record) = self.conditions.record {
                    let completing = Client { phase: Phase::Completing, ..*client };
                    let request = Request {
                        expiration: now + record.window,
                        asked: now + record.window,
                        sequence: 0,
                        ..self.request(Kind::Complete, id, client, now)
                    };
                    decide(completing, Some(request));
                    let request = Request { kind: Kind::Transaction, ..request };
                    decide(*client, Some(request));
                    // `Lock::abandon`
                    decide(Client::ended(End::Unknown), None);
                }
                if client.deadline > now {
                    for lease in [1, LEASE] {
                        // `Lock::renew`
                        let deadline = now + lease;
                        let renewing = Client {
                            sequence: client.sequence + 1,
                            deadline: client.deadline.min(deadline),
                            ..*client
                        };
                        let request = Request {
                            lease_end: deadline + SKEW,
                            asked: deadline + SKEW,
                            expiration: client.expiration.max(deadline + SKEW + self.conditions.retention),
                            ..self.request(Kind::Renew, id, &renewing, now)
                        };
                        decisions.push(Decision { client: renewing, request: Some(request), is_renewal: true });
                    }
                }
            }
            Phase::Releasing if client.sequence <= self.bounds.renewals + 1 => {
                let (releasing, request) = self.release(id, client, now);
                decide(releasing, Some(request));
            }
            Phase::Releasing | Phase::Completing | Phase::Withdrawing | Phase::Ended(_) => {}
        }
    }

    fn apply(&self, table: &mut Table, request: &Request, log: &mut Log) -> Answer {
        let (conditions, request, before) = (self.conditions, *request, table.row);
        let after = match request.kind {
            Kind::Acquire => {
                conditions.free(before.as_ref(), request).then(|| conditions.take(before.as_ref(), request, None))
            }
            Kind::Renew => before.and_then(|row| conditions.renew(&row, request)),
            Kind::Release | Kind::ReleaseToWithdraw => before.and_then(|row| conditions.release(&row, request)),
            Kind::WithdrawNew | Kind::WithdrawLonger | Kind::Withdraw => Conditions::withdraw(before.as_ref(), request),
            Kind::Complete | Kind::Transaction => before.and_then(|row| conditions.complete(&row, request)),
        };
        let Some(after) = after else { return Answer::Refused(before) };
        table.row = Some(after);
        table.past.applied(before.as_ref(), &after, request, log, conditions.record);
        Answer::Applied
    }

    fn answered(
        &self,
        id: usize,
        client: &mut Client,
        request: &Request,
        answer: &Answer,
        clock: u8,
        log: &mut Log,
    ) -> Option<Request> {
        let is_own = |row: &Row| row.owner == request.owner;
        let is_released = |row: &Row| row.released == request.owner;
        match (request.kind, answer) {
            (Kind::Acquire, Answer::Applied) => {
                self.granted(id, client, Some(request.now), request.expiration, clock, log)
            }
            (Kind::Acquire, Answer::Refused(Some(row)))
                if is_own(row) && !self.conditions.is(Mutation::ForeignNonce) =>
            {
                log.saw(Event::OwnRowRecognised);
                let ours = client.sent.into_iter().filter(|sent| *sent > 0).map(|sent| sent - 1);
                let now = ours.into_iter().find(|now| now + LEASE + SKEW == row.lease_end);
                self.granted(id, client, now, row.expiration, clock, log)
            }
            (Kind::Acquire, Answer::Refused(row)) => {
                log.saw(Event::Refused);
                if row.as_ref().is_some_and(is_own) {
                    log.broke(Breach::RefusedByItself);
                }
                let is_final = row.is_some_and(|row| {
                    let replays = row.completed
                        || (self.conditions.is(Mutation::ReplayInProgress) && self.conditions.record.is_some());
                    if replays && !row.completed {
                        log.broke(Breach::ReplayedUnfinished);
                    }
                    if replays {
                        log.saw(Event::Replayed);
                    }
                    // `RecordClaim::refusal`, for which the lease was current or over when the attempt was sent
                    replays || row.lease_end <= request.now
                });
                if is_final && self.conditions.record.is_some() {
                    client.attempts = self.bounds.attempts;
                } else if !client.doubtful {
                    // The client knows no more than before.
                    *client = Client::default();
                }
                None
            }
            (Kind::Renew, Answer::Applied) => {
                client.deadline = request.asked - SKEW;
                client.expiration = request.expiration;
                log.saw(Event::Renewed);
                None
            }
            (Kind::Renew, Answer::Refused(row)) => {
                let recognised =
                    row.filter(|row| is_own(row) && !is_released(row) && row.sequence == Some(request.sequence));
                if recognised.is_some() {
                    client.deadline = request.asked - SKEW;
                    client.expiration = request.expiration;
                } else {
                    log.saw(Event::Lost);
                    *client = Client::ended(End::Lost);
                }
                None
            }
            (Kind::Release | Kind::Complete | Kind::Transaction, Answer::Applied) => {
                log.saw(Event::Released);
                *client = Client::ended(End::Released);
                None
            }
            (Kind::Release, Answer::Refused(row)) => {
                let done =
                    row.as_ref().is_some_and(is_released) || self.conditions.is(Mutation::RefusedReleaseSucceeds);
                *client = Client::ended(if done { End::Released } else { End::Lost });
                None
            }
            (Kind::Complete, Answer::Refused(row)) => {
                let done = row.is_some_and(|row| row.completed && is_own(&row) && is_released(&row));
                *client = Client::ended(if done { End::Released } else { End::Lost });
                None
            }
            // The handler fails, and its record is released.
            (Kind::Transaction, Answer::Refused(_)) => {
                client.phase = Phase::Releasing;
                None
            }
            (Kind::ReleaseToWithdraw, Answer::Refused(row)) if !row.as_ref().is_some_and(is_own) => {
                let request = self.request(Kind::ReleaseToWithdraw, id, client, clock);
                Some(self.conditions.withdrawal(row.as_ref(), request))
            }
            (Kind::WithdrawNew | Kind::WithdrawLonger | Kind::Withdraw, Answer::Refused(_)) if client.tries > 1 => {
                client.tries -= 1;
                Some(self.request(Kind::ReleaseToWithdraw, id, client, clock))
            }
            (Kind::WithdrawNew | Kind::WithdrawLonger | Kind::Withdraw, Answer::Refused(_)) => {
                *client = Client::ended(End::Unknown);
                None
            }
            (Kind::ReleaseToWithdraw | Kind::WithdrawNew | Kind::WithdrawLonger | Kind::Withdraw, _) => {
                *client = Client::ended(End::WithoutKey);
                None
            }
        }
    }

    fn unanswered(&self, client: &mut Client, request: &Request) {
        match request.kind {
            Kind::Acquire => client.doubtful = true,
            Kind::Renew | Kind::Release => {}
            // The handler fails, and its record is released.
            Kind::Transaction => client.phase = Phase::Releasing,
            _ => *client = Client::ended(End::Unknown),
        }
    }

    fn sent_again(&self, client: &mut Client, request: &Request) {
        // `SdkAttempts::is_unanswered`
        client.doubtful |= request.kind == Kind::Acquire;
    }

    fn expired(&self, table: &Table, now: u8) -> Vec<usize> {
        table.row.filter(|row| row.expiration <= now).map(|_| 0).into_iter().collect()
    }

    fn delete(&self, table: &mut Table, _: usize) {
        table.row = None;
        table.past.forget_release();
    }

    fn inspect(&self, state: &StateOf<Self>, log: &mut Log) {
        let is_valid = |id: usize| {
            let client = &state.clients[id];
            client.phase == Phase::Held && client.deadline > state.clock(id)
        };
        if (0..CLIENTS).filter(|id| is_valid(*id)).count() > 1 {
            log.broke(Breach::Exclusion);
        }
        let Table { row, past } = &state.table;
        for (id, client) in state.clients.iter().enumerate() {
            let end = match client.phase {
                Phase::Asking if !client.doubtful => End::WithoutKey,
                Phase::Ended(end) => end,
                _ => continue,
            };
            let owner = owner(id);
            match end {
                End::Released if past.released & bit(owner) == 0 => log.broke(Breach::ReleaseNotDone),
                End::Lost if past.last_released == owner => log.broke(Breach::ReleaseNotRecognised),
                _ => {}
            }
            let is_own = row.is_some_and(|row| row.owner == owner && row.is_in_progress_at(state.time + SKEW));
            if is_own && !state.is_waiting(id) && end != End::Unknown && past.forgotten & bit(owner) == 0 {
                log.broke(Breach::HeldByNobody);
            }
        }
        if row.is_some_and(|row| row.is_in_progress_at(state.time + SKEW) && row.lease_end > past.asked) {
            log.broke(Breach::HeldByNobody);
        }
    }
}
