//! An algorithm that is not ours checks what clients of DynamoDB saw: `linear_history` says how.
//!
//! `LOCK_HISTORIES=100000` checks that many histories, from seed 0 or from `LOCK_FIRST=5000`. `LOCK_SEED=42` checks one.

use std::collections::{BTreeMap, BTreeSet};

use lambda_lock_tests::history::Mutation;
use lambda_lock_tests::linear_history::{Verdict, check};
use lambda_lock_tests::{on_all_cores, variable};

#[test]
fn each_history_has_an_order_in_which_a_row_gives_every_answer() {
    let first = variable("LOCK_SEED").or(variable("LOCK_FIRST")).unwrap_or(0);
    let count = if variable("LOCK_SEED").is_some() { 1 } else { variable("LOCK_HISTORIES").unwrap_or(100) };
    let verdicts = on_all_cores(first..first + count, |seed| (seed, check(seed, None)));
    let (mut histories, mut requests, mut left) = (0, 0, BTreeMap::new());
    for (seed, verdict) in &verdicts {
        match verdict {
            Verdict::Linearizable(of) => (histories, requests) = (histories + 1, requests + of),
            Verdict::LeftOut(why) => *left.entry(*why).or_insert(0) += 1,
            Verdict::NotLinearizable(why) | Verdict::Overlap(why) => panic!("seed {seed}: {why}"),
        }
    }
    let left_out = verdicts.len() - histories;
    println!("{histories} histories with {requests} requests are linearizable; left out: {left:?}");
    assert!(left_out <= verdicts.len() / 5, "{left_out} of {} were left out", verdicts.len());
}

/// The planted mistakes that this checker finds, with the seed of the first history that shows each one.
const FOUND: [(&str, u64); 17] = [
    ("no nonce check on refusal", 49),
    ("release without the owner check", 2),
    ("acquire ignores the lease's end", 0),
    ("renew without condition", 29),
    ("a refused release counts as success", 2),
    ("fence does not grow", 0),
    ("a late renewal moves the end back", 154),
    ("a release follows the ticket that was used", 2),
    ("acquire ignores a withdrawal", 548),
    ("a ticket works twice", 0),
    ("a resumption does not use up the ticket", 0),
    ("a resumption does not read whose row it is", 3),
    ("a late renewal by a ticket shortens the lease", 24),
    ("a release ends the minimum hold early", 0),
    ("a release by force does not read whose lock it is", 42),
    ("a release by force leaves the number of the holder", 5),
    ("acquire ignores the numbers", 3),
];

/// Those that only our own checkers know, and why.
const ONLY_OURS: [(&str, &str); 8] = [
    ("clock skew not added", "clocks have to differ by nearly the skew while a key changes hands"),
    ("TTL earlier than the lease's end", "no row is deleted in so short a history"),
    ("the next in line takes a held key", "the order of waiters is not in the row that is specified"),
    ("a resumed lock counts its lease from the resumption", "the key has to change hands while its holder overstays"),
    ("a renewal by a ticket leaves the number of the row", LATE_RENEWAL),
    ("a renewal by a ticket that keeps the end leaves the number of the row", LATE_RENEWAL),
    ("a takeover does not read whose lock it saw", "these histories have no identities"),
    ("a release by force does not compare the fence", "the key has to change hands while an operator frees it"),
];
const LATE_RENEWAL: &str = "a renewal of the process before has to arrive after that of the ticket";

#[test]
fn planted_mistakes_leave_no_order() {
    let is_found = |verdict: Verdict| matches!(verdict, Verdict::NotLinearizable(_) | Verdict::Overlap(_));
    let missed = on_all_cores(0..FOUND.len() as u64, |index| {
        let (name, first) = FOUND[usize::try_from(index).unwrap()];
        let mutation = Mutation::LOCK.into_iter().find(|mutation| mutation.name == name).unwrap();
        (!(first..first + 3).any(|seed| is_found(check(seed, Some(mutation))))).then_some(name)
    });
    let missed: Vec<_> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
    let listed = FOUND.map(|(name, _)| name).into_iter().chain(ONLY_OURS.map(|(name, _)| name));
    let all: BTreeSet<_> = Mutation::LOCK.map(|mutation| mutation.name).into();
    assert_eq!(listed.collect::<BTreeSet<_>>(), all);
}
