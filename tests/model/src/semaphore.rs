//! A semaphore: at most N of three clients at a time, in one row. The conditions and the client follow
//! `row/permit.rs`. The permits and tombstones, which the product stores as `permit:<owner>`, are an array by client.
//!
//! In turn, a client that was refused takes a place, and leaves a permit that was freed in the same tick to those ahead
//! (`Permit::is_turn`). It may also ask without its place, as a single attempt does, or with the place of another client, as
//! a process does that uses the turn of another one. What a client knows of the queue follows `lock/turn.rs`.
//!
//! The model keeps all tombstones. The product removes them when they are a minute old. A duplicate that is later takes a
//! permit, if there is room, until the lease of the duplicate ends. So does a duplicate of an owner whose permit others have
//! replaced, which has lost it.

use crate::lock::{End, LEASE, Phase, TRIES, bit, owner};
use crate::row::FENCES_IN_A_TICK;
use crate::world::{CLIENTS, Decision, Log, Protocol, SKEW, StateOf};
use crate::{Bounds, Breach, Event, Mutation};

/// The N of the semaphore that is checked.
pub(crate) const PERMITS: u8 = 2;

/// How often an attempt is adapted to a row that others change meanwhile (`ADAPTATIONS`).
const ADAPTATIONS: u8 = 4;

#[derive(Debug)]
pub(crate) struct Semaphore {
    pub(crate) bounds: Bounds,
    pub(crate) permits: u8,
    pub(crate) retention: u8,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) in_turn: bool,
    /// In a walk, the row has the hints for waiters, also if nobody reads them. A client takes a place after each refusal,
    /// and asks with its own place only.
    pub(crate) is_walked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct Row {
    /// The counter.
    pub(crate) permits: u8,
    pub(crate) permit: [Option<Permit>; CLIENTS],
    pub(crate) fence: Option<u16>,
    pub(crate) expiration: u8,
    pub(crate) head: u8,
    pub(crate) tail: u8,
    pub(crate) freed_at: Option<u8>,
    /// A release has said how long holds take.
    has_hold: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) enum Permit {
    Held { lease_end: u8, sequence: u8 },
    Tombstone,
}

/// The row, and what the proof remembers of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) struct Table {
    pub(crate) row: Option<Row>,
    /// The largest fence of an acquisition.
    fence: u16,
    /// The owners whose release or withdrawal was applied.
    released: u8,
    /// Those of them that the row still shows.
    shown: u8,
    /// The owners whose permit others replaced. The row has no trace of it, so a duplicate that arrives late takes a free
    /// permit, until the end that it asks for.
    replaced: u8,
    /// The end that each owner asked for.
    asked: [u8; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    id: usize,
    pub(crate) now: u8,
    sequence: u8,
    lease_end: u8,
    pub(crate) asked: u8,
    expiration: u8,
    tries: u8,
    rank: Rank,
    /// The queue that a join has seen.
    seen: Queue,
}

/// The queue as a client has seen it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
struct Queue {
    head: u8,
    tail: u8,
    has_hold: bool,
}

/// To whom an attempt leaves a permit (`LeavesTo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
enum Rank {
    #[default]
    Nobody,
    Queue,
    Ahead(u8),
    /// The same, but the place is not served if the attempt succeeds (`KeyTurn::served`).
    FarBehind(u8),
}

/// The ends and the numbers of the permits that an attempt replaces, as a refusal has shown them.
type Replaced = [Option<(u8, u8)>; CLIENTS];

fn count(replaced: Replaced) -> u8 {
    replaced.into_iter().map(|permit| u8::from(permit.is_some())).sum()
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) enum Kind {
    /// Replaces these permits.
    Acquire(Replaced),
    Renew,
    Release,
    /// `Table::join`
    Join,
    ReleaseToWithdraw,
    /// `permit_withdrawal`, and whether the row is there.
    Withdraw(bool),
}

/// `Ok` with the row after the request, or the row that refused it.
type Answer = Result<Row, Option<Row>>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Hash)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    pub(crate) attempts: u8,
    /// One more than the times of the attempts whose leases have not ended.
    sent: [u8; 2],
    /// An attempt was not answered. In a release: one of the SDK's, also of an earlier call.
    pub(crate) doubtful: bool,
    pub(crate) deadline: u8,
    sequence: u8,
    /// The last request was an attempt that the row refused.
    was_refused: bool,
    place: u8,
    seen: Queue,
}

