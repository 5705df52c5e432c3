//! Deliberate mistakes in coalescing, which the histories must catch.

use serde_json::json;

use crate::guarantee::AGAIN;
use crate::history::Mutation;
use crate::request::mistakes::{asks_anybody, release_forgets, takeovers};
use crate::request::{ASKED, Purpose};

/// The mistakes, and the violation that each causes.
pub const MUTATIONS: [Mutation; 8] = [
    Mutation {
        name: "work is left to a holder that has released",
        breaks: AGAIN,
        is_common: true,
        request: asks_anybody,
        ..Mutation::NONE
    },
    Mutation {
        name: "another number is asked",
        breaks: AGAIN,
        is_common: true,
        request: |request| {
            if let Some(ask) = request.update_for(Purpose::Ask) {
                ask.change(ASKED, |number| number + 1);
            }
        },
        ..Mutation::NONE
    },
    Mutation {
        name: "a refused request leaves its work",
        breaks: "no run has begun",
        answer: |request, answer| {
            if request.is_update_for(Purpose::Ask) && answer.status == 400 && answer.body["Item"].is_object() {
                answer.status = 200;
                answer.body = json!({});
            }
        },
        ..Mutation::NONE
    },
    Mutation {
        name: "a release does not see what was left",
        breaks: "does not know",
        is_common: true,
        answer: |request, answer| release_forgets(request, &mut answer.body, "Attributes"),
        ..Mutation::NONE
    },
    Mutation {
        name: "a takeover forgets what was left",
        breaks: "does not know",
        request: |request| {
            for takeover in takeovers(request) {
                if takeover.mentions(ASKED) {
                    takeover.ignore(ASKED);
                }
                takeover.update.set.retain(|(path, _)| path.name() != ASKED);
            }
        },
        ..Mutation::NONE
    },
    Mutation {
        name: "a repeated release does not see what was left",
        breaks: "does not know",
        answer: |request, answer| release_forgets(request, &mut answer.body, "Item"),
        ..Mutation::NONE
    },
    Mutation {
        name: "a release forgets what was left",
        breaks: "does not know",
        request: |request| {
            if let Some(release) = request.update_for(Purpose::Release) {
                release.update.remove.push(crate::request::expression::Path::attribute(ASKED));
            }
        },
        ..Mutation::NONE
    },
    Mutation {
        name: "what was left to one holder is left to all after it",
        breaks: "for nobody",
        is_common: true,
        answer: |request, answer| {
            let number = request.update().and_then(|release| release.compared("fence"));
            let before = &mut answer.body["Attributes"];
            if request.is_update_for(Purpose::Release) && before[ASKED].is_object() {
                before[ASKED] = json!({ "N": number.unwrap().to_string() });
            }
        },
        ..Mutation::NONE
    },
];
