//! The middleware, driven as what it is: a tower service around a handler.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, pending};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use lambda_example::{Outcome, ReportRequest, Reports, nightly_report};
use lambda_lock::embedded::{Answer, Faults, Host, Intercept};
use lambda_lock::{Backoff, HandlerError, Lock, LockLayer, LockedEvent, Locks, OnUnavailable};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{self, millis, told};
use lambda_runtime::{Diagnostic, Error, LambdaEvent};
use serde_json::Value;
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Longer than anything here takes, so that a test that hangs fails.
const TOO_LONG: Duration = Duration::from_secs(30);

/// The function's name, and so its key where nothing else is said.
const FUNCTION: &str = "report";

/// An invocation of the function on this host, half a minute before its deadline.
fn invocation<P>(host: &Host, payload: P) -> LambdaEvent<P> {
    invocation_with(host, payload, Duration::from_secs(30))
}

fn invocation_with<P>(host: &Host, payload: P, time_left: Duration) -> LambdaEvent<P> {
    let mut event = invocation_without_deadline(payload);
    event.context.deadline = millis(host.now() + time_left);
    event
}

fn invocation_without_deadline<P>(payload: P) -> LambdaEvent<P> {
    invocation::invocation_without_deadline(FUNCTION, payload)
}

/// A table, and the function's host on it.
async fn environment() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

async fn hold_elsewhere(world: &World, key: &str) -> Lock {
    world.default_locks().acquire(key).holder("another environment").await.unwrap()
}

async fn is_free(world: &World, key: &str) -> bool {
    match world.default_locks().try_acquire(key).await.unwrap() {
        Some(lock) => lock.release().await.is_ok(),
        None => false,
    }
}

async fn becomes_free(world: &World, key: &str) -> bool {
    let free = async {
        while !is_free(world, key).await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TOO_LONG, free).await.is_ok()
}

async fn row(world: &World, key: &str) -> HashMap<String, AttributeValue> {
    let get = world.client().get_item().table_name(&world.table).consistent_read(true);
    get.key("id", AttributeValue::S(key.to_owned())).send().await.unwrap().item.unwrap()
}

fn number(row: &HashMap<String, AttributeValue>, attribute: &str) -> u64 {
    row[attribute].as_n().unwrap().parse().unwrap()
}

fn quick_backoff() -> Backoff {
    Backoff::default().base(Duration::from_millis(5)).cap(Duration::from_millis(20)).up_to(TOO_LONG)
}

async fn done<P>(_: LambdaEvent<P>) -> Result<&'static str, Error> {
    Ok("done")
}

async fn fence(event: LockedEvent<()>) -> Result<u64, Error> {
    Ok(event.lock.fence())
}

// The key.

// behaviour 23
#[tokio::test]
async fn without_a_key_the_functions_name_is_the_key() {
    let (world, host, locks) = environment().await;
    let other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).layer(service_fn(done));
    assert_eq!(told(service.clone().oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockHeld");
    other.release().await.unwrap();
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "done");
}

#[tokio::test]
async fn a_constant_key_is_the_same_for_all_events() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, "constant").await;
    let service = LockLayer::new(locks).key("constant").layer(service_fn(done));
    for payload in ["a", "b"] {
        assert_eq!(told(service.clone().oneshot(invocation(&host, payload)).await.unwrap_err()).0, "LockHeld");
    }
}

// behaviour 12
#[tokio::test]
async fn events_with_different_keys_run_at_the_same_time() {
    let (_world, host, locks) = environment().await;
    // Both handlers wait for each other.
    let both = Arc::new(Barrier::new(2));
    let service = LockLayer::new(locks).key_from(|event: &LambdaEvent<&str>| event.payload.to_owned()).layer(
        service_fn(move |event: LambdaEvent<&'static str>| {
            let both = Arc::clone(&both);
            async move {
                both.wait().await;
                Ok::<_, Error>(event.payload)
            }
        }),
    );
    let calls = ["a", "A"].map(|key| service.clone().oneshot(invocation(&host, key)));
    let answers = timeout(TOO_LONG, join_all(calls)).await.expect("they ran at the same time");
    assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), ["a", "A"]);
}

#[tokio::test]
async fn an_event_with_the_key_of_a_running_one_is_refused() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, "a").await;
    let service = LockLayer::new(locks)
        .key_from(|event: &LambdaEvent<&str>| event.payload.to_owned())
        .layer(service_fn(done::<&'static str>));
    assert_eq!(told(service.clone().oneshot(invocation(&host, "a")).await.unwrap_err()).0, "LockHeld");
    assert_eq!(service.oneshot(invocation(&host, "b")).await.unwrap(), "done");
}

// behaviour 47
#[tokio::test]
async fn an_event_that_gives_an_empty_key_fails_and_sends_nothing() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).key_from(|_| String::new()).layer(service_fn(done::<()>));
    let (kind, message) = told(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockInvalid");
    assert!(message.contains("the key is empty"), "{message}");
    assert_eq!(host.requests(), 0);
}