fn ended(end: End) -> Client {
    Client { phase: Phase::Ended(end), ..Client::default() }
}

impl Client {
    /// `KeyTurn::see`
    fn see(&mut self, row: &Row) {
        self.seen = Queue { head: row.head, tail: row.tail, has_hold: row.has_hold };
        // The row was deleted, and the places began anew.
        if self.place > row.tail {
            self.place = 0;
        }
    }

    /// `KeyTurn::rank`
    fn rank(&self, permits: u8) -> Rank {
        let Queue { head, has_hold, .. } = self.seen;
        match self.place {
            0 => Rank::Queue,
            place if place <= head => Rank::Nobody,
            place if has_hold || place - head - 1 <= permits => Rank::Ahead(place),
            place => Rank::FarBehind(place),
        }
    }
}

impl Row {
    fn empty(expiration: u8) -> Self {
        Self {
            permits: 0,
            permit: [None; CLIENTS],
            fence: None,
            expiration,
            head: 0,
            tail: 0,
            freed_at: None,
            has_hold: false,
        }
    }

    fn held(&self, id: usize) -> Option<(u8, u8)> {
        match self.permit[id] {
            Some(Permit::Held { lease_end, sequence }) => Some((lease_end, sequence)),
            _ => None,
        }
    }
}

impl Semaphore {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Whether the row has the hints for waiters. The checker leaves them out if nobody reads them.
    fn has_hints(&self) -> bool {
        self.in_turn || self.is_walked
    }

    /// `Permit::is_turn`, with the courtesy of a tick.
    fn is_turn(&self, row: &Row, freed_at: Option<u8>, rank: Rank, now: u8, ended: u8) -> bool {
        let is_recent = freed_at.is_some_and(|freed_at| freed_at >= now && freed_at <= now + SKEW);
        if !is_recent && !self.is(Mutation::CourtesyWithoutEnd) {
            return true;
        }
        match rank {
            Rank::Nobody => true,
            Rank::Queue => row.head >= row.tail,
            Rank::Ahead(place) | Rank::FarBehind(place) => (1..=self.permits)
                .any(|many| row.head >= place.saturating_sub(many) && row.permits <= self.permits - many + ended),
        }
    }

    /// `claim_permit`: the condition and the update.
    fn acquire(&self, row: Option<&Row>, request: &Request, replaced: Replaced) -> Option<Row> {
        let Request { id, now, lease_end, expiration, .. } = *request;
        let ended = count(replaced);
        // `#permits BETWEEN :ended AND :most`
        let is_next = matches!(request.rank, Rank::Ahead(place) if row.is_some_and(|row| row.head + 1 == place));
        let is_one_more = self.is(Mutation::OneMore) || (is_next && self.is(Mutation::OneMoreInTurn));
        let most = self.permits - 1 + ended + u8::from(is_one_more);
        let empty = Row::empty(0);
        let before = match row {
            None if ended == 0 => &empty,
            None => return None,
            Some(row) => row,
        };
        // `NEW`
        let new = match before.permit[id] {
            None => true,
            Some(Permit::Tombstone) => self.is(Mutation::TombstoneIgnored),
            Some(Permit::Held { .. }) => false,
        };
        let is_as_seen = |other: usize| {
            let permit = before.held(other);
            permit == replaced[other] || (self.is(Mutation::ReplacedUnchecked) && permit.is_some())
        };
        let condition = new
            && (ended..=most).contains(&before.permits)
            && (0..CLIENTS).filter(|other| replaced[*other].is_some()).all(is_as_seen);
        let place = if let Rank::Ahead(place) = request.rank { place } else { before.head };
        if !condition || !self.is_turn(before, before.freed_at, request.rank, now, ended) || before.head > place {
            return None;
        }
        // `TAKE`
        let one = u16::from(!self.is(Mutation::FenceRepeats));
        let mut after = Row {
            permits: before.permits + 1 - ended,
            fence: Some(before.fence.unwrap_or(u16::from(now) * FENCES_IN_A_TICK) + one),
            expiration,
            head: place,
            freed_at: if ended > 0 && self.has_hints() { Some(now) } else { before.freed_at },
            ..*before
        };
        for other in (0..CLIENTS).filter(|other| replaced[*other].is_some()) {
            after.permit[other] = None;
        }
        after.permit[id] = Some(Permit::Held { lease_end, sequence: 0 });
        Some(after)
    }

