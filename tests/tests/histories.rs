//! The guarantees hold over thousands of random histories.
//!
//! `LOCK_HISTORIES=100000` runs more of them. `LOCK_SEED=42` runs one of each kind and prints it. `LOCK_MUTATION=ticket`
//! tries the mutations with that in their name.

use std::env;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use lambda_lock_tests::history::{self, Mutation, Outcome};
use lambda_lock_tests::{
    idempotency_history, on_all_cores, queue_history, semaphore_history, several_history, stream_history,
};

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is `{value}`, not a number")))
}

/// Runs seeds on all cores until a violation contains `breaks`.
fn first_violation<C: Send>(
    seeds: Range<u64>,
    breaks: &str,
    history: impl Fn(u64) -> Outcome<C> + Sync,
) -> Option<(u64, Outcome<C>)> {
    let is_found = AtomicBool::new(false);
    let violations = on_all_cores(seeds, |seed| {
        if is_found.load(Ordering::Relaxed) {
            return None;
        }
        let outcome = history(seed);
        let is_violated = outcome.violations.iter().any(|violation| violation.contains(breaks));
        is_found.fetch_or(is_violated, Ordering::Relaxed);
        is_violated.then_some((seed, outcome))
    });
    violations.into_iter().flatten().min_by_key(|(seed, _)| *seed)
}

fn assert_guarantees_hold<C: Debug + Send>(histories: u64, history: impl Fn(u64) -> Outcome<C> + Sync) {
    let violation = match variable("LOCK_SEED") {
        Some(seed) => {
            let outcome = history(seed);
            println!("{}\n{:?}", outcome.log.join("\n"), outcome.counts);
            (!outcome.violations.is_empty()).then_some((seed, outcome))
        }
        None => first_violation(0..variable("LOCK_HISTORIES").unwrap_or(histories), "", history),
    };
    if let Some((seed, outcome)) = violation {
        panic!(
            "{}\n\nseed {seed} broke a guarantee (run this test alone with LOCK_SEED={seed}):\n{}",
            outcome.log.join("\n"),
            outcome.violations.join("\n")
        );
    }
}

