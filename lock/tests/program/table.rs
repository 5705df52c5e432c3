//! `create-table` and `check`.

use crate::Place;

#[test]
fn a_table_can_be_created_twice() {
    let place = Place::new();
    for arguments in [&["create-table", "--tag", "team=billing"][..], &["create-table", "--provisioned", "1,1"]] {
        let outcome = place.run([&["--table", &format!("{}-new", place.table)], arguments].concat()).expect_code(0);
        assert!(outcome.stdout.contains("is ready"), "{outcome:?}");
    }
}

#[test]
fn a_check_passes_on_a_created_table_and_fails_on_other_keys() {
    let place = Place::new();
    place.run(["run", "--key", "job", "--", "true"]).expect_code(0);
    let healthy = place.run(["check"]).expect_code(0);
    assert!(healthy.stdout.contains("passed") && !healthy.stdout.contains("failed"), "{healthy:?}");
    let broken = place.run(["check", "--partition-key", "other"]).expect_code(78).expect_sentence(&[&place.table]);
    assert!(broken.stdout.contains("failed"), "{broken:?}");
}
