use lambda_lock::embedded::Answer;
use serde_json::{Value, json};

use crate::guarantee::{ONCE, REPLIES};
use crate::history::Mutation;
use crate::history::mutation::foreign_nonce;
use crate::request::expression::{Condition, Operand, Path};
use crate::request::mistakes::{
    acquire_ignores_end, acquire_ignores_window, lease_too_long, loosen, transaction_without_condition,
};
use crate::request::{Purpose, Request};

/// Deliberate mistakes in the protocol of idempotency, which the histories must catch.
pub const MUTATIONS: [Mutation; 14] = [
    Mutation {
        name: "acquire ignores the lease's end",
        breaks: "(ii)",
        request: acquire_ignores_end,
        ..Mutation::NONE
    },
    Mutation {
        name: "acquire ignores the window",
        breaks: "(vii)",
        is_common: true,
        request: acquire_ignores_window,
        ..Mutation::NONE
    },
    Mutation {
        name: "complete without the owner check",
        breaks: REPLIES,
        first_seed: 295,
        request: |request| unread(request, Purpose::Complete),
        ..Mutation::NONE
    },
    Mutation {
        name: "complete without the status check",
        breaks: REPLIES,
        first_seed: 307,
        request: |request| unchecked(request, Purpose::Complete),
        ..Mutation::NONE
    },
    Mutation {
        name: "release without the owner check",
        breaks: "(ii)",
        request: |request| unread(request, Purpose::Release),
        ..Mutation::NONE
    },
    Mutation {
        name: "release without the status check",
        breaks: REPLIES,
        request: |request| unchecked(request, Purpose::Release),
        ..Mutation::NONE
    },
    Mutation {
        name: "replay while in progress",
        breaks: REPLIES,
        is_common: true,
        answer: in_progress_replays,
        ..Mutation::NONE
    },
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
        first_seed: 18,
        request: transaction_without_condition,
        ..Mutation::NONE
    },
    Mutation {
        name: "completion left out of the transaction",
        breaks: "(iv)",
        is_common: true,
        request: transaction_without_completion,
        ..Mutation::NONE
    },
    Mutation {
        name: "the window is cut short",
        breaks: ONCE,
        is_common: true,
        request: window_cut_short,
        ..Mutation::NONE
    },
    Mutation { name: "no nonce check on refusal", breaks: "(vi)", answer: foreign_nonce, ..Mutation::NONE },
    Mutation {
        name: "the lease is too long",
        breaks: "(vi) the key of a crashed run got no answer",
        request: lease_too_long,
        ..Mutation::NONE
    },
];

/// Does not read whose record it is. A number belongs to one owner.
fn unread(request: &mut Request, purpose: Purpose) {
    for attribute in ["owner", "fence"] {
        loosen(request, purpose, attribute);
    }
}

/// Does not read whether the run has ended. Its end has another number.
fn unchecked(request: &mut Request, purpose: Purpose) {
    for attribute in ["status", "fence"] {
        loosen(request, purpose, attribute);
    }
}

/// Shows another row to an acquire that a row with this status refuses.
fn show(request: &Request, answer: &mut Answer, status: &str, change: impl FnOnce(&mut Value)) {
    let row = &mut answer.body["Item"];
    if request.is_update_for(Purpose::Acquire) && row["status"]["S"] == status {
        change(row);
    }
}

pub(crate) fn in_progress_replays(request: &Request, answer: &mut Answer) {
    show(request, answer, "INPROGRESS", |row| {
        row["status"] = json!({ "S": "COMPLETED" });
        row["data"] = json!({ "S": "0" });
    });
}

pub(crate) fn completed_is_in_progress(request: &Request, answer: &mut Answer) {
    show(request, answer, "COMPLETED", |row| row["status"] = json!({ "S": "INPROGRESS" }));
}

fn results_seem_to_last(request: &Request, answer: &mut Answer) {
    show(request, answer, "COMPLETED", |row| {
        let end: u64 = row["expiration"]["N"].as_str().unwrap().parse().unwrap();
        row["expiration"] = json!({ "N": (end + 3600).to_string() });
    });
}

fn reject_forgets_unfinished(request: &mut Request) {
    let Some(acquire) = request.update_for(Purpose::Acquire) else { return };
    let is_released =
        |term: &Condition| matches!(term, Condition::Compare(path, _, Operand::Path(_)) if path.name() == "released");
    if acquire.condition.leaves().into_iter().any(is_released) {
        acquire.compare("released", |_, _, _| Condition::Exists(Path::attribute("owner")));
    }
}

fn transaction_without_completion(request: &mut Request) {
    if request.is_transaction {
        request.writes.remove(0);
    }
}

fn window_cut_short(request: &mut Request) {
    if let Some(completion) = request.update_for(Purpose::Complete) {
        completion.change("expiration", |end| end - 5);
    }
}
