//! What an operator does with a table of locks: look whether it is well, list what is held, free what a crash left. On the
//! embedded engine, or on the DynamoDB that `LOCK_TEST_ENDPOINT` names, where time is real: so a test that needs another
//! time sets a host's clock. What only the embedded engine can show is in paused time on that.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    TimeToLiveSpecification, TransactWriteItem,
};
use lambda_lock::embedded::{Answer, DynamoDb, Faults, Host, HostBuilder, Intercept};
use lambda_lock::{
    Backoff, Error, HandlerError, Holder, Idempotency, Jitter, Lock, Locks, OnMissingKey, OnTimeout, Report, Verdict,
};
use lambda_lock_tests::invocation::{LoseAnswers, millis};
use lambda_lock_tests::{Row, World};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::sleep;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn fence(row: &Row) -> u64 {
    row["fence"].as_n().unwrap().parse().unwrap()
}

/// Every row of the table.
async fn rows(world: &World) -> Vec<Row> {
    world.client().scan().table_name(&world.table).consistent_read(true).send().await.unwrap().items.unwrap()
}

/// Its table has these keys, each with its type, and no TTL.
async fn world_with_keys(keys: &[(&str, ScalarAttributeType)]) -> World {
    let world = World::without_table();
    let mut create = world.client().create_table().table_name(&world.table).billing_mode(BillingMode::PayPerRequest);
    for ((name, kind), role) in keys.iter().zip([KeyType::Hash, KeyType::Range]) {
        let element = KeySchemaElement::builder().attribute_name(*name).key_type(role).build().unwrap();
        let definition = AttributeDefinition::builder().attribute_name(*name).attribute_type(kind.clone());
        create = create.key_schema(element).attribute_definitions(definition.build().unwrap());
    }
    create.send().await.unwrap();
    world
}

async fn world_without_ttl() -> World {
    world_with_keys(&[("id", ScalarAttributeType::S)]).await
}

fn locks_on(world: &World, host: HostBuilder) -> (Host, Locks) {
    let host = host.build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    (host, locks)
}

// Check

/// What was looked at, and how it is.
fn verdicts(report: &Report) -> Vec<(&str, Verdict)> {
    report.findings().iter().map(|finding| (finding.subject(), finding.verdict())).collect()
}

