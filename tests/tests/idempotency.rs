//! Idempotency, of any async function and of a handler. The tests run on the embedded engine, or on the DynamoDB that
//! `LOCK_TEST_ENDPOINT` names: so time is real, and a test that needs another time sets a host's clock forward.

use std::collections::{HashMap, HashSet};
use std::env;
use std::fmt::Debug;
use std::future::{Ready, pending, ready};
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use lambda_lock::embedded::{Host, Intercept};
use lambda_lock::{
    Backoff, Error, HandlerError, Idempotency, IdempotentLayer, Locks, OnError, OnMissingKey, OnTimeout,
    OnUnstorableResult, RecordFormat, Run, StoredError, WithRun,
};
use lambda_lock_tests::invocation::{
    Counter, FUNCTION, LoseAnswers, invocation, invocation_with, keep_log, logged, millis, told,
};
use lambda_lock_tests::{Row, World};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::{Value, json};
use tokio::sync::{Barrier, Notify};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

/// The defaults.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_hours(1);

/// When everyone sees that the lease of a crashed run has ended.
const AFTER_THE_LEASE: Duration = LEASE.saturating_add(CLOCK_SKEW).saturating_add(ms(100));
const ALMOST_THE_WINDOW: Duration = Duration::from_mins(59);
/// When everyone sees that the window of a result has passed: it is kept in whole seconds.
const AFTER_THE_WINDOW: Duration = WINDOW.saturating_add(Duration::from_secs(2));

/// Longer than anything here takes, so that a test that hangs fails.
const TOO_LONG: Duration = Duration::from_secs(30);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The input.
#[derive(Clone, Debug)]
struct Order {
    id: Option<String>,
    amount: u32,
}

fn order(id: &str) -> Order {
    Order { id: Some(id.to_owned()), amount: 5 }
}

fn order_without_id() -> Order {
    Order { id: None, amount: 5 }
}

/// The handler's error.
#[derive(Debug, PartialEq)]
struct Declined;

impl From<Declined> for Diagnostic {
    fn from(_: Declined) -> Self {
        Self { error_type: "Declined".to_owned(), error_message: "by the handler itself".to_owned() }
    }
}

type Orders<T> = Idempotency<Order, T, Declined>;

/// Without a prefix, as it is outside of Lambda.
fn orders<T>(locks: &Locks) -> Orders<T> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &Order| order.id.clone())
}

/// Runs, and returns how many runs that makes.
async fn place(orders: &Orders<u32>, order: &Order, runs: &Counter) -> Result<u32, HandlerError<Declined>> {
    orders.run(order, async |_| Ok(runs.count())).await
}

/// Fails, and counts that.
async fn decline(orders: &Orders<u32>, order: &Order, runs: &Counter) -> Result<u32, HandlerError<Declined>> {
    orders
        .run(order, async |_| {
            runs.count();
            Err(Declined)
        })
        .await
}

/// Why the work was not done, or its result not returned.
fn refused<T: Debug, E: Debug>(outcome: Result<T, HandlerError<E>>) -> Error {
    match outcome {
        Err(HandlerError::Lock(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn replayed_error<T: Debug, E: Debug>(outcome: Result<T, HandlerError<E>>) -> StoredError {
    match outcome {
        Err(HandlerError::Replayed(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn is_declined<T>(outcome: &Result<T, HandlerError<Declined>>) -> bool {
    matches!(outcome, Err(HandlerError::Handler(Declined)))
}

async fn environment() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

/// Another environment, whose clock is ahead by this much: what is seen that much later.
fn later(world: &World, by: Duration) -> Locks {
    world.locks(&world.host().clock_ahead(by).build()).holder("another environment").build().unwrap()
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(value: impl Into<i128>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

fn number_in(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}

fn string_in<'a>(row: &'a Row, name: &str) -> &'a str {
    row[name].as_s().unwrap()
}

/// A row with these attributes.
fn row<const N: usize>(attributes: [(&str, AttributeValue); N]) -> Row {
    attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn seconds(host: &Host) -> u64 {
    millis(host.now()) / 1000
}

/// Runs until the body has begun and its host crashes.
async fn crash(host: &Host, orders: &Orders<u32>, order: &Order) {
    let begun = Notify::new();
    let run = orders.run(order, async |_| {
        host.crash();
        begun.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = begun.notified() => {}
    }
}

/// Drops a run while its work is under way.
async fn drop_midway(orders: &Orders<u32>, order: &Order) {
    let begun = Notify::new();
    let run = orders.run(order, async |_| {
        begun.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = begun.notified() => {}
    }
}

/// What the panic of the work said to whoever called.
async fn panic_of(orders: &Orders<u32>, order: &Order) -> &'static str {
    let run = orders.run(order, async |_| {
        tokio::task::yield_now().await;
        panic!("the work's own")
    });
    let panic = AssertUnwindSafe(run).catch_unwind().await.unwrap_err();
    panic.downcast_ref::<&str>().unwrap()
}

/// A run with this outcome, and the one of a duplicate that asked on `other` while it was in progress, twice at least.
async fn run_while_waited_for(
    orders: &Orders<u32>,
    outcome: Result<u32, Declined>,
    waiting: &Orders<u32>,
    other: &Host,
) -> (Result<u32, HandlerError<Declined>>, Result<u32, HandlerError<Declined>>) {
    let (order, begun, runs) = (order("a"), Notify::new(), Counter::default());
    let first = orders.run(&order, async |_| {
        begun.notify_one();
        while other.requests() < 2 {
            sleep(ms(1)).await;
        }
        outcome
    });
    let second = async {
        begun.notified().await;
        place(waiting, &order, &runs).await
    };
    timeout(TOO_LONG, async { tokio::join!(first, second) }).await.expect("the wait ends")
}

/// The row is now another run's.
async fn give_to_another(world: &World, id: &str) -> Row {
    let now = seconds(&world.host().build());
    let theirs = row([
        ("id", text(id)),
        ("status", text("INPROGRESS")),
        ("owner", text("someone else")),
        ("holder", text("another environment")),
        ("fence", number(u64::MAX >> 2)),
        ("in_progress_expiration", number((now + 600) * 1000)),
        ("expiration", number(now + 86_400)),
    ]);
    world.put_row(theirs.clone()).await;
    theirs
}

fn eagerly() -> Backoff {
    Backoff::default().base(ms(2)).cap(ms(50)).up_to(TOO_LONG)
}

// The first run and its duplicates

// behaviour 60
#[tokio::test]
async fn a_duplicate_gets_the_first_runs_result_without_a_run() {
    let (world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    let elsewhere = self::orders(&later(&world, Duration::ZERO));
    assert_eq!(place(&elsewhere, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(runs.get(), 1);
}

// behaviour 60
#[tokio::test]
async fn inputs_with_other_keys_run_by_themselves() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    for (index, id) in ["a", "A", "ab", "a#", "é"].into_iter().enumerate() {
        assert_eq!(place(&orders, &order(id), &runs).await.unwrap() as usize, index + 1, "{id}");
    }
}

// behaviour 60
#[tokio::test]
async fn a_result_comes_back_as_it_was() {
    type Receipt = (String, Vec<Option<i64>>, HashMap<String, f64>, u64);
    let (_world, _host, locks) = environment().await;
    let receipts: Orders<Receipt> = orders(&locks);
    let receipt: Receipt = (
        "\u{0} \"é\" \u{1f980}".to_owned(),
        vec![Some(i64::MIN), None],
        HashMap::from([(String::new(), 0.1), ("tenth".to_owned(), -1e300)]),
        u64::MAX,
    );
    let first = receipts.run(&order("a"), async |_| Ok(receipt.clone())).await.unwrap();
    let second = receipts.run(&order("a"), async |_| panic!("it runs again")).await.unwrap();
    assert_eq!((first, second), (receipt.clone(), receipt));
}

// behaviour 60
#[tokio::test]
async fn a_result_of_nothing_is_replayed_too() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders::<()>(&locks), Counter::default());
    for _ in 0..2 {
        orders.run(&order("a"), async |_| Ok(_ = runs.count())).await.unwrap();
    }
    assert_eq!(runs.get(), 1);
}

// behaviour 60
#[tokio::test]
async fn a_run_costs_two_requests_and_a_duplicate_one() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (orders(&locks), Counter::default());
    place(&mine, &order("a"), &runs).await.unwrap();
    assert_eq!(host.requests(), 2);
    place(&mine, &order("a"), &runs).await.unwrap();
    assert_eq!(host.requests(), 3);
    let other = world.host().build();
    let theirs = orders(&world.locks(&other).build().unwrap());
    place(&theirs, &order("a"), &runs).await.unwrap();
    assert_eq!(other.requests(), 1);
}

// behaviours 60, 83
#[tokio::test]
async fn the_record_is_in_progress_while_the_work_runs_and_then_completed_with_the_result() {
    let (world, host, locks) = environment().await;
    let mut during = None;
    let orders: Orders<u32> = orders(&locks);
    let body = async |_: &Run| {
        during = world.row("a").await;
        Ok(17)
    };
    orders.run(&order("a"), body).await.unwrap();
    let during = during.unwrap();
    assert_eq!(string_in(&during, "status"), "INPROGRESS");
    assert!(number_in(&during, "in_progress_expiration") > millis(host.now()));
    assert!(number_in(&during, "expiration") * 1000 > number_in(&during, "in_progress_expiration"));
    assert!(!during.contains_key("data"));
    let after = world.row("a").await.unwrap();
    assert_eq!((string_in(&after, "status"), string_in(&after, "data")), ("COMPLETED", "17"));
    assert!(!after.contains_key("validation") && !after.contains_key("error"));
    for kept in ["owner", "fence", "holder", "acquired_at", "in_progress_expiration"] {
        assert_eq!(after[kept], during[kept], "{kept}");
    }
}

// behaviours 60, 78
#[tokio::test]
async fn fences_grow_from_run_to_run_of_a_key_also_when_its_row_was_deleted() {
    let (world, host, locks) = environment().await;
    let orders = orders::<u64>(&locks);
    let mut last = 0;
    for index in 0..4 {
        if index == 2 {
            world.delete_row("a").await;
        }
        let fence = orders.run(&order("a"), async |run: &Run| Ok(run.lock().fence())).await.unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        host.advance_clock(AFTER_THE_WINDOW);
    }
}

// behaviours 60, 83
#[tokio::test]
async fn a_run_after_the_window_leaves_nothing_of_the_old_outcome_and_all_that_others_wrote() {
    let (world, host, locks) = environment().await;
    let expired = seconds(&host) - 10;
    world
        .put_row(row([
            ("id", text("a")),
            ("status", text("COMPLETED")),
            ("expiration", number(expired)),
            ("data", text("99")),
            ("error", text(r#"{"type":"Old","message":"old"}"#)),
            ("validation", text("old")),
            ("team", text("ours")),
        ]))
        .await;
    let mut during = None;
    let outcome = orders(&locks)
        .run(&order("a"), async |_| {
            during = world.row("a").await;
            Ok(1)
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    let during = during.unwrap();
    assert!(["data", "error", "validation"].iter().all(|name| !during.contains_key(*name)), "{during:?}");
    let after = world.row("a").await.unwrap();
    assert_eq!((string_in(&after, "data"), string_in(&after, "team")), ("1", "ours"));
}

// behaviour 60
#[tokio::test]
async fn a_plain_lock_on_the_key_of_a_completed_record_is_held_until_the_window_ends() {
    let (world, _host, locks) = environment().await;
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    let error = locks.acquire("a").await.unwrap_err();
    assert!(error.is_held() && error.holder().unwrap().is_completed(), "{error}");
    assert!(later(&world, ALMOST_THE_WINDOW).try_acquire("a").await.unwrap().is_none());
    assert!(later(&world, AFTER_THE_WINDOW).try_acquire("a").await.unwrap().is_some());
}

// behaviour 66
#[tokio::test]
async fn a_key_that_a_plain_lock_holds_is_in_progress() {
    let (_world, _host, locks) = environment().await;
    let lock = locks.acquire("a").data("not a result").await.unwrap();
    let runs = Counter::default();
    assert!(refused(place(&orders(&locks), &order("a"), &runs).await).is_in_progress());
    lock.release().await.unwrap();
    assert_eq!(place(&orders(&locks), &order("a"), &runs).await.unwrap(), 1);
}

// behaviour 60
#[tokio::test]
async fn a_run_whose_lock_the_work_released_is_given_up() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let outcome = orders
        .run(&order("a"), async |run: &Run| {
            run.lock().release().await.unwrap();
            Ok(runs.count())
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 2);
}

// The key

// behaviour 61
#[tokio::test]
async fn an_input_without_a_key_is_refused_and_nothing_is_sent() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let error = refused(place(&orders(&locks), &order_without_id(), &runs).await);
    assert!(error.is_key_missing(), "{error}");
    assert!(error.to_string().contains("no idempotency key"), "{error}");
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

// behaviour 61
#[tokio::test]
async fn inputs_without_a_key_run_each_time_where_that_is_wanted_and_nothing_is_sent() {
    let (_world, host, locks) = environment().await;
    let orders: Orders<(u32, bool, u64)> =
        Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone()).cache(10);
    let runs = Counter::default();
    for index in 1..=3 {
        let body = async |run: &Run| Ok((runs.count(), run.lock().is_enforced(), run.lock().fence()));
        assert_eq!(orders.run(&order_without_id(), body).await.unwrap(), (index, false, 0));
    }
    assert_eq!(host.requests(), 0);
}

// behaviour 61
#[tokio::test]
async fn inputs_without_a_key_send_nothing_when_they_fail_either_whatever_is_set_for_errors() {
    let (_world, host, locks) = environment().await;
    for policy in [OnError::Release, OnError::Keep, OnError::Store(StoredError::new("Declined", "no"))] {
        let orders: Orders<u32> =
            Idempotency::new(locks.clone(), OnMissingKey::RunUnprotected, |order: &Order| order.id.clone());
        let orders = orders.on_error(move |_| policy.clone());
        assert!(is_declined(&decline(&orders, &order_without_id(), &Counter::default()).await));
    }
    assert_eq!(host.requests(), 0);
}

// behaviour 61
#[tokio::test]
async fn inputs_without_a_key_run_at_the_same_time() {
    let (_world, _host, locks) = environment().await;
    let orders: Orders<()> = Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone());
    let both = Barrier::new(2);
    let calls = [0, 1].map(|_| async {
        orders
            .run(&order_without_id(), async |_| {
                both.wait().await;
                Ok(())
            })
            .await
    });
    for outcome in timeout(TOO_LONG, join_all(calls)).await.expect("they ran at the same time") {
        outcome.unwrap();
    }
}

// behaviour 61
#[tokio::test]
async fn a_key_that_is_null_or_empty_or_has_nothing_but_nulls_is_none() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    for key in [json!(null), json!(""), json!([]), json!([null, null]), json!({}), json!({ "id": null })] {
        for format in [RecordFormat::Plain, RecordFormat::Hashed] {
            let keyed = |on_missing_key| {
                let key = key.clone();
                let orders: Orders<u32> = Idempotency::new(locks.clone(), on_missing_key, move |_| Some(key.clone()));
                orders.format(format).prefix("orders")
            };
            let error = refused(place(&keyed(OnMissingKey::Reject), &order("a"), &runs).await);
            assert!(error.is_key_missing(), "{key} {error}");
            let before = runs.get();
            place(&keyed(OnMissingKey::RunUnprotected), &order("a"), &runs).await.unwrap();
            assert_eq!(runs.get(), before + 1, "{key}");
        }
    }
    assert_eq!(host.requests(), 0);
}

// behaviour 62
#[tokio::test]
async fn a_prefix_comes_before_the_key_with_a_number_sign_between_and_an_empty_one_without() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&locks).prefix("orders"), &order("a"), &runs).await.unwrap();
    place(&orders(&locks).prefix(""), &order("a"), &runs).await.unwrap();
    assert_eq!(runs.get(), 2);
    assert!(world.row("orders#a").await.is_some());
    assert!(world.row("a").await.is_some());
    assert!(world.row("#a").await.is_none());
}

// behaviours 26, 62
#[tokio::test]
async fn the_prefix_of_the_locks_comes_before_that_of_the_record() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).key_prefix("app/").build().unwrap();
    place(&orders(&locks).prefix("orders"), &order("a"), &Counter::default()).await.unwrap();
    assert!(world.row("app/orders#a").await.is_some());
}

// behaviour 62
#[tokio::test]
async fn outside_of_lambda_there_is_no_prefix() {
    let (world, _host, locks) = environment().await;
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    assert!(world.row("a").await.is_some());
}

// behaviour 62
#[tokio::test]
async fn inside_lambda_the_prefix_is_the_functions_name() {
    if env::var_os("AWS_LAMBDA_FUNCTION_NAME").is_none() {
        // This test again, in a process that is a function.
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "inside_lambda_the_prefix_is_the_functions_name"]);
        let output = test.env("AWS_LAMBDA_FUNCTION_NAME", FUNCTION).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let (world, _host, locks) = environment().await;
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    assert!(world.row("orders#a").await.is_some());
}

// behaviour 62
#[tokio::test]
async fn a_hashed_key_stands_in_the_row_as_its_digest_alone() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let orders = orders(&locks)
        .format(RecordFormat::Hashed)
        .prefix("orders")
        .validate(|order| json!([order.amount, "the payload's secret"]));
    place(&orders, &order("the key's secret"), &runs).await.unwrap();
    place(&orders, &order("the key's secret"), &runs).await.unwrap();
    assert_eq!(runs.get(), 1);
    let scan = world.client().scan().table_name(&world.table).send().await.unwrap();
    let [row] = scan.items() else { panic!("{scan:?}") };
    let digest = string_in(row, "id").strip_prefix("orders#").unwrap();
    assert!(digest.len() == 64 && digest.chars().all(|digit| digit.is_ascii_hexdigit()), "{digest}");
    assert!(!format!("{row:?}").contains("secret"), "{row:?}");
}

// behaviour 62
#[tokio::test]
async fn a_hashed_key_can_be_any_json_of_any_length_whatever_the_order_of_its_fields() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let long = "x".repeat(100_000);
    let keyed = |key: Value| {
        let orders: Orders<u32> =
            Idempotency::new(locks.clone(), OnMissingKey::Reject, move |_: &Order| Some(key.clone()));
        orders.format(RecordFormat::Hashed)
    };
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(place(&keyed(json!([long, 1])), &order("-"), &runs).await.unwrap(), 1);
    assert_eq!(place(&keyed(json!([long, 1])), &order("-"), &runs).await.unwrap(), 1);
    assert_eq!(place(&keyed(json!([long, 2])), &order("-"), &runs).await.unwrap(), 2);
    assert_eq!(place(&keyed(parse(r#"{"a": 1, "b": {"c": 2, "d": 3}}"#)), &order("-"), &runs).await.unwrap(), 3);
    assert_eq!(place(&keyed(parse(r#"{"b":{"d":3,"c":2},"a":1}"#)), &order("-"), &runs).await.unwrap(), 3);
    assert_eq!(place(&keyed(json!("1")), &order("-"), &runs).await.unwrap(), 4);
    assert_eq!(place(&keyed(json!(1)), &order("-"), &runs).await.unwrap(), 5);
    let scan = world.client().scan().table_name(&world.table).send().await.unwrap();
    assert_eq!(scan.items().len(), 5);
}

// behaviours 47, 62
#[tokio::test]
async fn a_plain_key_that_is_too_long_with_its_prefix_is_refused_and_nothing_is_sent() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let orders = orders(&locks).prefix("orders");
    let longest = "x".repeat(2048 - "orders#".len());
    assert_eq!(place(&orders, &order(&longest), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), 2);
    let error = refused(place(&orders, &order(&format!("{longest}x")), &runs).await);
    assert!(error.is_invalid(), "{error}");
    assert!(error.to_string().contains("2049") && error.to_string().contains("hash"), "{error}");
    assert_eq!((runs.get(), host.requests()), (1, 2));
}

// behaviour 62
#[tokio::test]
async fn a_plain_key_that_is_not_a_string_is_refused_and_nothing_is_sent() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let orders: Orders<u32> = Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| Some(order.amount));
    let error = refused(place(&orders, &order("a"), &runs).await);
    assert!(error.is_invalid() && error.to_string().contains("string"), "{error}");
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

// Validation

fn validated(locks: &Locks) -> Orders<u32> {
    orders(locks).validate(|order| order.amount)
}

// behaviour 63
#[tokio::test]
async fn a_duplicate_whose_validated_fields_match_gets_the_result() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    for _ in 0..2 {
        assert_eq!(place(&validated(&locks), &order("a"), &runs).await.unwrap(), 1);
    }
    assert!(!string_in(&world.row("a").await.unwrap(), "validation").is_empty());
}

// behaviour 63
#[tokio::test]
async fn a_duplicate_whose_validated_fields_differ_is_a_mismatch_and_leaves_the_record() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    place(&validated(&locks), &order("a"), &runs).await.unwrap();
    let before = world.row("a").await;
    let error = refused(place(&validated(&locks), &Order { amount: 6, ..order("a") }, &runs).await);
    assert!(error.is_mismatch() && !error.is_in_progress(), "{error}");
    assert_eq!(error.key(), "a");
    assert_eq!((runs.get(), host.requests()), (1, 3));
    assert_eq!(world.row("a").await, before);
}

// behaviour 63
#[tokio::test]
async fn a_duplicate_whose_validated_fields_differ_is_a_mismatch_also_while_the_first_is_in_progress() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    validated(&locks)
        .run(&order("a"), async |_| {
            // It would wait for its whole budget, if it waited.
            let waiting = validated(&locks).wait(eagerly());
            let error = refused(place(&waiting, &Order { amount: 6, ..order("a") }, &runs).await);
            assert!(error.is_mismatch(), "{error}");
            assert_eq!(host.requests(), 2);
            Ok(1)
        })
        .await
        .unwrap();
    assert_eq!(runs.get(), 0);
}

// behaviour 63
#[tokio::test]
async fn a_record_without_validation_is_a_mismatch_for_whoever_validates() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&locks), &order("a"), &runs).await.unwrap();
    assert!(refused(place(&validated(&locks), &order("a"), &runs).await).is_mismatch());
    assert_eq!(runs.get(), 1);
}

// behaviour 63
#[tokio::test]
async fn a_record_with_validation_is_replayed_for_whoever_does_not_validate() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&validated(&locks), &order("a"), &runs).await.unwrap();
    assert_eq!(place(&orders(&locks), &Order { amount: 6, ..order("a") }, &runs).await.unwrap(), 1);
}

