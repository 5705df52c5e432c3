//! The behaviours of the locks, by their numbers. They run on the embedded engine, or on the DynamoDB that
//! `LOCK_TEST_ENDPOINT` names: so time is real, and a test that needs another time sets a host's clock forward.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeValue, BillingMode, ConditionCheck, Put, TableStatus, TimeToLiveStatus, TransactWriteItem,
};
use futures_util::FutureExt;
use futures_util::future::{join_all, try_join_all};
use lambda_lock::embedded::{Answer, Faults, Intercept};
use lambda_lock::{Backoff, Data, Error, Jitter, Lock, Locks, LocksBuilder};
use lambda_lock_tests::invocation::{LoseAnswers, keep_warnings, logged, millis};
use lambda_lock_tests::{Row, World};
use serde_json::{Value, json};

/// The defaults.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_hours(24);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Asks often and for long.
fn eagerly() -> Backoff {
    Backoff::default().base(ms(2)).cap(ms(200)).up_to(Duration::from_mins(2))
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}

fn assert_contains(error: &Error, parts: &[&str]) {
    for part in parts {
        assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
    }
}

/// Keeps what was sent.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<(String, Value)>>>);

impl Recorder {
    fn operations(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(operation, _)| operation.clone()).collect()
    }

    fn request(&self, operation: &str) -> Value {
        let sent = self.0.lock().unwrap();
        sent.iter().find(|(sent, _)| sent == operation).map(|(_, request)| request.clone()).unwrap()
    }
}

impl Intercept for Recorder {
    fn request(&self, operation: &str, request: &mut Value) {
        self.0.lock().unwrap().push((operation.to_owned(), request.clone()));
    }
}

fn lose_answers(which: RangeInclusive<u32>) -> LoseAnswers {
    LoseAnswers::to("UpdateItem", which)
}

/// Refuses all writes with this status and code.
#[derive(Debug)]
struct Refuse(u16, &'static str);

impl Intercept for Refuse {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" {
            // So that it is not applied.
            request["TableName"] = "no-such-table".into();
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "UpdateItem" {
            answer.status = self.0;
            answer.body = json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{}", self.1) });
        }
    }
}

// Acquiring and releasing

// behaviours 1, 6, 14
#[tokio::test]
async fn a_free_key_is_acquired_and_a_held_one_is_not_until_its_release() {
    let world = World::new().await;
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    let lock = ours.try_acquire("job").await.unwrap().unwrap();
    assert!(theirs.try_acquire("job").await.unwrap().is_none());
    assert!(theirs.acquire("job").await.unwrap_err().is_held());
    lock.release().await.unwrap();
    let next = theirs.try_acquire("job").await.unwrap().unwrap();
    assert_eq!(next.fence(), lock.fence() + 1);
    next.release().await.unwrap();
}

// behaviours 2, 10, 27, 43
#[tokio::test]
async fn the_row_has_the_owner_and_the_end_of_the_lease_which_is_the_deadline_plus_the_clock_skew() {
    let world = World::new().await;
    let locks = world.locks(&world.host().build()).holder("reporter").build().unwrap();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.expires_at(), lock.acquired_at() + LEASE);
    let row = world.row("job").await.unwrap();
    assert_eq!(row["status"], text("INPROGRESS"));
    assert_eq!(row["owner"], text(lock.owner()));
    assert_eq!(row["holder"], text("reporter"));
    assert_eq!(number(&row, "fence"), lock.fence());
    assert_eq!(number(&row, "acquired_at"), millis(lock.acquired_at()));
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
}

// behaviours 9, 17
#[tokio::test]
async fn the_ttl_attribute_is_a_number_of_seconds_and_later_than_the_lease_by_the_retention() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let row = world.row("job").await.unwrap();
    let ttl = lock.expires_at() + CLOCK_SKEW + RETENTION;
    assert_eq!(number(&row, "expiration"), millis(ttl).div_ceil(1000));
    lock.release().await.unwrap();
    let row = world.row("job").await.unwrap();
    let ttl = number(&row, "in_progress_expiration") + 24 * 3_600_000;
    assert!((ttl..=ttl + 1000).contains(&(number(&row, "expiration") * 1000)));
}

// behaviours 3, 13
#[tokio::test]
async fn a_lease_is_set_for_one_acquisition_by_its_length_or_by_its_end_and_the_earlier_counts() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).lease(Duration::from_mins(5)).build().unwrap();
    let lock = locks.acquire("by default").await.unwrap();
    assert_eq!(lock.expires_at(), lock.acquired_at() + Duration::from_mins(5));
    let lock = locks.acquire("by length").lease(Duration::from_mins(2)).await.unwrap();
    assert_eq!(lock.expires_at(), lock.acquired_at() + Duration::from_mins(2));
    let deadline = host.now() + Duration::from_mins(9);
    let lock = locks.acquire("by its end").until(deadline).await.unwrap();
    assert_eq!(millis(lock.expires_at()), millis(deadline));
    let lock = locks.acquire("by length again").until(deadline).lease(Duration::from_mins(1)).await.unwrap();
    assert_eq!(lock.expires_at(), lock.acquired_at() + Duration::from_mins(1));
    let lock = locks.acquire("by its end again").until(deadline).lease(Duration::from_hours(1)).await.unwrap();
    assert_eq!(millis(lock.expires_at()), millis(deadline));
}

// behaviours 4, 19, 29, 31, 54
#[tokio::test]
async fn every_call_costs_one_request_and_holding_a_lock_none() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let (locks, others) = (world.locks(&ours).build().unwrap(), world.locks(&theirs).build().unwrap());
    assert_eq!(ours.requests(), 0);
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(ours.requests(), 1, "acquire");
    others.acquire("job").await.unwrap_err();
    assert_eq!(theirs.requests(), 1, "a refused acquire");
    assert!(others.try_acquire("job").await.unwrap().is_none());
    assert_eq!(theirs.requests(), 2, "a refused try_acquire");
    lock.renew(ms(50)).await.unwrap();
    assert_eq!(ours.requests(), 2, "renew");
    tokio::time::timeout(Duration::from_secs(5), lock.lost()).await.unwrap();
    assert_eq!(ours.requests(), 2, "a whole lease");
    lock.release().await.unwrap();
    assert_eq!(ours.requests(), 3, "release");
    lock.release().await.unwrap();
    assert_eq!(ours.requests(), 3, "a second release");
    locks.get("job").await.unwrap().unwrap();
    assert_eq!(ours.requests(), 4, "get");
    let lock = locks.try_acquire("job").await.unwrap().unwrap();
    assert_eq!(ours.requests(), 5, "try_acquire");
    lock.release().await.unwrap();
}

// behaviour 46
#[tokio::test]
async fn two_iam_actions_are_enough_at_run_time() {
    let world = World::new().await;
    let sent = Recorder::default();
    let locks = world.locks(&world.host().intercept(sent.clone()).build()).build().unwrap();
    let lock = locks.acquire("job").await.unwrap();
    locks.acquire("job").await.unwrap_err();
    locks.get("job").await.unwrap();
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
    let used: HashSet<String> = sent.operations().into_iter().collect();
    assert_eq!(used, HashSet::from(["UpdateItem".to_owned(), "GetItem".to_owned()]));
}

