//! Rows that others wrote under the key of a lock, well-formed or not.

use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put, ScalarAttributeType,
    TransactWriteItem,
};
use lambda_lock::{ErrorKind, Locks, Wait};
use lambda_lock_tests::{Row, World};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::{Builder, Runtime};

const LATEST: i128 = 253_402_300_799_999;

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "`map` passes values")]
fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// Seconds since the epoch.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// A table without TTL: DynamoDB does not delete rows before a test reads them.
async fn world_without_ttl() -> World {
    let world = World::without_table();
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build().unwrap();
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    let create = world.client().create_table().table_name(&world.table).billing_mode(BillingMode::PayPerRequest);
    create.key_schema(key).attribute_definitions(id.build().unwrap()).send().await.unwrap();
    world
}

// Rows at random

/// Times around now, in seconds and in milliseconds, and invalid numbers. None is so close to now that the duration of
/// the test matters.
fn any_number(now: u64) -> impl Strategy<Value = AttributeValue> + Clone {
    let times = prop_oneof![now - 500..now - 200, now + 200..now + 500];
    let odd = ["0", "-0", "-1", "0.5", "-0.5", "1e3", "1.5E+12", "9.9e125", "-9.9e125", "1e-30"];
    // Around the bounds of valid numbers.
    let bounds = ["253402300799999", "253402300800000", "253402300799", "253402300800", "18446744073709551616"];
    let bounds = bounds.into_iter().chain(["9223372036854775806", "9223372036854775807", "9223372036854775808"]);
    prop_oneof![
        4 => times.clone().prop_map(number),
        4 => times.clone().prop_map(|time| number(time * 1000)),
        1 => times.prop_map(|time| number(format!("{time}000.75"))),
        1 => any::<i64>().prop_map(number),
        1 => any::<u64>().prop_map(number),
        1 => select(odd.into_iter().chain(bounds).collect::<Vec<_>>()).prop_map(number),
    ]
}

fn any_value(now: u64) -> impl Strategy<Value = AttributeValue> + Clone {
    let texts = ["", "INPROGRESS", "COMPLETED", "inprogress", "EXPIRED", "1800000000000", "🔒\0"];
    let flat = prop_oneof![
        any_number(now),
        select(texts.to_vec()).prop_map(text),
        any::<bool>().prop_map(AttributeValue::Bool),
        Just(AttributeValue::Null(true)),
        vec(any::<u8>(), 0..9).prop_map(|bytes| AttributeValue::B(Blob::new(bytes))),
        any_number(now).prop_map(|one| AttributeValue::Ns(vec![one.as_n().unwrap().clone()])),
        Just(AttributeValue::Ss(vec!["INPROGRESS".to_owned()])),
    ];
    flat.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(AttributeValue::L),
            btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|map| AttributeValue::M(map.into_iter().collect())),
        ]
    })
}

/// The attributes of a row without its key. Most are present and valid.
fn any_row(now: u64) -> impl Strategy<Value = Row> {
    let mostly = move |name: &'static str, usual: BoxedStrategy<AttributeValue>| {
        let value = prop_oneof![12 => usual.prop_map(Some), 3 => Just(None), 1 => any_value(now).prop_map(Some)];
        value.prop_map(move |value| Some((name.to_owned(), value?)))
    };
    let times = any_number(now).boxed();
    let fence = prop_oneof![4 => (1..i64::MAX / 2).prop_map(number), 1 => any_number(now)];
    let attributes = [
        mostly("status", select(&["INPROGRESS", "INPROGRESS", "COMPLETED"][..]).prop_map(text).boxed()),
        mostly("in_progress_expiration", times.clone()),
        mostly("expiration", times.clone()),
        mostly("owner", "[0-9a-f]{32}".prop_map(AttributeValue::S).boxed()),
        mostly("released", "[0-9a-f]{32}".prop_map(AttributeValue::S).boxed()),
        mostly("fence", fence.boxed()),
        mostly("holder", Just(text("someone")).boxed()),
        mostly("acquired_at", Just(number(now * 1000)).boxed()),
        mostly("data", any_value(now).boxed()),
    ];
    attributes.prop_map(|attributes| attributes.into_iter().flatten().collect())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Free,
    Held,
    Malformed,
}

