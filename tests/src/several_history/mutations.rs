use lambda_lock::embedded::Answer;
use serde_json::{Value, json};

use crate::history::Mutation;
use crate::history::mutation::{Kind, replace_in_condition};

/// Deliberate mistakes in the protocol of several keys, which the histories must catch.
pub const MUTATIONS: [Mutation; 12] = [
    Mutation {
        name: "half of the keys are taken",
        breaks: "(i)",
        request: |kind, request| halve(Kind::Acquire, kind, request),
        ..Mutation::NONE
    },
    Mutation { name: "a fence repeats", breaks: "(b)", request: fence_repeats, ..Mutation::NONE },
    Mutation {
        name: "a cancelled acquire counts as applied",
        breaks: "was given",
        answer: |kind, request, answer| cancelled_succeeds(Kind::Acquire, kind, request, answer),
        ..Mutation::NONE
    },
    Mutation { name: "no nonce check on refusal", breaks: "(f)", answer: foreign_nonce, ..Mutation::NONE },
    Mutation {
        name: "the lease of the last key is ignored",
        breaks: "(a)",
        request: |kind, request| {
            loosen(Kind::Acquire, kind, request, "#lease_end <= :now", "(#lease_end <= :now OR #lease_end > :now)");
        },
        ..Mutation::NONE
    },
    Mutation { name: "clock skew not added", breaks: "(a)", request: no_skew, ..Mutation::NONE },
    Mutation {
        name: "acquire ignores a withdrawal",
        breaks: "(h)",
        request: |kind, request| {
            let ignored = "(#withdrawn <> :owner OR #withdrawn = :owner)";
            for update in of_kind(Kind::Acquire, kind, request) {
                replace_in_condition(update, "#withdrawn <> :owner", ignored);
            }
        },
        ..Mutation::NONE
    },
    Mutation {
        name: "half of the keys are released",
        breaks: "reported a release",
        request: |kind, request| halve(Kind::Release, kind, request),
        ..Mutation::NONE
    },
    Mutation {
        name: "a cancelled release counts as applied",
        breaks: "reported a release",
        answer: |kind, request, answer| cancelled_succeeds(Kind::Release, kind, request, answer),
        ..Mutation::NONE
    },
    Mutation {
        name: "a throttled transaction of a holder is not repeated",
        breaks: "(j)",
        answer: throttling_is_final,
        ..Mutation::NONE
    },
    Mutation {
        name: "release without the owner check",
        breaks: "(e)",
        request: |kind, request| without_owner(Kind::Release, kind, request),
        ..Mutation::NONE
    },
    Mutation {
        name: "renew without the owner check",
        breaks: "(e)",
        request: |kind, request| without_owner(Kind::Renew, kind, request),
        ..Mutation::NONE
    },
];

/// The updates of a request, alone or in a transaction, with their kinds.
pub(super) fn updates<'a>(operation: &'a str, request: &'a Value) -> impl Iterator<Item = (Kind, &'a Value)> {
    let items = request["TransactItems"].as_array().into_iter().flatten().map(|item| &item["Update"]);
    let alone = (operation == "UpdateItem").then_some(request);
    items.chain(alone).filter_map(|update| Some((kind_of(update)?, update)))
}

fn kind_of(update: &Value) -> Option<Kind> {
    let proposes = update["ExpressionAttributeValues"][":fence"].is_object();
    if proposes { Some(Kind::Acquire) } else { Kind::of("UpdateItem", update) }
}

/// The updates of this kind in a transaction.
fn of_kind(wanted: Kind, kind: Kind, request: &mut Value) -> Vec<&mut Value> {
    let items = request["TransactItems"].as_array_mut().filter(|_| kind == Kind::Transaction);
    let updates = items.into_iter().flatten().map(|item| &mut item["Update"]);
    updates.filter(|update| kind_of(update) == Some(wanted)).collect()
}

fn is_transaction_of(wanted: Kind, request: &Value) -> bool {
    kind_of(&request["TransactItems"][0]["Update"]) == Some(wanted)
}

fn halve(wanted: Kind, kind: Kind, request: &mut Value) {
    if kind == Kind::Transaction
        && is_transaction_of(wanted, request)
        && let Some(items) = request["TransactItems"].as_array_mut()
    {
        items.truncate(items.len().div_ceil(2));
    }
}

fn fence_repeats(kind: Kind, request: &mut Value) {
    for update in of_kind(Kind::Acquire, kind, request) {
        update["ExpressionAttributeValues"][":fence"] = json!({ "N": "17" });
        replace_in_condition(update, "#fence < :fence", "(#fence < :fence OR #fence >= :fence)");
    }
}

fn cancelled_succeeds(wanted: Kind, kind: Kind, request: &Value, answer: &mut Answer) {
    if kind == Kind::Transaction && is_transaction_of(wanted, request) && answer.status == 400 {
        answer.status = 200;
        answer.body = json!({});
    }
}

fn throttling_is_final(kind: Kind, _: &Value, answer: &mut Answer) {
    for reason in answer.body["CancellationReasons"].as_array_mut().into_iter().flatten() {
        if kind == Kind::Transaction && reason["Code"] == "ThrottlingError" {
            reason["Code"] = json!("ValidationError");
        }
    }
}

fn foreign_nonce(kind: Kind, request: &Value, answer: &mut Answer) {
    if kind == Kind::Transaction && is_transaction_of(Kind::Acquire, request) {
        for reason in answer.body["CancellationReasons"].as_array_mut().into_iter().flatten() {
            if reason["Item"]["owner"] == request["TransactItems"][0]["Update"]["ExpressionAttributeValues"][":owner"] {
                reason["Item"]["owner"] = json!({ "S": "someone else" });
            }
        }
    }
}

/// Rewrites the condition of the last key.
fn loosen(wanted: Kind, kind: Kind, request: &mut Value, from: &str, to: &str) {
    if let Some(update) = of_kind(wanted, kind, request).pop() {
        replace_in_condition(update, from, to);
    }
}

/// The holder's name has the skew of the history.
fn no_skew(kind: Kind, request: &mut Value) {
    for update in of_kind(Kind::Acquire, kind, request) {
        let values = &mut update["ExpressionAttributeValues"];
        let skew = values[":holder"]["S"].as_str().and_then(|holder| holder.rsplit_once("skew ")?.1.parse().ok());
        let end: u64 = values[":lease_end"]["N"].as_str().unwrap().parse().unwrap();
        values[":lease_end"] = json!({ "N": (end - skew.unwrap_or(0)).to_string() });
    }
}

fn without_owner(wanted: Kind, kind: Kind, request: &mut Value) {
    for update in of_kind(wanted, kind, request) {
        replace_in_condition(update, "#owner = :owner", "(#owner = :owner OR #owner <> :owner)");
    }
}