// behaviours 5, 17, 42, 56
#[tokio::test]
async fn a_crashed_holder_blocks_the_key_for_its_lease_and_the_skew_and_no_longer() {
    let world = World::new().await;
    let (crashing, host) = (world.host().build(), world.host().build());
    let skew = Duration::from_mins(1);
    let lock = world.locks(&crashing).clock_skew(skew).build().unwrap().acquire("job").await.unwrap();
    crashing.crash();
    let locks = world.locks(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    host.advance_clock(LEASE);
    assert!(locks.try_acquire("job").await.unwrap().is_none(), "the holder's clock may be behind");
    host.advance_clock(skew);
    let next = locks.try_acquire("job").await.unwrap().unwrap();
    // The old row is taken over as it is.
    assert_eq!(next.fence(), lock.fence() + 1);
}

// behaviours 6, 44, 49
#[tokio::test]
async fn a_stale_holders_release_says_who_has_the_lock_now_and_leaves_the_row_alone() {
    let world = World::new().await;
    let theirs = world.host().build();
    let lock = world.default_locks().acquire("job").await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    let next = world.locks(&theirs).holder("the next").build().unwrap().acquire("job").await.unwrap();
    let row = world.row("job").await;
    lock.set_data("too late");
    let error = lock.release().await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(error.holder().unwrap().owner(), Some(next.owner()));
    assert_contains(&error, &["`job`", &world.table, "lost to the next"]);
    assert_eq!(world.row("job").await, row);
    next.release().await.unwrap();
}

// behaviours 15, 24, 44
#[tokio::test]
async fn a_stale_holders_renewal_says_who_has_the_lock_now_and_leaves_the_row_alone() {
    let world = World::new().await;
    let theirs = world.host().build();
    let lock = world.default_locks().acquire("job").await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    let next = world.locks(&theirs).build().unwrap().acquire("job").await.unwrap();
    let row = world.row("job").await;
    assert!(lock.is_valid(), "it does not know yet: their clock is wrong");
    let error = lock.renew(LEASE).await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(error.holder().unwrap().owner(), Some(next.owner()));
    assert!(!lock.is_valid());
    assert!(lock.release().await.unwrap_err().is_lost());
    assert_eq!(world.row("job").await, row);
    next.release().await.unwrap();
}

// behaviours 16, 44, 49
#[tokio::test]
async fn an_expired_lock_that_nobody_took_can_still_be_released() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire("job").await.unwrap();
    host.advance_clock(LEASE);
    assert!(!lock.is_valid());
    lock.release().await.unwrap();
    // By the clock of the releaser, and not only by that of one a minute on.
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

// behaviours 16, 30
#[tokio::test]
async fn releasing_a_lock_whose_row_is_gone_is_reported() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    world.delete_row("job").await;
    let error = lock.release().await.unwrap_err();
    assert!(error.is_lost());
    assert!(error.holder().is_none());
    assert!(world.row("job").await.is_none());
}

// behaviour 30
#[tokio::test]
async fn a_release_that_fails_is_an_error_of_its_own_and_can_be_tried_again() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    let error = lock.release().await.unwrap_err();
    assert!(error.is_unavailable() && !error.is_lost());
    assert!(!lock.is_valid());
    lock.release().await.unwrap();
    assert_eq!(host.requests(), 5);
}

// behaviour 28
#[tokio::test]
async fn a_lock_shows_its_key_its_owner_and_its_end_and_is_valid_until_then_or_until_its_release() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).key_prefix("app#").build().unwrap();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.key(), "job");
    assert_eq!(lock.expires_at(), lock.acquired_at() + LEASE);
    assert!(lock.owner().len() == 32 && lock.owner().chars().all(|c| c.is_ascii_hexdigit()));
    assert!(lock.is_valid() && lock.is_enforced());
    assert!(lock.remaining() > LEASE / 2 && lock.remaining() <= LEASE);
    host.advance_clock(LEASE);
    assert!(!lock.is_valid() && lock.remaining().is_zero());
    let lock = locks.acquire("another").await.unwrap();
    lock.release().await.unwrap();
    assert!(!lock.is_valid() && lock.remaining().is_zero());
}

// behaviour 81
#[tokio::test]
async fn every_acquisition_has_an_owner_of_its_own_also_of_many_at_once_and_in_one_process() {
    let world = World::new().await;
    let locks = world.default_locks();
    let held = try_join_all((0..50).map(|key| locks.acquire(format!("job {key}")).into_future())).await.unwrap();
    let mut owners: HashSet<String> = held.iter().map(|lock| lock.owner().to_owned()).collect();
    held[0].release().await.unwrap();
    let again = locks.acquire("job 0").await.unwrap();
    owners.insert(again.owner().to_owned());
    assert_eq!(owners.len(), 51);
}

// behaviour 52
#[tokio::test]
async fn one_client_gives_many_named_locks_and_a_clone_of_the_locks_is_the_same_locks() {
    let world = World::new().await;
    let locks = world.default_locks();
    let clone = locks.clone();
    let report = locks.acquire("report").await.unwrap();
    let import = clone.acquire("import").await.unwrap();
    assert!(clone.try_acquire("report").await.unwrap().is_none());
    report.release().await.unwrap();
    import.release().await.unwrap();
}

// behaviours 11, 29
#[tokio::test]
async fn a_lock_that_is_dropped_warns_and_is_released_in_the_background() {
    keep_warnings();
    let world = World::new().await;
    let key = format!("dropped by {}", world.table);
    let lock = world.default_locks().acquire(&key).await.unwrap();
    lock.set_data("page 7");
    drop(lock);
    let next = world.default_locks().acquire(&key).wait(eagerly().up_to(LEASE / 3)).await.unwrap();
    assert_eq!(next.data(), Some(&Data::from("page 7")));
    next.release().await.unwrap();
    drop(next);
    let warnings = logged(&key);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("dropped without being released"));
}