// Held.

// behaviours 20, 77
#[tokio::test]
async fn an_invocation_that_finds_the_key_held_fails_with_the_holders_name() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let ran = Arc::new(AtomicBool::new(false));
    let service = LockLayer::new(locks).layer(service_fn({
        let ran = Arc::clone(&ran);
        move |_: LambdaEvent<()>| {
            ran.store(true, Ordering::Relaxed);
            async { Ok::<_, Error>(()) }
        }
    }));
    let (kind, message) = told(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("another environment"), "{message}");
    assert!(!ran.load(Ordering::Relaxed));
}

// behaviours 20, 21
#[tokio::test]
async fn an_invocation_that_finds_the_key_held_can_be_answered_instead() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks)
        .on_held(|held| format!("skipped for {}", held.holder().unwrap().name().unwrap()))
        .layer(service_fn(|_: LambdaEvent<()>| async { Ok::<_, Error>("ran".to_owned()) }));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "skipped for another environment");
}

#[tokio::test]
async fn a_waiting_invocation_runs_once_the_key_is_released() {
    let (world, host, locks) = environment().await;
    let other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).wait(quick_backoff()).layer(service_fn(done::<()>));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    // A second request: the first was refused.
    while host.requests() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    other.release().await.unwrap();
    assert_eq!(timeout(TOO_LONG, call).await.unwrap().unwrap().unwrap(), "done");
}

// behaviour 34
#[tokio::test]
async fn an_invocation_that_waited_in_vain_says_that_the_key_was_held() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service =
        LockLayer::new(locks).wait(quick_backoff().up_to(Duration::from_millis(100))).layer(service_fn(done::<()>));
    let (kind, message) = told(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockHeld");
    assert!(message.contains("another environment") && message.contains("attempts"), "{message}");
}

#[tokio::test]
async fn a_wait_ends_before_the_invocations_deadline() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service =
        LockLayer::new(locks).wait(quick_backoff().up_to(Duration::from_hours(1))).layer(service_fn(done::<()>));
    let call = service.oneshot(invocation_with(&host, (), Duration::from_millis(500)));
    let error = timeout(TOO_LONG, call).await.expect("the wait ended").unwrap_err();
    assert_eq!(told(error).0, "LockHeld");
}

// behaviour 34
#[tokio::test]
async fn a_wait_in_which_the_clock_passes_the_deadline_says_that_the_key_was_held() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).wait(quick_backoff()).layer(service_fn(done::<()>));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    while host.requests() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    // The environment was frozen.
    host.advance_clock(Duration::from_secs(31));
    let (kind, message) = told(timeout(TOO_LONG, call).await.unwrap().unwrap().unwrap_err());
    assert_eq!(kind, "LockHeld", "{message}");
}

// The lease.

/// The row as it is while the handler runs.
async fn row_during(
    world: World,
    layer: LockLayer<LambdaEvent<()>, HashMap<String, AttributeValue>>,
    event: LambdaEvent<()>,
) -> HashMap<String, AttributeValue> {
    let world = Arc::new(world);
    let service = layer.layer(service_fn(move |_: LambdaEvent<()>| {
        let world = Arc::clone(&world);
        async move { Ok::<_, Error>(row(&world, FUNCTION).await) }
    }));
    service.oneshot(event).await.unwrap()
}

fn lease_millis(row: &HashMap<String, AttributeValue>) -> u64 {
    number(row, "in_progress_expiration") - number(row, "acquired_at")
}

// behaviours 3, 10
#[tokio::test]
async fn the_row_says_that_the_lease_ends_with_the_deadline_plus_the_clock_skew() {
    let (world, host, locks) = environment().await;
    let event = invocation_with(&host, (), Duration::from_mins(14));
    let end = event.context.deadline + 1_000;
    let row = row_during(world, LockLayer::new(locks), event).await;
    assert_eq!(number(&row, "in_progress_expiration"), end);
    assert!(number(&row, "expiration") * 1_000 > end);
}

// behaviour 3
#[tokio::test]
async fn the_holder_counts_on_the_lock_until_the_deadline_and_no_longer() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(async |event: LockedEvent<()>| {
        Ok::<_, Error>((event.lock.expires_at(), event.context.deadline()))
    }));
    let (expires_at, deadline) = service.oneshot(invocation(&host, ())).await.unwrap();
    assert_eq!(expires_at, deadline);
}

