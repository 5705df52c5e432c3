use std::fmt;
use std::time::Duration;

use aws_lambda_events::kinesis::KinesisEvent;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use aws_lambda_events::streams::KinesisEventResponse;
use lambda_lock::embedded::{Answer, Intercept};
use serde_json::{Value, json};

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
    pub(crate) request: fn(Kind, &mut Value),
    pub(crate) answer: fn(Kind, &Value, &mut Answer),
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
    pub const LOCK: [Self; 21] = [
        Self { name: "no nonce check on refusal", breaks: "(f)", answer: foreign_nonce, ..Self::NONE },
        Self { name: "release without the owner check", breaks: "(e)", request: release_without_owner, ..Self::NONE },
        Self {
            name: "release sets the end to zero and drops the owner",
            breaks: "(e)",
            request: release_forgets,
            ..Self::NONE
        },
        Self { name: "fence restarts at 1 after deletion", breaks: "(b)", request: fence_restarts, ..Self::NONE },
        Self { name: "acquire ignores the lease's end", breaks: "(a)", request: acquire_ignores_end, ..Self::NONE },
        Self { name: "clock skew not added", breaks: "(a)", request: no_skew, ..Self::NONE },
        Self { name: "renew without condition", breaks: "(e)", request: renew_without_condition, ..Self::NONE },
        Self {
            name: "a refused release counts as success",
            breaks: "reported a release",
            answer: refused_release_succeeds,
            ..Self::NONE
        },
        Self { name: "fence does not grow", breaks: "(b)", request: fence_stands_still, ..Self::NONE },
        Self {
            name: "TTL earlier than the lease's end",
            breaks: "(a)",
            first_seed: 107,
            request: ttl_too_early,
            ..Self::NONE
        },
        Self {
            name: "a late renewal moves the end back",
            breaks: "(a)",
            first_seed: 182,
            request: |kind, request| ignore_sequence(Kind::Renew, kind, request),
            ..Self::NONE
        },
        Self {
            name: "a late release replaces a later one",
            breaks: "(g)",
            request: |kind, request| ignore_sequence(Kind::Release, kind, request),
            ..Self::NONE
        },
        Self {
            name: "acquire ignores a withdrawal",
            breaks: "(h)",
            first_seed: 287,
            request: withdrawal_ignored,
            ..Self::NONE
        },
        Self { name: "the next in line takes a held key", breaks: "(a)", request: turn_without_release, ..Self::NONE },
        Self { name: "a ticket works twice", breaks: "(a)", request: ticket_works_twice, ..Self::NONE },
        Self {
            name: "a resumption does not use up the ticket",
            breaks: "(a)",
            request: resumption_leaves_number,
            ..Self::NONE
        },
        Self {
            name: "a resumption does not read whose row it is",
            breaks: "(a)",
            first_seed: 86,
            request: resumption_without_owner,
            ..Self::NONE
        },
        Self {
            name: "a resumed lock counts its lease from the resumption",
            breaks: "(a)",
            first_seed: 159,
            answer: resumption_with_new_lease,
            ..Self::NONE
        },
        Self {
            name: "a late renewal by a ticket shortens the lease",
            breaks: "(g)",
            request: ticket_shortens,
            ..Self::NONE
        },
        Self {
            name: "a renewal by a ticket leaves the number of the row",
            breaks: "(g)",
            first_seed: 923,
            request: ticket_leaves_number,
            ..Self::NONE
        },
        Self {
            name: "a renewal by a ticket that keeps the end leaves the number of the row",
            breaks: "(g)",
            request: kept_end_leaves_number,
            ..Self::NONE
        },
    ];

    /// The mistakes in the queue. They cost waiters time, and break no guarantee.
    pub const QUEUE: [Self; 5] = [
        Self { name: "a place is answered like an acquired lock", answer: place_as_lock, ..Self::NONE },
        Self { name: "a place is never given up", request: place_kept, ..Self::NONE },
        Self { name: "the tail goes back behind the head", request: tail_rewound, ..Self::NONE },
        Self { name: "holds take no time", request: |kind, request| hold_time(kind, request, "0"), ..Self::NONE },
        Self { name: "holds take a day", request: |kind, request| hold_time(kind, request, "86400000"), ..Self::NONE },
    ];

    pub(crate) const NONE: Self = Self {
        name: "",
        breaks: "",
        first_seed: 0,
        request: |_, _| {},
        answer: |_, _, _| {},
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
        if let Some(kind) = Kind::of(operation, request) {
            (self.request)(kind, request);
        }
    }

    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        if let Some(kind) = Kind::of(operation, request) {
            (self.answer)(kind, request, answer);
        }
    }
}