/// The meaning of a row: a second implementation, independent of the one under test.
#[expect(clippy::cast_precision_loss, reason = "values with a fraction are not near a bound")]
fn verdict(row: &Row, now: u64) -> Verdict {
    // Whether an attribute is a number of at most `most`; `None` if it is missing.
    let is_at_most = |name: &str, most: i128| {
        row.get(name).map(|value| match value.as_n().map(|text| (text.parse::<i128>(), text.parse::<f64>())) {
            Ok((Ok(whole), _)) => whole <= most,
            Ok((_, Ok(real))) => real <= most as f64,
            _ => false,
        })
    };
    let is_within = |name: &str, most: i128| {
        let negative = row.get(name).is_some_and(|value| value.as_n().is_ok_and(|n| n.parse::<f64>().unwrap() < 0.0));
        is_at_most(name, most).unwrap_or(true) && !negative
    };
    let status = row.get("status").and_then(|status| status.as_s().ok()).map_or("", String::as_str);
    let millis = i128::from(now) * 1000;
    let (end, unit) = match (status, row.contains_key("in_progress_expiration")) {
        ("INPROGRESS", true) => ("in_progress_expiration", 1),
        ("INPROGRESS", false) | ("COMPLETED", _) => ("expiration", 1000),
        _ => return Verdict::Malformed,
    };
    // Of a free row, only the fence matters.
    if is_at_most(end, millis / unit) == Some(true) {
        return if is_within("fence", i64::MAX.into()) { Verdict::Free } else { Verdict::Malformed };
    }
    // A held row may have a fence of 2^63, which no larger fence can follow.
    let fence = is_within("fence", i128::from(i64::MAX) + 1);
    let strings = ["owner", "holder"].iter().all(|name| row.get(*name).is_none_or(AttributeValue::is_s));
    let times = [("in_progress_expiration", LATEST), ("acquired_at", LATEST), ("expiration", LATEST / 1000)];
    let times = times.iter().all(|(name, latest)| is_within(name, *latest));
    if fence && strings && times && row.contains_key(end) { Verdict::Held } else { Verdict::Malformed }
}

/// A table for random rows, each under its own key.
struct Stage {
    runtime: Runtime,
    world: World,
    locks: Locks,
    now: u64,
}

impl Stage {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let world = runtime.block_on(world_without_ttl());
        let host = world.host().build();
        Self { locks: world.locks(&host).build().unwrap(), now: seconds(host.now()), runtime, world }
    }

    fn for_rows(&self, test: &impl AsyncFn(&str, Row)) {
        let config = Config { cases: 400, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&any_row(self.now), |row| {
                let key = format!("{:016x}", fastrand::u64(..));
                self.runtime.block_on(test(&key, row));
                Ok(())
            })
            .unwrap();
    }

    /// Writes the row, and returns what the table stores.
    async fn put(&self, key: &str, mut row: Row) -> Option<Row> {
        row.insert("id".to_owned(), text(key));
        self.world.put_row(row).await;
        self.world.row(key).await
    }
}

#[test]
fn an_acquire_takes_free_rows_and_modifies_no_held_or_malformed_row() {
    let stage = Stage::new();
    let (world, locks) = (&stage.world, &stage.locks);
    stage.for_rows(&async |key, row| {
        let verdict = verdict(&row, stage.now);
        let before = stage.put(key, row).await;
        match (verdict, locks.get(key).await) {
            (Verdict::Held, read) => assert!(read.unwrap().unwrap().is_current()),
            (Verdict::Malformed, Ok(read)) => assert_eq!(read.unwrap().fence(), Some(1 << 63)),
            (Verdict::Malformed, Err(error)) => assert_eq!(error.kind(), ErrorKind::MalformedRow),
            (Verdict::Free, Ok(read)) => assert!(!read.unwrap().is_current()),
            (Verdict::Free, Err(error)) => assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error:?}"),
        }
        let attempt = locks.try_acquire(key).await;
        match verdict {
            Verdict::Free => {
                let lock = attempt.unwrap().expect("the row is free");
                let old = before.unwrap().get("fence").map_or(0.0, |fence| fence.as_n().unwrap().parse().unwrap());
                #[expect(clippy::cast_precision_loss, reason = "the conversion keeps the order")]
                let grown = lock.fence() as f64 >= f64::trunc(old);
                assert!(grown && lock.fence() > 0);
                let held = locks.try_acquire(key).await;
                assert!(held.unwrap().is_none(), "the key is then held");
                lock.release().await.unwrap();
                assert!(!locks.get(key).await.unwrap().unwrap().is_current());
            }
            Verdict::Held => {
                assert!(attempt.unwrap().is_none());
                assert_eq!(world.row(key).await, before);
            }
            Verdict::Malformed => {
                let error = attempt.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error:?}");
                assert_eq!(world.row(key).await, before);
            }
        }
    });
}