// behaviours 3, 13
#[tokio::test]
async fn a_lease_shorter_than_the_time_left_is_the_one_that_counts() {
    let (world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).lease(Duration::from_secs(5));
    assert_eq!(lease_millis(&row_during(world, layer, invocation(&host, ())).await), 5_000 + 1_000);
}

// behaviour 3
#[tokio::test]
async fn a_lease_longer_than_the_time_left_ends_with_the_deadline() {
    let (world, host, locks) = environment().await;
    let event = invocation(&host, ());
    let end = event.context.deadline + 1_000;
    let layer = LockLayer::new(locks).lease(Duration::from_mins(10));
    assert_eq!(number(&row_during(world, layer, event).await, "in_progress_expiration"), end);
}

// behaviours 3, 27
#[tokio::test]
async fn a_context_without_a_deadline_gets_the_default_lease() {
    let (world, _host, locks) = environment().await;
    let row = row_during(world, LockLayer::new(locks), invocation_without_deadline(())).await;
    assert_eq!(lease_millis(&row), 30_000 + 1_000);
}

#[tokio::test]
async fn an_invocation_past_its_deadline_says_so_and_sends_nothing() {
    let (_world, host, locks) = environment().await;
    let event = invocation(&host, ());
    host.advance_clock(Duration::from_secs(31));
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    let (kind, message) = told(service.oneshot(event).await.unwrap_err());
    assert_eq!(kind, "LockInvalid");
    assert!(message.contains("deadline") && message.contains("has passed"), "{message}");
    assert_eq!(host.requests(), 0);
}

/// Notes when it is dropped: what a cancelled handler does.
struct NoteOnDrop(Arc<AtomicU64>, Host);

impl Drop for NoteOnDrop {
    fn drop(&mut self) {
        self.0.store(self.1.requests(), Ordering::Relaxed);
    }
}

// behaviours 3, 80
#[tokio::test]
async fn a_handler_that_outlives_its_lease_is_cancelled_and_then_the_key_is_released() {
    let (world, host, locks) = environment().await;
    let requests_when_cancelled = Arc::new(AtomicU64::new(0));
    let service = LockLayer::new(locks).lease(Duration::from_millis(300)).layer(service_fn({
        let note = (Arc::clone(&requests_when_cancelled), host.clone());
        move |_: LambdaEvent<()>| {
            let note = NoteOnDrop(Arc::clone(&note.0), note.1.clone());
            async move {
                let () = pending().await;
                drop(note);
                Ok::<_, Error>(())
            }
        }
    }));
    let call = timeout(TOO_LONG, service.oneshot(invocation(&host, ())));
    assert_eq!(told(call.await.expect("it was cancelled").unwrap_err()).0, "LockLost");
    assert_eq!(requests_when_cancelled.load(Ordering::Relaxed), 1, "cancelled after the acquire, before the release");
    assert_eq!(host.requests(), 2);
    assert!(is_free(&world, FUNCTION).await);
}

// behaviour 80
#[tokio::test]
async fn a_handler_is_cancelled_when_the_wall_clock_jumps_past_the_lease() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn({
        let host = host.clone();
        move |_: LambdaEvent<()>| {
            // The environment was frozen: only the wall clock went on.
            host.advance_clock(Duration::from_mins(1));
            pending::<Result<(), Error>>()
        }
    }));
    let call = timeout(TOO_LONG / 2, service.oneshot(invocation(&host, ())));
    assert_eq!(told(call.await.expect("it was cancelled").unwrap_err()).0, "LockLost");
}

// The release.

// behaviours 20, 29
#[tokio::test]
async fn a_handler_that_returns_releases() {
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "done");
    assert!(is_free(&world, FUNCTION).await);
}

// behaviours 20, 29
#[tokio::test]
async fn a_handler_that_fails_releases() {
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(|_: LambdaEvent<()>| async { Err::<(), Error>("no".into()) }));
    assert_eq!(told(service.oneshot(invocation(&host, ())).await.unwrap_err()).1, "no");
    assert!(is_free(&world, FUNCTION).await);
}

/// What a call that panicked said.
async fn panic_of<T>(call: impl Future<Output = T> + Send + 'static) -> &'static str
where
    T: Send + 'static,
{
    let Err(error) = tokio::spawn(call).await else { panic!("it did not panic") };
    error.into_panic().downcast_ref::<&str>().unwrap()
}

// behaviours 20, 29
#[tokio::test]
async fn a_handler_that_panics_releases_and_the_panic_goes_on() {
    async fn panics(_: LambdaEvent<()>) -> Result<(), Error> {
        tokio::task::yield_now().await;
        panic!("in the future")
    }
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(panics));
    assert_eq!(panic_of(service.oneshot(invocation(&host, ()))).await, "in the future");
    assert!(is_free(&world, FUNCTION).await);
}

