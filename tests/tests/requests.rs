//! Each request of the crate as it is on the wire: a change of one shows here, and nowhere else.
//!
//! `INSTA_UPDATE=always cargo test --workspace --test requests` accepts the changes. Review the diff of `snapshots/`.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use insta::{Settings, assert_snapshot};
use lambda_lock::embedded::{Host, Intercept};
use lambda_lock::idempotency::{OnMissingKey, OnUnfinished};
use lambda_lock::{Acquire, Attempt, ErrorKind, Idempotency, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::LoseAnswers;
use serde_json::Value;

const LEASE: Duration = Duration::from_mins(5);
const DAY: Duration = Duration::from_hours(24);
const ID: &str = "run 7";
/// The times of a table whose time begins 500,000 hours after the epoch.
const TIMES: [(&str, &str); 3] =
    [(r"\b180000\d{10}\b", "[micros]"), (r"\b180000\d{7}\b", "[millis]"), (r"\b180000\d{4}\b", "[seconds]")];

/// The requests since the last look.
#[derive(Clone, Debug, Default)]
struct Recorded(Arc<Mutex<String>>);

impl Intercept for Recorded {
    fn request(&self, operation: &str, request: &mut Value) {
        let mut text = self.0.lock().unwrap();
        writeln!(text, "{operation}").unwrap();
        let items = request.get("TransactItems").and_then(Value::as_array);
        for part in items.unwrap_or(&vec![request.clone()]) {
            write_part(&mut text, part.as_object().unwrap(), 1);
        }
    }
}

/// Writes the fields of a request, each on a line, and those of its names and values too.
fn write_part(text: &mut String, fields: &serde_json::Map<String, Value>, depth: usize) {
    let indent = "  ".repeat(depth);
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("TableName" | "ClientRequestToken", _) => {}
            ("Update" | "ConditionCheck" | "Put" | "ExpressionAttributeValues" | "ExpressionAttributeNames", value) => {
                writeln!(text, "{indent}{name}").unwrap();
                write_part(text, value.as_object().unwrap(), depth + 1);
            }
            (name, Value::String(value)) => writeln!(text, "{indent}{name}: {value}").unwrap(),
            (name, value) => writeln!(text, "{indent}{name}: {value}").unwrap(),
        }
    }
}

/// A table at a time that does not pass by itself, and a host whose requests are recorded.
struct Stage {
    world: World,
    host: Host,
    locks: Locks,
    recorded: Recorded,
    text: String,
}

impl Stage {
    async fn set() -> Self {
        Self::with(None).await
    }

    async fn with(lost: Option<LoseAnswers>) -> Self {
        let world = World::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).await;
        let recorded = Recorded::default();
        let mut host = world.host().intercept(recorded.clone());
        if let Some(lost) = lost {
            host = host.intercept(lost);
        }
        let host = host.build();
        let locks = world.locks_with_quick_retries(&host).holder("h").build().unwrap();
        Self { world, host, locks, recorded, text: String::new() }
    }

    /// Writes down the requests since the last call, under a headline.
    fn note(&mut self, headline: &str) {
        let requests = std::mem::take(&mut *self.recorded.0.lock().unwrap());
        writeln!(self.text, "## {headline}\n\n{requests}").unwrap();
    }

    /// Leaves out the requests since the last call.
    fn skip(&self) {
        self.recorded.0.lock().unwrap().clear();
    }

    #[track_caller]
    fn check(&self, name: &str) {
        self.check_without(name, &[]);
    }

    #[track_caller]
    fn check_without(&self, name: &str, filters: &[(&str, &str)]) {
        let mut settings = Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        for (pattern, name) in filters.iter().chain(&[("[0-9a-f]{32}", "[nonce]")]) {
            settings.add_filter(pattern, *name);
        }
        settings.bind(|| assert_snapshot!(name, self.text));
    }
}