// behaviours 5, 29
#[tokio::test]
async fn a_lock_that_is_dropped_where_no_runtime_is_stays_until_its_lease_ends() {
    let world = World::new().await;
    let host = world.host().build();
    let lock = world.default_locks().acquire("job").await.unwrap();
    std::thread::spawn(move || drop(lock)).join().unwrap();
    let locks = world.locks(&host).build().unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    host.advance_clock(LEASE + CLOCK_SKEW);
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

// Keys and tables

// behaviour 12
#[tokio::test]
async fn distinct_keys_never_interfere_however_alike_they_are() {
    let world = World::new().await;
    let (plain, prefixed) = (world.default_locks(), world.locks(&world.host().build()));
    let prefixed = prefixed.key_prefix("prefix#").build().unwrap();
    let long = "k".repeat(2047);
    let long = [format!("{long}1"), format!("{long}2")];
    // Alike but for case, blanks, where a separator stands, how é is composed, or the last of 2,048 bytes.
    let keys = ["job", "Job", "JOB", " job", "job ", "a#bc", "a#b#c", "ab#c", "é", "e\u{301}", "\0", "🔒"];
    let keys = keys.into_iter().chain(long.iter().map(String::as_str));
    let mut held = Vec::new();
    for key in keys {
        held.push(plain.acquire(key).await.unwrap_or_else(|error| panic!("{key:?}: {error}")));
        assert!(plain.try_acquire(key).await.unwrap().is_none());
    }
    held.push(prefixed.acquire("job").await.unwrap());
    let row = world.row("prefix#job").await.unwrap();
    assert_eq!(row["owner"], text(held.last().unwrap().owner()));
    join_all(held.iter().map(Lock::release)).await.into_iter().for_each(Result::unwrap);
}

// behaviours 12, 47
#[tokio::test]
async fn an_empty_key_and_one_longer_than_dynamodb_allows_are_refused_before_anything_is_sent() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).key_prefix("app#").build().unwrap();
    let longest = "k".repeat(2044);
    locks.acquire(&longest).await.unwrap().release().await.unwrap();
    assert_eq!(host.requests(), 2);
    for (key, parts) in [(longest + "k", &["2049 bytes", "2048"]), (String::new(), &["key", "empty"])] {
        for error in [
            locks.acquire(&key).await.unwrap_err(),
            locks.try_acquire(&key).await.unwrap_err(),
            locks.get(&key).await.unwrap_err(),
        ] {
            assert!(error.is_invalid());
            assert_contains(&error, parts);
        }
    }
    assert_eq!(host.requests(), 2);
}

// behaviours 18, 26
#[tokio::test]
async fn locks_live_in_a_single_table_design_and_leave_its_other_entities_alone() {
    let world = World::without_table();
    let locks = world.locks(&world.host().build()).partition_key("PK").sort_key("SK", "LOCK").key_prefix("job#");
    let locks = locks.build().unwrap();
    locks.create_table().await.unwrap();
    let entity = |pk: &str, sk: &str| Row::from([("PK".to_owned(), text(pk)), ("SK".to_owned(), text(sk))]);
    let neighbours = [entity("job#report", "META"), entity("report", "LOCK"), entity("job#", "LOCK")];
    for neighbour in &neighbours {
        world.put_row(neighbour.clone()).await;
    }
    let lock = locks.acquire("report").await.unwrap();
    assert!(locks.try_acquire("report").await.unwrap().is_none());
    assert!(locks.get("report").await.unwrap().unwrap().is_current());
    lock.renew(LEASE).await.unwrap();
    transact(&world, lock.condition_check().unwrap(), entity("job#report", "RESULT")).await.unwrap();
    lock.release().await.unwrap();
    let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
    assert_eq!(rows.len(), 5);
    for neighbour in neighbours {
        assert!(rows.contains(&neighbour));
    }
    assert!(rows.iter().any(|row| row["PK"] == text("job#report") && row["SK"] == text("LOCK")));
}

// behaviours 8, 9
#[tokio::test]
async fn a_table_is_created_on_demand_with_ttl_on_and_creating_it_again_is_harmless() {
    let world = World::without_table();
    let locks = world.default_locks();
    locks.create_table().await.unwrap();
    let lock = locks.acquire("job").await.unwrap();
    locks.create_table().await.unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none(), "the rows are still there");
    lock.release().await.unwrap();

    let client = world.client();
    let table = client.describe_table().table_name(&world.table).send().await.unwrap().table.unwrap();
    assert_eq!(table.table_status, Some(TableStatus::Active));
    assert_eq!(table.billing_mode_summary.unwrap().billing_mode, Some(BillingMode::PayPerRequest));
    let ttl = client.describe_time_to_live().table_name(&world.table).send().await.unwrap();
    let ttl = ttl.time_to_live_description.unwrap();
    assert_eq!(ttl.time_to_live_status, Some(TimeToLiveStatus::Enabled));
    assert_eq!(ttl.attribute_name.as_deref(), Some("expiration"));
}

// behaviour 8
#[tokio::test]
async fn two_that_create_the_table_at_once_both_succeed() {
    let world = World::without_table();
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    let (ours, theirs) = tokio::join!(ours.create_table().into_future(), theirs.create_table().into_future());
    ours.unwrap();
    theirs.unwrap();
}

// behaviours 8, 19
#[tokio::test]
async fn an_acquire_does_not_create_the_table_and_says_what_is_missing() {
    let world = World::without_table();
    let host = world.host().build();
    let error = world.locks(&host).build().unwrap().acquire("job").wait(eagerly()).await.unwrap_err();
    assert!(error.is_table_not_found());
    assert_contains(&error, &[&world.table, "create"]);
    assert_eq!(host.requests(), 1);
}

// behaviour 45
#[tokio::test]
async fn a_table_is_created_with_the_billing_mode_the_key_names_and_the_tags_that_were_asked_for() {
    let world = World::without_table();
    let sent = Recorder::default();
    let host = world.host().intercept(sent.clone()).build();
    let locks = world.locks(&host).partition_key("PK").sort_key("SK", "LOCK").build().unwrap();
    locks.create_table().provisioned(3, 4).tag("team", "billing").tag("stage", "test").await.unwrap();
    // Emulators do not all keep tags: what was sent is what counts.
    let tags = sent.request("CreateTable")["Tags"].clone();
    assert_eq!(tags, json!([{ "Key": "team", "Value": "billing" }, { "Key": "stage", "Value": "test" }]));
    let table = world.client().describe_table().table_name(&world.table).send().await.unwrap().table.unwrap();
    let throughput = table.provisioned_throughput.unwrap();
    assert_eq!((throughput.read_capacity_units, throughput.write_capacity_units), (Some(3), Some(4)));
    let keys: Vec<_> = table.key_schema.unwrap().into_iter().map(|key| key.attribute_name).collect();
    assert_eq!(keys, ["PK", "SK"]);
}

// behaviour 7
#[tokio::test]
async fn a_client_that_the_user_built_is_used_as_it_is() {
    let world = World::new().await;
    let host = world.host().build();
    let config =
        host.client().config().to_builder().app_name(aws_sdk_dynamodb::config::AppName::new("theirs").unwrap());
    let locks = Locks::builder(Client::from_conf(config.build()), &world.table).build().unwrap();
    locks.acquire("job").await.unwrap().release().await.unwrap();
    assert_eq!(host.requests(), 2);
}