// behaviour 63
#[tokio::test]
async fn after_the_window_or_a_failure_other_fields_may_be_used_with_the_key() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (validated(&locks), Counter::default());
    decline(&orders, &order("a"), &runs).await.unwrap_err();
    let other = Order { amount: 6, ..order("a") };
    assert_eq!(place(&orders, &other, &runs).await.unwrap(), 2);
    let digest = world.row("a").await.unwrap()["validation"].clone();
    host.advance_clock(AFTER_THE_WINDOW);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 3);
    assert_ne!(world.row("a").await.unwrap()["validation"], digest);
    assert!(refused(place(&orders, &other, &runs).await).is_mismatch());
}

// behaviour 63
#[tokio::test]
async fn several_fields_are_validated_as_a_list() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    let with = |currency: &'static str| orders(&locks).validate(move |order| json!([order.amount, currency]));
    place(&with("EUR"), &order("a"), &runs).await.unwrap();
    assert_eq!(place(&with("EUR"), &order("a"), &runs).await.unwrap(), 1);
    assert!(refused(place(&with("USD"), &order("a"), &runs).await).is_mismatch());
}

// The handler's error

// behaviour 64
#[tokio::test]
async fn after_an_error_the_record_is_given_up_and_a_retry_runs_at_once() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (orders(&locks), Counter::default());
    assert!(is_declined(&decline(&mine, &order("a"), &runs).await));
    assert_eq!(host.requests(), 2);
    let elsewhere = orders(&later(&world, Duration::ZERO));
    assert_eq!(place(&elsewhere, &order("a"), &runs).await.unwrap(), 2);
    assert_eq!(place(&mine, &order("a"), &runs).await.unwrap(), 2);
}

// behaviour 64
#[tokio::test]
async fn an_error_that_keeps_the_record_lets_a_retry_run_when_the_lease_has_ended() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (orders(&locks).on_error(|_| OnError::Keep), Counter::default());
    assert!(is_declined(&decline(&mine, &order("a"), &runs).await));
    sleep(ms(20)).await;
    assert_eq!(host.requests(), 1);
    assert!(refused(place(&mine, &order("a"), &runs).await).is_in_progress());
    assert_eq!(place(&orders(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 2);
}

fn storing(locks: &Locks) -> Orders<u32> {
    orders(locks).on_error(|Declined| OnError::Store(StoredError::new("CardDeclined", "the card \"x\" was declined")))
}

// behaviour 64
#[tokio::test]
async fn an_error_that_is_stored_is_replayed_with_its_type_and_message() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (storing(&locks), Counter::default());
    assert!(is_declined(&decline(&mine, &order("a"), &runs).await), "the first caller gets the handler's own");
    assert_eq!(host.requests(), 2);
    let elsewhere = storing(&later(&world, ALMOST_THE_WINDOW));
    for orders in [&mine, &elsewhere] {
        let outcome = place(orders, &order("a"), &runs).await;
        let Err(error) = outcome else { panic!("{outcome:?}") };
        let expected = ("CardDeclined".to_owned(), "the card \"x\" was declined".to_owned());
        assert_eq!(told(error), expected);
    }
    assert_eq!((runs.get(), host.requests()), (1, 3));
}

// behaviour 64
#[tokio::test]
async fn a_stored_error_is_replayed_until_its_window_has_passed() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    decline(&storing(&locks), &order("a"), &runs).await.unwrap_err();
    assert_eq!(place(&storing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 2);
    let row = world.row("a").await.unwrap();
    assert!(!row.contains_key("error"), "{row:?}");
}

// behaviours 63, 64
#[tokio::test]
async fn a_stored_error_is_validated_like_a_result() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (storing(&locks).validate(|order| order.amount), Counter::default());
    decline(&orders, &order("a"), &runs).await.unwrap_err();
    assert!(refused(place(&orders, &Order { amount: 6, ..order("a") }, &runs).await).is_mismatch());
    assert_eq!(replayed_error(place(&orders, &order("a"), &runs).await).error_type(), "CardDeclined");
}

// behaviours 64, 68
#[tokio::test]
async fn a_stored_error_is_replayed_from_the_cache_too() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (storing(&locks).cache(10), Counter::default());
    decline(&orders, &order("a"), &runs).await.unwrap_err();
    let error = replayed_error(place(&orders, &order("a"), &runs).await);
    assert_eq!(error, StoredError::new("CardDeclined", "the card \"x\" was declined"));
    assert_eq!((runs.get(), host.requests()), (1, 2));
}

