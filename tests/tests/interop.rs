//! One table, three languages: the same function in Rust and in Powertools for AWS Lambda, for Python and for TypeScript,
//! which are the real ones. What they need, and when they are skipped, is said in `tests/src/powertools.rs`. The time is
//! real; where a lease or a window is to be over, a host's clock is wrong.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Error, HandlerError, Idempotency, OnError, OnMissingKey, OnUnstorableResult, Run, StoredError};
use lambda_lock_tests::invocation::{keep_log, logged, told};
use lambda_lock_tests::powertools::{Language, Powertools};
use lambda_lock_tests::{Row, World};
use lambda_runtime::Diagnostic;
use serde_json::{Value, json};
use tokio::sync::{Barrier, Notify};

/// The defaults on our side.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);
/// The default on both sides, and for Powertools also what stands for a lease where there is no Lambda context.
const WINDOW: Duration = Duration::from_hours(1);
/// When everyone sees that it is over: it is kept in whole seconds, rounded up, and Powertools wants it to be before now.
const AFTER_THE_WINDOW: Duration = WINDOW.saturating_add(Duration::from_secs(2));
const AFTER_THE_LEASE: Duration = LEASE.saturating_add(CLOCK_SKEW);
/// When nobody does, however long the machine takes for the rest of a test.
const WITHIN_THE_WINDOW: Duration = WINDOW.saturating_sub(MARGIN);
const WITHIN_THE_LEASE: Duration = LEASE.saturating_sub(MARGIN);
const MARGIN: Duration = Duration::from_secs(20);

/// What Powertools is told about its Lambda context, so that its lease is as long as ours.
const LEASE_IN_CONTEXT: [&str; 2] = ["--remaining-ms", "30000"];
const VALIDATE_AMOUNT: [&str; 2] = ["--validate", "amount"];

/// The two functions, on a table of their own.
struct Sides {
    powertools: Powertools,
    language: Language,
    world: World,
}

/// An order says what the function is to do with it. This is what it does in Rust; `tests/interop` has the others.
type Orders = Idempotency<Value, Value, Failed>;

#[derive(Debug)]
struct Failed;

impl From<Failed> for Diagnostic {
    fn from(_: Failed) -> Self {
        Self { error_type: "OrderFailed".to_owned(), error_message: "as the order says".to_owned() }
    }
}

async fn with_each_language(test: impl AsyncFn(Sides)) {
    let Some(powertools) = Powertools::find() else { return };
    for language in Language::ALL {
        eprintln!("{language:?}");
        Box::pin(test(Sides { powertools: powertools.clone(), language, world: World::new().await })).await;
    }
}

impl Sides {
    fn ours(&self) -> Orders {
        self.ours_on(&self.world.host().build())
    }

    fn ours_on(&self, host: &Host) -> Orders {
        let locks = self.world.locks(host).build().unwrap();
        Idempotency::new(locks, OnMissingKey::Reject, |order: &Value| Some(order["id"].clone()))
            .format(self.language.format())
            .prefix("orders")
    }

    /// Ours as it is on a host whose clock is ahead: what it does that much later.
    fn ours_later(&self, by: Duration) -> Orders {
        self.ours_on(&self.world.host().clock_ahead(by).build())
    }

    /// Ours as it was on a host whose clock is behind: what it did that long ago.
    fn ours_earlier(&self, by: Duration) -> Orders {
        self.ours_on(&self.world.host().clock_behind(by).build())
    }

    /// Has Powertools place these orders.
    async fn theirs(&self, options: &[&str], orders: &[Value]) -> Vec<Value> {
        self.powertools.place(self.language, &self.world, options, orders).await
    }

    /// Leaves a record in progress: theirs, whose process ended.
    async fn crash_theirs(&self, options: &[&str], id: &str) {
        assert_eq!(self.theirs(options, &[json!({"id": id, "crash": true})]).await, [json!({"ran": true})]);
    }

    /// All there is in the table.
    async fn rows(&self) -> BTreeMap<String, Row> {
        let scan = self.world.client().scan().table_name(&self.world.table).consistent_read(true);
        let rows = scan.send().await.unwrap().items.unwrap();
        rows.into_iter().map(|row| (row["id"].as_s().unwrap().clone(), row)).collect()
    }
}

/// Has our function place an order.
async fn place(orders: &Orders, order: &Value) -> Value {
    let mut ran = false;
    let outcome = orders
        .run(order, async |_| {
            ran = true;
            if order["fail"] == true { Err(Failed) } else { Ok(order["result"].clone()) }
        })
        .await;
    match outcome {
        Ok(result) => json!({"ran": ran, "result": result}),
        Err(error) => json!({"ran": ran, "error": told(error).0}),
    }
}