#[test]
fn an_overwritten_lock_is_lost_and_its_row_is_not_modified() {
    let stage = Stage::new();
    let (world, locks) = (&stage.world, &stage.locks);
    stage.for_rows(&async |key, row| {
        let lock = locks.acquire(key).await.unwrap();
        let foreign = stage.put(key, row).await;
        let put = Put::builder().table_name(&world.table).item("id", text("never written")).build().unwrap();
        let check = lock.condition_check().unwrap();
        let transaction = world
            .client()
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().condition_check(check).build())
            .transact_items(TransactWriteItem::builder().put(put).build());
        assert!(transaction.send().await.unwrap_err().into_service_error().is_transaction_canceled_exception());
        // After a failed renewal, the release sends no request.
        let answer = if fastrand::bool() { lock.renew(Duration::from_secs(5)).await } else { lock.release().await };
        let error = answer.unwrap_err();
        assert!(error.is_lost() || error.kind() == ErrorKind::MalformedRow, "{error:?}");
        let _told_again = lock.release().await.unwrap_err();
        assert_eq!(world.row(key).await, foreign);
        assert!(world.row("never written").await.is_none());
    });
}

// Rows as others write them

/// A row as Powertools writes it. The ends of the lease and of the window are in seconds from now.
fn powertools(key: &str, now: u64, status: &str, lease: Option<i64>, window: i64) -> Row {
    let from_now = |by: i64| now.checked_add_signed(by).unwrap();
    let mut row = Row::from([
        ("id".to_owned(), text(key)),
        ("status".to_owned(), text(status)),
        ("expiration".to_owned(), number(from_now(window))),
    ]);
    if let Some(lease) = lease {
        row.insert("in_progress_expiration".to_owned(), number(from_now(lease) * 1000));
    }
    row
}