// behaviours 64, 75
#[tokio::test]
async fn an_error_that_is_too_large_to_be_stored_gives_the_record_up() {
    let (_world, _host, locks) = environment().await;
    let orders = orders(&locks).on_error(|_| OnError::Store(StoredError::new("Declined", "x".repeat(500_000))));
    let runs = Counter::default();
    for _ in 0..2 {
        assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
    }
    assert_eq!(runs.get(), 2);
}

// behaviour 64
#[tokio::test]
async fn a_panic_gives_the_record_up_and_goes_on() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    assert_eq!(panic_of(&orders, &order("a")).await, "the work's own");
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

// behaviours 35, 64
#[tokio::test]
async fn a_run_that_is_dropped_gives_the_record_up_in_the_background() {
    let (_world, _host, locks) = environment().await;
    let orders = orders(&locks);
    drop_midway(&orders, &order("a")).await;
    let waiting = orders.wait(eagerly().up_to(LEASE / 3));
    assert_eq!(place(&waiting, &order("a"), &Counter::default()).await.unwrap(), 1);
}

// behaviours 64, 80
#[tokio::test]
async fn a_run_that_outlives_its_lease_is_cancelled_and_a_retry_runs_at_once() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).lease(ms(300)), Counter::default());
    let overrun = timeout(TOO_LONG, orders.run(&order("a"), async |_| pending().await)).await.expect("it is cancelled");
    assert!(refused(overrun).is_lost());
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

// behaviour 80
#[tokio::test]
async fn a_run_that_renews_its_lock_goes_on_and_its_result_is_stored() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).lease(ms(300)), Counter::default());
    let outcome = orders
        .run(&order("a"), async |run: &Run| {
            run.lock().renew(LEASE).await.unwrap();
            sleep(ms(400)).await;
            Ok(runs.count())
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

// Timeouts and crashes

// behaviour 65
#[tokio::test]
async fn after_a_crash_the_work_runs_again_when_the_lease_has_ended_and_not_before() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    crash(&host, &orders(&locks), &order("a")).await;
    for early in [Duration::ZERO, LEASE + CLOCK_SKEW / 2] {
        let error = refused(place(&orders(&later(&world, early)), &order("a"), &runs).await);
        assert!(error.is_in_progress(), "{error}");
    }
    assert_eq!(place(&orders(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 1);
}

fn refusing(locks: &Locks) -> Orders<u32> {
    orders(locks).on_timeout(OnTimeout::Reject)
}

// behaviour 65
#[tokio::test]
async fn after_a_crash_of_work_that_must_not_repeat_it_is_in_progress_and_then_unfinished_for_the_window() {
    let (world, host, locks) = environment().await;
    // Longer than the row stays for the lock's sake.
    let window = Duration::from_hours(48);
    let (settings, runs) = (|locks: &Locks| refusing(locks).window(window), Counter::default());
    crash(&host, &settings(&locks), &order("a")).await;
    assert!(refused(place(&settings(&later(&world, LEASE)), &order("a"), &runs).await).is_in_progress());
    let crashed = world.row("a").await;
    for unfinished in [AFTER_THE_LEASE, Duration::from_hours(25), Duration::from_hours(47)] {
        let error = refused(place(&settings(&later(&world, unfinished)), &order("a"), &runs).await);
        assert!(error.is_unfinished() && !error.is_in_progress(), "{error}");
        let holder = error.holder().unwrap();
        assert_eq!(holder.name(), Some(format!("process {}", std::process::id()).as_str()));
        assert!(error.to_string().contains("may have done its work"), "{error}");
    }
    assert_eq!((world.row("a").await, runs.get()), (crashed, 0));
    assert_eq!(place(&settings(&later(&world, window + ms(1_100))), &order("a"), &runs).await.unwrap(), 1);
}

// behaviour 65
#[tokio::test]
async fn an_unfinished_run_is_refused_for_the_window_and_no_longer_also_when_the_row_stays_longer() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    crash(&host, &refusing(&locks), &order("a")).await;
    let error = refused(place(&refusing(&later(&world, ALMOST_THE_WINDOW)), &order("a"), &runs).await);
    assert!(error.is_unfinished(), "{error}");
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 1);
}

// behaviour 65
#[tokio::test]
async fn work_that_must_not_repeat_is_unfinished_after_a_panic() {
    let (world, host, locks) = environment().await;
    assert_eq!(panic_of(&refusing(&locks), &order("a")).await, "the work's own");
    assert_unfinished(&world, &host).await;
}

// behaviour 65
#[tokio::test]
async fn work_that_must_not_repeat_is_unfinished_after_it_was_dropped() {
    let (world, host, locks) = environment().await;
    drop_midway(&refusing(&locks), &order("a")).await;
    assert_unfinished(&world, &host).await;
}

// behaviours 65, 80
#[tokio::test]
async fn work_that_must_not_repeat_is_unfinished_after_it_outlived_its_lease() {
    let (world, host, locks) = environment().await;
    let orders = refusing(&locks).lease(ms(300));
    let overrun = timeout(TOO_LONG, orders.run(&order("a"), async |_| pending().await)).await.expect("it is cancelled");
    assert!(refused(overrun).is_lost());
    assert_unfinished(&world, &host).await;
}

// behaviours 65, 75
#[tokio::test]
async fn work_that_must_not_repeat_is_unfinished_after_its_result_could_not_be_stored() {
    let (world, host, locks) = environment().await;
    let orders: Orders<String> = orders(&locks).on_timeout(OnTimeout::Reject);
    assert!(refused(orders.run(&order("a"), async |_| Ok("x".repeat(500_000))).await).is_unusable_result());
    assert_unfinished(&world, &host).await;
}

// behaviours 64, 65
#[tokio::test]
async fn work_that_must_not_repeat_is_unfinished_after_an_error_that_keeps_the_record() {
    let (world, host, locks) = environment().await;
    let orders = refusing(&locks).on_error(|_| OnError::Keep);
    assert!(is_declined(&decline(&orders, &order("a"), &Counter::default()).await));
    assert_unfinished(&world, &host).await;
}

/// One request was sent, and whoever comes when the lease is over is told that the run did not finish.
async fn assert_unfinished(world: &World, host: &Host) {
    // What is sent in the background had time to be.
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 1);
    let error = refused(place(&refusing(&later(world, AFTER_THE_LEASE)), &order("a"), &Counter::default()).await);
    assert!(error.is_unfinished(), "{error}");
}

// behaviours 64, 65
#[tokio::test]
async fn work_that_must_not_repeat_runs_again_after_an_error_that_gave_up() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    assert!(is_declined(&decline(&refusing(&locks), &order("a"), &runs).await));
    assert_eq!(place(&refusing(&locks), &order("a"), &runs).await.unwrap(), 2);
    decline(&refusing(&locks), &order("b"), &runs).await.unwrap_err();
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_LEASE)), &order("b"), &runs).await.unwrap(), 4);
}

// behaviour 65
#[tokio::test]
async fn work_that_must_not_repeat_is_replayed_once_it_is_completed_and_runs_after_the_window() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&refusing(&locks), &order("a"), &runs).await.unwrap();
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 2);
}

// behaviour 65
#[tokio::test]
async fn deleting_the_row_of_an_unfinished_run_lets_it_run_again() {
    let (world, host, locks) = environment().await;
    crash(&host, &refusing(&locks), &order("a")).await;
    world.delete_row("a").await;
    assert_eq!(place(&refusing(&later(&world, Duration::ZERO)), &order("a"), &Counter::default()).await.unwrap(), 1);
}

// behaviours 65, 66
#[tokio::test]
async fn a_wait_for_work_that_must_not_repeat_ends_when_it_turns_out_to_be_unfinished() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).clock_skew(Duration::ZERO).build().unwrap();
    crash(&host, &refusing(&locks).lease(ms(300)), &order("a")).await;
    let other = world.locks(&world.host().build()).clock_skew(Duration::ZERO).build().unwrap();
    let runs = Counter::default();
    let waiting = refusing(&other).wait(eagerly());
    let error = refused(timeout(TOO_LONG / 2, place(&waiting, &order("a"), &runs)).await.expect("the wait ends"));
    assert!(error.is_unfinished(), "{error}");
    assert_eq!(runs.get(), 0);
}

// Concurrent duplicates

// behaviours 66, 77
#[tokio::test]
async fn a_duplicate_of_work_in_progress_is_refused_with_who_does_it_and_until_when() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).holder("the first").build().unwrap();
    let other = world.host().build();
    let theirs = orders(&world.locks(&other).build().unwrap());
    let runs = Counter::default();
    orders(&locks)
        .run(&order("a"), async |run: &Run| {
            let error = refused(place(&theirs, &order("a"), &runs).await);
            assert!(error.is_in_progress() && !error.is_held() && !error.is_unfinished(), "{error}");
            let holder = error.holder().unwrap();
            assert_eq!((holder.name(), holder.fence()), (Some("the first"), Some(run.lock().fence())));
            assert!(holder.is_current() && !holder.is_completed());
            assert_eq!(holder.until(), run.lock().expires_at() + CLOCK_SKEW);
            assert!(error.to_string().contains("is in progress: the first until "), "{error}");
            Ok(runs.count())
        })
        .await
        .unwrap();
    assert_eq!((runs.get(), other.requests()), (1, 1));
}

// behaviours 66, 81
#[tokio::test]
async fn of_many_at_once_one_runs_and_the_others_are_refused() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let all_refused = Notify::new();
    let refusals = Counter::default();
    let calls = (0..50).map(|_| {
        let (orders, runs, refusals, all_refused) = (&orders, &runs, &refusals, &all_refused);
        async move {
            let outcome = orders
                .run(&order("a"), async |_| {
                    all_refused.notified().await;
                    Ok(runs.count())
                })
                .await;
            if outcome.is_err() && refusals.count() == 49 {
                all_refused.notify_one();
            }
            outcome
        }
    });
    let outcomes = timeout(TOO_LONG, join_all(calls)).await.unwrap();
    assert_eq!(runs.get(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, Ok(1))).count(), 1);
    assert!(outcomes.into_iter().filter(Result::is_err).all(|outcome| refused(outcome).is_in_progress()));
}

// behaviours 66, 81
#[tokio::test]
async fn of_many_at_once_that_wait_one_runs_and_all_get_its_result() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let settings: Vec<_> =
        [locks, later(&world, ms(3)), later(&world, ms(7))].iter().map(|locks| orders(locks).wait(eagerly())).collect();
    let calls = (0..60).map(|index| {
        let (orders, runs) = (&settings[index % 3], &runs);
        async move {
            orders
                .run(&order("a"), async |_| {
                    sleep(ms(30)).await;
                    Ok(runs.count())
                })
                .await
        }
    });
    for outcome in timeout(TOO_LONG, join_all(calls)).await.unwrap() {
        assert_eq!(outcome.unwrap(), 1);
    }
    assert_eq!(runs.get(), 1);
}

// behaviour 81
#[tokio::test]
async fn many_at_once_with_keys_of_their_own_all_run_each_with_an_owner_of_its_own() {
    let (_world, host, locks) = environment().await;
    let orders: Orders<String> = orders(&locks);
    let all = Barrier::new(40);
    let calls = (0..40).map(|index| {
        let (orders, all) = (&orders, &all);
        async move {
            let order = order(&format!("order {index}"));
            orders
                .run(&order, async |run: &Run| {
                    all.wait().await;
                    Ok(run.lock().owner().to_owned())
                })
                .await
                .unwrap()
        }
    });
    let owners = timeout(TOO_LONG, join_all(calls)).await.expect("they ran at the same time");
    assert_eq!(owners.iter().collect::<HashSet<_>>().len(), 40);
    assert_eq!(host.requests(), 80);
}

// behaviour 66
#[tokio::test]
async fn a_duplicate_that_waits_runs_when_the_other_gives_up() {
    let (world, _host, locks) = environment().await;
    let other = world.host().build();
    let waiting = orders(&world.locks(&other).build().unwrap()).wait(eagerly());
    let (first, second) = run_while_waited_for(&orders(&locks), Err(Declined), &waiting, &other).await;
    assert!(is_declined(&first));
    assert_eq!(second.unwrap(), 1);
}

// behaviours 65, 66
#[tokio::test]
async fn a_duplicate_that_waits_runs_when_the_lease_of_the_other_which_crashed_ends() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).clock_skew(Duration::ZERO).build().unwrap();
    crash(&host, &orders(&locks).lease(ms(300)), &order("a")).await;
    let crashed = world.row("a").await.unwrap();
    let second = world.host().build();
    let other = world.locks(&second).clock_skew(Duration::ZERO).build().unwrap();
    let waiting = orders(&other).wait(eagerly());
    let outcome = timeout(TOO_LONG, place(&waiting, &order("a"), &Counter::default())).await.expect("the wait ends");
    assert_eq!(outcome.unwrap(), 1);
    assert!(millis(second.now()) >= number_in(&crashed, "in_progress_expiration"));
}

// behaviours 64, 66
#[tokio::test]
async fn a_duplicate_that_waits_gets_the_error_that_the_other_stored() {
    let (world, _host, locks) = environment().await;
    let other = world.host().build();
    let waiting = orders(&world.locks(&other).build().unwrap()).wait(eagerly());
    let (first, second) = run_while_waited_for(&storing(&locks), Err(Declined), &waiting, &other).await;
    assert!(is_declined(&first));
    assert_eq!(replayed_error(second).error_type(), "CardDeclined");
}