// behaviour 38
#[test]
fn the_endpoint_override_of_the_environment_is_where_requests_go() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut contender = Command::new(env!("CARGO_BIN_EXE_contender"))
        .arg("hold")
        .env_clear()
        .envs([("AWS_ENDPOINT_URL", endpoint.as_str()), ("AWS_REGION", "eu-west-1"), ("LOCK_TABLE_NAME", "my-locks")])
        .envs([("AWS_ACCESS_KEY_ID", "someone"), ("AWS_SECRET_ACCESS_KEY", "secret")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (connection, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(&connection);
    let head: Vec<String> = reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    let header = |name| head.iter().find_map(|line| line.strip_prefix(name)).unwrap();
    let mut body = vec![0; header("content-length: ").parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(header("x-amz-target: "), "DynamoDB_20120810.UpdateItem");
    assert!(header("authorization: ").contains("/eu-west-1/dynamodb/"));
    assert_eq!(body["TableName"], "my-locks");
    // The row as it was before.
    let answer = json!({ "Attributes": { "fence": { "N": "7" } } }).to_string();
    let length = answer.len();
    write!(&connection, "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\n").unwrap();
    write!(&connection, "content-length: {length}\r\n\r\n{answer}").unwrap();
    let said = BufReader::new(contender.stdout.take().unwrap()).lines().next();
    contender.kill().unwrap();
    contender.wait().unwrap();
    assert_eq!(said.unwrap().unwrap(), "holding 8");
}

// Reading, renewing, leaving data

// behaviours 25, 41
#[tokio::test]
async fn who_holds_a_key_can_be_read_by_anyone() {
    let world = World::new().await;
    let host = world.host().build();
    let readers = world.locks(&host).build().unwrap();
    assert!(readers.get("job").await.unwrap().is_none(), "a missing row reads as free");
    let locks = world.default_locks();
    let lock = locks.acquire("job").holder("reporter 17").data("page 3").await.unwrap();
    let holder = readers.get("job").await.unwrap().unwrap();
    assert!(holder.is_current());
    assert_eq!(holder.name(), Some("reporter 17"));
    assert_eq!(holder.owner(), Some(lock.owner()));
    assert_eq!(holder.fence(), Some(lock.fence()));
    assert_eq!(holder.data().and_then(Data::as_str), Some("page 3"));
    assert_eq!(millis(holder.since().unwrap()), millis(lock.acquired_at()));
    assert_eq!(millis(holder.until()), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
    let holder = readers.get("job").await.unwrap().unwrap();
    assert!(!holder.is_current());
    assert_eq!(holder.owner(), Some(lock.owner()), "who was the last");
    let lock = locks.acquire("job").await.unwrap();
    host.advance_clock(LEASE + CLOCK_SKEW);
    assert!(!readers.get("job").await.unwrap().unwrap().is_current(), "the lease has ended");
    drop(lock);
}

// behaviour 15
#[tokio::test]
async fn renewing_moves_the_end_from_now_on_for_the_holder_and_for_everyone_else() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let lock = world.locks(&ours).build().unwrap().acquire("job").await.unwrap();
    ours.advance_clock(LEASE / 2);
    let before = ours.now();
    lock.renew(Duration::from_mins(10)).await.unwrap();
    assert!(millis(lock.expires_at()) >= millis(before + Duration::from_mins(10)));
    assert!(lock.expires_at() <= ours.now() + Duration::from_mins(10));
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    assert!(number(&row, "expiration") * 1000 >= millis(lock.expires_at() + CLOCK_SKEW + RETENTION));
    assert_eq!(number(&row, "fence"), lock.fence());
    theirs.advance_clock(Duration::from_mins(5));
    assert!(world.locks(&theirs).build().unwrap().try_acquire("job").await.unwrap().is_none());
    // It can be shortened, too.
    lock.renew(Duration::from_secs(5)).await.unwrap();
    assert!(lock.remaining() <= Duration::from_secs(5));
    assert!(world.locks(&theirs).build().unwrap().try_acquire("job").await.unwrap().is_some());
}

// behaviours 15, 24, 59
#[tokio::test]
async fn an_expired_and_a_released_lock_cannot_be_renewed() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let expired = locks.acquire("expired").await.unwrap();
    host.advance_clock(LEASE);
    let released = locks.acquire("released").await.unwrap();
    released.release().await.unwrap();
    for lock in [&expired, &released] {
        let row = world.row(lock.key()).await;
        assert!(lock.renew(LEASE).await.unwrap_err().is_lost());
        assert_eq!(world.row(lock.key()).await, row);
        assert!(!lock.is_valid());
    }
}

// behaviour 59
#[tokio::test]
async fn a_renewed_lock_can_be_released() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    lock.renew(Duration::from_hours(1)).await.unwrap();
    lock.renew(Duration::from_hours(2)).await.unwrap();
    lock.release().await.unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

// behaviour 24
#[tokio::test]
async fn a_renewal_that_fails_is_an_error_and_the_old_lease_goes_on() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    let end = lock.expires_at();
    assert!(lock.renew(Duration::from_mins(10)).await.unwrap_err().is_unavailable());
    assert_eq!(lock.expires_at(), end);
    assert!(lock.is_valid());
}

// behaviour 40
#[tokio::test]
async fn data_is_handed_to_the_next_holder_and_kept_until_it_is_replaced() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.data(), None);
    lock.release().await.unwrap();
    let lock = locks.acquire("job").data("page 1").await.unwrap();
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 1"));
    lock.release().await.unwrap();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 1"), "kept");
    lock.release().await.unwrap();
    let lock = locks.acquire("job").data(vec![1, 2, 3]).await.unwrap();
    assert_eq!(lock.data().and_then(Data::as_bytes), Some(&[1, 2, 3][..]), "replaced");
    lock.release().await.unwrap();
}

// behaviour 40
#[tokio::test]
async fn data_can_be_written_by_a_renewal_and_by_the_release() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").data("page 1").await.unwrap();
    lock.set_data("page 2");
    assert_eq!(world.row("job").await.unwrap()["data"], text("page 1"), "nothing is sent yet");
    lock.renew(LEASE).await.unwrap();
    assert_eq!(world.row("job").await.unwrap()["data"], text("page 2"));
    lock.set_data("page 3");
    lock.release().await.unwrap();
    assert_eq!(locks.acquire("job").await.unwrap().data().and_then(Data::as_str), Some("page 3"));
}

// behaviour 48
#[tokio::test]
async fn other_attributes_can_be_written_with_the_lock_row_but_not_over_its_own() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire("job").attribute("tenant", text("a")).attribute("size of it", text("7")).await.unwrap();
    lock.release().await.unwrap();
    let lock = locks.acquire("job").attribute("tenant", text("b")).await.unwrap();
    let row = world.row("job").await.unwrap();
    assert_eq!((&row["tenant"], &row["size of it"]), (&text("b"), &text("7")));
    let sent = host.requests();
    for name in ["status", "owner", "fence", "expiration", "in_progress_expiration", "data", "id", ""] {
        let error = locks.acquire("job").attribute(name, text("x")).await.unwrap_err();
        assert!(error.is_invalid());
        assert_contains(&error, &["attribute", &format!("`{name}`")]);
    }
    let twice = locks.acquire("job").attribute("tenant", text("a")).attribute("tenant", text("b"));
    assert_contains(&twice.await.unwrap_err(), &["`tenant`", "twice"]);
    assert_eq!(host.requests(), sent);
    lock.release().await.unwrap();
}

