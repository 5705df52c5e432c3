//! Several keys, all or none: one row for each key. The client follows `row/keys.rs`. Two clients take both keys. The
//! third one takes the second key as an ordinary lock.
//!
//! DynamoDB recognises a repeated transaction by its token. The model does without: the rows alone have to refuse a
//! duplicate.
//!
//! In turn, a set reserves its keys (`row/reserve.rs`), and leaves keys that another set has reserved. The third client may
//! leave them as well, or not. The model keeps the reservations beside the rows, which they do not change.

use crate::lock::{End, LEASE, Past, Phase, TRIES, bit, owner};
use crate::row::{Conditions, Kind, Owner, Request as Update, Row, clock_as_fence};
use crate::world::{CLIENTS, Decision, Log, Protocol, SKEW, StateOf};
use crate::{Bounds, Breach, Event, Mutation};

const KEYS: usize = 2;

/// The client that takes only the last key.
const PLAIN: usize = CLIENTS - 1;

/// How often one attempt proposes fences (`ADAPTATIONS` in `row/acquire.rs`).
const PROPOSALS: u8 = 4;

/// How long a reservation lasts (`Reservation::LONGEST`).
const RESERVATION: u8 = 2;

#[derive(Debug)]
pub(crate) struct Several {
    pub(crate) conditions: Conditions,
    pub(crate) bounds: Bounds,
    pub(crate) in_turn: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) struct Table {
    pub(crate) rows: [Option<Row>; KEYS],
    reserved: [Option<Reservation>; KEYS],
    pasts: [Past; KEYS],
}

/// `reserved_by` and `reserved_until`, and when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
struct Reservation {
    by: Owner,
    until: u8,
    sent: u8,
}

/// What an update has to do with reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
enum Turn {
    #[default]
    Nothing,
    /// An acquire that leaves a reserved key to its waiter (`LeavesTo::Reservation`).
    Leaves,
    /// `Table::reserve`, instead of the update.
    Reserves,
}

/// Whether a client may reserve its keys: once, after a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
enum MayReserve {
    #[default]
    NotYet,
    Now,
    NoMore,
}

/// The same update of several rows.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct Request {
    pub(crate) update: Update,
    keys: Keys,
    /// The proposed fence of each key. An ordinary lock has none.
    fences: Option<[u16; KEYS]>,
    proposals: u8,
    turn: Turn,
}

type Keys = [bool; KEYS];

/// `Ok`, or for each key of the request: whether its condition failed, and its row.
type Answer = Result<(), [Option<(bool, Option<Row>)>; KEYS]>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    pub(crate) attempts: u8,
    /// One more than the times of the attempts whose leases have not ended.
    sent: [u8; 2],
    /// An attempt was not answered: it may still take the keys.
    pub(crate) doubtful: bool,
    pub(crate) deadline: u8,
    acquired_at: u8,
    sequence: u8,
    tries: u8,
    may_reserve: MayReserve,
    /// A key of the release in progress was lost.
    partly: bool,
    /// The first key that a withdrawal did not hold, with its row, while it releases the other.
    not_held: Option<(usize, Option<Row>)>,
}

fn keys(id: usize) -> Keys {
    if id == PLAIN { [false, true] } else { [true; KEYS] }
}

fn ended(end: End) -> Client {
    Client { phase: Phase::Ended(end), ..Client::default() }
}

impl Several {
    fn request(&self, kind: Kind, id: usize, client: &Client, now: u8) -> Request {
        let expiration = now + self.conditions.retention;
        let update =
            Update { kind, owner: owner(id), sequence: client.sequence, now, lease_end: now, expiration, asked: now };
        Request { update, keys: keys(id), fences: None, proposals: 0, turn: Turn::Nothing }
    }

    /// `is_reserved` in `row/key.rs`: whether another has reserved a key. An end that is too far ahead does not count.
    fn is_reserved(&self, reserved: Option<Reservation>, Update { owner, now, .. }: Update) -> bool {
        let is_endless = self.conditions.is(Mutation::ReservationWithoutEnd);
        reserved.is_some_and(|Reservation { by, until, .. }| {
            by != owner && (is_endless || (until > now && until <= now + RESERVATION + SKEW))
        })
    }

