//! Rows that others wrote under the key of a lock, well-formed or not.

use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put, ScalarAttributeType,
    TransactWriteItem,
};
use lambda_lock::{Attempt, ErrorKind, Locks, Wait};
use lambda_lock_tests::rows::{Verdict, any_row, number, text, verdict};
use lambda_lock_tests::{Row, World};
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::{Builder, Runtime};

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
        let verdict = verdict(&row, Duration::from_secs(stage.now));
        let before = stage.put(key, row).await;
        match (verdict, locks.get(key).await) {
            (Verdict::Held, read) => assert!(read.unwrap().unwrap().is_current()),
            (Verdict::Malformed, Ok(read)) => assert!(read.unwrap().fence() >= u64::try_from(i64::MAX).ok()),
            (Verdict::Malformed, Err(error)) => assert_eq!(error.kind(), ErrorKind::MalformedRow),
            (Verdict::Free, Ok(read)) => assert!(!read.unwrap().is_current()),
            (Verdict::Free, Err(error)) => assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error:?}"),
        }
        let attempt = locks.try_acquire(key).await;
        match verdict {
            Verdict::Free => {
                let lock = attempt.unwrap().expect("the row is free");
                // What is not a number counts as none.
                let old = before.unwrap().remove("fence").and_then(|fence| fence.as_n().ok()?.parse().ok());
                #[expect(clippy::cast_precision_loss, reason = "the conversion keeps the order")]
                let grown = lock.fence() as f64 >= f64::trunc(old.unwrap_or(0.0));
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
pub(crate) fn powertools(key: &str, now: u64, status: &str, lease: Option<i64>, window: i64) -> Row {
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
async fn the_next_fence_is_larger_than_that_of_the_row_and_than_the_clock() {
    let world = world_without_ttl().await;
    let host = world.host().build();
    let (locks, now) = (world.locks(&host).build().unwrap(), seconds(host.now()));
    let (micros, ahead) = (1_000_000 * now, 2_000_000 * now);
    for (fence, least) in [("17".to_owned(), micros), (format!("{ahead}"), ahead), (format!("{ahead}.5"), ahead)] {
        let mut row = powertools("job", now, "INPROGRESS", Some(-60), 3600);
        row.insert("fence".to_owned(), number(&fence));
        world.put_row(row).await;
        let lock = locks.acquire("job").await.unwrap();
        assert!(lock.fence() > least, "{fence}");
        assert_eq!(world.row("job").await.unwrap()["fence"], number(lock.fence()));
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
async fn near_the_last_fence_a_free_key_stays_reserved() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    locks.acquire("job").await.unwrap().release().await.unwrap();
    let mut row = world.row("job").await.unwrap();
    row.insert("fence".to_owned(), number(i64::MAX - 1));
    row.insert("reserved_by".to_owned(), text("another"));
    row.insert("reserved_until".to_owned(), number(1000 * (seconds(host.now()) + 30)));
    world.put_row(row).await;
    assert!(matches!(locks.acquire("job").attempt_in_turn(None).await, Ok(Attempt::Waiting(_))));
}