// behaviour 58
#[tokio::test]
async fn a_lock_released_early_keeps_the_key_until_the_least_hold_is_over() {
    let world = World::new().await;
    let theirs = world.host().build();
    let others = world.locks(&theirs).build().unwrap();
    let hold = Duration::from_mins(10);
    let lock = world.default_locks().acquire("job").hold_at_least(hold).await.unwrap();
    lock.release().await.unwrap();
    assert!(!lock.is_valid());
    let error = others.acquire("job").await.unwrap_err();
    assert_eq!(millis(error.holder().unwrap().until()), millis(lock.acquired_at() + hold + CLOCK_SKEW));
    theirs.advance_clock(hold / 2);
    assert!(others.try_acquire("job").await.unwrap().is_none());
    theirs.advance_clock(hold / 2 + CLOCK_SKEW);
    assert!(others.try_acquire("job").await.unwrap().is_some());
}

// behaviour 58
#[tokio::test]
async fn a_least_hold_that_is_over_or_whose_holder_crashed_does_not_keep_the_key() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let (locks, others) = (world.locks(&ours).build().unwrap(), world.locks(&theirs).build().unwrap());
    let lock = locks.acquire("over").hold_at_least(Duration::from_secs(10)).await.unwrap();
    ours.advance_clock(Duration::from_secs(11));
    theirs.advance_clock(Duration::from_secs(12));
    lock.release().await.unwrap();
    assert!(others.try_acquire("over").await.unwrap().is_some());
    let _crashed = locks.acquire("crashed").hold_at_least(Duration::from_hours(1)).await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    assert!(others.try_acquire("crashed").await.unwrap().is_some());
}

// behaviour 78
#[tokio::test]
async fn fences_grow_across_release_expiry_and_deletion_of_the_row() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().clock_behind(ms(400)).build());
    let (locks, others) = (world.locks(&ours).build().unwrap(), world.locks(&theirs).build().unwrap());
    let mut fences = Vec::new();
    let lock = locks.acquire("job").await.unwrap();
    lock.release().await.unwrap();
    fences.push(lock.fence());
    let crashed = locks.acquire("job").await.unwrap();
    fences.push(crashed.fence());
    ours.advance_clock(LEASE + CLOCK_SKEW);
    let lock = locks.acquire("job").await.unwrap();
    fences.push(lock.fence());
    lock.release().await.unwrap();
    // A row is deleted no earlier than its retention, here its least, after its lease; by a host that is behind.
    world.delete_row("job").await;
    theirs.advance_clock(LEASE + CLOCK_SKEW + Duration::from_mins(15));
    let lock = others.acquire("job").await.unwrap();
    fences.push(lock.fence());
    lock.release().await.unwrap();
    let lock = others.acquire("job").await.unwrap();
    fences.push(lock.fence());
    lock.release().await.unwrap();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

// Waiting

// behaviour 77
#[tokio::test]
async fn a_refusal_costs_one_request_and_names_the_holder_and_the_end_of_its_lease() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").holder("reporter 17").await.unwrap();
    let host = world.host().build();
    let error = world.locks(&host).build().unwrap().acquire("job").await.unwrap_err();
    assert_eq!(host.requests(), 1);
    let holder = error.holder().unwrap();
    assert!(holder.is_current());
    assert_eq!((holder.name(), holder.fence()), (Some("reporter 17"), Some(lock.fence())));
    assert_eq!(millis(holder.until()), millis(lock.expires_at() + CLOCK_SKEW));
    assert_eq!((error.key(), error.table()), ("job", world.table.as_str()));
    assert_contains(&error, &["`job`", &world.table, "reporter 17", "until 20"]);
    lock.release().await.unwrap();
}

// behaviour 77
#[tokio::test]
async fn a_wait_does_not_sleep_past_the_end_of_the_holders_lease() {
    let world = World::new().await;
    let ours = world.host().build();
    let locks = world.locks(&ours).clock_skew(Duration::ZERO).build().unwrap();
    let _crashed = locks.acquire("job").lease(ms(500)).await.unwrap();
    let host = world.host().build();
    // By itself it would wait for an hour after the second attempt.
    let hours = Backoff::default().base(ms(20)).factor(1e9).cap(Duration::from_hours(1)).jitter(Jitter::None);
    let next = world.locks(&host).build().unwrap().acquire("job").wait(hours.up_to(Duration::from_hours(1)));
    let next = tokio::time::timeout(Duration::from_secs(10), next.into_future()).await.unwrap().unwrap();
    assert!(host.requests() <= 3);
    next.release().await.unwrap();
}

// behaviours 1, 51
#[tokio::test]
async fn a_wait_ends_when_the_key_is_released() {
    let world = World::new().await;
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    let lock = ours.acquire("job").await.unwrap();
    let waiting = tokio::spawn(theirs.acquire("job").wait(eagerly()).into_future());
    tokio::time::sleep(ms(50)).await;
    assert!(!waiting.is_finished());
    lock.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(next.fence(), lock.fence() + 1);
}

// behaviours 34, 51
#[tokio::test]
async fn a_wait_that_passes_its_time_makes_a_last_attempt_and_fails_with_who_holds_the_key() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let started = host.now();
    let slowly = Backoff::default().base(Duration::from_secs(5)).jitter(Jitter::None).up_to(ms(400));
    let error = world.locks(&host).build().unwrap().acquire("job").wait(slowly).await.unwrap_err();
    let took = host.now().duration_since(started).unwrap();
    assert!(error.is_held());
    assert_eq!(error.holder().unwrap().owner(), Some(lock.owner()));
    assert_eq!(error.attempts(), 2, "the first, and the last when the time is up");
    assert_eq!(host.requests(), 2);
    assert_contains(&error, &["after 2 attempts"]);
    assert!((ms(400)..Duration::from_secs(4)).contains(&took), "{took:?}");
    lock.release().await.unwrap();
}

// behaviours 31, 51
#[tokio::test]
async fn a_wait_of_no_time_sends_one_request() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let not_at_all = Backoff::default().up_to(Duration::ZERO);
    let error = world.locks(&host).build().unwrap().acquire("job").wait(not_at_all).await.unwrap_err();
    assert!(error.is_held());
    assert_eq!((error.attempts(), host.requests()), (1, 1));
    lock.release().await.unwrap();
}

// behaviour 32
#[tokio::test]
async fn attempts_bound_a_wait() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let error = world.locks(&host).build().unwrap().acquire("job").wait(eagerly().max_attempts(4)).await.unwrap_err();
    assert!(error.is_held());
    assert_eq!((error.attempts(), host.requests()), (4, 4));
    lock.release().await.unwrap();
}

