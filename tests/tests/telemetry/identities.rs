//! Metrics of a lock that outlives its process.

use tokio::time::sleep;

use crate::{Stage, ms};

#[tokio::test(start_paused = true)]
async fn the_hold_of_all_steps_counts_once() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let acquire = || locks.acquire("deploy").identity("run 1");
    acquire().await.unwrap().keep();
    sleep(ms(500)).await;
    let lock = acquire().take_over().await.unwrap();
    let fence = lock.fence();
    lock.keep();
    stage.metrics.assert(&["acquired 2", "acquire_time [0.0, 0.0]"]);
    sleep(ms(250)).await;
    let lock = acquire().take_over_from(fence).await.unwrap();
    stage.metrics.take();
    lock.release().await.unwrap();
    stage.metrics.assert(&["hold_time [750.0]", "release_time [0.0]", "released 1"]);
    assert_eq!(stage.traces.logged_at_info(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_step_after_the_end_of_the_lease_counts_as_refused() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    assert!(locks.acquire("deploy").identity("run 1").take_over().await.unwrap_err().is_lost());
    stage.metrics.assert(&["refused: lost 1"]);
    locks.acquire("deploy").identity("run 1").await.unwrap().keep();
    stage.metrics.take();
    assert!(locks.release_identity("deploy", "run 1").await.unwrap());
    stage.metrics.assert(&["released 1"]);
}