// behaviours 20, 29
#[tokio::test]
async fn a_handler_that_panics_in_its_call_releases_and_the_panic_goes_on() {
    let (world, host, locks) = environment().await;
    let service = LockLayer::new(locks)
        .layer(service_fn(|_: LambdaEvent<()>| -> Ready<Result<(), Error>> { panic!("in the call") }));
    assert_eq!(panic_of(service.oneshot(invocation(&host, ()))).await, "in the call");
    assert!(is_free(&world, FUNCTION).await);
}

/// A handler's own error, with a name of its own.
#[derive(Debug)]
struct OutOfPaper;

impl From<OutOfPaper> for Diagnostic {
    fn from(_: OutOfPaper) -> Self {
        Self { error_type: "OutOfPaper".to_owned(), error_message: "fill the tray".to_owned() }
    }
}

#[tokio::test]
async fn a_handlers_own_error_keeps_its_type_and_message() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(|_: LambdaEvent<()>| async { Err::<(), _>(OutOfPaper) }));
    let error = service.oneshot(invocation(&host, ())).await.unwrap_err();
    assert_eq!(told(error), ("OutOfPaper".to_owned(), "fill the tray".to_owned()));
}

#[tokio::test]
async fn an_invocations_error_shows_itself_as_the_one_it_carries() {
    let (world, host, locks) = environment().await;
    let own = HandlerError::Handler(io::Error::other("fill the tray"));
    assert_eq!(own.to_string(), "fill the tray");
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).layer(service_fn(|_: LambdaEvent<()>| async { Ok::<_, io::Error>(()) }));
    let error = service.oneshot(invocation(&host, ())).await.unwrap_err();
    let shown = error.to_string();
    let HandlerError::Lock(lock) = error else { panic!("{error:?}") };
    assert_eq!(shown, lock.to_string());
}

/// Sends every write after the first to a table that is not there.
#[derive(Debug, Default)]
struct MisplacesReleases(AtomicU32);

impl Intercept for MisplacesReleases {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" && self.0.fetch_add(1, Ordering::Relaxed) > 0 {
            request["TableName"] = "elsewhere".into();
        }
    }
}

/// A function whose releases fail.
async fn environment_without_release() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().intercept(MisplacesReleases::default()).build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

// behaviour 29
#[tokio::test]
async fn a_failed_release_does_not_replace_the_handlers_answer() {
    let (world, host, locks) = environment_without_release().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), "done");
    assert!(!is_free(&world, FUNCTION).await, "the release did fail");
}

// behaviour 29
#[tokio::test]
async fn a_failed_release_does_not_replace_the_handlers_error() {
    let (world, host, locks) = environment_without_release().await;
    let service = LockLayer::new(locks).layer(service_fn(|_: LambdaEvent<()>| async { Err::<(), _>(OutOfPaper) }));
    assert_eq!(told(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "OutOfPaper");
    assert!(!is_free(&world, FUNCTION).await, "the release did fail");
}

// behaviour 29
#[tokio::test]
async fn a_failed_release_does_not_replace_the_handlers_panic() {
    let (world, host, locks) = environment_without_release().await;
    let service = LockLayer::new(locks)
        .layer(service_fn(|_: LambdaEvent<()>| -> Ready<Result<(), Error>> { panic!("the handler's") }));
    assert_eq!(panic_of(service.oneshot(invocation(&host, ()))).await, "the handler's");
    assert!(!is_free(&world, FUNCTION).await, "the release did fail");
}

// behaviour 5
#[tokio::test]
async fn after_a_failed_release_the_key_is_free_when_the_lease_ends() {
    let (world, host, locks) = environment_without_release().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    service.oneshot(invocation(&host, ())).await.unwrap();
    let later = world.host().clock_ahead(Duration::from_secs(32)).build();
    assert!(world.locks(&later).build().unwrap().try_acquire(FUNCTION).await.unwrap().is_some());
}

// behaviour 29
#[tokio::test]
async fn a_release_that_nothing_answers_does_not_keep_the_answer_until_lambda_kills() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn({
        let host = host.clone();
        move |_: LambdaEvent<()>| {
            // From here on nothing is heard.
            host.crash();
            async { Ok::<_, Error>("done") }
        }
    }));
    let event = invocation_with(&host, (), Duration::from_secs(1));
    let deadline = event.context.deadline;
    assert_eq!(service.oneshot(event).await.unwrap(), "done");
    assert!(millis(host.now()) < deadline);
}

