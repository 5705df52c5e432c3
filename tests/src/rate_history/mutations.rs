//! Deliberate mistakes in the requests of a rate, which the histories must catch.

use lambda_lock::embedded::Answer;
use serde_json::{Value, json};

use crate::guarantee::{SERVED, TIMES};
use crate::history::Mutation;
use crate::request::expression::{Condition, Operand};
use crate::request::mistakes::{given_the_past, half_an_interval};
use crate::request::{DUE, Purpose, Request, Write};

/// The mistakes, and the violation that each causes.
pub const MUTATIONS: [Mutation; 8] = [
    Mutation {
        name: "a call takes half of its time",
        breaks: TIMES,
        is_common: true,
        request: half_an_interval,
        ..Mutation::NONE
    },
    Mutation {
        name: "a call begins anew although others are due",
        breaks: TIMES,
        is_common: true,
        request: begins_early,
        ..Mutation::NONE
    },
    Mutation {
        name: "a call follows calls that are long over",
        breaks: "was over when it asked",
        is_common: true,
        request: follows_late,
        ..Mutation::NONE
    },
    Mutation { name: "a wait has no bound", breaks: "longer than it may", request: waits_long, ..Mutation::NONE },
    Mutation {
        name: "a call that has to wait passes at once",
        breaks: "passes before it",
        is_common: true,
        answer: |request, answer| given_the_past(request, answer.status, &mut answer.body),
        ..Mutation::NONE
    },
    Mutation {
        name: "a refused call passes",
        breaks: "without one",
        is_common: true,
        answer: refusal_is_a_pass,
        ..Mutation::NONE
    },
    Mutation { name: "TTL earlier than the next call", breaks: TIMES, request: ttl_too_early, ..Mutation::NONE },
    Mutation {
        name: "a refusal names a time that is too early",
        breaks: SERVED,
        answer: refused_until_too_early,
        ..Mutation::NONE
    },
];

fn call(request: &mut Request) -> Option<&mut Write> {
    request.update_for(Purpose::Call)
}

fn begins_early(request: &mut Request) {
    if let Some(call) = call(request).filter(|call| !follows(call)) {
        call.rewrite(|term| {
            if let Condition::Between(path, ..) = term {
                *term = Condition::Exists(path.clone());
            }
        });
    }
}

fn follows_late(request: &mut Request) {
    between(request, |from, _| *from = Operand::number(0));
}

fn waits_long(request: &mut Request) {
    between(request, |_, to| *to = Operand::number(to.number_in(&Value::Null).unwrap() + 60_000_000));
}

fn between(request: &mut Request, change: impl Fn(&mut Operand, &mut Operand)) {
    if let Some(call) = call(request).filter(|call| follows(call)) {
        call.rewrite(|term| {
            if let Condition::Between(_, from, to) = term {
                change(from, to);
            }
        });
    }
}

fn follows(call: &Write) -> bool {
    matches!(call.sets(DUE), Some(Operand::Plus(..)))
}

fn refusal_is_a_pass(request: &Request, answer: &mut Answer) {
    if request.is_update_for(Purpose::Call) && answer.status == 400 && answer.body["Item"].is_object() {
        answer.status = 200;
        answer.body = json!({ "Attributes": { DUE: { "N": "1" } } });
    }
}

fn refused_until_too_early(request: &Request, answer: &mut Answer) {
    if request.is_update_for(Purpose::Call)
        && answer.status == 400
        && let Some(due) = answer.body["Item"][DUE]["N"].as_str()
    {
        let due: u64 = due.parse().unwrap();
        answer.body["Item"][DUE] = json!({ "N": (due - 20_000).to_string() });
    }
}

/// The row may be deleted at once.
fn ttl_too_early(request: &mut Request) {
    if let Some(call) = call(request) {
        call.change("expiration", |_| 1);
    }
}