// behaviours 3, 51
#[tokio::test]
async fn a_wait_ends_early_enough_before_the_deadline_to_answer() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let deadline = host.now() + Duration::from_secs(1);
    let locks = world.locks(&host).build().unwrap();
    let error = locks.acquire("job").until(deadline).wait(eagerly()).await.unwrap_err();
    assert!(error.is_held());
    assert!((deadline - ms(100)..deadline).contains(&host.now()));
    lock.release().await.unwrap();
}

// behaviour 35
#[tokio::test]
async fn dropping_the_future_stops_the_waiting() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let waiting = world.locks(&host).build().unwrap().acquire("job").wait(eagerly().cap(ms(5)));
    tokio::time::timeout(ms(100), waiting.into_future()).await.unwrap_err();
    assert!(host.requests() > 2);
    // A request that was under way is followed by a release.
    tokio::time::sleep(ms(150)).await;
    let sent = host.requests();
    tokio::time::sleep(ms(150)).await;
    assert_eq!(host.requests(), sent);
    assert!(lock.is_valid());
    assert_eq!(world.row("job").await.unwrap()["owner"], text(lock.owner()));
    lock.release().await.unwrap();
}

// behaviour 35
#[tokio::test]
async fn a_future_dropped_while_its_request_is_under_way_does_not_leave_the_key_locked() {
    let world = World::new().await;
    let slow = world.host().faults(Faults::seeded(1).latency(ms(100)..ms(100))).build();
    let acquiring = world.locks(&slow).build().unwrap().acquire("job");
    tokio::time::timeout(ms(50), acquiring.into_future()).await.unwrap_err();
    tokio::time::sleep(ms(500)).await;
    let row = world.row("job").await.expect("the request arrived after all");
    let next = world.default_locks().try_acquire("job").await.unwrap().unwrap();
    assert_eq!(next.fence(), number(&row, "fence") + 1);
}

// behaviours 33, 34
#[tokio::test]
async fn what_may_pass_is_tried_again_and_what_would_not_fails_after_one_attempt() {
    type Is = fn(&Error) -> bool;
    let world = World::new().await;
    let other: Is = |error| !error.is_throttled() && !error.is_unavailable() && !error.is_held() && !error.is_invalid();
    let cases: [(u16, &str, Is, u32); 13] = [
        (400, "ProvisionedThroughputExceededException", Error::is_throttled, 3),
        (400, "RequestLimitExceeded", Error::is_throttled, 3),
        (400, "ThrottlingException", Error::is_throttled, 3),
        (500, "InternalServerError", Error::is_unavailable, 3),
        (503, "ServiceUnavailable", Error::is_unavailable, 3),
        (400, "TransactionConflictException", Error::is_conflict, 3),
        (400, "AccessDeniedException", Error::is_access_denied, 1),
        (400, "UnrecognizedClientException", Error::is_access_denied, 1),
        (400, "ExpiredTokenException", Error::is_access_denied, 1),
        (400, "ResourceNotFoundException", Error::is_table_not_found, 1),
        (400, "ValidationException", other, 1),
        (400, "ItemCollectionSizeLimitExceededException", other, 1),
        (400, "SomethingNew", other, 1),
    ];
    for (status, code, is, attempts) in cases {
        let host = world.host().intercept(Refuse(status, code)).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let error = locks.acquire("job").wait(eagerly().max_attempts(3)).await.unwrap_err();
        assert!(is(&error), "{code}: {error:?}");
        assert_eq!(error.attempts(), attempts, "{code}");
        assert!(std::error::Error::source(&error).is_some(), "{code}");
        if attempts == 1 {
            assert_eq!(host.requests(), 1, "{code}");
        }
    }
}

// behaviour 34
#[tokio::test]
async fn a_wait_that_is_throttled_to_its_end_says_so_and_not_that_the_key_is_held() {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(1).throttle(1.0)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let error = locks.acquire("job").wait(eagerly().max_attempts(2)).await.unwrap_err();
    assert!(error.is_throttled() && !error.is_held());
    assert!(error.holder().is_none());
    assert_contains(&error, &["throttled", "after 2 attempts"]);
}

// behaviour 50
#[tokio::test]
async fn a_hundred_waiters_on_one_key_are_all_served() {
    let world = World::new().await;
    let locks = world.default_locks();
    let waiters = (0..100).map(|_| {
        let acquire = locks.acquire("job").wait(eagerly());
        tokio::spawn(async move {
            let lock = acquire.await?;
            lock.release().await?;
            Ok::<_, Error>(lock.fence())
        })
    });
    let served = join_all(waiters).await.into_iter().map(|waiter| waiter.unwrap().unwrap());
    assert_eq!(served.collect::<HashSet<u64>>().len(), 100);
}

// behaviour 50
#[tokio::test]
async fn an_unsynchronised_counter_that_fifty_workers_count_up_ten_times_each_is_exact() {
    let world = World::new().await;
    let counter = Arc::new(AtomicU64::new(0));
    let workers = (0..50).map(|_| {
        let (locks, counter) = (world.default_locks(), Arc::clone(&counter));
        tokio::spawn(async move {
            for _ in 0..10 {
                let lock = locks.acquire("counter").wait(eagerly()).await.unwrap();
                let seen = counter.load(Ordering::Relaxed);
                tokio::time::sleep(ms(1)).await;
                counter.store(seen + 1, Ordering::Relaxed);
                lock.release().await.unwrap();
            }
        })
    });
    join_all(workers).await.into_iter().for_each(Result::unwrap);
    assert_eq!(counter.load(Ordering::Relaxed), 500);
}

// Work under a lock

// behaviour 20
#[tokio::test]
async fn run_skips_the_body_when_the_key_is_held() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    let ran = AtomicBool::new(false);
    let error = world.default_locks().acquire("job").run(async |_| ran.store(true, Ordering::Relaxed)).await;
    assert!(error.unwrap_err().is_held());
    assert!(!ran.into_inner());
    lock.release().await.unwrap();
}

// behaviours 20, 29
#[tokio::test]
async fn run_releases_when_the_body_returns_and_when_it_fails() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let fence = locks.acquire("job").run(async |lock| lock.fence()).await.unwrap();
    assert_eq!(host.requests(), 2);
    let failed: Result<(), &str> = locks.acquire("job").run(async |_| Err("broken")).await.unwrap();
    assert_eq!(failed, Err("broken"));
    assert_eq!(host.requests(), 4);
    assert_eq!(locks.acquire("job").await.unwrap().fence(), fence + 2);
}