// behaviour 58
#[tokio::test]
async fn with_a_least_hold_a_second_firing_seconds_later_does_not_run() {
    let (world, host, locks) = environment().await;
    let hold = Duration::from_mins(1);
    let service = LockLayer::new(locks).hold_at_least(hold).layer(service_fn(done::<()>));
    assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), "done");
    let second = world.host().clock_ahead(Duration::from_secs(5)).build();
    let elsewhere = world.locks(&second).build().unwrap();
    let service = LockLayer::new(elsewhere).hold_at_least(hold).layer(service_fn(done::<()>));
    assert_eq!(told(service.oneshot(invocation(&second, ())).await.unwrap_err()).0, "LockHeld");
}

// behaviour 58
#[tokio::test]
async fn the_next_firing_after_the_least_hold_runs() {
    let (world, host, locks) = environment().await;
    let hold = Duration::from_mins(1);
    let service = LockLayer::new(locks).hold_at_least(hold).layer(service_fn(done::<()>));
    assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), "done");
    // The minute and the clock skew.
    let next = world.host().clock_ahead(Duration::from_secs(61)).build();
    let elsewhere = world.locks(&next).build().unwrap();
    let service = LockLayer::new(elsewhere).hold_at_least(hold).layer(service_fn(done::<()>));
    assert_eq!(service.oneshot(invocation(&next, ())).await.unwrap(), "done");
}

// behaviour 58
#[tokio::test]
async fn a_handler_that_fails_does_not_keep_its_retry_waiting_for_the_least_hold() {
    let (world, host, locks) = environment().await;
    let layer = LockLayer::new(locks).hold_at_least(Duration::from_mins(1));
    let failing = |_: LambdaEvent<()>| async { Err::<(), Error>("out of paper".into()) };
    assert!(layer.layer(service_fn(failing)).oneshot(invocation(&host, ())).await.is_err());
    assert!(is_free(&world, FUNCTION).await);
}

// behaviour 35
#[tokio::test]
async fn a_call_that_is_dropped_while_its_handler_runs_releases_in_the_background() {
    let (world, host, locks) = environment().await;
    let started = Arc::new(Semaphore::new(0));
    let service = LockLayer::new(locks).layer(service_fn({
        let started = Arc::clone(&started);
        move |_: LambdaEvent<()>| {
            started.add_permits(1);
            pending::<Result<(), Error>>()
        }
    }));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    started.acquire().await.unwrap().forget();
    assert!(!is_free(&world, FUNCTION).await);
    call.abort();
    assert!(becomes_free(&world, FUNCTION).await);
}

// behaviour 35
#[tokio::test]
async fn a_call_that_is_dropped_while_its_request_is_under_way_releases_in_the_background() {
    let world = World::new().await;
    let slow = Duration::from_millis(500);
    let host = world.host().faults(Faults::seeded(1).latency(slow..slow)).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap()).layer(service_fn(done::<()>));
    let call = tokio::spawn(service.oneshot(invocation(&host, ())));
    // The request has arrived, and its answer is under way.
    while world.default_locks().get(FUNCTION).await.unwrap().is_none() {
        sleep(Duration::from_millis(5)).await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert!(becomes_free(&world, FUNCTION).await);
}

// Unavailable.

/// A function that nothing answers, with a lease that ends soon so that it notices soon.
async fn environment_without_network() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(1).lose_requests(1.0)).build();
    let locks = world.locks(&host).lease(Duration::from_millis(300)).build().unwrap();
    (world, host, locks)
}

#[tokio::test]
async fn when_the_table_cannot_be_reached_the_invocation_fails() {
    let (world, _host, locks) = environment_without_network().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    let (kind, message) = told(service.oneshot(invocation_without_deadline(())).await.unwrap_err());
    assert_eq!(kind, "LockUnavailable");
    assert!(message.contains(&world.table), "{message}");
}

async fn unlocked(event: LockedEvent<()>) -> Result<(bool, u64), Error> {
    Ok((event.lock.is_enforced(), event.lock.fence()))
}

// behaviour 21
#[tokio::test]
async fn when_the_table_cannot_be_reached_the_invocation_can_run_unlocked() {
    let (_world, _host, locks) = environment_without_network().await;
    let service = LockLayer::new(locks).on_unavailable(OnUnavailable::RunUnlocked).layer(service_fn(unlocked));
    assert_eq!(service.oneshot(invocation_without_deadline(())).await.unwrap(), (false, 0));
}

