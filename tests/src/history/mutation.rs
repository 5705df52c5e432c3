use std::fmt;
use std::time::Duration;

use aws_lambda_events::kinesis::KinesisEvent;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use aws_lambda_events::streams::KinesisEventResponse;
use lambda_lock::embedded::{Answer, Intercept};
use serde_json::{Value, json};

use crate::guarantee::{FENCES, FREED, HOLDERS, ITSELF, ORDER, OWNERS, WITHDRAWN};
use crate::request::expression::{Comparison, Condition, Operand, Path};
use crate::request::mistakes::{
    acquire_ignores_end, foreign_owner, numbers_ignored, release_without_owner, renew_without_condition,
    takeover_keeps_fence, takeover_unread, takeovers,
};
use crate::request::{LEASE_END, PERMIT_LEASE_END, PERMIT_NUMBER, Purpose, Request, Write, either, identity_of};

/// A deliberate mistake in the protocol. The host's network makes it by rewriting a request or an answer, Lambda by
/// rewriting a batch or its answer, or the history by omitting a setting. The code under test has no switch for it: it
/// is the code that ships.
#[derive(Clone, Copy)]
pub struct Mutation {
    /// The mistake.
    pub name: &'static str,
    /// A part of the violation that it causes.
    pub breaks: &'static str,
    /// The seed that a search for the violation begins with. A rare mistake names one that finds it, which saves minutes.
    pub first_seed: u64,
    /// Whether many histories show the violation. The short search tries these mutations only.
    pub is_common: bool,
    pub(crate) request: fn(&mut Request),
    pub(crate) answer: fn(&Request, &mut Answer),
    /// The batch that Lambda delivers to the consumer of a queue.
    pub(crate) batch: fn(&mut SqsEvent),
    /// The answer that Lambda receives.
    pub(crate) batch_answer: fn(&SqsEvent, &mut SqsBatchResponse),
    /// The batch that Lambda delivers to the consumer of a stream.
    pub(crate) records: fn(&mut KinesisEvent),
    /// The answer that Lambda receives.
    pub(crate) records_answer: fn(&KinesisEvent, &mut KinesisEventResponse),
    /// How much later Lambda receives an answer.
    pub(crate) answer_delay: Duration,
    /// Whether the consumer of a stream has no `stop_at_first_failure` although its history expects it.
    pub(crate) ignores_stop: bool,
}

impl Mutation {
    /// The mistakes in the protocol of the lock.
    pub const LOCK: [Self; 23] = [
        Self {
            name: "no nonce check on refusal",
            breaks: ITSELF,
            is_common: true,
            answer: foreign_nonce,
            ..Self::NONE
        },
        Self {
            name: "release without the owner check",
            breaks: OWNERS,
            is_common: true,
            request: release_without_owner,
            ..Self::NONE
        },
        Self { name: "acquire ignores the lease's end", breaks: HOLDERS, request: acquire_ignores_end, ..Self::NONE },
        Self { name: "clock skew not added", breaks: HOLDERS, request: no_skew, ..Self::NONE },
        Self { name: "renew without condition", breaks: OWNERS, request: renew_without_condition, ..Self::NONE },
        Self {
            name: "a refused release counts as success",
            breaks: "reported a release",
            answer: refused_release_succeeds,
            ..Self::NONE
        },
        Self {
            name: "fence does not grow",
            breaks: FENCES,
            is_common: true,
            request: fence_stands_still,
            ..Self::NONE
        },
        Self {
            name: "TTL earlier than the lease's end",
            breaks: HOLDERS,
            first_seed: 110,
            request: ttl_too_early,
            ..Self::NONE
        },
        Self {
            name: "a late renewal moves the end back",
            breaks: HOLDERS,
            first_seed: 1125,
            request: |request| ignore(request, Purpose::Renew, "sequence"),
            ..Self::NONE
        },
        Self {
            name: "a late release undoes a later one",
            breaks: ORDER,
            request: |request| ignore(request, Purpose::Release, "sequence"),
            ..Self::NONE
        },
        Self {
            name: "acquire ignores a withdrawal",
            breaks: WITHDRAWN,
            first_seed: 287,
            request: |request| ignore(request, Purpose::Acquire, "withdrawn"),
            ..Self::NONE
        },
        Self {
            name: "the next in line takes a held key",
            breaks: HOLDERS,
            request: turn_without_release,
            ..Self::NONE
        },
        Self {
            name: "a release ends the minimum hold early",
            breaks: "before its minimum hold was over",
            request: hold_ends_early,
            ..Self::NONE
        },
        Self {
            name: "a takeover does not read whose lock it saw",
            breaks: FREED,
            request: |request| takeover_unread(request, &["owner", "fence"]),
            ..Self::NONE
        },
        Self {
            name: "a takeover does not check the identity",
            breaks: FREED,
            first_seed: 50,
            request: |request| takeover_unread(request, &["owner"]),
            ..Self::NONE
        },
        Self {
            name: "a takeover does not compare the fence",
            breaks: FREED,
            request: |request| takeover_unread(request, &["fence"]),
            ..Self::NONE
        },
        Self {
            name: "a takeover takes what was released",
            breaks: FREED,
            first_seed: 65,
            request: takeover_of_released,
            ..Self::NONE
        },
        Self { name: "a takeover takes what has ended", breaks: FREED, request: takeover_of_ended, ..Self::NONE },
        Self {
            name: "a takeover keeps the fence of the step before",
            breaks: FENCES,
            is_common: true,
            request: takeover_keeps_fence,
            ..Self::NONE
        },
        Self {
            name: "a release by force does not read whose lock it is",
            breaks: "seen this acquisition",
            request: |request| forced_unread(request, &["owner", "fence"]),
            ..Self::NONE
        },
        Self {
            name: "a release by force does not compare the fence",
            breaks: "seen this acquisition",
            is_common: true,
            request: |request| forced_unread(request, &["fence"]),
            ..Self::NONE
        },
        Self {
            name: "a release by force leaves the number of the holder",
            breaks: "changed what others have freed",
            is_common: true,
            request: forced_leaves_number,
            ..Self::NONE
        },
        Self { name: "acquire ignores the numbers", breaks: FENCES, request: numbers_ignored, ..Self::NONE },
    ];