/// The finding on this, which is so and says all of that.
#[track_caller]
fn assert_found(report: &Report, subject: &str, verdict: Verdict, parts: &[&str]) {
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

/// Changes what an operation is told, or leaves it as it is.
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

// behaviour 39
#[tokio::test]
async fn a_healthy_table_passes_in_six_requests_and_nothing_is_written() {
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

// behaviour 39
#[tokio::test]
async fn a_report_has_one_line_for_each_finding() {
    let world = world_without_ttl().await;
    let report = world.default_locks().check().await;
    let text = report.to_string();
    let lines: Vec<_> = text.lines().collect();
    let findings = report.findings();
    assert_eq!(lines, findings.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(lines.len(), 8);
    assert!(lines[0].starts_with("passed  table: "), "{text}");
    assert!(lines[2].starts_with("warning TTL: "), "{text}");
    for (line, finding) in lines.iter().zip(findings) {
        assert_eq!(*line, format!("{:<7} {}: {}", finding.verdict().to_string(), finding.subject(), finding.message()));
    }
}

// behaviour 39
#[tokio::test]
async fn a_check_leaves_rows_alone_also_one_with_the_key_that_it_asks_for() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let lock = locks.acquire("lambda-lock-check").data("kept").await.unwrap();
    let (before, requests) = (rows(&world).await, host.requests());
    let report = locks.check().await;
    assert_eq!(verdicts(&report), ALL_WELL, "{report}");
    assert_eq!(host.requests() - requests, 6);
    assert_eq!(rows(&world).await, before);
    lock.release().await.unwrap();
}

// behaviours 26, 39
#[tokio::test]
async fn a_table_with_keys_of_other_names_passes_for_locks_that_know_them() {
    let world = world_with_keys(&[("PK", ScalarAttributeType::S), ("SK", ScalarAttributeType::S)]).await;
    let locks = world.locks(&world.host().build()).partition_key("PK").sort_key("SK", "LOCK").key_prefix("lock#");
    let report = locks.build().unwrap().check().await;
    assert!(report.is_healthy(), "{report}");
    assert_found(&report, "keys", Verdict::Passed, &["`PK` (S)", "`SK` (S)"]);
    assert_eq!(rows(&world).await, []);
}

// behaviour 39
#[tokio::test]
async fn a_table_that_is_not_there_is_the_one_finding_and_names_the_way_out() {
    let world = World::without_table();
    let (host, locks) = locks_on(&world, world.host());
    let report = locks.check().await;
    assert!(!report.is_healthy());
    let failed: Vec<_> = report.findings().iter().filter(|finding| finding.verdict() == Verdict::Failed).collect();
    assert_eq!(failed.len(), 1, "{report}");
    assert_found(&report, "table", Verdict::Failed, &[&world.table, "not found", "create"]);
    assert_eq!(host.requests(), 1);
    // Its answer says what time it is all the same.
    assert_eq!(verdicts(&report), [("table", Verdict::Failed), ("clock", Verdict::Passed)]);
}

// behaviours 9, 39
#[tokio::test]
async fn ttl_that_is_off_or_on_another_attribute_is_a_warning_that_names_the_right_one() {
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

// behaviours 26, 39
#[tokio::test]
async fn keys_that_are_not_as_the_locks_have_them_fail_and_both_are_named() {
    use ScalarAttributeType::{N, S};
    type Keys<'a> = &'a [(&'a str, ScalarAttributeType)];
    let cases: [(Keys<'_>, &str, Option<&str>, &[&str]); 5] = [
        (&[("pk", S)], "id", None, &["has partition key `pk` (S), no sort key", "set to partition key `id` (S)"]),
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

// behaviours 39, 46
#[tokio::test]
async fn each_action_that_is_denied_is_named_and_only_that_of_acquiring_fails_the_report() {
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
        // Everything else is as it was; without the description, the keys are not known.
        let others: Vec<_> = verdicts(&report).into_iter().filter(|(other, _)| *other != subject).collect();
        let expected = ALL_WELL.into_iter().filter(|(other, _)| *other != subject);
        let expected: Vec<_> = expected.filter(|(other, _)| operation != "DescribeTable" || *other != "keys").collect();
        assert_eq!(others, expected, "{report}");
        assert_eq!(host.requests(), 6, "{operation}");
    }
}

// behaviours 10, 39
#[tokio::test]
async fn a_clock_that_is_wrong_by_more_than_the_skew_fails_and_is_told_by_how_much() {
    let world = World::new().await;
    for (host, way) in [(world.host().clock_ahead(s(10)), "ahead of"), (world.host().clock_behind(s(10)), "behind")] {
        let (_, locks) = locks_on(&world, host);
        let report = locks.check().await;
        assert!(!report.is_healthy());
        assert_found(&report, "clock", Verdict::Failed, &["at least", way, "clock skew of 1s", "NTP"]);
        let message = report.findings().last().unwrap().message();
        let apart = message.split(' ').nth(2).unwrap();
        // As far as whole seconds tell, and the time that a request takes.
        assert!(["8s", "9s", "10s"].contains(&apart), "{message}");
        let others: Vec<_> = verdicts(&report).into_iter().filter(|(_, verdict)| *verdict != Verdict::Passed).collect();
        assert_eq!(others, [("clock", Verdict::Failed)]);
    }
}

// behaviours 10, 39
#[tokio::test]
async fn a_larger_skew_allows_for_a_worse_clock() {
    let world = World::new().await;
    let host = world.host().clock_behind(s(10)).build();
    let check = async |skew| world.locks(&host).clock_skew(skew).build().unwrap().check().await;
    let report = check(s(25)).await;
    assert_eq!(verdicts(&report), ALL_WELL, "{report}");
    // Another host may be as wrong the other way.
    let report = check(s(12)).await;
    assert!(report.is_healthy());
    assert_found(&report, "clock", Verdict::Warning, &["behind", "another host", "clock skew of 12s"]);
}

// behaviours 10, 39
#[tokio::test(start_paused = true)]
async fn a_clock_is_never_failed_within_the_skew_and_always_beyond_it_by_more_than_a_second() {
    // DynamoDB tells whole seconds: whatever part of one has passed, and however long the request takes.
    for (part, latency) in [(0_u32, 0), (1, 0), (250, 0), (500, 40), (750, 200), (999, 0), (0, 450), (999, 450)] {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + s(1_800_000_000)).unwrap();
        Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
        for off in (-2100..=2100).step_by(100) {
            let apart = ms(u64::from(i32::unsigned_abs(off)));
            let host = if off < 0 { engine.host().clock_behind(apart) } else { engine.host().clock_ahead(apart) };
            let host = host.faults(Faults::seeded(1).latency(ms(latency)..ms(latency))).build();
            // DynamoDB answers the last request when six have been there, and five back.
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
            // What part of a second has passed there is not told, nor how long the answer was on its way.
            if apart > s(2) + ms(latency) {
                assert!(!report.is_healthy(), "{context}");
                assert_found(&report, "clock", Verdict::Failed, &[if off < 0 { "behind" } else { "ahead of" }]);
            }
        }
    }
}

// behaviour 39
#[tokio::test]
async fn a_table_that_is_being_made_fails_and_one_with_replicas_is_a_warning() {
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

// behaviours 33, 39
#[tokio::test]
async fn a_network_that_does_not_answer_is_a_finding_and_not_an_error() {
    let world = World::new().await;
    for faults in [Faults::seeded(1).lose_requests(1.0), Faults::seeded(1).server_errors(1.0)] {
        let (host, locks) = locks_on(&world, world.host().faults(faults));
        let report = locks.check().await;
        assert_eq!(verdicts(&report), [("table", Verdict::Failed), ("clock", Verdict::Warning)], "{report}");
        assert_found(&report, "table", Verdict::Failed, &["no answer", "check the network"]);
        // With the SDK's own retries.
        assert_eq!(host.requests(), 3);
    }
    // A table that is busy is not broken.
    let (host, locks) = locks_on(&world, world.host().faults(Faults::seeded(1).throttle(1.0)));
    let report = locks.check().await;
    assert!(report.is_healthy());
    let expected = ALL_WELL.into_iter().filter(|(subject, _)| *subject != "keys");
    let expected: Vec<_> = expected.map(|(subject, _)| (subject, Verdict::Warning)).collect();
    assert_eq!(verdicts(&report), expected, "{report}");
    assert_found(&report, "dynamodb:UpdateItem", Verdict::Warning, &["throttled", "check again"]);
    assert_eq!(host.requests(), 18);
}

// behaviour 39
#[tokio::test]
async fn credentials_that_are_not_accepted_are_the_finding_rather_than_what_they_may_do() {
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

// behaviours 22, 39
#[tokio::test]
async fn locking_that_is_switched_off_is_a_warning() {
    let world = World::new().await;
    let report = world.locks(&world.host().build()).enabled(false).build().unwrap().check().await;
    assert!(report.is_healthy());
    assert_found(&report, "locking", Verdict::Warning, &["switched off"]);
    assert_eq!(verdicts(&report)[1..], ALL_WELL);
}

// behaviour 39
#[tokio::test(start_paused = true)]
async fn a_table_that_has_fallen_silent_is_asked_six_times_for_a_second_each() {
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

// Warming up

// behaviours 22, 46
#[tokio::test]
async fn warming_up_sends_one_request_that_writes_nothing() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    locks.warm_up().await;
    assert_eq!(host.requests(), 1);
    assert!(world.row("lambda-lock-check").await.is_none());

    let host = world.host().build();
    world.locks(&host).enabled(false).build().unwrap().warm_up().await;
    assert_eq!(host.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn warming_up_gives_up_on_a_silent_table_after_three_seconds() {
    let engine = DynamoDb::new().unwrap();
    let host = engine.host().build();
    host.crash();
    let before = engine.now();
    Locks::builder(host.client(), "locks").build().unwrap().warm_up().await;
    assert_eq!(engine.now().duration_since(before).unwrap(), s(3));
}

// List

/// All keys that a list has, with what it says of them.
async fn listed(locks: &Locks) -> BTreeMap<String, Result<Holder, Error>> {
    let (mut list, mut listed) = (locks.list(), BTreeMap::new());
    while let Some(page) = list.next_page().await.unwrap() {
        for row in page {
            assert!(listed.insert(row.key, row.holder).is_none(), "listed twice");
        }
    }
    assert!(list.next_page().await.unwrap().is_none(), "after its end");
    listed
}

fn completed(locks: &Locks) -> Idempotency<String, String, String> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |id: &String| Some(id.clone()))
}

/// A row of another library's that is, or was, in progress until this time.
fn in_progress(id: &str, end: u64) -> Row {
    Row::from([
        ("id".to_owned(), text(id)),
        ("status".to_owned(), text("INPROGRESS")),
        ("in_progress_expiration".to_owned(), number(end)),
    ])
}

// behaviours 25, 39
#[tokio::test]
async fn a_list_shows_what_is_held_released_left_by_a_crash_and_completed() {
    let world = world_without_ttl().await;
    let (host, locks) = locks_on(&world, world.host());
    let held = locks.acquire("held").holder("a holder").data("not read").await.unwrap();
    locks.acquire("released").await.unwrap().release().await.unwrap();
    let kept = locks.acquire("kept").hold_at_least(s(60)).await.unwrap();
    kept.release().await.unwrap();
    let crashed = locks_on(&world, world.host().clock_behind(s(60))).1.acquire("crashed").lease(s(10)).await.unwrap();
    completed(&locks).run(&"completed".to_owned(), async |_| Ok("not read".to_owned())).await.unwrap();
    world.put_row(in_progress("of another library", millis(host.now() + s(60)))).await;

    let requests = host.requests();
    let listed = listed(&locks).await;
    assert_eq!(host.requests() - requests, 1);
    let state = |key: &str| {
        let holder = listed[key].as_ref().unwrap();
        (holder.is_current(), holder.has_released(), holder.is_completed())
    };
    assert_eq!(listed.len(), 6);
    assert_eq!(state("held"), (true, false, false));
    assert_eq!(state("released"), (false, true, false));
    assert_eq!(state("kept"), (true, true, false));
    assert_eq!(state("crashed"), (false, false, false));
    assert_eq!(state("completed"), (true, true, true));
    assert_eq!(state("of another library"), (true, false, false));
    let holder = listed["held"].as_ref().unwrap();
    assert_eq!((holder.name(), holder.owner()), (Some("a holder"), Some(held.owner())));
    assert_eq!((holder.fence(), holder.since()), (Some(held.fence()), Some(held.acquired_at())));
    assert_eq!(holder.until(), held.expires_at() + s(1));
    assert!(listed.values().all(|holder| holder.as_ref().unwrap().data().is_none()));
    // The same as reading each.
    for (key, listed) in &listed {
        let (listed, read) = (listed.as_ref().unwrap(), locks.get(key).await.unwrap().unwrap());
        let of = |holder: &Holder| (holder.owner().map(str::to_owned), holder.until(), holder.has_released());
        assert_eq!(of(listed), of(&read));
    }
    held.release().await.unwrap();
    drop(crashed);
}

// behaviours 26, 39
#[tokio::test]
async fn a_list_has_the_rows_of_its_locks_alone_in_a_table_with_other_entities() {
    let world = world_with_keys(&[("PK", ScalarAttributeType::S), ("SK", ScalarAttributeType::S)]).await;
    let host = world.host().build();
    let settings = || world.locks(&host).partition_key("PK").sort_key("SK", "LOCK").key_prefix("app#");
    let locks = settings().build().unwrap();
    let _lock = locks.acquire("ours").await.unwrap();
    let others = [settings().key_prefix("other#"), settings().sort_key("SK", "ANOTHER"), settings().key_prefix("ap")];
    let mut held = Vec::new();
    for other in others {
        held.push(other.build().unwrap().acquire("theirs").await.unwrap());
    }
    let foreign = |pk: &str, sk: &str, status: Option<AttributeValue>| {
        let keys = Row::from([("PK".to_owned(), text(pk)), ("SK".to_owned(), text(sk))]);
        keys.into_iter().chain(status.map(|status| ("status".to_owned(), status))).collect::<Row>()
    };
    // An order without a status, with one of its own, and one that is a number.
    world.put_row(foreign("app#order", "LOCK", None)).await;
    world.put_row(foreign("app#shipped", "LOCK", Some(text("SHIPPED")))).await;
    world.put_row(foreign("app#counted", "LOCK", Some(number(1)))).await;
    world.put_row(foreign("app#item", "ITEM", Some(text("INPROGRESS")))).await;

    let listed = listed(&locks).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["ours"]);
    let mut list = locks.list();
    list.next_page().await.unwrap();
    assert_eq!(list.rows_read(), 8);
    for lock in held {
        lock.release().await.unwrap();
    }
}

// behaviour 39
#[tokio::test]
async fn a_malformed_row_is_an_error_in_its_place_and_the_others_are_listed() {
    let world = world_without_ttl().await;
    let locks = world.default_locks();
    let _lock = locks.acquire("well").await.unwrap();
    let mut fenceless = in_progress("not a number", 1);
    fenceless.insert("fence".to_owned(), text("x"));
    world.put_row(fenceless).await;
    let mut endless = in_progress("endless", 1);
    endless.insert("status".to_owned(), text("COMPLETED"));
    world.put_row(endless).await;
    // Nor is a job that is in progress a lock, where it has no end.
    let job = Row::from([("id".to_owned(), text("job")), ("status".to_owned(), text("INPROGRESS"))]);
    world.put_row(job).await;
    let listed = listed(&locks).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["endless", "not a number", "well"]);
    assert!(listed["well"].is_ok());
    for (key, says) in [("endless", "`expiration`"), ("not a number", "`fence` is not a number")] {
        let error = listed[key].as_ref().unwrap_err();
        assert!(error.is_malformed_row());
        assert_eq!(error.key(), key);
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Keeps the size of each scan's answer, and what was asked for.
#[derive(Clone, Debug, Default)]
struct Scans(Arc<Mutex<Vec<(Value, usize)>>>);

impl Intercept for Scans {
    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        if operation == "Scan" {
            self.0.lock().unwrap().push((request.clone(), answer.body.to_string().len()));
        }
    }
}

/// The embedded engine counts a row that no longer fits into a page with that page too.
fn counted_twice(pages: usize) -> u64 {
    let is_embedded = std::env::var("LOCK_TEST_ENDPOINT").is_err();
    if is_embedded { pages as u64 - 1 } else { 0 }
}

// behaviour 39
#[tokio::test]
async fn a_list_goes_on_over_several_pages_and_does_not_bring_the_data_along() {
    let world = world_without_ttl().await;
    let scans = Scans::default();
    let (_, locks) = locks_on(&world, world.host().intercept(scans.clone()));
    // 2.5 MiB, of which a page reads one.
    let large = "x".repeat(256 * 1024);
    for index in 0..10 {
        locks.acquire(format!("large {index}")).data(large.clone()).await.unwrap().release().await.unwrap();
    }
    let (mut list, mut keys, mut pages) = (locks.list(), Vec::new(), Vec::new());
    while let Some(page) = list.next_page().await.unwrap() {
        pages.push(list.rows_read());
        keys.extend(page.into_iter().map(|row| row.key));
    }
    keys.sort();
    assert_eq!(keys, (0..10).map(|index| format!("large {index}")).collect::<Vec<_>>());
    assert!(pages.len() >= 3, "{pages:?}");
    assert!(pages.is_sorted(), "{pages:?}");
    assert_eq!(pages.last(), Some(&(10 + counted_twice(pages.len()))));
    let scans = scans.0.lock().unwrap();
    assert_eq!(scans.len(), pages.len());
    for (request, bytes) in &*scans {
        assert_eq!(request["ConsistentRead"], true);
        assert!(*bytes < 10_000, "{bytes} bytes");
    }
}

/// Fails the second scan and all after it until it is told otherwise.
#[derive(Clone, Debug, Default)]
struct Outage(Arc<Mutex<(u32, bool)>>);

impl Intercept for Outage {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        let mut state = self.0.lock().unwrap();
        if operation == "Scan" {
            state.0 += 1;
            if state.0 > 1 && !state.1 {
                answer.status = 400;
                answer.body = json!({ "__type": "AccessDeniedException" });
            }
        }
    }
}

// behaviour 39
#[tokio::test]
async fn after_an_error_the_same_page_can_be_asked_for_again() {
    let world = world_without_ttl().await;
    let outage = Outage::default();
    let (_, locks) = locks_on(&world, world.host().intercept(outage.clone()));
    let large = "x".repeat(380 * 1024);
    for index in 0..5 {
        locks.acquire(format!("{index}")).data(large.clone()).await.unwrap().release().await.unwrap();
    }
    let mut list = locks.list();
    let mut keys: Vec<_> = list.next_page().await.unwrap().unwrap().into_iter().map(|row| row.key).collect();
    let read = list.rows_read();
    assert!(read < 5);
    for _ in 0..2 {
        assert!(list.next_page().await.unwrap_err().is_access_denied());
        assert_eq!(list.rows_read(), read);
    }
    outage.0.lock().unwrap().1 = true;
    let mut pages = 1;
    while let Some(page) = list.next_page().await.unwrap() {
        pages += 1;
        keys.extend(page.into_iter().map(|row| row.key));
    }
    keys.sort();
    assert_eq!(keys, ["0", "1", "2", "3", "4"]);
    assert_eq!(list.rows_read(), 5 + counted_twice(pages));
}

// behaviour 39
#[tokio::test]
async fn a_list_of_an_empty_table_has_a_page_without_rows_and_one_of_a_missing_table_is_an_error() {
    let world = World::new().await;
    assert!(listed(&world.default_locks()).await.is_empty());
    let missing = World::without_table();
    assert!(missing.default_locks().list().next_page().await.unwrap_err().is_table_not_found());
}

// Released or not

// behaviours 40, 49
#[tokio::test]
async fn a_holder_that_gave_the_key_back_is_told_from_one_that_crashed() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let has_released = async |key: &str| locks.get(key).await.unwrap().unwrap().has_released();
    let lock = locks.acquire("nightly").lease(s(10)).await.unwrap();
    assert!(!has_released("nightly").await, "while it is held");
    host.advance_clock(s(20));
    assert!(!has_released("nightly").await, "after its lease");
    lock.release().await.unwrap();
    assert!(has_released("nightly").await, "after its release");
    let next = locks.acquire("nightly").await.unwrap();
    assert!(!has_released("nightly").await, "by the next holder");
    // A refusal says it too.
    let error = locks.acquire("nightly").await.unwrap_err();
    assert!(!error.holder().unwrap().has_released());
    next.release().await.unwrap();

    let orders = completed(&locks);
    orders.run(&"done".to_owned(), async |_| Ok("done".to_owned())).await.unwrap();
    assert!(has_released("done").await, "a completed run");
    orders.run(&"declined".to_owned(), async |_| Err("declined".to_owned())).await.unwrap_err();
    assert!(has_released("declined").await, "a run that was given up");
    world.put_row(in_progress("of another library", 1)).await;
    assert!(!has_released("of another library").await, "a row without an owner");
}

// Acquire and the row before it

// behaviours 40, 78, 83
#[tokio::test]
async fn an_acquire_knows_the_row_that_it_made_whatever_was_there_before() {
    let world = world_without_ttl().await;
    let (host, locks) = locks_on(&world, world.host());
    let acquired = async |data: Option<&str>, expected: Option<&str>| {
        let acquire = locks.acquire("nightly");
        let lock = match data {
            Some(data) => acquire.data(data).await.unwrap(),
            None => acquire.await.unwrap(),
        };
        let row = world.row("nightly").await.unwrap();
        assert_eq!(lock.fence(), fence(&row));
        assert_eq!(
            (lock.data().and_then(|data| data.as_str()), row.get("data").map(|data| data.as_s().unwrap().as_str())),
            (expected, expected)
        );
        assert_eq!(row["owner"], text(lock.owner()));
        lock.release().await.unwrap();
        lock.fence()
    };
    let before = u64::try_from(host.now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let first = acquired(None, None).await;
    assert!(first > before, "a new row's fence starts at the clock");
    assert_eq!(acquired(Some("page 1"), Some("page 1")).await, first + 1);
    assert_eq!(acquired(None, Some("page 1")).await, first + 2);
    assert_eq!(acquired(Some("page 2"), Some("page 2")).await, first + 3);
    world.delete_row("nightly").await;
    assert!(acquired(None, None).await > first + 3);
    // Powertools' row, which has no fence and no owner.
    let mut row = in_progress("nightly", 1);
    row.insert("data".to_owned(), text("theirs"));
    world.put_row(row.clone()).await;
    assert!(acquired(None, Some("theirs")).await > before);
    row.insert("fence".to_owned(), number(17));
    world.put_row(row.clone()).await;
    assert_eq!(acquired(None, Some("theirs")).await, 18);
    row.insert("fence".to_owned(), AttributeValue::N("17.5".to_owned()));
    world.put_row(row).await;
    let lock = locks.acquire("nightly").await.unwrap();
    assert_eq!(lock.fence(), 18, "the whole part of what is in the row");
    lock.release().await.unwrap();
}

// Force

/// Who has the key, as an operator sees it, who is no quicker than the milliseconds of a row.
async fn seen(locks: &Locks, key: &str) -> Holder {
    sleep(ms(1)).await;
    locks.get(key).await.unwrap().unwrap()
}

async fn check_in_a_transaction(host: &Host, lock: &Lock) -> bool {
    let check = TransactWriteItem::builder().condition_check(lock.condition_check().unwrap()).build();
    host.client().transact_write_items().transact_items(check).send().await.is_ok()
}

// behaviours 25, 39
#[tokio::test]
async fn a_key_that_an_operator_frees_can_be_acquired_at_once_and_its_old_holder_finds_it_lost() {
    let world = World::new().await;
    let (worker, locks) = locks_on(&world, world.host());
    let (operator, tools) = locks_on(&world, world.host());
    let old = locks.acquire("nightly").data("page 7").await.unwrap();
    assert!(check_in_a_transaction(&worker, &old).await);
    let holder = seen(&tools, "nightly").await;
    let requests = operator.requests();
    assert!(tools.force_release("nightly", &holder).await.unwrap());
    assert_eq!(operator.requests() - requests, 1);
    let freed = seen(&tools, "nightly").await;
    assert!(!freed.is_current() && freed.has_released() && !freed.is_completed());
    assert_ne!(freed.owner(), Some(old.owner()));
    assert_eq!(freed.name(), Some(&*format!("process {}", std::process::id())));

    // The old holder cannot know by itself, and finds it out with whatever it does.
    assert!(old.is_valid());
    assert!(!check_in_a_transaction(&worker, &old).await);
    let next = tools.acquire("nightly").await.unwrap();
    assert_eq!(next.fence(), old.fence() + 1);
    assert_eq!(next.data().unwrap().as_str(), Some("page 7"));
    assert!(!check_in_a_transaction(&worker, &old).await);
    let error = old.renew(s(30)).await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(error.holder().unwrap().owner(), Some(next.owner()));
    assert!(!old.is_valid());
    assert!(old.release().await.unwrap_err().is_lost());
    assert!(check_in_a_transaction(&operator, &next).await);
    next.release().await.unwrap();
}

// behaviours 6, 39
#[tokio::test]
async fn the_release_of_a_lock_that_was_freed_by_hand_is_lost_and_changes_nothing() {
    let world = World::new().await;
    let locks = world.default_locks();
    let old = locks.acquire("nightly").await.unwrap();
    assert!(locks.force_release("nightly", &seen(&locks, "nightly").await).await.unwrap());
    let row = world.row("nightly").await;
    assert!(old.release().await.unwrap_err().is_lost());
    assert_eq!(world.row("nightly").await, row);
    let other = locks.acquire("another").await.unwrap();
    assert!(locks.force_release("another", &seen(&locks, "another").await).await.unwrap());
    assert!(other.renew(s(30)).await.unwrap_err().is_lost());
}

// behaviour 39
#[tokio::test]
async fn a_key_that_has_changed_hands_since_it_was_seen_is_left_alone() {
    let world = World::new().await;
    let locks = world.default_locks();
    let first = locks.acquire("nightly").await.unwrap();
    let stale = seen(&locks, "nightly").await;
    first.release().await.unwrap();
    let next = locks.acquire("nightly").await.unwrap();
    let row = world.row("nightly").await;
    assert!(!locks.force_release("nightly", &stale).await.unwrap());
    assert_eq!(world.row("nightly").await, row);
    next.renew(s(30)).await.unwrap();
    next.release().await.unwrap();

    // Nor is a row made that is not there any more.
    let stale = seen(&locks, "nightly").await;
    world.delete_row("nightly").await;
    assert!(!locks.force_release("nightly", &stale).await.unwrap());
    assert_eq!(world.row("nightly").await, None);
}

// behaviour 39
#[tokio::test]
async fn a_renewed_lock_is_still_the_one_that_was_seen() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("nightly").lease(s(5)).await.unwrap();
    let holder = seen(&locks, "nightly").await;
    lock.renew(s(60)).await.unwrap();
    assert!(locks.force_release("nightly", &holder).await.unwrap());
    locks.acquire("nightly").await.unwrap().release().await.unwrap();
    assert!(lock.release().await.unwrap_err().is_lost());
}

// behaviour 39
#[tokio::test]
async fn a_key_that_is_free_already_stays_free() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let released = locks.acquire("released").await.unwrap();
    let stale = seen(&locks, "released").await;
    released.release().await.unwrap();
    let row = world.row("released").await;
    // Its holder was quicker, or had been: that the release can be tried again, it is left as it is.
    assert!(locks.force_release("released", &stale).await.unwrap());
    assert!(locks.force_release("released", &seen(&locks, "released").await).await.unwrap());
    assert_eq!(world.row("released").await, row);
    let expired = locks.acquire("expired").lease(s(10)).await.unwrap();
    host.advance_clock(s(20));
    assert!(locks.force_release("expired", &seen(&locks, "expired").await).await.unwrap());
    for (key, fence) in [("released", released.fence()), ("expired", expired.fence())] {
        assert!(!seen(&locks, key).await.is_current());
        let next = locks.acquire(key).await.unwrap();
        assert_eq!(next.fence(), fence + 1);
        next.release().await.unwrap();
    }
    assert!(expired.release().await.unwrap_err().is_lost());

    // A key that is kept by its least hold is freed too.
    locks.acquire("kept").hold_at_least(s(60)).await.unwrap().release().await.unwrap();
    assert!(locks.try_acquire("kept").await.unwrap().is_none());
    assert!(locks.force_release("kept", &seen(&locks, "kept").await).await.unwrap());
    locks.acquire("kept").await.unwrap().release().await.unwrap();
}

// behaviour 39
#[tokio::test]
async fn a_completed_run_is_not_freed() {
    let world = World::new().await;
    let locks = world.default_locks();
    let orders = completed(&locks);
    let id = "order".to_owned();
    orders.run(&id, async |_| Ok("first".to_owned())).await.unwrap();
    let row = world.row("order").await;
    let freed = locks.force_release("order", &seen(&locks, "order").await).await.unwrap();
    assert_eq!(world.row("order").await, row);
    assert_eq!(orders.run(&id, async |_| Ok("second".to_owned())).await.unwrap(), "first");
    assert!(!freed);
}

// behaviour 39
#[tokio::test]
async fn a_run_that_completes_while_an_operator_looks_stays_completed() {
    let world = World::new().await;
    let locks = world.default_locks();
    let orders = completed(&locks);
    let (id, mut holder) = ("order".to_owned(), None);
    let run = orders.run(&id, async |_| {
        holder = Some(seen(&locks, "order").await);
        Ok("first".to_owned())
    });
    run.await.unwrap();
    assert!(!locks.force_release("order", &holder.unwrap()).await.unwrap());
    assert_eq!(orders.run(&id, async |_| Ok("second".to_owned())).await.unwrap(), "first");
}

// behaviours 39, 76
#[tokio::test]
async fn a_forced_release_whose_answer_was_lost_is_recognised() {
    let world = World::new().await;
    let locks = world.default_locks();
    let _lock = locks.acquire("nightly").await.unwrap();
    let (host, tools) = locks_on(&world, world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)));
    let holder = seen(&tools, "nightly").await;
    assert!(tools.force_release("nightly", &holder).await.unwrap());
    assert_eq!(host.requests(), 3, "a read, the release, and the SDK's second try");
    locks.acquire("nightly").await.unwrap().release().await.unwrap();
}

/// Loses the answer to the first update, and tells of it.
#[derive(Clone, Debug, Default)]
struct FirstIsLost(Arc<Notify>, Arc<Mutex<u32>>);

impl Intercept for FirstIsLost {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        let mut updates = self.1.lock().unwrap();
        if operation == "UpdateItem" {
            *updates += 1;
            if *updates == 1 {
                answer.status = 500;
                answer.body = json!({ "__type": "InternalServerError" });
                self.0.notify_one();
            }
        }
    }
}

// behaviours 39, 76
#[tokio::test(start_paused = true)]
async fn a_forced_release_whose_answer_was_lost_is_recognised_when_someone_took_the_key_in_between() {
    // Paused: the SDK's pause before its second try is random, and the other is to be quicker.
    let engine = DynamoDb::new().unwrap();
    let locks = Locks::builder(engine.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    let _old = locks.acquire("nightly").await.unwrap();
    let lost = FirstIsLost::default();
    let host = engine.host().intercept(lost.clone()).build();
    let tools = Locks::builder(host.client(), "locks").build().unwrap();
    let holder = seen(&tools, "nightly").await;
    let taker = async {
        lost.0.notified().await;
        locks.acquire("nightly").await.unwrap()
    };
    let (freed, next) = tokio::join!(tools.force_release("nightly", &holder), taker);
    assert!(freed.unwrap());
    assert_eq!(host.requests(), 3);
    // And left to the one who took it.
    next.renew(s(30)).await.unwrap();
    next.release().await.unwrap();
}

// behaviours 33, 39
#[tokio::test]
async fn a_forced_release_that_fails_is_an_error_and_an_empty_key_is_refused() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("nightly").await.unwrap();
    let holder = seen(&locks, "nightly").await;
    let (_, tools) = locks_on(&world, world.host().faults(Faults::seeded(1).throttle(1.0)));
    assert!(tools.force_release("nightly", &holder).await.unwrap_err().is_throttled());
    let (host, tools) = locks_on(&world, world.host());
    assert!(tools.force_release("", &holder).await.unwrap_err().is_invalid());
    assert_eq!(host.requests(), 0);
    lock.release().await.unwrap();
}

// behaviours 39, 83
#[tokio::test]
async fn a_row_without_an_owner_is_freed_while_its_lease_is_the_one_that_was_seen() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let end = millis(host.now() + s(60));
    world.put_row(in_progress("theirs", end)).await;
    assert!(locks.try_acquire("theirs").await.unwrap().is_none());
    let holder = seen(&locks, "theirs").await;
    world.put_row(in_progress("theirs", end + 1)).await;
    assert!(!locks.force_release("theirs", &holder).await.unwrap(), "another run of theirs");
    let holder = seen(&locks, "theirs").await;
    assert!(locks.force_release("theirs", &holder).await.unwrap());
    let lock = locks.acquire("theirs").await.unwrap();
    // It was seen without an owner, and has one now.
    assert!(!locks.force_release("theirs", &holder).await.unwrap());
    lock.release().await.unwrap();
}

