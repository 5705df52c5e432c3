//! An algorithm that is not ours checks what clients of DynamoDB saw: `linear_history` says how.
//!
//! `LOCK_HISTORIES=100000` checks that many histories of each kind, from seed 0 or from `LOCK_FIRST=5000`. `LOCK_SEED=42` checks
//! one of each.

use std::collections::{BTreeMap, BTreeSet};

use lambda_lock_tests::linear_history::{Kind, Verdict, check};
use lambda_lock_tests::{on_all_cores, variable};

/// How many histories of each kind are checked.
const HISTORIES: u64 = 40;

#[test]
fn each_history_has_an_order_in_which_the_rows_give_every_answer() {
    for kind in Kind::ALL {
        let first = variable("LOCK_SEED").or(variable("LOCK_FIRST")).unwrap_or(0);
        let count = variable("LOCK_SEED").map_or_else(|| variable("LOCK_HISTORIES").unwrap_or(HISTORIES), |_| 1);
        let verdicts = on_all_cores(first..first + count, |seed| (seed, check(kind, seed, None)));
        let (mut histories, mut requests, mut left) = (0, 0, BTreeMap::new());
        for (seed, verdict) in &verdicts {
            match verdict {
                Verdict::Linearizable(of) => (histories, requests) = (histories + 1, requests + of),
                Verdict::LeftOut(why) => *left.entry(*why).or_insert(0) += 1,
                Verdict::NotLinearizable(why) | Verdict::Overlap(why) => panic!("{kind:?}, seed {seed}: {why}"),
            }
        }
        let left_out = verdicts.len() - histories;
        println!("{kind:?}: {histories} histories with {requests} requests are linearizable; left out: {left:?}");
        assert!(left_out <= verdicts.len() / 4, "{left_out} of {} were left out", verdicts.len());
    }
}

/// The planted mistakes that this checker finds, with the seed of the first history that shows each one. Those of locks are
/// looked for in both kinds of histories of one key.
const FOUND: [(Kind, &str, u64); 76] = [
    (Kind::Locks, "release without the owner check", 9),
    (Kind::Locks, "acquire ignores the lease's end", 0),
    (Kind::Locks, "clock skew not added", 0),
    (Kind::Locks, "renew without condition", 17),
    (Kind::Locks, "a refused release counts as success", 9),
    (Kind::Locks, "fence does not grow", 0),
    (Kind::Locks, "TTL earlier than the lease's end", 0),
    (Kind::Locks, "no nonce check on refusal", 15),
    (Kind::Locks, "a late renewal moves the end back", 41),
    (Kind::Locks, "a late release undoes a later one", 9),
    (Kind::Locks, "the next in line takes a held key", 86),
    (Kind::Locks, "a release ends the minimum hold early", 0),
    (Kind::Locks, "a release by force does not read whose lock it is", 9),
    (Kind::Locks, "a release by force does not compare the fence", 26),
    (Kind::Locks, "a release by force leaves the number of the holder", 14),
    (Kind::Locks, "acquire ignores the numbers", 3),
    (Kind::Identities, "a takeover does not read whose lock it saw", 190),
    (Kind::Identities, "a takeover does not check the identity", 102),
    (Kind::Identities, "a takeover does not compare the fence", 0),
    (Kind::Identities, "a takeover takes what was released", 126),
    (Kind::Identities, "a takeover takes what has ended", 91),
    (Kind::Identities, "a takeover keeps the fence of the step before", 0),
    (Kind::Several, "half of the keys are taken", 0),
    (Kind::Several, "a fence repeats", 0),
    (Kind::Several, "a cancelled acquire counts as applied", 0),
    (Kind::Several, "the lease of the last key is ignored", 0),
    (Kind::Several, "clock skew not added", 0),
    (Kind::Several, "no nonce check on refusal", 16),
    (Kind::Several, "acquire ignores a withdrawal", 1509),
    (Kind::Several, "half of the keys are released", 0),
    (Kind::Several, "a cancelled release counts as applied", 8),
    (Kind::Several, "release without the owner check", 7),
    (Kind::Several, "renew without the owner check", 7),
    (Kind::Several, "a release for an identity does not read whose key it is", 17),
    (Kind::Several, "a takeover does not read whose keys it saw", 46),
    (Kind::Several, "a release by force does not read whose key it is", 50),
    (Kind::Permits, "the next in line takes one more permit", 0),
    (Kind::Permits, "N + 1 permits", 0),
    (Kind::Permits, "a permit is replaced without checking whose it is", 0),
    (Kind::Permits, "another's permit is released", 0),
    (Kind::Permits, "a fence repeats", 0),
    (Kind::Permits, "clock skew not added", 0),
    (Kind::Permits, "a release lowers the count twice", 0),
    (Kind::Permits, "no nonce check on refusal", 1),
    (Kind::Permits, "a release forgets the attempts that were not answered", 1),
    (Kind::Permits, "a refused release counts as success", 0),
    (Kind::Permits, "a late renewal moves the end back", 92),
    (Kind::Permits, "TTL earlier than the leases' end", 0),
    (Kind::Permits, "a takeover leaves the nonce of the earlier holder", 7),
    (Kind::Permits, "a takeover leaves the sequence of the earlier holder", 0),
    (Kind::Permits, "a takeover does not read which permit it saw", 87),
    (Kind::Permits, "a release for an identity does not read whose permit it is", 17),
    (Kind::Permits, "a release for an identity frees another's permit", 0),
    (Kind::Permits, "a release by force frees another's permit", 16),
    (Kind::Permits, "acquire ignores a withdrawal", 0),
    (Kind::Records, "acquire ignores the window", 0),
    (Kind::Records, "acquire ignores the lease's end", 3),
    (Kind::Records, "complete without the status check", 25),
    (Kind::Records, "release without the owner check", 24),
    (Kind::Records, "release without the status check", 125),
    (Kind::Records, "replay while in progress", 0),
    (Kind::Records, "unfinished records released under Reject", 20),
    (Kind::Records, "the cache serves an expired result", 0),
    (Kind::Records, "completion not conditional in the transaction", 55),
    (Kind::Records, "the window is cut short", 0),
    (Kind::Records, "no nonce check on refusal", 6),
    (Kind::Records, "the lease is too long", 0),
    (Kind::Records, "completion left out of the transaction", 3),
    (Kind::Rates, "a call begins anew although others are due", 0),
    (Kind::Rates, "a call takes half of its time", 0),
    (Kind::Rates, "a call follows calls that are long over", 0),
    (Kind::Rates, "a call that has to wait passes at once", 0),
    (Kind::Rates, "a refused call passes", 0),
    (Kind::Rates, "TTL earlier than the next call", 0),
    (Kind::Rates, "a refusal names a time that is too early", 0),
    (Kind::Rates, "a wait has no bound", 1),
];