    /// The mistakes in the queue. They cost waiters time, and break no guarantee.
    pub const QUEUE: [Self; 6] = [
        Self { name: "a place is answered like an acquired lock", answer: place_as_lock, ..Self::NONE },
        Self { name: "a place is never given up", request: place_kept, ..Self::NONE },
        Self { name: "the tail goes back behind the head", request: tail_rewound, ..Self::NONE },
        Self { name: "holds take no time", request: |request| hold_time(request, 0), ..Self::NONE },
        Self { name: "holds take a day", request: |request| hold_time(request, 86_400_000), ..Self::NONE },
        Self { name: "permits are freed a day later", request: freed_later, ..Self::NONE },
    ];

    /// The mistakes in reservations, as [`QUEUE`](Self::QUEUE).
    pub const RESERVATIONS: [Self; 3] = [
        Self { name: "keys are reserved for a day longer", request: reserved_later, ..Self::NONE },
        Self { name: "keys are reserved for nobody", request: reserved_for_nobody, ..Self::NONE },
        Self { name: "one of several keys is reserved", request: half_reserved, ..Self::NONE },
    ];

    pub(crate) const NONE: Self = Self {
        name: "",
        breaks: "",
        first_seed: 0,
        is_common: false,
        request: |_| {},
        answer: |_, _| {},
        batch: |_| {},
        batch_answer: |_, _| {},
        records: |_| {},
        records_answer: |_, _| {},
        answer_delay: Duration::ZERO,
        ignores_stop: false,
    };
}

impl fmt::Debug for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Intercept for Mutation {
    fn request(&self, operation: &str, request: &mut Value) {
        let before = Request::parse(operation, request);
        let mut mutated = before.clone();
        (self.request)(&mut mutated);
        if mutated != before {
            mutated.write_to(request);
        }
    }

    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        (self.answer)(&Request::parse(operation, request), answer);
    }
}

/// Drops the terms that this attribute is not compared so, in updates that are for this.
pub(crate) fn ignore(request: &mut Request, purpose: Purpose, attribute: &str) {
    if let Some(update) = request.update_for(purpose) {
        update.ignore(attribute);
    }
}

pub(crate) fn foreign_nonce(request: &Request, answer: &mut Answer) {
    foreign_owner(request, answer.status, &mut answer.body);
}

fn fence_stands_still(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.ignore("fence");
        *acquire.set_mut("fence") = Operand::number(17);
    }
}

/// The holder's name has the skew of the history.
pub(crate) fn skew_in(holder: Option<&str>) -> u64 {
    holder.and_then(|holder| holder.rsplit_once("skew ")?.1.parse().ok()).unwrap_or(0)
}

fn no_skew(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        let skew = skew_in(acquire.text("holder"));
        acquire.change(LEASE_END, |end| end - skew);
    }
}

/// A waiter whose place is next takes a key that is held.
fn turn_without_release(request: &mut Request) {
    let Some(acquire) = request.update_for(Purpose::Acquire) else { return };
    let compares = |term: &Condition, attribute: &str, with: Comparison| {
        matches!(term, Condition::Compare(path, comparison, Operand::Value(_))
            if path.name() == attribute && *comparison == with)
    };
    let is_turn =
        |term: &Condition| matches!(term, Condition::Not(before) if compares(before, "head", Comparison::Less));
    if acquire.condition.leaves().into_iter().any(|term| compares(term, "head", Comparison::Less)) {
        acquire.rewrite(|term| {
            let Condition::And(terms) = term else { return };
            if terms.iter().any(is_turn) {
                for term in terms {
                    if let Condition::Compare(path, comparison, end) = term
                        && path.name() == LEASE_END
                    {
                        *term = either(path, *comparison, end);
                    }
                }
            }
        });
    }
}

