//! The protocol has no counterexample within the bounds of the model, and each mistake has one.

use std::env;

use lambda_lock_model::{Before, Bounds, Mistake, Report, Subject, check};

/// Searches everything within these bounds, in which these events happen. A long search, as in the histories, goes on with
/// larger bounds, and says which of those searches had more states than it visits.
#[track_caller]
fn assert_no_counterexample(subject: Subject, bounds: Bounds, events: &[&str]) {
    let report = search(subject, bounds);
    assert!(report.is_complete, "{subject:?}: more than {} states", report.states);
    for event in events {
        assert!(report.reached.contains(event), "{subject:?}: `{event}` does not happen");
    }
    if ["LOCK_SEARCH", "LOCK_HISTORIES"].iter().any(|name| env::var_os(name).is_some()) {
        for bounds in larger(bounds) {
            if !search(subject, bounds).is_complete {
                println!("not all states, with {bounds:?}");
            }
        }
    }
}

#[track_caller]
fn search(subject: Subject, bounds: Bounds) -> Report {
    let report = check(subject, bounds, None);
    println!("{subject:?}: {} states; {:?}", report.states, report.reached);
    assert_eq!(report.broken, None, "{subject:?}, {bounds:?}");
    report
}

/// These bounds with one of them raised: one more client, up to three, one more attempt of each, one more lost answer, death or
/// step of a clock, or one more tick.
fn larger(bounds: Bounds) -> Vec<Bounds> {
    let Bounds { clients, attempts, ticks, unanswered, deaths, steps, .. } = bounds;
    let mut all = vec![
        Bounds { attempts: attempts + 1, ..bounds },
        Bounds { ticks: ticks + 1, ..bounds },
        Bounds { unanswered: unanswered + 1, ..bounds },
        Bounds { deaths: deaths + 1, ..bounds },
        Bounds { steps: steps + 1, ..bounds },
    ];
    if clients < 3 {
        all.push(Bounds { clients: clients + 1, ..bounds });
    }
    all
}

#[test]
fn a_key_has_no_counterexample() {
    let bounds = Bounds { unanswered: 1, deaths: 1, ..Bounds::default() };
    assert_no_counterexample(Subject::Key, bounds, &["arrived late", "asked again at once", "release"]);
    let bounds = Bounds { unanswered: 1, attempts: 2, ..Bounds::default() };
    assert_no_counterexample(Subject::Key, bounds, &["acquired after a lost answer", "found a free place", "withdraw"]);
}

#[test]
fn attempts_of_one_acquire_have_no_counterexample() {
    let bounds = Bounds { clients: 1, unanswered: 2, attempts: 3, ..Bounds::default() };
    for subject in [Subject::Key, Subject::Keys, Subject::Permits(1, 1)] {
        assert_no_counterexample(subject, bounds, &["acquired after a lost answer", "arrived late", "withdraw"]);
    }
}

#[test]
fn clocks_that_step_have_no_counterexample() {
    let bounds = Bounds { steps: 1, deaths: 1, ticks: 2, ..Bounds::default() };
    assert_no_counterexample(Subject::Key, bounds, &["a clock stepped", "arrived late"]);
}

#[test]
fn an_identity_has_no_counterexample() {
    let events = ["taken over", "asked again at once", "found a free place"];
    let bounds = Bounds { unanswered: 1, ..Bounds::default() };
    assert_no_counterexample(Subject::PermitsOfIdentity(1, 1), bounds, &events);
    assert_no_counterexample(Subject::KeyOfIdentity, Bounds { attempts: 2, ..bounds }, &events);
}

#[test]
fn several_acquires_of_an_identity_have_no_counterexample() {
    assert_no_counterexample(Subject::KeyOfIdentity, Bounds { clients: 3, ..Bounds::default() }, &["taken over"]);
}

