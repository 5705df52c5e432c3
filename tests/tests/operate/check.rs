//! `Locks::check`: what it finds in a table, and what it costs.

use std::time::SystemTime;

use aws_sdk_dynamodb::types::{ScalarAttributeType, TimeToLiveSpecification};
use lambda_lock::Locks;
use lambda_lock::embedded::{Answer, DynamoDb, Faults, Intercept};
use lambda_lock::operate::{CheckReport, Verdict};
use lambda_lock_tests::invocation::HideRows;
use lambda_lock_tests::{Row, World};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{locks_on, ms, s, world_with_keys, world_without_ttl};

/// Every row of the table.
async fn rows(world: &World) -> Vec<Row> {
    world.client().scan().table_name(&world.table).consistent_read(true).send().await.unwrap().items.unwrap()
}

/// The subject and the verdict of each finding.
fn verdicts(report: &CheckReport) -> Vec<(&str, Verdict)> {
    report.findings().iter().map(|finding| (finding.subject(), finding.verdict())).collect()
}

/// Asserts that a finding on `subject` has this verdict, and a message with these parts.
#[track_caller]
fn assert_found(report: &CheckReport, subject: &str, verdict: Verdict, parts: &[&str]) {
    let finding = report.findings().iter().find(|finding| finding.subject() == subject);
    let finding = finding.unwrap_or_else(|| panic!("nothing on {subject}: {report}"));
    assert_eq!(finding.verdict(), verdict, "{finding}");
    for part in parts {
        assert!(finding.message().contains(part), "`{finding}` lacks `{part}`");
    }
}

const ALL_WELL: [(&str, Verdict); 8] = [
    ("table", Verdict::Passed),
    ("keys", Verdict::Passed),
    ("TTL", Verdict::Passed),
    ("dynamodb:UpdateItem", Verdict::Passed),
    ("dynamodb:GetItem", Verdict::Passed),
    ("dynamodb:Scan", Verdict::Passed),
    ("dynamodb:ConditionCheckItem", Verdict::Passed),
    ("clock", Verdict::Passed),
];

/// Changes the answers to one operation.
struct Retold<F>(&'static str, F);

impl<F> std::fmt::Debug for Retold<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<F: Fn(&mut Answer) + Send + Sync> Intercept for Retold<F> {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == self.0 {
            (self.1)(answer);
        }
    }
}

fn denied(operation: &'static str) -> impl Intercept {
    Retold(operation, move |answer: &mut Answer| {
        answer.status = 400;
        answer.body = json!({
            "__type": "com.amazon.coral.service#AccessDeniedException",
            "message": format!("not authorized to perform: {operation}"),
        });
    })
}

#[tokio::test]
async fn a_healthy_table_passes_in_six_requests_without_a_write() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let report = locks.check().await;
    assert_eq!(verdicts(&report), ALL_WELL, "{report}");
    assert!(report.is_healthy());
    assert_eq!(host.requests(), 6);
    assert_eq!(rows(&world).await, []);
    assert_found(&report, "table", Verdict::Passed, &[&world.table, "us-east-1", "active"]);
    assert_found(&report, "keys", Verdict::Passed, &["`id` (S)", "no sort key"]);
    assert_found(&report, "TTL", Verdict::Passed, &["`expiration`"]);
}

#[tokio::test]
async fn an_endpoint_that_hides_the_rows_of_refusals_fails() {
    let world = World::new().await;
    let host = world.host().intercept(HideRows).build();
    let locks = world.locks(&host).key_prefix("app#").build().unwrap();
    // There is no row that it could hide.
    assert_eq!(verdicts(&locks.check().await), ALL_WELL);
    let lock = locks.acquire("job").await.unwrap();
    let (before, requests) = (rows(&world).await, host.requests());
    let report = locks.check().await;
    assert!(!report.is_healthy());
    let parts = ["no item", "ReturnValuesOnConditionCheckFailure", "another endpoint", &world.table];
    assert_found(&report, "dynamodb:UpdateItem", Verdict::Failed, &parts);
    assert_eq!(host.requests() - requests, 8);
    assert_eq!(rows(&world).await, before);
    lock.release().await.unwrap();
    // The row of another prefix may be denied to these locks.
    let others = world.locks(&host).key_prefix("other#").build().unwrap();
    assert_eq!(verdicts(&others.check().await), ALL_WELL);
}