    /// `Table::reserve`: all keys, or none.
    fn reserve(&self, table: &mut Table, request: &Request, log: &mut Log) -> bool {
        let Update { owner, now, .. } = request.update;
        let may_be_reserved = |key: usize| {
            table.rows[key].is_some_and(|row| !row.completed) && !self.is_reserved(table.reserved[key], request.update)
        };
        let mut willing: Keys = std::array::from_fn(may_be_reserved);
        if willing.contains(&false) && !self.conditions.is(Mutation::HalfReserved) {
            willing = [false; KEYS];
        }
        for key in (0..KEYS).filter(|key| willing[*key]) {
            log.saw(Event::Reserved);
            table.reserved[key] = Some(Reservation { by: owner, until: now + RESERVATION, sent: now });
        }
        willing.contains(&true)
    }

    /// `Table::acquire_all`, with the fences that were `seen`.
    fn acquire(&self, id: usize, client: &Client, now: u8, seen: [u16; KEYS], proposals: u8) -> Request {
        let asked = now + LEASE + SKEW;
        let lease_end = if self.conditions.is(Mutation::NoSkew) { asked - SKEW } else { asked };
        let clock = clock_as_fence(now);
        let propose = |seen: u16| if self.conditions.is(Mutation::FenceRepeats) { 17 } else { clock.max(seen + 1) };
        let request = self.request(Kind::Acquire, id, client, now);
        let expiration = asked + self.conditions.retention;
        let update = Update { lease_end, expiration, asked, ..request.update };
        Request { update, fences: (id != PLAIN).then(|| seen.map(propose)), proposals, ..request }
    }

    /// The update of one row, if its condition holds.
    fn updated(&self, table: &Table, request: &Request, key: usize, log: &mut Log) -> Option<Row> {
        let (conditions, update, before) = (self.conditions, request.update, table.rows[key].as_ref());
        match update.kind {
            Kind::Acquire => {
                let fence = request.fences.map(|fences| fences[key]);
                // `attribute_not_exists(#fence) OR #fence < :fence`
                let grows = fence.is_none()
                    || before.and_then(|row| row.fence) < fence
                    || conditions.is(Mutation::FenceRepeats);
                let is_last = key + 1 == KEYS && fence.is_some();
                let reserved = table.reserved[key];
                let is_entitled = conditions.is(Mutation::ReservationEntitles)
                    && reserved.is_some_and(|reserved| reserved.by == update.owner);
                let conditions = if is_last && conditions.is(Mutation::LastLeaseIgnored) || is_entitled {
                    Conditions { mutation: Some(Mutation::AcquireIgnoresEnd), ..conditions }
                } else {
                    conditions
                };
                let is_free = conditions.free(before, update) && grows;
                if is_free && request.turn == Turn::Leaves && self.is_reserved(reserved, update) {
                    log.saw(Event::Left);
                    if reserved.is_some_and(|reserved| reserved.sent + RESERVATION <= update.now) {
                        log.broke(Breach::FreeButRefused);
                    }
                    return None;
                }
                is_free.then(|| conditions.take(before, update, fence))
            }
            Kind::Renew => before.and_then(|row| conditions.renew(row, update)),
            Kind::Release | Kind::ReleaseToWithdraw => before.and_then(|row| conditions.release(row, update)),
            _ => Conditions::withdraw(before, update),
        }
    }

    fn release(&self, id: usize, client: &Client, now: u8) -> (Client, Request) {
        let client = Client {
            phase: Phase::Releasing,
            sequence: client.sequence + 1,
            acquired_at: client.acquired_at,
            ..Client::default()
        };
        let end = now.max(client.acquired_at);
        let request = self.request(Kind::Release, id, &client, now);
        let update = Update { lease_end: end, expiration: end + self.conditions.retention, ..request.update };
        (client, Request { update, ..request })
    }

    fn withdraw(&self, id: usize, now: u8, tries: u8) -> (Client, Request) {
        let client = Client { phase: Phase::Withdrawing, sequence: 1, tries, ..Client::default() };
        (client, self.request(Kind::ReleaseToWithdraw, id, &client, now))
    }