#[test]
fn several_keys_have_no_counterexample() {
    let bounds = Bounds { unanswered: 1, deaths: 1, ..Bounds::default() };
    assert_no_counterexample(Subject::Keys, bounds, &["several keys acquired", "arrived late", "withdraw"]);
}

#[test]
fn records_have_no_counterexample() {
    let bounds = Bounds { deaths: 1, ticks: 3, ..Bounds::default() };
    assert_no_counterexample(Subject::Record, bounds, &["complete", "replayed", "arrived late"]);
    assert_no_counterexample(Subject::UnfinishedRecord, bounds, &["complete", "replayed", "release"]);
}

#[test]
fn runs_of_another_library_have_no_counterexample() {
    for before in [Before::Foreign, Before::ForeignInSeconds] {
        let bounds = Bounds { before, unanswered: 1, ticks: 3, ..Bounds::default() };
        assert_no_counterexample(Subject::Record, bounds, &["taken from another library", "withdraw", "arrived late"]);
    }
}

#[test]
fn permits_have_no_counterexample() {
    let bounds = Bounds { unanswered: 1, deaths: 1, ..Bounds::default() };
    assert_no_counterexample(Subject::Permits(1, 1), bounds, &["arrived late", "asked again at once", "withdraw"]);
}

#[test]
fn clients_that_count_different_permits_have_no_counterexample() {
    let bounds = Bounds { clients: 3, ..Bounds::default() };
    let event = "refused by more permits than there should be";
    assert_no_counterexample(Subject::Permits(2, 1), bounds, &[event, "several permits freed at once"]);
    assert_no_counterexample(Subject::Permits(1, 2), bounds, &[event]);
}

#[test]
fn minimum_holds_have_no_counterexample() {
    let bounds = Bounds { holds: true, unanswered: 1, ..Bounds::default() };
    assert_no_counterexample(Subject::Key, bounds, &["released, and held for a minimum time"]);
}

#[test]
fn takeovers_have_no_counterexample() {
    for subject in [Subject::Key, Subject::Permits(1, 1)] {
        let bounds = Bounds { keeps: 1, renewals: 1, lease: 2, ..Bounds::default() };
        assert_no_counterexample(subject, bounds, &["renew", "taken over", "found a free place"]);
        let bounds = Bounds { clients: 1, unanswered: 1, attempts: 2, renewals: 0, ..bounds };
        assert_no_counterexample(subject, bounds, &["arrived late", "acquired after a lost answer", "taken over"]);
    }
}

#[test]
fn freeing_by_an_operator_has_no_counterexample() {
    for subject in [Subject::Key, Subject::Permits(1, 1)] {
        let bounds = Bounds { frees: 1, deaths: 1, ..Bounds::default() };
        assert_no_counterexample(subject, bounds, &["freed by an operator", "arrived late"]);
        let bounds = Bounds { clients: 1, unanswered: 1, attempts: 2, ..bounds };
        assert_no_counterexample(subject, bounds, &["freed by an operator", "arrived late", "free"]);
    }
}

#[test]
fn deletions_by_ttl_have_no_counterexample() {
    let bounds = Bounds { before: Before::Old, deletions: 1, unanswered: 1, ..Bounds::default() };
    assert_no_counterexample(Subject::Key, bounds, &["deleted by TTL", "arrived late", "withdraw"]);
}

#[test]
fn clients_that_are_skipped_have_no_counterexample() {
    let events = ["left to the holder", "runs once more", "another one has begun since", "arrived late"];
    let bounds = Bounds { clients: 3, unanswered: 1, ticks: 0, ..Bounds::default() };
    assert_no_counterexample(Subject::Coalesced, bounds, &events);
    let bounds = Bounds { deaths: 1, unanswered: 1, ..Bounds::default() };
    assert_no_counterexample(Subject::Coalesced, bounds, &events[..2]);
    // The clock of a client is set back, between its attempts and what it leaves to the holder too.
    let bounds = Bounds { steps: 1, attempts: 2, unanswered: 1, ticks: 0, ..Bounds::default() };
    assert_no_counterexample(Subject::Coalesced, bounds, &events[..2]);
}