// behaviours 34, 66
#[tokio::test]
async fn a_duplicate_that_waited_in_vain_is_refused_with_how_often_it_asked() {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    orders(&locks)
        .run(&order("a"), async |_| {
            let waiting = orders(&locks).wait(eagerly().max_attempts(3));
            let error = refused(place(&waiting, &order("a"), &runs).await);
            assert!(error.is_in_progress(), "{error}");
            assert_eq!(error.attempts(), 3);
            Ok(0)
        })
        .await
        .unwrap();
    assert_eq!(runs.get(), 0);
}

// The window

// behaviour 67
#[tokio::test]
async fn a_result_is_kept_for_an_hour_in_whole_seconds_rounded_up() {
    let (world, host, locks) = environment().await;
    let before = millis(host.now() + WINDOW);
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    let after = millis(host.now() + WINDOW);
    let expiration = number_in(&world.row("a").await.unwrap(), "expiration") * 1000;
    assert!((before..after + 1000).contains(&expiration), "{expiration} is not between {before} and {after}");
}

// behaviour 67
#[tokio::test]
async fn a_result_is_kept_for_the_window_that_was_set_counted_from_the_end_of_the_run() {
    let (world, host, locks) = environment().await;
    let window = Duration::from_secs(90);
    orders(&locks)
        .window(window)
        .run(&order("a"), async |_| {
            host.advance_clock(Duration::from_secs(20));
            Ok(1)
        })
        .await
        .unwrap();
    let expiration = number_in(&world.row("a").await.unwrap(), "expiration") * 1000;
    let end = millis(host.now() + window);
    assert!((end - 1000..=end + 1000).contains(&expiration), "{expiration} {end}");
}

// behaviour 67
#[tokio::test]
async fn the_window_is_enforced_by_the_clock_while_the_row_is_still_there() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&locks), &order("a"), &runs).await.unwrap();
    let almost = later(&world, ALMOST_THE_WINDOW);
    assert_eq!(place(&orders(&almost), &order("a"), &runs).await.unwrap(), 1);
    assert!(world.row("a").await.is_some());
    assert_eq!(place(&orders(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 2);
}

// behaviours 47, 67
#[tokio::test]
async fn a_window_out_of_its_bounds_is_refused_and_nothing_is_sent() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let longest = Duration::from_hours(366 * 24);
    for window in [Duration::ZERO, ms(2_999), longest + ms(1), Duration::MAX] {
        let error = refused(place(&orders(&locks).window(window), &order("a"), &runs).await);
        assert!(error.is_invalid() && error.to_string().contains("window"), "{error}");
        assert!(error.to_string().contains("3s"), "{error}");
    }
    assert_eq!((runs.get(), host.requests()), (0, 0));
    for (key, window) in [("a", ms(3_000)), ("b", longest)] {
        place(&orders(&locks).window(window), &order(key), &runs).await.unwrap();
    }
    let exact = world.locks(&host).clock_skew(Duration::ZERO).build().unwrap();
    place(&orders(&exact).window(ms(1_000)), &order("c"), &runs).await.unwrap();
    assert!(refused(place(&orders(&exact).window(ms(999)), &order("d"), &runs).await).is_invalid());
    assert_eq!(runs.get(), 3);
}

// The cache

// behaviour 68
#[tokio::test]
async fn a_cached_result_costs_no_request_and_without_a_cache_each_duplicate_one() {
    let (_world, host, locks) = environment().await;
    let (cached, runs) = (orders(&locks).cache(10), Counter::default());
    for _ in 0..5 {
        assert_eq!(place(&cached, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 2);
    let without = orders(&locks).cache(0);
    for _ in 0..5 {
        assert_eq!(place(&without, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 7);
}

// behaviour 68
#[tokio::test]
async fn the_result_of_a_run_elsewhere_is_cached_when_it_was_replayed_once() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&later(&world, Duration::ZERO)), &order("a"), &runs).await.unwrap();
    let cached = orders(&locks).cache(10);
    for _ in 0..3 {
        assert_eq!(place(&cached, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 1);
}

// behaviour 68
#[tokio::test]
async fn the_cache_is_bounded_and_the_least_recently_used_record_goes_first() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(2), Counter::default());
    let requests_for = async |id: &str| {
        let before = host.requests();
        place(&orders, &order(id), &runs).await.unwrap();
        host.requests() - before
    };
    assert_eq!((requests_for("a").await, requests_for("b").await), (2, 2));
    assert_eq!(requests_for("a").await, 0, "and now `b` is the one that was not used for longest");
    assert_eq!(requests_for("c").await, 2);
    assert_eq!(requests_for("a").await, 0);
    assert_eq!(requests_for("b").await, 1);
    assert_eq!(runs.get(), 3);
}

// behaviour 68
#[tokio::test]
async fn what_is_in_progress_or_was_given_up_is_never_served_from_the_cache() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    orders
        .run(&order("a"), async |_| {
            for _ in 0..2 {
                assert!(refused(place(&orders, &order("a"), &runs).await).is_in_progress());
            }
            assert_eq!(host.requests(), 3);
            Err::<u32, _>(Declined)
        })
        .await
        .unwrap_err();
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    // Nor is a result that was not stored.
    let lost = orders
        .run(&order("b"), async |_| {
            give_to_another(&world, "b").await;
            Ok(runs.count())
        })
        .await;
    assert_eq!(lost.unwrap(), 2);
    assert!(refused(place(&orders, &order("b"), &runs).await).is_in_progress());
}

// behaviours 67, 68
#[tokio::test]
async fn a_cached_result_expires_with_the_window() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    place(&orders, &order("a"), &runs).await.unwrap();
    host.advance_clock(ALMOST_THE_WINDOW);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    host.advance_clock(Duration::from_secs(62));
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 2);
    assert_eq!(host.requests(), 4);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 2);
    assert_eq!(host.requests(), 4);
}

// behaviours 63, 68
#[tokio::test]
async fn a_cached_result_is_validated() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (validated(&locks).cache(10), Counter::default());
    place(&orders, &order("a"), &runs).await.unwrap();
    assert!(refused(place(&orders, &Order { amount: 6, ..order("a") }, &runs).await).is_mismatch());
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!((runs.get(), host.requests()), (1, 2));
}

// behaviour 68
#[tokio::test]
async fn clones_share_the_cache() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    let clone = orders.clone();
    place(&clone, &order("a"), &runs).await.unwrap();
    drop(clone);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), 2);
}

// behaviours 68, 76
#[tokio::test]
async fn a_result_whose_completion_lost_its_answer_is_cached_too() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let (orders, runs) =
        (orders(&world.locks_with_quick_retries(&host).build().unwrap()).cache(10), Counter::default());
    place(&orders, &order("a"), &runs).await.unwrap();
    let requests = host.requests();
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), requests);
}

// behaviours 22, 68
#[tokio::test]
async fn the_cache_is_not_used_when_locking_is_switched_off() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    for index in 1..=3 {
        assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), index);
    }
}

// The hook and the switch

// behaviour 69
#[tokio::test]
async fn a_hook_sees_every_replayed_result_with_its_record_and_may_change_it() {
    for cache in [0, 10] {
        let (world, host, _) = environment().await;
        let locks = world.locks(&host).holder("the first").build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let hooked: Orders<u64> = orders(&locks).cache(cache).on_replay({
            let seen = Arc::clone(&seen);
            move |result, record| {
                seen.lock().unwrap().push((*result, record.clone()));
                *result += 1000;
            }
        });
        let mut acquired_at = None;
        let body = async |run: &Run| {
            acquired_at = Some(run.lock().acquired_at());
            Ok(run.lock().fence())
        };
        let fence = hooked.run(&order("a"), body).await.unwrap();
        assert!(seen.lock().unwrap().is_empty(), "the first result is no replay");
        let expiration = number_in(&world.row("a").await.unwrap(), "expiration");
        for _ in 0..2 {
            let replayed = hooked.run(&order("a"), async |_| panic!("it runs again")).await.unwrap();
            assert_eq!(replayed, fence + 1000);
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 2);
        for (result, record) in &*seen {
            assert_eq!((*result, record.fence()), (fence, Some(fence)));
            assert_eq!(record.name(), Some("the first"));
            assert_eq!(record.since(), acquired_at);
            assert_eq!(millis(record.until()), expiration * 1000);
            assert!(record.is_completed() && record.is_current());
            assert_eq!(record.data().unwrap().as_str(), Some(fence.to_string().as_str()));
        }
        assert_eq!(host.requests(), if cache == 0 { 4 } else { 2 });
    }
}

// behaviours 66, 69
#[tokio::test]
async fn a_hook_sees_a_result_that_was_waited_for() {
    let (world, _host, locks) = environment().await;
    let other = world.host().build();
    let waiting: Orders<u32> =
        orders(&world.locks(&other).build().unwrap()).wait(eagerly()).on_replay(|result, _| *result += 1000);
    let (first, second) = run_while_waited_for(&orders(&locks), Ok(1), &waiting, &other).await;
    assert_eq!((first.unwrap(), second.unwrap()), (1, 1001));
}

// behaviours 22, 69
#[tokio::test]
async fn with_locking_switched_off_everything_runs_and_nothing_is_sent_whatever_becomes_of_it() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let runs = Counter::default();
    for (index, policy) in
        [OnError::Release, OnError::Keep, OnError::Store(StoredError::new("Declined", "no"))].into_iter().enumerate()
    {
        let orders = orders(&locks).on_error(move |_| policy.clone());
        assert_eq!(place(&orders, &order("a"), &runs).await.unwrap() as usize, 2 * index + 1);
        assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
    }
    assert_eq!(runs.get(), 6);
    sleep(ms(20)).await;
    assert_eq!(host.requests(), 0);
}

// Completing is conditional

// behaviour 70
#[tokio::test]
async fn a_run_that_lost_its_record_returns_its_result_and_leaves_the_row_and_warns() {
    keep_log();
    let (world, host, locks) = environment().await;
    let mut theirs = None;
    let id = format!("lost {}", world.table);
    let outcome = orders(&locks)
        .run(&order(&id), async |_| {
            theirs = Some(give_to_another(&world, &id).await);
            Ok(17)
        })
        .await;
    assert_eq!(outcome.unwrap(), 17);
    assert_eq!(host.requests(), 2);
    assert_eq!(world.row(&id).await, theirs);
    let warnings: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("lost: ") && warnings[0].contains("to=another environment"), "{warnings:?}");
}

// behaviour 70
#[tokio::test]
async fn a_run_that_fails_after_it_lost_its_record_leaves_the_row() {
    let (world, _host, locks) = environment().await;
    for settings in [orders(&locks), storing(&locks)] {
        let mut theirs = None;
        let outcome = settings
            .run(&order("a"), async |_| {
                theirs = Some(give_to_another(&world, "a").await);
                Err::<u32, _>(Declined)
            })
            .await;
        assert!(is_declined(&outcome));
        assert_eq!(world.row("a").await, theirs);
        world.delete_row("a").await;
    }
}