    /// `renew_permit`, whose condition is `HELD` and the sequence.
    fn renew(&self, row: &Row, Request { id, now, sequence, lease_end, expiration, .. }: Request) -> Option<Row> {
        let (end, last) = row.held(id)?;
        let mut after = Row { expiration, ..*row };
        after.permit[id] = Some(Permit::Held { lease_end, sequence });
        (end > now && (last < sequence || self.is(Mutation::LateRenewal))).then_some(after)
    }

    /// `permit_release`
    fn release(&self, row: &Row, Request { kind, id, now, sequence, expiration, .. }: Request) -> Option<Row> {
        let other = (0..CLIENTS).find(|other| *other != id && row.held(*other).is_some());
        let id = other.filter(|_| self.is(Mutation::AnotherReleased)).unwrap_or(id);
        let (_, last) = row.held(id)?;
        let fewer = if self.is(Mutation::CountedTwice) { 2 } else { 1 };
        let freed_at = self.has_hints().then_some(now);
        let has_hold = row.has_hold || (kind == Kind::Release && self.has_hints());
        let mut after = Row { permits: row.permits.saturating_sub(fewer), expiration, freed_at, has_hold, ..*row };
        after.permit[id] = (!self.is(Mutation::NoTombstone)).then_some(Permit::Tombstone);
        (last < sequence && row.permits >= 1).then_some(after)
    }

    /// `Table::join`. The place is the new tail.
    fn join(row: &Row, Request { seen: Queue { head, tail, .. }, .. }: Request) -> Row {
        let (is_empty, has_head) = (tail <= head, row.head.max(row.tail) > 0);
        let last = if tail < head || row.tail == 0 { head } else { row.tail };
        Row { head: if is_empty || !has_head { head } else { row.head }, tail: last + 1, ..*row }
    }

    /// `permit_withdrawal`
    fn withdraw(row: Option<&Row>, Request { id, expiration, .. }: Request, is_there: bool) -> Option<Row> {
        let mut after = match row {
            None if !is_there => Row::empty(expiration),
            Some(row) if is_there && row.permit[id].is_none() => Row { expiration, ..*row },
            _ => return None,
        };
        after.permit[id] = Some(Permit::Tombstone);
        Some(after)
    }

    fn request(&self, kind: Kind, id: usize, client: Client, now: u8, lease: u8) -> Request {
        let asked = now + lease + SKEW;
        let is_acquire = matches!(kind, Kind::Acquire(_));
        // Not before the end of the longest lease of another permit.
        let mut expiration = now + LEASE + SKEW + self.retention;
        if is_acquire && self.is(Mutation::TtlTooEarlyForPermits) {
            expiration = now;
        }
        Request {
            kind,
            id,
            now,
            sequence: client.sequence,
            lease_end: if is_acquire && self.is(Mutation::NoSkew) { asked - SKEW } else { asked },
            asked,
            expiration,
            tries: if is_acquire { ADAPTATIONS } else { TRIES },
            rank: Rank::Nobody,
            seen: if matches!(kind, Kind::Join) { client.seen } else { Queue::default() },
        }
    }

    fn withdrawal(&self, id: usize, now: u8) -> (Client, Request) {
        let client = Client { phase: Phase::Withdrawing, sequence: 1, ..Client::default() };
        (client, self.request(Kind::ReleaseToWithdraw, id, client, now, 0))
    }

    fn granted(&self, client: &mut Client, id: usize, sent: Option<u8>, clock: u8, log: &mut Log) -> Option<Request> {
        if let Some(now) = sent.filter(|now| now + LEASE > clock) {
            log.saw(Event::Acquired);
            *client = Client { phase: Phase::Held, deadline: now + LEASE, ..Client::default() };
            return None;
        }
        log.saw(Event::GrantedTooLate);
        let (withdrawing, request) = self.withdrawal(id, clock);
        *client = withdrawing;
        Some(request)
    }