#[test]
fn every_mistake_has_a_counterexample() {
    let (key, permit) = (Subject::Key, Subject::Permits(1, 1));
    let any = Bounds::default();
    let alone = Bounds { clients: 1, unanswered: 2, attempts: 3, ..any };
    let freed = Bounds { frees: 1, ..any };
    let freed_after_death = Bounds { clients: 1, deaths: 1, unanswered: 1, attempts: 2, ..freed };
    let kept = Bounds { keeps: 1, lease: 2, ..any };
    let later = Bounds { ticks: 3, unanswered: 1, ..any };
    let three = Bounds { clients: 3, ..any };
    let renewed = Bounds { renewals: 1, ..any };
    for (mistake, subject, bounds) in [
        (Mistake::NumbersIgnored, key, alone),
        (Mistake::WithdrawalIgnored, permit, alone),
        (Mistake::EndIgnored, key, any),
        (Mistake::CountIgnored, Subject::Permits(2, 2), three),
        (Mistake::WindowIgnored, Subject::Record, later),
        (Mistake::EndedUnread, permit, renewed),
        (Mistake::NumberNotRaised, key, any),
        (Mistake::TakeoverUnread, Subject::KeyOfIdentity, three),
        (Mistake::TakeoverUnread, Subject::PermitsOfIdentity(1, 1), three),
        (Mistake::TakeoverUnread, key, kept),
        (Mistake::TakeoverUnread, permit, kept),
        (Mistake::TakeoverOfEnded, key, Bounds { lease: 1, ticks: 3, ..kept }),
        (Mistake::TakeoverOfEnded, permit, Bounds { lease: 1, ticks: 3, ..kept }),
        (Mistake::TakeoverLeavesOwner, key, kept),
        (Mistake::TakeoverLeavesOwner, permit, kept),
        (Mistake::FenceOfClock, Subject::Permits(2, 2), any),
        (Mistake::ReleaseWithoutNumber, key, alone),
        (Mistake::ReleaseWithoutNumber, permit, alone),
        (Mistake::ReleaseWithoutClock, key, Bounds { deaths: 1, ticks: 2, ..any }),
        (Mistake::SequenceIgnored, key, Bounds { renewals: 2, unanswered: 1, ticks: 2, ..any }),
        (Mistake::SequenceIgnored, permit, Bounds { renewals: 2, unanswered: 1, ticks: 2, ..any }),
        (Mistake::WithdrawalEnds, Subject::Record, Bounds { before: Before::Foreign, ..later }),
        (Mistake::WithdrawalExpires, key, Bounds { before: Before::Old, deletions: 1, unanswered: 1, ..any }),
        (Mistake::WithdrawalUnnumbered, key, alone),
        (Mistake::WithdrawalUnnumbered, permit, alone),
        (Mistake::WithdrawalOfOneKey, Subject::Keys, Bounds { unanswered: 1, ..any }),
        (Mistake::FreeingSetsBack, permit, freed_after_death),
        (Mistake::FreeingWithoutNumbers, key, freed_after_death),
        (Mistake::FreeingWithoutNumbers, permit, freed_after_death),
        (Mistake::FreeingUnread, key, freed),
        (Mistake::FreeingUnread, permit, freed),
        (Mistake::AskedUnread, Subject::Coalesced, any),
        (Mistake::AskedWithoutNumbers, Subject::Coalesced, Bounds { unanswered: 1, ..any }),
        (Mistake::AskedAnother, Subject::Coalesced, any),
    ] {
        let report = check(subject, bounds, Some(mistake));
        println!("{mistake:?}: {} states: {:?}", report.states, report.broken);
        assert!(report.broken.is_some(), "{mistake:?} was not found for {subject:?}");
    }
}