fn hold_ends_early(request: &mut Request) {
    if let Some(release) = request.update_for(Purpose::Release) {
        release.change(LEASE_END, |end| end.saturating_sub(1500));
    }
}

/// The row shows the owner from before.
pub(crate) fn takeover_leaves(request: &mut Request, nonce: &str) {
    for takeover in takeovers(request) {
        takeover.set_mut(nonce);
        takeover.update.set.retain(|(path, _)| path.name() != nonce);
    }
}

/// A release for an identity does not read whose row it is.
pub(crate) fn freed_unread(request: &mut Request, nonce: &str) {
    // An operator also frees permits without an identity.
    let has_identity = |freeing: &&mut Write| identity_of(&freeing.owner).is_some();
    for freeing in request.writes_for(Purpose::Free).filter(has_identity) {
        freeing.loosen_only(if nonce == "owner" { "fence" } else { PERMIT_NUMBER }, Comparison::Equal);
        freeing.loosen(nonce);
    }
}

/// A release by force does not compare these attributes of the row with what the operator has seen.
pub(crate) fn forced_unread(request: &mut Request, attributes: &[&str]) {
    // An operator becomes the holder.
    for freeing in request.writes_for(Purpose::Free).filter(|freeing| freeing.sets("holder").is_some()) {
        for attribute in attributes {
            freeing.loosen_only(attribute, Comparison::Equal);
        }
    }
}

fn forced_leaves_number(request: &mut Request) {
    for freeing in request.writes_for(Purpose::Free).filter(|freeing| freeing.sets("holder").is_some()) {
        let seen = freeing.compared("fence").unwrap();
        freeing.change("fence", |_| seen);
        freeing.change("released", |_| seen);
    }
}

pub(crate) fn takeover_of_ended(request: &mut Request) {
    for takeover in takeovers(request) {
        takeover.ignore(if takeover.is_of_permit() { PERMIT_LEASE_END } else { LEASE_END });
    }
}

/// The fence that a reader sees may be that of a release.
fn takeover_of_released(request: &mut Request) {
    for takeover in takeovers(request).filter(|takeover| takeover.mentions("released")) {
        takeover.ignore("released");
    }
}

fn place_as_lock(request: &Request, answer: &mut Answer) {
    if request.is_update_for(Purpose::Join) && answer.status == 200 {
        // An acquire of a new row has this answer.
        answer.body = json!({});
    }
}

fn place_kept(request: &mut Request) {
    for acquire in request.writes_for(Purpose::Acquire).filter(|acquire| acquire.sets("head").is_some()) {
        let head = acquire.set_mut("head");
        *head = Operand::IfNotExists(Path::attribute("head"), Box::new(head.clone()));
    }
}

fn tail_rewound(request: &mut Request) {
    if let Some(join) = request.update_for(Purpose::Join) {
        *join.set_mut("tail") = Operand::number(1);
        let head = join.set_mut("head");
        let place = Operand::Value(head.value().unwrap().clone());
        *head = Operand::IfNotExists(Path::attribute("head"), Box::new(place));
    }
}

fn hold_time(request: &mut Request, milliseconds: u64) {
    // The release of a withdrawal has none.
    for release in request.writes_for(Purpose::Release).filter(|release| release.sets("hold").is_some()) {
        *release.set_mut("hold") = Operand::number(milliseconds);
    }
}

fn freed_later(request: &mut Request) {
    for release in request.writes_for(Purpose::Release).filter(|release| release.sets("freed_at").is_some()) {
        release.change("freed_at", |freed_at| freed_at + 86_400_000);
    }
}

fn reserved_later(request: &mut Request) {
    for reservation in request.writes_for(Purpose::Reserve) {
        reservation.change("reserved_until", |until| until + 86_400_000);
    }
}

fn reserved_for_nobody(request: &mut Request) {
    for reservation in request.writes_for(Purpose::Reserve) {
        *reservation.set_mut("reserved_by") = Operand::text("nobody");
    }
}

fn half_reserved(request: &mut Request) {
    if request.is_transaction_for(Purpose::Reserve) {
        request.writes.truncate(1);
    }
}

pub(crate) fn refused_release_succeeds(request: &Request, answer: &mut Answer) {
    if request.is_update_for(Purpose::Release) && answer.status == 400 {
        answer.status = 200;
        answer.body = json!({});
    }
}

fn ttl_too_early(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        let now = acquire.number("acquired_at").unwrap();
        acquire.change("expiration", |_| now / 1000);
    }
}
