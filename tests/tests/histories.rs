//! The guarantees hold over many random histories.
//!
//! `LOCK_SEARCH=long` runs hundreds of them, and tries every mutation. `LOCK_HISTORIES=100000` runs that many, from seed 0
//! or from `LOCK_FIRST=5000`, which is also where a search for a mutation begins.
//! `LOCK_SEED=42` runs one of each kind and prints it. `LOCK_MUTATION=takeover` tries the mutations with that in their name.

use std::env;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use lambda_lock_tests::history::{self, Counted, Mutation, Outcome, Twisted, liveness};
use lambda_lock_tests::{
    clock_history, coalesce_history, idempotency_history, long_run, on_all_cores, queue_history, rate_history,
    semaphore_history, several_history, shared_history, stream_history, variable,
};

/// How many histories a search for a mutation runs, from the seed that the mutation names.
const FOR_A_MUTATION: u64 = 2000;

fn is_long() -> bool {
    match env::var("LOCK_SEARCH").as_deref() {
        Ok("long") => true,
        Ok(other) => panic!("LOCK_SEARCH is `{other}`, not `long`"),
        Err(_) => variable("LOCK_HISTORIES").is_some(),
    }
}

/// How many histories to run if the long search runs `long` of them. Half of them reach every outcome.
fn histories(long: u64) -> u64 {
    variable("LOCK_HISTORIES").unwrap_or(if is_long() { long } else { long / 2 })
}

fn assert_no_violation<C: Debug>(seed: u64, outcome: &Outcome<C>) {
    assert!(
        outcome.violations.is_empty(),
        "{}\n\nseed {seed} broke a guarantee (run this test alone with LOCK_SEED={seed}):\n{}",
        outcome.log.join("\n"),
        outcome.violations.join("\n")
    );
}

/// Runs so many histories on all cores, until one violates a guarantee. Returns the outcomes that they reached.
fn assert_guarantees_hold<C: Counted + Debug + Send>(
    histories: u64,
    history: impl Fn(u64) -> Outcome<C> + Sync,
) -> Vec<(C, Twisted)> {
    if let Some(seed) = variable("LOCK_SEED") {
        let outcome = history(seed);
        println!("{}\n{:?}\n{:?}", outcome.log.join("\n"), outcome.counts, outcome.twisted);
        assert_no_violation(seed, &outcome);
        return Vec::new();
    }
    let is_found = AtomicBool::new(false);
    let first = variable("LOCK_FIRST").unwrap_or(0);
    let outcomes = on_all_cores(first..first + histories, |seed| {
        if is_found.load(Ordering::Relaxed) {
            return None;
        }
        let mut outcome = history(seed);
        if outcome.violations.is_empty() {
            outcome.log = Vec::new();
        } else {
            is_found.store(true, Ordering::Relaxed);
        }
        Some((seed, outcome))
    });
    let mut outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
    outcomes.sort_by_key(|(seed, _)| *seed);
    for (seed, outcome) in &outcomes {
        assert_no_violation(*seed, outcome);
    }
    outcomes.into_iter().map(|(_, outcome)| (outcome.counts, outcome.twisted)).collect()
}

/// Every outcome occurs in the sum of these histories at least once in five of them. A twist occurs in a sixth of them, and
/// there at least once in five.
fn assert_reached<C: Counted>(counts: &[(C, Twisted)]) {
    let named = |(counts, twisted): &(C, Twisted)| {
        let outcomes = counts.named().into_iter().map(|(what, count)| (what, count, 5));
        outcomes.chain(twisted.named().map(|(what, count)| (what, count, 30))).collect::<Vec<_>>()
    };
    let Some(mut sums) = counts.first().map(named) else { return };
    for counts in &counts[1..] {
        for ((_, sum, _), (_, count, _)) in sums.iter_mut().zip(named(counts)) {
            *sum += count;
        }
    }
    println!(
        "in {} histories: {:?}",
        counts.len(),
        sums.iter().map(|(what, count, _)| (what, count)).collect::<Vec<_>>()
    );
    for (what, count, once_in) in sums {
        assert!(count >= counts.len() / once_in, "only {count} {what}");
    }
}

/// The smallest seed whose history has a violation that contains `breaks`.
fn first_violation<C: Send>(
    mutation: Mutation,
    history: impl Fn(u64, Option<Mutation>) -> Outcome<C> + Sync,
) -> Option<(u64, String)> {
    let first = variable("LOCK_FIRST").unwrap_or(mutation.first_seed);
    let is_found = AtomicBool::new(false);
    let violations = on_all_cores(first..first + variable("LOCK_HISTORIES").unwrap_or(FOR_A_MUTATION), |seed| {
        if is_found.load(Ordering::Relaxed) {
            return None;
        }
        let mut violations = history(seed, Some(mutation)).violations.into_iter();
        let violation = violations.find(|violation| violation.contains(mutation.breaks))?;
        is_found.store(true, Ordering::Relaxed);
        Some((seed, violation))
    });
    violations.into_iter().flatten().min()
}