    /// `take_permit`, from a refusal on.
    fn refused(
        &self,
        client: &mut Client,
        request: &Request,
        row: Option<Row>,
        clock: u8,
        log: &mut Log,
    ) -> Option<Request> {
        let again = |replaced, rank| {
            (request.tries > 1).then_some(Request {
                kind: Kind::Acquire(replaced),
                tries: request.tries - 1,
                rank,
                ..*request
            })
        };
        let next = match row {
            None => again(Replaced::default(), request.rank),
            Some(row) => {
                if let Some((end, _)) = row.held(request.id) {
                    if !self.is(Mutation::ForeignNonce) {
                        log.saw(Event::OwnRowRecognised);
                        let mut sent = client.sent.into_iter().filter(|sent| *sent > 0).map(|sent| sent - 1);
                        let sent = sent.find(|now| now + LEASE + SKEW == end);
                        return self.granted(client, request.id, sent, clock, log);
                    }
                    log.broke(Breach::RefusedByItself);
                }
                let replaced: Replaced = std::array::from_fn(|other| {
                    row.held(other).filter(|(lease_end, _)| {
                        other != request.id && (*lease_end <= request.now || self.is(Mutation::ReplacedUnchecked))
                    })
                });
                let ended = count(replaced);
                let held = count(std::array::from_fn(|other| row.held(other))) - ended;
                // A waiter whose place was passed leaves nothing to others.
                let is_passed = matches!(request.rank, Rank::Ahead(place) if place < row.head);
                let rank = if is_passed { Rank::Nobody } else { request.rank };
                // `Permit::is_turn_in`: the end of a lease frees its permit.
                let lease_ends = replaced.into_iter().flatten().map(|(lease_end, _)| lease_end);
                let freed_at = row.freed_at.max(lease_ends.max());
                if held >= self.permits {
                    client.was_refused = true;
                    client.see(&row);
                    None
                } else if self.is_turn(&row, freed_at, rank, request.now, ended) {
                    again(replaced, rank)
                } else {
                    log.saw(Event::Left);
                    if freed_at.is_none_or(|freed_at| freed_at < request.now) {
                        log.broke(Breach::FreeButRefused);
                    }
                    client.was_refused = true;
                    client.see(&row);
                    None
                }
            }
        };
        if next.is_none() {
            log.saw(Event::Refused);
            if !client.doubtful {
                let Client { was_refused, place, seen, .. } = *client;
                *client = Client { was_refused, place, seen, ..Client::default() };
            }
        }
        next
    }
}

impl Protocol for Semaphore {
    type Table = Table;
    type Request = Request;
    type Answer = Answer;
    type Client = Client;

    fn decisions(&self, id: usize, client: &Client, now: u8, decisions: &mut Vec<Decision<Self>>) {
        let mut decide = |client, request, is_renewal| {
            decisions.push(Decision { client, request: Some(request), is_renewal });
        };
        match client.phase {
            Phase::Asking => {
                let joins = self.in_turn && client.was_refused && client.place == 0;
                if client.attempts < self.bounds.attempts && !(joins && self.is_walked) {
                    let mut sent = client.sent.into_iter().filter(|sent| sent + LEASE > now + 1 && *sent > 0);
                    let sent = [sent.next().unwrap_or(0), now + 1];
                    let asking = Client { attempts: client.attempts + 1, sent, was_refused: false, ..*client };
                    let request = self.request(Kind::Acquire(Replaced::default()), id, *client, now, LEASE);
                    if !self.in_turn || !self.is_walked {
                        decide(asking, request, false);
                    }
                    if self.in_turn {
                        decide(asking, Request { rank: client.rank(self.permits), ..request }, false);
                    }
                    // A turn is used twice: it has the place of another client.
                    if self.in_turn && client.place == 0 && !self.is_walked {
                        decide(asking, Request { rank: Rank::Ahead(1), ..request }, false);
                    }
                }
                if joins {
                    let joining = Client { was_refused: false, ..*client };
                    decide(joining, self.request(Kind::Join, id, *client, now, 0), false);
                }
                if client.doubtful {
                    let (client, request) = self.withdrawal(id, now);
                    decide(client, request, false);
                }
            }
            Phase::Held | Phase::Releasing if client.sequence <= self.bounds.renewals + 1 => {
                let sequence = client.sequence + 1;
                let releasing = Client {
                    phase: Phase::Releasing,
                    sequence,
                    doubtful: client.doubtful,
                    deadline: client.deadline,
                    ..Client::default()
                };
                decide(releasing, self.request(Kind::Release, id, releasing, now, 0), false);
                if client.phase == Phase::Held && client.deadline > now {
                    for lease in [1, LEASE] {
                        let deadline = client.deadline.min(now + lease);
                        let renewing = Client { deadline, sequence, ..*client };
                        decide(renewing, self.request(Kind::Renew, id, renewing, now, lease), true);
                    }
                }
            }
            _ => {}
        }
    }