async fn place_all(ours: &Orders, orders: &[Value]) -> Vec<Value> {
    let mut answers = Vec::new();
    for order in orders {
        answers.push(place(ours, order).await);
    }
    answers
}

/// Leaves a record in progress: ours, whose host crashed.
async fn crash(host: &Host, orders: &Orders, id: &str) {
    let begun = Notify::new();
    let order = json!({"id": id});
    let run = orders.run(&order, async |_| {
        host.crash();
        begun.notify_one();
        pending().await
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = begun.notified() => {}
    }
}

fn order(id: &str, result: &str) -> Value {
    json!({"id": id, "amount": 5, "result": result})
}

fn ran(result: &Value) -> Value {
    json!({"ran": true, "result": result})
}

fn replayed(result: &Value) -> Value {
    json!({"ran": false, "result": result})
}

fn refused(error: &str) -> Value {
    json!({"ran": false, "error": error})
}

fn refused_here() -> Value {
    refused("IdempotencyInProgress")
}

/// Why ours did not run.
async fn refusal(orders: &Orders, id: &str) -> Error {
    match orders.run(&json!({"id": id}), async |_| panic!("it ran")).await {
        Err(HandlerError::Lock(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The same orders, whose result would be another one.
fn again(orders: &[Value]) -> Vec<Value> {
    let mut orders = orders.to_vec();
    for order in &mut orders {
        order["result"] = json!("another result");
    }
    orders
}

fn number_in(row: &Row, name: &str) -> Option<u64> {
    row.get(name).map(|value| value.as_n().unwrap().parse().unwrap())
}

// Results

/// Orders with results of all kinds, and with a payload of all kinds to validate.
fn orders_with_results(language: Language) -> Vec<Value> {
    let mut results = vec![
        json!({"b": 1, "a": [1, 2.5, "é", {"c": [[], {}]}], "z": null, "y": true}),
        json!([null, [1, [2]], {"a": ""}]),
        json!("text"),
        json!("é😀 \" \\ / \n \u{7f} \u{2028}"),
        json!("{\"json\": \"in a string\"}"),
        json!(7),
        json!(-3),
        json!(2.5),
        json!(0.1 + 0.2),
        json!(1e-7),
        json!(9_007_199_254_740_991_u64),
        json!(true),
        json!(null),
        json!(false),
        json!(0),
        json!(""),
        json!([]),
        json!({}),
    ];
    if language == Language::Python {
        results.extend([json!(u64::MAX), json!(i64::MIN), json!(1.0), json!(1e18), json!({"": "an empty key"})]);
    }
    let order = |(number, result)| json!({"id": format!("order {number}"), "amount": result, "result": result});
    results.into_iter().enumerate().map(order).collect()
}

// behaviours 60, 63, 83
#[tokio::test]
async fn what_ran_in_rust_is_replayed_by_powertools_with_the_same_result() {
    with_each_language(async |sides| {
        let orders = orders_with_results(sides.language);
        let ours = sides.ours().validate(|order| order["amount"].clone());
        let expected: Vec<_> = orders.iter().map(|order| ran(&order["result"])).collect();
        assert_eq!(place_all(&ours, &orders).await, expected);
        let rows = sides.rows().await;
        let answers = sides.theirs(&VALIDATE_AMOUNT, &again(&orders)).await;
        assert_eq!(answers.len(), orders.len());
        for (order, answer) in orders.iter().zip(answers) {
            let result = &order["result"];
            // Python takes these for no result.
            let is_nothing = [json!(false), json!(0), json!(""), json!([]), json!({})].contains(result);
            let seen = if sides.language == Language::Python && is_nothing { &Value::Null } else { result };
            assert_eq!(answer, replayed(seen));
        }
        assert_eq!(sides.rows().await, rows);
    })
    .await;
}

// behaviours 60, 63, 83
#[tokio::test]
async fn what_powertools_ran_is_replayed_in_rust_with_the_same_result() {
    with_each_language(async |sides| {
        let orders = orders_with_results(sides.language);
        let expected: Vec<_> = orders.iter().map(|order| ran(&order["result"])).collect();
        assert_eq!(sides.theirs(&VALIDATE_AMOUNT, &orders).await, expected);
        let rows = sides.rows().await;
        let ours = sides.ours().validate(|order| order["amount"].clone());
        let expected: Vec<_> = orders.iter().map(|order| replayed(&order["result"])).collect();
        assert_eq!(place_all(&ours, &again(&orders)).await, expected);
        assert_eq!(sides.rows().await, rows);
    })
    .await;
}

// behaviours 75, 79, 83
#[tokio::test]
async fn what_rust_completed_in_a_transaction_or_without_its_result_does_not_run_in_powertools() {
    with_each_language(async |sides| {
        let ours = sides.ours().on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
        let client = sides.world.client();
        let result = json!({"by": "a transaction"});
        let committed = async |run: &Run| {
            let completion = run.complete_in(&result).unwrap();
            client.transact_write_items().transact_items(completion).send().await.unwrap();
            Ok(result.clone())
        };
        let outcome = Box::pin(ours.run(&json!({"id": "committed"}), committed)).await;
        assert_eq!(outcome.unwrap(), result);
        let too_large = json!("x".repeat(400 * 1024));
        assert_eq!(place(&ours, &json!({"id": "too large", "result": too_large})).await, ran(&too_large));
        let orders = ["committed", "too large"].map(|id| order(id, "theirs"));
        assert_eq!(sides.theirs(&[], &orders).await, [replayed(&result), replayed(&Value::Null)]);
    })
    .await;
}

// behaviours 63, 83
#[tokio::test]
async fn another_payload_than_that_of_the_first_run_is_a_mismatch_on_both_sides() {
    with_each_language(async |sides| {
        let ours = sides.ours().validate(|order| order["amount"].clone());
        let (first, second) = (order("ours first", "ours"), order("theirs first", "theirs"));
        let (mut other_first, mut other_second) = (first.clone(), second.clone());
        other_first["amount"] = json!(5.5);
        other_second["amount"] = json!(null);
        place(&ours, &first).await;
        assert_eq!(
            sides.theirs(&VALIDATE_AMOUNT, &[other_first, second]).await,
            [refused("IdempotencyValidationError"), ran(&json!("theirs"))]
        );
        assert_eq!(place(&ours, &other_second).await, refused("IdempotencyMismatch"));
    })
    .await;
}

// Keys

fn keys(language: Language) -> Vec<Value> {
    let mut keys = vec![
        json!("abc"),
        json!("é😀 \" \\ / \n \u{7f} \u{2028}"),
        json!("5"),
        json!(5),
        json!(-3),
        json!(0),
        json!(true),
        json!(1.5),
        json!(0.1 + 0.2),
        json!(-1e-7),
        json!(["abc", 5, null, ["é"]]),
        json!({"user": "é", "Amount": 1.25, "b": [1, 2], "10": 1, "9": 2}),
        json!({"Z": {"b": 1, "A": [{"d": null, "C": 2}]}, "y": false, "é": {}}),
    ];
    if language == Language::Python {
        keys.extend([json!(u64::MAX), json!(1.0), json!(1e16), json!(123_456_789.0e-12), json!({"a": 1, "A": 2})]);
    } else {
        keys.extend([json!(9_007_199_254_740_991_u64), json!(123_456_789.0e-14)]);
    }
    keys
}

// behaviours 62, 83
#[tokio::test]
async fn each_key_is_the_same_on_both_sides_and_no_other_one() {
    with_each_language(async |sides| {
        let orders: Vec<_> =
            keys(sides.language).into_iter().map(|key| json!({"id": key, "result": {"of": key}})).collect();
        for (prefix, we_are_first) in [("ours first", true), ("après", false)] {
            let ours = sides.ours().prefix(prefix);
            let theirs = async |orders: &[Value]| sides.theirs(&["--prefix", prefix], orders).await;
            let (first, second) = if we_are_first {
                (place_all(&ours, &orders).await, theirs(&again(&orders)).await)
            } else {
                (theirs(&orders).await, place_all(&ours, &again(&orders)).await)
            };
            let results = || orders.iter().map(|order| &order["result"]);
            assert_eq!(first, results().map(ran).collect::<Vec<_>>());
            assert_eq!(second, results().map(replayed).collect::<Vec<_>>());
        }
        assert_eq!(sides.rows().await.len(), 2 * orders.len());
    })
    .await;
}

// behaviours 61, 62, 83
#[tokio::test]
async fn an_event_as_a_whole_is_the_same_key_on_both_sides() {
    with_each_language(async |sides| {
        let ours = sides.ours();
        let locks = sides.world.default_locks();
        let whole: Orders = Idempotency::new(locks, OnMissingKey::Reject, |order: &Value| Some(order.clone()))
            .format(sides.language.format())
            .prefix("orders");
        let (first, second) = (order("é 1", "ours"), order("é 2", "theirs"));
        assert_eq!(place(&whole, &first).await, ran(&json!("ours")));
        assert_eq!(
            sides.theirs(&["--event-key", ""], &[first.clone(), second.clone()]).await,
            [replayed(&json!("ours")), ran(&json!("theirs"))]
        );
        assert_eq!(place(&whole, &second).await, replayed(&json!("theirs")));
        assert_eq!(place(&ours, &first).await, ran(&json!("ours")));
    })
    .await;
}

// Work in progress

// behaviours 66, 77, 83
#[tokio::test]
async fn what_powertools_has_in_progress_is_refused_in_rust_until_its_lease_ends_and_then_runs() {
    with_each_language(async |sides| {
        let started = sides.world.host().build().now();
        sides.crash_theirs(&LEASE_IN_CONTEXT, "crashed").await;
        let refused = refusal(&sides.ours(), "crashed").await;
        assert!(refused.is_in_progress(), "{refused}");
        let holder = refused.holder().unwrap();
        assert!(holder.until() >= started + LEASE && holder.until() < started + LEASE + MARGIN, "{holder}");
        assert_eq!((holder.name(), holder.fence()), (None, None));
        assert_eq!(place(&sides.ours_later(WITHIN_THE_LEASE), &order("crashed", "ours")).await, refused_here());

        let ours = sides.ours_later(AFTER_THE_LEASE);
        assert_eq!(place(&ours, &order("crashed", "ours")).await, ran(&json!("ours")));
        assert_eq!(sides.theirs(&[], &[order("crashed", "theirs")]).await, [replayed(&json!("ours"))]);
    })
    .await;
}

// behaviours 66, 83
#[tokio::test]
async fn what_powertools_has_in_progress_without_a_lease_is_refused_in_rust_until_its_window_ends_and_then_runs() {
    with_each_language(async |sides| {
        sides.crash_theirs(&[], "crashed").await;
        assert_eq!(number_in(sides.rows().await.values().next().unwrap(), "in_progress_expiration"), None);
        for ours in [sides.ours(), sides.ours_later(WITHIN_THE_WINDOW)] {
            assert_eq!(place(&ours, &order("crashed", "ours")).await, refused_here());
        }
        let ours = sides.ours_later(AFTER_THE_WINDOW);
        assert_eq!(place(&ours, &order("crashed", "ours")).await, ran(&json!("ours")));
        assert_eq!(sides.theirs(&[], &[order("crashed", "theirs")]).await, [replayed(&json!("ours"))]);
    })
    .await;
}

// behaviours 66, 83
#[tokio::test]
async fn what_rust_has_in_progress_is_refused_by_powertools_and_its_result_is_stored_all_the_same() {
    with_each_language(async |sides| {
        let ours = sides.ours();
        let order = order("under way", "ours");
        let outcome = ours
            .run(&order, async |_| {
                let theirs = sides.theirs(&LEASE_IN_CONTEXT, &again(std::slice::from_ref(&order))).await;
                assert_eq!(theirs, [refused("IdempotencyAlreadyInProgressError")]);
                Ok(order["result"].clone())
            })
            .await;
        assert_eq!(outcome.unwrap(), "ours");
        assert_eq!(place(&ours, &order).await, replayed(&json!("ours")));
    })
    .await;
}

// behaviours 42, 56, 83
#[tokio::test]
async fn what_rust_left_in_progress_is_refused_by_powertools_until_its_lease_ends_and_then_runs() {
    with_each_language(async |sides| {
        for (id, ago) in
            [("crashed now", Duration::ZERO), ("lease not over", WITHIN_THE_LEASE), ("lease over", AFTER_THE_LEASE)]
        {
            let host = sides.world.host().clock_behind(ago).build();
            crash(&host, &sides.ours_on(&host), id).await;
        }
        let orders = ["crashed now", "lease not over", "lease over"].map(|id| order(id, "theirs"));
        let in_progress = refused("IdempotencyAlreadyInProgressError");
        assert_eq!(
            sides.theirs(&LEASE_IN_CONTEXT, &orders).await,
            [in_progress.clone(), in_progress, ran(&json!("theirs"))]
        );
        assert_eq!(place(&sides.ours(), &order("lease over", "ours")).await, replayed(&json!("theirs")));
    })
    .await;
}

// behaviours 70, 83
#[tokio::test]
async fn a_run_in_rust_whose_record_powertools_took_over_finds_it_lost_and_leaves_the_row() {
    keep_log();
    with_each_language(async |sides| {
        // The lease of this host ended for everyone else while its work goes on. The key is in the log.
        let prefix = &*sides.world.table;
        let ours = sides.ours_earlier(AFTER_THE_LEASE).prefix(prefix);
        let orders = [order("completes", "theirs"), order("fails", "theirs"), json!({"id": "again", "crash": true})];
        let (under_way, taken_over) = (Barrier::new(4), Barrier::new(4));
        let run = async |order: &Value, outcome: Result<Value, Failed>| {
            let work = async |_: &Run| {
                under_way.wait().await;
                taken_over.wait().await;
                outcome
            };
            Box::pin(ours.run(order, work)).await
        };
        let takeover = async {
            under_way.wait().await;
            let options = [&LEASE_IN_CONTEXT[..], &["--prefix", prefix]].concat();
            let theirs = ran(&json!("theirs"));
            assert_eq!(sides.theirs(&options, &orders).await, [theirs.clone(), theirs, json!({"ran": true})]);
            let rows = sides.rows().await;
            taken_over.wait().await;
            rows
        };
        let (completed, failed, again, rows) = tokio::join!(
            run(&orders[0], Ok(json!("ours"))),
            run(&orders[1], Err(Failed)),
            run(&orders[2], Ok(json!("ours"))),
            takeover
        );
        assert_eq!((completed.unwrap(), again.unwrap()), (json!("ours"), json!("ours")));
        assert!(matches!(failed, Err(HandlerError::Handler(Failed))), "{failed:?}");
        assert_eq!(rows.len(), 3);
        assert_eq!(sides.rows().await, rows);
        let warnings: Vec<_> = logged(prefix).into_iter().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(
            warnings.iter().all(|line| line.contains("lost: ") && line.contains("to=an unnamed holder")),
            "{warnings:?}"
        );

        let ours = sides.ours().prefix(prefix);
        for order in &orders[..2] {
            assert_eq!(place(&ours, order).await, replayed(&json!("theirs")));
        }
        assert_eq!(place(&ours, &orders[2]).await, refused_here());
    })
    .await;
}

// What is over

// behaviours 64, 83
#[tokio::test]
async fn what_failed_on_one_side_runs_on_the_other_at_once() {
    with_each_language(async |sides| {
        let ours = sides.ours();
        let fails = |id: &str| json!({"id": id, "fail": true});
        let failed = json!({"ran": true, "error": "OrderFailed"});
        assert_eq!(place(&ours, &fails("ours failed")).await, failed);
        let orders = [order("ours failed", "theirs"), fails("theirs failed")];
        assert_eq!(sides.theirs(&LEASE_IN_CONTEXT, &orders).await, [ran(&json!("theirs")), failed]);
        assert_eq!(place(&ours, &order("theirs failed", "ours")).await, ran(&json!("ours")));
        assert_eq!(place(&ours, &order("ours failed", "ours")).await, replayed(&json!("theirs")));
    })
    .await;
}

// behaviours 64, 83
#[tokio::test]
async fn what_failed_in_rust_with_an_error_that_is_to_be_stored_runs_in_powertools_which_has_no_stored_errors() {
    with_each_language(async |sides| {
        let ours = sides.ours().on_error(|Failed| OnError::Store(StoredError::new("OrderFailed", "for good")));
        let failed = json!({"id": "failed", "fail": true});
        assert_eq!(place(&ours, &failed).await, json!({"ran": true, "error": "OrderFailed"}));
        assert_eq!(sides.theirs(&[], &[order("failed", "theirs")]).await, [ran(&json!("theirs"))]);
    })
    .await;
}

// behaviours 67, 83
#[tokio::test]
async fn what_ran_on_one_side_runs_on_the_other_when_its_window_has_passed_and_not_before() {
    with_each_language(async |sides| {
        place(&sides.ours_earlier(WITHIN_THE_WINDOW), &order("within", "ours")).await;
        place(&sides.ours_earlier(AFTER_THE_WINDOW), &order("after", "ours")).await;
        let orders = ["within", "after", "theirs"].map(|id| order(id, "theirs"));
        let theirs = json!("theirs");
        assert_eq!(
            sides.theirs(&LEASE_IN_CONTEXT, &orders).await,
            [replayed(&json!("ours")), ran(&theirs), ran(&theirs)]
        );
        assert_eq!(place(&sides.ours_later(WITHIN_THE_WINDOW), &order("theirs", "ours")).await, replayed(&theirs));
        assert_eq!(place(&sides.ours_later(AFTER_THE_WINDOW), &order("theirs", "ours")).await, ran(&json!("ours")));
    })
    .await;
}