// behaviours 39, 83
#[tokio::test]
async fn a_row_without_an_owner_and_without_a_lease_is_freed_too() {
    let world = world_without_ttl().await;
    let (host, locks) = locks_on(&world, world.host());
    // As Powertools writes it where it has no context: the window's end, in seconds, is all there is.
    let mut row = in_progress("theirs", 0);
    row.remove("in_progress_expiration");
    row.insert("expiration".to_owned(), number(millis(host.now() + s(3600)) / 1000));
    world.put_row(row).await;
    let holder = seen(&locks, "theirs").await;
    assert!(holder.is_current() && holder.owner().is_none());
    assert!(locks.try_acquire("theirs").await.unwrap().is_none());
    assert!(locks.force_release("theirs", &holder).await.unwrap());
    locks.acquire("theirs").await.unwrap().release().await.unwrap();
}

/// Keeps the first update, and sends it again in place of the last.
#[derive(Clone, Debug, Default)]
struct Late(Arc<Mutex<Option<Value>>>);

impl Intercept for Late {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" {
            let mut first = self.0.lock().unwrap();
            match &*first {
                None => *first = Some(request.clone()),
                Some(first) if request["Key"]["id"]["S"] == "late" => *request = first.clone(),
                Some(_) => {}
            }
        }
    }
}

