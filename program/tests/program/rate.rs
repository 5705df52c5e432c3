//! `rate`: calls that pass, and those that come too early.

use crate::Place;

#[test]
fn a_call_passes_and_the_next_one_is_told_when_to_come_back() {
    let place = Place::new();
    let call = |wait: &str| place.run(["rate", "--key", "bank", "--calls", "1", "--period", "1h", "--wait", wait]);
    assert_eq!(call("0s").expect_code(0).stdout, "");
    call("1s").expect_code(75).expect_sentence(&["the rate of key `bank`", "is used up until"]);
    assert_eq!(place.json("bank")["state"], "used up");
    let listed = place.run(["list", "--kind", "rate", "--held"]).expect_code(0).stdout;
    assert!(listed.contains("bank  used up "), "{listed}");
}

#[test]
fn a_release_by_force_lets_the_next_call_pass() {
    let place = Place::new();
    let call = |period: &str| place.run(["rate", "--key", "bank", "--calls", "1", "--period", period]);
    call("24h").expect_code(0);
    call("1s").expect_code(75);
    let refused = place.run(["release", "bank", "--fence", "1"]).expect_code(78);
    refused.expect_sentence(&["it is a rate, which has no fence", "--force"]);
    let released = place.run(["release", "bank", "--force", "--yes"]).expect_code(0).stdout;
    assert!(released.starts_with("released: key `bank`, which was a rate that is used up until "), "{released}");
    assert_eq!(place.json("bank")["state"], "free");
    call("1h").expect_code(0);
}

#[test]
fn a_call_waits_for_its_time() {
    let place = Place::new();
    for _ in 0..3 {
        place.run(["rate", "--key", "bank", "--calls", "10", "--wait", "10s"]).expect_code(0);
    }
}

#[test]
fn a_wrong_number_of_calls_is_an_error() {
    let place = Place::new();
    let outcome = place.run(["rate", "--key", "bank", "--calls", "0"]).expect_code(2);
    assert!(outcome.stderr.contains("--calls"), "{outcome:?}");
    let outcome = place.run(["rate", "--key", "bank", "--calls", "1001"]).expect_code(78);
    outcome.expect_sentence(&["1001 calls in 1s", "1 call a millisecond"]);
}