    fn granted(&self, id: usize, client: &mut Client, sent: Option<u8>, clock: u8, log: &mut Log) -> Option<Request> {
        if let Some(now) = sent.filter(|now| now + LEASE > clock) {
            log.saw(Event::Acquired);
            *client = Client { phase: Phase::Held, deadline: now + LEASE, acquired_at: now, ..Client::default() };
            return None;
        }
        log.saw(Event::GrantedTooLate);
        let (withdrawing, request) = self.withdraw(id, clock, TRIES);
        *client = withdrawing;
        Some(request)
    }

    /// `Table::refused_all`
    fn refused(
        &self,
        id: usize,
        client: &mut Client,
        request: &Request,
        refused: &[(usize, Option<Row>)],
        clock: u8,
        log: &mut Log,
    ) -> Option<Request> {
        let Request { update, fences, proposals, keys, .. } = *request;
        let own: Vec<_> = refused.iter().filter_map(|(_, row)| *row).filter(|row| row.owner == update.owner).collect();
        if let (Some(first), false) = (own.first(), self.conditions.is(Mutation::ForeignNonce)) {
            log.saw(Event::OwnRowRecognised);
            let is_complete = own.len() == keys.into_iter().filter(|key| *key).count()
                && own.iter().all(|row| row.lease_end == first.lease_end);
            let mut sent = client.sent.into_iter().filter(|sent| *sent > 0).map(|sent| sent - 1);
            let sent = sent.find(|now| is_complete && now + LEASE + SKEW == first.lease_end);
            return self.granted(id, client, sent, clock, log);
        }
        if !own.is_empty() {
            log.broke(Breach::RefusedByItself);
        }
        let is_behind = |(key, row): &(usize, Option<Row>)| {
            let fence = fences.map(|fences| fences[*key]);
            row.is_some_and(|row| row.lease_end <= update.now && fence.is_some() && row.fence >= fence)
        };
        if refused.iter().all(is_behind) && proposals + 1 < PROPOSALS {
            let mut seen = [0; KEYS];
            for (key, row) in refused {
                seen[*key] = row.and_then(|row| row.fence).unwrap_or_default();
            }
            return Some(Request { turn: request.turn, ..self.acquire(id, client, update.now, seen, proposals + 1) });
        }
        log.saw(Event::Refused);
        if !client.doubtful {
            let may_reserve =
                if client.may_reserve == MayReserve::NotYet { MayReserve::Now } else { client.may_reserve };
            *client = Client { may_reserve, ..Client::default() };
        }
        None
    }

    /// `Table::release_held`: releases the keys that were not lost. Returns the lost keys at the end.
    fn refused_release(
        client: &mut Client,
        request: &Request,
        answer: &Answer,
    ) -> Result<[Option<Lost>; KEYS], Request> {
        let mut lost = [None; KEYS];
        let mut willing = [false; KEYS];
        for key in 0..KEYS {
            let Err(refusals) = answer else { break };
            match refusals[key] {
                // A withdrawal asks only whose row it is.
                Some((true, row))
                    if request.update.kind == Kind::ReleaseToWithdraw
                        || row.is_none_or(|row| row.released != request.update.owner) =>
                {
                    lost[key] = Some(Lost { row });
                }
                Some((false, _)) => willing[key] = true,
                _ => {}
            }
        }
        if willing.contains(&true) {
            // A key that shows the release of this owner is not lost.
            let not_held = lost.iter().position(Option::is_some);
            if request.update.kind == Kind::ReleaseToWithdraw {
                client.not_held = not_held.map(|key| (key, lost[key].and_then(|lost| lost.row)));
            } else {
                client.partly |= not_held.is_some();
            }
            return Err(Request { keys: willing, ..*request });
        }
        Ok(lost)
    }
}

/// A key that was lost, with its row.
#[derive(Clone, Copy)]
struct Lost {
    row: Option<Row>,
}

impl Protocol for Several {
    type Table = Table;
    type Request = Request;
    type Answer = Answer;
    type Client = Client;

    fn role(&self, client: usize) -> u8 {
        u8::from(client == PLAIN)
    }

