//! The protocols have no counterexample within the bounds of the model, and each mutation has one.
//!
//! `LOCK_MODEL=2` checks larger bounds, `LOCK_MODEL=3` still larger ones.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use lambda_lock_model::{Bounds, Event, NOT_EXPRESSED, Subject};

fn bounds(subject: Subject) -> Vec<Bounds> {
    let level = env::var("LOCK_MODEL")
        .map_or(1, |level| level.parse().unwrap_or_else(|_| panic!("LOCK_MODEL is `{level}`, not a number from 1")));
    subject.bounds(level)
}

/// Checks a protocol, and that the bounds are large enough for these events.
fn assert_no_counterexample(subject: Subject, events: &[Event]) {
    let mut reached = Vec::new();
    for bounds in bounds(subject) {
        let report = subject.check(bounds, None);
        println!("{subject:?}, {bounds:?}: {} states; {:?}", report.states, report.events);
        if let Some(broken) = report.broken.first() {
            panic!("{subject:?}, {bounds:?}: {broken}");
        }
        reached.extend(report.events.into_iter().filter(|(_, steps)| *steps > 0).map(|(event, _)| event));
    }
    for event in events {
        assert!(reached.contains(event), "{subject:?} does not reach {event:?}");
    }
}

const OF_ALL: [Event; 9] = [
    Event::Acquired,
    Event::OwnRowRecognised,
    Event::Refused,
    Event::TakenOver,
    Event::Renewed,
    Event::Released,
    Event::Withdrawn,
    Event::ArrivedLate,
    Event::DeletedByTtl,
];

#[test]
fn a_lock_has_no_counterexample() {
    assert_no_counterexample(Subject::Lock, &OF_ALL);
}

#[test]
fn a_record_has_no_counterexample() {
    assert_no_counterexample(Subject::Record, &[&OF_ALL[..], &[Event::Completed, Event::Replayed]].concat());
}

#[test]
fn a_record_that_rejects_unfinished_runs_has_no_counterexample() {
    let events = [Event::Acquired, Event::Refused, Event::Completed, Event::Replayed, Event::DeletedByTtl];
    assert_no_counterexample(Subject::RejectingRecord, &events);
}

#[test]
fn several_keys_have_no_counterexample() {
    assert_no_counterexample(Subject::Several, &OF_ALL);
}

#[test]
fn several_keys_in_turn_have_no_counterexample() {
    assert_no_counterexample(Subject::SeveralInTurn, &[Event::Acquired, Event::Reserved, Event::Left, Event::Released]);
}

#[test]
fn a_semaphore_has_no_counterexample() {
    assert_no_counterexample(Subject::Semaphore, &OF_ALL);
}

#[test]
fn a_semaphore_in_turn_has_no_counterexample() {
    let events = [Event::Acquired, Event::Joined, Event::Left, Event::Served, Event::TakenOver, Event::Released];
    assert_no_counterexample(Subject::SemaphoreInTurn, &events);
}

#[test]
fn each_mutation_has_a_counterexample() {
    let mut missed = Vec::new();
    for subject in Subject::ALL {
        for mutation in subject.mutations() {
            let found = subject.bounds(1).into_iter().find_map(|bounds| {
                let report = subject.check(bounds, Some(*mutation));
                report.breaks(mutation.1).then_some((bounds, report.states))
            });
            match found {
                Some((bounds, states)) => {
                    println!("{subject:?}, {mutation:?}: found after {states} states of {bounds:?}");
                }
                None => missed.push((subject, mutation)),
            }
        }
    }
    assert!(missed.is_empty(), "no counterexample: {missed:?}");
}

#[test]
fn each_mutation_of_the_histories_is_in_the_model_or_has_a_reason() {
    let expressed = Subject::ALL.into_iter().flat_map(Subject::mutations).map(|(mutation, _)| mutation.name());
    let covered: BTreeSet<_> = expressed.chain(NOT_EXPRESSED.iter().map(|(mutation, _)| *mutation)).collect();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let files = [
        "history/mutation.rs",
        "idempotency_history/mutations.rs",
        "several_history/mutations.rs",
        "semaphore_history/mutations.rs",
    ];
    for file in files {
        let Ok(text) = fs::read_to_string(source.join(file)) else { continue };
        // The mistakes in the queue break no guarantee.
        let text = text.split("pub const QUEUE").next().unwrap_or_default();
        let names = text.split("name: \"").skip(1).filter_map(|rest| rest.split('"').next());
        let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
        assert!(names.len() > 10, "{file} has {names:?}");
        for name in names {
            assert!(covered.contains(name), "the model does not have `{name}` of {file}");
        }
    }
}