// behaviours 39, 76
#[tokio::test]
async fn a_late_duplicate_of_the_old_holders_acquire_does_not_take_a_key_that_was_freed_by_hand() {
    // The operator's clock is behind by as much as it may, and the acquire older than that.
    for (behind, frees) in [(Duration::ZERO, "right"), (ms(900), "behind")] {
        let world = World::new().await;
        let (worker, locks) = locks_on(&world, world.host().clock_behind(ms(1100)).intercept(Late::default()));
        let old = locks.acquire("nightly").await.unwrap();
        let (_, tools) = locks_on(&world, world.host().clock_behind(behind));
        assert!(tools.force_release("nightly", &seen(&tools, "nightly").await).await.unwrap());
        let row = world.row("nightly").await.unwrap();
        let requests = worker.requests();
        locks.acquire("late").await.unwrap_err();
        assert_eq!(worker.requests() - requests, 1);
        assert_eq!(world.row("nightly").await.unwrap(), row, "freed by a clock that is {frees}");
        assert_eq!(world.row("late").await, None, "what arrived was the duplicate");
        let next = world.default_locks().acquire("nightly").await.unwrap();
        assert_eq!(next.fence(), old.fence() + 1);
        next.release().await.unwrap();
    }
}

// behaviours 10, 39
#[tokio::test]
async fn a_key_that_is_freed_by_a_clock_that_is_wrong_is_free_no_later_than_its_lease_would_have_ended() {
    let world = World::new().await;
    let (_, locks) = locks_on(&world, world.host());
    for (key, operator, waits) in
        [("behind", world.host().clock_behind(s(3600)), false), ("ahead", world.host().clock_ahead(s(3600)), true)]
    {
        let old = locks.acquire(key).lease(s(30)).await.unwrap();
        let (_, tools) = locks_on(&world, operator);
        assert!(tools.force_release(key, &seen(&locks, key).await).await.unwrap());
        let freed = seen(&locks, key).await;
        assert!(freed.until() > old.acquired_at() && freed.until() <= old.expires_at() + s(1));
        assert_eq!(locks.try_acquire(key).await.unwrap().is_none(), waits);
        let (_, later) = locks_on(&world, world.host().clock_ahead(ms(31_100)));
        assert!(later.acquire(key).await.unwrap().fence() > old.fence());
        assert!(old.release().await.unwrap_err().is_lost());
    }
}