/// The short search tries the common mutations.
fn assert_caught<C: Send>(mutations: &[Mutation], history: impl Fn(u64, Option<Mutation>) -> Outcome<C> + Sync) {
    let name = env::var("LOCK_MUTATION").ok();
    let (mut missed, mut tried) = (Vec::new(), 0);
    let is_meant = |mutation: &Mutation| match &name {
        Some(name) => mutation.name.contains(name),
        None => is_long() || mutation.is_common,
    };
    for mutation in mutations.iter().filter(|mutation| is_meant(mutation)) {
        tried += 1;
        match first_violation(*mutation, &history) {
            Some((seed, violation)) => println!("{mutation:?}: caught by seed {seed}: {violation}"),
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    assert!(tried >= 3 || name.is_some(), "only {tried} mutations were tried");
}

fn assert_repeatable<C>(history: impl Fn(u64) -> Outcome<C>) {
    // Without the owners, which come from the operating system.
    let plain = |outcome: Outcome<C>| {
        outcome.log.into_iter().map(|line| line.split(" by ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for seed in 0..3 {
        assert_eq!(plain(history(seed)), plain(history(seed)));
    }
}

/// The tests of a kind of history: the number of histories in a long search, how to run one, and its mutations.
macro_rules! histories_of {
    ($($kind:ident: $long:literal of $run:path, $mutations:expr;)+) => {
        $(mod $kind {
            use super::*;

            #[test]
            fn the_guarantees_hold_and_every_outcome_is_reached() {
                assert_reached(&assert_guarantees_hold(histories($long), |seed| $run(seed, None)));
            }

            #[test]
            fn every_mutation_is_caught() {
                assert_caught(&$mutations, $run);
            }

            #[test]
            fn a_seed_gives_the_same_history_every_time() {
                assert_repeatable(|seed| $run(seed, None));
            }
        })+
    };
}

histories_of! {
    locks: 150 of history::run, [&Mutation::LOCK[..], &liveness::OF_ROWS, &liveness::OF_KEYS].concat();
    records: 100 of idempotency_history::run, idempotency_history::MUTATIONS;
    queues: 100 of queue_history::run, queue_history::MUTATIONS;
    shards: 150 of stream_history::run, stream_history::MUTATIONS;
    semaphores: 100 of semaphore_history::run, [&semaphore_history::MUTATIONS[..], &liveness::OF_ROWS].concat();
    sets: 100 of several_history::run, [&several_history::MUTATIONS[..], &liveness::OF_ROWS, &liveness::OF_KEYS].concat();
    clocks: 100 of clock_history::run, clock_history::MUTATIONS;
    coalesced: 100 of coalesce_history::run, coalesce_history::MUTATIONS;
    rates: 100 of rate_history::run, rate_history::MUTATIONS;
    shared: 100 of shared_history::run, [&shared_history::MUTATIONS[..], &liveness::OF_ROWS].concat();
}

#[test]
fn no_mistake_in_the_queue_breaks_a_guarantee() {
    for mutation in Mutation::QUEUE {
        println!("{mutation:?}");
        assert_guarantees_hold(if is_long() { 20 } else { 5 }, |seed| history::run(seed, Some(mutation)));
    }
}

/// How many operations a long run has on one row, in a long search and in a short one.
const OPERATIONS: (usize, usize) = (2_000, 500);

#[test]
fn a_row_stays_small_over_a_long_run() {
    let operations = if is_long() { OPERATIONS.0 } else { OPERATIONS.1 };
    let users = [long_run::User::Key, long_run::User::Semaphore];
    let run = |index| {
        let user = users[usize::from(index == 1)];
        (user, long_run::run(user, operations, None))
    };
    for (user, report) in on_all_cores(0..2, run) {
        println!("{user:?}: {report:?}");
        assert!(report.violations.is_empty(), "{user:?}: {:?}", report.violations);
        // Only lost requests and answers prevent an operation. A few of them take longer than the lease.
        let lost = report.errors.get("Lost").copied().unwrap_or_default();
        assert!(
            report.errors.keys().all(|kind| kind == "Unavailable" || kind == "Lost"),
            "{user:?}: {:?}",
            report.errors
        );
        assert!(lost <= operations / 1000, "{user:?}: {:?}", report.errors);
        assert!(report.operations > operations * 4 / 5, "{user:?}: {report:?}");
    }
}

#[test]
fn a_long_run_shows_a_row_that_grows() {
    for user in [long_run::User::Key, long_run::User::Semaphore] {
        for mutation in liveness::OF_ROWS {
            let report = long_run::run(user, 100, Some(mutation));
            let is_caught = report.violations.iter().any(|violation| violation.contains(mutation.breaks));
            assert!(is_caught, "{user:?}, {mutation:?}: {:?}", report.violations);
        }
    }
}
