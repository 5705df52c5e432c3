use lambda_lock::embedded::Answer;
use serde_json::json;

use crate::guarantee::{ALL_OR_NONE, FENCES, FREED, HOLDERS, ITSELF, OWNERS, REPEATED, WITHDRAWN};
use crate::history::Mutation;
use crate::history::mutation::{forced_unread, freed_unread, skew_in};
use crate::request::expression::{Comparison, Operand};
use crate::request::mistakes::{halve, takeover_unread};
use crate::request::{LEASE_END, Purpose, Request};

/// Deliberate mistakes in the protocol of several keys, which the histories must catch.
pub const MUTATIONS: [Mutation; 15] = [
    Mutation {
        name: "half of the keys are taken",
        breaks: ALL_OR_NONE,
        is_common: true,
        request: |request| halve(request, Purpose::Acquire),
        ..Mutation::NONE
    },
    Mutation { name: "a fence repeats", breaks: FENCES, is_common: true, request: fence_repeats, ..Mutation::NONE },
    Mutation {
        name: "a cancelled acquire counts as applied",
        breaks: "was given",
        is_common: true,
        answer: |request, answer| cancelled_succeeds(request, answer, Purpose::Acquire),
        ..Mutation::NONE
    },
    Mutation { name: "no nonce check on refusal", breaks: ITSELF, answer: foreign_nonce, ..Mutation::NONE },
    Mutation {
        name: "the lease of the last key is ignored",
        breaks: HOLDERS,
        request: last_lease_ignored,
        ..Mutation::NONE
    },
    Mutation { name: "clock skew not added", breaks: HOLDERS, request: no_skew, ..Mutation::NONE },
    Mutation {
        name: "acquire ignores a withdrawal",
        breaks: WITHDRAWN,
        first_seed: 66,
        request: |request| request.items_for(Purpose::Acquire).for_each(|acquire| acquire.ignore("withdrawn")),
        ..Mutation::NONE
    },
    Mutation {
        name: "half of the keys are released",
        breaks: "reported a release",
        is_common: true,
        request: |request| halve(request, Purpose::Release),
        ..Mutation::NONE
    },
    Mutation {
        name: "a cancelled release counts as applied",
        breaks: "reported a release",
        answer: |request, answer| cancelled_succeeds(request, answer, Purpose::Release),
        ..Mutation::NONE
    },
    Mutation {
        name: "a throttled transaction of a holder is not repeated",
        breaks: REPEATED,
        answer: throttling_is_final,
        ..Mutation::NONE
    },
    Mutation {
        name: "release without the owner check",
        breaks: OWNERS,
        request: |request| loosen(request, Purpose::Release),
        ..Mutation::NONE
    },
    Mutation {
        name: "renew without the owner check",
        breaks: OWNERS,
        request: |request| loosen(request, Purpose::Renew),
        ..Mutation::NONE
    },
    Mutation {
        name: "a takeover does not read whose keys it saw",
        breaks: FREED,
        first_seed: 2309,
        request: |request| takeover_unread(request, &["owner", "fence"]),
        ..Mutation::NONE
    },
    Mutation {
        name: "a release for an identity does not read whose key it is",
        breaks: FREED,
        first_seed: 26,
        request: |request| freed_unread(request, "owner"),
        ..Mutation::NONE
    },
    Mutation {
        name: "a release by force does not read whose key it is",
        breaks: "seen this acquisition",
        is_common: true,
        request: |request| forced_unread(request, &["owner", "fence"]),
        ..Mutation::NONE
    },
];

fn fence_repeats(request: &mut Request) {
    for acquire in request.items_for(Purpose::Acquire) {
        *acquire.set_mut("fence") = Operand::number(17);
        acquire.ignore("fence");
    }
}

fn cancelled_succeeds(request: &Request, answer: &mut Answer, purpose: Purpose) {
    if request.is_transaction_for(purpose) && answer.status == 400 {
        answer.status = 200;
        answer.body = json!({});
    }
}

fn throttling_is_final(request: &Request, answer: &mut Answer) {
    for reason in answer.body["CancellationReasons"].as_array_mut().into_iter().flatten() {
        if request.is_transaction && reason["Code"] == "ThrottlingError" {
            reason["Code"] = json!("ValidationError");
        }
    }
}

fn foreign_nonce(request: &Request, answer: &mut Answer) {
    if request.is_transaction_for(Purpose::Acquire) {
        for reason in answer.body["CancellationReasons"].as_array_mut().into_iter().flatten() {
            if reason["Item"]["owner"]["S"] == *request.writes[0].owner {
                reason["Item"]["owner"] = json!({ "S": "someone else" });
            }
        }
    }
}

fn last_lease_ignored(request: &mut Request) {
    if let Some(acquire) = request.items_for(Purpose::Acquire).last().filter(|last| !last.is_takeover()) {
        acquire.loosen_only(LEASE_END, Comparison::LessOrEqual);
    }
}

fn no_skew(request: &mut Request) {
    for acquire in request.items_for(Purpose::Acquire) {
        let skew = skew_in(acquire.text("holder"));
        acquire.change(LEASE_END, |end| end - skew);
    }
}

/// The writes of a transaction that are for this do not read whose row it is. A number belongs to one owner.
fn loosen(request: &mut Request, purpose: Purpose) {
    for write in request.items_for(purpose) {
        write.loosen("owner");
        write.loosen("fence");
    }
}