    fn apply(&self, table: &mut Table, request: &Request, log: &mut Log) -> Answer {
        let (id, before, own) = (request.id, table.row, bit(owner(request.id)));
        let after = match request.kind {
            Kind::Acquire(replaced) => self.acquire(before.as_ref(), request, replaced),
            Kind::Renew => before.and_then(|row| self.renew(&row, *request)),
            Kind::Release | Kind::ReleaseToWithdraw => before.and_then(|row| self.release(&row, *request)),
            Kind::Withdraw(is_there) => Self::withdraw(before.as_ref(), *request, is_there),
            Kind::Join => before.as_ref().map(|row| Self::join(row, *request)),
        };
        let Some(after) = after else { return Err(before) };
        table.row = Some(after);
        let is_replaced = |other: usize| matches!(request.kind, Kind::Acquire(replaced) if replaced[other].is_some());
        for other in (0..CLIENTS).filter(|other| *other != id && !is_replaced(*other)) {
            if before.is_some_and(|row| row.permit[other] != after.permit[other]) {
                log.broke(Breach::ForeignRow);
            }
        }
        if matches!(request.kind, Kind::Renew | Kind::Release)
            && before.and_then(|row| row.held(id)).is_some_and(|(_, last)| last >= request.sequence)
        {
            log.broke(Breach::OutOfOrder);
        }
        match request.kind {
            Kind::Acquire(replaced) => {
                let fence = after.fence.unwrap_or_default();
                if fence <= table.fence {
                    log.broke(Breach::FenceStoodStill);
                }
                if table.released & own != 0 {
                    log.broke(Breach::TakenAfterItsEnd);
                }
                if count(replaced) > 0 {
                    log.saw(Event::TakenOver);
                }
                for other in (0..CLIENTS).filter(|other| replaced[*other].is_some()) {
                    table.replaced |= bit(owner(other));
                }
                if let (Rank::Ahead(place), Some(_)) = (request.rank, before.filter(|row| row.head < after.head)) {
                    debug_assert_eq!(place, after.head);
                    log.saw(Event::Served);
                }
                table.fence = table.fence.max(fence);
                table.asked[id] = request.asked;
            }
            Kind::Join => {
                log.saw(Event::Joined);
                if before.is_none_or(|row| {
                    (row.permits, row.permit, row.fence) != (after.permits, after.permit, after.fence)
                }) {
                    log.broke(Breach::ForeignRow);
                }
            }
            Kind::Renew => table.asked[id] = request.asked,
            Kind::Release | Kind::ReleaseToWithdraw | Kind::Withdraw(_) => {
                if matches!(request.kind, Kind::Withdraw(_)) {
                    log.saw(Event::Withdrawn);
                }
                // The proof counts what the row shows, because a mutation releases another permit.
                if before.is_none_or(|row| row.permit[id] != after.permit[id]) {
                    table.released |= own;
                    table.shown |= own;
                }
            }
        }
        Ok(after)
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
        match (request.kind, *answer) {
            (Kind::Join, Ok(row)) => {
                client.place = row.tail;
                client.see(&row);
                None
            }
            (Kind::Join, Err(_)) => None,
            (Kind::Acquire(_), Ok(_)) => self.granted(client, id, Some(request.now), clock, log),
            (Kind::Acquire(_), Err(row)) => self.refused(client, request, row, clock, log),
            (Kind::Renew, answer) => {
                // An earlier attempt of this renewal may have been applied.
                let is_renewed = |row: Row| row.held(id).is_some_and(|(_, last)| last == request.sequence);
                if answer.is_ok() || answer.is_err_and(|row| row.is_some_and(is_renewed)) {
                    client.deadline = request.asked - SKEW;
                    log.saw(Event::Renewed);
                } else {
                    log.saw(Event::Lost);
                    *client = ended(End::Lost);
                }
                None
            }
            (Kind::Release, Ok(_)) => {
                log.saw(Event::Released);
                *client = ended(End::Released);
                None
            }
            (Kind::Release, Err(row)) => {
                let end = match row.map(|row| row.permit[id]) {
                    _ if self.is(Mutation::RefusedReleaseSucceeds) => End::Released,
                    Some(Some(Permit::Tombstone)) => End::Released,
                    // `Released::NoTrace`: nothing replaces a permit before its lease has ended.
                    Some(None) if client.doubtful && client.deadline > clock => End::Released,
                    _ => End::Lost,
                };
                if end == End::Lost {
                    log.saw(Event::Lost);
                }
                *client = ended(end);
                None
            }
            // `withdraw_permit`
            (Kind::ReleaseToWithdraw, Err(row)) if row.is_none_or(|row| row.permit[id].is_none()) => {
                let withdrawal = self.request(Kind::Withdraw(row.is_some()), id, *client, clock, 0);
                Some(Request { tries: request.tries, ..withdrawal })
            }
            (Kind::Withdraw(_), Err(_)) if request.tries > 1 => {
                let (withdrawing, again) = self.withdrawal(id, clock);
                *client = withdrawing;
                Some(Request { tries: request.tries - 1, ..again })
            }
            (Kind::Withdraw(_), Err(_)) => {
                *client = ended(End::Unknown);
                None
            }
            (Kind::ReleaseToWithdraw | Kind::Withdraw(_), _) => {
                *client = ended(End::WithoutKey);
                None
            }
        }
    }