/// Those that only our own checkers are sure to find, and why.
const ONLY_OURS: [(Kind, &str, &str); 4] = [
    (
        Kind::Several,
        "a throttled transaction of a holder is not repeated",
        "a holder that gives up sends nothing, so that every answer is still right",
    ),
    (Kind::Locks, "acquire ignores a withdrawal", RARE),
    (Kind::Permits, "a takeover takes what has ended", RARE),
    (Kind::Records, "complete without the owner check", RARE),
];
const RARE: &str =
    "fewer than one of 200 histories shows it, because requests have to be late in the one order that matters";

fn is_found(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::NotLinearizable(_) | Verdict::Overlap(_))
}

#[test]
fn planted_mistakes_leave_no_order() {
    let missed = on_all_cores(0..FOUND.len() as u64, |index| {
        let (kind, name, first) = FOUND[usize::try_from(index).unwrap()];
        let mutation = kind.mutations().iter().find(|mutation| mutation.name == name).copied().unwrap();
        let is_shown = |seed: &u64| is_found(&check(kind, *seed, Some(mutation)));
        let others = || (0..variable("LOCK_HISTORIES").unwrap_or(0)).find(is_shown);
        (!(first..first + 30).any(|seed| is_shown(&seed))).then(|| (kind, name, others()))
    });
    let missed: Vec<_> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "not found there, but in these of `LOCK_HISTORIES=6000` histories: {missed:?}");
}

#[test]
fn each_planted_mistake_is_found_or_has_a_reason() {
    // Both kinds of histories of one key have the mistakes of locks.
    let protocol = |kind| if kind == Kind::Identities { Kind::Locks } else { kind };
    let found = FOUND.map(|(kind, name, _)| (protocol(kind), name)).into_iter();
    let listed: Vec<_> = found.chain(ONLY_OURS.map(|(kind, name, _)| (kind, name))).collect();
    let of = |kind: Kind| kind.mutations().iter().map(move |mutation| (protocol(kind), mutation.name));
    let all: BTreeSet<_> = Kind::ALL.into_iter().flat_map(of).collect();
    assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), all);
    assert_eq!(listed.len(), all.len(), "one is on the lists twice");
}