// behaviours 70, 80
#[tokio::test]
async fn a_run_whose_lease_had_ended_for_others_returns_its_result_and_duplicates_get_that_of_the_one_that_took_over() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let mine = orders(&locks);
    let outcome = mine
        .run(&order("a"), async |_| {
            let mine = runs.count();
            assert_eq!(place(&orders(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 2);
            Ok(mine)
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert_eq!(place(&mine, &order("a"), &runs).await.unwrap(), 2);
}

// behaviours 68, 70
#[tokio::test]
async fn a_run_that_completes_a_row_that_was_deleted_meanwhile_returns_its_result_and_writes_nothing() {
    let (world, _host, locks) = environment().await;
    let outcome = orders(&locks)
        .run(&order("a"), async |_| {
            world.delete_row("a").await;
            Ok(1)
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert!(world.row("a").await.is_none());
}

// behaviour 76
#[tokio::test]
async fn a_run_whose_first_answer_was_lost_runs_once() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    let (orders, runs) = (orders(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), 3);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

// behaviour 76
#[tokio::test]
async fn work_that_must_not_repeat_and_got_no_answer_at_all_to_its_beginning_runs_when_it_is_tried_again() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=3)).build();
    let (orders, runs) = (refusing(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    let error = refused(place(&orders, &order("a"), &runs).await);
    assert!(error.is_unavailable(), "{error}");
    // It is released in the background.
    let waiting = orders.wait(eagerly().up_to(LEASE / 3));
    assert_eq!(place(&waiting, &order("a"), &runs).await.unwrap(), 1);
}

// behaviour 76
#[tokio::test]
async fn a_completion_whose_answer_was_lost_is_recognised() {
    keep_log();
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let (orders, runs) = (orders(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    let id = format!("recognised {}", world.table);
    assert_eq!(place(&orders, &order(&id), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), 3);
    assert_eq!(place(&orders, &order(&id), &runs).await.unwrap(), 1);
    assert!(logged(&id).iter().all(|line| !line.contains("WARN")), "{:?}", logged(&id));
}

// behaviours 64, 76
#[tokio::test]
async fn a_stored_error_whose_answer_was_lost_is_recognised() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let (orders, runs) = (storing(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
    assert_eq!(replayed_error(place(&orders, &order("a"), &runs).await).error_type(), "CardDeclined");
}

// behaviour 76
#[tokio::test]
async fn a_completion_that_gets_no_answer_returns_the_result_and_nothing_is_sent_after_it() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=u32::MAX)).build();
    let (mine, runs) = (orders(&world.locks_with_quick_retries(&host).build().unwrap()), Counter::default());
    assert_eq!(place(&mine.lease(ms(300)), &order("a"), &runs).await.unwrap(), 1);
    let sent = host.requests();
    sleep(ms(50)).await;
    assert_eq!(host.requests(), sent, "no release");
    // It was applied after all.
    assert_eq!(place(&orders(&later(&world, Duration::ZERO)), &order("a"), &runs).await.unwrap(), 1);
}

/// Sends the completions elsewhere, where they are refused.
#[derive(Debug)]
struct MisplacesCompletions;

impl Intercept for MisplacesCompletions {
    fn request(&self, _: &str, request: &mut Value) {
        if request["UpdateExpression"].as_str().is_some_and(|update| update.contains(":completed")) {
            request["TableName"] = "elsewhere".into();
        }
    }
}

// behaviour 70
#[tokio::test]
async fn a_completion_that_fails_returns_the_result_and_leaves_the_record_in_progress() {
    let world = World::new().await;
    let host = world.host().intercept(MisplacesCompletions).build();
    let (mine, runs) = (orders(&world.locks(&host).build().unwrap()), Counter::default());
    assert_eq!(place(&mine, &order("a"), &runs).await.unwrap(), 1);
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 2, "no release, for the work was done");
    assert!(refused(place(&mine, &order("a"), &runs).await).is_in_progress());
    let after = orders(&later(&world, AFTER_THE_LEASE));
    assert_eq!(place(&after, &order("a"), &runs).await.unwrap(), 2);
}

// behaviour 76
#[tokio::test]
async fn a_table_that_falls_silent_while_the_work_runs_does_not_keep_its_result_past_the_lease() {
    let (_world, host, locks) = environment().await;
    let orders = orders(&locks).lease(ms(600));
    let outcome = orders
        .run(&order("a"), async |run: &Run| {
            host.crash();
            Ok(run.lock().expires_at())
        })
        .await;
    let end = outcome.unwrap();
    assert!(host.now() < end, "late by {:?}", host.now().duration_since(end));
}

// behaviour 1
#[tokio::test]
async fn a_table_that_is_missing_is_an_error_and_nothing_runs() {
    let world = World::without_table();
    let runs = Counter::default();
    let error = refused(place(&orders(&world.default_locks()), &order("a"), &runs).await);
    assert!(error.is_table_not_found(), "{error}");
    assert_eq!(runs.get(), 0);
}

// Results that cannot be stored, or not read

const MOST: usize = 390 * 1024;

/// A result that takes this many bytes as JSON.
fn large(bytes: usize) -> String {
    "x".repeat(bytes - "\"\"".len())
}

// behaviour 75
#[tokio::test]
async fn the_largest_result_that_can_be_stored_comes_back() {
    let (_world, _host, locks) = environment().await;
    let exports: Orders<String> = orders(&locks);
    // With the longest key that there can be.
    let order = order(&"k".repeat(2048));
    assert_eq!(exports.run(&order, async |_| Ok(large(MOST))).await.unwrap().len(), MOST - 2);
    let replayed = exports.run(&order, async |_| panic!("it runs again")).await.unwrap();
    assert!(replayed == large(MOST));
}

// behaviour 75
#[tokio::test]
async fn a_result_that_is_too_large_is_an_error_and_the_record_is_left_to_its_lease() {
    let (world, host, locks) = environment().await;
    let (exports, runs) = (orders::<String>(&locks), Counter::default());
    let error = refused(
        exports
            .run(&order("a"), async |_| {
                runs.count();
                Ok(large(MOST + 1))
            })
            .await,
    );
    assert!(error.is_unusable_result(), "{error}");
    assert!(error.to_string().contains("399361") && !error.to_string().contains("xxx"), "{error}");
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 1);
    assert!(refused(exports.run(&order("a"), async |_| Ok(String::new())).await).is_in_progress());
    let after = orders::<String>(&later(&world, AFTER_THE_LEASE));
    assert_eq!(after.run(&order("a"), async |_| Ok("small".to_owned())).await.unwrap(), "small");
    assert_eq!(runs.get(), 1);
}

// behaviour 75
#[tokio::test]
async fn a_result_without_a_form_as_json_is_an_error_too() {
    let (_world, host, locks) = environment().await;
    let orders: Orders<HashMap<(u8, u8), u8>> = orders(&locks);
    let error = refused(orders.run(&order("a"), async |_| Ok(HashMap::from([((1, 2), 3)]))).await);
    assert!(error.is_unusable_result() && error.to_string().contains("JSON"), "{error}");
    assert_eq!(host.requests(), 1);
}

// behaviour 75
#[tokio::test]
async fn a_result_that_is_too_large_can_be_left_out_and_a_duplicate_then_gets_none() {
    for cache in [0, 10] {
        let (world, host, locks) = environment().await;
        let exports: Orders<Option<String>> =
            orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult).cache(cache);
        let first = exports.run(&order("a"), async |_| Ok(Some(large(MOST)))).await.unwrap();
        assert_eq!(first.map(|export| export.len()), Some(MOST - 2));
        assert_eq!(
            exports.run(&order("b"), async |_| Ok(Some(large(MOST + 1)))).await.unwrap().unwrap().len(),
            MOST - 1
        );
        assert_eq!(host.requests(), 4);
        assert_eq!(exports.run(&order("b"), async |_| panic!("it runs again")).await.unwrap(), None);
        assert!(exports.run(&order("a"), async |_| panic!("it runs again")).await.unwrap().is_some());
        let row = world.row("b").await.unwrap();
        assert_eq!(string_in(&row, "status"), "COMPLETED");
        assert!(!row.contains_key("data"));
    }
}

// behaviour 75
#[tokio::test]
async fn a_duplicate_that_needs_a_result_which_was_left_out_gets_an_error_and_does_not_run() {
    for cache in [0, 10] {
        let (_world, _host, locks) = environment().await;
        let exports: Orders<String> =
            orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult).cache(cache);
        exports.run(&order("a"), async |_| Ok(large(MOST + 1))).await.unwrap();
        let error = refused(exports.run(&order("a"), async |_| panic!("it runs again")).await);
        assert!(error.is_unusable_result() && error.to_string().contains("without its result"), "{error}");
    }
}

// behaviour 75
#[tokio::test]
async fn a_stored_result_of_another_type_is_an_error_that_does_not_show_it() {
    let (world, _host, locks) = environment().await;
    let before: Orders<String> = orders(&locks);
    before.run(&order("a"), async |_| Ok("4111 1111".to_owned())).await.unwrap();
    let row = world.row("a").await;
    let error = refused(place(&orders(&locks), &order("a"), &Counter::default()).await);
    assert!(error.is_unusable_result(), "{error}");
    assert!(!format!("{error} {error:?}").contains("4111"), "{error:?}");
    assert_eq!(world.row("a").await, row);
}

// Foreign rows

/// A completed record, with these attributes in place of its own.
fn completed<const N: usize>(host: &Host, attributes: [(&str, AttributeValue); N]) -> Row {
    let mut completed = row([
        ("id", text("a")),
        ("status", text("COMPLETED")),
        ("expiration", number(seconds(host) + 600)),
        ("data", text("17")),
    ]);
    completed.extend(row(attributes));
    completed
}

/// What comes of this row, which stays as it is.
async fn outcome_with(world: &World, orders: &Orders<u32>, foreign: Row) -> Result<u32, HandlerError<Declined>> {
    world.put_row(foreign.clone()).await;
    let outcome = orders.run(&order("a"), async |_| panic!("it runs")).await;
    assert_eq!(world.row("a").await, Some(foreign));
    outcome
}

// behaviour 70
#[tokio::test]
async fn a_row_that_is_not_a_record_is_an_error_and_stays_as_it_is() {
    let (world, host, locks) = environment().await;
    let orders = orders(&locks);
    let soon = number((seconds(&host) + 60) * 1000);
    for (attribute, value) in [
        ("status", text("EXPIRED")),
        ("status", text("completed")),
        ("status", number(1)),
        ("expiration", text("soon")),
        ("expiration", number(u64::MAX)),
        ("error", number(1)),
        ("fence", text("1")),
        ("fence", number(-1)),
        ("owner", number(1)),
        ("holder", number(1)),
        ("acquired_at", text("now")),
        ("in_progress_expiration", text("soon")),
    ] {
        let foreign = completed(&host, [(attribute, value)]);
        let error = refused(outcome_with(&world, &orders, foreign.clone()).await);
        assert!(error.is_malformed_row() && error.to_string().contains(attribute), "{foreign:?}: {error}");
    }
    for missing in ["status", "expiration"] {
        let mut foreign = completed(&host, []);
        foreign.remove(missing);
        let error = refused(outcome_with(&world, &orders, foreign).await);
        assert!(error.is_malformed_row() && error.to_string().contains(missing), "{error}");
    }
    let running = row([("id", text("a")), ("status", text("INPROGRESS")), ("in_progress_expiration", soon)]);
    assert!(refused(outcome_with(&world, &orders, running).await).is_in_progress());
    let endless = row([("id", text("a")), ("status", text("INPROGRESS"))]);
    assert!(refused(outcome_with(&world, &orders, endless).await).is_malformed_row());
}

// behaviour 70
#[tokio::test]
async fn a_row_that_is_not_a_record_is_not_taken_when_its_time_is_over_either() {
    let (world, host, locks) = environment().await;
    let orders = orders(&locks);
    let over = number(seconds(&host) - 60);
    for (attribute, value) in
        [("status", text("EXPIRED")), ("status", number(1)), ("fence", text("1")), ("fence", number(-1))]
    {
        let foreign = completed(&host, [("expiration", over.clone()), (attribute, value)]);
        assert!(refused(outcome_with(&world, &orders, foreign).await).is_malformed_row());
    }
}

// behaviours 64, 75
#[tokio::test]
async fn a_stored_result_or_error_that_cannot_be_read_is_an_error_that_does_not_show_it() {
    let (world, host, locks) = environment().await;
    let orders = orders(&locks);
    for (attribute, value) in [
        ("data", text("{4111")),
        ("data", text("\"4111\"")),
        ("data", text("")),
        ("data", AttributeValue::B(b"4111".to_vec().into())),
        ("data", AttributeValue::Ss(vec!["4111".to_owned()])),
        ("error", text("{4111")),
        ("error", text(r#"{"type": "Declined"}"#)),
        ("error", text("")),
    ] {
        let error = refused(outcome_with(&world, &orders, completed(&host, [(attribute, value)])).await);
        assert!(error.is_unusable_result(), "{error}");
        assert!(!error.to_string().contains("4111"), "{error}");
    }
}

// behaviour 63
#[tokio::test]
async fn a_stored_validation_that_is_not_a_string_matches_nothing() {
    let (world, host, locks) = environment().await;
    let foreign = completed(&host, [("validation", number(5))]);
    assert!(refused(outcome_with(&world, &validated(&locks), foreign.clone()).await).is_mismatch());
    assert_eq!(outcome_with(&world, &orders(&locks), foreign).await.unwrap(), 17);
}

// Completing in the caller's own transaction

fn business_row() -> Row {
    row([("id", text("the order itself")), ("amount", number(5))])
}

/// A transaction that writes the business row, under this condition if there is one, and completes the run.
async fn commit(world: &World, host: &Host, run: &Run, result: u32, condition: Option<&str>) -> Result<u32, Declined> {
    let put = Put::builder().table_name(&world.table).set_item(Some(business_row()));
    let put = put.set_condition_expression(condition.map(str::to_owned)).build().unwrap();
    let retries = RetryConfig::standard().with_initial_backoff(ms(1));
    let client = Client::from_conf(host.client().config().to_builder().retry_config(retries).build());
    let transaction = client
        .transact_write_items()
        .transact_items(TransactWriteItem::builder().put(put).build())
        .transact_items(run.complete_in(&result).unwrap());
    let sent = Box::pin(transaction.send()).await;
    sent.map_or(Err(Declined), |_| Ok(result))
}

async fn is_committed(world: &World) -> bool {
    world.row("the order itself").await.is_some()
}

// behaviour 79
#[tokio::test]
async fn result_and_business_write_are_committed_together_and_nothing_is_sent_after() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let before = millis(host.now() + WINDOW);
    let body = async |run: &Run| commit(&world, &host, run, runs.count(), None).await;
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 1);
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 2);
    assert!(is_committed(&world).await);
    let row = world.row("a").await.unwrap();
    assert_eq!((string_in(&row, "status"), string_in(&row, "data")), ("COMPLETED", "1"));
    let after = millis(host.now() + WINDOW);
    assert!((before..after + 1000).contains(&(number_in(&row, "expiration") * 1000)));
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
}

// behaviour 79
#[tokio::test]
async fn a_transaction_that_is_cancelled_writes_neither_and_a_retry_runs_at_once() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let body = async |run: &Run| commit(&world, &host, run, runs.count(), Some("attribute_exists(id)")).await;
    assert!(is_declined(&orders.run(&order("a"), body).await));
    assert!(!is_committed(&world).await);
    assert!(!world.row("a").await.unwrap().contains_key("data"));
    let body = async |run: &Run| commit(&world, &host, run, runs.count(), None).await;
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 2);
    assert!(is_committed(&world).await);
}

/// A host that hears no answer to a transaction.
fn host_without_answers(world: &World) -> (Host, Locks) {
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=u32::MAX)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    (host, locks)
}

// behaviours 76, 79
#[tokio::test]
async fn a_transaction_that_was_committed_without_an_answer_gives_its_result_in_place_of_the_handlers_error() {
    let world = World::new().await;
    let (host, locks) = host_without_answers(&world);
    for (id, settings) in [("a", orders(&locks)), ("b", storing(&locks)), ("c", refusing(&locks))] {
        let runs = Counter::default();
        let body = async |run: &Run| commit(&world, &host, run, 16 + runs.count(), None).await;
        assert_eq!(settings.run(&order(id), body).await.unwrap(), 17, "{id}");
        let row = world.row(id).await.unwrap();
        assert_eq!((string_in(&row, "status"), string_in(&row, "data")), ("COMPLETED", "17"));
        assert!(!row.contains_key("error"));
        assert_eq!(place(&settings, &order(id), &runs).await.unwrap(), 17, "{id}");
    }
}

