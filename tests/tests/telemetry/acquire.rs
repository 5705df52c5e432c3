//! Metrics, spans and events of acquires, refusals and waits.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{Answer, Faults, Intercept};
use lambda_lock::lambda::OnUnavailable;
use lambda_lock::{Attempt, ErrorKind, LockLayer, Locks, Wait};
use lambda_lock_tests::invocation::{Counter, LoseAnswers, invocation};
use lambda_runtime::LambdaEvent;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tracing::Level;

use crate::{
    Stage, TABLE, done, locks_of, locks_on, ms, orders, s, settle, slow, take_away, without_jitter, without_retries,
};

/// Rejects these requests of an operation, counted from 1, with an error.
#[derive(Debug)]
struct Refusing {
    operation: &'static str,
    which: RangeInclusive<u32>,
    code: &'static str,
    seen: Counter,
}

impl Refusing {
    fn updates(which: RangeInclusive<u32>, code: &'static str) -> Self {
        Self { operation: "UpdateItem", which, code, seen: Counter::default() }
    }
}

impl Intercept for Refusing {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == self.operation && self.which.contains(&self.seen.count()) {
            request["TableName"] = json!("no-such-table");
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == self.operation && self.which.contains(&self.seen.get()) {
            answer.status = 400;
            answer.body = json!({ "__type": self.code });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_counted_and_timed_and_has_one_span() {
    let stage = Stage::set().await;
    let locks = stage.on_network(slow(ms(20)));
    let lock = locks.acquire("nightly").await.unwrap();
    stage.metrics.assert(&["acquired 1", "acquire_time [40.0]"]);
    let (owner, fence) = (lock.owner().to_owned(), lock.fence().to_string());
    sleep(ms(250)).await;
    assert_eq!(stage.traces.lock_lines(), ["attempts=1 fence=… key=nightly owner=… waited_ms=0 open"]);
    lock.release().await.unwrap();
    // From the sending of the acquire to the sending of the release.
    stage.metrics.assert(&["released 1", "hold_time [290.0]", "release_time [40.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let [span] = &stage.traces.locks()[..] else { panic!("one span") };
    assert_eq!((&span.fields["owner"], &span.fields["fence"]), (&owner, &fence));
    let line = "attempts=1 fence=… held_ms=290 key=nightly outcome=released owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    let [acquired] = &stage.traces.events()[..] else { panic!("one event") };
    assert_eq!((acquired.level, &*acquired.message, acquired.lock), (Level::DEBUG, "acquired", Some(0)));
    assert_eq!((&*acquired.fields["key"], &acquired.fields["fence"]), ("nightly", &fence));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_counted_by_its_reason_and_logged_once() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").holder("the first").await.unwrap();
    stage.metrics.take();
    assert!(stage.locks().try_acquire("nightly").await.unwrap().is_none());
    stage.metrics.assert(&["refused: held 1"]);
    assert_eq!(stage.traces.lock_lines()[1], "attempts=1 key=nightly outcome=held waited_ms=0 closed");
    let [refusal] = &stage.traces.logged("not acquired")[..] else { panic!("once") };
    assert_eq!((refusal.level, refusal.lock), (Level::INFO, Some(1)));
    assert_eq!((&*refusal.fields["key"], &*refusal.fields["reason"]), ("nightly", "held"));
    assert!(refusal.fields["error"].contains("the first"), "{refusal:?}");
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_successful_wait_counts_its_retries_and_its_time() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    let locks = stage.locks();
    let waiter = locks.acquire("nightly").wait(without_jitter()).into_future();
    let release = async {
        sleep(ms(250)).await;
        holder.release().await.unwrap();
    };
    let (lock, ()) = tokio::join!(waiter, release);
    let released = ["released 1", "hold_time [250.0]", "release_time [0.0]"];
    let acquired = ["acquired 1", "acquire_time [300.0]", "retry_attempts 2", "wait_time [300.0]"];
    stage.metrics.assert(&[&released[..], &acquired].concat());
    sleep(ms(10)).await;
    lock.unwrap().release().await.unwrap();
    stage.metrics.assert(&["released 1", "hold_time [10.0]", "release_time [0.0]"]);
    let line = "attempts=3 fence=… held_ms=10 key=nightly outcome=released owner=… waited_ms=300 closed";
    assert_eq!(stage.traces.lock_lines()[1], line);
    // Attempts are not logged at INFO or above.
    assert_eq!(stage.traces.logged_at_info(), [""; 0]);
    let refused = stage.traces.logged("refused");
    assert_eq!(refused.iter().map(|event| (event.level, event.lock)).collect::<Vec<_>>(), [(Level::DEBUG, Some(1)); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_wait_is_exhausted_for_the_reason_of_its_end() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    let wait = without_jitter().up_to(ms(300));
    let error = stage.locks().acquire("nightly").wait(wait).await.unwrap_err();
    assert!(error.is_held());
    stage.metrics.assert(&["refused: held 1", "retries_exhausted: held 1", "retry_attempts 2", "wait_time [300.0]"]);
    holder.release().await.unwrap();
    stage.metrics.take();

    for (faults, reason, attempts) in [
        // The delay after a throttle is longer.
        (Faults::seeded(1).throttle(1.0), "throttled", 2),
        (Faults::seeded(1).lose_requests(1.0), "unavailable", 3),
        // The background release after a lost answer is not counted as the release of a lock.
        (Faults::seeded(1).lose_answers(1.0), "unavailable", 3),
    ] {
        let locks = stage.on_network(faults);
        let error = locks.acquire(format!("a {reason} one")).wait(wait).await.unwrap_err();
        assert_eq!(error.attempts(), attempts);
        settle().await;
        let retries = format!("retry_attempts {}", attempts - 1);
        let (refused, exhausted) = (format!("refused: {reason} 1"), format!("retries_exhausted: {reason} 1"));
        stage.metrics.assert(&[&refused, &exhausted, &retries, "wait_time [300.0]"]);
        let line = format!("attempts={attempts} key=a {reason} one outcome={reason} waited_ms=300 closed");
        assert_eq!(stage.traces.lock_lines().last(), Some(&line));
    }
    let logged = stage.traces.logged_at_info();
    assert_eq!(logged, ["INFO not acquired"; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_an_error_ends_is_not_exhausted() {
    let stage = Stage::set().await;
    let wait = without_jitter().up_to(s(5));
    let (_, locks) = locks_on(stage.engine.host().intercept(Refusing::updates(1..=1, "AccessDeniedException")));
    assert_eq!(locks.acquire("nightly").wait(wait).await.unwrap_err().kind(), ErrorKind::AccessDenied);
    stage.metrics.assert(&["refused: access_denied 1"]);

    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    let (_, locks) = locks_on(stage.engine.host().intercept(Refusing::updates(2..=2, "AccessDeniedException")));
    assert_eq!(locks.acquire("nightly").wait(wait).await.unwrap_err().kind(), ErrorKind::AccessDenied);
    stage.metrics.assert(&["refused: access_denied 1", "retry_attempts 1", "wait_time [100.0]"]);
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquire_without_a_wait_is_never_exhausted() {
    let stage = Stage::set().await;
    let locks = stage.on_network(Faults::seeded(1).throttle(1.0));
    for wait in [Wait::in_turn().up_to(Duration::ZERO), Wait::in_turn().max_attempts(1)] {
        assert_eq!(locks.acquire("nightly").wait(wait).await.unwrap_err().kind(), ErrorKind::Throttled);
    }
    stage.metrics.assert(&["refused: throttled 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_is_counted_as_cancelled() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    // During its sleep, after the attempts at 0, 100 and 300 ms.
    let locks = stage.locks();
    assert!(timeout(ms(650), locks.acquire("nightly").wait(without_jitter()).into_future()).await.is_err());
    stage.metrics.assert(&["refused: cancelled 1", "retry_attempts 2", "wait_time [650.0]"]);
    assert_eq!(stage.traces.lock_lines()[1], "attempts=3 key=nightly outcome=cancelled waited_ms=650 closed");
    holder.release().await.unwrap();
    stage.metrics.take();

    // During its request, which is applied and then released.
    let locks = stage.on_network(slow(ms(20)));
    assert!(timeout(ms(10), locks.acquire("daily").into_future()).await.is_err());
    settle().await;
    stage.metrics.assert(&["refused: cancelled 1"]);
    assert_eq!(stage.traces.lock_lines()[2], "attempts=1 key=daily outcome=cancelled waited_ms=0 closed");
    assert_eq!(stage.traces.logged_at_info(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_any_other_reason_is_counted_by_that_reason() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let elsewhere = Locks::builder(without_retries(&host), "elsewhere").build().unwrap();
    assert_eq!(elsewhere.acquire("nightly").await.unwrap_err().kind(), ErrorKind::TableNotFound);
    stage.metrics.assert(&["refused: table_not_found 1"]);

    assert_eq!(locks.acquire("").await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(locks.acquire("nightly").lease(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(locks.acquire("nightly").deadline(host.now()).await.unwrap_err().kind(), ErrorKind::Invalid);
    stage.metrics.assert(&["refused: invalid 3"]);
    assert_eq!(host.requests(), 1);

    let put = host.client().put_item().table_name(TABLE);
    put.item("id", AttributeValue::S("foreign".to_owned())).send().await.unwrap();
    assert_eq!(locks.acquire("foreign").await.unwrap_err().kind(), ErrorKind::MalformedRow);
    stage.metrics.assert(&["refused: malformed_row 1"]);

    for (code, reason) in [("TransactionConflictException", "conflict"), ("SomethingElse", "rejected")] {
        let (_, locks) = locks_on(stage.engine.host().intercept(Refusing::updates(1..=1, code)));
        locks.acquire("nightly").await.unwrap_err();
        stage.metrics.assert(&[&format!("refused: {reason} 1")]);
    }
    assert_eq!(stage.traces.logged_at_info(), ["INFO not acquired"; 7]);
    // An invalid key has no span. None of the three requests was sent.
    let invalid = stage.traces.locks().into_iter().filter(|span| span.fields["outcome"] == "invalid");
    assert_eq!(invalid.map(|span| span.fields["attempts"].clone()).collect::<Vec<_>>(), ["0"]);
}

#[tokio::test(start_paused = true)]
async fn only_an_acquire_after_an_unreleased_lease_is_a_takeover() {
    let stage = Stage::set().await;
    let taken_over = || stage.metrics.take().count("taken_over");
    let locks = stage.locks();
    let acquire = async || locks.acquire("nightly").lease(s(1)).await.unwrap();

    let lock = acquire().await;
    assert_eq!(taken_over(), 0, "a new row");
    lock.release().await.unwrap();
    let lock = acquire().await;
    assert_eq!(taken_over(), 0, "after a release");
    drop(lock);
    settle().await;
    drop(acquire().await);
    assert_eq!(taken_over(), 0, "after a release in the background");
    settle().await;

    let (crashing, doomed) = locks_on(stage.engine.host());
    let lock = doomed.acquire("nightly").lease(s(1)).await.unwrap();
    crashing.crash();
    drop(lock);
    sleep(s(3)).await;
    let lock = acquire().await;
    assert_eq!(taken_over(), 1, "after a crash");
    lock.release().await.unwrap();
    acquire().await.release().await.unwrap();
    assert_eq!(taken_over(), 0, "after the release that followed a crash");

    let lock = acquire().await;
    sleep(s(3)).await;
    lock.release().await.unwrap();
    acquire().await.release().await.unwrap();
    assert_eq!(taken_over(), 0, "after a release that came after the lease");

    let lock = acquire().await;
    take_away(&locks, "nightly").await;
    acquire().await.release().await.unwrap();
    assert_eq!(taken_over(), 0, "after an operator had freed it");
    drop(lock);

    let orders = orders(&locks).window(s(10));
    done(&orders, "order").await.unwrap();
    sleep(s(11)).await;
    done(&orders, "order").await.unwrap();
    assert_eq!(taken_over(), 0, "after a record whose window has passed");
    assert_eq!(stage.traces.logged("taken over").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lock_is_counted_once() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").lease(s(1)).await.unwrap();
    stage.metrics.take();
    for _ in 0..3 {
        sleep(ms(500)).await;
        lock.renew(s(1)).await.unwrap();
    }
    stage.metrics.assert(&[]);
    lock.release().await.unwrap();
    stage.metrics.assert(&["released 1", "hold_time [1500.0]", "release_time [0.0]"]);
    assert_eq!(stage.traces.locks().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_with_a_lost_answer_is_held_from_its_first_request() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)));
    let lock = locks.acquire("nightly").wait(without_jitter()).await.unwrap();
    stage.metrics.assert(&["acquired 1", "retry_attempts 1", "acquire_time [100.0]", "wait_time [100.0]"]);
    lock.release().await.unwrap();
    stage.metrics.assert(&["released 1", "hold_time [100.0]", "release_time [0.0]"]);
}

#[tokio::test(start_paused = true)]
async fn disabled_locks_count_and_trace_nothing() {
    let stage = Stage::set().await;
    let (host, _) = locks_on(stage.engine.host());
    let locks = locks_of(&host).enabled(false).build().unwrap();
    let lock = locks.acquire("nightly").lease(s(1)).await.unwrap();
    sleep(s(2)).await;
    lock.release().await.unwrap();
    drop(locks.acquire("nightly").await.unwrap());
    locks.acquire("nightly").run(async |_| sleep(ms(5)).await).await.unwrap();
    let orders = orders(&locks);
    done(&orders, "order").await.unwrap();
    done(&orders, "none").await.unwrap();
    stage.metrics.assert(&[]);
    assert_eq!(stage.traces.lock_lines(), [""; 0]);
    assert_eq!(stage.traces.logged_at_info(), ["WARN locking is disabled"]);
    assert_eq!(host.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_unlocked_is_counted_as_a_refusal() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host().faults(Faults::seeded(1).lose_requests(1.0)));
    let layer = LockLayer::new(locks).on_unavailable(OnUnavailable::RunUnlocked);
    let handler = layer.layer(service_fn(|_: LambdaEvent<()>| async { Ok::<_, String>(()) }));
    handler.oneshot(invocation(&host, ())).await.unwrap();
    settle().await;
    stage.metrics.assert(&["refused: unavailable 1"]);
    assert_eq!(stage.traces.lock_lines(), ["attempts=1 key=orders outcome=unavailable waited_ms=0 closed"]);
}

#[tokio::test(start_paused = true)]
async fn permits_are_counted_as_locks_and_a_wrong_kind_by_its_reason() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host());
    let bank = locks.semaphore("bank", 1);
    std::mem::forget(bank.acquire().await.unwrap());
    stage.metrics.assert(&["acquired 1", "acquire_time [0.0]"]);
    assert!(bank.acquire().await.unwrap_err().is_held());
    stage.metrics.assert(&["refused: held 1"]);
    assert_eq!(locks.acquire("bank").await.unwrap_err().kind(), ErrorKind::WrongKind);
    stage.metrics.assert(&["refused: wrong_kind 1"]);
    sleep(Duration::from_mins(1)).await;
    bank.acquire().await.unwrap().release().await.unwrap();
    let times = ["acquire_time [0.0]", "hold_time [0.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["acquired 1", "released 1", "taken_over 1"], &times[..]].concat());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_in_turn_that_goes_on_later_counts_nothing_yet() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    let attempt = stage.locks().acquire("nightly").attempt_in_turn(None).await.unwrap();
    assert!(matches!(attempt, Attempt::Waiting(_)), "{attempt:?}");
    let line = &stage.traces.lock_lines()[1];
    assert!(line.contains("outcome=waiting"), "{line}");
    assert_eq!(stage.metrics.take().count("refused: cancelled"), 0);
    lock.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_rate_counts_the_time_that_it_waits() {
    let stage = Stage::set().await;
    let bank = stage.locks().rate("bank", 1, Duration::from_secs(1));
    bank.pass().await.unwrap();
    stage.metrics.assert(&["acquired 1"]);
    bank.pass_within(Duration::from_secs(2)).await.unwrap();
    let counted = stage.metrics.take();
    let [waited] = counted.values("wait_time") else { panic!("{counted:?}") };
    assert!((1_000.0..=1_002.0).contains(waited) && counted.count("acquired") == 1, "{counted:?}");
}