#[tokio::test]
async fn when_the_table_throttles_the_invocation_fails() {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(1).throttle(1.0)).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap()).layer(service_fn(done::<()>));
    assert_eq!(told(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockThrottled");
}

// behaviour 21
#[tokio::test]
async fn when_the_table_throttles_the_invocation_can_run_unlocked() {
    let world = World::new().await;
    let host = world.host().faults(Faults::seeded(1).throttle(1.0)).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap())
        .on_unavailable(OnUnavailable::RunUnlocked)
        .layer(service_fn(unlocked));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), (false, 0));
}

#[tokio::test]
async fn a_held_key_is_no_reason_to_run_unlocked() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).on_unavailable(OnUnavailable::RunUnlocked).layer(service_fn(done::<()>));
    assert_eq!(told(service.oneshot(invocation(&host, ())).await.unwrap_err()).0, "LockHeld");
}

#[derive(Debug)]
struct DeniesAccess;

impl Intercept for DeniesAccess {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        answer.status = 400;
        answer.body = serde_json::json!({ "__type": "AccessDeniedException", "message": "no" });
    }
}

#[tokio::test]
async fn denied_access_is_no_reason_to_run_unlocked() {
    let world = World::new().await;
    let host = world.host().intercept(DeniesAccess).build();
    let service = LockLayer::new(world.locks(&host).build().unwrap())
        .on_unavailable(OnUnavailable::RunUnlocked)
        .layer(service_fn(done::<()>));
    let (kind, message) = told(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockAccessDenied");
    assert!(message.contains("dynamodb:UpdateItem"), "{message}");
}

#[tokio::test]
async fn a_missing_table_is_no_reason_to_run_unlocked() {
    let world = World::without_table();
    let host = world.host().build();
    let service = LockLayer::new(world.locks(&host).build().unwrap())
        .on_unavailable(OnUnavailable::RunUnlocked)
        .layer(service_fn(done::<()>));
    let (kind, message) = told(service.oneshot(invocation(&host, ())).await.unwrap_err());
    assert_eq!(kind, "LockTableNotFound");
    assert!(message.contains(&world.table), "{message}");
}

// behaviour 22
#[tokio::test]
async fn with_locking_switched_off_the_handler_runs_without_a_lock_or_a_request() {
    let (world, host, _locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let service = LockLayer::new(locks).layer(service_fn(unlocked));
    assert_eq!(service.oneshot(invocation(&host, ())).await.unwrap(), (false, 0));
    assert_eq!(host.requests(), 0);
}

// The lock, in the handler.

// behaviour 28
#[tokio::test]
async fn a_handler_that_asks_for_it_gets_the_lock_with_its_event() {
    let (world, host, locks) = environment().await;
    let world = Arc::new(world);
    let service = LockLayer::new(locks).layer(service_fn({
        let world = Arc::clone(&world);
        move |event: LockedEvent<&'static str>| {
            let world = Arc::clone(&world);
            async move {
                let row = row(&world, FUNCTION).await;
                assert_eq!(event.lock.owner(), row["owner"].as_s().unwrap());
                assert_eq!(event.lock.fence(), number(&row, "fence"));
                assert_eq!(event.lock.key(), FUNCTION);
                assert!(event.lock.is_valid() && event.lock.is_enforced());
                Ok::<_, Error>(format!("{} of {}", event.payload, event.context.request_id))
            }
        }
    }));
    assert_eq!(service.oneshot(invocation(&host, "payload")).await.unwrap(), "payload of request-1");
}

// behaviours 78, 81
#[tokio::test]
async fn each_run_in_a_reused_environment_has_a_nonce_of_its_own_and_a_larger_fence() {
    let (_world, host, locks) = environment().await;
    let mut service = LockLayer::new(locks).layer(service_fn(async |event: LockedEvent<()>| {
        Ok::<_, Error>((event.lock.fence(), event.lock.owner().to_owned()))
    }));
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(service.ready().await.unwrap().call(invocation(&host, ())).await.unwrap());
    }
    assert!(runs.is_sorted_by(|(fence, owner), (next, next_owner)| fence < next && owner != next_owner), "{runs:?}");
}