// behaviours 20, 29
#[tokio::test]
async fn run_releases_when_the_body_panics_and_the_panic_goes_on() {
    let world = World::new().await;
    let locks = world.default_locks();
    let panicking = locks.acquire("job").run(async |_| panic!("on purpose"));
    let panic = AssertUnwindSafe(panicking).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

// behaviours 11, 29
#[tokio::test]
async fn a_release_that_fails_does_not_hide_the_outcome_of_the_body() {
    keep_warnings();
    let world = World::new().await;
    let key = format!("not released by {}", world.table);
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    assert_eq!(locks.acquire(&key).run(async |_| "done").await.unwrap(), "done");
    let warnings = logged(&key);
    assert!(warnings.iter().any(|line| line.contains("releasing a lock failed")), "{warnings:?}");
}

// behaviours 3, 80
#[tokio::test]
async fn run_cancels_a_body_that_outlives_the_lease_and_frees_the_key() {
    let world = World::new().await;
    let locks = world.default_locks();
    let outlived = AtomicBool::new(false);
    let running = locks.acquire("job").lease(ms(100)).run(async |lock| {
        lock.lost().await;
        // The lease is over, so this is not reached in time.
        tokio::time::sleep(ms(200)).await;
        outlived.store(true, Ordering::Relaxed);
    });
    assert!(running.await.unwrap_err().is_lost());
    assert!(!outlived.into_inner());
    // Freed by the release: the skew, of a second, is not over yet.
    assert!(locks.try_acquire("job").await.unwrap().is_some());
}

// behaviour 80
#[tokio::test]
async fn a_body_that_renews_its_lock_goes_on() {
    let world = World::new().await;
    let running = world.default_locks().acquire("job").lease(ms(400)).run(async |lock| {
        lock.renew(LEASE).await?;
        tokio::time::sleep(ms(600)).await;
        Ok::<_, Error>("done")
    });
    assert_eq!(Box::pin(running).await.unwrap().unwrap(), "done");
}

// behaviour 57
#[tokio::test]
async fn a_holder_learns_when_its_lock_is_lost_and_not_earlier() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let lock = locks.acquire("job").lease(ms(100)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), lock.lost()).await.unwrap();
    assert!(host.now() >= lock.expires_at());
    assert!(!lock.is_valid());
    let lock = locks.acquire("another job").await.unwrap();
    tokio::time::timeout(ms(100), lock.lost()).await.unwrap_err();
    assert_eq!(host.requests(), 2, "it is a question of time");
    // As a sandbox that was frozen finds out.
    host.advance_clock(LEASE);
    tokio::time::timeout(Duration::from_secs(5), lock.lost()).await.unwrap();
}

/// Writes `row` in a transaction with `check`. An error says why the check failed.
async fn transact(world: &World, check: ConditionCheck, row: Row) -> Result<(), Option<String>> {
    let put = Put::builder().table_name(&world.table).set_item(Some(row)).build().unwrap();
    let transaction = world.client().transact_write_items();
    let sent = transaction
        .transact_items(TransactWriteItem::builder().condition_check(check).build())
        .transact_items(TransactWriteItem::builder().put(put).build())
        .send();
    sent.await.map(drop).map_err(|error| match error.into_service_error() {
        TransactWriteItemsError::TransactionCanceledException(why) => why.cancellation_reasons()[0].code.clone(),
        other => panic!("{other:?}"),
    })
}

fn report() -> Row {
    Row::from([("id".to_owned(), text("report")), ("text".to_owned(), text("all is well"))])
}

// behaviour 79
#[tokio::test]
async fn a_transaction_with_the_condition_check_commits_while_the_lock_is_held() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").await.unwrap();
    transact(&world, lock.condition_check().unwrap(), report()).await.unwrap();
    assert_eq!(world.row("report").await, Some(report()));
    lock.release().await.unwrap();
}

// behaviour 79
#[tokio::test]
async fn a_transaction_with_the_condition_check_writes_nothing_once_the_lock_is_expired_released_or_anothers() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let (locks, others) = (world.locks(&ours).build().unwrap(), world.locks(&theirs).build().unwrap());
    let released = locks.acquire("released").await.unwrap();
    released.release().await.unwrap();
    let taken = locks.acquire("taken").await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    let _next = others.acquire("taken").await.unwrap();
    let taken_check = taken.condition_check().unwrap();
    let expired = locks.acquire("expired").await.unwrap();
    ours.advance_clock(LEASE + CLOCK_SKEW);
    for check in [released.condition_check().unwrap(), taken_check, expired.condition_check().unwrap()] {
        let refused = transact(&world, check, report()).await;
        assert_eq!(refused, Err(Some("ConditionalCheckFailed".to_owned())));
        assert!(world.row("report").await.is_none());
    }
}

// Answers that are lost

// behaviour 76
#[tokio::test]
async fn an_acquire_whose_answer_was_lost_is_acquired() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=1)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").data("page 1").await.unwrap();
    assert_eq!(host.requests(), 2);
    let row = world.row("job").await.unwrap();
    assert_eq!((&row["owner"], number(&row, "fence")), (&text(lock.owner()), lock.fence()));
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 1"));
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_none());
    lock.release().await.unwrap();
}

// behaviour 76
#[tokio::test]
async fn an_acquire_that_lost_all_answers_of_one_attempt_is_acquired_by_the_next() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=3)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = locks.acquire("job").wait(eagerly()).await.unwrap();
    assert_eq!(host.requests(), 4);
    let row = world.row("job").await.unwrap();
    assert_eq!((&row["owner"], number(&row, "fence")), (&text(lock.owner()), lock.fence()));
    // The lease that counts is the one that the first request wrote.
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
}

// behaviour 76
#[tokio::test]
async fn an_acquire_that_gave_up_without_an_answer_does_not_leave_the_key_locked() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(1..=3)).build();
    let error = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap_err();
    assert!(error.is_unavailable());
    let lock = world.default_locks().acquire("job").wait(eagerly().up_to(LEASE / 3)).await.unwrap();
    lock.release().await.unwrap();
}

// behaviour 76
#[tokio::test]
async fn a_renewal_whose_answer_was_lost_is_done() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=2)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.renew(Duration::from_mins(10)).await.unwrap();
    assert_eq!(host.requests(), 3);
    assert!(lock.remaining() > Duration::from_mins(9));
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
}

// behaviour 76
#[tokio::test]
async fn a_renewal_after_one_that_lost_all_its_answers_is_done() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.renew(Duration::from_mins(10)).await.unwrap_err();
    lock.renew(Duration::from_mins(20)).await.unwrap();
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    lock.release().await.unwrap();
}

// behaviour 76
#[tokio::test]
async fn a_release_whose_answer_was_lost_is_done() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=2)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.release().await.unwrap();
    assert_eq!(host.requests(), 3);
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_some());
}

// behaviour 76
#[tokio::test]
async fn a_release_whose_answer_was_lost_is_done_also_when_the_next_holder_was_quicker_than_its_retry() {
    let world = World::new().await;
    let host = world.host().intercept(lose_answers(2..=4)).build();
    let lock = world.locks_with_quick_retries(&host).build().unwrap().acquire("job").await.unwrap();
    lock.release().await.unwrap_err();
    let next = world.default_locks().acquire("job").await.unwrap();
    let row = world.row("job").await;
    lock.release().await.unwrap();
    assert_eq!(world.row("job").await, row);
    next.release().await.unwrap();
}

// Settings