// behaviours 76, 79
#[tokio::test]
async fn where_errors_keep_the_record_the_call_after_a_transaction_without_an_answer_gets_its_result() {
    let world = World::new().await;
    let (host, locks) = host_without_answers(&world);
    let (orders, runs) = (orders(&locks).on_error(|_| OnError::Keep), Counter::default());
    let body = async |run: &Run| commit(&world, &host, run, 17, None).await;
    assert!(is_declined(&orders.run(&order("a"), body).await));
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 17);
    assert_eq!(runs.get(), 0);
}

// behaviours 76, 79, 80
#[tokio::test]
async fn a_transaction_that_was_committed_before_the_work_outlived_its_lease_gives_its_result() {
    let (world, host, locks) = environment().await;
    let orders: Orders<u32> = orders(&locks).lease(ms(500));
    let body = async |run: &Run| {
        commit(&world, &host, run, 17, None).await?;
        pending().await
    };
    assert_eq!(timeout(TOO_LONG, orders.run(&order("a"), body)).await.unwrap().unwrap(), 17);
}

// behaviours 64, 79
#[tokio::test]
async fn a_panic_after_the_transaction_was_committed_leaves_the_record_completed() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let order = order("a");
    let run = orders.run(&order, async |run: &Run| {
        commit(&world, &host, run, 17, None).await.unwrap();
        panic!("after the transaction")
    });
    assert!(AssertUnwindSafe(run).catch_unwind().await.is_err());
    assert_eq!(place(&orders, &order, &runs).await.unwrap(), 17);
    assert_eq!(runs.get(), 0);
}

// behaviours 65, 79
#[tokio::test]
async fn a_crash_after_the_transaction_was_committed_is_replayed_and_one_before_it_runs_again() {
    let (world, host, locks) = environment().await;
    let (orders, order, runs) = (orders(&locks), order("a"), Counter::default());
    crash(&host, &orders, &order).await;
    let second = world.host().clock_ahead(AFTER_THE_LEASE).build();
    let theirs: Orders<u32> = self::orders(&world.locks(&second).build().unwrap());
    let committed = Notify::new();
    let run = theirs.run(&order, async |run: &Run| {
        commit(&world, &second, run, 17, None).await.unwrap();
        second.crash();
        committed.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = committed.notified() => {}
    }
    assert_eq!(place(&self::orders(&later(&world, Duration::ZERO)), &order, &runs).await.unwrap(), 17);
    assert_eq!(runs.get(), 0);
}

// behaviours 70, 79
#[tokio::test]
async fn a_transaction_of_a_run_that_lost_its_record_is_cancelled() {
    let (world, host, locks) = environment().await;
    let mut theirs = None;
    let body = async |run: &Run| {
        theirs = Some(give_to_another(&world, "a").await);
        commit(&world, &host, run, 17, None).await
    };
    assert!(is_declined(&orders::<u32>(&locks).run(&order("a"), body).await));
    assert!(!is_committed(&world).await);
    assert_eq!(world.row("a").await, theirs);
}

// behaviours 60, 79
#[tokio::test]
async fn a_transaction_that_completes_a_run_a_second_time_is_cancelled() {
    let (world, host, locks) = environment().await;
    let body = async |run: &Run| {
        commit(&world, &host, run, 17, None).await.unwrap();
        assert_eq!(commit(&world, &host, run, 18, None).await, Err(Declined));
        Ok(17)
    };
    assert_eq!(orders::<u32>(&locks).run(&order("a"), body).await.unwrap(), 17);
    assert_eq!(string_in(&world.row("a").await.unwrap(), "data"), "17");
}

// behaviours 22, 61, 79
#[tokio::test]
async fn a_transaction_of_a_run_that_is_not_protected_is_committed_all_the_same() {
    let (world, host, locks) = environment().await;
    let disabled = world.locks(&host).enabled(false).build().unwrap();
    let on_missing_key: Orders<u32> =
        Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone()).prefix("orders");
    for (orders, order) in [(orders(&disabled), order("a")), (on_missing_key, order_without_id())] {
        for result in [17, 18] {
            let body = async |run: &Run| commit(&world, &host, run, result, None).await;
            assert_eq!(orders.run(&order, body).await.unwrap(), result);
        }
        assert!(is_committed(&world).await);
        world.delete_row("the order itself").await;
    }
    assert_eq!(host.requests(), 4);
    assert!(world.row("a").await.is_none());
}

// behaviours 75, 79
#[tokio::test]
async fn a_result_that_is_too_large_cannot_be_completed_in_a_transaction_whatever_is_set_for_that() {
    let (_world, _host, locks) = environment().await;
    let exports: Orders<String> = orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
    let body = async |run: &Run| {
        let error = run.complete_in(&large(MOST + 1)).unwrap_err();
        assert!(error.is_unusable_result(), "{error}");
        Ok("small".to_owned())
    };
    exports.run(&order("a"), body).await.unwrap();
    // That attempt does not count: the run was completed as usual.
    assert_eq!(exports.run(&order("a"), async |_| panic!("it runs again")).await.unwrap(), "small");
}

// The format of Powertools

fn as_powertools(locks: &Locks, format: RecordFormat) -> Orders<Value> {
    orders(locks).format(format).prefix("orders").validate(|order| order.amount)
}

fn result_in_powertools() -> Value {
    json!({ "b": 1, "a": [1, 2.5, "é"], "z": null })
}

// behaviour 83
#[tokio::test]
async fn a_record_has_the_attributes_that_powertools_for_python_writes() {
    let (world, host, locks) = environment().await;
    let orders = as_powertools(&locks, RecordFormat::PowertoolsPython);
    orders.run(&order("abc"), async |_| Ok(result_in_powertools())).await.unwrap();
    let row = world.row("orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90").await.unwrap();
    assert_eq!(string_in(&row, "status"), "COMPLETED");
    assert_eq!(string_in(&row, "validation"), "e4da3b7fbbce2345d7772b0674a318d5");
    assert_eq!(serde_json::from_str::<Value>(string_in(&row, "data")).unwrap(), result_in_powertools());
    assert!(number_in(&row, "expiration") > seconds(&host));
    assert!(number_in(&row, "in_progress_expiration") > millis(host.now()));
}

// behaviour 83
#[tokio::test]
async fn a_record_has_the_attributes_that_powertools_for_typescript_writes() {
    let (world, _host, locks) = environment().await;
    let orders = as_powertools(&locks, RecordFormat::PowertoolsTypeScript);
    orders.run(&order("abc"), async |_| Ok(result_in_powertools())).await.unwrap();
    let stored = world.row("orders#69n0x7BssKr10T2A5J2LkA==").await.unwrap();
    assert_eq!(string_in(&stored, "status"), "COMPLETED");
    let list = AttributeValue::L(vec![number(1), AttributeValue::N("2.5".to_owned()), text("é")]);
    let expected = row([("a", list), ("b", number(1)), ("z", AttributeValue::Null(true))]);
    assert_eq!(stored["data"], AttributeValue::M(expected));
}

/// What Powertools wrote: it knows neither owner nor fence nor holder.
fn of_powertools<const N: usize>(
    id: &str,
    status: &str,
    expiration: u64,
    attributes: [(&str, AttributeValue); N],
) -> Row {
    let mut theirs = row([("id", text(id)), ("status", text(status)), ("expiration", number(expiration))]);
    theirs.extend(row(attributes));
    theirs
}

// behaviour 83
#[tokio::test]
async fn a_completed_record_of_powertools_is_replayed() {
    let (world, host, locks) = environment().await;
    let expiration = seconds(&host) + 600;
    let python = "orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90";
    let data = text(r#"{"a": [1, 2.5, "\u00e9"], "b": 1, "z": null}"#);
    let validation = text("e4da3b7fbbce2345d7772b0674a318d5");
    let theirs = of_powertools(python, "COMPLETED", expiration, [("data", data), ("validation", validation)]);
    world.put_row(theirs.clone()).await;
    let orders = as_powertools(&locks, RecordFormat::PowertoolsPython);
    let replayed = orders.run(&order("abc"), async |_| panic!("it runs again")).await.unwrap();
    assert_eq!(replayed, result_in_powertools());
    let other = Order { amount: 6, ..order("abc") };
    assert!(refused(orders.run(&other, async |_| panic!("it runs again")).await).is_mismatch());
    assert_eq!(world.row(python).await, Some(theirs));

    let typescript = "orders#69n0x7BssKr10T2A5J2LkA==";
    let data = AttributeValue::M(row([("sum", number(5)), ("paid", AttributeValue::Bool(true))]));
    world.put_row(of_powertools(typescript, "COMPLETED", expiration, [("data", data)])).await;
    let orders: Orders<Value> = self::orders(&locks).format(RecordFormat::PowertoolsTypeScript).prefix("orders");
    let replayed = orders.run(&order("abc"), async |_| panic!("it runs again")).await.unwrap();
    assert_eq!(replayed, json!({ "sum": 5, "paid": true }));
}

// behaviours 65, 83
#[tokio::test]
async fn a_record_that_powertools_left_in_progress_is_so_until_its_end_and_is_then_taken_over() {
    let (world, host, locks) = environment().await;
    let id = "orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90";
    let now = seconds(&host);
    let (runs, orders) = (Counter::default(), orders(&locks).format(RecordFormat::PowertoolsPython).prefix("orders"));
    let end = |by: i64| ("in_progress_expiration", number((now.cast_signed() + by) * 1000));
    let running = of_powertools(id, "INPROGRESS", now + 3600, [end(10)]);
    world.put_row(running.clone()).await;
    let error = refused(place(&orders, &order("abc"), &runs).await);
    assert!(error.is_in_progress() && error.holder().unwrap().name().is_none(), "{error}");
    assert_eq!(world.row(id).await, Some(running));
    // Of a function without a Lambda context: until its expiration.
    world.put_row(of_powertools(id, "INPROGRESS", now + 60, [])).await;
    assert!(refused(place(&orders, &order("abc"), &runs).await).is_in_progress());
    for over in [of_powertools(id, "INPROGRESS", now + 3600, [end(-10)]), of_powertools(id, "INPROGRESS", now - 10, [])]
    {
        world.put_row(over).await;
        let before = runs.get();
        assert_eq!(place(&orders, &order("abc"), &runs).await.unwrap(), before + 1);
        assert!(number_in(&world.row(id).await.unwrap(), "fence") > 0);
    }
}

// behaviours 65, 83
#[tokio::test]
async fn work_that_must_not_repeat_is_unfinished_also_if_powertools_left_it_in_progress() {
    let (world, host, locks) = environment().await;
    let now = seconds(&host);
    let end = ("in_progress_expiration", number((now - 10) * 1000));
    world.put_row(of_powertools("a", "INPROGRESS", now + 3600, [end])).await;
    let runs = Counter::default();
    assert!(refused(place(&refusing(&locks), &order("a"), &runs).await).is_unfinished());
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 1);
}

// behaviours 70, 83
#[tokio::test]
async fn a_run_whose_record_powertools_took_over_leaves_it_alone() {
    let (world, host, locks) = environment().await;
    let theirs = of_powertools("a", "INPROGRESS", seconds(&host) + 3600, []);
    for fails in [false, true] {
        let body = async |_: &Run| {
            // It puts the whole item.
            world.put_row(theirs.clone()).await;
            if fails { Err(Declined) } else { Ok(17) }
        };
        let outcome = orders::<u32>(&locks).run(&order("a"), body).await;
        assert_eq!(outcome.is_err(), fails);
        assert_eq!(world.row("a").await.as_ref(), Some(&theirs));
        world.delete_row("a").await;
    }
}

// The middleware

type Invocations<T> = Idempotency<LambdaEvent<Order>, T, Declined>;

fn invocations<T>(locks: &Locks) -> Invocations<T> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |event: &LambdaEvent<Order>| event.payload.id.clone())
}

/// A handler that returns how many runs that makes.
fn counting(
    runs: &Counter,
) -> impl Service<LambdaEvent<Order>, Response = u32, Error = Declined, Future: Send> + Clone + Send + 'static {
    let runs = runs.clone();
    service_fn(move |_: LambdaEvent<Order>| {
        let runs = runs.clone();
        async move { Ok(runs.count()) }
    })
}

// behaviour 60
#[tokio::test]
async fn a_duplicate_event_gets_the_first_invocations_answer_for_one_request() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let service = IdempotentLayer::new(invocations(&locks)).layer(counting(&runs));
    for requests in [2, 3, 4] {
        assert_eq!(service.clone().oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
        assert_eq!(host.requests(), requests);
    }
    assert_eq!(service.oneshot(invocation(&host, order("b"))).await.unwrap(), 2);
}

// behaviour 68
#[tokio::test]
async fn invocations_of_one_environment_share_the_cache() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let layer = IdempotentLayer::new(invocations(&locks).cache(10));
    // The runtime clones the service for invocations that run at the same time.
    for service in [layer.layer(counting(&runs)), layer.clone().layer(counting(&runs))] {
        assert_eq!(service.clone().oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
        assert_eq!(service.oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 2);
}

// behaviour 62
#[tokio::test]
async fn the_prefix_of_a_handler_is_the_name_of_the_function_in_its_context_unless_another_is_set() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    for settings in [invocations(&locks), invocations(&locks).prefix("shared"), invocations(&locks).prefix("")] {
        let service = IdempotentLayer::new(settings).layer(counting(&runs));
        service.oneshot(invocation(&host, order("a"))).await.unwrap();
    }
    assert_eq!(runs.get(), 3);
    for id in ["orders#a", "shared#a", "a"] {
        assert!(world.row(id).await.is_some(), "{id}");
    }
}