// behaviours 4, 15
#[tokio::test]
async fn a_handler_can_renew_its_lock() {
    let (world, host, locks) = environment().await;
    let world = Arc::new(world);
    let service = LockLayer::new(locks).lease(Duration::from_secs(5)).layer(service_fn({
        let world = Arc::clone(&world);
        move |event: LockedEvent<()>| {
            let world = Arc::clone(&world);
            async move {
                event.lock.renew(Duration::from_secs(20)).await.unwrap();
                Ok::<_, Error>((event.lock.remaining(), lease_millis(&row(&world, FUNCTION).await)))
            }
        }
    }));
    let (remaining, lease) = service.oneshot(invocation(&host, ())).await.unwrap();
    assert!(remaining > Duration::from_secs(10), "{remaining:?}");
    assert!(lease >= 20_000 + 1_000, "{lease}");
    assert!(is_free(&world, FUNCTION).await);
}

// behaviours 15, 24
#[tokio::test]
async fn a_handler_that_renews_too_late_is_told() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn({
        let host = host.clone();
        move |event: LockedEvent<()>| {
            let host = host.clone();
            async move {
                host.advance_clock(Duration::from_secs(31));
                Ok::<_, Error>(event.lock.renew(Duration::from_secs(20)).await.unwrap_err().is_lost())
            }
        }
    }));
    assert!(service.oneshot(invocation(&host, ())).await.unwrap());
}

// behaviour 40
#[tokio::test]
async fn what_a_handler_leaves_is_there_for_the_next_run() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(async |event: LockedEvent<()>| {
        let page = event.lock.data().and_then(|data| data.as_str()).map_or(0, |page| page.parse().unwrap());
        event.lock.set_data((page + 1).to_string());
        Ok::<u32, Error>(page)
    }));
    for expected in 0..3 {
        assert_eq!(service.clone().oneshot(invocation(&host, ())).await.unwrap(), expected);
    }
}

// behaviour 25
#[tokio::test]
async fn the_row_names_function_request_and_log_stream_for_people() {
    let (world, host, locks) = environment().await;
    let row = row_during(world, LockLayer::new(locks), invocation(&host, ())).await;
    assert_eq!(row["holder"].as_s().unwrap(), "report request-1 stream-1");
}

// The service.

// behaviours 4, 31
#[tokio::test]
async fn a_run_costs_two_requests() {
    let (_world, host, locks) = environment().await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    service.oneshot(invocation(&host, ())).await.unwrap();
    assert_eq!(host.requests(), 2);
}

// behaviours 31, 77
#[tokio::test]
async fn a_refusal_costs_one_request() {
    let (world, host, locks) = environment().await;
    let _other = hold_elsewhere(&world, FUNCTION).await;
    let service = LockLayer::new(locks).layer(service_fn(done::<()>));
    service.oneshot(invocation(&host, ())).await.unwrap_err();
    assert_eq!(host.requests(), 1);
}

#[tokio::test]
async fn a_service_that_is_ready_has_not_asked_for_the_lock_yet() {
    let (world, host, locks) = environment().await;
    let mut service = LockLayer::new(locks).layer(service_fn(fence));
    let ready = service.ready().await.unwrap();
    assert_eq!(host.requests(), 0);
    // A runtime polls for readiness before it has an event, and may wait for hours.
    assert!(is_free(&world, FUNCTION).await);
    assert!(ready.call(invocation(&host, ())).await.unwrap() > 0);
}

/// Only the very service that was polled ready may be called.
#[derive(Debug, Default)]
struct NeedsReadiness {
    ready: bool,
}

impl Clone for NeedsReadiness {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<LambdaEvent<()>> for NeedsReadiness {
    type Response = &'static str;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: LambdaEvent<()>) -> Self::Future {
        assert!(self.ready, "called without having been ready");
        self.ready = false;
        std::future::ready(Ok("done"))
    }
}

#[tokio::test]
async fn the_handler_that_was_ready_is_the_one_that_is_called() {
    let (_world, host, locks) = environment().await;
    let mut service = LockLayer::new(locks).layer(NeedsReadiness::default());
    for _ in 0..2 {
        assert_eq!(service.ready().await.unwrap().call(invocation(&host, ())).await.unwrap(), "done");
    }
}

/// What `Runtime::run_concurrent` asks of a service.
fn assert_fit_for_run_concurrent<P, S>(service: S) -> S
where
    S: Service<LambdaEvent<P>, Future: Send, Error: Into<Diagnostic>> + Clone + Send + 'static,
{
    service
}

