//! `IdempotencyLayer`: a handler behind a record.

use std::future::{pending, ready};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lambda_lock::idempotency::{OnMissingKey, StoredError};
use lambda_lock::{Idempotency, IdempotencyLayer, LockLayer, Locks, OnError, OnUnfinished, WithRun};
use lambda_lock_tests::invocation::{Counter, FUNCTION, OneByOne, by_tenant, invocation, invocation_with, reported};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{
    AFTER_THE_LEASE, Declined, LEASE, Order, TOO_LONG, commit, completed, crash, eagerly, environment, is_committed,
    is_declined, ms, number_in, order, order_without_id, orders, refusing, string_in, text,
};

type Invocations<T> = Idempotency<LambdaEvent<Order>, T, Declined>;

fn invocations<T>(locks: &Locks) -> Invocations<T> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |event: &LambdaEvent<Order>| event.payload.id.clone())
}

/// A handler that returns the number of its runs.
fn counting(
    runs: &Counter,
) -> impl Service<LambdaEvent<Order>, Response = u32, Error = Declined, Future: Send> + Clone + Send + 'static {
    let runs = runs.clone();
    service_fn(move |_: LambdaEvent<Order>| {
        let runs = runs.clone();
        async move { Ok(runs.count()) }
    })
}

#[tokio::test]
async fn a_duplicate_event_gets_the_first_answer_for_one_request() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let service = IdempotencyLayer::new(invocations(&locks)).layer(counting(&runs));
    for requests in [2, 3, 4] {
        assert_eq!(service.clone().oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
        assert_eq!(host.requests(), requests);
    }
    assert_eq!(service.oneshot(invocation(&host, order("b"))).await.unwrap(), 2);
}

#[tokio::test]
async fn invocations_in_one_environment_share_the_cache() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let layer = IdempotencyLayer::new(invocations(&locks).cache(10));
    // The runtime clones the service for concurrent invocations.
    for service in [layer.layer(counting(&runs)), layer.clone().layer(counting(&runs))] {
        assert_eq!(service.clone().oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
        assert_eq!(service.oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 2);
}

#[tokio::test]
async fn the_default_prefix_is_the_name_of_the_function() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    for settings in [invocations(&locks), invocations(&locks).prefix("shared"), invocations(&locks).prefix("")] {
        let service = IdempotencyLayer::new(settings).layer(counting(&runs));
        service.oneshot(invocation(&host, order("a"))).await.unwrap();
    }
    assert_eq!(runs.get(), 3);
    for id in ["orders#a", "shared#a", "a"] {
        assert!(world.row(id).await.is_some(), "{id}");
    }
}

#[tokio::test]
async fn an_invocation_of_a_durable_execution_is_refused_before_its_entry_runs() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let key = |event: &LambdaEvent<Value>| Some(event.payload["id"].clone());
    let layer = IdempotencyLayer::new(Idempotency::new(locks.clone(), OnMissingKey::Reject, key));
    let service = layer.layer(service_fn({
        let runs = runs.clone();
        move |_: LambdaEvent<Value>| ready(Ok::<_, Declined>(runs.count()))
    }));
    let of_execution = json!({ "id": "a", "DurableExecutionArn": "arn", "CheckpointToken": "token" });
    let (error_type, message) = reported(service.clone().oneshot(invocation(&host, of_execution)).await.unwrap_err());
    assert_eq!(error_type, "LockInvalid");
    assert!(message.contains("durable execution") && message.contains("step"), "{message}");
    assert_eq!((runs.get(), host.requests()), (0, 0));
    let of_another_function = json!({ "id": "a", "DurableExecutionArn": "arn" });
    assert_eq!(service.oneshot(invocation(&host, of_another_function)).await.unwrap(), 1);
}

