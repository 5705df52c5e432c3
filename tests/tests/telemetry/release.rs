//! Metrics, spans and events of releases.

use lambda_lock::ErrorKind;
use lambda_lock_tests::invocation::LoseAnswers;
use tokio::time::sleep;
use tracing::Level;

use crate::{Stage, locks_on, ms, settle, slow};

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_counted_by_its_reason_and_its_retry_as_released() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)));
    let lock = locks.acquire("nightly").await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    assert_eq!(lock.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    stage.metrics.assert(&["release_failed: unavailable 1", "hold_time [250.0]"]);
    sleep(ms(100)).await;
    lock.release().await.unwrap();
    stage.metrics.assert(&["released 1", "release_time [0.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let line = "attempts=1 fence=… held_ms=250 key=nightly outcome=released owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
}

#[tokio::test(start_paused = true)]
async fn a_release_with_oversized_data_is_counted_as_failed() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    lock.set_data("x".repeat(400 * 1024));
    assert_eq!(lock.release().await.unwrap_err().kind(), ErrorKind::Invalid);
    stage.metrics.assert(&["release_failed: invalid 1", "hold_time [0.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&["released 1", "release_time [0.0]"]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "released");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lock_is_counted_as_failed_and_released_in_the_background() {
    let stage = Stage::set().await;
    let locks = stage.on_network(slow(ms(20)));
    let lock = locks.acquire("nightly").await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    drop(lock);
    stage.metrics.assert(&["hold_time [290.0]", "work_failed 1"]);
    assert!(!stage.traces.locks()[0].is_closed);
    settle().await;
    stage.metrics.assert(&["release_time [40.0]"]);
    let line = "attempts=1 fence=… held_ms=290 key=nightly outcome=released owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    assert_eq!(stage.traces.logged_at_info(), ["WARN a lock was dropped without a release"]);
    assert_eq!(stage.traces.logged("a lock was dropped")[0].fields["key"], "nightly");

    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 2..=1000)));
    drop(locks.acquire("nightly").await.unwrap());
    settle().await;
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [0.0]"];
    stage.metrics.assert(&[&acquired[..], &["work_failed 1", "release_failed: unavailable 1"]].concat());
    assert_eq!(stage.traces.locks()[1].fields["outcome"], "release_failed");
    let [failure] = &stage.traces.logged("a background request failed")[..] else { panic!("once") };
    assert_eq!((failure.level, failure.lock, &*failure.fields["key"]), (Level::DEBUG, Some(1), "nightly"));
}