// behaviours 50, 81
#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_calls_at_once_exactly_one_runs() {
    let (_world, host, locks) = environment().await;
    let (go, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let handler = service_fn({
        let (go, runs) = (Arc::clone(&go), Arc::clone(&runs));
        move |_: LambdaEvent<()>| {
            let (go, runs) = (Arc::clone(&go), Arc::clone(&runs));
            async move {
                // Not an atomic addition: two at once could count as one, or both be seen.
                let before = runs.load(Ordering::Relaxed);
                go.acquire().await.unwrap().forget();
                runs.store(before + 1, Ordering::Relaxed);
                Ok::<_, Error>("ran")
            }
        }
    });
    let service = assert_fit_for_run_concurrent(LockLayer::new(locks).on_held(|_| "skipped").layer(handler));
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        calls.spawn(service.clone().oneshot(invocation(&host, ())));
    }
    for _ in 0..19 {
        let answer = timeout(TOO_LONG, calls.join_next()).await.expect("nineteen do not wait for the one");
        assert_eq!(answer.unwrap().unwrap().unwrap(), "skipped");
    }
    go.add_permits(1);
    assert_eq!(calls.join_next().await.unwrap().unwrap().unwrap(), "ran");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

// behaviour 50
#[tokio::test(flavor = "multi_thread")]
async fn twenty_waiting_calls_run_one_after_the_other() {
    let (_world, host, locks) = environment().await;
    let runs = Arc::new(AtomicU32::new(0));
    let handler = service_fn({
        let runs = Arc::clone(&runs);
        move |_: LambdaEvent<()>| {
            let runs = Arc::clone(&runs);
            async move {
                // Not an atomic addition: two at once would count as one.
                let before = runs.load(Ordering::Relaxed);
                sleep(Duration::from_millis(2)).await;
                runs.store(before + 1, Ordering::Relaxed);
                Ok::<_, Error>(())
            }
        }
    });
    let service = assert_fit_for_run_concurrent(LockLayer::new(locks).wait(quick_backoff()).layer(handler));
    let calls = (0..20).map(|_| tokio::spawn(service.clone().oneshot(invocation(&host, ()))));
    for answer in join_all(calls).await {
        answer.unwrap().unwrap();
    }
    assert_eq!(runs.load(Ordering::Relaxed), 20);
}

// The example.

/// The example function, whose locks and reports are rows of one table.
fn reports(world: &World, host: &Host) -> (Locks, Reports) {
    let locks = world.locks(host).key_prefix("lock#").build().unwrap();
    (locks, Reports::new(host.client(), &world.table, "written#"))
}

fn report(name: &str, gathering_ms: u64) -> ReportRequest {
    ReportRequest { report: name.to_owned(), gathering_ms, panics: false }
}

#[tokio::test]
async fn a_nightly_report_that_is_delivered_five_times_at_once_is_written_once() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports);
    let deliveries = (0..5).map(|_| function.clone().oneshot(invocation(&host, report("sales", 1_000))));
    let outcomes = join_all(deliveries).await.into_iter().map(Result::unwrap);
    let (written, skipped): (Vec<_>, Vec<_>) = outcomes.partition(|outcome| matches!(outcome, Outcome::Written { .. }));
    assert!(matches!(&written[..], [Outcome::Written { times: 1, .. }]), "{written:?}");
    assert_eq!(skipped.len(), 4);
    for outcome in skipped {
        let Outcome::Skipped { reason } = outcome else { unreachable!() };
        assert!(reason.contains("report request-1 stream-1"), "{reason}");
    }
}

#[tokio::test]
async fn a_nightly_report_is_written_again_the_next_night_under_a_larger_fence() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports);
    let mut fences = Vec::new();
    for night in 1..=2 {
        let outcome = function.clone().oneshot(invocation(&host, report("sales", 0))).await.unwrap();
        let Outcome::Written { fence, times, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(times, night);
        fences.push(fence);
    }
    assert!(fences[0] < fences[1]);
}

#[tokio::test]
async fn two_nightly_reports_are_written_at_the_same_time() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports);
    let calls = ["sales", "stock"].map(|name| function.clone().oneshot(invocation(&host, report(name, 500))));
    for outcome in join_all(calls).await {
        let outcome = outcome.unwrap();
        assert!(matches!(&outcome, Outcome::Written { times: 1, .. }), "{outcome:?}");
    }
}

// behaviour 78
#[tokio::test]
async fn a_nightly_report_is_not_written_with_a_fence_that_has_been_passed() {
    let world = World::new().await;
    let host = world.host().build();
    // A later holder has written already, while this one was paused.
    let later = u64::MAX.to_string();
    let put = world.client().put_item().table_name(&world.table);
    put.item("id", AttributeValue::S("written#report#sales".to_owned()))
        .item("fence", AttributeValue::N(later.clone()))
        .send()
        .await
        .unwrap();
    let (locks, reports) = reports(&world, &host);
    nightly_report(locks, reports).oneshot(invocation(&host, report("sales", 0))).await.unwrap_err();
    assert_eq!(row(&world, "written#report#sales").await["fence"], AttributeValue::N(later));
}