#[tokio::test]
async fn a_powertools_row_is_free_after_its_lease_or_window() {
    let world = world_without_ttl().await;
    let host = world.host().build();
    let (locks, now) = (world.locks(&host).build().unwrap(), seconds(host.now()));
    for (key, status, lease, window) in [
        ("a crashed call", "INPROGRESS", Some(-60), 3600),
        ("a crashed call without a Lambda context", "INPROGRESS", None, -60),
        ("a result whose window has passed", "COMPLETED", Some(-3700), -60),
        ("a result without a Lambda context", "COMPLETED", None, -60),
        ("a result of a call with much time left", "COMPLETED", Some(60), -60),
    ] {
        world.put_row(powertools(key, now, status, lease, window)).await;
        let before = host.now();
        let lock = locks.try_acquire(key).await.unwrap().expect(key);
        // The first fence starts at the clock, as in a new row.
        let micros = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        assert!((micros(before)..=micros(host.now()) + 1).contains(&u128::from(lock.fence())), "{key}");
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_powertools_row_is_held_until_its_lease_or_window_ends() {
    let world = world_without_ttl().await;
    let host = world.host().build();
    let (locks, now) = (world.locks(&host).build().unwrap(), seconds(host.now()));
    for (key, status, lease, window, until) in [
        ("a call that runs", "INPROGRESS", Some(60), 3600, 60),
        ("a call that runs longer than its window", "INPROGRESS", Some(60), -60, 60),
        ("a call without a Lambda context", "INPROGRESS", None, 3600, 3600),
        ("a result", "COMPLETED", Some(-60), 3500, 3500),
        ("a result of a moment ago", "COMPLETED", Some(60), 3600, 3600),
    ] {
        let row = powertools(key, now, status, lease, window);
        world.put_row(row.clone()).await;
        let error = locks.acquire(key).await.unwrap_err();
        let holder = error.holder().expect(key);
        assert!(holder.is_current());
        assert_eq!(seconds(holder.until()), now + until, "{key}");
        assert_eq!((holder.name(), holder.owner(), holder.fence()), (None, None, None));
        assert!(error.to_string().contains("held by an unnamed holder"));
        assert_eq!(world.row(key).await, Some(row), "{key}");
    }
}

#[tokio::test]
async fn data_of_a_foreign_type_is_passed_on_unchanged() {
    let world = world_without_ttl().await;
    let host = world.host().build();
    let mut row = powertools("job", seconds(host.now()), "COMPLETED", None, -60);
    let result = AttributeValue::M(Row::from([("a".to_owned(), AttributeValue::L(vec![number("2.5")]))]));
    row.insert("data".to_owned(), result.clone());
    world.put_row(row).await;
    let lock = world.locks(&host).build().unwrap().acquire("job").await.unwrap();
    assert_eq!(lock.data().unwrap().as_attribute(), &result);
    assert_eq!((lock.data().unwrap().as_str(), lock.data().unwrap().as_bytes()), (None, None));
    lock.release().await.unwrap();
    assert_eq!(world.row("job").await.unwrap()["data"], result);
}

#[tokio::test]
async fn an_acquire_of_a_foreign_entity_fails_at_once_and_says_why() {
    let world = world_without_ttl().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let attribute = |name: &str, value| (name.to_owned(), value);
    for (row, why) in [
        (vec![attribute("email", text("a@example.com"))], "`status` is missing"),
        (vec![attribute("status", text("SHIPPED"))], "`status` is `SHIPPED`"),
        (vec![attribute("status", text("INPROGRESS"))], "`in_progress_expiration` and `expiration` are missing"),
        (
            vec![attribute("status", text("INPROGRESS")), attribute("in_progress_expiration", text("1800000000000"))],
            "`in_progress_expiration` is not a number",
        ),
        (
            vec![attribute("status", text("INPROGRESS")), attribute("in_progress_expiration", number("9e125"))],
            "not between 0 and 253402300799999",
        ),
        (
            vec![
                attribute("status", text("INPROGRESS")),
                attribute("in_progress_expiration", number(0)),
                attribute("fence", number(-1)),
            ],
            "`fence` is -1",
        ),
    ] {
        let mut row: Row = row.into_iter().collect();
        row.insert("id".to_owned(), text("job"));
        world.put_row(row.clone()).await;
        let before = world.row("job").await;
        let sent = host.requests();
        let error = locks.acquire("job").wait(Wait::in_turn()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MalformedRow);
        assert_eq!((error.attempts(), host.requests()), (1, sent + 1));
        for part in [why, "`job`", &world.table, "it was not modified", "another key"] {
            assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
        }
        assert_eq!(world.row("job").await, before);
    }
}

#[tokio::test]
async fn a_fence_that_dynamodb_cannot_increment_is_a_malformed_row() {
    let world = world_without_ttl().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    // Adding one needs more than the 38 digits that DynamoDB keeps.
    for fence in ["1E-130", "0.00000000000000000000000000000000000001", "9.9999999999999999999999999999999999999"] {
        let mut row = powertools("job", seconds(host.now()), "INPROGRESS", Some(-60), 60);
        row.insert("fence".to_owned(), number(fence));
        world.put_row(row).await;
        let before = world.row("job").await;
        let error = locks.acquire("job").await.unwrap_err();
        assert!(error.kind() == ErrorKind::MalformedRow && error.to_string().contains("`fence`"), "{fence}: {error:?}");
        assert_eq!(world.row("job").await, before);
    }
}
