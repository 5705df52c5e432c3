//! Metrics, spans and events of lost locks.

use std::future::pending;

use lambda_lock::embedded::Faults;
use tokio::time::sleep;
use tracing::Level;

use crate::{Stage, ms, s, settle, take_away};

#[tokio::test(start_paused = true)]
async fn a_loss_found_by_a_renewal_is_counted_and_logged_once() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").await.unwrap();
    take_away(&stage.locks(), "nightly").await;
    let next = stage.locks().acquire("nightly").holder("the next").await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    assert!(lock.renew(s(30)).await.unwrap_err().is_lost());
    stage.metrics.assert(&["lost 1", "hold_time [251.0]"]);
    assert!(lock.renew(s(30)).await.unwrap_err().is_lost());
    assert!(lock.release().await.unwrap_err().is_lost());
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let line = "attempts=1 fence=… held_ms=251 key=nightly outcome=lost owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines()[0], line);
    let [loss] = &stage.traces.logged("lost")[..] else { panic!("once") };
    assert_eq!((loss.level, loss.lock, &*loss.fields["key"]), (Level::WARN, Some(0), "nightly"));
    assert!(loss.fields["to"].contains("the next"), "{loss:?}");
    assert_eq!(stage.traces.logged_at_info(), ["WARN released by force", "WARN lost"]);
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_loss_to_an_operator_is_logged_with_its_name() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").await.unwrap();
    take_away(&stage.locks(), "nightly").await;
    assert!(lock.release().await.unwrap_err().is_lost());
    let [loss] = &stage.traces.logged("lost")[..] else { panic!("once") };
    assert!(loss.fields["by"].starts_with("process ") && !loss.fields.contains_key("to"), "{loss:?}");
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_lease_is_counted_as_lost_and_failed() {
    let stage = Stage::set().await;
    let outcome = stage.locks().acquire("nightly").lease(s(3)).run(async |_| pending::<()>().await).await;
    assert!(outcome.unwrap_err().is_lost());
    settle().await;
    let acquired = ["acquired 1", "acquire_time [0.0]", "lost 1", "hold_time [3000.0]"];
    stage.metrics.assert(&[&acquired[..], &["work_failed 1", "release_time [0.0]"]].concat());
    let line = "attempts=1 fence=… held_ms=3000 key=nightly outcome=lost owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    assert_eq!(stage.traces.logged_at_info(), ["WARN lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_lock_taken_over_after_its_lease_is_counted_as_lost_once() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").lease(s(1)).holder("the first").await.unwrap();
    sleep(ms(2500)).await;
    stage.metrics.take();
    let next = stage.locks().acquire("nightly").holder("the next").await.unwrap();
    stage.metrics.assert(&["acquired 1", "taken_over 1", "acquire_time [0.0]"]);
    assert!(lock.release().await.unwrap_err().is_lost());
    stage.metrics.assert(&["lost 1", "hold_time [2500.0]", "release_failed: lost 1"]);
    assert!(lock.release().await.unwrap_err().is_lost());
    let [loss] = &stage.traces.logged("lost")[..] else { panic!("once") };
    assert!(loss.fields["to"].contains("the next"), "{loss:?}");
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "lost");
    let [takeover] = &stage.traces.logged("taken over")[..] else { panic!("once") };
    assert_eq!((takeover.level, takeover.lock, &*takeover.fields["key"]), (Level::WARN, Some(1), "nightly"));
    assert!(takeover.fields["from"].contains("the first"), "{takeover:?}");
    assert_eq!(stage.traces.logged_at_info(), ["WARN taken over", "WARN lost"]);
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_lock_released_after_its_lease_is_counted_as_lost_and_released() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").lease(s(1)).await.unwrap();
    sleep(s(2)).await;
    stage.metrics.take();
    lock.release().await.unwrap();
    stage.metrics.assert(&["lost 1", "released 1", "hold_time [2000.0]", "release_time [0.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let line = "attempts=1 fence=… held_ms=2000 key=nightly outcome=lost owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    assert_eq!(stage.traces.logged_at_info(), ["WARN lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_fails_in_the_background_names_its_keys() {
    let stage = Stage::set().await;
    let locks = stage.on_network(Faults::seeded(1).lose_requests(1.0));
    locks.acquire("nightly").await.unwrap_err();
    locks.acquire_all(["a", "b"]).await.unwrap_err();
    settle().await;
    let failed = stage.traces.logged("a background request failed");
    assert_eq!(failed.iter().map(|event| &*event.fields["key"]).collect::<Vec<_>>(), ["nightly", "a, b"]);
}