/// The writes of the protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Acquire,
    Renew,
    Release,
    /// The resumption of a lock by its ticket.
    Resume,
    /// A renewal by a ticket.
    RenewTicket,
    /// The number that a renewal by a ticket leaves if the lease ends later already.
    KeepEnd,
    /// The place in the queue of a refused acquire.
    Join,
    /// The end of a refused acquire with an unanswered attempt.
    Withdraw,
    Complete,
    /// The caller's own transaction with a completion.
    Transaction,
}

impl Kind {
    pub(crate) fn of(operation: &str, request: &Value) -> Option<Self> {
        let values = &request["ExpressionAttributeValues"];
        match operation {
            "UpdateItem" if values[":now_micros"].is_object() => Some(Self::Acquire),
            "UpdateItem" if values[":completed"].is_object() => Some(Self::Complete),
            "UpdateItem" if values[":until"].is_object() => Some(Self::Join),
            "UpdateItem" if values[":nonce"].is_object() => Some(Self::Resume),
            "UpdateItem" if is_by_ticket(request) && values[":seen"].is_object() => Some(Self::KeepEnd),
            "UpdateItem" if is_by_ticket(request) => Some(Self::RenewTicket),
            "UpdateItem" if !values[":sequence"].is_object() => Some(Self::Withdraw),
            "UpdateItem" if values[":now"].is_object() => Some(Self::Renew),
            "UpdateItem" => Some(Self::Release),
            "TransactWriteItems" => Some(Self::Transaction),
            _ => None,
        }
    }
}

/// A ticket may have sent nothing before, so the number in the row may be that of the ticket.
fn is_by_ticket(request: &Value) -> bool {
    request["ConditionExpression"].as_str().is_some_and(|condition| condition.contains("#sequence <= :sequence"))
}

/// The fence that an acquire wrote. The answer has the row before the update.
pub(crate) fn fence_written(request: &Value, answer: &Answer) -> u64 {
    let number = |value: &Value| value["N"].as_str().map(|number| number.parse::<u64>().unwrap());
    let values = &request["ExpressionAttributeValues"];
    let before = number(&answer.body["Attributes"]["fence"]).or_else(|| number(&values[":now_micros"]));
    before.unwrap() + number(&values[":one"]).unwrap()
}

/// Rewrites the condition of a request. Panics if it does not contain `from`.
pub(crate) fn replace_in_condition(request: &mut Value, from: &str, to: &str) {
    let condition = request["ConditionExpression"].as_str().unwrap();
    let mutated = condition.replacen(from, to, 1);
    assert_ne!(condition, mutated);
    request["ConditionExpression"] = json!(mutated);
}

pub(crate) fn foreign_nonce(kind: Kind, request: &Value, answer: &mut Answer) {
    let own = &request["ExpressionAttributeValues"][":owner"];
    if kind == Kind::Acquire && answer.status == 400 && answer.body["Item"]["owner"] == *own {
        answer.body["Item"]["owner"] = json!({ "S": "someone else" });
    }
}

fn release_without_owner(kind: Kind, request: &mut Value) {
    if kind == Kind::Release {
        request["ConditionExpression"] = json!(
            "attribute_exists(#owner) AND #status = :in_progress AND (#sequence < :sequence OR #sequence >= :sequence)"
        );
    }
}

fn release_forgets(kind: Kind, request: &mut Value) {
    if kind == Kind::Release {
        request["ExpressionAttributeValues"][":lease_end"] = json!({ "N": "0" });
        let update = format!("{} REMOVE #owner", request["UpdateExpression"].as_str().unwrap());
        request["UpdateExpression"] = json!(update);
    }
}

fn fence_restarts(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        request["ExpressionAttributeValues"][":now_micros"] = json!({ "N": "0" });
    }
}

pub(crate) fn acquire_ignores_end(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        replace_in_condition(request, "#lease_end <= :now", "(#lease_end <= :now OR #lease_end > :now)");
    }
}

/// The holder's name has the skew of the history.
fn no_skew(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        let values = &mut request["ExpressionAttributeValues"];
        let skew = values[":holder"]["S"].as_str().and_then(|holder| holder.rsplit_once("skew ")?.1.parse().ok());
        let end: u64 = values[":lease_end"]["N"].as_str().unwrap().parse().unwrap();
        values[":lease_end"] = json!({ "N": (end - skew.unwrap_or(0)).to_string() });
    }
}

fn renew_without_condition(kind: Kind, request: &mut Value) {
    if kind == Kind::Renew {
        // DynamoDB rejects a request with an unused value.
        request["ConditionExpression"] = json!(
            "attribute_exists(#owner) AND (#owner = :owner OR #owner <> :owner) AND (#released = :owner OR #released <> :owner) \
             AND (#sequence < :sequence OR #sequence >= :sequence) AND (#lease_end <= :now OR #lease_end > :now)"
        );
    }
}

