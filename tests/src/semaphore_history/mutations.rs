//! Deliberate mistakes in the protocol of the semaphore.

use std::cell::RefCell;

use lambda_lock::embedded::Answer;
use serde_json::{Value, json};

use super::CROWD_SEED;
use crate::history::Mutation;
use crate::history::mutation::{Kind, kept_end_leaves_number, replace_in_condition};

/// The mistakes, and the violation that each causes.
pub const MUTATIONS: [Mutation; 16] = [
    Mutation { name: "N + 1 permits", breaks: "(a)", request: one_more, ..Mutation::NONE },
    Mutation {
        name: "a permit is replaced without checking whose it is",
        breaks: "(a)",
        request: replaces_unchecked,
        answer: shows_ended,
        ..Mutation::NONE
    },
    Mutation { name: "another's permit is released", breaks: "(e)", request: releases_another, ..Mutation::NONE },
    Mutation { name: "a fence repeats", breaks: "(b)", request: fence_repeats, ..Mutation::NONE },
    Mutation { name: "clock skew not added", breaks: "(a)", request: no_skew, ..Mutation::NONE },
    Mutation { name: "no nonce check on refusal", breaks: "(f)", answer: foreign_nonce, ..Mutation::NONE },
    Mutation { name: "a release lowers the count twice", breaks: "(m)", request: released_twice, ..Mutation::NONE },
    Mutation { name: "acquire ignores a release", breaks: "(e)", request: tombstone_ignored, ..Mutation::NONE },
    Mutation { name: "a release leaves no trace", breaks: "(e)", request: no_tombstone, ..Mutation::NONE },
    Mutation { name: "a late renewal moves the end back", breaks: "(g)", request: sequence_ignored, ..Mutation::NONE },
    Mutation {
        name: "a refused release counts as success",
        breaks: "reported a release",
        answer: refused_release_succeeds,
        ..Mutation::NONE
    },
    Mutation {
        name: "a renewal by a ticket leaves the number of the permit",
        breaks: "(g)",
        request: ticket_leaves_number,
        ..Mutation::NONE
    },
    Mutation {
        name: "a renewal by a ticket that keeps the end leaves the number of the permit",
        breaks: "(g)",
        request: kept_end_leaves_number,
        ..Mutation::NONE
    },
    Mutation {
        name: "a resumed permit counts its lease from the resumption",
        breaks: "(a)",
        answer: resumption_with_new_lease,
        ..Mutation::NONE
    },
    Mutation {
        name: "tombstones of a crowded row stay",
        breaks: "(t)",
        first_seed: CROWD_SEED,
        request: tombstones_stay,
        ..Mutation::NONE
    },
    Mutation { name: "TTL earlier than the leases' end", breaks: "(a)", request: ttl_too_early, ..Mutation::NONE },
];

fn replace_in_update(request: &mut Value, from: &str, to: &str) {
    let update = request["UpdateExpression"].as_str().unwrap();
    let mutated = update.replacen(from, to, 1);
    assert_ne!(update, mutated);
    request["UpdateExpression"] = json!(mutated);
}

fn one_more(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        let most = &mut request["ExpressionAttributeValues"][":most"]["N"];
        *most = json!((most.as_str().unwrap().parse::<u64>().unwrap() + 1).to_string());
    }
}

/// Every refusal shows permits that have ended.
fn shows_ended(kind: Kind, request: &Value, answer: &mut Answer) {
    if kind == Kind::Acquire && answer.status == 400 {
        let own = &request["ExpressionAttributeNames"]["#permit"];
        for (name, value) in answer.body["Item"].as_object_mut().into_iter().flatten() {
            if name.starts_with("permit:") && *name != *own && value["M"]["lease_end"].is_object() {
                value["M"]["lease_end"] = json!({ "N": "0" });
            }
        }
    }
}

fn replaces_unchecked(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire && request["ExpressionAttributeValues"][":ended"].is_object() {
        let condition = request["ConditionExpression"].as_str().unwrap();
        request["ConditionExpression"] = json!(condition.replace("#lease_end <= :now", "#lease_end <> :now"));
    }
}