// behaviours 39, 65
#[tokio::test]
async fn a_run_that_is_refused_as_unfinished_may_run_again_after_an_operator_freed_it() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let transfers = completed(&locks).on_timeout(OnTimeout::Reject).lease(s(10));
    let id = "transfer".to_owned();
    let crashing = transfers.run(&id, async |_| {
        host.advance_clock(s(30));
        pending().await
    });
    assert!(matches!(crashing.await.unwrap_err(), HandlerError::Lock(error) if error.is_lost()));
    let refused = transfers.run(&id, async |_| Ok("again".to_owned())).await;
    let HandlerError::Lock(error) = refused.unwrap_err() else { panic!("not run") };
    assert!(error.is_unfinished());
    // The refusal names it as well as a look at the row does.
    assert!(locks.force_release("transfer", error.holder().unwrap()).await.unwrap());
    assert_eq!(transfers.run(&id, async |_| Ok("again".to_owned())).await.unwrap(), "again");
    assert_eq!(transfers.run(&id, async |_| Ok("a third time".to_owned())).await.unwrap(), "again");
}

// behaviours 39, 66
#[tokio::test]
async fn what_a_list_or_a_refusal_names_can_be_freed() {
    let world = World::new().await;
    let locks = world.locks(&world.host().build()).key_prefix("app#").build().unwrap();
    let _first = locks.acquire("first").await.unwrap();
    let mut listed = listed(&locks).await;
    assert!(locks.force_release("first", &listed.remove("first").unwrap().unwrap()).await.unwrap());
    let _second = locks.acquire("first").await.unwrap();
    let error = locks.acquire("first").await.unwrap_err();
    assert!(locks.force_release("first", error.holder().unwrap()).await.unwrap());
    locks.acquire("first").await.unwrap().release().await.unwrap();
}