    fn decisions(&self, id: usize, client: &Client, now: u8, decisions: &mut Vec<Decision<Self>>) {
        let mut decide = |(client, request), is_renewal| {
            decisions.push(Decision { client, request: Some(request), is_renewal });
        };
        match client.phase {
            Phase::Asking => {
                if client.attempts < self.bounds.attempts {
                    let mut sent = client.sent.into_iter().filter(|sent| sent + LEASE > now + 1 && *sent > 0);
                    let sent = [sent.next().unwrap_or(0), now + 1];
                    let asking = Client { attempts: client.attempts + 1, sent, ..*client };
                    let request = self.acquire(id, client, now, [0; KEYS], 0);
                    if self.in_turn {
                        decide((asking, Request { turn: Turn::Leaves, ..request }), false);
                    }
                    if !self.in_turn || id == PLAIN {
                        decide((asking, request), false);
                    }
                }
                if self.in_turn && id != PLAIN && client.may_reserve == MayReserve::Now {
                    let request = self.request(Kind::Acquire, id, client, now);
                    let client = Client { may_reserve: MayReserve::NoMore, ..*client };
                    decide((client, Request { turn: Turn::Reserves, ..request }), false);
                }
                if client.doubtful {
                    decide(self.withdraw(id, now, TRIES), false);
                }
            }
            Phase::Held => {
                decide(self.release(id, client, now), false);
                if client.deadline > now {
                    let deadline = now + LEASE;
                    let renewing = Client { sequence: client.sequence + 1, ..*client };
                    let request = self.request(Kind::Renew, id, &renewing, now);
                    let end = deadline + SKEW;
                    let expiration = end + self.conditions.retention;
                    let update = Update { lease_end: end, asked: end, expiration, ..request.update };
                    decide((renewing, Request { update, ..request }), true);
                }
            }
            Phase::Releasing if client.sequence <= self.bounds.renewals + 1 => {
                decide(self.release(id, client, now), false);
            }
            _ => {}
        }
    }

    fn apply(&self, table: &mut Table, request: &Request, log: &mut Log) -> Answer {
        if request.turn == Turn::Reserves {
            return if self.reserve(table, request, log) { Ok(()) } else { Err([None; KEYS]) };
        }
        let mut keys = request.keys;
        let is_halved = match request.update.kind {
            Kind::Acquire => self.conditions.is(Mutation::HalfTaken),
            Kind::Release => self.conditions.is(Mutation::HalfReleased),
            _ => false,
        };
        if is_halved && keys[0] {
            keys[1] = false;
        }
        let (rows, mut after) = (table.rows, table.rows);
        let mut refusals = [None; KEYS];
        for key in (0..KEYS).filter(|key| keys[*key]) {
            let row = self.updated(table, request, key, log);
            refusals[key] = Some((row.is_none(), rows[key]));
            after[key] = row;
        }
        if refusals.iter().flatten().any(|(refused, _)| *refused) {
            return Err(refusals);
        }
        table.rows = after;
        if request.turn == Turn::Leaves && request.fences.is_some() {
            // The acquire of a set removes the reservation.
            table.reserved = [None; KEYS];
        }
        for (key, after) in after.iter().enumerate().filter(|(key, _)| keys[*key]) {
            if let Some(after) = after {
                table.pasts[key].applied(rows[key].as_ref(), after, request.update, log, None);
            }
        }
        Ok(())
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
        if request.turn == Turn::Reserves {
            return None;
        }
        let update = request.update;
        let refusals = answer.err().into_iter().flatten().enumerate();
        let refused: Vec<_> = refusals
            .filter_map(|(key, refusal)| refusal.filter(|(refused, _)| *refused).map(|(_, row)| (key, row)))
            .collect();
        match update.kind {
            Kind::Acquire if answer.is_ok() || self.conditions.is(Mutation::CancelledAcquireSucceeds) => {
                self.granted(id, client, Some(update.now), clock, log)
            }
            Kind::Acquire => self.refused(id, client, request, &refused, clock, log),
            Kind::Renew => {
                let is_renewed = |row: &Row| {
                    row.owner == update.owner && row.released != update.owner && row.sequence == Some(update.sequence)
                };
                if refused.iter().all(|(_, row)| row.as_ref().is_some_and(is_renewed)) {
                    client.deadline = update.asked - SKEW;
                    log.saw(Event::Renewed);
                } else {
                    log.saw(Event::Lost);
                    *client = ended(End::Lost);
                }
                None
            }
            Kind::Release => match Self::refused_release(client, request, answer) {
                Err(rest) if !self.conditions.is(Mutation::CancelledReleaseSucceeds) => Some(rest),
                Ok(lost)
                    if (client.partly || lost.iter().any(Option::is_some))
                        && !self.conditions.is(Mutation::CancelledReleaseSucceeds) =>
                {
                    log.saw(Event::Lost);
                    *client = ended(End::Lost);
                    None
                }
                _ => {
                    log.saw(Event::Released);
                    *client = ended(End::Released);
                    None
                }
            },
            // `Table::withdraw_all`
            Kind::ReleaseToWithdraw => match Self::refused_release(client, request, answer) {
                Err(rest) => Some(rest),
                Ok(lost) => {
                    let lost = (0..KEYS).filter_map(|key| Some((key, lost[key]?.row)));
                    let lost: Vec<_> = client.not_held.into_iter().chain(lost).collect();
                    let was_applied = lost.len() < keys(id).into_iter().filter(|key| *key).count()
                        || lost.iter().any(|(_, row)| row.is_some_and(|row| row.owner == update.owner));
                    let (Some(&(first, row)), false) = (lost.first(), was_applied) else {
                        *client = ended(End::WithoutKey);
                        return None;
                    };
                    let now = self.request(Kind::ReleaseToWithdraw, id, client, clock);
                    let update = self.conditions.withdrawal(row.as_ref(), now.update);
                    Some(Request { update, keys: std::array::from_fn(|key| key == first), ..*request })
                }
            },
            _ if answer.is_ok() => {
                *client = ended(End::WithoutKey);
                None
            }
            _ if client.tries > 1 => {
                let (withdrawing, request) = self.withdraw(id, clock, client.tries - 1);
                *client = withdrawing;
                Some(request)
            }
            _ => {
                *client = ended(End::Unknown);
                None
            }
        }
    }