#[tokio::test]
async fn the_record_ends_at_the_deadline_and_names_the_invocation() {
    let (world, host, locks) = environment().await;
    let event = invocation_with(&host, order("a"), Duration::from_mins(14));
    let deadline = event.context.deadline;
    let world = Arc::new(world);
    let service = IdempotencyLayer::new(invocations(&locks)).layer(service_fn({
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

#[tokio::test]
async fn each_refusal_has_its_own_error_type() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let call = async |settings: Invocations<u32>, order: Order| {
        let service = IdempotencyLayer::new(settings).layer(counting(&runs));
        reported(service.oneshot(invocation(&host, order)).await.unwrap_err()).0
    };
    let validating = |locks: &Locks| invocations::<u32>(locks).validate(|event| event.payload.amount);
    assert_eq!(call(invocations(&locks), order_without_id()).await, "IdempotencyKeyMissing");
    let service = IdempotencyLayer::new(validating(&locks)).layer(counting(&runs));
    service.oneshot(invocation(&host, order("a"))).await.unwrap();
    assert_eq!(call(validating(&locks), Order { amount: 6, ..order("a") }).await, "IdempotencyMismatch");
    let _other = locks.acquire("orders#b").await.unwrap();
    assert_eq!(call(invocations(&locks), order("b")).await, "IdempotencyInProgress");
    let crashed = world.host().build();
    crash(&crashed, &refusing(&world.locks(&crashed).build().unwrap()).prefix(FUNCTION), &order("c")).await;
    host.advance_clock(AFTER_THE_LEASE);
    assert_eq!(
        call(invocations(&locks).on_unfinished(OnUnfinished::Reject), order("c")).await,
        "IdempotencyUnfinished"
    );
    world.put_row(completed(&host, [("id", text("orders#d")), ("data", text("\"17\""))])).await;
    assert_eq!(call(invocations(&locks), order("d")).await, "IdempotencyUnusableResult");
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn an_error_reaches_lambda_unchanged_and_a_replayed_one_as_stored() {
    let (_world, host, locks) = environment().await;
    let settings: Invocations<u32> =
        invocations(&locks).on_error(|Declined| OnError::Store(StoredError::new("CardDeclined", "by the bank")));
    let service =
        IdempotencyLayer::new(settings).layer(service_fn(async |_: LambdaEvent<Order>| Err::<u32, _>(Declined)));
    let mut types = Vec::new();
    for _ in 0..2 {
        types.push(reported(service.clone().oneshot(invocation(&host, order("a"))).await.unwrap_err()));
    }
    let [first, second] = [("Declined", "by the handler itself"), ("CardDeclined", "by the bank")]
        .map(|(error_type, message)| (error_type.to_owned(), message.to_owned()));
    assert_eq!(types, [first, second]);
}

#[tokio::test]
async fn a_handler_that_takes_with_run_gets_its_run() {
    let (world, host, locks) = environment().await;
    let world = Arc::new(world);
    let service = IdempotencyLayer::new(invocations(&locks)).layer(service_fn({
        let world = Arc::clone(&world);
        move |WithRun { input, run, .. }: WithRun<LambdaEvent<Order>>| {
            let world = Arc::clone(&world);
            async move {
                let row = world.row("orders#a").await.unwrap();
                assert_eq!(number_in(&row, "fence"), run.lock().fence());
                Ok::<_, Declined>((input.payload.amount, run.lock().is_enforced()))
            }
        }
    }));
    assert_eq!(service.oneshot(invocation(&host, order("a"))).await.unwrap(), (5, true));
}

#[tokio::test]
async fn a_handler_can_complete_its_run_in_a_transaction() {
    let (world, host, locks) = environment().await;
    let world = Arc::new(world);
    let service = IdempotencyLayer::new(invocations(&locks)).layer(service_fn({
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

#[tokio::test]
async fn a_handler_that_panics_releases_the_record() {
    let (_world, host, locks) = environment().await;
    let layer = IdempotencyLayer::new(invocations(&locks));
    let panicking = layer.layer(service_fn(|_: LambdaEvent<Order>| -> BoxFuture<'static, Result<u32, Declined>> {
        panic!("in the call")
    }));
    let panic = AssertUnwindSafe(panicking.oneshot(invocation(&host, order("a")))).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the call"));
    let service = layer.layer(counting(&Counter::default()));
    assert_eq!(service.oneshot(invocation(&host, order("a"))).await.unwrap(), 1);
}

#[tokio::test]
async fn a_handler_is_cancelled_when_its_lease_ends() {
    let (_world, host, locks) = environment().await;
    let service = IdempotencyLayer::new(invocations(&locks).lease(ms(300)))
        .layer(service_fn(|_: LambdaEvent<Order>| pending::<Result<u32, Declined>>()));
    let call = timeout(TOO_LONG, service.oneshot(invocation(&host, order("a")))).await.expect("it is cancelled");
    assert_eq!(reported(call.unwrap_err()).0, "LockLost");
}

#[tokio::test]
async fn an_invocation_past_its_deadline_fails_without_a_request() {
    let (_world, host, locks) = environment().await;
    let event = invocation(&host, order("a"));
    host.advance_clock(LEASE);
    let service = IdempotencyLayer::new(invocations(&locks)).layer(counting(&Counter::default()));
    assert_eq!(reported(service.oneshot(event).await.unwrap_err()).0, "LockInvalid");
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn the_service_calls_the_handler_that_it_polled_ready() {
    let (_world, host, locks) = environment().await;
    let mut service = IdempotencyLayer::new(invocations(&locks))
        .layer(OneByOne::<LambdaEvent<Order>, u32, Declined>::answering(|| Ok(17)));
    for id in ["a", "b"] {
        let ready = service.ready().await.unwrap();
        assert_eq!(ready.call(invocation(&host, order(id))).await.unwrap(), 17);
    }
}

#[tokio::test]
async fn the_error_of_a_handler_that_is_not_ready_is_returned_without_a_request() {
    let (_world, host, locks) = environment().await;
    let broken = OneByOne::<LambdaEvent<Order>, u32, Declined>::answering(|| Err(Declined));
    let service = IdempotencyLayer::new(invocations(&locks)).layer(broken);
    assert!(is_declined(&service.oneshot(invocation(&host, order("a"))).await));
    assert_eq!(host.requests(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_ten_concurrent_invocations_of_each_key_runs() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let service = IdempotencyLayer::new(invocations(&locks).wait(eagerly())).layer(service_fn({
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

#[tokio::test]
async fn a_handler_that_takes_with_run_can_be_tested_alone() {
    async fn handler(WithRun { input, run, .. }: WithRun<u32>) -> Result<u32, Declined> {
        tokio::task::yield_now().await;
        Ok(input + u32::from(run.lock().is_enforced()))
    }
    let (_world, _host, locks) = environment().await;
    let result = orders(&locks).run(&order("a"), async |run| handler(WithRun::new(16, run.clone())).await).await;
    assert_eq!(result.unwrap(), 17);
}

/// The answer of `on_held`.
const SKIPPED: u32 = 0;

// As the guide has it.
#[tokio::test]
async fn an_event_that_a_lock_outside_skipped_runs_later_once() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let once = IdempotencyLayer::new(invocations(&locks)).layer(counting(&runs));
    let alone = LockLayer::new(locks).key("prices").on_held(|_| SKIPPED).layer(once);
    let other = world.default_locks().acquire("prices").await.unwrap();
    let deliver = async || alone.clone().oneshot(invocation(&host, order("a"))).await.map_err(Diagnostic::from);
    assert_eq!(deliver().await.unwrap(), SKIPPED);
    other.release().await.unwrap();
    for _ in 0..2 {
        assert_eq!(deliver().await.unwrap(), 1);
    }
}

// The guide warns of the other order, and of `coalesce`.
#[tokio::test]
async fn a_lock_inside_and_a_further_run_get_a_stored_result() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let alone = LockLayer::new(locks.clone()).key("prices").on_held(|_| SKIPPED).layer(counting(&runs));
    let once =
        Idempotency::new(locks.clone(), OnMissingKey::Reject, |event: &LambdaEvent<Order>| event.payload.id.clone());
    let once = IdempotencyLayer::new(once).layer(alone);
    let other = world.default_locks().acquire("prices").await.unwrap();
    let deliver = async || once.clone().oneshot(invocation(&host, order("a"))).await.unwrap();
    assert_eq!(deliver().await, SKIPPED);
    other.release().await.unwrap();
    assert_eq!((deliver().await, runs.get()), (SKIPPED, 0));

    let further = LockLayer::new(locks.clone()).key("index").on_held(|_| SKIPPED).coalesce(ms(1));
    let elsewhere = further.layer(counting(&runs));
    let skipped_meanwhile = service_fn({
        let (host, runs) = (host.clone(), runs.clone());
        move |_: LambdaEvent<Order>| {
            let (elsewhere, mut event, runs) = (elsewhere.clone(), invocation(&host, order("c")), runs.clone());
            event.context.request_id = "request-2".to_owned();
            async move {
                assert_eq!(elsewhere.oneshot(event).await.unwrap(), SKIPPED);
                Ok::<_, Declined>(runs.count())
            }
        }
    });
    let once = IdempotencyLayer::new(invocations(&locks)).layer(skipped_meanwhile);
    assert_eq!(further.layer(once).oneshot(invocation(&host, order("b"))).await.unwrap(), 1);
    assert_eq!(runs.get(), 1, "the further run got the result of the first");
}

#[tokio::test]
async fn tenants_share_no_record_unless_it_spans_them() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let event = |tenant| by_tenant(tenant, invocation(&host, order("a")));
    let service = IdempotencyLayer::new(invocations(&locks)).layer(counting(&runs));
    for (tenant, run) in [("blue", 1), ("green", 2), ("blue", 1)] {
        assert_eq!(service.clone().oneshot(event(tenant)).await.unwrap(), run);
    }
    assert!(world.row("orders#blue#a").await.is_some());
    let shared = IdempotencyLayer::new(invocations(&locks).across_tenants()).layer(counting(&runs));
    for tenant in ["blue", "green"] {
        assert_eq!(shared.clone().oneshot(event(tenant)).await.unwrap(), 3);
    }
    // Without tenant isolation, the record is the same.
    let without = IdempotencyLayer::new(invocations(&locks)).layer(counting(&runs));
    assert_eq!(without.oneshot(invocation(&host, order("a"))).await.unwrap(), 3);
}
