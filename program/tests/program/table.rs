//! `create-table`, `check` and `delete-expired`.

use aws_sdk_dynamodb::types::AttributeValue;

use crate::{Place, Process};

#[test]
fn a_table_can_be_created_twice() {
    let place = Place::new();
    for arguments in [&["create-table", "--tag", "team=billing"][..], &["create-table", "--provisioned", "1,1"]] {
        let outcome = place.run([&["--table", &format!("{}-new", place.table)], arguments].concat()).expect_code(0);
        assert!(outcome.stdout.contains("is ready"), "{outcome:?}");
    }
}

#[test]
fn the_table_of_another_program_is_refused_and_named() {
    let place = Place::new();
    place.run(["run", "--key", "job", "--", "true"]).expect_code(0);
    let other = place.run(["create-table", "--partition-key", "pk"]).expect_code(78);
    other.expect_sentence(&[&place.table, "was not changed", "`id` (S)", "`pk` (S)", "--partition-key"]);
}

#[test]
fn a_table_for_multi_region_strong_consistency_is_created_without_ttl_and_checked() {
    let place = Place::new();
    let table = format!("{}-strong", place.table);
    let with = |value: &str, action: &str| {
        let mut command = place.command(["--table", &table, action]);
        command.env("LOCK_MULTI_REGION_STRONG_CONSISTENCY", value);
        Process::start(command).outcome()
    };
    with("maybe", "create-table").expect_code(78).expect_sentence(&["LOCK_MULTI_REGION_STRONG_CONSISTENCY", "`maybe`"]);
    with("true", "create-table").expect_code(0);
    // It has no other region yet.
    let report = with("true", "check").expect_code(78).stdout;
    let has_line = |start: &str| report.lines().any(|line| line.starts_with(start));
    assert!(has_line("failed  regions: the table does not have multi-Region strong consistency"), "{report}");
    assert!(report.contains("LocksBuilder::multi_region_strong_consistency (LOCK_MULTI_REGION_STRONG_"), "{report}");
    assert!(has_line("warning TTL: off"), "{report}");
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