/// Deletes each row before an update, as TTL may.
#[derive(Debug)]
struct DeleteFirst;

impl Intercept for DeleteFirst {
    fn request(&self, operation: &str, request: &mut Value) {
        if ["UpdateItem", "GetItem"].contains(&operation) {
            request["Key"] = json!({ "id": { "S": "deleted" } });
        }
    }
}

#[tokio::test]
async fn a_row_that_is_deleted_during_the_check_passes() {
    let world = World::new().await;
    world.default_locks().acquire("job").await.unwrap().release().await.unwrap();
    let (_, locks) = locks_on(&world, world.host().intercept(DeleteFirst));
    let report = locks.check().await;
    assert_eq!(verdicts(&report), ALL_WELL, "{report}");
}

#[tokio::test]
async fn a_check_does_not_modify_a_row_under_its_own_key() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let lock = locks.acquire("lambda-lock-check").data("kept").await.unwrap();
    let (before, requests) = (rows(&world).await, host.requests());
    let report = locks.check().await;
    assert_eq!(verdicts(&report), ALL_WELL, "{report}");
    // One more than for a table without rows.
    assert_eq!(host.requests() - requests, 7);
    assert_eq!(rows(&world).await, before);
    lock.release().await.unwrap();
}

/// The check asks for no row that has another value of the sort key.
#[tokio::test]
async fn with_a_sort_key_the_check_asks_only_for_rows_with_its_value() {
    let world = world_with_keys(&[("PK", ScalarAttributeType::S), ("SK", ScalarAttributeType::S)]).await;
    let host = world.host().intercept(HideRows).build();
    let locks = |value: &str| world.locks(&host).partition_key("PK").sort_key("SK", value).build().unwrap();
    let lock = locks("LOCK").acquire("job").await.unwrap();
    assert_found(&locks("LOCK").check().await, "dynamodb:UpdateItem", Verdict::Failed, &["no item"]);
    let requests = host.requests();
    let report = locks("OTHER").check().await;
    assert!(report.is_healthy(), "{report}");
    assert_found(&report, "keys", Verdict::Passed, &["`PK` (S)", "`SK` (S)"]);
    assert_eq!(host.requests() - requests, 6);
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_missing_table_is_the_only_failure() {
    let world = World::without_table();
    let (host, locks) = locks_on(&world, world.host());
    let report = locks.check().await;
    assert!(!report.is_healthy());
    let failed: Vec<_> = report.findings().iter().filter(|finding| finding.verdict() == Verdict::Failed).collect();
    assert_eq!(failed.len(), 1, "{report}");
    assert_found(&report, "table", Verdict::Failed, &[&world.table, "not found", "create"]);
    assert_eq!(host.requests(), 1);
    // The error answer has the time, too.
    assert_eq!(verdicts(&report), [("table", Verdict::Failed), ("clock", Verdict::Passed)]);
}

#[tokio::test]
async fn ttl_that_is_off_or_on_another_attribute_is_a_warning() {
    let world = world_without_ttl().await;
    let report = world.default_locks().check().await;
    assert!(report.is_healthy());
    assert_found(&report, "TTL", Verdict::Warning, &["off", "turn it on", "`expiration`"]);

    let ttl = TimeToLiveSpecification::builder().attribute_name("ttl").enabled(true).build().unwrap();
    let update = world.client().update_time_to_live().table_name(&world.table).time_to_live_specification(ttl);
    update.send().await.unwrap();
    let report = world.default_locks().check().await;
    assert!(report.is_healthy());
    assert_found(&report, "TTL", Verdict::Warning, &["`ttl`", "not `expiration`", "turn it off there"]);
}

#[tokio::test]
async fn keys_that_differ_from_the_settings_fail_and_are_named() {
    use ScalarAttributeType::{N, S};
    type Keys<'a> = &'a [(&'a str, ScalarAttributeType)];
    let cases: [(Keys<'_>, &str, Option<&str>, &[&str]); 5] = [
        (&[("pk", S)], "id", None, &["has partition key `pk` (S), no sort key", "expect partition key `id` (S)"]),
        (&[("id", N)], "id", None, &["`id` (N)", "`id` (S)", "must be strings"]),
        (&[("id", S), ("sk", S)], "id", None, &["has partition key `id` (S), sort key `sk` (S)", "no sort key"]),
        (&[("PK", S), ("SK", N)], "PK", Some("SK"), &["sort key `SK` (N)", "sort key `SK` (S)"]),
        (&[("PK", S)], "PK", Some("SK"), &["has partition key `PK` (S), no sort key", "sort key `SK` (S)"]),
    ];
    for (keys, partition_key, sort_key, parts) in cases {
        let world = world_with_keys(keys).await;
        let host = world.host().build();
        let mut builder = world.locks_with_quick_retries(&host).partition_key(partition_key);
        if let Some(sort_key) = sort_key {
            builder = builder.sort_key(sort_key, "LOCK");
        }
        let report = builder.build().unwrap().check().await;
        assert!(!report.is_healthy(), "{report}");
        assert_found(&report, "keys", Verdict::Failed, parts);
        assert_found(&report, "keys", Verdict::Failed, &["LocksBuilder::partition_key"]);
        assert_found(&report, "table", Verdict::Passed, &[]);
        assert_eq!(host.requests(), 6);
        assert_eq!(rows(&world).await, []);
    }
}

#[tokio::test]
async fn a_denied_action_is_named_and_only_update_item_fails_the_report() {
    let world = World::new().await;
    for (operation, subject, action, verdict) in [
        ("DescribeTable", "table", "dynamodb:DescribeTable", Verdict::Warning),
        ("DescribeTimeToLive", "TTL", "dynamodb:DescribeTimeToLive", Verdict::Warning),
        ("UpdateItem", "dynamodb:UpdateItem", "dynamodb:UpdateItem", Verdict::Failed),
        ("GetItem", "dynamodb:GetItem", "dynamodb:GetItem", Verdict::Warning),
        ("Scan", "dynamodb:Scan", "dynamodb:Scan", Verdict::Warning),
        ("TransactWriteItems", "dynamodb:ConditionCheckItem", "dynamodb:ConditionCheckItem", Verdict::Warning),
    ] {
        let (host, _) = locks_on(&world, world.host().intercept(denied(operation)));
        let locks = world.locks_with_quick_retries(&host).key_prefix("app#").build().unwrap();
        let report = locks.check().await;
        let why = format!("not authorized to perform: {operation}");
        assert_found(&report, subject, verdict, &[action, "allow", &world.table, &why]);
        if action.ends_with("Item") {
            assert_found(&report, subject, verdict, &["`app#lambda-lock-check`"]);
        }
        assert_eq!(report.is_healthy(), verdict != Verdict::Failed, "{report}");
        // All other findings are unchanged. Without the description, there is no finding on the keys.
        let others: Vec<_> = verdicts(&report).into_iter().filter(|(other, _)| *other != subject).collect();
        let expected = ALL_WELL.into_iter().filter(|(other, _)| *other != subject);
        let expected: Vec<_> = expected.filter(|(other, _)| operation != "DescribeTable" || *other != "keys").collect();
        assert_eq!(others, expected, "{report}");
        assert_eq!(host.requests(), 6, "{operation}");
    }
}

#[tokio::test]
async fn a_larger_skew_allows_for_a_worse_clock() {
    let world = World::new().await;
    let host = world.host().clock_behind(s(10)).build();
    let check = async |skew| world.locks(&host).clock_skew(skew).build().unwrap().check().await;
    let report = check(s(25)).await;
    assert_eq!(verdicts(&report), ALL_WELL, "{report}");
    // Another host may be wrong by as much in the other direction.
    let report = check(s(12)).await;
    assert!(report.is_healthy());
    assert_found(&report, "clock", Verdict::Warning, &["behind", "another host", "clock skew of 12s"]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_passes_within_the_skew_and_fails_beyond_it() {
    // DynamoDB answers with whole seconds. The cases cover fractions of a second and durations of a request.
    for (part, latency) in [(0_u32, 0), (1, 0), (250, 0), (500, 40), (750, 200), (999, 0), (0, 450), (999, 450)] {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + s(1_800_000_000)).unwrap();
        Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
        for off in (-2100..=2100).step_by(100) {
            let apart = ms(u64::from(i32::unsigned_abs(off)));
            let host = if off < 0 { engine.host().clock_behind(apart) } else { engine.host().clock_ahead(apart) };
            let host = host.faults(Faults::seeded(1).latency(ms(latency)..ms(latency))).build();
            // DynamoDB answers the last request after six ways there and five ways back.
            let answered = engine.now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + 11 * ms(latency);
            let wait = (u128::from(1000 + part) - answered.as_millis() % 1000) % 1000;
            sleep(ms(wait.try_into().unwrap())).await;
            let report = Locks::builder(host.client(), "locks").build().unwrap().check().await;
            let context = format!("{off} ms, {part} ms after the second, {latency} ms each way: {report}");
            if apart <= s(1) {
                assert!(report.is_healthy(), "{context}");
            }
            if apart <= ms(500) {
                assert_found(&report, "clock", Verdict::Passed, &["clock skew is 1s"]);
            }
            // The fraction of the second and the way back of the answer are unknown.
            if apart > s(2) + ms(latency) {
                let way = if off < 0 { "behind" } else { "ahead of" };
                assert!(!report.is_healthy(), "{context}");
                assert_found(&report, "clock", Verdict::Failed, &[way, "at least", "clock skew of 1s", "NTP"]);
            }
        }
    }
}

#[tokio::test]
async fn a_table_that_is_not_active_fails_and_replicas_are_a_warning() {
    let world = World::new().await;
    for (status, says) in [
        ("CREATING", "being created: wait until it is active"),
        ("DELETING", "DELETING: make it active again"),
        ("ARCHIVED", "ARCHIVED: make it active again"),
    ] {
        let retold = Retold("DescribeTable", move |answer: &mut Answer| {
            answer.body["Table"]["TableStatus"] = json!(status);
        });
        let report = locks_on(&world, world.host().intercept(retold)).1.check().await;
        assert!(!report.is_healthy());
        assert_found(&report, "table", Verdict::Failed, &[&world.table, says]);
    }
    for (status, consistency, warned) in
        [("UPDATING", None, true), ("ACTIVE", Some("EVENTUAL"), true), ("ACTIVE", Some("STRONG"), false)]
    {
        let retold = Retold("DescribeTable", move |answer: &mut Answer| {
            let table = &mut answer.body["Table"];
            table["TableStatus"] = json!(status);
            table["Replicas"] = json!([{ "RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE" }]);
            if let Some(consistency) = consistency {
                table["MultiRegionConsistency"] = json!(consistency);
            }
        });
        let report = locks_on(&world, world.host().intercept(retold)).1.check().await;
        assert!(report.is_healthy(), "{report}");
        let warnings = verdicts(&report).into_iter().filter(|(_, verdict)| *verdict == Verdict::Warning);
        let expected: &[&str] = if warned { &["regions"] } else { &[] };
        assert_eq!(warnings.map(|(subject, _)| subject).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn multi_region_strong_consistency_passes_without_ttl_and_transactions() {
    let world = World::across_regions().await;
    let hint = "set LocksBuilder::multi_region_strong_consistency";
    for is_set in [true, false] {
        let host = world.host().build();
        let locks = world.locks(&host).multi_region_strong_consistency(is_set).build().unwrap();
        let report = locks.check().await;
        let expected =
            ["table", "keys", "regions", "TTL", "dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:Scan", "clock"];
        assert_eq!(verdicts(&report), expected.map(|subject| (subject, Verdict::Passed)), "{report}");
        assert_eq!(host.requests(), 4);
        let parts = ["us-east-2", "us-west-2 (witness)", "several keys, condition checks and `complete_in` fail"];
        assert_found(&report, "regions", Verdict::Passed, &parts);
        assert_eq!(report.to_string().contains(hint), !is_set, "{report}");
        assert_found(&report, "TTL", Verdict::Passed, &["old rows stay", "Locks::delete_expired"]);
    }
}

#[tokio::test]
async fn the_setting_for_multi_region_strong_consistency_fails_on_another_table() {
    let world = World::new().await;
    for consistency in [None, Some("EVENTUAL")] {
        let retold = Retold("DescribeTable", move |answer: &mut Answer| {
            if let Some(consistency) = consistency {
                answer.body["Table"]["Replicas"] = json!([{ "RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE" }]);
                answer.body["Table"]["MultiRegionConsistency"] = json!(consistency);
            }
        });
        let host = world.host().intercept(retold).build();
        let report = world.locks(&host).multi_region_strong_consistency(true).build().unwrap().check().await;
        assert!(!report.is_healthy());
        assert_found(&report, "regions", Verdict::Failed, &["does not have", "does not hold in other regions"]);
        assert_found(&report, "TTL", Verdict::Passed, &["`expiration`"]);
    }
}

#[tokio::test]
async fn a_network_without_an_answer_is_a_finding() {
    let world = World::new().await;
    for faults in [Faults::seeded(1).lose_requests(1.0), Faults::seeded(1).server_errors(1.0)] {
        let (host, locks) = locks_on(&world, world.host().faults(faults));
        let report = locks.check().await;
        assert_eq!(verdicts(&report), [("table", Verdict::Failed), ("clock", Verdict::Warning)], "{report}");
        assert_found(&report, "table", Verdict::Failed, &["did not answer", "and the network"]);
        // One request, with the retries of the SDK.
        assert_eq!(host.requests(), 3);
    }
    // A throttled table is only a warning.
    let (host, locks) = locks_on(&world, world.host().faults(Faults::seeded(1).throttle(1.0)));
    let report = locks.check().await;
    assert!(report.is_healthy());
    let expected = ALL_WELL.into_iter().filter(|(subject, _)| *subject != "keys");
    // The table throttles the transaction by cancelling it, which shows that it is allowed.
    let verdict = |subject| if subject == "dynamodb:ConditionCheckItem" { Verdict::Passed } else { Verdict::Warning };
    let expected: Vec<_> = expected.map(|(subject, _)| (subject, verdict(subject))).collect();
    assert_eq!(verdicts(&report), expected, "{report}");
    assert_found(&report, "dynamodb:UpdateItem", Verdict::Warning, &["throttled", "check again"]);
    assert_eq!(host.requests(), 16);
}

#[tokio::test]
async fn rejected_credentials_are_a_finding_of_their_own() {
    let world = World::new().await;
    for code in ["UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException"] {
        let retold = Retold("DescribeTable", move |answer: &mut Answer| {
            answer.status = 400;
            answer.body = json!({ "__type": code, "message": "not these" });
        });
        let (host, locks) = locks_on(&world, world.host().intercept(retold));
        let report = locks.check().await;
        assert!(!report.is_healthy());
        assert_eq!(verdicts(&report)[0], ("credentials", Verdict::Failed), "{report}");
        assert_found(&report, "credentials", Verdict::Failed, &[code, "not these", "renew them", "us-east-1"]);
        assert!(!report.to_string().contains("allow dynamodb"), "{report}");
        assert!(host.requests() <= 3);
    }
}

#[tokio::test]
async fn disabled_locks_are_a_warning() {
    let world = World::new().await;
    let report = world.locks(&world.host().build()).enabled(false).build().unwrap().check().await;
    assert!(report.is_healthy());
    assert_found(&report, "locking", Verdict::Warning, &["disabled"]);
    assert_eq!(verdicts(&report)[1..], ALL_WELL);
}

#[tokio::test(start_paused = true)]
async fn a_silent_table_is_asked_six_times_for_a_second_each() {
    let engine = DynamoDb::new().unwrap();
    let host = engine.host().build();
    host.crash();
    let before = engine.now();
    let report = Locks::builder(host.client(), "locks").build().unwrap().check().await;
    let waited = engine.now().duration_since(before).unwrap();
    assert!(waited >= s(6) && waited < s(7), "{waited:?}");
    assert_eq!(host.requests(), 0);
    assert_eq!(verdicts(&report), [("table", Verdict::Failed), ("clock", Verdict::Warning)], "{report}");
}