fn ignore_sequence(of: Kind, kind: Kind, request: &mut Value) {
    if kind == of {
        replace_in_condition(request, "#sequence < :sequence", "(#sequence < :sequence OR #sequence >= :sequence)");
    }
}

fn withdrawal_ignored(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        replace_in_condition(request, "#withdrawn <> :owner", "(#withdrawn <> :owner OR #withdrawn = :owner)");
    }
}

fn turn_without_release(kind: Kind, request: &mut Value) {
    let is_in_turn = request["ExpressionAttributeValues"][":place_ahead"].is_object();
    if kind == Kind::Acquire && is_in_turn {
        replace_in_condition(
            request,
            "(#lease_end <= :now AND NOT",
            "((#lease_end <= :now OR #lease_end > :now) AND NOT",
        );
    }
}

fn ticket_works_twice(kind: Kind, request: &mut Value) {
    if kind == Kind::Resume {
        replace_in_condition(request, "#sequence <= :sequence", "(#sequence <= :sequence OR #sequence > :sequence)");
    }
}

fn resumption_leaves_number(kind: Kind, request: &mut Value) {
    if kind == Kind::Resume {
        let values = &mut request["ExpressionAttributeValues"];
        values[":next"] = values[":sequence"].clone();
    }
}

fn resumption_without_owner(kind: Kind, request: &mut Value) {
    if kind == Kind::Resume {
        replace_in_condition(request, "#owner = :owner", "(#owner = :owner OR #owner <> :owner)");
        // A fence belongs to one owner.
        replace_in_condition(request, "#fence = :fence", "(#fence = :fence OR #fence <> :fence)");
    }
}

fn resumption_with_new_lease(kind: Kind, _: &Value, answer: &mut Answer) {
    let end = &mut answer.body["Attributes"]["in_progress_expiration"];
    if kind == Kind::Resume && answer.status == 200 {
        let stored: u64 = end["N"].as_str().unwrap().parse().unwrap();
        *end = json!({ "N": (stored + 2500).to_string() });
    }
}

fn ticket_shortens(kind: Kind, request: &mut Value) {
    if kind == Kind::RenewTicket {
        replace_in_condition(
            request,
            "#lease_end < :lease_end",
            "(#lease_end < :lease_end OR #lease_end >= :lease_end)",
        );
    }
}

fn ticket_leaves_number(kind: Kind, request: &mut Value) {
    if kind == Kind::RenewTicket {
        let update = request["UpdateExpression"].as_str().unwrap().replace(", #sequence = :sequence", "");
        request["UpdateExpression"] = update.into();
    }
}

/// Both expressions still use all values.
pub(crate) fn kept_end_leaves_number(kind: Kind, request: &mut Value) {
    if kind == Kind::KeepEnd {
        let update = request["UpdateExpression"].as_str().unwrap();
        let to = update.strip_prefix("SET ").and_then(|set| set.strip_suffix(" = :sequence")).unwrap();
        request["UpdateExpression"] = json!(format!("SET {to} = {to}"));
    }
}

fn place_as_lock(kind: Kind, _: &Value, answer: &mut Answer) {
    if kind == Kind::Join && answer.status == 200 {
        // An acquire of a new row has this answer.
        answer.body = json!({});
    }
}

fn place_kept(kind: Kind, request: &mut Value) {
    let update = request["UpdateExpression"].as_str().unwrap_or_default();
    if kind == Kind::Acquire && update.contains("#head = :place") {
        let update = update.replace("#head = :place", "#head = if_not_exists(#head, :place)");
        request["UpdateExpression"] = json!(update);
    }
}

fn tail_rewound(kind: Kind, request: &mut Value) {
    if kind == Kind::Join {
        request["UpdateExpression"] =
            json!("SET #tail = :one, #head = if_not_exists(#head, :head), #tail_until = :until");
    }
}

fn hold_time(kind: Kind, request: &mut Value, milliseconds: &str) {
    let values = &mut request["ExpressionAttributeValues"];
    if kind == Kind::Release && values[":hold"].is_object() {
        values[":hold"] = json!({ "N": milliseconds });
    }
}

fn refused_release_succeeds(kind: Kind, _: &Value, answer: &mut Answer) {
    if kind == Kind::Release && answer.status == 400 {
        answer.status = 200;
        answer.body = json!({});
    }
}

fn fence_stands_still(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        request["ExpressionAttributeValues"][":one"] = json!({ "N": "0" });
    }
}

fn ttl_too_early(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        let now = request["ExpressionAttributeValues"][":now_seconds"].clone();
        request["ExpressionAttributeValues"][":expiration"] = now;
    }
}