    fn unanswered(&self, client: &mut Client, request: &Request) {
        match request.kind {
            Kind::Acquire(_) | Kind::Release => client.doubtful = true,
            Kind::Renew | Kind::Join => {}
            _ => *client = ended(End::Unknown),
        }
    }

    fn sent_again(&self, client: &mut Client, request: &Request) {
        client.doubtful |= matches!(request.kind, Kind::Acquire(_) | Kind::Release);
    }

    fn expired(&self, table: &Table, now: u8) -> Vec<usize> {
        table.row.filter(|row| row.expiration <= now).map(|_| 0).into_iter().collect()
    }

    fn delete(&self, table: &mut Table, _: usize) {
        table.row = None;
        table.shown = 0;
    }

    fn inspect(&self, state: &StateOf<Self>, log: &mut Log) {
        let is_valid = |id: usize| {
            let client = &state.clients[id];
            client.phase == Phase::Held && client.deadline > state.clock(id)
        };
        if (0..CLIENTS).filter(|id| is_valid(*id)).count() > usize::from(self.permits) {
            log.broke(Breach::Exclusion);
        }
        let Table { row, asked, released, shown, replaced, .. } = &state.table;
        let count = |row: &Row| (0..CLIENTS).filter(|id| row.held(*id).is_some()).count();
        if row.is_some_and(|row| count(&row) != usize::from(row.permits)) {
            log.broke(Breach::WrongCount);
        }
        for (id, client) in state.clients.iter().enumerate() {
            let end = row.and_then(|row| row.held(id)).map(|(lease_end, _)| lease_end);
            let is_held = end.is_some_and(|end| end > state.time + SKEW);
            if is_held && end > Some(asked[id]) {
                log.broke(Breach::HeldByNobody);
            }
            let ended = match client.phase {
                Phase::Asking if !client.doubtful && !state.is_waiting(id) => End::WithoutKey,
                Phase::Ended(end) => end,
                _ => continue,
            };
            match ended {
                End::Released if released & bit(owner(id)) == 0 => log.broke(Breach::ReleaseNotDone),
                End::Lost if shown & bit(owner(id)) != 0 => log.broke(Breach::ReleaseNotRecognised),
                _ => {}
            }
            let is_limit = ended == End::Lost && replaced & bit(owner(id)) != 0;
            if is_held && ended != End::Unknown && !is_limit {
                log.broke(Breach::HeldByNobody);
            }
        }
    }
}
