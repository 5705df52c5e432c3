//! `create-table`, `check` and `delete-expired`.

use aws_sdk_dynamodb::types::AttributeValue;

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

#[test]
fn old_rows_are_deleted() {
    let place = Place::new();
    place.run(["run", "--key", "new", "--", "true"]).expect_code(0);
    let number = |number: u64| AttributeValue::N(number.to_string());
    place.put(&[
        ("id", AttributeValue::S("old".to_owned())),
        ("status", AttributeValue::S("INPROGRESS".to_owned())),
        ("in_progress_expiration", number(1_000_000_000_000)),
        ("expiration", number(1_000_000_000)),
    ]);
    for deleted in ["1 row", "0 rows"] {
        let outcome = place.run(["delete-expired"]).expect_code(0);
        assert_eq!(outcome.stdout, format!("deleted from table `{}`: {deleted}\n", place.table));
    }
    place.run(["get", "new"]).expect_code(0);
    place.run(["get", "old"]).expect_code(66);
}