// behaviours 22, 11
#[tokio::test]
async fn locks_that_are_switched_off_run_everything_send_nothing_and_warn_once() {
    keep_warnings();
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let held = locks.acquire("job").await.unwrap();
    assert!(!locks.acquire("job").run(async |lock| lock.is_enforced()).await.unwrap());
    let lock = locks.try_acquire("job").await.unwrap().unwrap();
    assert!(lock.is_valid() && !lock.is_enforced());
    assert_eq!(lock.fence(), 0);
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
    assert!(!lock.is_valid());
    drop(held);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(host.requests(), 0);
    assert!(world.row("job").await.is_none());
    let warnings = logged(&world.table);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("switched off"));
}

// behaviours 22, 79
#[tokio::test]
async fn the_condition_check_of_locks_that_are_switched_off_always_holds() {
    let world = World::new().await;
    let lock = world.locks(&world.host().build()).enabled(false).build().unwrap().acquire("job").await.unwrap();
    transact(&world, lock.condition_check().unwrap(), report()).await.unwrap();
    assert!(world.row("report").await.is_some());
}

// behaviours 47, 53
#[tokio::test]
async fn a_setting_out_of_its_bounds_is_refused_with_its_value_and_the_bound() {
    let world = World::without_table();
    let host = world.host().build();
    let named = |name: &str| Locks::builder(host.client(), name);
    let locks = || named("locks");
    let day = Duration::from_hours(24);
    let refused: [(LocksBuilder, &[&str]); 17] = [
        (locks().lease(Duration::ZERO), &["lease", "0s", "1ms", "1day"]),
        (locks().lease(day + ms(1)), &["lease", "1day 1ms", "between", "1day"]),
        (locks().lease(Duration::MAX), &["lease", "1day"]),
        (locks().clock_skew(Duration::from_secs(301)), &["clock skew", "5m 1s", "5m"]),
        (locks().retention(Duration::from_secs(901)), &["retention", "15m 1s", "15m 2s"]),
        (locks().retention(Duration::MAX), &["retention", "1year"]),
        (named(""), &["table name", "``", "3 to 255"]),
        (named("ab"), &["table name", "`ab`", "3 to 255"]),
        (named("my locks"), &["table name", "`my locks`", "letters"]),
        (named(&"n".repeat(256)), &["table name", "nnn", "255"]),
        (locks().partition_key(""), &["partition key", "0 bytes", "1 to 255"]),
        (locks().partition_key("p".repeat(256)), &["partition key", "256 bytes", "1 to 255"]),
        (locks().partition_key("owner"), &["partition key", "`owner`", "another"]),
        (locks().sort_key("fence", "LOCK"), &["sort key", "`fence`", "another"]),
        (locks().sort_key("id", "LOCK"), &["partition key", "sort key", "`id`"]),
        (locks().sort_key("SK", ""), &["sort key", "0 bytes", "1 to 1024"]),
        (locks().sort_key("SK", "s".repeat(1025)), &["sort key", "1025 bytes", "1 to 1024"]),
    ];
    for (builder, parts) in refused {
        let error = builder.build().unwrap_err();
        assert!(error.is_invalid());
        assert_contains(&error, parts);
    }
    let most = locks().lease(day).clock_skew(Duration::from_mins(5)).retention(Duration::from_mins(25)).build();
    most.unwrap();
    locks().lease(ms(1)).clock_skew(Duration::ZERO).retention(Duration::from_mins(15)).build().unwrap();
    named("arn:aws:dynamodb:eu-west-1:123456789012:table/locks").build().unwrap();
}

// behaviours 47, 53
#[tokio::test]
async fn an_argument_out_of_its_bounds_is_refused_before_anything_is_sent() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let day = Duration::from_hours(24);
    let acquire = || locks.acquire("job");
    for (acquire, parts) in [
        (acquire().lease(Duration::ZERO), &["lease", "0s", "1ms"][..]),
        (acquire().lease(Duration::MAX), &["lease", "1day"]),
        (acquire().hold_at_least(day + ms(1)), &["hold", "1day 1ms", "1day"]),
        (acquire().until(host.now() + 2 * day), &["deadline", "1day"]),
        (acquire().until(host.now() - ms(1)), &["deadline", "`job`", "passed"]),
        (acquire().until(SystemTime::UNIX_EPOCH - day), &["deadline", "`job`", "passed"]),
    ] {
        let error = acquire.wait(eagerly()).await.unwrap_err();
        assert!(error.is_invalid());
        assert_contains(&error, parts);
    }
    assert_eq!(host.requests(), 0);
    let lock = acquire().await.unwrap();
    for (lease, parts) in [(Duration::ZERO, ["0s", "1ms"]), (day + ms(1), ["1day 1ms", "1day"])] {
        let error = lock.renew(lease).await.unwrap_err();
        assert!(error.is_invalid());
        assert_contains(&error, &parts);
    }
    assert_eq!(host.requests(), 1);
    assert!(lock.is_valid());
    lock.release().await.unwrap();
}

// behaviours 15, 59, 80
#[tokio::test]
async fn a_renewal_that_meets_the_release_does_not_take_the_key_again() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    for _ in 0..20 {
        let lock = locks.acquire("job").await.unwrap();
        let (_renewed, released) = tokio::join!(lock.renew(Duration::from_hours(1)), lock.release());
        released.unwrap();
        assert!(!world.default_locks().get("job").await.unwrap().unwrap().is_current());
    }
}

// behaviour 80
#[tokio::test]
async fn a_body_that_releases_its_lock_early_goes_on() {
    let world = World::new().await;
    let locks = world.default_locks();
    let ran = locks.acquire("job").run(async |lock| {
        lock.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        "done"
    });
    assert_eq!(ran.await.unwrap(), "done");
}

// behaviours 43, 76
#[tokio::test]
async fn a_lock_whose_renewal_may_have_shortened_its_lease_is_valid_no_longer_than_that() {
    let world = World::new().await;
    let host = world.host().intercept(LoseRenewals).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let lock = locks.acquire("job").lease(Duration::from_mins(1)).await.unwrap();
    assert!(lock.renew(Duration::from_secs(5)).await.unwrap_err().is_unavailable());
    assert!(lock.remaining() <= Duration::from_secs(5));
    lock.release().await.unwrap();
}

/// Applies every renewal, and loses its answer.
#[derive(Debug)]
struct LoseRenewals;

impl Intercept for LoseRenewals {
    fn answer(&self, _: &str, request: &Value, answer: &mut Answer) {
        let values = &request["ExpressionAttributeValues"];
        if values[":sequence"].is_object() && values[":now"].is_object() {
            (answer.status, answer.body) = (500, json!({}));
        }
    }
}

// behaviour 47
#[tokio::test]
async fn data_that_no_row_can_hold_is_refused_and_does_not_keep_the_key() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    lock.set_data("x".repeat(400 * 1024));
    let error = lock.release().await.unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("409600 bytes"), "{error}");
    drop(lock);
    while world.default_locks().get("job").await.unwrap().unwrap().is_current() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