    fn unanswered(&self, client: &mut Client, request: &Request) {
        match request.update.kind {
            _ if request.turn == Turn::Reserves => {}
            Kind::Acquire => client.doubtful = true,
            Kind::Renew | Kind::Release => {}
            _ => *client = ended(End::Unknown),
        }
    }

    fn sent_again(&self, client: &mut Client, request: &Request) {
        client.doubtful |= request.update.kind == Kind::Acquire && request.turn != Turn::Reserves;
    }

    fn expired(&self, table: &Table, now: u8) -> Vec<usize> {
        (0..KEYS).filter(|key| table.rows[*key].is_some_and(|row| row.expiration <= now)).collect()
    }

    fn delete(&self, table: &mut Table, key: usize) {
        table.rows[key] = None;
        table.reserved[key] = None;
        table.pasts[key].forget_release();
    }

    fn inspect(&self, state: &StateOf<Self>, log: &mut Log) {
        let Table { rows, pasts, reserved } = &state.table;
        let live = |key: usize| reserved[key].filter(|reserved| reserved.until > state.time + SKEW);
        if let (Some(first), Some(second)) = (live(0), live(1))
            && first.by != second.by
        {
            log.broke(Breach::HalfReserved);
        }
        let forgotten = pasts.iter().fold(0, |all, past| all | past.forgotten);
        for key in 0..KEYS {
            let mut valid = 0;
            for (id, client) in state.clients.iter().enumerate().filter(|(id, _)| keys(*id)[key]) {
                let owner = owner(id);
                let row = rows[key].filter(|row| row.owner == owner);
                if client.phase == Phase::Held && client.deadline > state.clock(id) {
                    valid += 1;
                    if row.is_none_or(|row| row.released == owner) {
                        log.broke(Breach::Half);
                    }
                }
                let end = match client.phase {
                    Phase::Asking if !client.doubtful && !state.is_waiting(id) => End::WithoutKey,
                    Phase::Ended(end) => end,
                    _ => continue,
                };
                if end == End::Released && pasts[key].released & bit(owner) == 0 {
                    log.broke(Breach::ReleaseNotDone);
                }
                let is_held = row.is_some_and(|row| row.is_in_progress_at(state.time + SKEW));
                if is_held && end != End::Unknown && forgotten & bit(owner) == 0 {
                    log.broke(Breach::HeldByNobody);
                }
            }
            if valid > 1 {
                log.broke(Breach::Exclusion);
            }
            if rows[key].is_some_and(|row| row.is_in_progress_at(state.time + SKEW) && row.lease_end > pasts[key].asked)
            {
                log.broke(Breach::HeldByNobody);
            }
        }
    }
}