/// The requests that each kind of lock sends.
async fn of_a_lock(name: &str, acquire: fn(&Locks) -> Acquire) {
    let mut stage = Stage::set().await;
    let locks = stage.locks.clone();
    let asked = || acquire(&locks).lease(LEASE);
    let has_data = name != "several_keys";

    let note = || AttributeValue::S("note".to_owned());
    let first = if has_data { asked().data("1").attribute("note", note()) } else { asked() };
    let first = if name == "key" { first.min_hold(DAY) } else { first };
    let lock = first.await.unwrap();
    stage.note("acquire what is free");
    if has_data {
        lock.set_data("2");
    }
    lock.renew(2 * LEASE).await.unwrap();
    stage.note("renew");
    let checks = lock.condition_checks().unwrap().into_iter();
    let checks = checks.map(|check| TransactWriteItem::builder().condition_check(check).build()).collect();
    stage.host.client().transact_write_items().set_transact_items(Some(checks)).send().await.unwrap();
    stage.note("check that it is held");
    lock.release().await.unwrap();
    stage.note("release");

    stage.host.advance_clock(2 * DAY);
    asked().identity(ID).await.unwrap().keep();
    stage.note("acquire for an identity");
    asked().identity(ID).await.unwrap().keep();
    stage.note("acquire again, and take over");
    let lock = asked().identity(ID).take_over().await.unwrap();
    stage.note("take over, and never acquire");
    let fence = lock.fence();
    lock.keep();
    let lock = asked().identity(ID).take_over_from(fence).await.unwrap();
    stage.note("take over from a fence");
    lock.release().await.unwrap();
    stage.note("release what was taken over");
    asked().identity(ID).await.unwrap().keep();
    stage.skip();
    locks.release_identity("job", ID).await.unwrap();
    stage.note("release for the identity");

    stage.host.advance_clock(DAY);
    asked().await.unwrap().keep();
    stage.host.advance_clock(2 * LEASE);
    stage.skip();
    let lock = asked().await.unwrap();
    stage.note("acquire after a crash");
    let seen = locks.get("job").await.unwrap().unwrap();
    stage.note("look");
    locks.force_release("job", &seen).await.unwrap();
    stage.note("release by force");
    lock.release().await.unwrap_err();
    stage.note("release what was lost");
    stage.check(name);

    // The acquire is never answered, so it gives up its attempt and frees the key. The SDK waits for random times.
    let operation = if has_data { "UpdateItem" } else { "TransactWriteItems" };
    let mut stage = Stage::with(Some(LoseAnswers::to(operation, 1..=3))).await;
    let error = acquire(&stage.locks).lease(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    stage.locks.flush(LEASE).await.unwrap();
    stage.note("acquire without an answer");
    stage.check_without(&format!("{name}_without_an_answer"), &TIMES);
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_a_key() {
    of_a_lock("key", |locks| locks.acquire("job")).await;
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_a_permit() {
    of_a_lock("permit", |locks| locks.semaphore("job", 2).acquire()).await;
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_several_keys() {
    of_a_lock("several_keys", |locks| locks.acquire_all(["job", "other job"])).await;
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_a_key_whose_holder_runs_once_more() {
    let mut stage = Stage::set().await;
    let locks = stage.locks.clone();
    let lock = locks.acquire("job").lease(LEASE).await.unwrap();
    stage.skip();
    let refusal = locks.acquire("job").lease(LEASE).await.unwrap_err();
    stage.note("acquire what is held");
    locks.coalesce("job", refusal.holder().unwrap()).await.unwrap();
    stage.note("leave work to the holder");
    lock.release_coalescing().await.unwrap();
    stage.note("release, and learn that work was left");
    stage.check("coalescing");
}

/// The clock of the host is an hour ahead.
#[tokio::test(start_paused = true)]
async fn the_requests_by_a_wrong_clock() {
    let mut stage = Stage::set().await;
    stage.world.default_locks().acquire("job").lease(LEASE).holder("h").await.unwrap().keep();
    stage.host.set_clock_forward(Duration::from_hours(1));
    let error = stage.locks.acquire("job").lease(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClockSkew);
    stage.note("acquire, and put back");
    stage.check("wrong_clock");
}

/// A place is asked for after a random moment, so the times in it are left out.
#[tokio::test(start_paused = true)]
async fn the_requests_of_waiters() {
    for (name, acquire) in [
        ("waiting_for_a_key", (|locks| locks.acquire("job")) as fn(&Locks) -> Acquire),
        ("waiting_for_a_permit", |locks| locks.semaphore("job", 1).acquire()),
        ("waiting_for_several_keys", |locks| locks.acquire_all(["job", "other job"])),
    ] {
        let mut stage = Stage::set().await;
        let locks = stage.locks.clone();
        let holder = acquire(&locks).lease(LEASE).await.unwrap();
        stage.skip();
        let waiter = || acquire(&locks).lease(LEASE).wait(DAY);
        let Attempt::Waiting(turn) = waiter().attempt_in_turn(None).await.unwrap() else { panic!("it is held") };
        stage.note("the first attempt, and a place");
        holder.release().await.unwrap();
        stage.skip();
        let Attempt::Acquired(lock) = waiter().attempt_in_turn(Some(turn)).await.unwrap() else { panic!("it is free") };
        stage.note("the attempt of a waiter with a place");
        lock.release().await.unwrap();
        stage.check_without(name, &TIMES);
    }
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_a_record() {
    let mut stage = Stage::set().await;
    let locks = stage.locks.clone();
    let new = || {
        let orders = Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &String| Some(order.clone()));
        orders.lease(LEASE).window(DAY)
    };
    let (plain, rejecting) = (new(), new().on_unfinished(OnUnfinished::Reject).validate(String::clone));
    let order = "job".to_owned();
    plain.run(&order, async |_| Ok::<_, String>(1)).await.unwrap();
    stage.note("a run");
    plain.run(&order, async |_| Ok::<_, String>(2)).await.unwrap();
    stage.note("a duplicate");
    let order = "another job".to_owned();
    rejecting.run(&order, async |_| Err::<u8, _>("failed".to_owned())).await.unwrap_err();
    stage.note("a run that fails, of a record that rejects what was left unfinished");
    stage.check("record");
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_a_rate() {
    let mut stage = Stage::set().await;
    let rate = stage.locks.rate("job", 1, Duration::from_mins(1));
    rate.pass().await.unwrap();
    stage.note("the first call");
    rate.pass().await.unwrap_err();
    stage.note("a call that comes too early");
    rate.reserve(DAY).await.unwrap();
    stage.note("a call that waits");
    let seen = stage.locks.get("job").await.unwrap().unwrap();
    stage.skip();
    stage.locks.force_release("job", &seen).await.unwrap();
    stage.note("let calls pass by force");
    stage.check("rate");
}
