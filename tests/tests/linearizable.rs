//! An algorithm that is not ours checks what clients of DynamoDB saw: `linear_history` says how.
//!
//! `LOCK_HISTORIES=100000` checks that many histories of each kind, from seed 0 or from `LOCK_FIRST=5000`. `LOCK_SEED=42` checks
//! one of each. `LOCK_SEARCH=long` looks for the planted mistakes in `LOCK_HISTORIES` histories, and prints what it finds.

use std::collections::BTreeMap;

use lambda_lock_tests::linear_history::{Kind, Verdict, check};
use lambda_lock_tests::{on_all_cores, variable};

#[test]
fn each_history_has_an_order_in_which_the_rows_give_every_answer() {
    for kind in Kind::ALL {
        let first = variable("LOCK_SEED").or(variable("LOCK_FIRST")).unwrap_or(0);
        let count = if variable("LOCK_SEED").is_some() { 1 } else { variable("LOCK_HISTORIES").unwrap_or(100) };
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

fn is_found(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::NotLinearizable(_) | Verdict::Overlap(_))
}

#[test]
#[ignore = "it only prints which history shows each planted mistake first, of `LOCK_HISTORIES` for each"]
fn which_history_shows_a_planted_mistake_first() {
    let count = variable("LOCK_HISTORIES").unwrap_or(1000);
    for kind in Kind::ALL {
        let found = on_all_cores(0..kind.mutations().len() as u64, |index| {
            let mutation = kind.mutations()[usize::try_from(index).unwrap()];
            let mut left = 0;
            let first = (0..count).find_map(|seed| {
                let verdict = check(kind, seed, Some(mutation));
                left += usize::from(matches!(verdict, Verdict::LeftOut(_)));
                is_found(&verdict).then_some((seed, matches!(verdict, Verdict::Overlap(_))))
            });
            println!("{kind:?} {} {first:?} left {left}", mutation.name);
            (mutation.name, first)
        });
        assert!(!found.is_empty());
    }
}