// behaviours 3, 65, 83
#[tokio::test]
async fn the_record_is_in_progress_until_the_invocations_deadline_and_names_function_request_and_log_stream() {
    let (world, host, locks) = environment().await;
    let event = invocation_with(&host, order("a"), Duration::from_mins(14));
    let deadline = event.context.deadline;
    let world = Arc::new(world);
    let service = IdempotentLayer::new(invocations(&locks)).layer(service_fn({
        let world = Arc::clone(&world);
        move |_: LambdaEvent<Order>| {
            let world = Arc::clone(&world);
            async move {
                let row = world.row("orders#a").await.unwrap();
                assert_eq!(string_in(&row, "holder"), "orders request-1 stream-1");
                Ok::<_, Declined>(number_in(&row, "in_progress_expiration"))
            }
        }
    }));
    assert_eq!(service.oneshot(event).await.unwrap(), deadline + 1_000);
}

// behaviours 61, 63, 65, 66, 75
#[tokio::test]
async fn a_refusal_reaches_lambda_with_an_error_type_of_its_own() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let call = async |settings: Invocations<u32>, order: Order| {
        let service = IdempotentLayer::new(settings).layer(counting(&runs));
        told(service.oneshot(invocation(&host, order)).await.unwrap_err()).0
    };
    let validating = |locks: &Locks| invocations::<u32>(locks).validate(|event| event.payload.amount);
    assert_eq!(call(invocations(&locks), order_without_id()).await, "IdempotencyKeyMissing");
    let service = IdempotentLayer::new(validating(&locks)).layer(counting(&runs));
    service.oneshot(invocation(&host, order("a"))).await.unwrap();
    assert_eq!(call(validating(&locks), Order { amount: 6, ..order("a") }).await, "IdempotencyMismatch");
    let _other = locks.acquire("orders#b").await.unwrap();
    assert_eq!(call(invocations(&locks), order("b")).await, "IdempotencyInProgress");
    let crashed = world.host().build();
    crash(&crashed, &refusing(&world.locks(&crashed).build().unwrap()).prefix(FUNCTION), &order("c")).await;
    host.advance_clock(AFTER_THE_LEASE);
    assert_eq!(call(invocations(&locks).on_timeout(OnTimeout::Reject), order("c")).await, "IdempotencyUnfinished");
    world.put_row(completed(&host, [("id", text("orders#d")), ("data", text("\"17\""))])).await;
    assert_eq!(call(invocations(&locks), order("d")).await, "IdempotencyUnusableResult");
    assert_eq!(runs.get(), 1);
}

// behaviour 64
#[tokio::test]
async fn a_handlers_own_error_reaches_lambda_as_it_is_and_a_stored_one_as_it_was_stored() {
    let (_world, host, locks) = environment().await;
    let settings: Invocations<u32> =
        invocations(&locks).on_error(|Declined| OnError::Store(StoredError::new("CardDeclined", "by the bank")));
    let service =
        IdempotentLayer::new(settings).layer(service_fn(async |_: LambdaEvent<Order>| Err::<u32, _>(Declined)));
    let mut types = Vec::new();
    for _ in 0..2 {
        types.push(told(service.clone().oneshot(invocation(&host, order("a"))).await.unwrap_err()));
    }
    let [first, second] = [("Declined", "by the handler itself"), ("CardDeclined", "by the bank")]
        .map(|(error_type, message)| (error_type.to_owned(), message.to_owned()));
    assert_eq!(types, [first, second]);
}

// behaviours 60, 79
#[tokio::test]
async fn a_handler_that_asks_for_the_run_gets_it_with_the_event() {
    let (world, host, locks) = environment().await;
    let service = IdempotentLayer::new(invocations(&locks)).layer(service_fn(
        async |WithRun { input, run, .. }: WithRun<LambdaEvent<Order>>| {
            Ok::<_, Declined>((input.payload.amount, run.lock().fence(), run.lock().is_enforced()))
        },
    ));
    let (amount, fence, is_enforced) = service.oneshot(invocation(&host, order("a"))).await.unwrap();
    assert_eq!(number_in(&world.row("orders#a").await.unwrap(), "fence"), fence);
    assert!(amount == 5 && fence > 0 && is_enforced);
}

// behaviour 79
#[tokio::test]
async fn a_handler_can_complete_its_run_in_a_transaction_of_its_own() {
    let (world, host, locks) = environment().await;
    let world = Arc::new(world);
    let service = IdempotentLayer::new(invocations(&locks)).layer(service_fn({
        let (world, host) = (Arc::clone(&world), host.clone());
        move |WithRun { run, .. }: WithRun<LambdaEvent<Order>>| {
            let (world, host) = (Arc::clone(&world), host.clone());
            async move { commit(&world, &host, &run, 17, None).await }
        }
    }));
    for requests in [2, 3] {
        assert_eq!(service.clone().oneshot(invocation(&host, order("a"))).await.unwrap(), 17);
        assert_eq!(host.requests(), requests);
    }
    assert!(is_committed(&world).await);
}

// behaviour 64
#[tokio::test]
async fn a_handler_that_panics_gives_the_record_up_and_the_panic_goes_on() {
    let (_world, host, locks) = environment().await;
    let layer = IdempotentLayer::new(invocations(&locks));
    let panicking = layer.layer(service_fn(|_: LambdaEvent<Order>| -> BoxFuture<'static, Result<u32, Declined>> {
        panic!("in the call")
    }));
    let panic = AssertUnwindSafe(panicking.oneshot(invocation(&host, order("a")))).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the call"));
    let service = layer.layer(counting(&Counter::default()));
    assert_eq!(service.oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
}

// behaviours 3, 80
#[tokio::test]
async fn a_handler_is_cancelled_when_its_lease_ends() {
    let (_world, host, locks) = environment().await;
    let service = IdempotentLayer::new(invocations(&locks).lease(ms(300)))
        .layer(service_fn(|_: LambdaEvent<Order>| pending::<Result<u32, Declined>>()));
    let call = timeout(TOO_LONG, service.oneshot(invocation(&host, order("a")))).await.expect("it is cancelled");
    assert_eq!(told(call.unwrap_err()).0, "LockLost");
}

// behaviour 65
#[tokio::test]
async fn an_invocation_past_its_deadline_fails_and_sends_nothing() {
    let (_world, host, locks) = environment().await;
    let event = invocation(&host, order("a"));
    host.advance_clock(LEASE);
    let service = IdempotentLayer::new(invocations(&locks)).layer(counting(&Counter::default()));
    assert_eq!(told(service.oneshot(event).await.unwrap_err()).0, "LockInvalid");
    assert_eq!(host.requests(), 0);
}

/// Is ready for one call at a time, and for none if it is broken.
#[derive(Debug, Default)]
struct OneByOne {
    is_broken: bool,
    is_ready: bool,
}

impl Clone for OneByOne {
    /// A clone has to be asked by itself.
    fn clone(&self) -> Self {
        Self { is_broken: self.is_broken, is_ready: false }
    }
}

impl Service<LambdaEvent<Order>> for OneByOne {
    type Response = u32;
    type Error = Declined;
    type Future = Ready<Result<u32, Declined>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Declined>> {
        self.is_ready = !self.is_broken;
        Poll::Ready(if self.is_broken { Err(Declined) } else { Ok(()) })
    }

    fn call(&mut self, _: LambdaEvent<Order>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "it was not asked whether it is ready");
        ready(Ok(17))
    }
}

#[tokio::test]
async fn the_handler_that_was_asked_whether_it_is_ready_is_the_one_that_is_called() {
    let (_world, host, locks) = environment().await;
    let mut service = IdempotentLayer::new(invocations(&locks)).layer(OneByOne::default());
    for id in ["a", "b"] {
        let ready = service.ready().await.unwrap();
        assert_eq!(ready.call(invocation(&host, order(id))).await.unwrap(), 17);
    }
}

#[tokio::test]
async fn a_handler_that_is_not_ready_fails_with_its_own_error_and_nothing_is_sent() {
    let (_world, host, locks) = environment().await;
    let broken = OneByOne { is_broken: true, is_ready: false };
    let service = IdempotentLayer::new(invocations(&locks)).layer(broken);
    assert!(is_declined(&service.oneshot(invocation(&host, order("a"))).await));
    assert_eq!(host.requests(), 0);
}

// behaviours 66, 81
#[tokio::test(flavor = "multi_thread")]
async fn of_many_invocations_at_once_in_one_environment_one_runs_for_each_key() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let service = IdempotentLayer::new(invocations(&locks).wait(eagerly())).layer(service_fn({
        let runs = runs.clone();
        move |event: LambdaEvent<Order>| {
            let runs = runs.clone();
            async move {
                sleep(ms(20)).await;
                runs.count();
                Ok::<_, Declined>(event.payload.id.unwrap())
            }
        }
    }));
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..60 {
        let (call, id) = (service.clone(), format!("order {}", index % 6));
        let event = invocation(&host, order(&id));
        calls.spawn(async move { assert_eq!(call.oneshot(event).await.unwrap(), id) });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    assert_eq!(runs.get(), 6);
}

// Where the user's own code, or someone else's, does the unexpected

// behaviour 65
#[tokio::test]
async fn work_that_must_not_repeat_does_not_repeat_either_when_a_renewal_moved_its_lease() {
    let (world, _host, locks) = environment().await;
    let window = Duration::from_hours(14 * 24);
    let refusing = |locks: &Locks| orders(locks).window(window).on_timeout(OnTimeout::Reject);
    let (mine, begun) = (refusing(&locks), Notify::new());
    let input = order("a");
    let run = mine.run(&input, async |run| {
        run.lock().renew(Duration::from_mins(1)).await.unwrap();
        begun.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = begun.notified() => {}
    }
    let row = world.row("a").await.unwrap();
    assert!(number_in(&row, "expiration") * 1000 >= number_in(&row, "acquired_at") + millis_of(window));
    let runs = Counter::default();
    let in_two_days = refusing(&later(&world, Duration::from_hours(48)));
    assert!(refused(place(&in_two_days, &order("a"), &runs).await).is_unfinished());
    assert_eq!(runs.get(), 0);
}

fn millis_of(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}

/// A result that panics when it is turned into JSON.
#[derive(Debug, serde::Deserialize)]
struct Brittle;

impl serde::Serialize for Brittle {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("in the result")
    }
}

// behaviour 65
#[tokio::test]
async fn work_that_must_not_repeat_does_not_repeat_either_when_what_comes_after_it_panics() {
    let (world, _host, locks) = environment().await;
    let brittle: Orders<Brittle> = orders(&locks).on_timeout(OnTimeout::Reject);
    let run = AssertUnwindSafe(async { brittle.run(&order("a"), async |_| Ok(Brittle)).await });
    assert!(run.catch_unwind().await.is_err());
    let policy: Orders<u32> = orders(&locks).on_timeout(OnTimeout::Reject).on_error(|Declined| panic!("in the policy"));
    let run = AssertUnwindSafe(async { policy.run(&order("b"), async |_| Err(Declined)).await });
    assert!(run.catch_unwind().await.is_err());
    let again: Orders<u32> = orders(&later(&world, AFTER_THE_LEASE)).on_timeout(OnTimeout::Reject);
    for id in ["a", "b"] {
        let runs = Counter::default();
        assert!(refused(place(&again, &order(id), &runs).await).is_unfinished(), "{id}");
    }
}

// behaviour 83
#[tokio::test]
async fn an_error_is_not_stored_where_powertools_would_replay_it_as_a_success() {
    let (world, _host, locks) = environment().await;
    for format in [RecordFormat::PowertoolsPython, RecordFormat::PowertoolsTypeScript] {
        let (orders, runs) = (storing(&locks).format(format), Counter::default());
        for _ in 0..2 {
            assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
        }
        assert_eq!(runs.get(), 2);
    }
    drop(world);
}

// behaviour 69
#[tokio::test]
async fn with_locking_switched_off_nothing_about_the_record_stands_in_the_way() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let (orders, runs) = (orders(&locks), Counter::default());
    place(&orders, &order_without_id(), &runs).await.unwrap();
    place(&orders, &order(&"x".repeat(5000)), &runs).await.unwrap();
    place(&orders.window(Duration::ZERO), &order("a"), &runs).await.unwrap();
    assert_eq!((runs.get(), host.requests()), (3, 0));
}

// behaviours 70, 83
#[tokio::test]
async fn a_record_that_powertools_completed_over_a_run_is_lost_to_it_and_left() {
    let (world, host, locks) = environment().await;
    keep_log();
    let orders: Orders<u32> = orders(&locks);
    let mine = async |_: &Run| {
        let mut theirs = world.row("completed elsewhere").await.unwrap();
        theirs.insert("status".to_owned(), text("COMPLETED"));
        theirs.insert("data".to_owned(), text("18"));
        theirs.insert("expiration".to_owned(), number(seconds(&host) + 3600));
        world.put_row(theirs).await;
        Ok(17)
    };
    assert_eq!(orders.run(&order("completed elsewhere"), mine).await.unwrap(), 17);
    assert_eq!(string_in(&world.row("completed elsewhere").await.unwrap(), "data"), "18");
    assert!(logged("completed elsewhere").iter().any(|line| line.contains("WARN") && line.contains("lost: ")));
}

