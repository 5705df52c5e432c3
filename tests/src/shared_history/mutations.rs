use lambda_lock::embedded::Answer;
use serde_json::json;

use crate::guarantee::KINDS;
use crate::history::Mutation;
use crate::history::mutation::forced_unread;
use crate::request::expression::{Comparison, Condition, Operand, Path};
use crate::request::{Purpose, Request, permit_of};

/// Deliberate mistakes about the kinds of rows, which the histories must catch.
pub const MUTATIONS: [Mutation; 4] = [
    Mutation {
        name: "a lock takes the row of a semaphore",
        breaks: KINDS,
        is_common: true,
        request: |request| take_rows_of(request, "SEMAPHORE", false),
        ..Mutation::NONE
    },
    Mutation {
        name: "a semaphore takes the row of a lock",
        breaks: KINDS,
        is_common: true,
        request: |request| take_rows_of(request, "INPROGRESS", true),
        ..Mutation::NONE
    },
    Mutation {
        name: "a lock that is held looks like a semaphore",
        breaks: KINDS,
        is_common: true,
        answer: looks_like_a_semaphore,
        ..Mutation::NONE
    },
    Mutation {
        name: "a release by force does not read whose key it is",
        breaks: "seen this acquisition",
        first_seed: 94,
        request: |request| forced_unread(request, &["owner", "fence"]),
        ..Mutation::NONE
    },
];

/// Acquires of permits, or those of keys, also take rows with this status.
fn take_rows_of(request: &mut Request, status: &str, of_permits: bool) {
    for acquire in request.writes_for(Purpose::Acquire) {
        if acquire.sets(&permit_of(&acquire.owner)).is_some() == of_permits {
            let other = Condition::Compare(Path::attribute("status"), Comparison::Equal, Operand::text(status));
            acquire.condition = Condition::Or(vec![acquire.condition.clone(), other]);
        }
    }
}

fn looks_like_a_semaphore(request: &Request, answer: &mut Answer) {
    let row = &mut answer.body["Item"];
    if request.is_update_for(Purpose::Acquire) && row["status"]["S"] == "INPROGRESS" {
        row["status"] = json!({ "S": "SEMAPHORE" });
        row["permits"] = json!({ "N": "0" });
    }
}
