use serde_json::{Value, json};

use crate::history::Mutation;
use crate::history::mutation::{Kind, acquire_ignores_end, foreign_nonce, replace_in_condition};
use lambda_lock::embedded::Answer;

/// Deliberate mistakes in the protocol of idempotency, which the histories must catch.
pub const MUTATIONS: [Mutation; 14] = [
    Mutation {
        name: "acquire ignores the lease's end",
        breaks: "(ii)",
        request: acquire_ignores_end,
        ..Mutation::NONE
    },
    Mutation { name: "acquire ignores the window", breaks: "(vii)", request: acquire_ignores_window, ..Mutation::NONE },
    Mutation {
        name: "complete without the owner check",
        breaks: "(v)",
        first_seed: 187,
        request: complete_without_owner,
        ..Mutation::NONE
    },
    Mutation {
        name: "complete without the status check",
        breaks: "(v)",
        first_seed: 307,
        request: complete_without_status,
        ..Mutation::NONE
    },
    Mutation {
        name: "release without the owner check",
        breaks: "(ii)",
        request: release_without_owner,
        ..Mutation::NONE
    },
    Mutation {
        name: "release without the status check",
        breaks: "(v)",
        request: release_without_status,
        ..Mutation::NONE
    },
    Mutation { name: "replay while in progress", breaks: "(v)", answer: in_progress_replays, ..Mutation::NONE },
    Mutation {
        name: "unfinished records released under Reject",
        breaks: "(iii)",
        request: reject_forgets_unfinished,
        ..Mutation::NONE
    },
    Mutation {
        name: "the cache serves an expired result",
        breaks: "(vii)",
        answer: results_seem_to_last,
        ..Mutation::NONE
    },
    Mutation {
        name: "completion not conditional in the transaction",
        breaks: "(iv)",
        request: transaction_without_condition,
        ..Mutation::NONE
    },
    Mutation {
        name: "completion left out of the transaction",
        breaks: "(iv)",
        request: transaction_without_completion,
        ..Mutation::NONE
    },
    Mutation { name: "the window is cut short", breaks: "(i)", request: window_cut_short, ..Mutation::NONE },
    Mutation { name: "no nonce check on refusal", breaks: "(vi)", answer: foreign_nonce, ..Mutation::NONE },
    Mutation {
        name: "the lease is too long",
        breaks: "(vi) the key of a crashed run got no answer",
        request: lease_too_long,
        ..Mutation::NONE
    },
];

/// Always true. DynamoDB rejects a request with an unused value.
const ANY_OWNER: &str = "(#owner = :owner OR attribute_exists(#owner))";
const ANY_STATUS: &str = "(#status = :in_progress OR attribute_exists(#status))";

pub(crate) fn acquire_ignores_window(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        let (from, to) = ("#status = :completed AND #expiration <= :now_seconds", "#status = :completed");
        replace_in_condition(request, from, to);
    }
}

fn complete_without_owner(kind: Kind, request: &mut Value) {
    if kind == Kind::Complete {
        replace_in_condition(request, "#owner = :owner", ANY_OWNER);
    }
}

fn complete_without_status(kind: Kind, request: &mut Value) {
    if kind == Kind::Complete {
        replace_in_condition(request, "#status = :in_progress", ANY_STATUS);
    }
}

fn release_without_owner(kind: Kind, request: &mut Value) {
    if kind == Kind::Release {
        replace_in_condition(request, "#owner = :owner", ANY_OWNER);
    }
}

fn release_without_status(kind: Kind, request: &mut Value) {
    if kind == Kind::Release {
        replace_in_condition(request, "#status = :in_progress", ANY_STATUS);
    }
}

pub(crate) fn in_progress_replays(kind: Kind, _: &Value, answer: &mut Answer) {
    let row = &mut answer.body["Item"];
    if kind == Kind::Acquire && row["status"]["S"] == "INPROGRESS" {
        row["status"] = json!({ "S": "COMPLETED" });
        row["data"] = json!({ "S": "0" });
    }
}

fn reject_forgets_unfinished(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire && request["ConditionExpression"].as_str().unwrap().contains("#released") {
        replace_in_condition(request, "#released = #owner", "(#released = #owner OR attribute_exists(#owner))");
    }
}

fn results_seem_to_last(kind: Kind, _: &Value, answer: &mut Answer) {
    let row = &mut answer.body["Item"];
    if kind == Kind::Acquire && row["status"]["S"] == "COMPLETED" {
        let end: u64 = row["expiration"]["N"].as_str().unwrap().parse().unwrap();
        row["expiration"] = json!({ "N": (end + 3600).to_string() });
    }
}

fn transaction_without_condition(kind: Kind, request: &mut Value) {
    if kind == Kind::Transaction {
        let completion = &mut request["TransactItems"][0]["Update"];
        replace_in_condition(completion, "#owner = :owner", ANY_OWNER);
        replace_in_condition(completion, "#status = :in_progress", ANY_STATUS);
    }
}

fn transaction_without_completion(kind: Kind, request: &mut Value) {
    if kind == Kind::Transaction {
        request["TransactItems"].as_array_mut().unwrap().remove(0);
    }
}

fn window_cut_short(kind: Kind, request: &mut Value) {
    if kind == Kind::Complete {
        let expiration = &mut request["ExpressionAttributeValues"][":expiration"];
        let end: u64 = expiration["N"].as_str().unwrap().parse().unwrap();
        *expiration = json!({ "N": (end - 5).to_string() });
    }
}

fn lease_too_long(kind: Kind, request: &mut Value) {
    if kind == Kind::Acquire {
        let lease_end = &mut request["ExpressionAttributeValues"][":lease_end"];
        let end: u64 = lease_end["N"].as_str().unwrap().parse().unwrap();
        *lease_end = json!({ "N": (end + 600_000).to_string() });
    }
}