// An engine in a file

/// Locks in the engine in this file, as a process of its own has them.
fn locks_in(file: &std::path::Path) -> Locks {
    Locks::builder(DynamoDb::open(file).unwrap().client(), "locks").build().unwrap()
}

#[tokio::test]
async fn two_engines_in_one_file_see_each_others_rows_and_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.sqlite");
    let (here, there) = (locks_in(&file), locks_in(&file));
    here.create_table().await.unwrap();
    there.create_table().await.unwrap();
    let lock = here.acquire("nightly").data("page 7").holder("here").await.unwrap();
    let holder = seen(&there, "nightly").await;
    assert_eq!((holder.name(), holder.owner()), (Some("here"), Some(lock.owner())));
    assert!(there.try_acquire("nightly").await.unwrap().is_none());
    lock.release().await.unwrap();
    let next = there.acquire("nightly").await.unwrap();
    assert_eq!((next.fence(), next.data().unwrap().as_str()), (lock.fence() + 1, Some("page 7")));
    assert!(here.try_acquire("nightly").await.unwrap().is_none());
    next.release().await.unwrap();
    assert!(here.check().await.is_healthy());
}

#[tokio::test]
async fn an_engine_that_is_opened_again_has_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.sqlite");
    let (fence, owner) = {
        let locks = locks_in(&file);
        locks.create_table().await.unwrap();
        let lock = locks.acquire("nightly").lease(s(3600)).await.unwrap();
        let kept = (lock.fence(), lock.owner().to_owned());
        std::mem::forget(lock);
        kept
    };
    let locks = locks_in(&file);
    let holder = seen(&locks, "nightly").await;
    assert!(holder.is_current());
    assert_eq!((holder.fence(), holder.owner()), (Some(fence), Some(&*owner)));
    assert!(locks.try_acquire("nightly").await.unwrap().is_none());
}