// behaviour 64
#[tokio::test]
async fn a_stored_error_is_not_shown_when_the_record_is_printed() {
    let (_world, _host, locks) = environment().await;
    let secret: Orders<u32> = validated(&locks).on_error(|Declined| OnError::Store(StoredError::new("T", "card 4242")));
    assert!(is_declined(&decline(&secret, &order("a"), &Counter::default()).await));
    let other = Order { amount: 6, ..order("a") };
    let mismatch = refused(place(&secret, &other, &Counter::default()).await);
    assert!(mismatch.is_mismatch());
    assert!(!format!("{mismatch:?}").contains("4242"), "{mismatch:?}");
    let holder = locks.get("a").await.unwrap().unwrap();
    assert!(!format!("{holder:?}").contains("4242"));
}

// behaviour 68
#[tokio::test]
async fn a_cache_may_be_as_large_as_can_be() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(usize::MAX), Counter::default());
    for _ in 0..2 {
        assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 2);
}

// behaviour 61
#[tokio::test]
async fn work_without_a_record_is_not_bound_by_a_lease() {
    let (_world, _host, locks) = environment().await;
    let keyless: Orders<u32> = Idempotency::new(locks, OnMissingKey::RunUnprotected, |order: &Order| order.id.clone());
    let slow = async |_: &Run| {
        sleep(ms(50)).await;
        Ok(17)
    };
    assert_eq!(keyless.lease(ms(10)).run(&order_without_id(), slow).await.unwrap(), 17);
}

// behaviour 65
#[tokio::test]
async fn a_deadline_outside_of_the_middleware_ends_the_lease() {
    let (world, host, locks) = environment().await;
    let deadline = host.now() + Duration::from_secs(10);
    let orders: Orders<u32> = orders(&locks).until(deadline);
    let mut end = 0;
    let body = async |_: &Run| {
        end = number_in(&world.row("a").await.unwrap(), "in_progress_expiration");
        Ok(17)
    };
    orders.run(&order("a"), body).await.unwrap();
    let expected = millis(deadline + CLOCK_SKEW);
    assert!((expected..=expected + 1).contains(&end), "{end} is not {expected}");
}

#[tokio::test]
async fn a_handler_that_wants_the_run_can_be_tested_by_itself() {
    async fn handler(WithRun { input, run, .. }: WithRun<u32>) -> Result<u32, Declined> {
        tokio::task::yield_now().await;
        Ok(input + u32::from(run.lock().is_enforced()))
    }
    let (_world, _host, locks) = environment().await;
    let result = orders(&locks).run(&order("a"), async |run| handler(WithRun::new(16, run.clone())).await).await;
    assert_eq!(result.unwrap(), 17);
}

/// A result with a float, wherever a float can be.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
enum Measured {
    Single(f32),
    Pair(f64, f64),
    Named { value: Option<f64> },
    List(Vec<Option<f64>>),
    Map(HashMap<String, f64>),
    Nested(Box<Measured>),
    Tuple((u8, [f32; 2])),
    Nothing,
}

fn measurements(float: f64) -> Vec<Measured> {
    #[expect(clippy::cast_possible_truncation, reason = "none of them is anything but a special value")]
    let single = float as f32;
    let map = |float| HashMap::from([("a".to_owned(), 1.0), ("b".to_owned(), float)]);
    vec![
        Measured::Single(single),
        Measured::Pair(1.0, float),
        Measured::Named { value: Some(float) },
        Measured::List(vec![None, Some(float)]),
        Measured::Map(map(float)),
        Measured::Nested(Box::new(Measured::Nested(Box::new(Measured::Pair(float, 0.0))))),
        Measured::Tuple((1, [0.0, single])),
    ]
}

const FORMATS: [RecordFormat; 4] =
    [RecordFormat::Plain, RecordFormat::Hashed, RecordFormat::PowertoolsPython, RecordFormat::PowertoolsTypeScript];

// behaviour 75
#[tokio::test]
async fn a_result_with_a_float_that_is_not_finite_cannot_be_stored() {
    for format in FORMATS {
        let (_world, _host, locks) = environment().await;
        let measure: Orders<Measured> = orders(&locks).format(format);
        let mut number = 0;
        for float in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for result in measurements(float) {
                number += 1;
                let outcome = measure.run(&order(&number.to_string()), async |_| Ok(result.clone())).await;
                let error = refused(outcome);
                assert!(
                    error.is_unusable_result() && error.to_string().contains("finite"),
                    "{format:?} {result:?}: {error}"
                );
            }
        }
        // What is finite, or nothing, is stored.
        for result in measurements(0.5).into_iter().chain([Measured::Named { value: None }, Measured::Nothing]) {
            number += 1;
            let first = measure.run(&order(&number.to_string()), async |_| Ok(result)).await.unwrap();
            let again = measure.run(&order(&number.to_string()), async |_| panic!("it runs again")).await.unwrap();
            assert_eq!(first, again);
        }
    }
}

// behaviour 75
#[tokio::test]
async fn a_float_that_is_not_finite_is_no_key_of_a_map_either() {
    #[derive(Debug, serde::Deserialize)]
    struct ByFloat;
    impl serde::Serialize for ByFloat {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serde::Serializer::serialize_map(serializer, None)?;
            serde::ser::SerializeMap::serialize_entry(&mut map, &f64::NAN, &1)?;
            serde::ser::SerializeMap::end(map)
        }
    }
    let (_world, _host, locks) = environment().await;
    let measure: Orders<ByFloat> = orders(&locks);
    assert!(refused(measure.run(&order("a"), async |_| Ok(ByFloat)).await).is_unusable_result());
}

// behaviour 75
#[tokio::test]
async fn a_result_with_a_float_that_is_not_finite_can_be_left_out() {
    let (world, _host, locks) = environment().await;
    let measure: Orders<Option<f64>> = orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
    assert!(measure.run(&order("a"), async |_| Ok(Some(f64::NAN))).await.unwrap().unwrap().is_nan());
    let row = world.row("a").await.unwrap();
    assert_eq!((string_in(&row, "status"), row.contains_key("data")), ("COMPLETED", false));
}

/// Lists in each other.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
struct Deep(Vec<Deep>);

impl Deep {
    fn of(levels: usize) -> Self {
        (1..levels).fold(Self(Vec::new()), |inner, _| Self(vec![inner]))
    }

    fn levels(&self) -> usize {
        1 + self.0.first().map_or(0, Self::levels)
    }
}

// behaviour 75
#[tokio::test]
async fn a_result_nested_deeper_than_it_could_be_read_cannot_be_stored() {
    for (format, most) in FORMATS.into_iter().zip([127, 127, 127, 31]) {
        let (_world, _host, locks) = environment().await;
        let trees: Orders<Deep> = orders(&locks).format(format);
        trees.run(&order("a"), async |_| Ok(Deep::of(most))).await.unwrap();
        let replayed = trees.run(&order("a"), async |_| panic!("it runs again")).await.unwrap();
        assert_eq!(replayed.levels(), most);
        let error = refused(trees.run(&order("b"), async |_| Ok(Deep::of(most + 1))).await);
        assert!(error.is_unusable_result() && error.to_string().contains(&format!("{most} levels")), "{error}");
    }
}

// behaviours 75, 79
#[tokio::test]
async fn what_cannot_be_stored_cannot_be_completed_in_a_transaction_either() {
    let (_world, _host, locks) = environment().await;
    let orders: Orders<u32> = orders(&locks);
    let body = async |run: &Run| {
        let why = run.complete_in(&f32::NAN).unwrap_err();
        assert!(why.is_unusable_result() && why.to_string().contains("finite"), "{why}");
        let why = run.complete_in(&Deep::of(128)).unwrap_err();
        assert!(why.is_unusable_result() && why.to_string().contains("127 levels"), "{why}");
        Ok(17)
    };
    assert_eq!(orders.run(&order("a"), body).await.unwrap(), 17);
    assert_eq!(orders.run(&order("a"), async |_| panic!("it runs again")).await.unwrap(), 17);
}

// behaviour 83
#[tokio::test]
async fn an_integer_of_python_that_64_bits_cannot_hold_is_not_rounded() {
    let (world, host, locks) = environment().await;
    let data = text(r#"{"id": 123456789012345678901}"#);
    world.put_row(completed(&host, [("id", text("orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90")), ("data", data)])).await;
    let orders: Orders<Value> = orders(&locks).format(RecordFormat::PowertoolsPython).prefix("orders");
    let error = refused(orders.run(&order("abc"), async |_| panic!("it runs again")).await);
    assert!(error.is_unusable_result() && error.to_string().contains("64 bits"), "{error}");
    assert!(!error.to_string().contains("123456"), "{error}");
}

// behaviour 61
#[tokio::test]
async fn a_prefix_with_a_number_sign_is_refused_where_a_key_could_be_that_of_another_prefix() {
    let (_world, host, locks) = environment().await;
    let error = refused(place(&orders(&locks).prefix("orders#refunds"), &order("7"), &Counter::default()).await);
    assert!(error.is_invalid(), "{error}");
    for part in ["`orders#refunds`", "`#`", "RecordFormat::Hashed"] {
        assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
    }
    assert_eq!(host.requests(), 0);
    for format in &FORMATS[1..] {
        let hashed = orders(&locks).format(*format).prefix("orders#refunds");
        place(&hashed, &order("7"), &Counter::default()).await.unwrap();
    }
}

// behaviour 11
#[tokio::test]
async fn nothing_that_is_printed_for_debugging_has_a_payload_a_result_or_a_digest_in_it() {
    let (world, host, locks) = environment().await;
    let printed = Mutex::new(Vec::new());
    let print = |what: &dyn Debug| printed.lock().unwrap().extend([format!("{what:?}"), format!("{what:#?}")]);
    let secret = || "4111 1111".to_owned();

    // Events and messages.
    let mut record = aws_lambda_events::sqs::SqsMessage::default();
    record.message_id = Some("message 1".to_owned());
    let mut attribute = aws_lambda_events::sqs::SqsMessageAttribute::default();
    attribute.string_value = Some(secret());
    record.message_attributes.insert("card".to_owned(), attribute);
    record.attributes.insert("MessageDeduplicationId".to_owned(), secret());
    let message = lambda_lock::Message::new(secret(), record);
    print(&message);
    let lock = Arc::new(locks.acquire("lock").data(secret()).await.unwrap());
    let mut event = invocation(&host, secret());
    event.context.client_context = serde_json::from_value(json!({
        "client": {
            "installationId": "", "appTitle": "", "appVersionName": "", "appVersionCode": "", "appPackageName": ""
        },
        "custom": { "card": secret() }, "environment": {}
    }))
    .unwrap();
    print(&lambda_lock::LockedEvent::new(event, Arc::clone(&lock)));
    print(&lock);
    print(&lock.data());

    // Runs, records, errors.
    let declining = validated(&locks).on_error(|Declined| OnError::Store(StoredError::new("Declined", "4111 1111")));
    print(&declining);
    decline(&declining, &order("a"), &Counter::default()).await.unwrap_err();
    let replayed = place(&declining, &order("a"), &Counter::default()).await.unwrap_err();
    assert!(matches!(&replayed, HandlerError::Replayed(_)));
    print(&replayed);
    print(&OnError::Store(StoredError::new("Declined", secret())));
    let mismatch = place(&declining, &Order { amount: 6, ..order("a") }, &Counter::default()).await.unwrap_err();
    print(&mismatch);
    let paid: Orders<String> = orders(&locks).validate(|order| order.amount);
    paid.run(&order("b"), async |run| {
        print(&run);
        print(&WithRun::new(secret(), run.clone()));
        Ok(secret())
    })
    .await
    .unwrap();
    let unreadable: Orders<u32> = orders(&locks);
    print(&place(&unreadable, &order("b"), &Counter::default()).await.unwrap_err());
    for key in ["a", "b", "lock"] {
        print(&locks.get(key).await.unwrap());
    }
    let mut list = locks.list();
    while let Some(rows) = list.next_page().await.unwrap() {
        print(&rows);
    }
    lock.release().await.unwrap();

    let digest = string_in(&world.row("b").await.unwrap(), "validation").to_owned();
    let printed = printed.into_inner().unwrap();
    for text in &printed {
        assert!(!text.contains("4111 1111") && !text.contains(&digest), "{text}");
    }
    // They say something all the same.
    for what in ["message 1", "request-1", "Declined", "another payload", "stored result"] {
        assert!(printed.iter().any(|text| text.contains(what)), "{what}");
    }
}

// behaviour 11
#[tokio::test]
async fn an_error_that_is_printed_for_debugging_is_its_message_and_what_dynamodb_said() {
    let (world, _host, locks) = environment().await;
    let _held = locks.acquire("a").await.unwrap();
    let held = locks.acquire("a").await.unwrap_err();
    assert_eq!(format!("{held:?}"), held.to_string());
    let told = held.to_string();
    assert_eq!(format!("{:?}", HandlerError::<Declined>::Lock(held)), told);
    assert_eq!(format!("{:?}", HandlerError::Handler(Declined)), "Declined");
    let elsewhere = Locks::builder(world.client(), "no-such-table").build().unwrap();
    let missing = elsewhere.acquire("a").await.unwrap_err();
    let printed = format!("{missing:?}");
    assert!(printed.starts_with(&missing.to_string()) && printed.contains("ResourceNotFoundException"), "{printed}");
    assert!(printed.len() < 500 && !printed.contains("Inner"), "{printed}");
}
