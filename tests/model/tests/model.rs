//! The protocol has no counterexample within the bounds of the model, and each mistake has one.

use lambda_lock_model::{Bounds, Mistake, Subject, check};

const BOUNDS: Bounds = Bounds { clients: 2, ticks: 4, unanswered: 2, deaths: 1, states: 20_000 };

fn assert_no_counterexample(subject: Subject) {
    let report = check(subject, BOUNDS, None);
    println!("{subject:?}: {} states; {:?}", report.states, report.reached);
    assert_eq!(report.broken, None);
}

#[test]
fn a_key_has_no_counterexample() {
    assert_no_counterexample(Subject::Key);
}

#[test]
fn a_key_of_an_identity_has_no_counterexample() {
    assert_no_counterexample(Subject::KeyOfIdentity);
}

#[test]
fn permits_have_no_counterexample() {
    assert_no_counterexample(Subject::Permits(1));
    assert_no_counterexample(Subject::PermitsOfIdentity(1));
}

#[test]
fn every_mistake_has_a_counterexample() {
    for (mistake, subject, clients) in [
        (Mistake::EndIgnored, Subject::Key, 2),
        (Mistake::NumbersIgnored, Subject::Key, 1),
        (Mistake::ReleaseWithoutNumber, Subject::Key, 1),
        (Mistake::ReleaseWithoutNumber, Subject::Permits(1), 1),
        (Mistake::WithdrawalIgnored, Subject::Permits(1), 1),
    ] {
        let report = check(subject, Bounds { clients, ..BOUNDS }, Some(mistake));
        println!("{mistake:?}: {} states: {:?}", report.states, report.broken);
        assert!(report.broken.is_some(), "{mistake:?} was not found");
    }
}