#[test]
fn threads_with_engines_of_their_own_in_one_file_are_never_in_at_once() {
    const THREADS: u32 = 4;
    const TIMES: u32 = 15;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.sqlite");
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async { locks_in(&file).create_table().await.unwrap() });
    // Not synchronised by anything but the lock: who reads before another has written loses that.
    let count = folder.path().join("count");
    std::fs::write(&count, "0").unwrap();
    let (failed, failures) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (file, count, failed) = (&file, &count, failed.clone());
            scope.spawn(move || {
                let work = async {
                    let locks = locks_in(file);
                    let wait = Backoff::default().base(ms(2)).cap(ms(20)).jitter(Jitter::Full).up_to(s(60));
                    for _ in 0..TIMES {
                        let counted = locks.acquire("count").wait(wait).run(async |_| {
                            let seen: u32 = std::fs::read_to_string(count).unwrap().parse().unwrap();
                            sleep(ms(1)).await;
                            std::fs::write(count, (seen + 1).to_string()).unwrap();
                        });
                        if let Err(error) = counted.await {
                            failed.send(error).unwrap();
                        }
                    }
                };
                runtime().block_on(work);
            });
        }
        drop(failed);
    });
    assert_eq!(failures.iter().map(|error| error.to_string()).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(std::fs::read_to_string(&count).unwrap(), (THREADS * TIMES).to_string());
}

#[test]
fn a_file_that_is_no_database_is_an_error_that_names_it_and_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    let text = "not a database, but something that someone may still want\n".repeat(100);
    std::fs::write(&file, &text).unwrap();
    let nowhere = folder.path().join("no such folder").join("locks.sqlite");
    for path in [&*file, folder.path(), &nowhere] {
        let error = DynamoDb::open(path).unwrap_err();
        assert!(error.is_invalid());
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}