fn releases_another(kind: Kind, request: &mut Value) {
    thread_local! {
        static LAST: RefCell<String> = RefCell::default();
    }
    let names = &mut request["ExpressionAttributeNames"];
    let Some(own) = names["#permit"].as_str().and_then(|name| name.strip_prefix("permit:")).map(str::to_owned) else {
        return;
    };
    if kind == Kind::Acquire {
        LAST.set(own);
    } else if kind == Kind::Release && names["#permit_fence"].is_string() {
        let other = LAST.with_borrow(Clone::clone);
        names["#permit"] = json!(format!("permit:{other}"));
        names["#permit_fence"] = json!(format!("permit_fence:{other}"));
    }
}

fn fence_repeats(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        let from = "#fence = if_not_exists(#fence, :now_micros) + :one";
        replace_in_update(request, from, "#fence = if_not_exists(#fence, :now_micros) + :zero");
    }
}

/// The holder's name has the skew of the history.
fn no_skew(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        let permit = &mut request["ExpressionAttributeValues"][":permit"]["M"];
        let skew = permit["holder"]["S"].as_str().and_then(|holder| holder.rsplit_once("skew ")?.1.parse().ok());
        let end: u64 = permit["lease_end"]["N"].as_str().unwrap().parse().unwrap();
        permit["lease_end"] = json!({ "N": (end - skew.unwrap_or(0)).to_string() });
    }
}

fn foreign_nonce(kind: Kind, request: &Value, answer: &mut Answer) {
    if kind == Kind::Acquire && answer.status == 400 {
        let own = request["ExpressionAttributeNames"]["#permit"].as_str().unwrap().strip_prefix("permit:").unwrap();
        let Some(row) = answer.body["Item"].as_object_mut() else { return };
        for prefix in ["permit:", "permit_fence:"] {
            if let Some(value) = row.remove(&format!("{prefix}{own}")) {
                row.insert(format!("{prefix}someone else"), value);
            }
        }
    }
}

/// A release is also applied to a permit that is gone.
fn released_twice(kind: Kind, request: &mut Value) {
    if kind == Kind::Release && request["ExpressionAttributeValues"][":tombstone"].is_object() {
        replace_in_condition(request, "#permit.#sequence < :sequence", "NOT #permit.#sequence >= :sequence");
    }
}

fn tombstone_ignored(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        request["ExpressionAttributeNames"]["#released_at"] = json!("released_at");
        let to = "(attribute_not_exists(#permit) OR attribute_exists(#permit.#released_at))";
        replace_in_condition(request, "attribute_not_exists(#permit)", to);
    }
}

fn no_tombstone(kind: Kind, request: &mut Value) {
    let values = &mut request["ExpressionAttributeValues"];
    if kind == Kind::Release && values[":tombstone"].is_object() {
        values.as_object_mut().unwrap().remove(":tombstone");
        replace_in_update(request, "#permit = :tombstone, ", "");
        replace_in_update(request, " REMOVE ", " REMOVE #permit, ");
    }
}

fn sequence_ignored(kind: Kind, request: &mut Value) {
    if kind == Kind::Renew {
        replace_in_condition(request, "#permit.#sequence < :sequence", "#permit.#sequence <> :sequence");
    }
}

fn refused_release_succeeds(kind: Kind, _: &Value, answer: &mut Answer) {
    if kind == Kind::Release && answer.status == 400 {
        answer.status = 200;
        answer.body = json!({});
    }
}

fn tombstones_stay(_: Kind, request: &mut Value) {
    if request["UpdateExpression"].as_str().is_some_and(|update| update.starts_with("REMOVE ")) {
        replace_in_condition(request, "#status = :semaphore", "NOT #status = :semaphore");
    }
}

fn ttl_too_early(kind: Kind, request: &mut Value) {
    let values = &mut request["ExpressionAttributeValues"];
    if kind == Kind::Acquire {
        let micros: u64 = values[":now_micros"]["N"].as_str().unwrap().parse().unwrap();
        values[":expiration"] = json!({ "N": (micros / 1_000_000).to_string() });
    }
}

fn ticket_leaves_number(kind: Kind, request: &mut Value) {
    if kind == Kind::RenewTicket {
        replace_in_update(request, ", #permit.#sequence = :sequence", "");
    }
}

fn resumption_with_new_lease(kind: Kind, request: &Value, answer: &mut Answer) {
    if kind == Kind::Resume && answer.status == 200 {
        let permit = request["ExpressionAttributeNames"]["#permit"].as_str().unwrap();
        let end = &mut answer.body["Attributes"][permit]["M"]["lease_end"];
        let stored: u64 = end["N"].as_str().unwrap().parse().unwrap();
        *end = json!({ "N": (stored + 2500).to_string() });
    }
}