fn assert_caught<C: Send>(mutations: &[Mutation], history: impl Fn(u64, Option<Mutation>) -> Outcome<C> + Sync) {
    let mut missed = Vec::new();
    let name = env::var("LOCK_MUTATION").unwrap_or_default();
    for mutation in mutations.iter().filter(|mutation| mutation.name.contains(&name)) {
        let first = mutation.first_seed;
        let seeds = first..first + variable("LOCK_HISTORIES").unwrap_or(2000);
        match first_violation(seeds, mutation.breaks, |seed| history(seed, Some(*mutation))) {
            Some((seed, outcome)) => {
                let violation = outcome.violations.iter().find(|violation| violation.contains(mutation.breaks));
                println!("{mutation:?}: caught by seed {seed}: {}", violation.unwrap());
            }
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

fn assert_repeatable<C>(history: impl Fn(u64) -> Outcome<C>) {
    // Without the owners, which come from the operating system.
    let plain = |outcome: Outcome<C>| {
        outcome.log.into_iter().map(|line| line.split(" by ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for seed in 0..5 {
        assert_eq!(plain(history(seed)), plain(history(seed)));
    }
}

fn assert_reached<const N: usize>(counted: impl Fn(u64) -> [(&'static str, usize); N]) {
    let mut sum = counted(0);
    for seed in 1..100 {
        for ((_, sum), (_, count)) in sum.iter_mut().zip(counted(seed)) {
            *sum += count;
        }
    }
    println!("in 100 histories: {sum:?}");
    for (what, count) in sum {
        assert!(count >= 20, "only {count} {what}");
    }
}

// behaviour 82; and 5, 10, 42, 43, 56, 76, 78 under faults
#[test]
fn the_guarantees_hold_in_every_history() {
    assert_guarantees_hold(1000, |seed| history::run(seed, None));
}

#[test]
fn every_mutation_is_caught() {
    assert_caught(&Mutation::LOCK, history::run);
}

#[test]
fn no_mistake_in_the_queue_breaks_a_guarantee() {
    for mutation in Mutation::QUEUE {
        println!("{mutation:?}");
        assert_guarantees_hold(100, |seed| history::run(seed, Some(mutation)));
    }
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    assert_repeatable(|seed| history::run(seed, None));
}

#[test]
fn the_histories_reach_every_outcome() {
    assert_reached(|seed| {
        let counts = history::run(seed, None).counts;
        let history::Counts { acquired, held, renewed, lost, crashed, withdrawn, swept, requests, joined, .. } = counts;
        [
            ("acquired", acquired),
            ("held", held),
            ("renewed", renewed),
            ("resumed", counts.resumed),
            ("tickets refused", counts.tickets_refused),
            ("lost", lost),
            ("crashed", crashed),
            ("withdrawn", withdrawn),
            ("joined", joined),
            ("swept", swept),
            ("requests", requests),
        ]
    });
}

// behaviours 60, 64, 65, 66, 67, 68, 70, 76, 79, 80, 82 under faults
#[test]
fn the_guarantees_hold_in_every_history_of_idempotency() {
    assert_guarantees_hold(700, |seed| idempotency_history::run(seed, None));
}

#[test]
fn every_mutation_of_idempotency_is_caught() {
    assert_caught(&idempotency_history::MUTATIONS, idempotency_history::run);
}

#[test]
fn a_seed_gives_the_same_history_of_idempotency_every_time() {
    assert_repeatable(|seed| idempotency_history::run(seed, None));
}

#[test]
fn the_histories_of_idempotency_reach_every_outcome() {
    assert_reached(|seed| {
        let counts = idempotency_history::run(seed, None).counts;
        [
            ("runs", counts.runs),
            ("taken over", counts.taken_over),
            ("replayed", counts.replayed),
            ("replayed errors", counts.replayed_errors),
            ("cached", counts.cached),
            ("in progress", counts.in_progress),
            ("unfinished", counts.unfinished),
            ("failed", counts.failed),
            ("overran", counts.overran),
            ("crashed", counts.crashed),
            ("completed", counts.completed),
            ("committed", counts.committed),
            ("fell back", counts.fell_back),
            ("transactions cancelled", counts.transactions_cancelled),
            ("windows ended", counts.windows_ended),
            ("swept", counts.swept),
            ("requests", counts.requests),
        ]
    });
}

// behaviours 64, 65, 66, 70, 71, 72, 73, 74, 82 under faults
#[test]
fn the_guarantees_hold_in_every_history_of_a_queue() {
    assert_guarantees_hold(700, |seed| queue_history::run(seed, None));
}

#[test]
fn every_mutation_of_a_consumer_is_caught() {
    assert_caught(&queue_history::MUTATIONS, queue_history::run);
}

#[test]
fn a_seed_gives_the_same_history_of_a_queue_every_time() {
    assert_repeatable(|seed| queue_history::run(seed, None));
}

#[test]
fn the_histories_of_a_queue_reach_every_outcome() {
    assert_reached(|seed| {
        let counts = queue_history::run(seed, None).counts;
        [
            ("runs", counts.work.runs),
            ("taken over", counts.work.taken_over),
            ("runs crashed", counts.work.crashed),
            ("batches", counts.batches),
            ("invocations crashed", counts.invocations_crashed),
            ("redelivered", counts.redelivered),
            ("done", counts.done),
            ("done before", counts.done_before),
            ("reported", counts.reported),
            ("dead", counts.dead),
            ("requests", counts.work.requests),
        ]
    });
}

// behaviours 64, 65, 66, 70, 73, 74, 82, 480, 481, 482, 483 under faults
#[test]
fn the_guarantees_hold_in_every_history_of_a_stream() {
    assert_guarantees_hold(700, |seed| stream_history::run(seed, None));
}

#[test]
fn every_mutation_of_a_consumer_of_streams_is_caught() {
    assert_caught(&stream_history::MUTATIONS, stream_history::run);
}

#[test]
fn a_seed_gives_the_same_history_of_a_stream_every_time() {
    assert_repeatable(|seed| stream_history::run(seed, None));
}

#[test]
fn the_histories_of_a_stream_reach_every_outcome() {
    assert_reached(|seed| {
        let counts = stream_history::run(seed, None).counts;
        [
            ("runs", counts.work.runs),
            ("taken over", counts.work.taken_over),
            ("runs crashed", counts.work.crashed),
            ("batches", counts.batches),
            ("invocations crashed", counts.invocations_crashed),
            ("redelivered", counts.redelivered),
            ("bisected", counts.bisected),
            ("done", counts.done),
            ("done before", counts.done_before),
            ("reported", counts.reported),
            ("discarded", counts.discarded),
            ("requests", counts.work.requests),
        ]
    });
}

// behaviours 426, 429, 434, 435, 437, 438, 439, 442, 443 under faults
#[test]
fn the_guarantees_hold_in_every_history_of_a_semaphore() {
    assert_guarantees_hold(500, |seed| semaphore_history::run(seed, None));
}

#[test]
fn every_mutation_of_a_semaphore_is_caught() {
    assert_caught(&semaphore_history::MUTATIONS, semaphore_history::run);
}

#[test]
fn a_seed_gives_the_same_history_of_a_semaphore_every_time() {
    assert_repeatable(|seed| semaphore_history::run(seed, None));
}

#[test]
fn the_histories_of_a_semaphore_reach_every_outcome() {
    assert_reached(|seed| {
        let counts = semaphore_history::run(seed, None).counts;
        let semaphore_history::Counts {
            acquired,
            replaced,
            held,
            renewed,
            lost,
            crashed,
            withdrawn,
            resumed,
            swept,
            requests,
        } = counts;
        [
            ("resumed", resumed),
            ("acquired", acquired),
            ("replaced", replaced),
            ("held", held),
            ("renewed", renewed),
            ("lost", lost),
            ("crashed", crashed),
            ("withdrawn", withdrawn),
            ("swept", swept),
            ("requests", requests),
        ]
    });
}

// behaviours 5, 42, 76, 78, 82, 87 under faults
#[test]
fn the_guarantees_hold_in_every_history_of_several_keys() {
    assert_guarantees_hold(500, |seed| several_history::run(seed, None));
}

#[test]
fn every_mutation_of_several_keys_is_caught() {
    assert_caught(&several_history::MUTATIONS, several_history::run);
}

#[test]
fn a_seed_gives_the_same_history_of_several_keys_every_time() {
    assert_repeatable(|seed| several_history::run(seed, None));
}

#[test]
fn the_histories_of_several_keys_reach_every_outcome() {
    assert_reached(|seed| {
        let counts = several_history::run(seed, None).counts;
        [
            ("sets", counts.sets),
            ("locks", counts.locks),
            ("held", counts.held),
            ("held in part", counts.held_in_part),
            ("renewed", counts.renewed),
            ("lost", counts.lost),
            ("crashed", counts.crashed),
            ("withdrawn", counts.withdrawn),
            ("conflicts", counts.conflicts),
            ("recognised", counts.recognised),
            ("swept", counts.swept),
            ("requests", counts.requests),
        ]
    });
}
